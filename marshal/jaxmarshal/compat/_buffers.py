"""Putting values on a device: `device_put`, its table of handlers, and moves between devices.

A buffer is what today's runtime has in its place, a `jax.Array` on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import SingleDeviceSharding

from jaxmarshal import api
from jaxmarshal._core.entries import v0_3
from jaxmarshal._jax import private
from jaxmarshal.compat._handlers import aval_to_result_handler, on_one_device

Buffer = private.ArrayImpl

#: The types of Python's numbers.
_scalar_types = dict.fromkeys((bool, int, float, complex)).keys()

#: Exact type -> what puts a value of it on a device, `handler(x, device)`, a tuple of buffers.
#: Add to it to have `device_put` and executables take values of another type.
device_put_handlers: dict[Any, Callable[[Any, Any], tuple[Any, ...]]] = {}


def _host_array(x: Any) -> Any:
    """A number or numpy array with a dtype that the configuration allows, as a numpy array.

    Raises:
      TypeError: for what is no such value.
      OverflowError: for an integer that does not fit.
    """
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return x
    canonical = private.canonicalize_value(x)
    return np.asarray(x, getattr(canonical, "dtype", None))


def _canonicalize(x: Any) -> Any:
    """What `device_put` looks up a handler for: host values become numpy arrays."""
    if type(x) in device_put_handlers and type(x) not in _HOST_TYPES:
        return x
    if hasattr(x, "__jax_array__"):
        return _canonicalize(x.__jax_array__())
    if isinstance(x, (np.ndarray, np.generic, *_scalar_types)):
        return _host_array(x)
    return x


def put_now(x: Any, target: Any) -> Any:
    """Put a value on a device or over those of a sharding, also while a trace is going on."""
    if private.trace_state_clean is None or private.trace_state_clean():
        return api.device_put(x, target)
    with jax.ensure_compile_time_eval():
        return api.device_put(x, target)


def put_by_handler(x: Any, device: Any) -> tuple[Any, ...]:
    """`device_put` by way of the table."""
    if type(x) is np.ndarray and device_put_handlers.get(np.ndarray) is _device_put_array:
        return _device_put_array(x, device)    # which sees to the dtype, and records the transfer
    x = _canonicalize(x)
    handler = device_put_handlers.get(type(x))
    if handler is None:
        raise TypeError(f"No device_put handler for type: {type(x)}")
    return handler(x, device)


device_put = v0_3.device_put


def _device_put_array(x: Any, device: Any) -> tuple[Any, ...]:
    """Put a numpy array on a device, None for the default one; `float0` as an array of False."""
    if x.dtype == jax.dtypes.float0:
        x = np.zeros(x.shape, np.bool_)
    return (put_now(x, device),)


def _device_put_scalar(x: Any, device: Any) -> tuple[Any, ...]:
    """Put a number on a device."""
    return _device_put_array(_host_array(x), device)


def _device_put_token(_: Any, device: Any) -> tuple[Any, ...]:
    """Put what stands for a token on a device: one False."""
    return _device_put_array(np.zeros((), np.bool_), device)


def _device_put_device_array(x: Any, device: Any) -> tuple[Any, ...]:
    """The buffer of an array on a device, copied there if it is elsewhere.

    An array over several devices, which has no one buffer, is put together on `device`, or on
    the default device.
    """
    if device is None and not on_one_device(x):
        device = _default_device()
    return (_copy_device_array_to_device(x, device),)


def _device_put_key(x: Any, device: Any) -> tuple[Any, ...]:
    """The buffer of a typed PRNG key: its integers."""
    with jax.ensure_compile_time_eval():
        data = jax.random.key_data(x)
    return _device_put_device_array(data, device)


def _default_device() -> Any:
    device = jax.config.jax_default_device
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return device


def _copy_device_array_to_device(x: Any, device: Any) -> Any:
    """An array on a device, and bound to it.

    Without a device it is the array itself, and so it is where it already is there and bound. On
    the same platform the data are copied by the runtime, or shared where only the binding is
    new; between platforms they go through the host.
    """
    if device is None:
        return x
    there = SingleDeviceSharding(device)
    if on_one_device(x) and x.committed and x.sharding == there:
        return x
    if not on_one_device(x) or _platform(device) == _platform(next(iter(x.devices()))):
        # Out of another memory JAX moves to a sharding, and not to a device.
        return put_now(x, device if x.sharding.memory_kind == there.memory_kind else there)
    (buffer,) = _device_put_array(np.asarray(x), device)
    return aval_to_result_handler(device, x.aval)(buffer)


def _platform(device: Any) -> str:
    return device.client.platform


def _device_put_impl(x: Any, device: Any = None) -> Any:
    """Put a value on a device: an array, bound to the device if one is given.

    Raises:
      TypeError: for a value without an abstract value.
    """
    if isinstance(x, private.ArrayImpl):
        return _copy_device_array_to_device(x, device)
    try:
        aval = private.abstractify(x)
    except TypeError as error:
        raise TypeError(
            f"Argument '{x}' of type {type(x)} is not a valid JAX type"
        ) from error
    return aval_to_result_handler(device, aval)(*device_put(x, device))


#: Today's primitive.
device_put_p = private.device_put_primitive


def _device_put_lowering(ctx: Any, avals_in: Any, avals_out: Any, x: Any, *, device: Any) -> Any:
    """Inside of a computation the primitive does nothing."""
    return [x]


_HOST_TYPES = frozenset([np.ndarray, *private.numpy_scalars(), *_scalar_types])

device_put_handlers.update(dict.fromkeys(_HOST_TYPES, _device_put_array))
device_put_handlers.update(dict.fromkeys(_scalar_types, _device_put_scalar))
device_put_handlers[core.Token] = _device_put_token
for _type, _handler in (
    (private.ArrayImpl, _device_put_device_array),
    (private.PRNGKeyArray, _device_put_key),
    (private.TypedNdArray, _device_put_scalar),
    *((_typed, _device_put_scalar) for _typed in private.typed_scalar_types),
):
    if _type is not None:
        device_put_handlers[_type] = _handler

v0_3.bind_put(device_put_handlers, put_by_handler)
