"""Abstract values to buffers and back: tables by the type of the abstract value, and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend import core

from jaxmarshal._jax import private, private_v0_3 as _more

#: Type of an abstract value -> how many buffers such a value has in the runtime.
num_buffers_handlers: dict[Any, Callable[[Any], int]] = {}


def aval_to_num_buffers(aval: Any) -> int:
    """How many buffers represent a value with this abstract value in the runtime.

    Raises:
      TypeError: if `num_buffers_handlers` has no entry for the exact type.
    """
    handler = num_buffers_handlers.get(type(aval))
    if handler is None:
        raise TypeError(f"No num_buffers handler for type: {type(aval)}")
    return handler(aval)


class ResultHandler(Protocol):
    """Makes the value that a user sees of its buffers."""

    def __call__(self, *args: Any) -> Any:
        """The value, of as many buffers as its abstract value has."""


#: Type of an abstract value -> `handler(sticky_device, aval)`, which makes a `ResultHandler`.
result_handlers: dict[Any, Callable[[Any, Any], ResultHandler]] = {}


def aval_to_result_handler(sticky_device: Any, aval: Any) -> ResultHandler:
    """What makes values with this abstract value of their buffers.

    Args:
      sticky_device: the device that results are bound to, or None for results that are free to go.
      aval: the abstract value.

    Raises:
      TypeError: if `result_handlers` has no entry for the exact type.
    """
    handler = result_handlers.get(type(aval))
    if handler is None:
        raise TypeError(f"No result handler for type: {type(aval)}")
    return handler(sticky_device, aval)


class ArrayHandler:
    """The `ResultHandler` of arrays.

    Attributes:
      aval: of the results.
      sticky_device: the device that results are bound to, or None.
    """

    __slots__ = ("aval", "sticky_device")

    def __init__(self, sticky_device: Any, aval: Any) -> None:
        self.sticky_device = sticky_device
        self.aval = aval

    def on(self, sharding: Any) -> Any:
        """Today's handler of the runtime, for buffers that are placed like this."""
        committed = self.sticky_device is not None
        return private.result_handler(self.aval, sharding, committed)

    def __call__(self, buf: Any) -> Any:
        return self.on(buf.sharding)([buf])


def array_result_handler(sticky_device: Any, aval: Any) -> Callable[[Any], Any]:
    """The `ResultHandler` of a `ShapedArray`; for `float0`, numpy zeros whatever the buffer is."""
    if aval.dtype == jax.dtypes.float0:
        return lambda _: np.zeros(aval.shape, jax.dtypes.float0)
    return ArrayHandler(sticky_device, aval)


def on_one_device(x: Any) -> bool:
    """Is an array on one device only?"""
    return len(x.devices()) == 1


if _more.AbstractToken is not None:
    num_buffers_handlers[_more.AbstractToken] = lambda _: 1
    result_handlers[_more.AbstractToken] = lambda _, __: core.Token
if private.ShapedArray is not None:
    num_buffers_handlers[private.ShapedArray] = lambda _: 1
    result_handlers[private.ShapedArray] = array_result_handler


def needs_check_special() -> bool:
    """Are `jax_debug_nans` or `jax_debug_infs` set?"""
    return jax.config.jax_debug_infs or jax.config.jax_debug_nans


def check_special(name: str, bufs: Sequence[Any]) -> None:
    """Look for nans and infs in buffers, as far as the configuration asks for it.

    Raises:
      FloatingPointError: names the computation, `name`, and what was found.
    """
    if not needs_check_special():
        return
    _more.need("HAVE_COMPILE")
    for buf in bufs:
        if isinstance(buf.dtype, np.dtype):    # keys are no numbers
            _check_special(name, _more.Shape.array_shape(buf.dtype, buf.shape), buf)


def _check_special(name: str, xla_shape: Any, buf: Any) -> None:
    assert not xla_shape.is_tuple()
    if not jax.dtypes.issubdtype(xla_shape.element_type(), np.inexact):
        return
    data = np.asarray(buf)
    for asked, found, word in (
        (jax.config.jax_debug_nans, np.isnan, "nan"),
        (jax.config.jax_debug_infs, np.isinf, "inf"),
    ):
        if asked and np.any(found(data)):
            raise FloatingPointError(f"invalid value ({word}) encountered in {name}")
