"""Jitted functions are accelerated in place: the same objects, whenever they were made."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import subprocess
import sys
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code, said
from support import counts, transfer_log, without_jaxmarshal

import jaxmarshal
from jaxmarshal._core.entries import jit, jit_recorder
from jaxmarshal._jax import private

X = np.arange(1, 5, dtype=np.float32)
PjitFunction = private.PjitFunction


def adding(value):
    """A function that adds what is in a list, and the list."""
    held = [value]

    def add(x, n=0):
        return jax.lax.add(x, jnp.full_like(x, held[0] + n))

    return add, held


def jit_counts():
    """(hits, misses by reason) of jitted functions outside of traces."""
    hits, reasons = counts("jit")
    jaxmarshal.reset_stats()
    return hits, {name: n for name, n in reasons.items() if name != "trace"}


# --- The very object -----------------------------------------------------------------------------


def test_the_same_object_and_type():
    """Installing changes neither what a jitted function is nor what it shows."""
    before = jax.jit(lambda x: x)
    shown = (dir(before), list(vars(before)), repr(before), type(before))
    with jaxmarshal.installed():
        assert (dir(before), list(vars(before)), repr(before), type(before)) == shown
        made = jax.jit(lambda x: x)
        assert type(made) is PjitFunction and isinstance(jnp.sin, type(made))
        for call in (lambda: jnp.zeros(3) + made, lambda: made(made)):
            with pytest.raises(TypeError) as raised:
                call()
            assert "jaxmarshal" not in str(raised.value)
    assert type(jaxmarshal.jit(lambda x: x)) is PjitFunction


def test_functions_of_before():
    """What was jitted, and called, before `install()` is fast after it."""
    x = jax.device_put(X)
    warm, cold = (jax.jit(lambda x: jax.lax.neg(x)) for _ in range(2))
    warm(x)
    with jaxmarshal.installed():
        for function in (warm, cold):
            assert jit.uses_plans(function)
            jaxmarshal.reset_stats()
            for _ in range(4):
                assert function(x).tolist() == (-X).tolist()
            # What jaxlib knows already is asked of JAX's Python function by the second call.
            misses = 1 if function is cold else 2
            assert jit_counts() == (4 - misses, {"not_recorded": misses})
            assert function._cache_size() == 1
    assert not jit.uses_plans(warm)
    warm(x)
    assert jit_counts() == (0, {})


@pytest.mark.parametrize("function", [jnp.sin, jnp.arctan2, jnp.real], ids=lambda f: f.__name__)
def test_functions_of_jax_numpy(function):
    """What JAX itself jitted when it was imported hits in each call once it is warm."""
    assert type(function) is PjitFunction
    x = jax.device_put(X)
    args = (x, x) if function is jnp.arctan2 else (x,)
    wanted = function(*args).tolist()
    with jaxmarshal.installed("jit"):
        for _ in range(3):
            function(*args)
        jit_counts()
        for _ in range(20):
            assert function(*args).tolist() == wanted
        assert jit_counts() == (20, {})
    function(*args)
    assert jit_counts() == (0, {})


def test_nothing_is_traced_again():
    """A warm function whose trace JAX has dropped is left to jaxlib, which has what it compiled."""
    x = jax.device_put(X)
    add, held = adding(1.0)
    warm, other = jax.jit(add), jax.jit(add, donate_argnums=1)
    outcomes = []
    for place in (None, "jit"):
        held[0] = 1.0
        for function in (warm, other):
            function.clear_cache()
            function(x)
        held[0] = 10.0
        other.clear_cache()    # drops the traces of both, and what jaxlib has of one
        if place:
            jaxmarshal.install(place)
        outcomes.append([(f(x).tolist(), f._cache_size()) for f in (warm, other) * 4])
        jaxmarshal.uninstall()
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("value", [1e300, np.float64(1e300), np.array([1e300]), 2.0, 2**40, True])
def test_warm_functions_and_conversions(value):
    """A warm function converts host data as jaxlib does, with as many warnings: none."""
    arrays = [jnp.full(2, n) for n in range(40)]
    found = []
    for place in (False, True):
        function = jax.jit(lambda xs, y: [jax.lax.mul(x, x) for x in xs] + [y])
        with contextlib.suppress(OverflowError):
            function(arrays, value)
        if place:
            jaxmarshal.install()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                with contextlib.suppress(OverflowError):
                    function(arrays, value)
        found.append([(str(w.message), w.filename, w.lineno) for w in caught])
        jaxmarshal.uninstall()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "value", [1.5, 3, True, 2j, np.float64(1.5), np.ones(2), np.arange(3), np.ones(2, complex)],
    ids=repr,
)
def test_warm_functions_hit(value):
    """A warm function is accelerated whatever its host data are converted to."""
    arrays = [jnp.full(2, n) for n in range(40)]
    function = jax.jit(lambda xs, y: [jax.lax.mul(x, x) for x in xs] + [y])
    function(arrays, value)
    jaxmarshal.install()
    before = jit_counts()[0]
    for _ in range(4):
        function(arrays, value)
    assert jit_counts()[0] >= before + 2


@pytest.mark.parametrize("level", ["log", "disallow"])
def test_warm_functions_and_transfer_guards(level, capfd):
    """A warm function has its host data placed by jaxlib, which logs or refuses that itself."""
    arrays = [jnp.full(2, n) for n in range(40)]
    found = []
    for place in (False, True):
        function, host = jax.jit(lambda xs, y: [*xs, y + 1]), np.ones(3, np.float32)
        function(arrays, host)
        if place:
            jaxmarshal.install()
        outcomes = []
        with jax.transfer_guard(level):
            for _ in range(4):
                try:
                    outcomes.append(function(arrays, host)[-1].shape)
                except Exception as error:
                    outcomes.append((type(error).__name__, str(error)))
        found.append((outcomes, transfer_log(capfd)))
        jaxmarshal.uninstall()
    assert found[0] == found[1]
    assert found[0][1] if level == "log" else found[0][0][0][0]


def test_what_jaxlib_has_from_a_relative():
    """What another jit of the same function compiled before is fast too."""
    x = jax.device_put(X)
    add, _ = adding(1.0)
    plain = jax.jit(add)
    plain(x)
    function = jaxmarshal.jit(add)
    jaxmarshal.reset_stats()
    for _ in range(4):
        assert function(x).tolist() == plain(x).tolist()
    assert jit_counts() == (2, {"not_recorded": 2})
    assert function._cache_size() == 1


def test_under_a_profiler_first(tmp_path):
    """A function that was called under a profiler first is fast afterwards."""
    x = jax.device_put(X)
    with jaxmarshal.installed():
        function = jax.jit(lambda x: jax.lax.neg(x))
        with jax.profiler.trace(str(tmp_path)):
            function(x)
        with jax.debug_nans(True):
            function(x)
        jaxmarshal.reset_stats()
        for _ in range(4):
            function(x)
        assert jit_counts()[0] >= 2


def test_uninstalling_puts_everything_back():
    """Pointers and the two hooks are those of before, also after several rounds."""
    pjit = private.pjit
    gc.collect()    # functions of `jaxmarshal.jit`, which are there for good
    before = (pjit._cpp_pjit, pjit._get_fastpath_data, vars(PjitFunction)["_clear_cache"])
    functions = [jax.jit(jax.lax.neg) for _ in range(3)]
    for _ in range(2):
        jaxmarshal.install()
        assert all(jit.uses_plans(function) for function in functions)
        jaxmarshal.uninstall()
        gc.collect()
        assert not any(jit.uses_plans(function) for function in functions)
        assert (
            pjit._cpp_pjit, pjit._get_fastpath_data, vars(PjitFunction)["_clear_cache"]
        ) == before  # fmt: skip


def test_trap_15_somebody_else_notes_what_jaxlib_keeps():
    """A mock is called as in plain JAX; afterwards calls are recorded at once, as before."""
    pjit, kept = private.pjit, []
    gc.collect()
    jaxmarshal.uninstall()
    x, original = jax.device_put(X), pjit._get_fastpath_data
    for put_back in (original, private.fastpath_data, jit_recorder.note_fastpath_data):

        def mock(*args):
            kept.append(original(*args))
            return kept[-1]

        under_mock = jaxmarshal.jit(lambda x: jax.lax.neg(x))
        pjit._get_fastpath_data = mock
        try:
            for _ in range(3):
                under_mock(x)
            assert len(kept) >= 1
            assert pjit._get_fastpath_data is mock
        finally:
            pjit._get_fastpath_data = put_back
            kept.clear()
        function = jaxmarshal.jit(lambda x: jax.lax.abs(x))
        function(x)
        jit_counts()
        function(x)
        assert jit_counts() == (1, {})


#: The last function dies, and while jaxmarshal sees to it another one is made.
WHILE_ONE_DIES = """
import gc, jax, jaxmarshal
from jaxmarshal._jax import private

x = jax.numpy.zeros(3)
ask, made = private.infer_params_cache, []

def ask_and_make(*args):
    if made == []:
        made.append(None)
        made[0] = jaxmarshal.jit(lambda x: x + 2)
    return ask(*args)

function = jaxmarshal.jit(lambda x: x + 1)
function(x)
gc.collect()
private.infer_params_cache = ask_and_make
del function
gc.collect()
private.infer_params_cache = ask
result = [made != [], private.pjit._get_fastpath_data is private.fastpath_data]
made[0](x)
jaxmarshal.reset_stats()
made[0](x)
result.append(jaxmarshal.stats()["jit"]["hits"])
"""


def test_one_is_made_while_the_last_one_dies(fresh):
    """What is noted for the new one is not given up with the old one."""
    assert fresh(WHILE_ONE_DIES) == [True, False, 1]


FORGETTING = {
    "jax.clear_caches": jax.clear_caches,
    "jaxmarshal.api.clear": jaxmarshal.api.clear,
    "uninstalled": lambda: jaxmarshal.uninstall() or jaxmarshal.install(),
}


def cleared_by_a_relative(forget, kind, statics):
    """What a function gives before and after another jit of the same function was cleared."""
    held, x, seen = [1], jax.device_put(X), []

    def add(x, n):
        return x + held[0] * n

    function, other = jax.jit(add, static_argnums=statics[0]), jax.jit(add, **statics[1])

    def call():
        for _ in range(4):
            seen.append(function(x, 1).tolist())
        other(x, 1)

    call()
    if kind == "uninstalled":
        with without_jaxmarshal():
            held[0] += 1
            function.clear_cache()
    forget()
    for clear in (other.clear_cache, function.clear_cache, other._clear_cache):
        call()
        held[0] += 1
        clear()
    call()
    return seen


@pytest.mark.parametrize("statics", [(1, {"static_argnums": 1}), ((), {}), (1, {})], ids=str)
@pytest.mark.parametrize("kind", FORGETTING)
def test_trap_11_relatives_are_cleared_after_everything_was_forgotten(kind, statics):
    """Trap 11: functions share a cache of jaxlib still, when all plans were dropped once."""
    expected = cleared_by_a_relative(lambda: None, "", statics)
    if kind == "uninstalled":
        expected = cleared_by_a_relative(lambda: None, kind, statics)
    with jaxmarshal.installed():
        assert cleared_by_a_relative(FORGETTING[kind], kind, statics) == expected
        assert jit_counts()[0] >= 4


#: Ctrl-C ends what jaxmarshal does when it has accelerated its first function.
INTERRUPTED = """
import jax, jaxmarshal
from jaxmarshal._jax import private

x = jax.numpy.zeros(3)
held = [1]
add = lambda x: x + held[0]
other, function = jax.jit(add), jax.jit(add)
with jaxmarshal.installed():
    for _ in range(4):
        function(x)
held[0] += 1
function.clear_cache()    # nobody hears of it
ask = private.infer_params_cache

def interrupted(*args):
    private.infer_params_cache = ask
    raise KeyboardInterrupt

private.infer_params_cache = interrupted
result = []
try:
    jaxmarshal.install()
except KeyboardInterrupt:
    result.append(float(function(x)[0]))
jaxmarshal.install()
result.append(float(function(x)[0]))
for how in (function.clear_cache, other.clear_cache, jax.clear_caches):
    for _ in range(4):
        function(x)
    jaxmarshal.reset_stats()
    function(x)
    result.append(jaxmarshal.stats()["jit"]["hits"])
    held[0] += 1
    how()
    result.append(float(function(x)[0]))
"""


def test_trap_11_an_interrupted_install(fresh):
    """What clears the caches of functions is heard, whatever became of the first install()."""
    assert fresh(INTERRUPTED) == [2.0, 2.0, 1, 3.0, 1, 4.0, 1, 5.0]


def test_functions_die():
    """Neither a function nor what it closes over is kept alive."""
    with jaxmarshal.installed():
        for warm in (False, True):
            add, held = adding(1.0)
            function = jax.jit(add)
            if warm:
                for _ in range(3):
                    function(jax.device_put(X))
            references = [weakref.ref(function), weakref.ref(add)]
            del function, add, held
            gc.collect()
            assert [reference() for reference in references] == [None, None]


def test_made_without_init_and_copied():
    """An object of the type that is no function, and copies of one that is."""
    bare = PjitFunction.__new__(PjitFunction)
    with jaxmarshal.installed():
        assert not jit.uses_plans(bare)
        function = jax.jit(jax.lax.neg)
        copied = copy.copy(function)
        for _ in range(3):
            assert function(X).tolist() == copied(X).tolist() == (-X).tolist()
        assert type(copied) is PjitFunction and not jit.uses_plans(copied)


def test_ends_in_order():
    """A process that ends while everything is installed says nothing about it."""
    source = (
        "import jaxmarshal.auto, jax, jax.numpy as jnp\n"
        "f = jax.jit(lambda x: x + 1)\n"
        "for _ in range(4): f(jnp.ones(3))\n"
        "assert jaxmarshal.stats()['jit']['hits'] >= 3"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, said(done)) == (0, "")


# --- What clears a cache -------------------------------------------------------------------------


@pytest.mark.parametrize("before", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("cleared", [0, 1])
def test_trap_11_clear_cache_of_a_relative(before, cleared):
    """Trap 11: `clear_cache` of any jit of a function reaches all that share jaxlib's cache."""
    x = jax.device_put(X)
    outcomes = []
    for place in (None, "jit"):
        add, held = adding(1.0)
        options = ({}, {"static_argnums": 1})
        made = [jax.jit(add, **options[i]) if i in before else None for i in (0, 1)]
        if place:
            jaxmarshal.install(place)
        made = [jax.jit(add, **options[i]) if made[i] is None else made[i] for i in (0, 1)]
        calls = (lambda: made[0](x).tolist(), lambda: made[1](x, 2).tolist())
        found = [call() for call in calls * 4]
        jaxmarshal.reset_stats()
        found += [call() for call in calls]
        assert not place or jit_counts()[0] == 2
        held[0] = 10.0
        made[cleared].clear_cache()
        found += [(call(), made[0]._cache_size(), made[1]._cache_size()) for call in calls * 3]
        outcomes.append(found)
        jaxmarshal.uninstall()
    assert outcomes[0] == outcomes[1]


#: What other tests leave must not be there: whether anybody listens depends on all functions.
NOBODY_LISTENS = """
import jax, jaxmarshal
import jax.numpy as jnp

def program(x, n=0):
    return x + held[0]

x, held = jnp.ones(3), [1.0]
jaxmarshal.install("jit")
function, relative = jax.jit(program), jax.jit(program, static_argnames="n")
print(float(function(x)[0]), float(function(x)[0]), float(function(x)[0]))
jaxmarshal.uninstall()
held[0] = 5.0
{clear}
jaxmarshal.reset_stats()
jaxmarshal.install("jit")
results = function(x), function(x)
hits = jaxmarshal.stats()["jit"]["hits"]
print(*(float(result[0]) for result in results))
print(hits)
"""


@pytest.mark.commands
@pytest.mark.parametrize(
    ("clear", "value", "hits"),
    [
        ("", "2.0 2.0", 2), ("relative.clear_cache()", "6.0 6.0", 1),
        ("function.clear_cache()", "6.0 6.0", 1), ("jax.clear_caches()", "6.0 6.0", 1),
    ],
)  # fmt: skip
def test_trap_11_clear_cache_while_nobody_listens(clear, value, hits):
    """Plans are kept while nothing is installed, unless a cache was cleared meanwhile."""
    done = run_code(NOBODY_LISTENS.replace("{clear}", clear))
    assert done.stdout.splitlines() == ["2.0 2.0 2.0", value, str(hits)]


@pytest.mark.parametrize("cleared", ["itself", "relative"])
def test_trap_11_clear_cache_while_another_entry_point_is_installed(cleared):
    """Functions of primitives are accelerated on their own, and others keep their plans."""
    x, (program, held) = jnp.asarray(X), adding(1.0)
    with jaxmarshal.installed():
        function, relative = jax.jit(program), jax.jit(program, static_argnames="n")
        for _ in range(3):
            assert function(x).tolist() == (X + 1).tolist()
    with jaxmarshal.installed("xla_primitive_callable"):
        for _ in range(3):
            jax.lax.neg(x)
        held[0] = 5.0
        (function if cleared == "itself" else relative).clear_cache()
    jit_counts()
    with jaxmarshal.installed():
        for _ in range(3):
            assert function(x).tolist() == (X + 5).tolist()
    assert jit_counts()[0] >= 1


# --- Checks of results ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("kind", ["jit", "compiled", "call", "unsafe_call"])
def test_trap_4_nan_checks_without_the_hook(name, leave, kind):
    """Trap 4: a context that ended leaves a thread without the post-hook and with the check."""
    good, bad = jnp.ones(3), jnp.asarray([1.0, np.nan, np.inf], jnp.float32)
    outcomes = []
    for place in (False, True):
        function = jax.jit(lambda x: jax.lax.mul(x, x))
        if place:
            jaxmarshal.install()
        compiled = function.lower(good).compile()
        call = {
            "jit": function, "compiled": compiled, "call": compiled._executable.call,
            "unsafe_call": compiled._executable.unsafe_call,
        }[kind]  # fmt: skip
        found = []
        for _ in range(3):
            call(good)
        jaxmarshal.reset_stats()
        call(good)
        entry = {"compiled": "compiled_call", "call": "mesh_executable_call"}.get(kind, kind)
        entry = "execute_replicated_call" if kind == "unsafe_call" else entry
        assert counts(entry)[0] == int(place)
        jax.config.update(name, True)
        try:
            if leave:
                with getattr(jax, name.removeprefix("jax_"))(False):
                    pass
            for x in (bad, good, good, bad, bad):
                try:
                    call(x)
                    found.append("returned")
                except Exception as error:
                    found.append((type(error).__name__, str(error)[:40]))
        finally:
            jax.config.update(name, False)
            jaxmarshal.uninstall()
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    assert kind in ("jit", "compiled") or outcomes[0][-1] != "returned"
