"""Counting the calls of what a front accelerates: a library's own jitted functions.

Such a function is an object of one class, whose `__call__` is replaced. It leads to a jitted
function in plain JAX, and with jaxmarshal mostly to none; so it is counted itself, in both runs.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from jaxmarshal import fronts
from jaxmarshal._core.context import bypassed
from jaxmarshal._core.entries import watch
from jaxmarshal._jax import imports, patching
from jaxmarshal._tools import call_sites
from jaxmarshal._tools.call_sites import Site
from jaxmarshal.fronts import filtered

#: The entry points that are counted here: what their frames are called in profiles.
NAMES = frozenset((filtered.NAME, *(front.name for front in fronts.FRONTS)))

#: Counts one call of a function: `(call, function, args, kwargs)`.
Counting = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

# By id of a function: a reference that removes it, and what counts its calls.
_counting: dict[int, tuple[weakref.ref[Any], Counting]] = {}


def _counting_of(name: str, counts: str, function: Any) -> Counting:
    """What counts the calls of one function, under its name in profiles; made once."""
    key = id(function)
    known = _counting.get(key)
    if known is None or known[0]() is not function:
        made = _count_calls(call_sites.site_of_function(name, function), counts)
        _counting[key] = known = weakref.ref(function, lambda _: _counting.pop(key, None)), made
    return known[1]


def _count_calls(defined: Site, counts: str) -> Counting:
    def counting(
        call: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        before, mark = call_sites.phases.before(), watch.Mark(counts)
        start = perf_counter_ns()
        try:
            return call(function, *args, **kwargs)
        finally:
            end = perf_counter_ns()
            watch.leave()
            site = defined
            if not site.file:
                site = call_sites.site_of_caller(site.entry_point, site.name, sys._getframe(1))
            call_sites.add(site, before, mark.ending(), start, end)

    call_sites.name_frame(counting, defined)
    return counting


def counted(name: str, call: Callable[..., Any], is_installed: bool) -> Callable[..., Any]:
    """The `__call__` of a class, with outermost calls counted by function, phase and outcome."""
    counts = name if is_installed else "jit"    # what the call leads to says whether it was fast

    @functools.wraps(call)
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        counting = _counting_of(name, counts, self)
        if not watch.enter():
            return call(self, *args, **kwargs)
        return counting(call, self, args, kwargs)

    # Profiles show the frame under this name.
    made: Any = wrapper
    made.__code__ = made.__code__.replace(co_name=name, co_qualname=name)
    return wrapper


def _count_front(front: fronts.Front) -> None:
    place = fronts.place_of(front)
    if place is None:
        return
    holder, original = place
    call = vars(holder)["__call__"]
    wrapper = counted(front.name, call, front.name in fronts.installed_names())
    bypassed.put_in_place_of(original, wrapper)
    setattr(holder, "__call__", wrapper)  # noqa: B010


def count_all() -> None:
    """Count from here on what `jaxmarshal.filter_jit` and libraries make, once these are there.

    Where nothing may be installed, `filter_jit` is its own reference.
    """
    own = filtered.reference_call if patching.refused() else filtered.FilterJit.__call__
    filtered.FilterJit.__call__ = counted(  # type: ignore[method-assign]
        filtered.NAME, own, own is not filtered.reference_call
    )
    for front in fronts.FRONTS:
        if imports.is_imported(front.library):
            _count_front(front)
        else:
            imports.when_imported(front.library, functools.partial(_count_front, front))
