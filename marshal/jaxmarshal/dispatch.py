"""Drop-in for `jax._src.dispatch`: every name of the installed version, the hot ones accelerated.

    from jaxmarshal import dispatch      # in place of: from jax._src import dispatch

Names are looked up in JAX's module when they are asked for, so a value that JAX changes is seen
here too.
"""

from __future__ import annotations

from typing import Any

from jaxmarshal import _device_put, _reference

_ACCELERATED = {}
if _reference.HAVE_DEVICE_PUT and _reference.batched_device_put_impl is not None:
    _ACCELERATED["batched_device_put_impl"] = _device_put.batched_device_put_impl


def __getattr__(name: str) -> Any:
    if name in _ACCELERATED:
        return _ACCELERATED[name]
    try:
        return getattr(_reference.dispatch, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return dir(_reference.dispatch)


__all__ = [name for name in dir(_reference.dispatch) if not name.startswith("_")]
