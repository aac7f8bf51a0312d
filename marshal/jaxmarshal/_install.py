"""Patching JAX in place, exactly reversible.

An entry point is a reference object and what stands in for it. Installing replaces the reference
wherever a module of JAX holds it; uninstalling puts every original back.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jaxmarshal import _device_put, _eager, _execute, _jit, _reference, _replay, _staging, api

logger = logging.getLogger("jaxmarshal")


@dataclass(frozen=True)
class EntryPoint:
    """One patched function or method.

    Attributes:
      name: its name in `install(only=…)` and in `stats()`.
      original: the reference's object.
      accelerated: what stands in for it.
      active: false where the installed JAX lacks something it needs.
      needs: the flag of `_reference` that says whether it does.
      holder: the class whose attribute it is, or None for a function, which is replaced in every
        module of JAX that holds it.
      attribute: the attribute's name in `holder`.
      also: further (original, substitute), functions that have to know of this one.
    """

    name: str
    original: Any
    accelerated: Any
    active: bool
    needs: str
    holder: type | None = None
    attribute: str = ""
    also: tuple[tuple[Any, Any], ...] = ()


ENTRY_POINTS: tuple[EntryPoint, ...] = (
    EntryPoint(
        "device_put",
        _reference.device_put,
        api.device_put,
        _reference.HAVE_DEVICE_PUT and api.device_put is not _reference.device_put,
        "HAVE_DEVICE_PUT",
    ),
    EntryPoint(
        "batched_device_put_impl",
        _reference.batched_device_put_impl,
        _device_put.batched_device_put_impl,
        _reference.HAVE_BATCHED_IMPL,
        "HAVE_BATCHED_IMPL",
    ),
    EntryPoint(
        "shard_args",
        _reference.shard_args,
        api.shard_args,
        _reference.HAVE_DEVICE_PUT and api.shard_args is not _reference.shard_args,
        "HAVE_DEVICE_PUT",
    ),
    EntryPoint(
        "batched_device_put",
        _reference.pxla_batched_device_put,
        api.batched_device_put,
        _reference.HAVE_PXLA_PUT
        and api.batched_device_put is not _reference.pxla_batched_device_put,
        "HAVE_PXLA_PUT",
    ),
    EntryPoint(
        "compiled_call",
        _reference.compiled_call,
        _execute.compiled_call,
        _reference.HAVE_EXECUTE,
        "HAVE_EXECUTE",
        _reference.Compiled,
        "__call__",
    ),
    EntryPoint(
        "mesh_executable_call",
        _reference.mesh_executable_call,
        _execute.mesh_executable_call,
        _reference.HAVE_EXECUTE,
        "HAVE_EXECUTE",
        _reference.MeshExecutable,
        "call",
    ),
    EntryPoint(
        "execute_replicated_call",
        _reference.execute_replicated_call,
        _execute.execute_replicated_call,
        _reference.HAVE_EXECUTE,
        "HAVE_EXECUTE",
        _reference.ExecuteReplicated,
        "__call__",
    ),
    EntryPoint(
        "results_handler_call",
        _reference.results_handler_call,
        _execute.results_handler_call,
        _reference.HAVE_RESULTS_HANDLER,
        "HAVE_RESULTS_HANDLER",
        _reference.ResultsHandler,
        "__call__",
    ),
    EntryPoint(
        "xla_primitive_callable",
        _reference.xla_primitive_callable,
        _eager.xla_primitive_callable,
        _reference.HAVE_EAGER,
        "HAVE_EAGER",
    ),
    EntryPoint(
        "bind",
        _reference.primitive_bind,
        _eager.bind,
        _reference.HAVE_EAGER,
        "HAVE_EAGER",
        _reference.Primitive,
        "bind",
    ),
    *(
        EntryPoint(
            name,
            original,
            accelerated,
            _reference.HAVE_REPLAY and accelerated is not original,
            "HAVE_REPLAY",
        )
        for name, original, accelerated in (
            ("zeros", _reference.jnp_zeros, api.zeros),
            ("ones", _reference.jnp_ones, api.ones),
            ("full", _reference.jnp_full, api.full),
        )
    ),
    *(
        EntryPoint(name, original, accelerated, _reference.HAVE_EAGER, "HAVE_EAGER")
        for name, original, accelerated in (
            ("asarray", _reference.jnp_asarray, _staging.asarray),
            ("array", _reference.jnp_array, _staging.array),
        )
    ),
    EntryPoint(
        "getitem",
        _reference.array_getitem,
        _replay.getitem,    # the subscript's protocol, whatever its argument is called
        _reference.HAVE_REPLAY,
        "HAVE_REPLAY",
        _reference.ArrayImpl,
        "__getitem__",
    ),
    # All that `jax.jit` and `jax.pjit` do with a function goes through this one.
    EntryPoint(
        "jit",
        _reference.cpp_pjit,
        _jit.cpp_pjit,
        _reference.HAVE_JIT,
        "HAVE_JIT",
        also=((_reference.eval_shape, _jit.eval_shape),),
    ),
)


def _take_after(entry: EntryPoint) -> None:
    """Give what stands in for the original the attributes that others know of the original.

    These are a cache's own functions, what it wraps, and the name that a method shows.
    """
    for name in dir(entry.original):
        own = not name.startswith("_") or name == "__wrapped__"
        if own and not hasattr(entry.accelerated, name):
            setattr(entry.accelerated, name, getattr(entry.original, name))
    if entry.holder is not None:
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(entry.accelerated, name, getattr(entry.original, name))


for _entry in ENTRY_POINTS:
    if _entry.active:
        _take_after(_entry)

_lock = threading.RLock()
_installed: set[str] = set()  # what is patched now
_wanted: set[str] = set()  # what `install()` asked for
_contexts: list[list[str]] = []  # what each open `installed()` asked for; compared by identity


def switched_off() -> bool:
    """Does the environment say that nothing is to be installed?"""
    return os.environ.get("JAXMARSHAL", "").lower() in ("off", "0", "false")


def _jax_modules() -> Iterator[ModuleType]:
    """The modules of JAX that are loaded now."""
    for name, module in list(sys.modules.items()):
        if (name == "jax" or name.startswith("jax.")) and isinstance(module, ModuleType):
            yield module


def replace(changes: list[tuple[EntryPoint, Any, Any]]) -> None:
    """For each (entry point, old, new): put `new` wherever JAX holds `old` for the entry point."""
    functions = {id(old): new for entry, old, new in changes if entry.holder is None}
    for module in _jax_modules() if functions else ():
        namespace = vars(module)
        for name, value in list(namespace.items()):
            if id(value) in functions:
                namespace[name] = functions[id(value)]
    primitive = _reference.device_put_primitive
    if primitive is not None and id(vars(primitive).get("impl")) in functions:
        primitive.impl = functions[id(primitive.impl)]
    for entry, old, new in changes:
        if entry.holder is not None and vars(entry.holder).get(entry.attribute) is old:
            setattr(entry.holder, entry.attribute, new)


def _selected(only: str | Iterable[str] | None) -> list[EntryPoint]:
    if only is None:
        return list(ENTRY_POINTS)
    names = [only] if isinstance(only, str) else list(only)
    known = {entry.name: entry for entry in ENTRY_POINTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"unknown entry points {unknown}; jaxmarshal has {sorted(known)}"
        )
    return [known[name] for name in names]


def _apply() -> None:
    """Patch what `install()` or an open context asks for, and restore everything else."""
    held = _wanted.union(*_contexts)
    changes: list[tuple[EntryPoint, Any, Any]] = []
    for entry in ENTRY_POINTS:
        pairs = [(entry.original, entry.accelerated), *entry.also]
        if entry.active and entry.name in held - _installed:
            changes += [(entry, original, accelerated) for original, accelerated in pairs]
            _installed.add(entry.name)
        elif entry.name in _installed - held:
            changes += [(entry, accelerated, original) for original, accelerated in pairs]
            _installed.discard(entry.name)
    replace(changes)
    _jit.use_installed("jit" in _installed, "xla_primitive_callable" in _installed)


def install(only: str | Iterable[str] | None = None) -> None:
    """Accelerate JAX in this process.

    Args:
      only: names of entry points, or None for all of them.

    Entry points that the installed JAX does not support stay the reference's (see
    `python -m jaxmarshal doctor`). Installing twice is the same as once. With `JAXMARSHAL=off`
    in the environment nothing is installed and one line is logged.

    Raises:
      ValueError: for an unknown name; nothing is changed then.
    """
    names = [entry.name for entry in _selected(only)]
    if switched_off():
        logger.warning("JAXMARSHAL=off: jaxmarshal is not installed")
        return
    with _lock:
        _wanted.update(names)
        _apply()


def uninstall() -> None:
    """Put every original object back. Without a previous `install()` this does nothing."""
    with _lock:
        _wanted.clear()
        _contexts.clear()
        _apply()


def installed_names() -> frozenset[str]:
    """The names of the entry points that are installed now."""
    with _lock:
        return frozenset(_installed)


@contextmanager
def installed(only: str | Iterable[str] | None = None) -> Iterator[None]:
    """A context in which jaxmarshal is installed.

    On leaving, the entry points that were installed before stay so and the others are restored,
    except those that a context which is still open, in any thread, asked for.
    """
    names = [entry.name for entry in _selected(only)]
    if switched_off():
        install(only)
        names = []
    with _lock:
        before = set(_wanted)
        _contexts.append(names)
        _apply()
    try:
        yield
    finally:
        with _lock:
            _contexts[:] = [other for other in _contexts if other is not names]
            _wanted.clear()
            _wanted.update(before)
            _apply()
