"""The traps of jitted functions, each with a test that fails when its guard is removed.

Results are compared with those of plain JAX, and so is how often the Python function is traced;
hits and misses are counted exactly.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax._src import config, literals, pjit
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from observe import observe
from recipes import Layer, Node
from support import ADDRESSES_COME_BACK, aligned, config_updated
from test_execute_traps import column_major
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal import _reference

P = PartitionSpec
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
#: So many arrays pay for two arguments on the host.
MANY = 45


def add_one():
    return lambda x: x + 1


def several():
    """Arrays that make it pay to place an argument from the host here."""
    return [jax.device_put(np.float32(i)) for i in range(MANY)]


def on(device, data=DATA):
    return jax.device_put(data, jax.devices()[device])


def spread(data=DATA, spec=None):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    return jax.device_put(data, NamedSharding(mesh, P() if spec is None else spec))


def warm(twins, args, kwargs=dict):
    """Two calls: one that records, one that hits."""
    twins(args, kwargs)
    twins(args, kwargs)
    assert jit_counts() == (1, {"not_recorded": 1})


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
    assert jit_counts() == (0, {"not_recorded": 3})
    for _ in range(3):
        twins(lambda: (rows,))
    assert jit_counts() == (2, {"not_recorded": 1})
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
    assert (hits, reasons) == (2, {"not_recorded": 4})


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
    warm(twins, lambda: (_reference.device_put(np.zeros(4, np.float32)),))
    for _ in range(5):
        twins(lambda: (_reference.device_put(np.zeros(4, np.float32)),))
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
    for args, hits in zip(arguments, (level == "allow", level == "allow", 0, 1), strict=True):
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


# --- 5: not plain calls --------------------------------------------------------------------------


def test_trap_5_effects():
    """Trap 5: functions with effects are the reference's, and each effect happens once."""
    for ordered in (False, True):
        seen = [[], []]

        def make(ordered=ordered, mine=iter(seen)):
            log = next(mine)

            def printing(x):
                jax.debug.callback(lambda v: log.append(float(v)), x.sum(), ordered=ordered)
                return x + 1

            return printing

        twins = Twins(make)
        for i in range(4):
            twins(lambda i=i: (jnp.full(3, float(i)),))
        jax.effects_barrier()
        assert sorted(seen[0]) == sorted(seen[1]) == [0.0, 3.0, 6.0, 9.0]
        assert jit_counts()[0] == 0


def test_trap_5_io_callback():
    """Trap 5: I/O callbacks run once a call."""
    calls = [[], []]

    def make(mine=iter(calls)):
        log = next(mine)

        def function(x):
            y = jax.experimental.io_callback(lambda v: log.append(1) or v, x, x)
            return y + 1

        return function

    twins = Twins(make)
    for _ in range(4):
        twins(lambda: (jnp.ones(3),))
    assert len(calls[0]) == len(calls[1]) == 4
    assert jit_counts()[0] == 0


def test_trap_5_pure_callbacks_and_errors_while_running():
    """Trap 5: what fails while it runs raises what it raises in jaxlib's C++ dispatch."""

    def make():
        calls = []

        def callback(x):
            calls.append(1)
            if len(calls) % 3 == 0:
                raise ZeroDivisionError("on purpose")
            return np.asarray(x) * 2

        return lambda x: jax.pure_callback(callback, x, x)

    twins = Twins(make)
    outcomes = []
    for _ in range(7):
        found = []
        for function in (twins.plain, twins.fast):
            try:
                found.append(jax.block_until_ready(function(jnp.ones(3))).tolist())
            except Exception as error:
                found.append((type(error), "on purpose" in str(error)))
        assert found[0] == found[1]
        outcomes.append(found[0])
    assert outcomes[2] == outcomes[5] == (ValueError, True)
    hits, reasons = jit_counts()
    assert (hits, reasons) == (4, {"not_recorded": 1})


def test_trap_5_donated_arguments():
    """Trap 5: a donated argument is gone, and used again it is an error."""
    twins = Twins(add_one, donate_argnums=0)
    warm(twins, lambda: (jnp.zeros(4),))
    states = [jnp.zeros(4), jnp.zeros(4)]
    for _ in range(4):
        before = list(states)
        states = [twins.plain(states[0]), twins.fast(states[1])]
        assert [x.is_deleted() for x in before] == [True, True]
    assert states[0].tolist() == states[1].tolist() == [4] * 4
    assert jit_counts() == (4, {})
    gone = [observe(f, x) for f, x in zip((twins.plain, twins.fast), before, strict=True)]
    assert gone[0] == gone[1] and gone[0][0][0] == "raised"
    assert jit_counts() == (0, {"deleted": 1})


@pytest.mark.parametrize("donated", [(0,), (1,), (0, 1)])
def test_trap_5_one_array_donated_twice(donated):
    """Trap 5: the same array twice, of which one or both are donated."""
    twins = Twins(lambda: lambda x, y: (x + 1, y * 2), donate_argnums=donated)
    warm(twins, lambda: (jnp.zeros(4), jnp.ones(4)))

    def same():
        return (jnp.zeros(4),) * 2

    for _ in range(2):
        assert twins(same)[0][:2] == ("raised", ValueError)
    twins(lambda: (jnp.zeros(4), jnp.ones(4)))
    _, reasons = jit_counts()
    assert not reasons


@pytest.mark.parametrize("keep_unused", [False, True])
def test_trap_5_donated_by_name_host_and_unused(keep_unused):
    """Trap 5: donation by name, of trees, of data on the host, and of what is not used."""
    twins = Twins(
        lambda: lambda state, x, *, other, unused: ({k: v + x for k, v in state.items()}, other),
        donate_argnums=0, donate_argnames=("other", "unused"), keep_unused=keep_unused,
    )  # fmt: skip
    for _ in range(3):
        twins(
            lambda: ({"a": jnp.ones(3), "b": jnp.zeros(3)}, jnp.float32(2)),
            lambda: {"other": jnp.ones(5), "unused": jnp.ones(2)},
        )
    assert jit_counts() == (2, {"not_recorded": 1})
    some = several()
    host = Twins(lambda: lambda x, xs: (x + 1, xs), donate_argnums=0)
    for offset in (0, 0, 0, 8, 8):
        host(lambda offset=offset: (aligned(16, offset=offset), some))
    assert jit_counts() == (4, {"not_recorded": 1})


def test_trap_5_deleted_argument():
    """Trap 5: a deleted argument is the reference's error, kept or pruned."""
    twins = Twins(lambda: lambda x, unused: x + 1)
    args = (jnp.zeros(4), jnp.ones(4))
    warm(twins, lambda: args)
    args[1].delete()
    twins(lambda: args)
    args[0].delete()
    assert twins(lambda: args)[0][0] == "raised"
    assert jit_counts() == (0, {"deleted": 2})


def test_trap_5_pruned_arguments():
    """Trap 5: what is not used is pruned, wherever it is and lies, and still part of the call."""
    twins = Twins(lambda: lambda a, x, b, y, c: {"x": x + y})
    x = jnp.arange(3.0)
    warm(twins, lambda: (x, x + 1, x + 2, x + 3, x + 4))
    for unused in (jnp.ones(7), jnp.ones(3, jnp.int32), column_major(DATA), None, on(0, DATA)):
        for _ in range(3):
            twins(lambda unused=unused: (unused, x + 1, unused, x + 3, x))
    # A committed array of this shape came before, and where it lies does not matter.
    assert jit_counts()[0] == 11
    elsewhere = on(3, np.ones(3, np.float32))
    for _ in range(2):
        twins(lambda: (elsewhere, x, x, x, x))
    keep = Twins(lambda: lambda a, x: x + 1, keep_unused=True)
    warm(keep, lambda: (x, x + 1))
    assert keep(lambda: (x + 1, x * 3))[0][0] == "returned"


def test_trap_5_constants_that_are_arguments():
    """Trap 5: arrays that the function closes over are passed along, to where the call runs."""
    data = np.arange(4096, dtype=np.float32)
    for simplified in (False, True):
        with config.use_simplified_jaxpr_constants(simplified):
            for constant in (
                jax.device_put(data), on(0, data), on(3, data), data, spread(data),
                jnp.float32(2), 3.0, np.float32(4),
            ):  # fmt: skip
                twins = Twins(lambda constant=constant: lambda x, unused: x * 2 + constant)
                for place in (None, 0, 3, 3, None, 0):
                    x = jax.device_put(data + 1) if place is None else on(place, data + 1)
                    twins(lambda x=x: (x, x))
                for spec in (P(), P("x"), P("x"), P()):
                    twins(lambda spec=spec: (spread(data, spec), spread(data, spec)))


def test_trap_5_constants_hit():
    """Trap 5: calls with constants go through plans, and these keep only what JAX keeps."""
    with config.use_simplified_jaxpr_constants(True):
        constant = jax.device_put(np.arange(4096, dtype=np.float32))
        twins = Twins(lambda: lambda x: x + constant)
        for i in range(4):
            twins(lambda i=i: (jnp.full(4096, float(i)),))
        assert jit_counts() == (3, {"not_recorded": 1})


def test_trap_5_mutable_refs():
    """Trap 5: references that are updated, closed over or passed, stay with the reference."""
    refs = [jax.new_ref(jnp.zeros(3)) for _ in range(2)]

    def make(mine=iter(refs)):
        ref = next(mine)

        def step(x):
            ref[...] += x
            return ref[...] * 2

        return step

    twins = Twins(make)
    for _ in range(3):
        twins(lambda: (jnp.ones(3),))
    assert [ref[...].tolist() for ref in refs] == [[3] * 3] * 2

    def passed():
        def step(ref, x):
            ref[...] = ref[...] + x
            return x

        return step

    twins = Twins(passed)
    for function in (twins.plain, twins.fast):
        ref = jax.new_ref(jnp.zeros(3))
        for _ in range(3):
            function(ref, jnp.ones(3))
        assert ref[...].tolist() == [3] * 3
    assert jit_counts()[0] == 0


def test_trap_5_typed_keys():
    """Trap 5: typed keys as arguments and results, alone, batched, among arrays and pruned."""

    def make():
        return lambda keys, x, unused: (keys[::-1], jax.vmap(jax.random.normal)(keys) + x)

    keys = jax.random.split(jax.random.key(0), 3)
    twins = Twins(make)
    x = jnp.arange(3.0)
    warm(twins, lambda: (keys, x, jax.random.key(1)))
    for seed in range(3):
        twins(lambda seed=seed: (jax.random.split(jax.random.key(seed), 3), x, keys[0]))
    assert jit_counts() == (3, {})
    twins(lambda: (keys, x, jax.random.key(1, impl="rbg")))
    assert jit_counts() == (0, {"aval": 1})


def test_trap_5_other_keys():
    """Trap 5: keys of another implementation, committed, moved, deleted or checked for reuse."""
    key = jax.random.key(0)
    deleted = jax.random.key(7)
    deleted._base_array.delete()
    for first in (key, jax.random.key(0, impl="rbg")):
        twins = Twins(lambda: lambda k: jax.random.bits(k))
        warm(twins, lambda first=first: (first,))
        for other in (
            jax.random.key(0, impl="rbg"), jax.random.key(0, impl="unsafe_rbg"),
            jax.device_put(key, jax.devices()[0]), jax.device_put(key, jax.devices()[2]),
            jax.random.split(key), jax.random.key_data(key), first._base_array, deleted, key,
        ):  # fmt: skip
            twins(lambda other=other: (other,))
    jit_counts()
    twins = Twins(lambda: lambda k: (jax.random.bits(k), k))
    warm(twins, lambda: (key,))
    for _ in range(3):
        twins(lambda: (jax.random.key(0),), context=lambda: jax.debug_key_reuse(True))
    assert jit_counts()[0] == 0


def test_trap_5_keys_on_several_devices():
    """Trap 5: sharded keys; their base arrays have a dimension more than they."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    for spec in (P("x"), P()):
        place = NamedSharding(mesh, spec)
        twins = Twins(lambda: lambda keys, x: (keys, jax.vmap(jax.random.normal)(keys) + x))
        for seed in range(4):
            twins(lambda seed=seed, place=place: (
                jax.device_put(jax.random.split(jax.random.key(seed), 8), place),
                jax.device_put(np.arange(8.0, dtype=np.float32), place),
            ))  # fmt: skip
        assert jit_counts() == (3, {"not_recorded": 1})


def test_trap_5_float0():
    """Trap 5: float0 as a result and as an argument."""
    gradient = Twins(lambda: jax.grad(lambda n: n * 1.0, allow_int=True))
    for _ in range(3):
        gradient(lambda: (jnp.int32(3),))
    zeros = np.zeros(3, jax.dtypes.float0)
    twins = Twins(lambda: lambda x, y: y + 1)
    for _ in range(3):
        twins(lambda: (zeros, jnp.ones(3)))
        twins(lambda: ([zeros, *several()], jnp.ones(3)))


class Text(np.ndarray):
    """A subclass of ndarray is not ndarray."""


class Float(float):
    """A subclass of float is not float."""


BAD = {
    "text": lambda: "text",
    "bytes": lambda: b"bytes",
    "object": object,
    "masked": lambda: np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
    "subclass": lambda: np.ones(3, np.float32).view(Text),
    "float subclass": lambda: Float(1.5),
    "big-endian": lambda: np.ones(3, ">f4"),
    "objects": lambda: np.array([1.0, None, 2.0]),
    "strings": lambda: np.array(["a", "b", "c"]),
    "string dtype": lambda: np.array(["a", "b", "c"], np.dtypes.StringDType()),
    "dates": lambda: np.zeros(3, "M8[s]"),
    "structured": lambda: np.zeros(3, [("a", "f4")]),
    "longdouble": lambda: np.ones(3, np.longdouble),
    "set": lambda: {1, 2},
    "aval": lambda: jax.ShapeDtypeStruct((3,), np.float32),
    "unsortable": lambda: {"a": jnp.ones(3), 1: jnp.ones(3)},
    "too large": lambda: 2**70,
    "too large 64": lambda: 2**31,
    "literal": lambda: literals.TypedNdArray(np.ones(3, np.float32)),
    "wrong type": lambda: np.float64(1e300),
    "none": lambda: None,
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("among", [False, True])
def test_trap_5_bad_arguments(kind, among):
    """Trap 5: what is no plain argument is accepted or refused as in plain JAX."""
    some = several() if among else []
    twins = Twins(lambda: lambda x, xs: jax.tree.map(lambda leaf: leaf + 1, x))
    for first in (jnp.ones(3), np.ones(3, np.float32), 1.5):
        for _ in range(2):
            twins(lambda first=first: (first, some))
        for _ in range(3):
            twins(lambda: (BAD[kind](), some))
    again = Twins(lambda: lambda x, xs: jax.tree.map(lambda leaf: leaf + 1, x))
    for _ in range(3):
        again(lambda: (BAD[kind](), some))


# --- 6 to 9: placement, aliasing, scalars, identity ----------------------------------------------


def test_trap_6_committed_or_not():
    """Trap 6: arrays on other devices, committed or not, alone and together."""
    with jax.default_device(jax.devices()[3]):
        elsewhere = jnp.ones(4)
    assert not elsewhere.committed
    ones = np.ones(4, np.float32)
    arrays = [jax.device_put(ones), elsewhere, on(0, ones), on(3, ones), spread(ones), ones]
    one = Twins(add_one)
    two = Twins(lambda: lambda x, y: x + y)
    for _ in range(3):
        for x in arrays:
            one(lambda x=x: (x,))
            for y in arrays:
                two(lambda x=x, y=y: (x, y))
    single = Twins(add_one)
    warm(single, lambda: (arrays[0],))
    for i, reason in ((1, "sharding"), (2, "committed"), (3, "sharding"), (4, "aval")):
        single(lambda i=i: (arrays[i],))
        assert jit_counts() == (0, {reason: 1})


def test_trap_6_uncommitted_on_several_devices():
    """Trap 6: what is made in the context of a mesh may lie on all of it and be uncommitted."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    with jax.set_mesh(mesh):
        arrays = [jnp.arange(8.0), jnp.zeros((8, 2)), jax.jit(lambda: jnp.ones(8))()]
        arrays.append(jax.jit(lambda x: x + 1)(arrays[0]))
    for x in arrays:
        twins = Twins(add_one)
        for context in (contextlib.nullcontext, lambda: jax.set_mesh(mesh)):
            for _ in range(3):
                twins(lambda x=x: (x,), context=context)


def test_trap_6_refused_devices():
    """Trap 6: arguments committed to different devices raise the reference's error."""
    twins = Twins(lambda: lambda x, y: x + y)
    warm(twins, lambda: (on(0), on(0)))
    for args in ((on(0), on(1)), (on(1), on(0)), (on(0), spread())):
        found = twins(lambda args=args: args)
        assert found[0][:2] == ("raised", ValueError) and "incompatible devices" in found[0][2]
    assert jit_counts() == (0, {"sharding": 2, "aval": 1})


def test_trap_6_arguments_that_are_moved():
    """Trap 6: an argument that the reference moves first is never handed over as it is."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    data = np.arange(8, dtype=np.float32)
    sharded = NamedSharding(mesh, P("x"))
    for options in (
        {"in_shardings": sharded}, {"out_shardings": sharded},
        {"in_shardings": NamedSharding(mesh, P()), "out_shardings": sharded},
        {"in_shardings": SingleDeviceSharding(jax.devices()[3])},
    ):  # fmt: skip
        twins = Twins(add_one, **options)
        for _ in range(3):
            for x in (data, jax.device_put(data), on(0, data), on(3, data), spread(data),
                      spread(data, P("x"))):  # fmt: skip
                twins(lambda x=x: (x,))


def test_trap_6_other_backends_and_devices_of_jit():
    """Trap 6: the options `device` and `backend`, which are deprecated, still place the call."""
    with pytest.warns(DeprecationWarning):
        twins = Twins(add_one, device=jax.devices()[2])
    with pytest.warns(DeprecationWarning):
        backend = Twins(add_one, backend="cpu")
    for _ in range(3):
        for x in (jnp.ones(3), on(0), on(2), np.ones(3)):
            twins(lambda x=x: (x,))
            backend(lambda x=x: (x,))


@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
def test_trap_7_numpy_arguments(offset, dtype):
    """Trap 7: results alias numpy arguments where the reference's do, and only there."""
    some = several()
    for many in ([], some):
        twins = Twins(lambda: lambda x, xs: (x, x.reshape(2, -1), x + 1))
        for _ in range(4):
            twins(lambda many=many: (aligned(16, dtype, offset), many))
        hits, reasons = jit_counts()
        assert hits == (3 if many else 0)
        assert many or set(reasons) == {"not_recorded"}


def test_trap_7_numpy_arguments_written_afterwards():
    """Trap 7: a numpy argument that is written later shows, or does not, as in the reference."""
    some = several()
    twins = Twins(lambda: lambda x, xs: x)
    for offset in (0, 8):
        for _ in range(3):
            found = []
            for function in (twins.plain, twins.fast):
                host = aligned(16, offset=offset)
                result = jax.block_until_ready(function(host, some))
                host[:] = -1
                found.append(np.asarray(result).tolist())
            assert found[0] == found[1]
    assert jit_counts() == (5, {"not_recorded": 1})


HOST = [
    lambda: 1.5, lambda: 2, lambda: True, lambda: 2j, lambda: np.float32(1.5),
    lambda: np.int32(2), lambda: np.bool_(True), lambda: np.float64(1.5), lambda: np.int8(2),
    lambda: np.ones((), np.float32), lambda: np.ones(3, np.float32), lambda: np.ones(3),
    lambda: jnp.float32(1.5), lambda: jnp.asarray(1.5),
]  # fmt: skip


@pytest.mark.parametrize("x64", [False, True])
def test_trap_8_every_host_value_after_every_other(x64):
    """Trap 8: Python scalars are weak, numpy's are not; each is what it is whatever came before."""
    some = several()
    with jax.enable_x64(x64):
        for first in HOST:
            twins = Twins(lambda: lambda x, xs: (x, x * 2))
            twins(lambda first=first: (first(), some))
            for other in HOST:
                twins(lambda other=other: (other(), some))
                twins(lambda first=first: (first(), some))
            assert jit_counts()[0] >= len(HOST)    # what came first keeps its plan


def test_trap_8_scalars_hit():
    """Trap 8: Python scalars among many arrays go through plans, whatever their value."""
    some = several()
    twins = Twins(lambda: lambda lr, n, xs: (lr * xs[0], n, lr))
    for i in range(5):
        twins(lambda i=i: (0.5 * i, i, some))
    assert jit_counts() == (4, {"not_recorded": 1})
    for value in (2**31, -(2**31) - 1, 2**64, 10**30):
        found = twins(lambda value=value: (1.0, value, some))
        assert found[0][1] is OverflowError
    assert jit_counts() == (0, {"value": 4})
    for value in (1e300, -1e300, np.inf, np.nan, 1e-300):
        twins(lambda value=value: (value, 1, some))


def test_trap_8_narrowing():
    """Trap 8: 64-bit data are narrowed with x64 off, and not with x64 on."""
    some = several()
    twins = Twins(lambda: lambda x, xs: x + 1)
    for x64 in (False, True, False, True, False, True):
        for dtype in (np.float64, np.int64, np.complex128, np.uint64):
            twins(lambda d=dtype: (np.arange(3).astype(d), some),
                  context=lambda x64=x64: jax.enable_x64(x64))  # fmt: skip
    assert jit_counts()[0] == 16


def test_trap_9_identity_of_results():
    """Trap 9: results are objects of their own, also where they are an argument's data."""
    x = jnp.ones(3)
    twins = Twins(lambda: lambda x, y: (x, x, y, x + 1))
    for _ in range(3):
        twins(lambda: (x, jnp.zeros(3)))
    first, second = twins.fast(x, x), twins.fast(x, x)
    assert first[0] is not x and first[0] is not first[1]
    assert all(a is not b for a, b in zip(first, second, strict=True))


# --- 10: errors ----------------------------------------------------------------------------------


class Fussy:
    """A node that raises where it is taken apart or put together."""

    fail = ""

    def __init__(self, child):
        self.child = child

    def flatten(self):
        if Fussy.fail == "flatten":
            raise ZeroDivisionError("flatten")
        return (self.child,), None

    @classmethod
    def unflatten(cls, _, children):
        if cls.fail == "unflatten":
            raise ZeroDivisionError("unflatten")
        return cls(*children)


jax.tree_util.register_pytree_node(Fussy, Fussy.flatten, Fussy.unflatten)


def test_trap_10_errors_of_nodes():
    """Trap 10: what nodes raise is raised, and the next call is as before."""
    twins = Twins(lambda: lambda node: Fussy(node.child + 1))
    x = jnp.ones(3)
    for _ in range(2):
        twins.value(Fussy(x))
    jit_counts()
    for fail in ("flatten", "unflatten"):
        found = []
        for function in (twins.plain, twins.fast):
            node = Fussy(x)
            Fussy.fail = fail
            try:
                with pytest.raises(ZeroDivisionError, match=fail) as raised:
                    function(node)
            finally:
                Fussy.fail = ""
            found.append((raised.type, str(raised.value)))
        assert found[0] == found[1]
    assert twins.fast(Fussy(x)).child.tolist() == [2, 2, 2]


def test_trap_10_errors_of_the_function():
    """Trap 10: what the function raises while it is traced, once or every time."""

    def make():
        calls = []

        def function(x, flag):
            calls.append(1)
            if flag and len(calls) % 2 == 0:
                raise KeyError(f"call {len(calls)}")
            return x + 1

        return function

    twins = Twins(make, static_argnums=1)
    for flag in (False, True, True, False, True, True):
        for n in (2, 3):
            twins(lambda n=n, flag=flag: (jnp.ones(n), flag))
    wrong = Twins(lambda: lambda x: [x, "text"])
    for _ in range(3):
        assert wrong(lambda: (jnp.ones(3),))[0][1] is TypeError
    tracer = Twins(lambda: lambda x: float(x))
    for _ in range(3):
        assert tracer(lambda: (jnp.ones(()),))[0][0] == "raised"


def test_trap_10_wrong_signatures():
    """Trap 10: missing, surplus and unknown arguments after calls that fit."""
    x = jnp.ones(3)
    twins = Twins(lambda: lambda x, y=1.0, *, z=2.0: x + y + z)
    for _ in range(2):
        twins(lambda: (x,))
        twins(lambda: (x, x), lambda: {"z": x})
    for args, kwargs in (
        ((), {}), ((x, x, x), {}), ((x,), {"x": x}), ((x,), {"w": x}), ((), {"y": x}),
    ):  # fmt: skip
        found = twins(lambda args=args: args, lambda kwargs=kwargs: kwargs)
        assert found[0][:2] == ("raised", TypeError)
    twins(lambda: (x,), lambda: {"y": x})
    assert twins(lambda: (), lambda: {"x": x, "z": x})[0][0] == "returned"


def test_trap_10_errors_before_anything_changed():
    """Trap 10: where a call is refused nothing was donated and no host data was touched."""
    twins = Twins(lambda: lambda x, y: (x + 1, y + 1), donate_argnums=0)
    warm(twins, lambda: (on(0), on(0)))
    for make in (lambda: (on(0), on(1)), lambda: (on(0), "text"), lambda: (on(0), 2**70)):
        found = twins(make)
        assert found[0][0] == "raised" and not found[2][0]


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
        traces = []

        def python(x, traces=traces):
            traces.append(1)
            return x + 1

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
        traces = []

        def python(x, traces=traces):
            traces.append(1)
            return x + 1

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
    assert seen[0] == [False, how == "clear_caches"]


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


def test_many_signatures_keep_few_plans():
    """A function that is called with ever new shapes keeps at most eight plans."""
    from jaxmarshal import _counters

    function = jaxmarshal.jit(lambda x: x + 1)
    arrays = [jax.device_put(np.zeros(n, np.float32)) for n in range(1, 151)]
    for x in arrays:
        assert function(x).shape == x.shape
    assert function._cache_size() == 150
    if _counters.debug_build():
        gc.collect()
        assert _counters.snapshot()["live_plans"] <= 16
    jit_counts()
    for x in arrays:
        assert function(x).shape == x.shape
    hits, reasons = jit_counts()
    assert hits <= 16 and hits + sum(reasons.values()) == 150


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
    from jaxmarshal import _layout

    function = jaxmarshal.jit(lambda x: x + 1)
    x = jnp.ones((3, 4))
    for _ in range(3):
        x = function(x)
        assert _layout.read(x)["default_layout_proven"]


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
    """A function made by `install()` is JAX's own again when jaxmarshal is uninstalled."""
    x = jnp.ones(3)
    jaxmarshal.install("jit")
    by_install = jax.jit(lambda x: x + 1)
    own = jaxmarshal.jit(lambda x: x + 2)
    for function in (by_install, own):
        function(x)
        function(x)
    assert jit_counts() == (2, {"not_recorded": 2})
    jaxmarshal.uninstall()
    assert by_install(x).tolist() == [2] * 3
    assert jit_counts() == (0, {})
    assert own(x).tolist() == [3] * 3
    assert jit_counts() == (1, {})
    jaxmarshal.install("jit")
    by_install(x)
    assert jit_counts() == (1, {})
    assert jax.jit is _reference.jit and pjit._cpp_pjit is not _reference.cpp_pjit
    jaxmarshal.uninstall()
    assert pjit._cpp_pjit is _reference.cpp_pjit
    assert type(jax.jit(lambda x: x)) is _reference.PjitFunction


def test_only_jit():
    """`only="jit"` patches jit and nothing else."""
    device_put = jax.device_put
    with jaxmarshal.installed("jit"):
        assert jax.device_put is device_put
        function = jax.jit(lambda x: x + 1)
        x = jnp.ones(3)
        jit_counts()
        function(x)
        function(x)
        assert jit_counts() == (1, {"not_recorded": 1})
    with jaxmarshal.installed("device_put"):
        assert type(jax.jit(lambda x: x)) is _reference.PjitFunction


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
