"""Traps of `device_put` that are about the configuration a call runs under.

The numbers are those of the design. Every test compares with plain JAX and asserts the exact number
of calls that took the fast path.
"""

from __future__ import annotations

import functools
import sys
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import core, util
from jax.sharding import NamedSharding, PartitionSpec
from observe import observe
from samples import TRANSFORMS, device, mesh_of, odd_values, targets
from support import aligned, config_updated, counts, same_as_jax, transfer_log

import jaxmarshal
from jaxmarshal._jax import private

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning"),
]

P = PartitionSpec


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
    """Trap 4: the devices of the current mesh are not part of the abstract mesh.

    Each mesh has records of its own, so that none is lost where they take turns.
    """
    explicit = (jax.sharding.AxisType.Explicit,)
    spec = P("x")
    for turn in range(4):
        for numbers in ((4, 5), (6, 7)):
            mesh = mesh_of(*numbers, axis_types=explicit)

            def context(mesh=mesh):
                return jax.set_mesh(mesh)

            expected = observe(jax.device_put, odd_values(), context=context)
            assert observe(jaxmarshal.device_put, odd_values(), context=context) == expected
            for make in (lambda: aligned((2, 2)), lambda: jax.device_put(aligned((2, 2)))):
                target = spec if turn % 2 else P("x")
                expected = observe(jax.device_put, make(), target, context=context)
                jaxmarshal.reset_stats()
                found = observe(jaxmarshal.device_put, make(), target, context=context)
                assert found == expected
                assert counts() == ((1, {}) if turn else (0, {"not_recorded": 1}))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_specs_as_targets(kind):
    """A spec stands for a sharding on the mesh that is set, and for none where no mesh is."""
    mesh = mesh_of(*range(8), axis_types=(getattr(jax.sharding.AxisType, kind),))
    other = NamedSharding(mesh, P(None, "x"))
    sources = (
        lambda: aligned((8, 8)), lambda: 1.5, lambda: jnp.ones((8, 8)), odd_values,
        lambda: jax.device_put(aligned((8, 8)), other),
    )
    for spec in (P("x"), P(None, "x"), P(), P(None), P(("x",)), P("x", None)):
        for make in sources:
            expected = observe(jax.device_put, make(), spec, context=lambda: jax.set_mesh(mesh))
            for _ in range(3):
                found = observe(
                    jaxmarshal.device_put, make(), spec, context=lambda: jax.set_mesh(mesh)
                )
                assert found == expected
    assert counts()[0] >= 6 * 3 * 2    # three of the sources can be put everywhere
    with jax.set_mesh(mesh):
        for _ in range(3):
            spec = P("x")
            made = jaxmarshal.device_put(aligned((8, 8)), spec)
            assert made.sharding.spec is spec
            assert jaxmarshal.device_put(made, P("x")) is made
    same_as_jax(lambda: aligned((8, 8)), P("x"), reasons={"target": 3})


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


@jax.tree_util.register_pytree_node_class
class Acts:
    """A node whose flatten function does something first."""

    act = staticmethod(lambda: None)

    def __init__(self, child):
        self.child = child

    def tree_flatten(self):
        Acts.act()
        return (self.child,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@pytest.fixture(params=["jax_enable_x64", "jax_default_device"])
def switched(request):
    """A configuration that a flatten function switches, and how often it was."""
    name = request.param
    value, times = {"jax_enable_x64": True, "jax_default_device": device(3)}[name], []

    def act():
        times.append(1)
        jax.config.update(name, value)

    with mock.patch.object(Acts, "act", staticmethod(act)), config_updated(
        name, getattr(jax.config, name)
    ):
        yield name, getattr(jax.config, name), times


def test_trap_15_a_flatten_function_switches_the_context(switched):
    """Trap 15: what is put is put under the new one, whatever there is a record for."""
    name, before, times = switched
    host = aligned(4, np.float64)
    with mock.patch.object(Acts, "act", staticmethod(lambda: None)):
        same_as_jax(lambda: [host, Acts(host)])
    times.clear()
    outcomes = []
    for put in (jax.device_put, jaxmarshal.device_put):
        jax.config.update(name, before)
        array, _ = put([host, Acts(host)])
        outcomes.append((array.dtype, array.devices()))
    assert len(times) == 2
    assert outcomes[0] == outcomes[1]
    assert counts() == (2, {"not_recorded": 1, "context": 1})


@pytest.mark.parametrize("target", [None, 2])
def test_trap_15_nothing_is_recorded_of_a_context_that_has_changed(switched, target):
    """Trap 15: a first call whose flatten function switches it says nothing of later calls."""
    name, before, times = switched
    host, where = aligned(7, np.float64), None if target is None else device(target)
    jaxmarshal.device_put([Acts(host), host], where)
    assert times
    jax.config.update(name, before)
    jaxmarshal.reset_stats()
    same_as_jax(lambda: host, where)


def put_while_switched(host, target, enter, leave):
    """The result of a first call, with something done when the reference begins and ends.

    A profile function does it, as another thread might.
    """
    happened = []

    def profile(frame, event, _):
        act = {"call": enter, "return": leave}.get(event)
        if act is not None and frame.f_code is private.device_put.__code__:
            happened.append(event)
            act()

    sys.setprofile(profile)
    try:
        result = jaxmarshal.device_put(host, target)
    finally:
        sys.setprofile(None)
    assert happened == ["call", "return"]
    return result


def test_trap_15_the_default_device_is_set_and_set_back():
    """Trap 15: so it may be while the reference puts the data."""
    host = np.ones(7, np.float32)

    def switch(to):
        return lambda: jax.config.update("jax_default_device", to)

    with config_updated("jax_default_device", None):
        first = put_while_switched(host, None, switch(device(3)), switch(None))
        assert first.devices() == {device(3)}
        for _ in range(3):
            assert jaxmarshal.device_put(host).devices() == {device(0)}


def test_trap_15_the_types_are_switched():
    """Trap 15: what the reference puts may have other types than the call would have had."""
    host = np.ones(7, np.float64)

    def switch():
        jax.config.update("jax_enable_x64", True)

    with config_updated("jax_enable_x64", False):
        first = put_while_switched(host, device(2), switch, lambda: None)
        assert first.dtype == np.float64
        jax.config.update("jax_enable_x64", False)
        for _ in range(3):
            assert jaxmarshal.device_put(host, device(2)).dtype == np.float32


def test_trap_15_another_thread_switches_the_context():
    """Trap 15: while a call is made and recorded, another thread may set it and set it back."""
    hosts = [np.ones(n, np.float32) for n in range(1, 8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            jaxmarshal.api.clear()
            thread = threading.Thread(target=lambda: [jaxmarshal.device_put(x) for x in hosts])
            with config_updated("jax_default_device", None):
                thread.start()
                while thread.is_alive():
                    jax.config.update("jax_default_device", device(3))
                    jax.config.update("jax_default_device", None)
                thread.join()
            assert {d for x in hosts for d in jaxmarshal.device_put(x).devices()} == {device(0)}
    finally:
        sys.setswitchinterval(interval)
    assert counts()[0] > 0


GUARDED = {
    "host": (lambda: [aligned(3), 1.0], lambda: device(1)),
    "device": (lambda: jax.device_put(aligned(3), device(2)), lambda: device(1)),
    "device to sharding": (
        lambda: jax.device_put(aligned(8), device(2)),
        lambda: NamedSharding(mesh_of(*range(8)), P("x")),
    ),
    "between shardings": (
        lambda: jax.device_put(aligned((8, 8)), NamedSharding(mesh_of(*range(8)), P("x"))),
        lambda: NamedSharding(mesh_of(*range(8)), P(None, "x")),
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
        "device": KINDS,
        "device to sharding": KINDS,
        "between shardings": KINDS,
    }
    return level != "allow" and kind in concerned.get(what, ())


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
        return result, transfer_log(capfd)

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


def test_trap_15_a_replaced_description():
    """Trap 15: what describes host data in JAX's table is called as often when it is replaced."""
    seen, x = [], aligned(8)
    original = core.pytype_aval_mappings[np.ndarray]

    def stand_in(value):
        seen.append(value)
        return original(value)

    found = []
    for function in (jax.device_put, jaxmarshal.device_put):
        for _ in range(3):
            function(x)
        seen.clear()
        with mock.patch.dict(core.pytype_aval_mappings, {np.ndarray: stand_in}):
            function(x)
            found.append(len(seen))
    assert found[1] == found[0]
    assert counts()[0] == 2
