"""The accelerated functions, and the counts of what they did.

Each function has the signature, the defaults and the documentation of the installed JAX's own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakSet

from jaxmarshal._core.context import configuration
from jaxmarshal._core.entries import (
    device_put as _device_put,
    jit as _jit,
    process_data,
    shard_args as _shard_args,
)
from jaxmarshal._core.values import methods
from jaxmarshal._jax import private
from jaxmarshal._reports import counting

__all__ = ["clear", "device_put", "exclude", "get_include", "jit", "reset_stats", "stats"]

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


def _choose(function: Any, reference: Any, name: str, home: str | None = None) -> Any:
    """The accelerated function, or the reference where a later JAX gave it other parameters."""
    if reference is None:    # the entry point is inactive then
        return None
    if not _accepts(function, reference):
        private.missing[name] = "it has parameters that jaxmarshal does not know"
        return reference
    return methods.in_place_of(reference, function, home)


device_put = _choose(_device_put.device_put, private.device_put, "device_put", "device_put")
"""`jax.device_put`, accelerated, without `install()`.

Signature, defaults, documentation, results and errors are those of the installed JAX's.
"""
shard_args = _choose(_shard_args.shard_args, private.shard_args, "shard_args")
batched_device_put = _choose(
    _shard_args.batched_device_put, private.pxla_batched_device_put, "batched_device_put"
)
make_array_from_process_local_data = _choose(
    process_data.make_array_from_process_local_data,
    private.make_process_array,
    "make_array_from_process_local_data",
    "make_array_from_process_local_data",
)



def _jit_or_packing(*args: Any, pack_host: bool = False, **kwargs: Any) -> Any:
    """It hands every argument on, but for the one that JAX does not have."""
    if pack_host and len(args) < 2:    # with more, JAX says what is wrong
        from jaxmarshal.packing._jit import HostJit  # most programs do not ask for it

        if not args:
            return lambda function: HostJit(function, _jit.jit, kwargs)
        return HostJit(args[0], _jit.jit, kwargs)
    if not private.jit_warns_its_caller or (
        kwargs.get("device") is None and kwargs.get("backend") is None
    ):
        return _jit.jit(*args, **kwargs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = _jit.jit(*args, **kwargs)
    for warning in caught:    # as from whoever called, who is a frame further away than in JAX
        warnings.warn(warning.message, warning.category, stacklevel=2)
    return made


jit: Any = _dress(_jit_or_packing, private.jit, "jit", "jaxmarshal")


def exclude(function: Function) -> Function:
    """Leave one jitted function to JAX for as long as it lives: none of its calls is accelerated.

    Use it as a decorator above `@jax.jit`, before or after `install()`. It does not affect other
    functions, even if `jax.jit` made them from the same one.

    Args:
      function: what `jax.jit` returned, or a method of such a function.

    Returns:
      The function itself.

    Raises:
      TypeError: it is not a jitted function.
    """
    jitted = function.__func__ if isinstance(function, MethodType) else function
    if not _jit.is_jitted(jitted):
        if private.PjitFunction is None and callable(function):
            return function    # nothing is accelerated with this JAX
        raise TypeError(
            f"exclude takes a function that jax.jit returned, not {type(function).__name__}; as a "
            "decorator it stands above @jax.jit"
        )
    _jit.exclude(jitted)
    _excluded.add(jitted)
    return function


_excluded: WeakSet[Any] = WeakSet()


def is_excluded(jitted: Any) -> bool:
    """Has `exclude` left this jitted function to JAX?"""
    return jitted in _excluded


def stats() -> dict[str, dict[str, Any]]:
    """Counts of calls since the start or the last `reset_stats()`.

    Returns:
      A dict from the name of each entry point to a dict with `hits` (calls that took the fast
      path), `misses` (calls that went to JAX) and `misses_by_reason` (a dict from
      reason to count; `jaxmarshal.reasons.REASONS` says what each means). Units are calls.
    """
    return counting.snapshot()


def reset_stats() -> None:
    """Set all counts of `stats()` to zero. All records stay."""
    counting.reset()


def clear() -> None:
    """Drop everything recorded; `jax.clear_caches()` does so too."""
    configuration.forget()


def get_include() -> str:
    """The directory that holds `jaxmarshal/*.h`, for `include_dirs` of an extension."""
    package = Path(__file__).resolve().parent
    for folder in (package / "include", package.parents[1] / "include"):
        if (folder / "jaxmarshal" / "argtable.h").is_file():
            return str(folder)
    raise FileNotFoundError("the C headers of jaxmarshal were not installed")
