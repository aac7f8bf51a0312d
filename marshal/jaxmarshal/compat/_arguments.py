"""What computations are compiled for: the arguments' abstract values, and their devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.backend import get_backend

from jaxmarshal._jax import private

#: (abstract value, device that the argument is bound to or None)
ArgSpec = tuple[Any, Any]


def arg_spec(x: Any) -> ArgSpec:
    """The abstract value of an argument, and the device it is bound to or None.

    Raises:
      TypeError: for a value without an abstract value.
    """
    return private.abstractify(x), _bound_device(x)


def _bound_device(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return getattr(x, "_device", None)
    if isinstance(x, jax.core.Tracer) or not x.committed:
        return None
    devices = x.devices()
    return next(iter(devices)) if len(devices) == 1 else None


def _device_from_arg_devices(devices: Sequence[Any]) -> Any:
    """The device that all of the arguments are bound to that are bound, or None.

    Args:
      devices: a device or None for each argument.

    Raises:
      ValueError: if there are several.
    """
    bound = {device for device in devices if device is not None}
    if len(bound) > 1:
        names = ", ".join(map(str, devices))
        raise ValueError(
            f"primitive arguments must be colocated on the same device, got {names}"
        )
    return bound.pop() if bound else None


def _xla_callable_device(
    nreps: int, backend: str | None, device: Any, arg_devices: Sequence[Any]
) -> Any:
    """The device that a computation is bound to, or None.

    Raises:
      ValueError: if a device or backend is given for several replicas, or if the arguments are
        bound to several devices.
    """
    if nreps > 1:
        if device is not None or backend is not None:
            raise ValueError(
                f"can't specify device or backend for jit-of-pmap, "
                f"got device={device} and backend={backend}"
            )
        return None
    if device is not None:
        return device
    if backend is not None:
        return get_backend(backend).local_devices()[0]
    return _device_from_arg_devices(arg_devices)


def prefetch(x: Any) -> Any:
    """Start to copy an array to the host; the value itself."""
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        x.copy_to_host_async()
    return x
