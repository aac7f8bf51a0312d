"""Compiled calls: structures of arguments and results, host data, faults, profiles."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from executed import DATA, counts, observe_reference, warm
from jax.sharding import NamedSharding, PartitionSpec
from observe import observe

import jaxmarshal
from jaxmarshal._core.plans import host_leaves
from jaxmarshal._jax import private

P = PartitionSpec


@pytest.fixture(autouse=True)
def installed():
    """Every test here runs with jaxmarshal installed, so that calls are written as users do."""
    with jaxmarshal.installed():
        yield


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("value", [1e300, np.float64(1e300), np.array([1e300, 1.0])])
def test_recording_does_not_warn_again(value):
    """A conversion warns as often as in JAX, also where its argument is recorded afterwards."""
    def outcomes():
        call = jax.jit(lambda x: x + 1).lower(value).compile()._executable.call
        return [observe(call, value) for _ in range(3)]

    found = outcomes()
    jaxmarshal.uninstall()
    assert found == outcomes()
    assert len(found[0][1]) == 1    # the warning


def test_recording_keeps_to_the_transfer_guard(capfd):
    """A guard that logs transfers logs those of the program and no other."""
    def logged():
        call = jax.jit(lambda x: x + 1).lower(DATA).compile()._executable.call
        with jax.transfer_guard("log_explicit"):
            for _ in range(3):
                call(DATA)
        return capfd.readouterr().err.count("host-to-device transfer")

    found = logged()
    jaxmarshal.uninstall()
    assert found == logged() == 3


def test_few_arrays_among_host_data():
    """Where jaxlib's C++ call costs less it is left to do the call, and stays right."""
    some = [jnp.float32(i) for i in range(40)]
    for host in (DATA, 1.5, np.float32(2)):
        compiled = jax.jit(lambda x, xs: [x + xs[0]]).lower(host, some[:2]).compile()
        expected = observe_reference(compiled, host, some[:2])
        for _ in range(4):
            assert observe(compiled, host, some[:2]) == expected
        assert counts() == (0, 4)
        assert jaxmarshal.explain(compiled, host, some[:2]).reason == "host_leaves"
        compiled = jax.jit(lambda x, xs: [x + xs[0]]).lower(host, some).compile()
        for _ in range(4):
            compiled(host, some)
        assert counts() == (3, 1)


def test_how_many_arrays_make_up_for_host_data():
    """Outside of tests more arrays are needed: 80, and 32 for each further host argument."""
    assert host_leaves.weigh_host_leaves(48, 32) == (0, 13)
    for arrays, host in ((79, 1), (80, 1), (111, 2), (112, 2)):
        args = [jnp.float32(1)] * arrays + [np.float32(2)] * host
        compiled = jax.jit(lambda xs: [xs[0] + xs[-1]], keep_unused=True).lower(args).compile()
        for _ in range(4):
            compiled(args)
        assert counts()[0] == 3 * (arrays % 16 == 0)


def test_changed_structures():
    """A tree of another structure is the reference's error or another plan, never a wrong match."""
    x = jnp.ones(3)
    tree = {"a": [x, (x, None)], "b": x}
    compiled = jax.jit(lambda t: t).lower(tree).compile()
    warm(compiled, tree)
    for other in (
        {"a": [x, (x, None)]},
        {"a": [x, (x, x)], "b": x},
        {"a": (x, (x, None)), "b": x},
        {"a": [x, [x, None]], "b": x},
        {"a": [x, x, None], "b": x},
        {"a": [x, (x, None)], "c": x},
        [x, x, x],
        (x, x, x),
    ):
        with pytest.raises(TypeError, match="pytree"):
            compiled(other)
    assert counts() == (0, 8)
    compiled({"b": x, "a": [x, (x, None)]})
    assert counts() == (1, 0)


def test_dicts_in_other_orders():
    """Keys are found where they were the last time, and only if they are still there."""
    leaves = [jnp.float32(i) for i in range(4)]
    first = {"d": leaves[0], "a": leaves[1], "c": leaves[2], "b": leaves[3]}
    compiled = jax.jit(lambda d: [d["a"] - d["b"], d["c"] * 10 + d["d"]]).lower(first).compile()
    warm(compiled, first)

    def answer(mapping):
        return [float(x) for x in compiled(mapping)]

    same_order = {key: leaves[1] for key in first}
    sorted_order = {key: first[key] for key in sorted(first)}
    shrunk = {"x": None, **first}
    del shrunk["x"]
    moved = dict(first)
    moved["d"] = moved.pop("d")
    copied_keys = {"".join(list(key + "x"))[:1]: value for key, value in first.items()}
    expected = [-2.0, 20.0]
    assert answer(first) == expected
    assert answer(same_order) == [0.0, 11.0]
    for mapping in (sorted_order, shrunk, moved, copied_keys, first):
        assert answer(mapping) == expected
    assert counts() == (7, 0)
    renamed = dict(first)
    renamed["e"] = renamed.pop("b")
    with pytest.raises(TypeError):
        compiled(renamed)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x,
        lambda x: [],
        lambda x: None,
        lambda x: {},
        lambda x: [x, None, (x + 1, [x + 2]), {}],
        lambda x: {"b": x, "a": [x + 1], "c": ()},
        lambda x: {2: x, 1: x + 1},
        lambda x: Pair({"k": x}, Pair(None, x + 1)),
        lambda x: collections.OrderedDict(b=x, a=[x + 1, None]),
        lambda x: collections.defaultdict(list, b=x, a=(x,)),
        lambda x: [(x,), [[x + 1]]],
        lambda x: [jax.tree_util.Partial(max, x)],
        lambda x: [x + i for i in range(300)],
    ],
)
def test_trees_of_results(build):
    """The tree of results is JAX's own: types, key order, new containers each time."""
    x = jnp.float32(1)
    compiled = jax.jit(build).lower(x).compile()
    warm(compiled, x)
    seen = []
    for _ in range(2):
        seen.append(compiled(x))
        plain = observe_reference(lambda: compiled(x))
        assert observe(lambda: seen[-1]) == plain
        reference = private.compiled_call(compiled, x)
        assert jax.tree.structure(seen[-1]) == jax.tree.structure(reference)
        if isinstance(reference, dict):
            assert list(seen[-1]) == list(reference)
    if isinstance(seen[0], (list, dict)):
        assert seen[0] is not seen[1]
    assert counts()[0] == 2


@pytest.mark.errors
def test_node_that_raises_or_changes_the_tree():
    """Flatten functions of custom nodes may raise or change the tree they are in."""

    class Evil:
        action = staticmethod(lambda: None)

    def flatten(node):
        Evil.action()
        return (jnp.ones(3),), None

    jax.tree_util.register_pytree_node(Evil, flatten, lambda aux, children: Evil())
    items = [Evil(), jnp.ones(3)]
    compiled = jax.jit(lambda t: t[1] + 1).lower(items).compile()
    warm(compiled, items)

    def fail():
        raise ZeroDivisionError("flatten")

    Evil.action = staticmethod(fail)
    with pytest.raises(ZeroDivisionError, match="flatten"):
        compiled(items)
    changing = [Evil(), jnp.ones(3)]
    Evil.action = staticmethod(lambda: changing.append(2.0))
    found = observe(compiled, changing)
    del changing[2:]
    # The text says how often the list has grown, and flatten functions run again after a miss.
    assert found[0][:2] == observe_reference(compiled, changing)[0][:2]
    Evil.action = staticmethod(lambda: None)
    assert compiled([Evil(), jnp.ones(3)]).tolist() == [2, 2, 2]


def test_failing_executables():
    """An executable that fails at run time raises the reference's error; the next call works."""
    calls = []

    def callback(x):
        calls.append(1)
        if len(calls) % 2:
            raise ValueError("no")
        return np.asarray(x)

    compiled = jax.jit(lambda x: jax.pure_callback(callback, x, x)).lower(jnp.ones(3)).compile()
    for _ in range(2):
        with pytest.raises(Exception, match="no"):
            jax.block_until_ready(compiled(jnp.ones(3)))
        assert compiled(jnp.ones(3)).tolist() == [1, 1, 1]


def test_profiles_show_the_reference_names(tmp_path):
    """Trap 12: while a profile is taken the reference runs, with its annotations."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    warm(compiled, jnp.zeros(4))
    with jax.profiler.trace(str(tmp_path)):
        compiled(jnp.zeros(4))
    assert jaxmarshal.stats()["compiled_call"]["misses_by_reason"] == {"profiler": 1}


@pytest.mark.slow
def test_wide_calls_on_eight_devices(mesh):
    """Sharded and replicated arguments hit, and hundreds of results come back in order."""
    sharded = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    replicated = jax.device_put(np.ones(16, np.float32), NamedSharding(mesh, P()))
    function = jax.jit(lambda xs, y: [x * i + y for i, x in enumerate(xs)])
    compiled = function.lower([sharded] * 300, replicated).compile()
    warm(compiled, [sharded] * 300, replicated)
    for i, result in enumerate(compiled([sharded] * 300, replicated)):
        np.testing.assert_array_equal(result, np.arange(16) * i + 1)
    assert counts() == (1, 0)


@pytest.mark.skipif(LAYOUT_OFF, reason="the object layout is switched off")
def test_layout_is_proven_for_results():
    """Results of executables have a proven layout, so that they are fast arguments."""
    from jaxmarshal._core.values import array_words

    result = jax.jit(lambda x: x + 1)(jnp.ones((3, 4)))
    assert array_words.read(result)["default_layout_proven"]


def owners():
    """A function compiled for one array, with each of its ways in as the class has it."""
    compiled = jax.jit(lambda x: [x + 1]).lower(DATA).compile()
    executable = compiled._executable
    return {
        "compiled_call": (compiled, type(compiled).__call__),
        "mesh_executable_call": (executable, type(executable).call),
        "execute_replicated_call": (executable.unsafe_call, type(executable.unsafe_call).__call__),
    }


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((DATA, DATA), {}),
        ((DATA,), {"x": DATA}),
        ((), {"x": DATA}),
        ((DATA,), {"self": DATA}),
    ],
)
@pytest.mark.parametrize("entry", list(owners()))
@pytest.mark.errors
def test_arguments_that_do_not_fit(entry, args, kwargs):
    """Too few, too many, by a name, by the name of the object itself: the reference's errors."""
    owner, call = owners()[entry]
    owner_call = functools.partial(call, owner)
    x = jax.device_put(DATA)
    owner_call(x)
    owner_call(x)
    args = [x for _ in args]
    kwargs = dict.fromkeys(kwargs, x)
    assert counts(entry) == (1, 1)
    found = observe(owner_call, *args, **kwargs)
    plain = observe_reference(
        lambda *args, **kwargs: getattr(private, entry)(owner, *args, **kwargs), *args, **kwargs
    )
    assert found == plain
    unchecked = entry == "execute_replicated_call" and not kwargs and args
    assert found[0][0] == ("returned" if unchecked else "raised")
    assert owner_call(x)[0].tolist() == (DATA + 1).tolist()


@pytest.mark.parametrize("entry", list(owners()))
@pytest.mark.errors
def test_methods_are_as_they_were(entry):
    """Found on the class and on the object, with the reference's name, text and signature."""
    owner, call = owners()[entry]
    reference = getattr(private, entry)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(call, name) == getattr(reference, name)
    assert inspect.signature(call) == inspect.signature(reference)
    x = jax.device_put(DATA)
    bound = call.__get__(owner, type(owner))
    assert bound(x)[0].tolist() == call(owner, x)[0].tolist() == (DATA + 1).tolist()
    assert observe(call)[0][:2] == observe(reference)[0][:2]


@pytest.mark.parametrize("entry", list(owners()))
def test_each_call_gives_a_list_of_its_own(entry):
    """What a caller does to one list of results is not seen in the next one."""
    owner, call = owners()[entry]
    x = jax.device_put(DATA)
    first = call(owner, x)
    seen = [call(owner, x) for _ in range(3)]
    assert counts(entry) == (3, 1)
    seen[0].append(None)
    seen[1].clear()
    assert [type(results) for results in (first, *seen)] == [list] * 4
    last = seen.pop()
    assert len(last) == 1
    assert gc.is_tracked(last)
    assert sys.getsizeof(last) == sys.getsizeof(first)
    assert sys.getrefcount(last) == sys.getrefcount(first)
