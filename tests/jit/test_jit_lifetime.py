"""What jitted functions keep and forget (trap 11), and how much of it."""

from __future__ import annotations

import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code, said
from jitted import Fussy, add_one, counting, on, warm
from support import DEBUG, JAX
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._core.values import live_objects

# --- 11: lifetimes -------------------------------------------------------------------------------


def test_trap_11_clear_caches():
    """Trap 11: `jax.clear_caches()` makes every function trace anew, once."""
    twins = Twins(add_one)
    x = jnp.ones(3)
    for _ in range(3):
        warm(twins, lambda: (x,))
        traces = list(twins.traces)
        jax.clear_caches()
        twins(lambda: (x,))
        assert twins.traces == [n + 1 for n in traces]
        assert jit_counts() == (0, {"not_recorded": 1})
        jax.clear_caches()


@pytest.mark.parametrize("how", ["clear_cache", "_clear_cache"])
def test_trap_11_clear_cache(how):
    """Trap 11: clearing one function's cache leaves the others' alone."""
    x = jnp.ones(3)
    twins, others = Twins(add_one), Twins(add_one)
    warm(twins, lambda: (x,))
    warm(others, lambda: (x,))
    for _ in range(3):
        for function in (twins.plain, twins.fast):
            getattr(function, how)()
        assert twins.plain._cache_size() == twins.fast._cache_size() == 0
        twins(lambda: (x,))
        assert jit_counts() == (0, {"not_recorded": 1})
        twins(lambda: (x,))
        others(lambda: (x,))
        assert jit_counts() == (2, {})
        assert twins.plain._cache_size() == twins.fast._cache_size() == 1


def test_trap_11_clear_cache_sees_what_changed():
    """Trap 11: a global that the function reads is read anew once its cache was cleared."""
    scale = {"value": 2.0}
    function = jaxmarshal.jit(lambda x: x * scale["value"])
    x = jnp.ones(3)
    assert [function(x).tolist() for _ in range(2)] == [[2] * 3] * 2
    scale["value"] = 3.0
    assert function(x).tolist() == [2] * 3
    function.clear_cache()
    assert [function(x).tolist() for _ in range(2)] == [[3] * 3] * 2


def test_trap_11_functions_that_share_a_cache():
    """Trap 11: jitted functions of one function share what was compiled, and its clearing."""
    x = jnp.ones(3)
    seen = []
    for jit in (jax.jit, jaxmarshal.jit):
        python, traces = counting()
        first, second, other = jit(python), jit(python), jit(python, donate_argnums=0)
        log = []
        for function in (first, second, other, first, second, other):
            function(jnp.ones(3))
            log.append((len(traces), function._cache_size()))
        second.clear_cache()
        for function in (first, other, second, first):
            function(jnp.ones(3))
            log.append((len(traces), function._cache_size()))
        seen.append(log)
    assert seen[0] == seen[1]
    del x


def test_trap_11_sharing_after_clear_caches():
    """Trap 11: what is jitted before and after `jax.clear_caches()` shares nothing."""
    seen = []
    for jit in (jax.jit, jaxmarshal.jit):
        python, traces = counting()
        x = jnp.ones(3)
        first = jit(python)
        log = [(first(x).tolist(), len(traces), first._cache_size())]
        jax.clear_caches()
        second = jit(python)
        for step in (first, second, first.clear_cache, second, first, second.clear_cache, first,
                     second):  # fmt: skip
            step(x) if step in (first, second) else step()
            log.append((len(traces), first._cache_size(), second._cache_size()))
        seen.append(log)
    assert seen[0] == seen[1]


def test_trap_11_clear_cache_with_functions_made_before():
    """Trap 11: clearing clears the jitted functions of plain JAX for the same function too."""
    x = jnp.ones(3)
    traces = []

    def python(x):
        traces.append(1)
        return x + 1

    plain, fast = jax.jit(python), jaxmarshal.jit(python)
    for _ in range(2):
        plain(x)
        fast(x)
    assert len(traces) == 1
    assert jit_counts() == (0, {"not_recorded": 2})    # jaxlib has it from the other one
    fast.clear_cache()
    assert plain._cache_size() == 0
    plain(x)
    assert len(traces) == 2
    fast(x)
    assert len(traces) == 2


def test_trap_11_garbage_collection():
    """Trap 11: the function, what it closes over, its plans and executables die together."""
    for jit in (jax.jit, jaxmarshal.jit):

        class Held:
            pass

        held = Held()
        held.constant = jnp.arange(5000.0)

        def python(x, held=held):
            return x + held.constant[:3]

        function = jit(python)
        x = jax.device_put(np.ones(3, np.float32))
        for _ in range(3):
            function(x)
        lowered = weakref.ref(function.lower(x).compile()._executable)
        gone = [weakref.ref(o) for o in (function, python, held, held.constant)] + [lowered]
        del function, python, held
        gc.collect()
        assert [reference() for reference in gone] == [None] * 5


def test_trap_11_functions_in_cycles():
    """Trap 11: a function that is reachable from itself is collected all the same."""

    class Model:
        def __init__(self):
            self.step = jaxmarshal.jit(self.update)
            self.aux = jaxmarshal.jit(lambda x: self.update(x))

        def update(self, x):
            return x + 1

    model = Model()
    x = jax.device_put(np.ones(3, np.float32))
    for _ in range(3):
        model.step(x)
        model.aux(x)
    model.aux.self = model
    gone = [weakref.ref(o) for o in (model, model.step, model.aux)]
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert jit_counts() == (4, {"not_recorded": 2})


@pytest.mark.parametrize("how", ["clear_cache", "clear_caches", "collect"])
def test_trap_11_static_arguments_die(how):
    """Trap 11: a static argument lives as long as in plain JAX and no longer."""

    class Static:
        pass

    seen = []
    for jit in (jax.jit, jaxmarshal.jit):
        function = jit(lambda s, x: x + 1, static_argnums=0)
        static = Static()
        gone = weakref.ref(static)
        for _ in range(3):
            function(static, jnp.ones(3))
        del static
        gc.collect()
        log = [gone() is None]
        if how == "clear_cache":
            function.clear_cache()
        elif how == "clear_caches":
            jax.clear_caches()
        else:
            del function
        gc.collect()
        seen.append([*log, gone() is None])
    assert seen[0] == seen[1]
    # JAX 0.8 lets go of it with the function alone.
    assert seen[0] == [False, how == ("clear_caches" if JAX >= (0, 9) else "collect")]


def test_trap_11_garbage_of_callers():
    """jaxlib keeps the code of each caller until its garbage is collected; so does no plan."""
    x = jnp.arange(8.0)
    function = jaxmarshal.jit(lambda x: x + 1)
    function(x)

    def caller():
        function(x)

    before = sys.getrefcount(caller.__code__)
    for _ in range(5000):
        caller()
    jax.block_until_ready(function(x))
    assert sys.getrefcount(caller.__code__) - before < 1000


def test_the_end_of_the_interpreter():
    """What outlives the names of modules dies without a word; see `finalize_modules` of CPython."""
    done = run_code("""
        import gc, sys
        import jax, jax.numpy as jnp
        import jaxmarshal
        x = jnp.arange(3.0)
        function = jaxmarshal.jit(lambda x: x + 1)
        with jaxmarshal.installed():
            compiled = jax.jit(lambda x: x * 2).lower(x).compile()
            for _ in range(3):
                function(x), compiled(x)
        hits = jaxmarshal.stats()["compiled_call"]["hits"], jaxmarshal.stats()["jit"]["hits"]
        assert all(hits), hits
        for name in [name for name in sys.modules if name.startswith("jaxmarshal.")]:
            names = vars(sys.modules[name])
            for key in list(names):
                if not key.startswith("__"):
                    names[key] = None
        del function, compiled
        gc.collect()
    """)
    assert said(done) == ""


def test_arrays_after_data_on_the_host():
    """Calls with data on the host, which C++ places at less cost, do not delay a plan."""
    twins = Twins(add_one)
    for n in range(1, 6):
        twins(lambda n=n: (np.ones(n, np.float32),))
    jit_counts()
    for _ in range(3):
        twins(lambda: (jnp.ones(3),))
    hits, _ = jit_counts()
    assert hits == 2


def test_a_signature_in_use_keeps_its_plan():
    """Many signatures that are met once do not displace the one that every other call has."""
    x = jnp.ones(3)
    twins = Twins(add_one)
    warm(twins, lambda: (x,))
    for n in range(4, 24):
        twins(lambda n=n: (jnp.ones(n),))
        twins(lambda: (x,))
    hits, _ = jit_counts()
    assert hits == 20


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 8])
def test_polymorphic_functions_hit(n):
    """Shapes, structures, static values and devices in turn: each has its plan."""
    x = jnp.ones(3)
    alternatives = {
        "shapes": ({}, [(jnp.ones(i + 1),) for i in range(n)]),
        "dtypes": (
            {}, [(jnp.ones(3, d),) for d in ("f4", "i4", "i2", "i1", "u1", "u2", "u4", "f2")[:n]],
        ),
        "structures": ({}, [([x] * (i + 1),) for i in range(n)]),
        "keys": ({}, [({f"k{i}": x},) for i in range(n)]),
        "counts": ({}, [(x,) * (i + 1) for i in range(n)]),
        "static": ({"static_argnums": 0}, [(i, x) for i in range(n)]),
        "devices": ({}, [(on(i),) for i in range(n)]),
    }  # fmt: skip
    for options, calls in alternatives.values():
        twins = Twins(
            lambda: lambda *args: jax.tree.map(lambda leaf: leaf + 1, args), **options
        )
        for args in calls:
            twins(lambda args=args: args)
        jit_counts()
        for _ in range(3):
            for args in calls:
                twins(lambda args=args: args)
        assert jit_counts() == (3 * n, {})


def test_polymorphic_custom_nodes_hit():
    """The same for structures with nodes of the user's own, of which one plan fits."""
    x = jnp.ones(3)
    calls = [(Fussy(x),), ([Fussy(x), x],), (Fussy([x, x]),), (x,)]
    twins = Twins(lambda: lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree))
    for args in calls:
        twins(lambda args=args: args)
    jit_counts()
    for _ in range(3):
        for args in calls:
            twins.fast(*args)
    assert jit_counts() == (12, {})


@pytest.mark.skipif(not DEBUG, reason="the counters exist in the debug build only (make debug)")
@pytest.mark.parametrize("how", ["functions", "clear_cache", "clear_caches"])
def test_trap_11_counters_of_plans(how):
    """Trap 11: when functions with plans have died, or were cleared, no plan is left."""
    def plans():
        gc.collect()
        return live_objects.snapshot()["live_plans"]

    arrays = [jax.device_put(np.ones(n, np.float32)) for n in range(1, 7)]
    before = plans()
    with jaxmarshal.installed("jit"):
        functions = [jax.jit(add_one(), static_argnames=()) for _ in range(3)]
        functions += [jaxmarshal.jit(lambda x, n: x + n, static_argnums=1) for _ in range(2)]
        for i, function in enumerate(functions):
            for n in range(1, 7):
                for _ in range(3):
                    function(arrays[n - 1], *[n] * (i > 2))
        assert plans() >= before + 30
        if how == "clear_cache":
            for function in functions:
                function.clear_cache()
        elif how == "clear_caches":
            jax.clear_caches()
        else:
            del function, functions
        assert plans() <= before
