"""Where arguments and results are, what they share, host values, and errors (traps 6 to 10)."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jitted import Fussy, P, add_one, on, several, spread, warm
from support import aligned
from twins import Twins, jit_counts

import jaxmarshal

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
    third = jax.devices()[2]
    with pytest.warns(DeprecationWarning):
        twins = Twins(add_one, device=third)
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
        assert (hits, reasons) == (3, {"not_recorded": 1})


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


@pytest.mark.slow
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


def test_trap_5_and_8_each_kind_after_every_other():
    """Traps 5 and 8: an array, a key, or host data of the same aval, each where another was."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    key = jax.random.key(3)
    base = np.asarray(jax.random.key_data(key))
    for where in (None, place):    # what can be placed is known from here on
        jaxmarshal.device_put(base, where)
    some = several()
    kinds = [
        lambda: base, lambda: key, lambda: jax.device_put(base), lambda: key._base_array,
        lambda: jax.device_put(base, place), lambda: jax.device_put(key, place),
    ]  # fmt: skip

    def make():
        return lambda x, xs: (x, len(x.shape))

    for first in kinds:
        twins = Twins(make)
        for _ in range(2):
            twins(lambda first=first: (first(), some))
        for other in kinds:
            for _ in range(2):
                twins(lambda other=other: (other(), some))
            twins(lambda first=first: (first(), some))
    assert jit_counts()[0] > 0
