"""The accelerated functions, and the counts of what they did.

Each function has the signature, the defaults and the documentation of the installed JAX's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from jaxmarshal import _context, _device_put, _jit, _reference, _replay, _shard_args, _stats

__all__ = ["clear", "device_put", "get_include", "jit", "reset_stats", "stats"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _dress(
    function: Function, reference: Callable[..., Any], name: str, module: str
) -> Function:
    """Give an accelerated function the reference's signature and documentation."""
    attributes = {
        "__name__": name,
        "__qualname__": name,
        "__module__": module,
        "__doc__": reference.__doc__,
        "__signature__": inspect.signature(reference),
    }
    for attribute, value in attributes.items():
        setattr(function, attribute, value)
    return function


def _accepts(function: Any, reference: Callable[..., Any]) -> bool:
    """Are the parameters of the compiled function those of the installed JAX's function?"""
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
        for f in (function, reference)
    )
    return ours == theirs


def _choose(function: Any, reference: Any, name: str, module: str = __name__) -> Any:
    """The accelerated function, or the reference where a later JAX gave it other parameters."""
    if reference is None:    # the entry point is inactive then
        return None
    if not _accepts(function, reference):
        _reference.missing[name] = "it has parameters that jaxmarshal does not know"
        return reference
    return _dress(function, reference, name, module)


device_put = _choose(_device_put.device_put, _reference.device_put, "device_put", "jaxmarshal")
"""`jax.device_put`, accelerated, without `install()`.

Signature, defaults, documentation, results and errors are those of the installed JAX's.
"""
shard_args = _choose(_shard_args.shard_args, _reference.shard_args, "shard_args")
batched_device_put = _choose(
    _shard_args.batched_device_put, _reference.pxla_batched_device_put, "batched_device_put"
)

# It hands every argument on.
jit: Any = _dress(_jit.jit, _reference.jit, "jit", "jaxmarshal")
zeros, ones, full = (
    _choose(getattr(_replay, name), reference, name, "jax.numpy")
    for name, reference in (
        ("zeros", _reference.jnp_zeros),
        ("ones", _reference.jnp_ones),
        ("full", _reference.jnp_full),
    )
)


def stats() -> dict[str, dict[str, Any]]:
    """Counts of calls since the start or the last `reset_stats()`.

    Returns:
      A dict from the name of each entry point to a dict with `hits` (calls that took the fast
      path), `misses` (calls that went to the reference) and `misses_by_reason` (a dict from
      reason to count; `jaxmarshal.reasons.REASONS` says what each means). Units are calls.
    """
    return _stats.snapshot()


def reset_stats() -> None:
    """Set all counts of `stats()` to zero. Nothing that was recorded is dropped."""
    _stats.reset()


def clear() -> None:
    """Drop everything recorded; `jax.clear_caches()` does so too."""
    _context.forget()


def get_include() -> str:
    """The directory that holds `jaxmarshal/*.h`, for `include_dirs` of an extension."""
    package = Path(__file__).resolve().parent
    for folder in (package / "include", package.parents[1] / "include"):
        if (folder / "jaxmarshal" / "argtable.h").is_file():
            return str(folder)
    raise FileNotFoundError("the C headers of jaxmarshal were not installed")
