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

from jaxmarshal import _count, _install, _rules, _watch, fronts
from jaxmarshal._count import Site
from jaxmarshal.fronts import filtered

#: The entry points that are counted here: what their frames are called in profiles.
NAMES = frozenset((filtered.NAME, *(front.name for front in fronts.FRONTS)))

# By id of a function: a reference that removes it, and its site.
_sites: dict[int, tuple[weakref.ref[Any], Site]] = {}


def _site_of(entry_point: str, function: Any) -> Site:
    """Where the function is defined that the user handed to the library; looked up once."""
    key = id(function)
    known = _sites.get(key)
    if known is None:
        site = _count.site_of_function(entry_point, function)
        _sites[key] = known = weakref.ref(function, lambda _: _sites.pop(key, None)), site
    return known[1]


def counted(name: str, call: Callable[..., Any], is_installed: bool) -> Callable[..., Any]:
    """The `__call__` of a class, with outermost calls counted by function, phase and outcome."""
    counts = name if is_installed else "jit"    # what the call leads to says whether it was fast

    @functools.wraps(call)
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _watch.enter():
            return call(self, *args, **kwargs)
        before, mark = _count.phases.before(), _watch.Mark(counts)
        start = perf_counter_ns()
        try:
            return call(self, *args, **kwargs)
        finally:
            end = perf_counter_ns()
            _watch.leave()
            site = _site_of(name, self)
            if not site.file:
                site = _count.site_of_caller(name, site.name, sys._getframe(1))
            _count.add(site, before, mark.ending(), start, end)

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
    _rules.put_in_place_of(original, wrapper)
    setattr(holder, "__call__", wrapper)  # noqa: B010


def count_all() -> None:
    """Count from here on what `jaxmarshal.filter_jit` and libraries make, once these are there.

    Where nothing may be installed, `filter_jit` is its own reference.
    """
    own = filtered.reference_call if _install.refused() else filtered.FilterJit.__call__
    filtered.FilterJit.__call__ = counted(  # type: ignore[method-assign]
        filtered.NAME, own, own is not filtered.reference_call
    )
    for front in fronts.FRONTS:
        if fronts.is_imported(front.library):
            _count_front(front)
        else:
            fronts.when_imported(front.library, functools.partial(_count_front, front))
