"""Calls of jitted functions in structures, threads, one inside another, installed and not."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax._src import pjit
from jitted import DATA, Fussy
from recipes import Layer, Node
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._jax import private

# --- Structures ----------------------------------------------------------------------------------

Left = collections.namedtuple("Left", "a b")
Right = collections.namedtuple("Right", "a b")


def structures(x):
    """Trees whose leaves are alike, as many or one more or less."""
    return [
        x, [x], (x,), {"a": x}, {"b": x}, {1: x}, None, [], (), {}, [x, x], (x, x), [x, None],
        [None, x], [[x], x], [x, [x]], {"a": x, "b": x}, {"a": x, "b": None}, {"a": [x]},
        {"a": x, "b": x, "c": x}, {"a": {"b": x}}, Left(x, x), Right(x, x), Left(x, None),
        Left(x, Right(x, x)), Left(Left(x, x), x), Fussy(x), Fussy([x]), [Fussy(x), x],
        collections.OrderedDict(a=x, b=x), collections.OrderedDict(b=x, a=x),
        collections.defaultdict(list, a=x, b=x), collections.defaultdict(dict, a=x, b=x),
        Node(x), Node(x, x), Layer(x, x, "a"), Layer(x, x, "b"), Layer(x, None), (x, [x, (x,)]),
        {(1, 2): x}, {"a": x, "b": [x, None]}, {"a": (x, x)}, [(), x, {}], [x, x, x],
    ]  # fmt: skip


def test_structures_in_turn():
    """A tree of another structure never fits a plan, whichever nodes and leaves are alike."""
    x = jnp.ones(3)
    trees = structures(x)
    for i in range(0, len(trees), 5):
        # The result says what was traced.
        twins = Twins(lambda: lambda tree, y: {str(jax.tree.structure(tree)): y})
        for tree in (*trees[i : i + 5], *trees[i : i + 5]):
            twins(lambda tree=tree: (tree, x))
        assert jit_counts() == (len(trees[i : i + 5]), {"not_recorded": len(trees[i : i + 5])})


def test_a_structure_hits_no_plan_of_another():
    """The plan of each structure is tried with the trees of all others."""
    x = jnp.ones(3)
    trees = structures(x)
    function = jaxmarshal.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree))
    for first in trees:
        function.clear_cache()
        function(first)
        assert jaxmarshal.explain(function, first).hit
        for other in trees:
            same = jax.tree.structure(other) == jax.tree.structure(first)
            assert jaxmarshal.explain(function, other).hit == same


@pytest.mark.parametrize("number", range(len(structures(0))))
def test_trees_of_results(number):
    """The tree of results is JAX's own: types, key order, new containers each time."""
    twins = Twins(lambda: lambda x: structures(x + 1)[number])
    x = jnp.ones(3)
    for _ in range(3):
        twins(lambda: (x,))
    assert jit_counts() == (2, {"not_recorded": 1})
    first, second = twins.fast(x), twins.fast(x)
    if isinstance(first, (list, dict)):
        assert first is not second


# --- 13: threads ---------------------------------------------------------------------------------


def test_trap_13_threads_while_it_compiles():
    """Trap 13: several threads call one function before anything is compiled; one trace."""
    for jit in (jax.jit, jaxmarshal.jit):
        traces, results = [], []
        started = threading.Barrier(6)

        def python(x, traces=traces):
            traces.append(1)
            for _ in range(30):
                x = jnp.sin(x) @ x
            return x.sum()

        function = jit(python)
        x = jnp.eye(8)

        def work(function=function, x=x, results=results):
            started.wait()
            for _ in range(5):
                results.append(float(function(x)))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(results)) == 1 and len(results) == 30
        assert len(traces) == 1


def test_trap_13_install_and_clear_while_calling():
    """Trap 13: threads call functions while others install, uninstall, and drop everything."""
    stop = threading.Event()
    wrong = []
    with jaxmarshal.installed("jit"):
        function = jax.jit(lambda x, y, n: {"sum": x + y["a"] * n}, static_argnames="n")

    def work(i):
        while not stop.is_set():
            x = jnp.full((3, 4), float(i)) if i % 2 else np.full((3, 4), i, np.float32)
            try:
                if function(x, {"a": DATA}, n=i)["sum"].tolist() != (DATA * i + i).tolist():
                    wrong.append(i)
            except Exception as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for i in range(40):
        jaxmarshal.install("jit")
        if i % 4 == 0:
            jaxmarshal.api.clear()
        if i % 8 == 3:
            function.clear_cache()
        stop.wait(0.02)
        jaxmarshal.uninstall()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_trap_13_clear_while_functions_are_made():
    """Trap 13: threads make jitted functions and let them go while others are cleared."""
    stop = threading.Event()
    function = jaxmarshal.jit(lambda x: x + 1)
    others = [jaxmarshal.jit(lambda x: x + 1) for _ in range(500)]

    def make():
        made = []
        while not stop.is_set():
            made[:] = [jaxmarshal.jit(lambda x: x + 1) for _ in range(50)]

    threads = [threading.Thread(target=make) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            function.clear_cache()
            jaxmarshal.api.clear()
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert int(function(1)) == int(others[0](1)) == 2


def test_trap_13_a_list_that_another_thread_changes():
    """Trap 13: an argument that grows and shrinks during the calls never gives a mixture."""
    function = jaxmarshal.jit(lambda xs: [x + 1 for x in xs])
    items = [jnp.float32(i) for i in range(40)]
    stop = threading.Event()

    def change():
        while not stop.is_set():
            items.append(items[0])
            items.pop()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(500):
            found = function(items)
            assert [float(x) for x in found[:40]] == [i + 1.0 for i in range(40)]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("make_call", [
    lambda: jaxmarshal.device_put,
    lambda: jaxmarshal.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree)),
])
@pytest.mark.parametrize("make", [
    lambda x: [{"a": x, "b": x} for _ in range(10)],
    lambda x: {str(i): x for i in range(10)},
])
def test_trap_13_arguments_that_a_collection_empties(make_call, make):
    """Trap 13: Python 3.11 collects garbage, and so calls others, where a container is made."""
    x = jnp.ones(3)

    def empty(phase, info):
        items.clear()

    threshold = gc.get_threshold()
    for turns, allocations in itertools.product((1, 3), range(1, 9)):
        call = make_call()
        for _ in range(turns):
            expected = call(make(x))
        items = make(x)
        gc.collect()
        gc.callbacks.append(empty)
        gc.set_threshold(allocations)
        try:
            found = call(items)
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(empty)
        assert len(found) in (0, 10)
        found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=False))


# --- Reentrance ----------------------------------------------------------------------------------


def test_functions_that_call_themselves():
    """A function that calls itself while it is traced, as in plain JAX."""

    def make():
        def function(x, n):
            return x if n == 0 else jitted(x + 1, n - 1)

        jitted = jax.jit(function, static_argnums=1)
        return function

    twins = Twins(make, static_argnums=1)
    for _ in range(3):
        twins(lambda: (jnp.ones(3), 3))
    assert jit_counts() == (2, {"not_recorded": 1})


def test_comparisons_that_call_the_function():
    """What a static argument's `__eq__` does may call the function or drop its plans."""
    x = jnp.ones(3)

    class Busy:
        action = staticmethod(lambda: None)

        def __hash__(self):
            return 7

        def __eq__(self, other):
            action, Busy.action = Busy.action, staticmethod(lambda: None)
            action()
            return True

    function = jaxmarshal.jit(lambda s, x: x + 1, static_argnums=0)
    for _ in range(2):
        assert function(Busy(), x).tolist() == [2] * 3
    for action in (
        lambda: function(Busy(), x), lambda: function(Busy(), jnp.ones(4)), function.clear_cache,
        jax.clear_caches, gc.collect,
    ):  # fmt: skip
        Busy.action = staticmethod(action)
        assert function(Busy(), x).tolist() == [2] * 3
        assert function(Busy(), x).tolist() == [2] * 3


# --- 14: importing and making touches nothing ----------------------------------------------------


def test_trap_14_making_functions_touches_nothing(fresh):
    """Trap 14: neither installing nor jitting initialises a backend."""
    source = """
import jax, jaxmarshal
from jax._src import xla_bridge
jaxmarshal.install()
functions = [jax.jit(lambda x: x + 1), jaxmarshal.jit(lambda x: x + 1)]
functions.append(jax.jit(functions[0], static_argnums=0))
before = xla_bridge.backends_are_initialized()
jax.config.update("jax_platforms", "cpu")
result = [before, [float(f(1.0)) for f in functions for _ in range(3)]]
"""
    assert fresh(source) == [False, [2.0] * 9]


@pytest.mark.parametrize(
    "context",
    ["jax.no_execution()", "jax.transfer_guard('disallow')", "jax.enable_x64(True)",
     "jax.debug_nans(True)", "jax.default_device(jax.devices()[1])", "jax.disable_jit()"],
)  # fmt: skip
def test_trap_14_first_call_in_a_context(fresh, context):
    """Trap 14: the first call of all is made in some context."""
    source = f"""
import contextlib, jax, jaxmarshal, numpy as np
from observe import observe
seen = []
x = np.ones(3, np.float32)
functions = [jax.jit(lambda x: x + 1), jaxmarshal.jit(lambda x: x + 1)]
for f in functions:
    for argument in (x, 1.5, x):
        try:
            with {context}:
                y = f(argument)
            seen.append((str(y.aval), str(y.sharding), y.committed, np.asarray(y).tolist()))
        except Exception as error:
            seen.append((str(type(error)), str(error)))
    y = f(f(x))
    seen.append((str(y.aval), np.asarray(y).tolist()))
result = [seen[:4], seen[4:]]
"""
    plain, found = fresh(source)
    assert plain == found


@pytest.mark.skipif(LAYOUT_OFF, reason="the object layout is switched off")
def test_results_are_fast_arguments():
    """Results have a proven layout, so that the next call compares words alone."""
    from jaxmarshal._core.values import array_words

    function = jaxmarshal.jit(lambda x: x + 1)
    x = jnp.ones((3, 4))
    for _ in range(3):
        x = function(x)
        assert array_words.read(x)["default_layout_proven"]


def test_feedback():
    """A training loop: the results of one call are the arguments of the next."""

    def make():
        def step(state, batch):
            params, count = state["params"], state["count"]
            new = {k: v - 0.1 * batch for k, v in params.items()}
            return {"params": new, "count": count + 1}, sum(v.sum() for v in new.values())

        return step

    for options in ({}, {"donate_argnums": 0}):
        twins = Twins(make, **options)
        batch = jnp.ones(3)
        states = [
            {"params": {f"w{i}": jnp.ones(3) for i in range(20)}, "count": jnp.int32(0)}
            for _ in range(2)
        ]
        for _ in range(6):
            results = [twins.plain(states[0], batch), twins.fast(states[1], batch)]
            states = [state for state, _ in results]
            losses = [float(loss) for _, loss in results]
            assert losses[0] == losses[1]
        assert int(states[1]["count"]) == 6
        assert jit_counts() == (5, {"not_recorded": 1})


# --- Installed and not ---------------------------------------------------------------------------


def test_uninstalling_turns_plans_off():
    """A function made by `install()` is called by JAX again when jaxmarshal is uninstalled.

    Its plans are kept for the next time.
    """
    x = jnp.ones(3)
    jaxmarshal.install("jit")
    by_install = jax.jit(lambda x: jax.lax.add(x, x))
    own = jaxmarshal.jit(lambda x: jax.lax.mul(x, x))
    for function in (by_install, own):
        function(x)
        function(x)
    assert jit_counts() == (2, {"not_recorded": 2})
    jaxmarshal.uninstall()
    assert by_install(x).tolist() == [2] * 3
    assert jit_counts() == (0, {})
    assert own(x).tolist() == [1] * 3
    assert jit_counts() == (1, {})
    jaxmarshal.install("jit")
    by_install(x)
    assert jit_counts() == (1, {})
    assert jax.jit is private.jit and pjit._cpp_pjit is not private.cpp_pjit
    jaxmarshal.uninstall()
    assert pjit._cpp_pjit is private.cpp_pjit
    assert type(jax.jit(lambda x: x)) is private.PjitFunction


def test_only_jit():
    """`only="jit"` patches jit and nothing else."""
    device_put = jax.device_put
    with jaxmarshal.installed("jit"):
        assert jax.device_put is device_put
        function = jax.jit(jax.lax.neg)
        x = jnp.ones(3)
        jit_counts()
        function(x)
        function(x)
        assert jit_counts() == (1, {"not_recorded": 1})
    with jaxmarshal.installed("device_put"):
        assert type(jax.jit(lambda x: x)) is private.PjitFunction


def test_every_door_to_jit():
    """`jax.jit`, `pjit`, decorators and factories lead to the same place."""
    x = jnp.ones(3)
    with jaxmarshal.installed("jit"):
        from jax.experimental.pjit import pjit as experimental_pjit

        @jax.jit
        def first(x):
            return x + 1

        @jax.jit(static_argnames=("n",))
        def second(x, n=1):
            return x + n

        @functools.partial(jax.jit, static_argnums=1)
        def third(x, n=1):
            return x + n

        fourth = experimental_pjit(lambda x: x + 1)
        fifth = jax.jit(first)
        sixth = jax.jit(functools.partial(lambda n, x: x + n, 1))
        functions = [first, second, third, fourth, fifth, sixth]
        for function in functions:
            function(x)
        jit_counts()
        for function in functions:
            assert function(x).tolist() == [2] * 3
        assert jit_counts() == (6, {})
    own = jaxmarshal.jit(static_argnames="n")(lambda x, n=1: x + n)
    own(x, n=1)
    jit_counts()
    assert own(x, n=1).tolist() == [2] * 3
    assert jit_counts() == (1, {})


def test_wrong_options():
    """Options that `jit` refuses are refused with the same text."""
    for args, kwargs in (
        ((3,), {}), ((lambda x: x,), {"static_argnums": 5}),
        ((lambda x: x,), {"static_argnames": "y"}), ((lambda x: x,), {"unknown": 1}),
        ((lambda x: x, 0), {}), ((), {"fun": len}),
        ((lambda x: x,), {"donate_argnums": 0, "static_argnums": 0}),
        ((lambda x: x,), {"in_shardings": "text"}), ((), {}),
    ):  # fmt: skip
        found = []
        for jit in (jax.jit, jaxmarshal.jit):
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    found.append(("made", type(jit(*args, **kwargs)).__module__ is not None))
                except Exception as error:
                    found.append((type(error), str(error).replace("0x", "")))
        texts = [f if f[0] == "made" else (f[0], f[1].split(" at ")[0]) for f in found]
        assert texts[0] == texts[1]
