"""`explain` names the first obstacle, its argument and the word that differs, and runs nothing.

Every reason of `reasons.py` is met here once, by a call that a user can make, or is listed with
why it cannot be.
"""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from jax._src import core, util
from support import REPOSITORY, column_major, counts, literal

import jaxmarshal
from jaxmarshal.reasons import REASONS, page

explain = jaxmarshal.explain

#: Reasons that no call in this process can have.
ELSEWHERE = {
    "hit": "no obstacle",
    "unsupported": "needs a JAX out of range; see `test_an_unsupported_version` in test_cli.py",
    "context": "needs several processes; the state is part of the recorded context",
    "no_backend": "needs a process without a backend; see `test_before_there_is_a_backend`",
}


def unwrapped(answer):
    """What is printed, in one line."""
    assert max(map(len, str(answer).splitlines())) <= 100
    return " ".join(str(answer).split())


def deleted():
    x = jnp.ones(3)
    x.delete()
    return x


def leaked_tracer():
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(1.0)
    return leaked[0]


@contextlib.contextmanager
def listening():
    util.test_event_listener = lambda *_: None
    try:
        yield
    finally:
        util.test_event_listener = None


def strings():
    return jax.device_put(np.array(["a", "b"], np.dtypes.StringDType()), jax.devices()[0])


# What is put, the path of the argument in question, a context.
DEVICE_PUT = {
    "not_recorded": ([1.0, np.zeros(7)], "x[1]"),
    "guard": (1.0, None, lambda: jax.transfer_guard("disallow")),
    "listener": (1.0, None, listening),
    "unknown_type": ({"b": [1.0, "text"], "a": None}, "x['b'][1]"),
    "tracer": (leaked_tracer, "x"),
    "ref": (lambda: (1.0, jax.new_ref(jnp.ones(3))), "x[1]"),
    "key_array": (lambda: [1.0, jax.random.key(0)], "x[1]"),
    "token": (lambda: [1.0, core.Token(jnp.zeros(0))], "x[1]"),
    "literal": (lambda: [1.0, literal(np.zeros(2))], "x[1]"),
    "deleted": (lambda: [1.0, {"a": deleted()}], "x[1]['a']"),
    "dtype": (lambda: [1.0, strings()], "x[1]"),
    "value": ([1.0, 1e300], "x[1]"),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("reason", DEVICE_PUT)
def test_device_put_reasons(reason):
    """Each obstacle has its reason, its argument, a meaning and an advice; stats() agrees."""
    make, leaf, *context = DEVICE_PUT[reason]
    value = make() if callable(make) else make
    jaxmarshal.device_put(1.0)
    jaxmarshal.reset_stats()
    with context[0]() if context else contextlib.nullcontext():
        answer = explain(jaxmarshal.device_put, value)
        assert counts() == (0, {})
        with contextlib.suppress(Exception):
            jaxmarshal.device_put(value)
    assert (answer.hit, answer.reason, answer.leaf) == (False, reason, leaf)
    assert answer.meaning in unwrapped(answer) and answer.advice in unwrapped(answer)
    assert counts() == (0, {reason: 1})


def test_device_put_arguments():
    """Options and targets."""
    device = jax.devices()[0]
    for reason, args, kwargs in (
        ("options", (1.0,), {"donate": True}),
        ("options", (1.0, device), {"donate": True}),
        ("target", (1.0, jax.sharding.PartitionSpec()), {}),
        ("tree", ([1.0], [None, None]), {}),
        ("tree", ([1.0, 2.0], [device]), {}),
    ):
        jaxmarshal.reset_stats()
        answer = explain(jaxmarshal.device_put, *args, **kwargs)
        assert (answer.hit, answer.reason) == (False, reason)
        with contextlib.suppress(Exception):
            jaxmarshal.device_put(*args, **kwargs)
        assert counts() == (0, {reason: 1})


def test_in_a_trace():
    """Asked while something is traced, for both kinds of functions."""
    compiled = compile_add()
    answers = []

    def traced(x):
        answers.append(explain(jax.device_put, 1.0).reason)
        answers.append(explain(compiled, jnp.ones(3)).reason)
        return x

    jax.jit(traced)(1.0)
    assert answers == ["trace", "trace"]


def test_under_a_profiler(tmp_path):
    """Asked while a profile is taken."""
    with jax.profiler.trace(str(tmp_path)):
        assert explain(jax.device_put, 1.0).reason == "profiler"


def test_before_there_is_a_backend():
    """Asked first of all; nothing is initialised for the answer."""
    done = run_code(
        """
        import jaxmarshal
        from jax._src import xla_bridge
        print(jaxmarshal.explain(jaxmarshal.device_put, 1.0).reason)
        assert not xla_bridge.backends_are_initialized()
        """
    )
    assert done.stdout == "no_backend\n"


def test_device_put_before_and_after_recording():
    """A call that nothing was recorded for, and the same call afterwards."""
    x = {"a": np.zeros(3, np.float32), "b": [jnp.ones(2), np.ones(5, np.float32)]}
    before = explain(jaxmarshal.device_put, x)
    assert (before.hit, before.reason, before.leaf) == (False, "not_recorded", "x['a']")
    jaxmarshal.device_put(x)
    after = explain(jaxmarshal.device_put, x)
    assert after.hit and str(after) == "device_put: a hit."
    x["b"][1] = np.ones(6, np.float32)
    assert explain(jax.device_put, x).leaf == "x['b'][1]"
    assert jaxmarshal.stats()["device_put"]["misses"] == 1


def test_whether_it_is_installed():
    """JAX's own function hits only once it is replaced; the answer says so."""
    jaxmarshal.device_put(1.0)
    original = jax.device_put
    answer = explain(original, 1.0)
    assert answer.hit and not answer.installed
    assert "\njaxmarshal is not installed: as it is, the call goes to JAX" in str(answer)
    with jaxmarshal.installed():
        assert explain(jax.device_put, 1.0).installed
        assert not explain(original, 1.0).installed    # a name bound before stays JAX's
    compiled = compile_add()
    assert not explain(compiled, jnp.ones(3)).installed
    with jaxmarshal.installed("compiled_call"):
        assert explain(compiled, jnp.ones(3)).installed


def test_unknown_function():
    """A function without a fast path is no error."""
    answer = explain(len, [1])
    assert (answer.hit, answer.entry_point, answer.reason) == (False, None, "unknown_function")
    assert answer.meaning and answer.advice


class Wrapper:
    """As libraries wrap a jitted function."""

    def __init__(self, function):
        self._cached = function

    def __call__(self, *args):
        return self._cached(*args)


def test_a_wrapper_of_a_jitted_function():
    """The answer names what is inside, and nothing is called."""
    def add(x):
        raise AssertionError("called")

    answer = explain(Wrapper(jax.jit(add)), jnp.ones(3))
    assert (answer.hit, answer.entry_point, answer.reason) == (False, None, "leads_to_others")
    assert "jitted functions (add)" in answer.meaning


def test_a_function_that_uses_several():
    """Entry points of its globals, its closure and JAX's modules; transformed functions, too."""
    add = jax.jit(lambda x: x + 1)

    def step(x):
        return jnp.concatenate([add(jax.device_put(x)), x])

    for function in (step, jax.vmap(step), functools.partial(step)):
        text = explain(function, jnp.ones(3)).meaning
        for part in ("jitted functions (<lambda>)", "jax.device_put", "jax.random (concatenate)"):
            assert part in text
    assert "jitted functions" in explain(jnp.add, jnp.ones(3), 1).meaning


def test_a_custom_derivative():
    """`jax.nn.relu` is called through a class that users' functions share."""
    x = jnp.ones(3)
    with jaxmarshal.installed():
        for _ in range(4):
            jax.nn.relu(x)
        answer = explain(jax.nn.relu, x)
    assert answer.entry_point == "functions"
    assert answer.hit, answer
    assert repr(answer) == str(answer) == "functions: a hit."
    calls = []
    own = jax.custom_jvp(lambda x: calls.append(x) or x)
    assert explain(own, x).entry_point is None
    assert not calls


# --- Compiled functions --------------------------------------------------------------------------


def compile_add(warm=True):
    """x + 1 of three float32, called twice with an uncommitted array if `warm`."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile()
    if warm:
        with jaxmarshal.installed("compiled_call"):
            compiled(jnp.ones(3))
    return compiled


# What is passed, the recorded and the found word as far as they are looked at.
COMPILED = {
    "aval": (lambda: jnp.ones(4), "float32[3]", "float32[4]"),
    "sharding": (lambda: jax.device_put(jnp.ones(3), jax.devices()[1]), "", ""),
    "committed": (lambda: jax.device_put(jnp.ones(3), jax.devices()[0]), "False", "True"),
    "deleted": (deleted, "a live array", "a deleted array"),
    "not_recorded": (lambda: jax.random.key(0), "", "PRNGKeyArray"),
    "unknown_type": (lambda: "text", "", ""),
    "ref": (lambda: jax.new_ref(jnp.ones(3)), "", ""),
    "literal": (lambda: literal(np.zeros(3, np.float32)), "", ""),
    "token": (lambda: core.Token(jnp.zeros(0)), "", ""),
    "tracer": (leaked_tracer, "", ""),
}


@pytest.mark.parametrize("reason", COMPILED)
def test_compiled_reasons(reason):
    """Each obstacle names its argument and the words that differ."""
    make, recorded, found = COMPILED[reason]
    answer = explain(compile_add(), make())
    assert (answer.hit, answer.reason, answer.leaf) == (False, reason, "args[0]")
    assert recorded in str(answer.recorded) and found in str(answer.found)
    assert answer.advice in unwrapped(answer)


def test_compiled_before_recording():
    """What no plan will be made for is named at once, with its argument."""
    four = jax.jit(lambda x, y: x + y).lower(jnp.ones((4, 3)), jnp.ones(3)).compile()
    moved = jax.device_put(jnp.ones(3), jax.devices()[1])
    for args, reason, leaf in (
        ((jnp.ones((4, 3)), jnp.ones(3)), "not_recorded", None),
        ((jnp.ones((4, 3)), deleted()), "deleted", "args[1]"),
        ((jnp.ones((4, 3)), moved), "sharding", "args[1]"),
        ((jnp.ones((4, 3)), [{"a": "text"}]), "unknown_type", "args[1][0]['a']"),
    ):
        answer = explain(four, *args)
        assert (answer.hit, answer.reason, answer.leaf) == (False, reason, leaf)


def test_compiled_layout():
    """Data in another layout, before and after something was recorded."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.ones((3, 4))).compile()
    for _ in range(2):
        answer = explain(compiled, column_major())
        assert (answer.reason, answer.leaf) == ("layout", "args[0]")
        with jaxmarshal.installed("compiled_call"):
            compiled(jax.device_put(jnp.ones((3, 4)), jax.devices()[0]))


def test_compiled_executable_hook_and_guard():
    """What is not about an argument: the executable, a hook, a transfer guard."""
    compiled = jax.jit(lambda x: jax.debug.print("{}", x) or x).lower(jnp.ones(3)).compile()
    for _ in range(2):
        assert explain(compiled, jnp.ones(3)).reason == "executable"
        with jaxmarshal.installed("compiled_call"):
            compiled(jnp.ones(3))
    with jax.debug_nans(True):
        assert explain(compile_add(), jnp.ones(3)).reason == "hook"
    host, arrays = np.ones(3, np.float32), [jnp.ones(3)] * 25
    compiled = jax.jit(lambda x, xs: [x + y for y in xs]).lower(host, arrays).compile()
    with jaxmarshal.installed("compiled_call"):
        compiled(host, arrays)
        compiled(arrays[0], arrays)
    with jax.transfer_guard("disallow"):
        assert explain(compiled, host, arrays).reason == "guard"
        assert explain(compiled, arrays[0], arrays).hit
        assert explain(compiled, 1e300, arrays).reason == "not_recorded"


def test_compiled_with_host_arguments():
    """Arguments on the host, with fewer arrays than pay for them, are left to jaxlib."""
    compiled = compile_add(warm=False)
    for array in (np.ones(3, np.float32), jnp.ones(3), np.ones(3, np.float32)):
        if isinstance(array, np.ndarray):
            answer = explain(compiled, array)
            assert (answer.hit, answer.reason) == (False, "host_leaves")
        with jaxmarshal.installed("compiled_call"):
            for _ in range(3):
                compiled(array)


def test_compiled_keys():
    """Typed keys go to compiled functions, except while their reuse is checked."""
    key = jax.random.key(0)
    compiled = jax.jit(jax.random.bits).lower(key).compile()
    with jaxmarshal.installed("compiled_call"):
        compiled(key)
    assert explain(compiled, key).hit
    answer = explain(compiled, jax.random.key(0, impl="rbg"))
    assert (answer.reason, answer.leaf) == ("aval", "args[0]")
    assert "fry" in str(answer.recorded) and "rbg" in str(answer.found)
    with jax.debug_key_reuse(True):
        assert explain(jax.jit(jax.random.bits).lower(key).compile(), key).reason == "key_array"


def test_compiled_words_and_trees():
    """The leaf of a tree is named by its path, and a tree of another structure as such."""
    tree = {"w": jnp.ones((2, 3)), "b": [jnp.ones(3)]}
    scale = jnp.ones(())
    compiled = jax.jit(lambda t, s: t["w"] * s).lower(tree, s=scale).compile()
    assert explain(compiled, tree, s=scale).reason == "not_recorded"
    with jaxmarshal.installed():
        compiled(tree, s=scale)
    assert explain(compiled, tree, s=scale).hit
    tree["b"][0] = jax.device_put(jnp.ones(3), jax.devices()[0])
    answer = explain(compiled, tree, s=scale)
    assert (answer.reason, answer.leaf) == ("committed", "args[0]['b'][0]")
    assert (answer.recorded, answer.found) == (False, True)
    tree["b"][0] = jnp.ones(4)
    answer = explain(compiled, tree, s=scale)
    assert (answer.reason, answer.leaf) == ("aval", "args[0]['b'][0]")
    assert "float32[3]" in str(answer) and "float32[4]" in str(answer)
    assert explain(compiled, [tree], s=scale).reason == "not_recorded"
    with jax.debug_nans(False), jax.default_matmul_precision("highest"):
        assert explain(compiled, tree, s=scale).reason == "not_recorded"


def test_compiled_with_several_plans():
    """An older plan serves a call as well as the newest."""
    compiled = compile_add()
    committed = jax.device_put(jnp.ones(3), jax.devices()[0])
    with jaxmarshal.installed("compiled_call"):
        compiled(committed)
        assert explain(compiled, jnp.ones(3)).hit and explain(compiled, committed).hit
        jaxmarshal.reset_stats()
        compiled(jnp.ones(3))
        compiled(committed)
    assert counts("compiled_call") == (2, {})


def test_partials_and_bound_methods():
    """What is called in the end counts."""
    device = jax.devices()[1]
    jaxmarshal.device_put(1.0, device)
    assert explain(functools.partial(jax.device_put, device=device), 1.0).hit
    assert explain(functools.partial(jaxmarshal.device_put, 1.0), device).hit
    assert not explain(functools.partial(jax.device_put, device=jax.devices()[2]), 1.0).hit
    compiled = compile_add()
    assert explain(compiled.__call__, jnp.ones(3)).hit
    with jaxmarshal.installed():
        assert explain(compiled.__call__, jnp.ones(3)).hit
        assert explain(functools.partial(compiled, jnp.ones(3))).hit
        assert explain(jax.device_put, 1.0, device).hit


def test_wrong_arguments():
    """The signature of device_put holds here too."""
    with pytest.raises(TypeError):
        explain(jax.device_put, 1.0, None, None)


# --- The list of reasons -------------------------------------------------------------------------


def test_every_reason_was_met():
    """What is neither provoked above nor listed as impossible here has been forgotten."""
    met = {*DEVICE_PUT, *COMPILED, *ELSEWHERE}
    met |= {"options", "target", "tree"}    # test_device_put_arguments
    met |= {"object_layout"}    # test_stepping_aside
    met |= {"trace", "profiler", "layout", "executable", "hook", "host_leaves"}    # their own tests
    met.add("replaced")    # test_eager_replaced
    assert met == {reason.name for reason in REASONS}


def test_the_documentation_has_every_reason():
    """docs/reasons.md is what `reasons.py` says, with an example each."""
    assert all(reason.example for reason in REASONS[1:])
    path = REPOSITORY / "docs" / "reasons.md"
    if not path.exists():
        pytest.skip("the tests run without the sources of the documentation")
    assert path.read_text() == page(), "make it again; see the docstring of reasons.py"


def test_plain_array_where_a_key_was_recorded():
    """An argument of another kind is named, whatever the guard holds."""
    key = jax.random.key(0)
    compiled = jax.jit(lambda k: jax.random.bits(k)).lower(key).compile()
    with jaxmarshal.installed():
        compiled(key)
    answer = jaxmarshal.explain(compiled, jax.random.key_data(key))
    assert (answer.hit, answer.leaf) == (False, "args[0]")


# --- Jitted functions ----------------------------------------------------------------------------


def jitted(warm=True):
    """x + 1, called twice with an uncommitted array of three float32 if `warm`."""
    function = jaxmarshal.jit(lambda x: x + 1)
    for _ in range(2 if warm else 0):
        function(jnp.ones(3))
    jaxmarshal.reset_stats()
    return function


@pytest.mark.parametrize("reason", COMPILED)
def test_jitted_reasons(reason):
    """Each obstacle names its argument and the words that differ; nothing is run or counted."""
    make, recorded, found = COMPILED[reason]
    function, argument = jitted(), make()
    answer = explain(function, argument)
    assert (answer.hit, answer.entry_point) == (False, "jit")
    assert (answer.reason, answer.leaf) == (reason, "args[0]")
    assert recorded in str(answer.recorded) and found in str(answer.found)
    assert answer.advice in unwrapped(answer)
    assert counts("jit") == (0, {})
    # That a value can be used at all is found out before it is looked up.
    if reason in ("aval", "sharding", "committed", "deleted"):
        with contextlib.suppress(Exception):
            function(argument)
        assert counts("jit") == (0, {reason: 1})


def test_jitted_before_and_after_recording():
    """A call that nothing was recorded for, and the same call afterwards."""
    function = jitted(warm=False)
    assert explain(function, jnp.ones(3)).reason == "not_recorded"
    assert function._cache_size() == 0
    function(jnp.ones(3))
    assert str(explain(function, jnp.ones(3))) == "jit: a hit."
    function.clear_cache()
    assert explain(function, jnp.ones(3)).reason == "not_recorded"
    for bad, reason in (
        (deleted(), "deleted"), ("text", "unknown_type"), (np.ones(10_000), "host_leaves"),
    ):  # fmt: skip
        answer = explain(jitted(warm=False), bad)
        assert answer.reason == reason
        assert answer.leaf == (None if reason == "host_leaves" else "args[0]")


def test_jitted_arguments():
    """The paths of arguments by position and by name, static ones left out."""
    function = jaxmarshal.jit(
        lambda n, t, m, x, *, k, y: t["w"] * n, static_argnums=(0, 2), static_argnames="k"
    )
    x, four = jnp.ones(3), jnp.ones(4)

    def asked(n=1, w=x, b=x, m=2, x=x, k=3, y=x):
        return (n, {"w": w, "b": [b]}, m, x), {"k": k, "y": y}

    args, kwargs = asked()
    function(*args, **kwargs)
    assert explain(function, *args, **kwargs).hit
    for change, leaf in (
        ({"w": four}, "args[1]['w']"), ({"b": four}, "args[1]['b'][0]"), ({"x": four}, "args[3]"),
        ({"y": four}, "kwargs['y']"),
    ):  # fmt: skip
        args, kwargs = asked(**change)
        answer = explain(function, *args, **kwargs)
        assert (answer.reason, answer.leaf) == ("aval", leaf)
        assert "float32[3]" in str(answer.recorded) and "float32[4]" in str(answer.found)
    for change in ({"n": 2}, {"m": 3}, {"k": 4}, {"n": True}, {"k": 3.0}):
        args, kwargs = asked(**change)
        answer = explain(function, *args, **kwargs)
        assert (answer.hit, answer.leaf) == (False, None)
        assert answer.reason in ("tree", "not_recorded")
    args, kwargs = asked(b=[x])
    assert explain(function, *args, **kwargs).reason in ("tree", "not_recorded")
    assert explain(function, [], {}, 2, x, k=3, y=x).hit is False


def test_jitted_context_guard_hook_layout_executable():
    """What is not about one argument."""
    function = jitted()
    with jax.debug_nans(True):
        assert explain(function, jnp.ones(3)).reason == "hook"
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        assert explain(function, jnp.ones(3, jnp.float32)).reason == "not_recorded"
    two = jaxmarshal.jit(lambda x: x + 1)
    two(jax.device_put(jnp.ones((3, 4)), jax.devices()[0]))
    answer = explain(two, column_major())
    assert (answer.reason, answer.leaf) == ("layout", "args[0]")
    assert answer.recorded == "the default layout"
    effects = jaxmarshal.jit(lambda x: jax.debug.print("{}", x) or x)
    for expected in ("not_recorded", "executable"):
        assert explain(effects, jnp.ones(3)).reason == expected
        effects(jnp.ones(3))
    host, arrays = np.ones(3, np.float32), [jnp.ones(3)] * 25
    wide = jaxmarshal.jit(lambda x, xs: [x + y for y in xs])
    wide(host, arrays)
    assert explain(wide, host, arrays).hit
    with jax.transfer_guard("disallow"):
        assert explain(wide, host, arrays).reason == "guard"


def test_jitted_in_a_trace_and_under_a_profiler(tmp_path):
    """Asked in the middle of something."""
    function, answers = jitted(), []
    jax.jit(lambda x: answers.append(explain(function, jnp.ones(3)).reason) or x)(1.0)
    with jax.profiler.trace(str(tmp_path)):
        answers.append(explain(function, jnp.ones(3)).reason)
    assert answers == ["trace", "profiler"]


def test_jitted_methods_and_partials():
    """What is called in the end counts."""

    class Model:
        @functools.partial(jaxmarshal.jit, static_argnums=0)
        def step(self, x):
            return x + 1

    model, x = Model(), jnp.ones(3)
    model.step(x)
    assert explain(model.step, x).hit and explain(Model.step, model, x).hit
    assert explain(functools.partial(model.step, x)).hit
    assert explain(functools.partial(Model.step, model), x).hit
    assert explain(model.step, jnp.ones(4)).leaf == "args[1]"
    assert not explain(Model().step, x).hit


def test_jitted_whether_it_is_installed():
    """A function that `install()` found is called by JAX again once that is undone."""
    with jaxmarshal.installed("jit"):
        by_install, own = jax.jit(lambda x: x + 1), jaxmarshal.jit(lambda x: x + 1)
        for function in (by_install, own):
            function(jnp.ones(3))
            answer = explain(function, jnp.ones(3))
            assert answer.hit and answer.installed
    assert explain(own, jnp.ones(3)).installed
    answer = explain(by_install, jnp.ones(3))
    assert answer.hit and not answer.installed
    assert "jaxmarshal is not installed" in str(answer)
    plain = explain(jax.jit(lambda x: x + 1), jnp.ones(3))
    assert (plain.reason, plain.entry_point) == ("not_recorded", "jit") and not plain.installed


# --- What ends in an entry point -----------------------------------------------------------------


def make_wrapper(jitted):
    """What a library makes of a jitted function: an object that prepares its arguments."""

    def __call__(self, *args, **kwargs):
        self.prepared += 1
        return self._cached({"args": args}, **kwargs)

    def __get__(self, instance, _=None):
        return self if instance is None else Method(self, instance)

    class Method:
        def __init__(self, function, instance):
            self.func, self.args, self.keywords = function, (instance,), {}

        def __call__(self, *args, **kwargs):
            return self.func(*self.args, *args, **kwargs)

    Method.__module__ = "equinox.something"
    names = {"__call__": __call__, "__get__": __get__, "__module__": "equinox.something"}
    wrapper = type("Wrapper", (), names)()
    wrapper._cached, wrapper.prepared = jitted, 0
    return wrapper


@pytest.mark.parametrize("installed", [True, False])
def test_a_wrapper_of_a_library(installed):
    """The answer is about the jitted function inside, which does not run."""
    runs = []

    def function(tree, scale=1.0):
        runs.append(scale)
        return tree["args"][-1] * scale

    with jaxmarshal.installed() if installed else jaxmarshal.uninstalled():
        wrapper = make_wrapper(jax.jit(function))
        answer = explain(wrapper, jnp.ones(3), scale=jnp.ones(3))
        assert (answer.entry_point, answer.reason) == ("jit", "not_recorded")
        assert (runs, wrapper.prepared) == ([], 1)
        for _ in range(3):
            wrapper(jnp.ones(3), scale=jnp.ones(3))
        traced = len(runs)
        answer = explain(wrapper, jnp.ones(3), scale=jnp.ones(3))
        assert (answer.hit, answer.installed) == (installed, installed)
        answer = explain(functools.partial(wrapper, jnp.ones(4)), scale=jnp.ones(3))
        if installed:
            assert answer.reason == "aval"
            assert answer.leaf == "args[0]['args'][0] of the jitted function inside"
        assert len(runs) == traced
        assert wrapper(jnp.ones(3), scale=jnp.ones(3)).tolist() == [1.0, 1.0, 1.0]
        # A method of such a function.
        owner = type("Owner", (), {"step": wrapper})()
        assert explain(owner.step, jnp.ones(3)).entry_point == "jit"


def test_a_wrapper_of_the_users_own_is_not_called():
    """Nobody knows what it does on the way: the answer names what it leads to."""

    class Wrapper:
        def __init__(self):
            self._cached = jax.jit(lambda x: x)

        def __call__(self, x):
            raise AssertionError("it was called")

    answer = explain(Wrapper(), jnp.ones(3))
    assert answer.reason == "leads_to_others"


def test_a_wrapper_that_another_thread_calls():
    """Only the call that is asked about is stopped."""
    import threading

    inside, asked = threading.Event(), threading.Event()
    jitted = jax.jit(lambda tree: tree["args"][0] + 1)
    wrapper = make_wrapper(jitted)
    results = []

    def call():
        inside.wait(60)
        results.append(wrapper(1.0))
        asked.set()

    def slow(self, *args):
        self.prepared += 1
        if not results:
            inside.set()
            asked.wait(60)
        return self._cached({"args": args})

    thread = threading.Thread(target=call)
    other = type("Slow", (), {"__call__": slow, "__module__": "equinox.something"})()
    other._cached, other.prepared = jitted, 0
    thread.start()
    answer = explain(other, 1.0)
    thread.join()
    assert answer.entry_point == "jit" and results == [2.0]


def test_methods_of_jitted_functions():
    """`f.__call__` is `f`."""
    function = jitted()
    assert explain(function.__call__, jnp.ones(3)).hit
    assert explain(functools.partial(function.__call__, jnp.ones(3))).hit


def test_real_wrappers():
    """equinox and flax, where they are installed."""
    equinox = pytest.importorskip("equinox", reason="no equinox: its wrappers were NOT asked about")
    nnx = pytest.importorskip("flax.nnx", reason="no flax: its wrappers were NOT asked about")

    class Module(equinox.Module):
        w: jax.Array

        @equinox.filter_jit
        def step(self, x):
            return self.w * x

        @jax.jit
        def other(self, x):
            return self.w * x

    module, x, ran = Module(jnp.ones(3)), jnp.ones(3), []

    def make():
        return lambda x: ran.append(1) or x * 2

    with jaxmarshal.installed():
        for f in (
            equinox.filter_jit(make()), nnx.jit(make()), module.step, module.other,
            functools.partial(equinox.filter_jit(make())),
        ):  # fmt: skip
            assert explain(f, x).reason == "not_recorded"
            assert ran == []
            for _ in range(4):
                f(x)
            ran.clear()
            assert explain(f, x).hit
        assert explain(Module.step, module, x).hit
