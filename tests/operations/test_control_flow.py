"""Functions that take functions, outside of `jit`: control flow, `reduce` and `reduce_window`.

JAX traces the functions that it is given once, and knows them by their identity afterwards: what
they read beside their arguments is not read again. Plain JAX says what is right; each side gets
functions of its own, for JAX knows those that the other side has used.
"""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from observe import observe

import jaxmarshal
from jaxmarshal._core.entries import which_functions
from jaxmarshal._reports import counting


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def hits():
    """How many calls of control flow were fast."""
    counts = counting.by_function()["functions"]
    return sum(counts[f"jax.lax.{name}"]["hits"] for name in which_functions._WITH_FUNCTIONS)


def array(seed, shape=(4,)):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def functions(read=lambda: 1.0):
    """New functions for one side; they read something beside their arguments."""
    return {
        "double": lambda x: x * 2 + read(),
        "less": lambda x: x - read(),
        "small": lambda state: state[0] < 5,
        "step": lambda state: (state[0] + 1, state[1] * 2 + read()),
        "add": lambda i, x: x + i + read(),
        "sum": lambda carry, y: (carry + y, carry * read()),
        "combine": lambda x, y: x + y * read(),
        "count": lambda carry, _: (carry + read(), None),
        "tree": lambda carry, _: (
            {"b": carry["a"] + read(), "a": carry["b"]}, [carry["a"], (carry["b"],)]
        ),
    }


def jitted(read=lambda: 1.0):
    """The same, jitted: then JAX knows the jitted function."""
    return {name: jax.jit(function) for name, function in functions(read).items()}


KINDS = pytest.mark.parametrize("make", [functions, jitted], ids=["plain", "jitted"])

CALLS = {
    "cond": lambda f, x: lax.cond(x[0] > 0, f["double"], f["less"], x),
    "cond of a bool": lambda f, x: lax.cond(True, f["double"], f["less"], x),
    "switch": lambda f, x: lax.switch(1, [f["double"], f["less"]], x),
    "switch by an array": lambda f, x: lax.switch(
        x.astype(int)[0], [f["double"], f["less"]], x
    ),
    "scan": lambda f, x: lax.scan(f["sum"], x[0], x),
    "scan of nothing": lambda f, x: lax.scan(f["count"], x, None, 3),
    "scan backwards": lambda f, x: lax.scan(f["sum"], x[0], x, reverse=True),
    "scan of a dict": lambda f, x: lax.scan(f["tree"], {"b": x, "a": x + 1}, None, length=3),
    "while_loop": lambda f, x: lax.while_loop(f["small"], f["step"], (0, x)),
    "fori_loop": lambda f, x: lax.fori_loop(0, 4, f["add"], x),
    "reduce": lambda f, x: lax.reduce(x, 0.0, f["combine"], (0,)),
    "reduce_window": lambda f, x: lax.reduce_window(x, 1.0, f["combine"], (2,), (1,), "VALID"),
    "reduce by a function of JAX's": lambda f, x: lax.reduce(x, -jnp.inf, lax.max, (0,)),
    "reduce_window by a function of JAX's": lambda f, x: lax.reduce_window(
        x, 0.0, lax.add, (2,), (1,), "SAME"
    ),
    "fori_loop up to an array": lambda f, x: lax.fori_loop(0, jnp.int32(3), f["add"], x),
}


def run(name, make, arguments, change=lambda i: None):
    """What each of the calls returns or raises, with new functions."""
    found, made = [], make()
    for i, x in enumerate(arguments):
        change(i)
        found.append(observe(lambda made, x: CALLS[name](made, x), made, x))
    return found


def both(name, make, arguments, change=lambda i: None):
    """The same with plain JAX."""
    found = run(name, make, arguments, change)
    with jaxmarshal.uninstalled():
        assert found == run(name, make, arguments, change)


@KINDS
@pytest.mark.parametrize("name", CALLS)
def test_other_elements(name, make):
    """They are recorded once; then every call is fast, whatever its elements are."""
    both(name, make, [array(i) for i in range(9)])
    made = make()
    for i in range(4):
        CALLS[name](made, array(i))
    before = hits()
    CALLS[name](made, array(9))
    # JAX reads an array that says how often a loop runs, so such a call is never replayed.
    assert hits() == before + (name != "fori_loop up to an array")


@KINDS
@pytest.mark.parametrize("name", CALLS)
def test_other_arguments(name, make):
    """Of another shape, dtype, weak type or placement."""
    x = array(1)
    others = [x, array(1, (6,)), x.astype(jnp.float16), x, jax.device_put(x, jax.devices()[1])]
    both(name, make, [other for other in others for _ in range(4)])


@KINDS
@pytest.mark.parametrize("name", CALLS)
def test_what_functions_read(name, make):
    """It is read when JAX traces them, and in no other call; afresh where everything is cleared."""
    state = [0.0]

    def change(i):
        state[0] = float(i // 2)
        if i == 8:
            jax.clear_caches()

    both(name, lambda: make(lambda: state[0]), [array(1)] * 12, change)


@pytest.mark.parametrize("name", CALLS)
def test_what_was_jitted_is_cleared(name):
    """Of one function alone: JAX's control flow does not hear of it, nor are others traced."""
    state, made = [0.0], []

    def make():
        made[:] = [jitted(lambda: state[0])]
        return made[0]

    def change(i):
        state[0] = float(i // 2)
        if i in (5, 8):
            for function in made[0].values():
                function.clear_cache()

    both(name, make, [array(1)] * 12, change)


@KINDS
@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("reduce")])
@pytest.mark.parametrize("kind", ["jax", "numpy", "numpy scalar", "numpy of no dimension"])
def test_arrays_that_functions_hold(name, kind, make):
    """Trap 17: an array of theirs is theirs; numpy's are edited in place."""
    held = {
        # Where numpy's memory is aligned, the array on the device may share it.
        "jax": array(7), "numpy": np.ones(5, np.float32)[1:], "numpy scalar": np.float32(3),
        "numpy of no dimension": np.array(3, np.float32),
    }[kind]

    def change(i):
        if isinstance(held, np.ndarray):
            held[...] = i

    both(name, lambda: make(lambda: held[0] if kind == "jax" else held.sum()), [array(1)] * 8)
    both(name, lambda: make(lambda: held), [array(1)] * 8, change)


@KINDS
@pytest.mark.parametrize(
    "name", ["cond", "scan", "while_loop", "fori_loop", "reduce", "reduce_window"]
)
def test_functions_are_not_kept(name, make):
    """Trap 17: nor what they hold; and another function may come to lie where one was."""
    gone = []
    for i in range(6):
        held = array(i)
        if name.startswith("reduce"):    # JAX refuses arrays of its own there
            held = np.array(held)
        made = make(lambda held=held: held[0])
        for _ in range(4):
            found = CALLS[name](made, array(1))
        with jaxmarshal.uninstalled():
            expected = CALLS[name](make(lambda held=held: held[0]), array(1))
        assert jax.tree.map(np.array_equal, found, expected)
        gone += [weakref.ref(held), *map(weakref.ref, made.values())]
        del held, made
    jax.clear_caches()    # JAX's own keep what they hold
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []


def test_functions_of_jax():
    """JAX has jitted some of them, and makes others objects of a class of its own."""
    branches = [jnp.sin, jnp.negative, jnp.abs, jnp.exp2]
    for i in range(24):
        x, chosen = array(i), branches[i % 4 :] + branches[: i % 4]
        found = observe(lambda x, f=chosen: lax.switch(1, f, x), x)
        with jaxmarshal.uninstalled():
            assert found == observe(lambda x, f=chosen: lax.switch(1, f, x), x)
    assert hits() >= 12


def test_functions_of_each_call():
    """A function that is new in every call is traced in every call, as in JAX."""
    traced = []

    def call(x):
        def body(i, x):
            traced.append(i)
            return x + i

        return lax.fori_loop(0, 3, body, x)

    for i in range(5):
        call(array(i))
    ours = len(traced)
    with jaxmarshal.uninstalled():
        for i in range(5):
            call(array(i))
    assert len(traced) == 2 * ours


@pytest.mark.usefixtures("callbacks")
def test_effects():
    """A callback is called as often as in JAX, and with the same."""
    called = []

    def body(i, x):
        jax.debug.callback(lambda value: called.append(float(value)), x[0])
        return x + 1

    for _ in range(5):
        lax.fori_loop(0, 3, body, jnp.zeros(2))
    jax.effects_barrier()
    assert sorted(called) == sorted([0.0, 1.0, 2.0] * 5)


def telling(tell):
    """Functions that call `tell`, and whose results nobody needs: arguments, or none."""
    return {
        "same": lambda x: x,
        "tell": lambda x: (tell(x), x)[1],
        "jitted": jax.jit(lambda x: (tell(x), x)[1]),
        "nothing": lambda x: (),
        "tell nothing": lambda x: (tell(x), ())[1],
        "body": lambda i, x: (tell(x), x)[1],
        "scan": lambda carry, y: (tell(y), (carry, None))[1],
    }


TELLING = {
    "cond": lambda f, x: lax.cond((x > 0).all(), f["same"], f["tell"], x),
    "cond, jitted": lambda f, x: lax.cond((x > 0).all(), f["same"], f["jitted"], x),
    "cond, no result": lambda f, x: lax.cond((x > 0).all(), f["nothing"], f["tell nothing"], x),
    "switch": lambda f, x: lax.switch((x < 0).any().astype(int), [f["same"], f["tell"]], x),
    "scan": lambda f, x: lax.scan(f["scan"], x, x)[0],
    "fori_loop": lambda f, x: lax.fori_loop(0, 2, f["body"], x),
}
TELL = {
    "debug.callback": lambda call: lambda x: jax.debug.callback(call, x),
    "io_callback": lambda call: lambda x: io_callback(call, None, x),
    "ordered": lambda call: lambda x: io_callback(call, None, x, ordered=True),
}


@pytest.mark.usefixtures("callbacks")
@pytest.mark.parametrize("tell", TELL)
@pytest.mark.parametrize("name", TELLING)
def test_trap_10_effects_without_results(name, tell):
    """Trap 10: a call is made for its effects, too, where its results are its arguments."""
    told = []
    for context in (jaxmarshal.uninstalled, jaxmarshal.installed):
        heard = []
        made = telling(TELL[tell](lambda x, heard=heard: heard.append(np.asarray(x).tolist())))
        with context():
            for x in [array(1) ** 2] * 6 + [-(array(2) ** 2), array(1) ** 2, -(array(3) ** 2)]:
                jax.block_until_ready(TELLING[name](made, x))
            jax.effects_barrier()
        told.append(sorted(map(str, heard)))
    assert told[0]
    assert told[1] == told[0]


@pytest.mark.usefixtures("callbacks")
@pytest.mark.parametrize("kind", ["io_callback", "pure_callback"])
def test_trap_10_a_callback_that_fails_once(kind):
    """Trap 10: what has run and failed is not run a second time."""
    shape = jax.ShapeDtypeStruct((), np.float32)
    found = []
    for context in (jaxmarshal.uninstalled, jaxmarshal.installed):
        calls = []

        def save(mean, calls=calls):
            calls.append(1)
            if len(calls) == 2:
                raise OSError("no room")
            return mean

        ask = io_callback if kind == "io_callback" else jax.pure_callback
        write = lambda x, ask=ask, save=save: x + ask(save, shape, x.sum())    # noqa: E731
        skip = lambda x: x * 1    # noqa: E731
        errors = []
        with context():
            for i in range(8):
                try:
                    jax.block_until_ready(lax.cond(jnp.bool_(i >= 4), write, skip, array(1)))
                except Exception as error:
                    errors.append((i, type(error)))
        found.append((len(calls), errors))
    assert found[0][0] == 4
    assert found[1] == found[0]


@pytest.mark.parametrize("branches", [list, tuple])
def test_trap_10_an_only_branch(branches):
    """Trap 10: `switch` calls an only branch in each call, with the arguments themselves."""
    seen, factor = [], 1

    def branch(x):
        seen.append(x)
        return x * factor

    x = array(1)
    for call in range(6):
        factor = call + 1
        assert np.array_equal(lax.switch(0, branches([branch]), x), np.asarray(x) * factor)
    assert len(seen) == 6
    assert all(one is x for one in seen)


@pytest.mark.errors
def test_errors():
    """A body that returns another type is JAX's error, each time."""
    def body(carry, _):
        return carry.astype(jnp.int32), None

    for _ in range(5):
        found = observe(lambda x: lax.scan(body, x, None, 2), array(1))
        with jaxmarshal.uninstalled():
            assert found == observe(lambda x: lax.scan(body, x, None, 2), array(1))


def test_leaks_are_looked_for():
    """While JAX checks for leaked tracers it traces functions in every call."""
    with jax.checking_leaks():
        for name in ("cond", "fori_loop"):
            state = [0.0]

            def change(i, state=state):
                state[0] = float(i)

            both(name, lambda state=state: functions(lambda: state[0]), [array(1)] * 5, change)
    assert hits() == 0


def test_inside_of_transformations():
    """They are traced there as ever."""
    made = functions()
    for _ in range(4):
        CALLS["fori_loop"](made, array(1))

    def total(x):
        return CALLS["fori_loop"](made, x).sum()

    for call in (jax.jit(total), jax.grad(total), jax.vmap(lambda x: CALLS["cond"](made, x))):
        found = call(array(1, (2, 4)) if call is not jax.grad else array(1))
        with jaxmarshal.uninstalled():
            expected = call(array(1, (2, 4)) if call is not jax.grad else array(1))
        assert np.array_equal(found, expected)
