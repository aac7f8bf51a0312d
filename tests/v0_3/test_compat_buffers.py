"""`dispatch_v0_3`: putting values on devices, and making results of buffers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from old_dispatch import Pair, counts, devices, entry, put_pair
from support import aligned, column_major

import jaxmarshal
from jaxmarshal.compat import _buffers, dispatch_v0_3 as dispatch

HOST = {
    "f32": lambda: np.arange(6, dtype=np.float32).reshape(2, 3),
    "f64": lambda: np.arange(3.0),
    "i64": lambda: np.arange(3),
    "bool": lambda: np.array([True, False]),
    "bfloat16": lambda: np.ones(3, ml_dtypes.bfloat16),
    "complex128": lambda: np.ones(2, np.complex128),
    "empty": lambda: np.zeros((0, 4), np.float32),
    "0-d": lambda: np.array(2, np.int16),
    "strided": lambda: np.arange(10, dtype=np.float32)[::2],
    "column-major": lambda: np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "subclass": lambda: np.arange(3, dtype=np.float32).view(np.recarray),
    "numpy scalar": lambda: np.float32(1.5),
    "numpy f64 scalar": lambda: np.float64(1.5),
    "Python bool": lambda: True,
    "Python int": lambda: 7,
    "Python float": lambda: 2.5,
    "Python complex": lambda: 1j,
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("to_device", [False, True])
@pytest.mark.parametrize("name", HOST)
def test_host_values(name, to_device, x64):
    """One buffer with the values and the place that plain JAX gives; never a weak type."""
    with jax.enable_x64(x64):
        device = devices()[3] if to_device else None
        expected = jax.device_put(HOST[name](), device)
        for _ in range(3):
            (found,) = dispatch.device_put(HOST[name](), device)
            assert type(found) is dispatch.Buffer
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
            assert (found.sharding, found.committed) == (expected.sharding, to_device)
            assert not found.weak_type


def test_numpy_takes_the_fast_path():
    """From the second call on, for each dtype, shape and device."""
    for device in (None, devices()[2]):
        for make in (HOST["f32"], HOST["f64"], HOST["0-d"]):
            dispatch.device_put(make(), device)
            jaxmarshal.reset_stats()
            for _ in range(3):
                dispatch.device_put(make(), device)
            assert counts("device_put") == (3, 0)


@pytest.mark.parametrize("offset", [0, 4])
def test_aliasing(offset):
    """The data of a numpy array are shared where plain JAX shares them, and only there."""
    for _ in range(2):
        x = aligned((64,), np.float32, offset)
        shared = jax.device_put(x).unsafe_buffer_pointer() == x.ctypes.data
        (found,) = dispatch.device_put(x)
        assert (found.unsafe_buffer_pointer() == x.ctypes.data) == shared


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_float0(shape):
    """It goes to the device as False."""
    (found,) = dispatch.device_put(np.zeros(shape, jax.dtypes.float0), devices()[1])
    assert (found.dtype, found.shape, found.devices()) == (np.bool_, shape, {devices()[1]})
    assert not np.any(found)


def test_tokens():
    """One False in the place of a token."""
    (found,) = dispatch.device_put(core.Token(jnp.zeros(0)), devices()[1])
    assert (found.dtype, found.shape, bool(found)) == (np.bool_, (), False)
    assert found.devices() == {devices()[1]}


def test_literals_and_keys():
    """Values that JAX has got since: literals as numbers, typed keys as their integers."""
    key = jax.random.key(3)
    (found,) = dispatch.device_put(key, devices()[1])
    assert np.array_equal(found, jax.random.key_data(key))
    for literal in jax.make_jaxpr(lambda x: x * 2.0)(1.0).eqns[0].invars[1:]:
        (found,) = dispatch.device_put(literal.val)
        assert (found.dtype, float(found)) == (np.float32, 2.0)


def test_objects_that_convert_themselves():
    """`__jax_array__` is asked."""

    class Convertible:
        def __jax_array__(self):
            return np.arange(3, dtype=np.int32)

    assert np.array_equal(dispatch.device_put(Convertible())[0], [0, 1, 2])


@pytest.mark.parametrize("value", [object(), "text", None, [1, 2], np.array("text").dtype])
def test_unknown_types(value):
    """An error that names the type."""
    with pytest.raises(TypeError) as caught:
        dispatch.device_put(value)
    assert str(caught.value) == f"No device_put handler for type: {type(value)}"


@pytest.mark.parametrize(
    ("value", "error"),
    [(2**70, OverflowError), (np.array([None]), TypeError), (np.ma.zeros(2), ValueError)],
)
def test_bad_values(value, error):
    """JAX's own errors."""
    for _ in range(2):
        with pytest.raises(error) as caught:
            dispatch.device_put(value)
        with pytest.raises(error) as expected:
            jax.device_put(value)
        if error is not TypeError:
            assert str(caught.value) == str(expected.value)


# --- Arrays --------------------------------------------------------------------------------------


def test_arrays():
    """Itself without a device, its data where it is already, a copy elsewhere."""
    free, bound = jnp.arange(4.0), jax.device_put(jnp.arange(4.0), devices()[2])
    assert dispatch.device_put(free)[0] is free
    assert dispatch.device_put(bound)[0] is bound
    assert dispatch.device_put(bound, devices()[2])[0] is bound
    (here,) = dispatch.device_put(free, devices()[0])
    assert here is not free
    assert here.committed
    assert here.unsafe_buffer_pointer() == free.unsafe_buffer_pointer()
    (there,) = dispatch.device_put(free, devices()[5])
    assert there.devices() == {devices()[5]}
    assert there.committed
    assert np.array_equal(there, free)


@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec()])
def test_arrays_over_several_devices(spec, mesh):
    """They are put together on one device."""
    spread = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, spec))
    for device in (None, devices()[3]):
        (found,) = dispatch.device_put(spread, device)
        assert found.devices() == {device or devices()[0]}
        assert np.array_equal(found, spread)
    with jax.default_device(devices()[6]):
        assert dispatch.device_put(spread)[0].devices() == {devices()[6]}


def test_the_default_device():
    """Host data go to it, uncommitted, also after calls without it."""
    for device in (None, devices()[4], None):
        for _ in range(2):
            with jax.default_device(device):
                (found,) = dispatch.device_put(np.arange(3, dtype=np.float32))
            assert found.devices() == {device or devices()[0]}
            assert not found.committed


def test_deleted_arrays():
    """JAX's error, for every target."""
    x = jnp.arange(4.0)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        dispatch.device_put(x, devices()[1])


def test_copy_array_without_a_device():
    """No target: the array itself, wherever it is."""
    for x in (jnp.arange(3), jax.device_put(1, devices()[3])):
        assert dispatch._copy_device_array_to_device(x, None) is x


def test_copy_array_on_one_platform():
    """Itself if it is there and bound; else an array that is bound, on the same data or a copy."""
    bound = jax.device_put(jnp.arange(3) + 0, devices()[3])
    assert dispatch._copy_device_array_to_device(bound, devices()[3]) is bound
    free = jnp.arange(3) * 1.0
    here = dispatch._copy_device_array_to_device(free, devices()[0])
    assert here.committed
    assert not free.committed
    assert here.unsafe_buffer_pointer() == free.unsafe_buffer_pointer()
    there = dispatch._copy_device_array_to_device(free, devices()[1])
    assert there.sharding == SingleDeviceSharding(devices()[1])
    assert there.committed
    assert np.array_equal(there, free)


def test_copy_array_between_platforms(monkeypatch):
    """Through the host, weak type and all."""
    through_host = []
    put = _buffers._device_put_array

    def spy(x, device):
        through_host.append((type(x), device))
        return put(x, device)

    monkeypatch.setattr(_buffers, "_platform", lambda device: f"platform {device.id}")
    monkeypatch.setattr(_buffers, "_device_put_array", spy)
    x = jnp.asarray(2.5)
    assert x.weak_type
    found = dispatch._copy_device_array_to_device(x, devices()[1])
    assert through_host == [(np.ndarray, devices()[1])]
    assert (float(found), found.weak_type, found.committed) == (2.5, True, True)
    assert found.devices() == {devices()[1]}


@pytest.mark.parametrize("value", [2.5, 3, True, np.float64(1), np.arange(3.0), "array"])
@pytest.mark.parametrize("to_device", [False, True])
def test_device_put_impl(value, to_device):
    """An array with the value's own abstract value, weak type included."""
    value = jnp.arange(3) * 2.0 if isinstance(value, str) else value
    device = devices()[2] if to_device else None
    found = dispatch._device_put_impl(value, device)
    expected = jax.device_put(value, device)
    assert (found.aval, found.sharding, found.committed) == (
        expected.aval, expected.sharding, expected.committed,
    )  # fmt: skip
    assert np.array_equal(found, expected)


def test_device_put_impl_of_nonsense():
    """The error names the argument and its type."""
    with pytest.raises(TypeError) as caught:
        dispatch._device_put_impl("text")
    assert str(caught.value) == (
        "Argument 'text' of type <class 'str'> is not a valid JAX type"
    )


def test_the_primitive():
    """Today's, which still does nothing inside of a computation."""
    x = jnp.arange(3)
    assert dispatch._device_put_lowering(None, None, None, x, device=devices()[1]) == [x]
    jaxpr = jax.make_jaxpr(lambda x: jax.device_put(x))(x)
    assert [eqn.primitive for eqn in jaxpr.eqns] == [dispatch.device_put_p]


def test_prefetch():
    """Arrays start to come to the host; everything is handed back."""
    for x in (jnp.arange(3), np.arange(3), 2.5, None):
        assert dispatch.prefetch(x) is x


# --- Tables --------------------------------------------------------------------------------------


def test_a_type_of_the_users():
    """A handler may return several buffers; without it the type is unknown."""
    pair = Pair(np.arange(3, dtype=np.float32), 2)
    with entry(dispatch.device_put_handlers, Pair, put_pair):
        first, second = dispatch.device_put(pair, devices()[1])
    assert np.array_equal(first, pair.first)
    assert int(second) == 2
    assert first.devices() == second.devices() == {devices()[1]}
    with pytest.raises(TypeError, match="No device_put handler"):
        dispatch.device_put(pair)


def test_another_handler_for_a_type_of_jax():
    """It is called from now on, and no more when it is taken out again."""
    x = np.arange(3, dtype=np.float32)
    for _ in range(2):
        dispatch.device_put(x)
    with entry(dispatch.device_put_handlers, np.ndarray, lambda x, device: ("mine", id(x), device)):
        assert dispatch.device_put(x) == ("mine", id(x), None)
        # Numbers become arrays before they are looked up.
        assert dispatch.device_put(2)[0] == "mine"
    jaxmarshal.reset_stats()
    assert np.array_equal(dispatch.device_put(x)[0], x)
    assert counts("device_put") == (1, 0)
    with entry(dispatch.device_put_handlers, dispatch.Buffer, lambda x, device: "array"):
        assert dispatch.device_put(jnp.arange(3)) == "array"


def test_a_handler_that_fails():
    """Its error is the caller's, also a KeyError."""

    def fail(x, device):
        raise KeyError("mine")

    with entry(dispatch.device_put_handlers, Pair, fail), pytest.raises(KeyError, match="mine"):
        dispatch.device_put(Pair(1, 2))


def test_subclasses_have_no_handler():
    """The table is by exact type."""

    class More(Pair):
        pass

    with (
        entry(dispatch.device_put_handlers, Pair, put_pair),
        pytest.raises(TypeError, match=r"No device_put handler for type: .*More"),
    ):
        dispatch.device_put(More(1, 2))


class OpaqueAval:
    """An abstract value of a user's: two buffers."""


def test_numbers_of_buffers():
    """One for arrays and tokens; the user's count for the user's values."""
    assert dispatch.aval_to_num_buffers(jnp.arange(3).aval) == 1
    assert dispatch.aval_to_num_buffers(jax._src.core.AbstractToken()) == 1
    with pytest.raises(TypeError) as caught:
        dispatch.aval_to_num_buffers(OpaqueAval())
    assert str(caught.value) == f"No num_buffers handler for type: {OpaqueAval}"
    with entry(dispatch.num_buffers_handlers, OpaqueAval, lambda aval: 2):
        assert dispatch.aval_to_num_buffers(OpaqueAval()) == 2


@pytest.mark.parametrize("sticky", [False, True])
def test_results_of_buffers(sticky):
    """Arrays with the given abstract value, committed to a sticky device."""
    device = devices()[2] if sticky else None
    (buffer,) = dispatch.device_put(np.float32(2), device)
    aval = jnp.asarray(2.0).aval
    assert aval.weak_type
    found = dispatch.aval_to_result_handler(device, aval)(buffer)
    assert (found.aval, found.committed, found.devices()) == (aval, sticky, buffer.devices())
    assert found.unsafe_buffer_pointer() == buffer.unsafe_buffer_pointer()


def test_results_of_keys_tokens_and_float0():
    """What is not an array of numbers."""
    key = jax.random.key(3)
    (buffer,) = dispatch.device_put(key)
    found = dispatch.aval_to_result_handler(None, key.aval)(buffer)
    assert (found.dtype, jax.random.bits(found)) == (key.dtype, jax.random.bits(key))
    token = dispatch.aval_to_result_handler(None, jax._src.core.AbstractToken())(buffer)
    assert type(token) is core.Token
    aval = jax.eval_shape(lambda: np.zeros(3, jax.dtypes.float0))
    zeros = dispatch.array_result_handler(None, aval)(buffer)
    assert (type(zeros), zeros.dtype, zeros.shape) == (np.ndarray, jax.dtypes.float0, (3,))


def test_results_of_the_users():
    """A handler of the user's, and the error without one."""
    with pytest.raises(TypeError) as caught:
        dispatch.aval_to_result_handler(None, OpaqueAval())
    assert str(caught.value) == f"No result handler for type: {OpaqueAval}"
    with entry(dispatch.result_handlers, OpaqueAval, lambda device, aval: Pair):
        made = dispatch.aval_to_result_handler(None, OpaqueAval())(1, 2)
    assert (made.first, made.second) == (1, 2)


# --- Checks --------------------------------------------------------------------------------------

CHECKS = {
    "nan": (jax.debug_nans, np.nan),
    "inf": (jax.debug_infs, np.inf),
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_check_special(name, dtype):
    """An error that names the computation, if it is asked for and there is one."""
    context, value = CHECKS[name]
    good, bad = jnp.ones(3, dtype), jnp.full(3, value, dtype)
    assert not dispatch.needs_check_special()
    dispatch.check_special("f", [good, bad])
    with context(True):
        assert dispatch.needs_check_special()
        dispatch.check_special("f", [good, jnp.arange(3)])
        with pytest.raises(FloatingPointError) as caught:
            dispatch.check_special("f", [good, bad])
    assert str(caught.value) == f"invalid value ({name}) encountered in f"
    other, _ = CHECKS["inf" if name == "nan" else "nan"]
    with other(True):
        dispatch.check_special("f", [bad])


def test_transfer_guard():
    """A transfer that is asked for is refused where JAX's is, also where everything is recorded."""
    x = np.arange(3, dtype=np.float32)
    for _ in range(2):
        dispatch.device_put(x)
    with jax.transfer_guard("disallow"):
        assert np.array_equal(dispatch.device_put(x)[0], x)
    with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match=r"[Dd]isallowed"):
        dispatch.device_put(x)


def test_data_that_lie_otherwise():
    """A buffer is the array; what executables take is another matter."""
    x = column_major()
    assert dispatch.device_put(x)[0] is x
