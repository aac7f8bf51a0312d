"""One test or more for each trap that `device_put` can meet; the numbers are those of the design.

Every test compares with plain JAX and asserts the exact number of calls that took the fast path.
"""

from __future__ import annotations

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
from jax._src import core, literals, util
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from observe import observe
from support import aligned, column_major, config_updated, counts, same_as_jax

import jaxmarshal
from jaxmarshal import _layout

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning"),
]

P = PartitionSpec


def mesh_of(*numbers, names=("x",), axis_types=None):
    devices = np.asarray(jax.devices())[list(numbers)]
    return jax.sharding.Mesh(devices, names, axis_types=axis_types)


def device(number):
    return jax.devices()[number]


TARGETS = {
    "none": lambda: None,
    "first": lambda: device(0),
    "other": lambda: device(3),
    "single": lambda: SingleDeviceSharding(device(0)),
    "single other": lambda: SingleDeviceSharding(device(5)),
    "replicated": lambda: NamedSharding(mesh_of(*range(8)), P()),
    "subset": lambda: NamedSharding(mesh_of(1, 2), P()),
}


def targets(*names):
    return pytest.mark.parametrize("target", [TARGETS[n] for n in names], ids=names)


# --- 1: memory layout of the data ----------------------------------------------------------------


@targets("none", "first", "other", "single", "single other", "replicated", "subset")
def test_column_major_array(target):
    """Trap 1: a column-major array keeps or loses its layout exactly as with plain JAX."""
    name = target()
    hits = 3 if name is None else 2
    same_as_jax(column_major, name, hits=hits)


@targets("none", "first", "other", "single", "replicated")
def test_column_major_after_row_major(target):
    """Trap 1: a record made for row-major data does not spoil column-major data, nor inversely."""
    rows = jax.device_put(aligned((3, 4)))
    same_as_jax(lambda: rows, target(), hits=3 if target() is None else 2)
    same_as_jax(column_major, target(), hits=3)
    same_as_jax(lambda: rows, target(), hits=3)


def test_format_target():
    """Trap 1: a target that asks for a data layout is the reference's."""
    target = Format(Layout((1, 0)), SingleDeviceSharding(device(0)))
    outcome = same_as_jax(lambda: aligned((3, 4)), target, reasons={"target": 3})
    assert "(1, 0)" in str(outcome)
    same_as_jax(lambda: jax.device_put(aligned((3, 4))), target, reasons={"target": 3})


def test_column_major_host_arrays():
    """Trap 1: the order of a numpy array's elements is not the order of the result's."""
    same_as_jax(lambda: np.asfortranarray(aligned((3, 4))))
    same_as_jax(lambda: aligned((3, 4))[:, ::-1], hits=3)


def test_layout_words_tell_column_major():
    """Trap 1: the layout words prove the default layout for it and never for another one."""
    for made in (
        jax.device_put(aligned((3, 4))), jax.device_put(1.0), jax.device_put(aligned(3), device(3))
    ):
        found = _layout.read(made)
        assert found["default_layout"] is True
        assert found["default_layout_proven"] is (not LAYOUT_OFF)
    by_format = jax.device_put(
        aligned((5, 7)), Format(Layout((1, 0)), SingleDeviceSharding(device(0)))
    )
    for made in (column_major(), by_format):
        found = _layout.read(made)
        assert found["default_layout"] is False
        assert found["default_layout_proven"] is False


def test_layout_words_of_deleted_array():
    """Trap 1: a deleted array proves nothing."""
    made = jax.device_put(aligned(3))
    made.delete()
    found = _layout.read(made)
    assert found["deleted"] is True
    assert found["default_layout_proven"] is found["default_layout"] is False


# --- 2: addresses are reused ---------------------------------------------------------------------


def test_reused_host_array_addresses():
    """Trap 2: another numpy array at the address of a freed one is judged by itself."""
    seen, reused = set(), 0
    for i in range(300):
        shape, dtype = [(3,), (4,), (2, 2), ()][i % 4], [np.float32, np.int32, np.int8][i % 3]
        host = np.full(shape, i % 100, dtype)
        reused += id(host) in seen
        seen.add(id(host))
        result = jaxmarshal.device_put(host)
        assert (result.shape, result.dtype) == (host.shape, host.dtype)
        np.testing.assert_array_equal(result, host)
        del host, result
    assert reused > 100
    assert counts() == (288, {"not_recorded": 12})


def test_reused_device_array_addresses():
    """Trap 2: another jax.Array at the address of a freed one is judged by itself."""
    seen, reused = set(), 0
    sources = [aligned(3), aligned((2, 2)), aligned(5, np.int32), np.bool_(True)]
    target = SingleDeviceSharding(device(1))
    for i in range(200):
        source = jax.device_put(sources[i % 4], device(i % 3))
        reused += id(source) in seen
        seen.add(id(source))
        result = jaxmarshal.device_put(source, target)
        assert (result is source) == (i % 3 == 1)
        assert result.aval == source.aval
        assert result.sharding == target
        np.testing.assert_array_equal(result, sources[i % 4])
        del source, result
    assert reused > 20
    hits, reasons = counts()
    # Four shapes from two other devices; the first call of all finds no target.
    assert reasons == {"not_recorded": 8}
    assert hits == 192


def test_reused_list_addresses():
    """Trap 2: another list, or the same list with other contents, is walked again."""
    first, second = aligned(3), aligned(4)
    jaxmarshal.device_put([first, second])
    jaxmarshal.reset_stats()
    tree = []
    for i in range(50):
        tree = [first] * (i % 5) + [[second]] * (i % 3)
        result = jaxmarshal.device_put(tree)
        assert jax.tree.structure(result) == jax.tree.structure(tree)
        assert [a.shape for a in jax.tree.leaves(result)] == [
            a.shape for a in jax.tree.leaves(tree)
        ]
    grown = []
    for i in range(50):
        grown.append(first)
        assert len(jaxmarshal.device_put(grown)) == i + 1
    assert counts() == (100, {})


def test_reshaped_in_place():
    """Trap 2: the same numpy array object with another shape or dtype is another argument."""
    host = aligned(4, np.int32)
    for shape, dtype in (((4,), np.int32), ((2, 2), np.int32), ((8,), np.int16), ((4,), np.uint32)):
        host = host.view(dtype).reshape(shape)
        result = jaxmarshal.device_put(host)
        assert (result.shape, result.dtype) == (shape, dtype)
    assert counts() == (0, {"not_recorded": 4})


# --- 3: avals are not interned -------------------------------------------------------------------


def test_equal_avals_made_anew():
    """Trap 3: an aval is recognised by what it says, whichever object says it, dead ones included.

    The supported versions intern avals as long as one is alive; this is not relied on.
    """
    target = SingleDeviceSharding(device(2))
    same_as_jax(lambda: jax.device_put(aligned((2, 3))), target)
    for _ in range(3):
        gc.collect()
        same_as_jax(lambda: jax.device_put(aligned((2, 3))), target, hits=3)
        same_as_jax(lambda: jax.device_put(aligned((2, 3)), device(0)), target, hits=3)
        same_as_jax(
            lambda: jax.jit(lambda x: x * 2)(jax.device_put(aligned((2, 3)))), target, hits=3
        )


def test_avals_that_differ_in_their_mesh_only():
    """Trap 3: avals of arrays on a mesh are not those of arrays on one device."""
    alone = jax.device_put(aligned(8))
    spread = jax.device_put(alone, NamedSharding(mesh_of(*range(8)), P()))
    assert alone.aval.shape == spread.aval.shape
    assert alone.aval.dtype == spread.aval.dtype
    assert alone.aval is not spread.aval
    for target in (
        SingleDeviceSharding(device(2)), NamedSharding(mesh_of(0, 1), P("x")),
        NamedSharding(mesh_of(0, 1, axis_types=(jax.sharding.AxisType.Explicit,)), P("x")),
    ):
        same_as_jax(lambda: alone, target)
        same_as_jax(lambda: spread, target)
        same_as_jax(lambda: alone, target, hits=3)
        same_as_jax(lambda: spread, target, hits=3)


def test_avals_that_differ_in_weak_type_only():
    """Trap 3: a weak type makes another aval."""
    target = SingleDeviceSharding(device(2))
    weak, strong = jax.device_put(2.0), jax.device_put(np.float32(2.0))
    assert weak.weak_type
    assert not strong.weak_type
    same_as_jax(lambda: weak, target)
    same_as_jax(lambda: strong, target)
    same_as_jax(lambda: weak, target, hits=3)


# --- 4: the context ------------------------------------------------------------------------------


def inside(transform, put, *values):
    """What `put` makes of values in the middle of a transformation."""
    seen = []

    def function(x):
        result = put(list(values))
        seen.append(jax.tree.map(lambda a: (type(a).__name__, str(jax.typeof(a))), result))
        return jnp.sum(x) * 2.0 + sum(jnp.sum(a) for a in result)

    out = transform(function)
    return seen, np.asarray(out)


TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(jnp.ones(2)),
    "grad": lambda f: jax.grad(f)(jnp.ones(2)),
    "vmap": lambda f: jax.vmap(f)(jnp.ones((3, 2))),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.ones((3, 2)))[1],
    "jvp": lambda f: jax.jvp(f, (jnp.ones(2),), (jnp.ones(2),))[1],
    "eval_shape": lambda f: jax.eval_shape(f, jnp.ones(2)).shape,
    "make_jaxpr": lambda f: str(jax.make_jaxpr(f)(jnp.ones(2))),
}


@pytest.mark.parametrize("transform", list(TRANSFORMS.values()), ids=list(TRANSFORMS))
def test_trace_in_progress(transform):
    """Trap 4: while a trace is in progress the reference decides, also for concrete values."""
    values = [aligned(3), jax.device_put(aligned(2)), 2.0]
    jaxmarshal.device_put(values)
    expected = inside(transform, jax.device_put, *values)
    jaxmarshal.reset_stats()
    found = inside(transform, jaxmarshal.device_put, *values)
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])
    assert counts() == (0, {"trace": len(found[0])})


def test_compile_time_eval_inside_jit():
    """Trap 4: `ensure_compile_time_eval` suspends a trace; results are then concrete."""
    host = aligned(3)
    jaxmarshal.device_put(host)

    def types(put):
        seen = []

        @jax.jit
        def function(x):
            seen.append(type(put(host)))
            with jax.ensure_compile_time_eval():
                made = put(host)
                seen.append((type(made), made.committed, np.asarray(made).tolist()))
            seen.append(type(put(host)))
            return x

        function(1.0)
        return seen

    expected = types(jax.device_put)
    jaxmarshal.reset_stats()
    assert types(jaxmarshal.device_put) == expected
    hits, reasons = counts()
    assert hits + sum(reasons.values()) == 3
    assert reasons.get("trace", 0) >= 2


def test_tracer_that_outlived_its_trace():
    """Trap 4: a leaked tracer gives the reference's error."""
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(1.0)
    jaxmarshal.device_put(aligned(3))
    jaxmarshal.reset_stats()
    for argument in (leaked[0], [aligned(3), leaked[0]]):
        for target in (None, device(0)):
            with pytest.raises(Exception) as expected:
                jax.device_put(argument, target)
            with pytest.raises(type(expected.value)) as found:
                jaxmarshal.device_put(argument, target)
            assert str(found.value) == str(expected.value)
    assert counts() == (0, {"tracer": 4})


CONTEXTS = {
    "mesh": lambda: mesh_of(*range(8)),
    "set_mesh": lambda: jax.set_mesh(mesh_of(4, 5)),
    "set_mesh explicit": lambda: jax.set_mesh(
        mesh_of(4, 5, axis_types=(jax.sharding.AxisType.Explicit,))
    ),
    "abstract mesh": lambda: jax.sharding.use_abstract_mesh(mesh_of(4, 5).abstract_mesh),
    "default_device": lambda: jax.default_device(device(2)),
    "default_device string": lambda: jax.default_device("cpu"),
    "enable_x64": lambda: jax.enable_x64(True),
    "matmul precision": lambda: jax.default_matmul_precision("highest"),
    "promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": jax.disable_jit,
    "no_execution": lambda: jax.no_execution(True),
}

#: The reference does not look at these when it puts data; records made without them serve.
WITHOUT_INFLUENCE = [CONTEXTS["debug_nans"], CONTEXTS["debug_infs"]]


def odd_values():
    """Arguments that show what a context changes: their device, their width, what is not finite."""
    return [aligned(3), np.float32(np.nan), aligned(2, np.float64), 1.5, 3, True, 2j, np.int64(7)]


@targets("none", "first", "single other", "replicated")
@pytest.mark.parametrize("context", list(CONTEXTS.values()), ids=list(CONTEXTS))
def test_context_switched_between_calls(context, target):
    """Trap 4: what was recorded in one context is not used in another, and is found again later."""
    outside = functools.partial(same_as_jax, odd_values, target())
    within = functools.partial(same_as_jax, odd_values, target(), context=context)
    outside()
    within(hits=3 if context in WITHOUT_INFLUENCE else 2)
    outside(hits=3)
    within(hits=3)


def test_two_meshes_with_equal_abstract_meshes():
    """Trap 4: the devices of the current mesh are not part of the abstract mesh."""
    explicit = (jax.sharding.AxisType.Explicit,)
    for numbers in ((4, 5), (6, 7), (4, 5)):
        mesh = mesh_of(*numbers, axis_types=explicit)

        def context(mesh=mesh):
            return jax.set_mesh(mesh)

        expected = observe(jax.device_put, odd_values(), context=context)
        assert observe(jaxmarshal.device_put, odd_values(), context=context) == expected
        expected = observe(jax.device_put, aligned((2, 2)), P("x"), context=context)
        assert observe(jaxmarshal.device_put, aligned((2, 2)), P("x"), context=context) == expected
    hits, reasons = counts()
    assert hits >= 1
    assert reasons["target"] == 3


def test_set_mesh_outside_a_with_statement():
    """Trap 4: `jax.set_mesh` as a function changes the context of the calls after it."""
    before = jax.set_mesh(mesh_of(2, 3))
    try:
        same_as_jax(odd_values)
    finally:
        before.__exit__(None, None, None)
    same_as_jax(odd_values)


def test_x64_switched_for_the_process():
    """Trap 4: x64 is looked at in each call; a switch by `jax.config.update` counts as well."""
    same_as_jax(odd_values)
    with config_updated("jax_enable_x64", True):
        outcome = same_as_jax(odd_values)
        assert "float64[2]" in str(outcome)
    same_as_jax(odd_values, hits=3)


def test_default_device_switched_for_the_process():
    """Trap 4: the default device may be set for all threads."""
    same_as_jax(odd_values)
    with config_updated("jax_default_device", device(6)):
        assert jaxmarshal.device_put(1.0).devices() == {device(6)}
        same_as_jax(odd_values, hits=2)
    same_as_jax(odd_values, hits=3)


GUARDED = {
    "host": (lambda: [aligned(3), 1.0], lambda: device(1)),
    "device": (lambda: jax.device_put(aligned(3), device(2)), lambda: device(1)),
    "device to sharding": (
        lambda: jax.device_put(aligned(8), device(2)),
        lambda: NamedSharding(mesh_of(*range(8)), P("x")),
    ),
    "wrap": (lambda: jax.device_put(aligned(3), device(1)), lambda: device(1)),
    "identity": (lambda: jax.device_put(aligned(3), device(1)), lambda: None),
}
LEVELS = ["allow", "log", "disallow", "log_explicit", "disallow_explicit"]
KINDS = {
    "all": jax.transfer_guard,
    "host to device": jax.transfer_guard_host_to_device,
    "device to device": jax.transfer_guard_device_to_device,
    "device to host": jax.transfer_guard_device_to_host,
}


def guarded(what, kind, level):
    """Does this guard concern what the call does?"""
    concerned = {
        "host": ("all", "host to device"),
        "device": ("all", "device to device"),
        "device to sharding": ("all", "device to device"),
    }
    return level != "allow" and kind in concerned.get(what, ())


def log_lines(capfd):
    """The lines that the runtime logged about transfers, without time and place."""
    return [
        line.split("]", 1)[1] for line in capfd.readouterr().err.splitlines() if "transfer" in line
    ]


@pytest.mark.parametrize("what", list(GUARDED))
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("level", LEVELS)
def test_transfer_guard(what, kind, level, capfd):
    """Trap 4: under every transfer guard the result, the error or the log is the reference's."""
    make, target = GUARDED[what]
    argument, place = make(), target()
    jaxmarshal.device_put(argument, place)
    jaxmarshal.device_put(argument, place)
    assert counts()[0] >= 1

    def outcome(put):
        capfd.readouterr()
        with KINDS[kind](level):
            try:
                result = [str(jax.tree.map(lambda a: (a.aval, a.sharding, a.committed),
                                           put(argument, place)))]
            except Exception as error:
                result = [type(error), str(error)]
        return result, log_lines(capfd)

    expected = outcome(jax.device_put)
    jaxmarshal.reset_stats()
    assert outcome(jaxmarshal.device_put) == expected
    assert counts() == ((0, {"guard": 1}) if guarded(what, kind, level) else (1, {}))


@pytest.mark.parametrize("name", ["jax_transfer_guard", "jax_transfer_guard_host_to_device"])
def test_transfer_guard_of_the_process(name):
    """Trap 4: a guard set for all threads counts, unless this thread has set another."""
    host = aligned(3)
    jaxmarshal.device_put(host)
    before = getattr(jax.config, name)
    jax.config.update(name, "disallow_explicit")
    try:
        same_as_jax(lambda: host, reasons={"guard": 3})
        same_as_jax(lambda: host, hits=3, context=lambda: jax.transfer_guard("allow"))
    finally:
        jax.config.update(name, before if before is not None else "allow")
        jax.config.update("jax_transfer_guard", "allow")
    same_as_jax(lambda: host, hits=3)


def in_thread(function):
    """Call a function in a thread of its own and return or raise what it does."""
    outcome = []

    def body():
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def test_configuration_of_another_thread():
    """Trap 4: a configuration that another thread has for itself does not count here."""
    host = aligned(3, np.float64)
    same_as_jax(lambda: host)
    entered, leave = threading.Event(), threading.Event()

    def other():
        with (
            jax.transfer_guard("disallow_explicit"), jax.enable_x64(True),
            jax.default_device(device(3)),
        ):
            entered.set()
            leave.wait(30)
            return observe(jaxmarshal.device_put, host), observe(jax.device_put, host)

    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(other()))
    thread.start()
    assert entered.wait(30)
    same_as_jax(lambda: host, hits=3)
    jaxmarshal.reset_stats()
    leave.set()
    thread.join()
    ours, reference = outcome[0]
    assert ours == reference
    assert ours[0][0] == "raised"
    assert counts()[0] == 0


def test_configuration_of_this_thread_is_not_that_of_others():
    """Trap 4: a new thread does not have the configuration of the thread that started it."""
    # Fresh arrays: JAX's own cache of conversions is by array and knows no x64.
    def host():
        return aligned(3, np.float64)

    with jax.enable_x64(True), jax.transfer_guard("disallow_explicit"):
        in_thread(lambda: same_as_jax(host))
        same_as_jax(host, reasons={"not_recorded": 3})
    same_as_jax(host, hits=3)


def test_listener_on_internal_events():
    """Trap 4: while JAX's own tests count its events, the events happen."""
    host = aligned(3)
    jaxmarshal.device_put(host)

    def events(put):
        seen = []
        before = util.test_event_listener
        util.test_event_listener = lambda name, *args: seen.append(name)
        try:
            put(host)
        finally:
            util.test_event_listener = before
        return seen

    expected = events(jax.device_put)
    assert expected
    jaxmarshal.reset_stats()
    assert events(jaxmarshal.device_put) == expected
    assert counts() == (0, {"listener": 1})


# --- 5: not plain arguments ----------------------------------------------------------------------


class Subclass(np.ndarray):
    """A subclass of ndarray is not ndarray."""


class FloatSubclass(float):
    """A subclass of float is not float."""


NOT_PLAIN = {
    "typed key": (lambda: jax.random.key(0), "key_array"),
    "typed keys": (lambda: jax.random.split(jax.random.key(0), 2), "key_array"),
    "ref": (lambda: jax.new_ref(aligned(3)), "ref"),
    "float0": (lambda: np.zeros(3, jax.dtypes.float0), "not_recorded"),
    "strings": (lambda: np.array(["a", "b"]), "not_recorded"),
    "bytes": (lambda: np.array([b"a", b"b"]), "not_recorded"),
    "masked": (lambda: np.ma.masked_array([1.0, 2.0], [True, False]), "unknown_type"),
    "subclass": (lambda: aligned(3).view(Subclass), "unknown_type"),
    "matrix": (lambda: aligned((2, 2)).view(np.matrix), "unknown_type"),
    "float subclass": (lambda: FloatSubclass(1.5), "unknown_type"),
    "big-endian float": (lambda: aligned(3, ">f4"), "not_recorded"),
    "big-endian int": (lambda: aligned(3, ">i8"), "not_recorded"),
    "objects": (lambda: np.array([1, None], object), "not_recorded"),
    "long double": (lambda: np.ones(2, np.longdouble), "not_recorded"),
    "structured": (lambda: np.zeros(2, [("a", "f4")]), "not_recorded"),
    "void": (lambda: np.zeros(2, "V4"), "not_recorded"),
    "literal": (
        lambda: literals.TypedNdArray(aligned(3), core.ShapedArray((3,), np.dtype(np.float32))),
        "literal",
    ),
    "weak literal": (
        lambda: literals.TypedNdArray(
            aligned(()), core.ShapedArray((), np.dtype(np.float32), weak_type=True)
        ),
        "literal",
    ),
    "typed int": (lambda: literals.TypedInt(3, np.dtype(np.int32)), "literal"),
    "typed float": (lambda: literals.TypedFloat(3.0, np.dtype(np.float32)), "literal"),
}


@targets("none", "first", "single other")
@pytest.mark.parametrize(("make", "reason"), list(NOT_PLAIN.values()), ids=list(NOT_PLAIN))
def test_not_plain_argument(make, reason, target):
    """Trap 5: an argument that is not plain goes to the reference, and no record is made for it."""
    same_as_jax(make, target(), reasons={reason: 3})
    # In a tree it takes the whole call with it. A first call records the plain arguments before it.
    with contextlib.suppress(TypeError):
        jaxmarshal.device_put([aligned(3), 1.0], target())
    same_as_jax(lambda: {"a": aligned(3), "b": [1.0, make()]}, target(), reasons={reason: 3})


def test_string_array_on_the_device():
    """Trap 5: variable-width strings, which JAX can hold on a CPU device."""
    host = np.array(["a", "long enough to live elsewhere"], np.dtypes.StringDType())
    target = SingleDeviceSharding(device(0))
    expected = jax.device_put(host, target)
    for _ in range(3):
        found = jaxmarshal.device_put(host, target)
        assert (found.aval, found.sharding, found.committed) == (
            expected.aval, expected.sharding, expected.committed
        )
        assert np.asarray(found).tolist() == host.tolist()
    assert counts() == (0, {"not_recorded": 3})
    for put in (jax.device_put, jaxmarshal.device_put):
        with pytest.raises(TypeError, match="String arrays can only be sharded to CPU devices"):
            put(expected)
        assert put(expected, target) is expected
    assert counts() == (0, {"not_recorded": 3, "dtype": 2})


def test_token():
    """Trap 5: a token goes to the reference."""
    token = core.Token(jax.device_put(np.zeros((), bool)))
    for _ in range(3):
        assert type(jaxmarshal.device_put(token)) is type(jax.device_put(token))
    assert counts() == (0, {"token": 3})


def test_tracers_of_grad_and_vmap():
    """Trap 5: tracers themselves, as leaves and inside trees."""
    for transform in TRANSFORMS.values():
        seen = []

        def function(put, x, seen=seen):
            result = put({"a": x, "b": [aligned(3)]})
            seen.append(jax.tree.map(lambda a: (type(a).__name__, str(jax.typeof(a))), result))
            return jnp.sum(result["a"])

        jaxmarshal.reset_stats()
        expected = np.asarray(transform(functools.partial(function, jax.device_put)))
        found = np.asarray(transform(functools.partial(function, jaxmarshal.device_put)))
        np.testing.assert_array_equal(found, expected)
        half = len(seen) // 2
        assert seen[:half] == seen[half:]
        hits, reasons = counts()
        assert hits == 0
        assert set(reasons) <= {"trace", "tracer"}
        assert sum(reasons.values()) == half


# --- 6: committed or not, and off the default device ---------------------------------------------


def uncommitted_on(number):
    with jax.default_device(device(number)):
        return jax.device_put(aligned(8))


SOURCES = {
    "uncommitted": lambda: jax.device_put(aligned(8)),
    "uncommitted elsewhere": lambda: uncommitted_on(2),
    "committed": lambda: jax.device_put(aligned(8), device(0)),
    "committed elsewhere": lambda: jax.device_put(aligned(8), device(2)),
    "committed by sharding": lambda: jax.device_put(aligned(8), SingleDeviceSharding(device(0))),
    "sharded": lambda: jax.device_put(aligned(8), NamedSharding(mesh_of(*range(8)), P("x"))),
    "replicated": lambda: jax.device_put(aligned(8), NamedSharding(mesh_of(*range(8)), P())),
    "subset": lambda: jax.device_put(aligned(8), NamedSharding(mesh_of(1, 2), P("x"))),
    "pinned": lambda: jax.device_put(
        aligned(8), SingleDeviceSharding(device(0), memory_kind="pinned_host")
    ),
}
PLACES = {
    **TARGETS,
    "sharded": lambda: NamedSharding(mesh_of(*range(8)), P("x")),
    "second": lambda: device(2),
    "second sharding": lambda: SingleDeviceSharding(device(2)),
    "pinned": lambda: SingleDeviceSharding(device(0), memory_kind="pinned_host"),
    "subset sharded": lambda: NamedSharding(mesh_of(1, 2), P("x")),
    "other order": lambda: NamedSharding(mesh_of(*reversed(range(8))), P("x")),
}
SEVERAL = {"sharded", "replicated", "subset"}
#: The reference compiles and runs a program for a change of the order of devices.
NEVER_FAST = {("sharded", "other order"), ("replicated", "other order")}


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("source", list(SOURCES))
def test_committed_and_placement(source, place):
    """Trap 6: commitment and placement of the result follow from those of the argument."""
    array = SOURCES[source]()
    expected = observe(jax.device_put, array, PLACES[place]())
    for _ in range(3):
        assert observe(jaxmarshal.device_put, array, PLACES[place]()) == expected
    if place == "none":
        assert counts() == (3, {})
    elif (source, place) in NEVER_FAST or expected[0][0] == "raised":
        assert counts() == (0, {"not_recorded": 3})
    elif source in SEVERAL and place in ("first", "other", "second"):
        assert counts() == (0, {"not_recorded": 1, "target": 2})
    else:
        assert counts() == (2, {"not_recorded": 1})


def test_memory_kind_that_does_not_fit():
    """Trap 6: an array in pinned memory is not the device's own, though the device is the same."""
    array = SOURCES["pinned"]()
    jaxmarshal.device_put(aligned(8), device(0))
    same_as_jax(lambda: array, device(0), reasons={"target": 3})


def test_committed_and_uncommitted_in_turn():
    """Trap 6: arrays that differ in nothing but commitment do not share an answer."""
    committed = jax.device_put(aligned(8), device(0))
    uncommitted = jax.device_put(aligned(8))
    assert committed.aval == uncommitted.aval
    assert committed.sharding == uncommitted.sharding
    target = SingleDeviceSharding(device(0))
    same_as_jax(lambda: uncommitted, target)
    same_as_jax(lambda: committed, target, hits=3)
    same_as_jax(lambda: uncommitted, target, hits=3)
    assert jaxmarshal.device_put(committed, target) is committed
    assert jaxmarshal.device_put(uncommitted, target) is not uncommitted


# --- 7: zero copy --------------------------------------------------------------------------------


@targets("none", "first", "other", "single", "replicated")
@pytest.mark.parametrize("offset", [0, 16, 8, 4])
def test_zero_copy(offset, target):
    """Trap 7: a buffer is aliased or copied as with plain JAX, and later writes show likewise."""

    def outcome(put):
        host = aligned(16, offset=offset)
        low = host.ctypes.data
        result = put(host, target()).block_until_ready()
        pointers = [s.data.unsafe_buffer_pointer() - low for s in result.addressable_shards]
        host[0] = 77
        values = [float(np.asarray(s.data)[0]) for s in result.addressable_shards]
        return [p if 0 <= p < host.nbytes else None for p in pointers], values

    expected = outcome(jax.device_put)
    if offset == 0:
        assert expected[0][0] == 0
        assert expected[1][0] == 77.0
    else:
        assert expected[0][0] is None
        assert expected[1][0] == 1.0
    jaxmarshal.reset_stats()
    assert [outcome(jaxmarshal.device_put) for _ in range(3)] == [expected] * 3
    assert counts() == (2, {"not_recorded": 1})


@pytest.mark.parametrize("offset", [0, 4])
def test_shards_of_a_host_array(offset):
    """Trap 7: each shard aliases its part of the numpy array or not, as with plain JAX."""
    target = NamedSharding(mesh_of(0, 1, 2, 3), P("x"))

    def outcome(put):
        host = aligned((4, 16), offset=offset)
        result = put(host, target).block_until_ready()
        low = host.ctypes.data
        pointers = [s.data.unsafe_buffer_pointer() - low for s in result.addressable_shards]
        host[:, 0] = 77
        return (
            [p if 0 <= p < host.nbytes else None for p in pointers],
            [float(np.asarray(s.data)[0, 0]) for s in result.addressable_shards],
        )

    expected = outcome(jax.device_put)
    assert (77.0 in expected[1]) == (offset == 0)
    jaxmarshal.reset_stats()
    assert [outcome(jaxmarshal.device_put) for _ in range(3)] == [expected] * 3
    assert counts() == (2, {"not_recorded": 1})


@targets("first", "single", "replicated")
def test_buffer_of_a_device_array(target):
    """Trap 7: a result shares the buffer of the array it was made from, or not."""

    def outcome(put, array):
        result = put(array, target())
        return [
            s.data.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
            for s in result.addressable_shards
        ]

    array = jax.device_put(aligned(8))
    expected = outcome(jax.device_put, array)
    assert True in expected
    assert [outcome(jaxmarshal.device_put, array) for _ in range(3)] == [expected] * 3
    assert counts() == (2, {"not_recorded": 1})


def test_result_outlives_the_numpy_array():
    """Trap 7: an aliased buffer stays valid after the numpy array was dropped."""
    jaxmarshal.device_put(aligned(1024))
    made = [jaxmarshal.device_put(aligned(1024)) for _ in range(20)]
    gc.collect()
    trash = [np.full(1024 + 48, -1.0, np.float32) for _ in range(50)]
    for result in made:
        np.testing.assert_array_equal(result, aligned(1024))
    assert counts() == (20, {"not_recorded": 1})
    del trash


def test_converted_array_shared_between_leaves():
    """Trap 7: one float64 array twice in a tree is converted once, and may be aliased twice."""

    def pairs(put):
        shared = set()
        for i in range(200):
            host = np.arange(16 + 4 * (i % 5), dtype=np.float64)
            a, b = put((host, host))
            shared.add(a.unsafe_buffer_pointer() == b.unsafe_buffer_pointer())
            np.testing.assert_array_equal(a, b)
        return shared

    expected = pairs(jax.device_put)
    jaxmarshal.reset_stats()
    found = pairs(jaxmarshal.device_put)
    assert (True in found) == (True in expected)
    assert counts() == (195, {"not_recorded": 5})


def test_converted_array_shared_between_calls():
    """Trap 7: JAX remembers the conversion of an array from one call to the next, stale or not."""
    expected, found = [], []
    for put, values in ((jax.device_put, expected), (jaxmarshal.device_put, found)):
        jaxmarshal.device_put(np.arange(8.0))
        host = np.arange(8.0)
        for i in range(4):
            values.append(np.asarray(put(host)).tolist())
            host[0] = 100 + i
    assert found == expected


# --- 8: Python scalars ---------------------------------------------------------------------------

SCALARS = [True, False, 0, 1, -5, 2**31 - 1, -(2**31), 0.0, -0.0, 1.5, float("inf"), float("nan"),
           1j, complex(float("nan"), -0.0)]  # fmt: skip


@targets("none", "first", "single other", "replicated")
@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_python_scalar(value, target):
    """Trap 8: a Python scalar has a weak type and the default width."""
    outcome = same_as_jax(lambda: value, target())
    assert outcome[0][3][0][3] is not isinstance(value, bool)
    same_as_jax(lambda: [value, (value,)], target(), hits=3)


@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_python_scalar_with_x64(value):
    """Trap 8: with x64 a Python scalar has 64 bits."""
    same_as_jax(lambda: value, context=lambda: jax.enable_x64(True))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63, -(2**70), 10**30], ids=repr)
@pytest.mark.parametrize("x64", [False, True])
def test_integer_out_of_range(value, x64):
    """Trap 8: an integer out of range raises the reference's OverflowError, in each call."""
    def context():
        return jax.enable_x64(x64)

    expected = observe(jax.device_put, value, context=context)
    jaxmarshal.device_put(1)
    with context():
        jaxmarshal.device_put(1)
    jaxmarshal.reset_stats()
    for _ in range(2):
        assert observe(jaxmarshal.device_put, value, context=context) == expected
        assert observe(jaxmarshal.device_put, [1, value], context=context) == observe(
            jax.device_put, [1, value], context=context
        )
    if expected[0][0] == "raised":
        assert expected[0][1] is OverflowError
        assert counts() == (0, {"value": 4})
    else:
        assert counts() == (4, {})


LOUD = [1e300, -1e300, 1e-42, 1e-300, complex(1e300, 0.0), complex(0.0, 1e-300)]


@pytest.mark.parametrize("value", LOUD, ids=repr)
@pytest.mark.parametrize("make", [lambda v: v, np.float64, lambda v: np.asarray([v, v])],
                         ids=["python", "numpy scalar", "array"])  # fmt: skip
@pytest.mark.parametrize("how", ["warn", "raise", "ignore", "call"])
def test_narrowing_that_numpy_reports(value, make, how):
    """Trap 8: overflow and underflow on narrowing are reported as numpy was told to."""
    if isinstance(value, complex) and make is np.float64:
        make = np.complex128
    calls = []

    def context():
        return np.errstate(all=how, call=lambda *args: calls.append(args))

    jaxmarshal.device_put(make(1 + 0j if isinstance(value, complex) else 1.0))
    expected = observe(jax.device_put, make(value), context=context)
    reported = list(calls)
    calls.clear()
    jaxmarshal.reset_stats()
    for _ in range(2):
        assert observe(jaxmarshal.device_put, make(value), context=context) == expected
    assert calls == reported * 2
    assert counts() == (0, {"value": 2})


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
@pytest.mark.parametrize("x64", [False, True])
def test_narrowing_that_is_silent(dtype, x64):
    """Trap 8: 64-bit arrays and numpy scalars become 32-bit ones with x64 off, in silence."""
    def context():
        return jax.enable_x64(x64)

    same_as_jax(lambda: aligned(5, dtype), context=context)
    same_as_jax(lambda: np.dtype(dtype).type(3), context=context)
    if "int" in dtype:
        same_as_jax(lambda: np.add(large := aligned(5, dtype), 2**40, out=large),
                    context=context, hits=3)  # fmt: skip


# --- 9: identity of results ----------------------------------------------------------------------


def test_identity_of_results():
    """Trap 9: an array without a target is its own result, and a target makes another, or not."""
    array = jax.device_put(aligned(3))
    committed = jax.device_put(aligned(3), device(0))
    tree = {"a": array, "b": [committed, None, array]}
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        assert put(array) is array
        result = put(tree)
        assert result is not tree
        assert result["b"] is not tree["b"]
        assert result["a"] is result["b"][2] is array
        assert result["b"][0] is committed
        assert put(committed, device(0)) is not committed
        assert put(committed, SingleDeviceSharding(device(0))) is committed
        assert put(array, SingleDeviceSharding(device(0))) is not array
        assert put(None) is None
        assert put(()) == ()
        assert put([]) == []
    hits, reasons = counts()
    assert reasons == {"not_recorded": 3}
    assert hits == 2 * 8 - 3


def test_sharding_of_the_result_is_the_callers():
    """Trap 9: the result holds the very sharding object that the caller gave."""
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        for make in (
            lambda: SingleDeviceSharding(device(1)),
            lambda: NamedSharding(mesh_of(0, 1), P("x")),
        ):
            target = make()
            for argument in (aligned(8), jax.device_put(aligned(8)), 5):
                if isinstance(argument, int) and type(target) is NamedSharding:
                    continue
                assert put(argument, target).sharding is target
    assert counts() == (5, {"not_recorded": 5})


def test_scalars_are_not_shared():
    """Trap 9: the same Python scalar twice makes two arrays."""
    jaxmarshal.device_put(1.0)
    a, b = jaxmarshal.device_put([1.0, 1.0])
    assert a is not b
    assert a.unsafe_buffer_pointer() != b.unsafe_buffer_pointer()
    assert counts() == (1, {"not_recorded": 1})


# --- 10: errors ----------------------------------------------------------------------------------


def test_error_before_anything_changed():
    """Trap 10: where the last leaf is bad nothing was put, and everything is as before."""
    gc.collect()
    good = [aligned(3), jax.device_put(aligned(3)), 1.0]
    jaxmarshal.device_put(good, device(1))
    same_as_jax(lambda: [*good, "text"], device(1), reasons={"unknown_type": 3})
    live = len(jax.live_arrays())
    for _ in range(3):
        with pytest.raises(TypeError):
            jaxmarshal.device_put([*good, "text"], device(1))
        gc.collect()
        assert len(jax.live_arrays()) == live
    same_as_jax(lambda: good, device(1), hits=3)


def test_wrong_keywords():
    """Trap 10: the signature's own errors."""
    for call in (
        lambda put: put(), lambda put: put(1, None, 2), lambda put: put(1, nothing=3),
        lambda put: put(1, device=None, x=2),
    ):
        messages = []
        for put in (jax.device_put, jaxmarshal.device_put):
            with pytest.raises(TypeError) as raised:
                call(put)
            messages.append(type(raised.value))
        assert messages[0] is messages[1]
    assert counts() == (0, {})


# --- 11: caches and garbage collection -----------------------------------------------------------


def test_clear_caches():
    """Trap 11: `jax.clear_caches()` drops the records, and the next call makes new ones."""
    same_as_jax(odd_values)
    same_as_jax(odd_values, hits=3)
    jax.clear_caches()
    same_as_jax(odd_values)


def test_clear_backends(fresh):
    """Trap 11: after `clear_backends()` results are on the devices of the new backend."""
    found = fresh("""
import gc, weakref
import jax, jax.extend, numpy as np, jaxmarshal
host = np.ones(3, np.float32)
jax.config.update("jax_platforms", "cpu")
for put in (jaxmarshal.device_put, jaxmarshal.device_put):
    put(host); put([1.0, host], jax.devices()[1])
before = jaxmarshal.stats()["device_put"]["hits"]
old = jax.devices()
jax.extend.backend.clear_backends()
jaxmarshal.reset_stats()
a = jaxmarshal.device_put(host)
b = jaxmarshal.device_put(host)
c = jax.device_put(host)
new = jax.devices()
moved = [jaxmarshal.device_put([1.0, host], new[1]) for _ in range(2)]
result = {
    "before": before,
    "fresh devices": not any(d is o for d in new for o in old),
    "devices": [x.devices() == {new[0]} and list(x.devices())[0] is new[0] for x in (a, b, c)],
    "moved": [list(x.devices())[0] is new[1] for pair in moved for x in pair],
    "counts": jaxmarshal.stats()["device_put"],
    "values": [x.tolist() for x in (a, b, c)],
}
""")
    assert found["before"] == 2
    assert found["fresh devices"]
    assert found["devices"] == [True] * 3
    assert found["moved"] == [True] * 4
    assert found["values"] == [[1.0] * 3] * 3
    assert found["counts"]["hits"] == 2
    assert found["counts"]["misses_by_reason"] == {"context": 1, "not_recorded": 1}


@targets("none", "first", "other", "single", "single other", "replicated")
def test_arguments_and_results_die(target):
    """Trap 11: neither a record nor a call keeps an argument or a result alive."""
    def died(make):
        for _ in range(3):
            argument = make()
            result = jaxmarshal.device_put([argument], target())
            references = [weakref.ref(argument), weakref.ref(result[0])]
            del argument, result
            gc.collect()
            assert [reference() for reference in references] == [None, None]

    died(lambda: aligned(3))
    died(lambda: aligned(3, offset=4))
    died(lambda: jax.device_put(aligned(3)))
    died(lambda: jax.device_put(aligned(5), device(1)))
    hits, reasons = counts()
    assert hits + sum(reasons.values()) == 12
    assert hits >= 7


def test_converted_arguments_die():
    """Trap 11: a float64 array that was converted dies no later than with plain JAX."""
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        argument = np.arange(5.0)
        reference = weakref.ref(argument)
        put(argument)
        del argument
        gc.collect()
        assert reference() is None
    assert counts() == (1, {"not_recorded": 1})


def test_reference_counts():
    """Trap 11: a call leaves every reference count as it was."""
    array, host = jax.device_put(aligned(3)), aligned(3)
    committed = jax.device_put(aligned(3), device(0))
    sharding, number = SingleDeviceSharding(device(1)), 123456.75
    key = "".join(["a", "key"])
    tree = {key: [array, host, (committed, number)]}
    objects = [array, host, committed, number, key, tree, tree[key], tree[key][2]]
    objects += [array.aval, committed.aval, host.dtype, sharding, None]

    def counts_now():
        gc.collect()
        return [sys.getrefcount(thing) for thing in objects[:-2]]

    for target in (None, device(0), device(1), sharding):
        for _ in range(3):
            jaxmarshal.device_put(tree, target)
        before = counts_now()
        for _ in range(100):
            jaxmarshal.device_put(tree, target)
        assert counts_now() == before
    # A miss, too, gives back what it took.
    for bad in ("text", jax.random.key(0)):
        tree["z"] = bad
        before = counts_now()
        for _ in range(100):
            with contextlib.suppress(TypeError):
                jaxmarshal.device_put(tree)
        assert counts_now() == before


def test_target_of_the_caller_may_be_replaced():
    """Trap 11: of equal targets one at a time is kept, and the last records die with `clear`."""
    made = [SingleDeviceSharding(device(1)) for _ in range(20)]
    before = list(map(sys.getrefcount, made))
    for target in made:
        jaxmarshal.device_put(1.0, target)
    del target
    kept = [now != then for now, then in zip(map(sys.getrefcount, made), before, strict=True)]
    assert sum(kept) <= 2    # the first, as a key, and the last
    assert counts() == (19, {"not_recorded": 1})
    jaxmarshal.api.clear()
    gc.collect()
    assert list(map(sys.getrefcount, made)) == before


# --- 13: threads ---------------------------------------------------------------------------------


def test_threads():
    """Trap 13: eight threads put mixed trees while another installs, uninstalls and clears."""
    stop = threading.Event()
    failures = []
    single = SingleDeviceSharding(device(1))
    spread = NamedSharding(mesh_of(*range(8)), P("x"))

    def work(seed):
        generator = np.random.default_rng(seed)
        for i in range(60):
            number = int(generator.integers(1, 5))
            host = np.full((8, number), seed + i, np.float32)
            array = jax.device_put(np.full(number, seed - i, np.int32))
            tree = {"a": host, "b": [array, (float(i), i)], "c": None}
            for target in (None, device(seed % 8), single):
                put = jax.device_put if i % 2 else jaxmarshal.device_put
                result = put(tree, target)
                assert result["a"].shape == (8, number)
                assert np.all(np.asarray(result["a"]) == seed + i)
                assert np.all(np.asarray(result["b"][0]) == seed - i)
                assert float(result["b"][1][0]) == i == int(result["b"][1][1])
                assert result["c"] is None
            assert np.all(np.asarray(jaxmarshal.device_put(host, spread)) == seed + i)
            with jax.enable_x64(True):
                assert jaxmarshal.device_put(2.5).dtype == np.float64
            with jax.default_device(device(seed % 8)):
                assert jaxmarshal.device_put(2.5).devices() == {device(seed % 8)}

    def guarded_work(seed):
        try:
            work(seed)
        except BaseException as error:
            failures.append(error)

    def meddle():
        while not stop.is_set():
            jaxmarshal.install()
            jaxmarshal.uninstall()
            jaxmarshal.api.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=guarded_work, args=(n,)) for n in range(8)]
        meddler = threading.Thread(target=meddle)
        for thread in [*workers, meddler]:
            thread.start()
        for thread in workers:
            thread.join()
        stop.set()
        meddler.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert counts()[0] > 0
    jaxmarshal.uninstall()
    assert jax.device_put is not jaxmarshal.device_put


# --- 14: importing and installing touch nothing --------------------------------------------------


def test_import_and_install_touch_nothing(fresh):
    """Trap 14: no backend, no array, no thread; configuration is still open afterwards."""
    found = fresh("""
import threading
import jax, jaxmarshal
from jax._src import xla_bridge
states = [xla_bridge.backends_are_initialized()]
jaxmarshal.install()
states.append(xla_bridge.backends_are_initialized())
jaxmarshal.uninstall(); jaxmarshal.install()
import jaxmarshal.auto
from jaxmarshal import _layout
states.append(xla_bridge.backends_are_initialized())
calibrated = _layout.describe()["calibrated"]
threads = threading.active_count()
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
result = {
    "states": states, "calibrated": calibrated, "threads": threads,
    "devices": len(jax.devices()), "platform": jax.devices()[0].platform,
    "live": len(jax.live_arrays()),
    "dtype": str(jax.device_put(1.0).dtype), "stats": jaxmarshal.stats()["device_put"],
}
""")
    assert found["states"] == [False] * 3
    assert found["calibrated"] is False
    assert found["threads"] == 1
    assert (found["devices"], found["platform"]) == (3, "cpu")
    assert found["live"] == 0
    assert found["dtype"] == "float64"
    assert (found["stats"]["hits"], found["stats"]["misses"]) == (0, 1)


def test_device_count_set_after_install(fresh):
    """Trap 14: `jax_num_cpu_devices` may be set after jaxmarshal was installed."""
    found = fresh("""
import os
del os.environ["XLA_FLAGS"]
import jax, jaxmarshal
jaxmarshal.install()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 5)
result = [len(jax.devices()), [str(jax.device_put(1.0).devices()) for _ in range(3)],
          jaxmarshal.stats()["device_put"]["hits"]]
""")
    assert found == [5, ["{CpuDevice(id=0)}"] * 3, 2]


def test_first_call_initialises_the_backend(fresh):
    """Trap 14: the very first call is the reference's, and it is recorded."""
    found = fresh("""
import jax, jaxmarshal, numpy as np
jax.config.update("jax_platforms", "cpu")
host = np.ones(3, np.float32)
shapes = [jaxmarshal.device_put(host).shape for _ in range(3)]
result = [shapes, jaxmarshal.stats()["device_put"]]
""")
    assert found[0] == [[3]] * 3
    assert found[1] == {"hits": 2, "misses": 1, "misses_by_reason": {"context": 1}}


FIRST_CONTEXTS = {
    "nothing": "contextlib.nullcontext()",
    "disallow": "jax.transfer_guard('disallow')",
    "disallow_explicit": "jax.transfer_guard('disallow_explicit')",
    "no_execution": "jax.no_execution(True)",
    "mesh": "jax.sharding.Mesh(jax.devices(), ('x',))",
    "set_mesh": "jax.set_mesh(jax.sharding.Mesh(jax.devices()[2:], ('x',)))",
    "default_device": "jax.default_device(jax.devices()[3])",
    "default_device string": "jax.default_device('cpu')",
    "debug_nans": "jax.debug_nans(True)",
    "x64": "jax.enable_x64(True)",
    "disable_jit": "jax.disable_jit()",
    "compile time": "jax.ensure_compile_time_eval()",
    "strict": "jax.numpy_dtype_promotion('strict')",
}
#: What is recorded in these serves outside as well, in the last call.
FIRST_HITS_AFTERWARDS = [FIRST_CONTEXTS[name] for name in ("nothing", "disallow", "debug_nans")]


def first_array(fresh, context, module):
    """Meet the first array in a context; say what was seen there and how calibration went."""
    return fresh(
        """
import contextlib, gc, warnings
import jax, jax.numpy as jnp, numpy as np, jaxmarshal
from jaxmarshal import _layout
warnings.simplefilter("ignore")
jax.config.update("jax_platforms", "cpu")
array = jax.device_put(np.ones((2, 3), np.float32))
live = len(jax.live_arrays())
put = {"jax": jax, "jaxmarshal": jaxmarshal}[module].device_put
outcome = []

def attempt(function, *args):
    try:
        made = function(*args)
        outcome.append([str(jax.typeof(made)), str(getattr(made, "sharding", "")),
                        str(getattr(made, "committed", ""))])
    except Exception as error:
        outcome.append([type(error).__name__, str(error)])

def body():
    attempt(put, array, jax.devices()[1])
    attempt(put, array)
    attempt(put, np.ones(3, np.float32))
    attempt(put, 2.0)
    if module == "jaxmarshal":
        _layout.read(array)
    attempt(jax.jit(lambda x: x * 2), np.ones(3, np.float32))
    attempt(jnp.add, array, 1.0)

if context == "jit":
    def function(x):
        body()
        return x
    jax.jit(function)(array)
else:
    with eval(context):
        body()
attempt(put, np.ones(3, np.float32))
outcome.append(len(jax.live_arrays()) - live)
result = [outcome, _layout.describe(), jaxmarshal.stats()["device_put"]["hits"]]
""",
        context=context,
        module=module,
    )


@pytest.mark.parametrize("context", ["jit", *FIRST_CONTEXTS.values()],
                         ids=["jit", *FIRST_CONTEXTS])  # fmt: skip
def test_first_array_met_in_a_context(fresh, context):
    """Trap 14: calibration succeeds in every context, and the context is what it was."""
    expected, _, no_hits = first_array(fresh, context, "jax")
    found, layout, hits = first_array(fresh, context, "jaxmarshal")
    assert found == expected
    assert no_hits == 0
    assert layout["calibrated"] is True
    if LAYOUT_OFF:
        assert layout["notes"] == ["switched off by JAXMARSHAL_OBJECT_LAYOUT"]
    else:
        usual = first_array(fresh, "contextlib.nullcontext()", "jaxmarshal")[1]
        # Several words of a buffer can fit, and how many is chance; the others are one each.
        assert layout.pop("data_layout")
        assert usual.pop("data_layout")
        assert layout == usual
        assert layout["notes"] == []
        assert None not in layout.values()
    assert hits == (0 if context == "jit" else 2 if context in FIRST_HITS_AFTERWARDS else 1)
