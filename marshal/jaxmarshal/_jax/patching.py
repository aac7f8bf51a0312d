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
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from jaxmarshal import api, fronts
from jaxmarshal._core.context import bypassed
from jaxmarshal._core.entries import (
    array_from_host,
    array_types,
    bind,
    device_put,
    executables,
    jit,
    public_functions,
    which_functions,
)
from jaxmarshal._core.replay import fusion
from jaxmarshal._core.values import methods
from jaxmarshal._jax import late, private
from jaxmarshal._startup.hook import OFF, ON

logger = logging.getLogger("jaxmarshal")


class Place(NamedTuple):
    """Where an entry point is called.

    Attributes:
      original: the reference's object.
      accelerated: its replacement.
      holder: the class whose attribute it is, or None for a function, which is replaced in every
        module of JAX that holds it.
      attribute: the attribute's name in `holder`.
    """

    original: Any
    accelerated: Any
    holder: type | None = None
    attribute: str = ""


class Change(NamedTuple):
    """What is to be put where: `new` for `old`, as in a `Place`."""

    holder: type | None
    attribute: str
    old: Any
    new: Any


@dataclass(frozen=True)
class EntryPoint:
    """One patched function or method.

    Attributes:
      name: its name in `install(only=…)` and in `stats()`.
      original: the reference's object.
      accelerated: what stands in for it.
      active: false where the installed JAX lacks something it needs.
      needs: the flag of `private` that says whether it does.
      holder: the class whose attribute it is, or None for a function, which is replaced in every
        module of JAX that holds it.
      attribute: the attribute's name in `holder`.
      more: further places of the same entry point.
    """

    name: str
    original: Any
    accelerated: Any
    active: bool
    needs: str
    holder: type | None = None
    attribute: str = ""
    more: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        """What stands in for a function shows and refuses what the function does."""
        stands_in = methods.in_place_of(self.original, self.accelerated)
        object.__setattr__(self, "accelerated", stands_in)

    @property
    def places(self) -> tuple[Place, ...]:
        """All places, the one that these attributes name first."""
        return (
            Place(self.original, self.accelerated, self.holder, self.attribute),
            *self.more,
        )


def _functions_entry() -> EntryPoint:
    """The entry point of all functions that are replayed."""
    places = [Place(*pair) for pair in which_functions.functions()]
    places += [
        Place(original, accelerated, holder, attribute)
        for holder, attribute, original, accelerated in which_functions.methods()
    ]
    first = places[0] if places else Place(None, None)
    return EntryPoint(
        "functions",
        first.original,
        first.accelerated,
        private.HAVE_REPLAY,
        "HAVE_REPLAY",
        more=tuple(places[1:]),
    )


ENTRY_POINTS: tuple[EntryPoint, ...] = (
    EntryPoint(
        "device_put",
        private.device_put,
        api.device_put,
        private.HAVE_DEVICE_PUT and api.device_put is not private.device_put,
        "HAVE_DEVICE_PUT",
    ),
    EntryPoint(
        "batched_device_put_impl",
        private.batched_device_put_impl,
        device_put.batched_device_put_impl,
        private.HAVE_BATCHED_IMPL,
        "HAVE_BATCHED_IMPL",
    ),
    EntryPoint(
        "shard_args",
        private.shard_args,
        api.shard_args,
        private.HAVE_DEVICE_PUT and api.shard_args is not private.shard_args,
        "HAVE_DEVICE_PUT",
    ),
    EntryPoint(
        "batched_device_put",
        private.pxla_batched_device_put,
        api.batched_device_put,
        private.HAVE_PXLA_PUT
        and api.batched_device_put is not private.pxla_batched_device_put,
        "HAVE_PXLA_PUT",
    ),
    EntryPoint(
        "make_array_from_process_local_data",
        private.make_process_array,
        api.make_array_from_process_local_data,
        private.HAVE_PROCESS_DATA
        and api.make_array_from_process_local_data is not private.make_process_array,
        "HAVE_PROCESS_DATA",
    ),
    EntryPoint(
        "compiled_call",
        private.compiled_call,
        executables.compiled_call,
        private.HAVE_EXECUTE,
        "HAVE_EXECUTE",
        private.Compiled,
        "__call__",
    ),
    EntryPoint(
        "mesh_executable_call",
        private.mesh_executable_call,
        executables.mesh_executable_call,
        private.HAVE_EXECUTE,
        "HAVE_EXECUTE",
        private.MeshExecutable,
        "call",
    ),
    EntryPoint(
        "execute_replicated_call",
        private.execute_replicated_call,
        executables.execute_replicated_call,
        private.HAVE_EXECUTE,
        "HAVE_EXECUTE",
        private.ExecuteReplicated,
        "__call__",
    ),
    EntryPoint(
        "results_handler_call",
        private.results_handler_call,
        executables.results_handler_call,
        private.HAVE_RESULTS_HANDLER,
        "HAVE_RESULTS_HANDLER",
        private.ResultsHandler,
        "__call__",
    ),
    EntryPoint(
        "xla_primitive_callable",
        private.xla_primitive_callable,
        bind.xla_primitive_callable,
        private.HAVE_EAGER,
        "HAVE_EAGER",
    ),
    EntryPoint(
        "bind",
        private.primitive_bind,
        bind.bind,
        private.HAVE_EAGER,
        "HAVE_EAGER",
        private.Primitive,
        "bind",
    ),
    *(
        EntryPoint(
            name,
            original,
            accelerated,
            private.HAVE_REPLAY and accelerated is not original,
            "HAVE_REPLAY",
        )
        for name, original, accelerated in (
            ("zeros", private.jnp_zeros, public_functions.zeros),
            ("ones", private.jnp_ones, public_functions.ones),
            ("full", private.jnp_full, public_functions.full),
        )
    ),
    *(
        EntryPoint(name, original, accelerated, private.HAVE_EAGER, "HAVE_EAGER")
        for name, original, accelerated in (
            ("asarray", private.jnp_asarray, array_from_host.asarray),
            ("array", private.jnp_array, array_from_host.array),
        )
    ),
    EntryPoint(
        "getitem",
        private.array_getitem,
        public_functions.getitem,    # the subscript's protocol, whatever its argument is called
        private.HAVE_REPLAY,
        "HAVE_REPLAY",
        private.ArrayImpl,
        "__getitem__",
    ),
    _functions_entry(),
    # All that `jax.jit` and `jax.pjit` do with a function goes through this one.
    EntryPoint(
        "jit",
        private.cpp_pjit,
        jit.cpp_pjit,
        private.HAVE_JIT,
        "HAVE_JIT",
    ),
)


#: Entry points that nobody calls with the arguments of a user's call.
_NOT_CALLED = frozenset(("jit", "xla_primitive_callable", "results_handler_call"))


@cache
def _by_function() -> dict[int, tuple[EntryPoint, Place]]:
    return {
        id(function): (entry, place)
        for entry in ENTRY_POINTS
        if entry.name not in _NOT_CALLED
        for place in entry.places
        for function in (place.original, place.accelerated)
        if function is not None
    }


def entry_point_of(function: Any) -> EntryPoint | None:
    """The entry point that calls of a function come to at once, the reference's or ours."""
    found = _by_function().get(id(function))
    return None if found is None else found[0]


def place_of(function: Any) -> Place:
    """The same for the place. Needs a function of an entry point."""
    return _by_function()[id(function)][1]


def _take_after(place: Place) -> None:
    """Give what replaces the original the attributes that others know of the original.

    These are a cache's own functions, what it wraps, and the name that a method shows.
    """
    if type(place.original) is FunctionType and isinstance(place.accelerated, methods.Method):
        return    # it was made with all that a function shows
    for name in dir(place.original):
        own = not name.startswith("_") or name == "__wrapped__"
        if own and not hasattr(place.accelerated, name):
            setattr(place.accelerated, name, getattr(place.original, name))
    if place.holder is not None:
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(place.accelerated, name, getattr(place.original, name))


def _introduce(places: Iterable[Place]) -> None:
    """Let the replacements show what the originals show, and be known as jaxmarshal's own."""
    for place in places:
        _take_after(place)
        bypassed.put_in_place_of(place.original, place.accelerated)


for _entry in ENTRY_POINTS:
    if _entry.active:
        _introduce(_entry.places)

_lock = threading.RLock()
_installed: set[str] = set()  # what is patched now
_wanted: set[str] = set()  # what `install()` asked for
# What each open `installed()` asked for, and None for each open `uninstalled()`; those that were
# opened later come later. Compared by identity.
_contexts: list[list[list[str] | None]] = []
_refused = False


def refuse() -> None:
    """Leave JAX as it came in this process from now on, whatever the program asks for.

    `compare` does so in its plain run.
    """
    global _refused
    with _lock:
        _refused = True
        apply()


def refused() -> bool:
    """Does JAX stay as it came, whatever the program asks for?"""
    return _refused


def switched_off() -> bool:
    """Does the environment say that nothing is to be installed?"""
    return os.environ.get("JAXMARSHAL", "").lower() in OFF


def bad_switch() -> str | None:
    """What is wrong with the environment's JAXMARSHAL, in words, or None."""
    value = os.environ.get("JAXMARSHAL", "")
    if not value or value.lower() in (*ON, *OFF):
        return None
    return f"JAXMARSHAL={value!r} is neither 'on' nor 'off': it has no effect"


def _namespaces_of_jax() -> list[dict[str, Any]]:
    """The namespaces of the modules of JAX that are loaded now."""
    return [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.startswith("jax")
        and name[3:4] in (".", "")
        and isinstance(module, ModuleType)
    ]


def replace(changes: list[Change]) -> None:
    """Put what is new wherever JAX holds what is old."""
    functions = {id(change.old): change.new for change in changes if change.holder is None}
    if functions:
        methods.replace_values(_namespaces_of_jax(), functions)
    primitive = private.device_put_primitive
    if primitive is not None and id(vars(primitive).get("impl")) in functions:
        primitive.impl = functions[id(primitive.impl)]
    for holder, attribute, old, new in changes:
        if holder is not None and vars(holder).get(attribute) is old:
            methods.set_attribute(holder, attribute, new)


def _selected(only: str | Iterable[str] | None) -> list[str]:
    """The names of entry points, those of libraries included."""
    known = [entry.name for entry in ENTRY_POINTS] + [front.name for front in fronts.FRONTS]
    if only is None:
        return known
    names = [only] if isinstance(only, str) else list(only)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"unknown entry points {unknown}; jaxmarshal has {sorted(known)}"
        )
    return names


def _held() -> set[str]:
    """What is to be installed: the last context that was opened decides."""
    if _refused:
        return set()
    held = set(_wanted)
    for (names,) in _contexts:
        held = set() if names is None else held.union(names)
    return held


def apply() -> None:
    """Patch what `install()` or an open context asks for, and restore everything else."""
    with _lock:
        _apply(_held())
        if _installed:
            bypassed.look_at_all()    # else the first call would, in half a millisecond


def _add_late(module: str) -> None:
    """Add the functions of a module that JAX has just imported to those that are replayed."""
    entry = next(entry for entry in ENTRY_POINTS if entry.name == "functions")
    with _lock:
        places = [Place(*pair) for pair in which_functions.late_functions(module)]
        _introduce(places)
        object.__setattr__(entry, "more", (*entry.more, *places))
        _by_function.cache_clear()
        if entry.name in _installed:
            replace([Change(None, "", place.original, place.accelerated) for place in places])


def _apply(held: set[str]) -> None:
    changes = []
    for entry in ENTRY_POINTS:
        if entry.active and entry.name in held - _installed:
            _installed.add(entry.name)
            changes += [
                Change(place.holder, place.attribute, place.original, place.accelerated)
                for place in entry.places
            ]
        elif entry.name in _installed - held:
            _installed.discard(entry.name)
            changes += [
                Change(place.holder, place.attribute, place.accelerated, place.original)
                for place in entry.places
            ]
    replace(changes)
    array_types.use_installed("bind" in _installed)
    by_libraries = fronts.use_installed(held)
    late.use_installed("functions" in _installed, _add_late)
    jit.use_installed(
        "jit" in _installed, "xla_primitive_callable" in _installed, by_libraries
    )


def install(only: str | Iterable[str] | None = None, *, fuse: bool = True) -> None:
    """Accelerate JAX in this process.

    Args:
      only: names of entry points, or None for all of them.
      fuse: whether calls outside of `jit` that take several steps may come to take them in one
        executable, where that gives the same bits. It holds for all such calls; the last
        `install()` or `installed()` decides.

    Entry points that the installed JAX does not support stay JAX's own (see
    `python -m jaxmarshal doctor`). Installing twice is the same as once. With `JAXMARSHAL=off`
    in the environment it installs nothing and logs one line.

    Raises:
      ValueError: for an unknown name; nothing is changed then.
    """
    names = _selected(only)
    if switched_off():
        logger.warning("JAXMARSHAL=off: jaxmarshal is not installed")
        return
    if bad_switch():
        logger.warning(bad_switch())
    with _lock:
        _wanted.update(names)
        apply()
        fusion.allow(fuse)


def uninstall() -> None:
    """Put every original object back. Without a previous `install()` this does nothing."""
    with _lock:
        _wanted.clear()
        _contexts.clear()
        apply()
        fusion.allow(True)


def installed_names() -> frozenset[str]:
    """The names of the entry points that are installed now."""
    with _lock:
        return frozenset(_installed)


@contextmanager
def _context(names: list[str] | None) -> Iterator[None]:
    """A context that asks for these entry points, which are let go of at its end; None: for none.

    What `install()` asks for inside is let go of too, but where the context asked for none.
    """
    context = [names]
    with _lock:
        before = set(_wanted)
        _contexts.append(context)
        apply()
    try:
        yield
    finally:
        with _lock:
            _contexts[:] = [other for other in _contexts if other is not context]
            if names is not None:
                _wanted.clear()
                _wanted.update(before)
            apply()


@contextmanager
def installed(
    only: str | Iterable[str] | None = None, *, fuse: bool = True
) -> Iterator[None]:
    """A context in which jaxmarshal is installed.

    When it ends, the entry points that were installed before stay installed. The others are
    restored, except those that another open context, in any thread, asked for.

    Args:
      only: names of entry points, or None for all of them.
      fuse: as for `install`; at the end it is what it was before.

    Raises:
      ValueError: for an unknown name.
    """
    names = _selected(only)
    if switched_off():
        install(only)
        names = []
    before = fusion.allowed()
    with _context(names):
        fusion.allow(fuse)
        try:
            yield
        finally:
            fusion.allow(before)


@contextmanager
def uninstalled() -> Iterator[None]:
    """A context in which JAX is as it came, in all threads.

    When it ends, the entry points that were installed before are installed again. An `install()`
    inside takes effect then; an `installed()` inside takes effect at once. `jaxmarshal.device_put`
    and functions made by `jaxmarshal.jit` stay accelerated.
    """
    with _context(None):
        yield
