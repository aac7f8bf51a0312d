"""Drop-in for `jax._src.dispatch`: every name of the installed version, the hot ones accelerated.

    from jaxmarshal import dispatch      # in place of: from jax._src import dispatch

Names are looked up in JAX's module when they are asked for, so a value that JAX changes is seen
here too. The accelerated entry points that live in other modules or classes of JAX are here under
their names in `jaxmarshal.stats()`: `shard_args`, `batched_device_put`, `compiled_call`,
`mesh_executable_call`, `execute_replicated_call`, `results_handler_call`. Methods take their
object as the first argument.
"""

from __future__ import annotations

from typing import Any

from jaxmarshal._core.context import bypassed as _bypassed
from jaxmarshal._jax import patching as _patching, private as _private

# These belong to other parts of JAX, where `install()` puts them.
_ELSEWHERE = {
    "device_put", "jit", "bind", "asarray", "array", "zeros", "ones", "full", "getitem",
    "functions", "make_array_from_process_local_data",
}  # fmt: skip
_ACCELERATED = {
    entry.name: entry
    for entry in _patching.ENTRY_POINTS
    if entry.original is not None and entry.name not in _ELSEWHERE
}


def __getattr__(name: str) -> Any:
    entry = _ACCELERATED.get(name)
    if entry is not None:
        now = getattr(_private.dispatch, name, entry.original)
        if _bypassed.is_untouched_or_ours(entry.original, now):
            return entry.accelerated if entry.active else entry.original
    try:
        return getattr(_private.dispatch, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*dir(_private.dispatch), *_ACCELERATED})


__all__ = [name for name in __dir__() if not name.startswith("_")]
