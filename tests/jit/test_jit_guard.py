"""What tells one call of a jitted function from another: layout, identity, context (traps 1-4)."""

from __future__ import annotations

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config, core
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, SingleDeviceSharding
from jitted import DATA, P, add_one, on, several, spread, warm
from observe import observe
from support import ADDRESSES_COME_BACK, column_major, config_updated
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._jax import private

# --- 1: the layout of the data -------------------------------------------------------------------


@pytest.mark.parametrize("committed", [False, True])
def test_trap_1_column_major_argument(committed):
    """Trap 1: data in another layout never go to an executable for the default one."""
    place = [jax.devices()[0]] if committed else []

    def columns():
        return (jax.device_put(column_major(DATA), *place),)

    def rows():
        return (jax.device_put(DATA, *place),)

    twins = Twins(add_one)
    warm(twins, rows)
    for _ in range(3):
        twins(columns)
    # What is imported through DLPack is committed.
    assert jit_counts() == (0, {"layout" if committed else "committed": 3})
    twins(rows)
    assert jit_counts() == (1, {})


def test_trap_1_column_major_first():
    """Trap 1: the layout that came first is no part of what is recorded."""
    columns, rows = column_major(DATA), on(0)
    twins = Twins(lambda: lambda x: (x.T * 2, x.sum(1)))
    for _ in range(3):
        twins(lambda: (columns,))
    assert jit_counts() == (0, {"not_recorded": 1, "executable": 2})
    for _ in range(3):
        twins(lambda: (rows,))
    assert jit_counts() == (2, {"executable": 1})    # as before, until one is recorded
    twins(lambda: (columns,))
    assert jit_counts() == (0, {"layout": 1})


def test_trap_1_all_words_but_one():
    """Trap 1: the same array in another layout again, when its other words have been adopted."""
    columns, rows = column_major(DATA), on(0)
    twins = Twins(add_one)
    warm(twins, lambda: (rows,))
    for _ in range(3):
        twins(lambda: (columns,))
    assert jit_counts() == (0, {"layout": 3})


@pytest.mark.parametrize("kind", ["format", "out_shardings", "in_shardings", "auto"])
@pytest.mark.errors("auto")
def test_trap_1_custom_layouts(kind):
    """Trap 1: arrays with explicit layouts, and functions compiled for or with custom ones."""
    sharding = SingleDeviceSharding(jax.devices()[0])
    columns = Format(Layout((1, 0)), sharding)
    options = {
        "format": {}, "out_shardings": {"out_shardings": columns},
        "in_shardings": {"in_shardings": columns},
        "auto": {"in_shardings": Format(Layout.AUTO, sharding)},
    }[kind]  # fmt: skip
    twins = Twins(add_one, **options)
    for _ in range(3):
        twins(lambda: (jax.device_put(DATA, sharding),))
        twins(lambda: (jax.device_put(DATA, columns),))
        twins(lambda: (jax.jit(lambda x: x, out_shardings=columns)(DATA),))
    hits, _ = jit_counts()
    assert hits == (2 if kind in ("format", "out_shardings") else 0)


def test_trap_1_host_data_for_a_custom_layout():
    """Trap 1: data on the host and uncommitted arrays are laid out as the function wants."""
    columns = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))
    some = several()
    twins = Twins(lambda: lambda x, xs: x.T * 2 + xs[0], in_shardings=(columns, None))
    for x in (DATA, DATA + 1, jax.device_put(DATA), on(0), DATA):
        for _ in range(2):
            twins(lambda x=x: (x, some))
    assert jit_counts()[0] == 0


def test_trap_1_results_in_other_layouts():
    """Trap 1: a result in another layout is an argument like any other in the next call."""
    sharding = SingleDeviceSharding(jax.devices()[0])
    columns = Format(Layout((1, 0)), sharding)
    make = Twins(add_one, out_shardings=columns)
    use = Twins(lambda: lambda x: x * 2)
    for _ in range(3):
        made = make.value(jax.device_put(DATA, sharding))
        assert made.format.layout.major_to_minor == (1, 0)
        use.value(made)
    hits, reasons = jit_counts()
    assert (hits, reasons) == (2, {"not_recorded": 2, "executable": 2})


# --- 2 and 3: identity ---------------------------------------------------------------------------


def test_trap_2_reused_address():
    """Trap 2: an argument is freed and another array takes its address."""
    twins = Twins(add_one)
    warm(twins, lambda: (jnp.zeros(4),))
    addresses = set()
    for i in range(200):
        array = jax.device_put(np.full(4, i, np.float32))
        addresses.add(id(array))
        np.testing.assert_array_equal(twins.fast(array), np.full(4, i + 1))
        del array
    assert len(addresses) < 200 or not ADDRESSES_COME_BACK
    assert jit_counts() == (200, {})
    twins(lambda: (jnp.zeros((2, 2)),))
    assert jit_counts() == (0, {"aval": 1})


def test_trap_2_arguments_are_not_kept_alive():
    """Trap 2: a plan owns no argument and no result."""
    function = jaxmarshal.jit(lambda x, y: x + y)
    array, host = jax.device_put(np.zeros(4)), np.ones(4)
    gone = [weakref.ref(array), weakref.ref(host)]
    gone += [weakref.ref(function(array, array)) for _ in range(3)]
    function(array, host)
    del array, host
    gc.collect()
    assert [reference() for reference in gone] == [None] * 5


def test_trap_3_equal_avals_are_adopted():
    """Trap 3: avals and shardings are not interned; equal ones match and are remembered."""
    twins = Twins(add_one)
    warm(twins, lambda: (private.device_put(np.zeros(4, np.float32)),))
    for _ in range(5):
        twins(lambda: (private.device_put(np.zeros(4, np.float32)),))
    assert jit_counts() == (5, {})


def test_trap_3_each_word():
    """Trap 3: dtype, shape, weak type, sharding, committed: one differs and nothing else does."""
    place = SingleDeviceSharding(jax.devices()[0])
    x = jax.device_put(np.ones(6, np.float32), place)
    others = []
    for other, reason in (
        (jax.device_put(np.ones(6, np.int32), place), "aval"),
        (jax.device_put(np.ones((2, 3), np.float32), place), "aval"),
        (jax.device_put(np.ones(3, np.float32), place), "aval"),
        (jax.device_put(jnp.full(6, 2.0), place), "aval"),
        (jax.device_put(np.ones(6, np.float32)), "committed"),
        (on(1, np.ones(6, np.float32)), "sharding"),
        (spread(np.ones(6, np.float32)), "aval"),
        (np.ones(6, np.float32), "not_recorded"),
    ):
        alone = Twins(add_one)
        warm(alone, lambda: (x,))
        alone(lambda other=other: (other,))
        assert jit_counts() == (0, {reason: 1})
        others.append(other)
    twins = Twins(add_one)
    for other in others:
        twins(lambda other=other: (other,))
        twins(lambda: (x,))
    assert jit_counts()[0] == 7


def test_trap_3_weak_types():
    """Trap 3: an equal shape and dtype with another weak type is another aval, and so result."""
    twins = Twins(lambda: lambda x: x * 2)
    strong, weak = jnp.float32(1), jnp.asarray(1.0)
    assert weak.weak_type and not strong.weak_type
    for x in (strong, weak, strong, weak):
        twins(lambda x=x: (x,))
    assert jit_counts() == (2, {"not_recorded": 1, "aval": 1})


def test_trap_3_shardings_that_are_equivalent():
    """Trap 3: shardings that lay the same data in the same way are still another signature."""
    wide = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("x",)), P())
    single = SingleDeviceSharding(jax.devices()[0])
    twins = Twins(add_one)
    for _ in range(3):
        for place in (wide, single):
            twins(lambda place=place: (jax.device_put(DATA, place),))
    assert jit_counts() == (4, {"not_recorded": 1, "aval": 1})


# --- 4: the context ------------------------------------------------------------------------------


def states():
    """Every configuration state that JAX's trace context or its jit key has, by name."""
    return {
        name: state
        for name, state in sorted(vars(config).items())
        if isinstance(state, config.State)
        and (isinstance(state.value, bool) or hasattr(state, "enum_values"))
    }


def other_values(state):
    """The values that a state does not have now."""
    if isinstance(state.value, bool):
        return [not state.value]
    return [value for value in state._validator_values if value != state.value]


CONTEXTS = {
    "x64": lambda: jax.enable_x64(True),
    "matmul": lambda: jax.default_matmul_precision("highest"),
    "numpy_rank": lambda: jax.numpy_rank_promotion("raise"),
    "promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "optimization_level": lambda: config.optimization_level("O1"),
    "memory_fitting_level": lambda: config.memory_fitting_level("O0"),
    "mesh": lambda: jax.sharding.Mesh(np.asarray(jax.devices()), ("x",)),
}
#: These are in no key of JAX's.
EVERYWHERE = {
    "prng": lambda: jax.default_prng_impl("rbg"),
    "checks": lambda: config.enable_checks(True),
    "softmax": lambda: config.softmax_custom_jvp(False),
}
#: Under these the argument is moved in every call, or else C++ has the call already: jaxlib's key
#: is coarser than the trace context.
NEVER_RECORDED = {
    "default_device": lambda: jax.default_device(jax.devices()[2]),
    "set_mesh": lambda: jax.set_mesh(jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))),
    "mutable_array_checks": lambda: config.mutable_array_checks(False),
    "gumbel": lambda: config.use_high_dynamic_range_gumbel(True),
}


def matmul():
    return lambda x: jnp.sin(x) @ x.T + 1.0


@pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning")
@pytest.mark.parametrize("name", [*CONTEXTS, *EVERYWHERE, *NEVER_RECORDED])
def test_trap_4_recorded_contexts(name):
    """Trap 4: what was recorded in one configuration is used in that one only, and there again."""
    context = {**CONTEXTS, **EVERYWHERE, **NEVER_RECORDED}[name]
    if name == "set_mesh" and len(jax.devices()) == 1:
        pytest.skip("NOT DONE: needs several devices; a mesh of one is none to a program")
    twins = Twins(matmul)
    args = (jax.device_put(DATA),)
    warm(twins, lambda: args)
    for _ in range(3):
        twins(lambda: args, context=context)
    if name in EVERYWHERE:
        assert jit_counts() == (3, {})
    elif name in NEVER_RECORDED:
        assert jit_counts() == (0, {"not_recorded": 3})
    else:
        assert jit_counts() == (2, {"not_recorded": 1})
    for _ in range(2):
        twins(lambda: args)
        twins(lambda: args, context=context)
    assert jit_counts()[0] == (2 if name in NEVER_RECORDED else 4)


@pytest.mark.parametrize("name", states())
def test_trap_4_every_state(name):
    """Trap 4: no state of JAX's configuration, known here or not, changes what a call gives."""
    state = states()[name]
    for value in other_values(state)[:2]:
        twins = Twins(matmul)
        args = (jax.device_put(DATA),)
        warm(twins, lambda: args)
        for _ in range(2):
            twins(lambda: args, context=lambda value=value: state(value))
        jit_counts()
        twins(lambda: args)
        assert jit_counts() == (1, {})


def test_trap_4_two_states_that_only_jitted_functions_have():
    """Trap 4: going back to a value of such a state finds what was recorded under it."""
    twins = Twins(matmul)
    args = (jax.device_put(DATA),)
    levels = ["O0", "O1", "O2"]
    for _ in range(3):
        for level in levels:
            twins(lambda: args, context=lambda level=level: config.optimization_level(level))
    assert jit_counts() == (6, {"not_recorded": 3})


def test_trap_4_global_configuration():
    """Trap 4: `jax.config.update` changes all threads."""
    twins = Twins(matmul)
    args = (jax.device_put(DATA),)
    warm(twins, lambda: args)
    for name, value in (
        ("jax_enable_x64", True), ("jax_default_matmul_precision", "highest"),
        ("jax_optimization_level", "O1"),
    ):  # fmt: skip
        with config_updated(name, value):
            for _ in range(2):
                twins(lambda: args)
            assert jit_counts() == (1, {"not_recorded": 1})
        twins(lambda: args)
        assert jit_counts() == (1, {})


def test_trap_4_states_of_another_thread():
    """Trap 4: a state that another thread has set does not count, and one's own does."""
    twins = Twins(matmul)
    args = (jax.device_put(DATA),)
    warm(twins, lambda: args)
    inside, done = threading.Event(), threading.Event()

    def other():
        with jax.enable_x64(True), config.optimization_level("O1"), jax.debug_nans(True):
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    twins(lambda: args)
    done.set()
    thread.join()
    assert jit_counts() == (1, {})


def test_trap_4_disable_jit():
    """Trap 4: with jit disabled the Python function runs, every time."""
    twins = Twins(lambda: lambda x: (type(x).__name__, x + 1)[1])
    warm(twins, lambda: (jnp.ones(3),))
    before = twins.traces[1]
    for _ in range(3):
        twins(lambda: (jnp.ones(3),), context=jax.disable_jit)
    assert twins.traces[1] == before + 3
    assert jit_counts() == (0, {"not_recorded": 3})


@pytest.mark.parametrize("check", [jax.debug_nans, jax.debug_infs])
def test_trap_4_debug_nans_and_infs(check):
    """Trap 4: results are looked at, and the error is the reference's."""
    twins = Twins(lambda: jnp.log)
    good, nan, inf = (jax.device_put(np.full(3, v, np.float32)) for v in (1, -1, 0))
    for x in (good, nan, inf):
        twins(lambda x=x: (x,))
    assert jit_counts() == (2, {"not_recorded": 1})
    raised = 0
    for x in (good, nan, inf, good):
        raised += twins(lambda x=x: (x,), context=lambda: check(True))[0][0] == "raised"
    assert raised == 1
    assert jit_counts() == (0, {"hook": 4})
    twins(lambda: (nan,))
    assert jit_counts() == (1, {})


@pytest.mark.parametrize("level", ["allow", "log", "disallow", "disallow_explicit"])
def test_trap_4_transfer_guards(level):
    """Trap 4: an argument on the host is an implicit transfer, among many arrays and alone."""
    some = several()
    arguments = [(DATA, some), (1.5, some), (DATA, some[:1]), (some[0], some)]
    twins = Twins(lambda: lambda x, xs: x + xs[0])
    for args in arguments * 2:
        twins(lambda args=args: args)
    jit_counts()
    for args, hits in zip(arguments, [level == "allow"] * 3 + [True], strict=True):
        for _ in range(2):
            twins(lambda args=args: args, context=lambda: jax.transfer_guard(level))
        assert jit_counts()[0] == 2 * hits
    for kind in ("host_to_device", "device_to_device", "device_to_host"):
        guard = getattr(jax, f"transfer_guard_{kind}")
        for args in arguments:
            twins(lambda args=args: args, context=lambda guard=guard: guard(level))


def test_trap_4_no_execution():
    """Trap 4: nothing may be executed; the error is the reference's."""
    twins = Twins(add_one)
    warm(twins, lambda: (jnp.ones(3),))
    x = jnp.ones(3)
    for _ in range(2):
        found = twins(lambda: (x,), context=lambda: jax.no_execution())
        assert found[0][0] == "raised"
    assert jit_counts()[0] == 0
    twins(lambda: (x,))
    assert jit_counts() == (1, {})


def test_trap_4_no_tracing():
    """Trap 4: what is compiled already runs where tracing is an error, and nothing else does."""
    twins = Twins(add_one)
    three, four = jnp.ones(3), jnp.ones(4)
    warm(twins, lambda: (three,))
    for x, outcome in ((three, "returned"), (four, "raised"), (three, "returned")):
        found = twins(lambda x=x: (x,), context=lambda: jax.no_tracing(True))
        assert found[0][0] == outcome
    assert jit_counts() == (2, {"aval": 1})


def test_trap_4_explanations_and_logs(caplog):
    """Trap 4: cache misses are explained and compilations logged as often as in plain JAX."""
    x, y = jnp.ones(3), jnp.ones(4)
    jax.eval_shape(lambda x, y: (x + 1, y + 1), x, y)    # some versions tell of the sum once
    logged = []
    for jit in (jax.jit, jaxmarshal.jit):
        for context in (jax.explain_cache_misses, jax.log_compiles):
            caplog.clear()
            function = jit(lambda x: x + 1)
            with context(True), caplog.at_level("DEBUG", "jax"):
                for array in (x, x, y, y, x):
                    function(array)
            logged.append([r.name for r in caplog.records if r.name.startswith("jax")])
    assert logged[0] and logged[1]
    assert logged[:2] == logged[2:]
    assert jit_counts() == (6, {"not_recorded": 2, "aval": 2})


def test_trap_4_no_trace():
    """Trap 4: a thread that never traced hits; where JAX holds no trace, all is left to it."""
    twins, seen = Twins(lambda: lambda x: x + 1), []
    x = jnp.ones(3)
    warm(twins, lambda: (x,))

    def work():
        jit_counts()
        found = [twins.fast(x).tolist() for _ in range(3)]
        hits, _ = jit_counts()
        with core.set_current_trace(None):
            outcomes = [observe(f, x)[:1] for f in (twins.plain, twins.fast)]
        none, _ = jit_counts()
        seen.append((found, hits, outcomes[0] == outcomes[1], none))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert seen == [([[2.0] * 3] * 3, 3, True, 0)] * 2


def test_trap_4_in_a_trace():
    """Trap 4: inside a trace the function is part of it, also for concrete arguments."""
    inner = Twins(add_one)
    constant = jnp.ones(3)
    warm(inner, lambda: (constant,))
    for function in (inner.plain, inner.fast):
        for outer in (
            lambda x, f=function: x + f(constant),
            lambda x, f=function: f(x) + f(constant),
        ):
            assert jax.jit(outer)(constant).tolist() in ([3, 3, 3], [4, 4, 4])
            jaxpr = str(jax.make_jaxpr(outer)(constant))
            assert "jit[" in jaxpr
    assert inner.traces[0] == inner.traces[1]
    assert jit_counts() == (0, {"trace": 3})    # what was traced once is not traced again
    inner(lambda: (constant,))
    assert jit_counts() == (1, {})


def test_trap_4_compile_time_eval():
    """Trap 4: evaluation in the middle of a trace."""
    twins = Twins(add_one)
    warm(twins, lambda: (jnp.ones(3),))
    found = []
    for function in (twins.plain, twins.fast):

        def outer(x, function=function):
            with jax.ensure_compile_time_eval():
                found.append(function(np.ones(3, np.float32)))
                found.append(function(found[-1]))
            return x + found[-1]

        found.append(jax.jit(outer)(jnp.zeros(3)))
    assert [str(x) for x in found[:3]] == [str(x) for x in found[3:]]
    assert all(isinstance(x, jax.Array) for x in found)


def test_trap_4_a_profile_is_taken(tmp_path):
    """Trap 12: while a profile is taken the reference runs, with its annotations."""
    twins = Twins(add_one)
    warm(twins, lambda: (jnp.zeros(4),))
    with jax.profiler.trace(str(tmp_path)):
        twins(lambda: (jnp.zeros(4),))
    assert jit_counts() == (0, {"profiler": 1})
