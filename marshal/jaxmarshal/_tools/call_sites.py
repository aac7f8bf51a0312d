"""Wrapping jaxmarshal's entry points, to count their calls or to notice the first one.

Only the command `compare` does so, in the processes that it starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any, NamedTuple

import jax

from jaxmarshal import api
from jaxmarshal._core.context import bypassed
from jaxmarshal._core.entries import jit, watch, which_functions
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import definitions, saving
from jaxmarshal._tools.first_calls import FIRST, STEADY, Phases


class Site(NamedTuple):
    """What calls are counted by.

    For a function that was jitted or compiled ahead of time: its name, and where it is defined. For
    one of JAX's own, and for any other entry point: who called it. What is not known is empty.
    """

    entry_point: str
    name: str
    file: str
    line: int
    function: str
    is_definition: bool = False


class Outcome:
    """Calls that ended alike: how many, how long, and the longest. Times are in nanoseconds."""

    __slots__ = ("calls", "longest", "time")

    def __init__(self) -> None:
        self.calls = self.time = self.longest = 0

    def add(self, time: int) -> None:
        self.calls += 1
        self.time += time
        self.longest = max(self.longest, time)


#: What `Outcome` stands for a call that took JAX's way without being counted as a miss: all calls
#: where jaxmarshal is not installed, and those that failed before anything was decided.
UNCOUNTED = ""

#: By phase and ending.
outcomes: dict[Site, dict[tuple[str, str], Outcome]] = {}

#: The frames in which watched functions are called, by name: where those functions are defined.
frames: dict[str, tuple[str, int]] = {}


_lock = threading.Lock()
phases = Phases(0, None)


def _folder(module: Any) -> str:
    return str(Path(module.__file__).parent) + os.sep


#: The folders of JAX.
JAX = (_folder(jax), _folder(private.jaxlib))

#: The files whose frames are no call sites: JAX, this package, and what calls on others' behalf.
_INNER = (
    *JAX, str(Path(__file__).parents[1]) + os.sep, "<frozen importlib",
    str(contextlib.__file__), str(functools.__file__),
)
_inner: dict[str, bool] = {}


def site_of_caller(entry_point: str, name: str, frame: FrameType | None) -> Site:
    """The innermost frame of the program's own code, from this frame on."""
    while frame is not None:
        code = frame.f_code
        inner = _inner.get(code.co_filename)
        if inner is None:
            inner = _inner[code.co_filename] = code.co_filename.startswith(_INNER)
        if not inner:
            return Site(entry_point, name, code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return Site(entry_point, name, "", 0, "")


def _is_jaxs(file: str) -> bool:
    return file.startswith(JAX)


def _site_of_compiled(compiled: Any) -> Site | None:
    source = private.source_of(compiled)
    if source is None or _is_jaxs(source[1]):
        return None
    return Site("compiled_call", *source, source[0], True)


def site_of_function(entry_point: str, function: Any) -> Site:
    """Where the function is defined that another one was made of; no file where nobody knows."""
    code = definitions.code_of(function, getattr)
    name = definitions.name_of(function, code)
    if code is None:
        return Site(entry_point, name, "", 0, name, True)
    return Site(entry_point, name, code.co_filename, code.co_firstlineno, code.co_qualname, True)


def add(site: Site, before: int | None, ending: str, start: int, end: int) -> None:
    """Count a call that has ended; `before` is what `phases.before()` returned."""
    with _lock:
        phase = phases.of(site, before, start, end)
        found = outcomes.setdefault(site, {}).setdefault((phase, ending), Outcome())
        found.add(end - start)


def _label(name: str, call: Callable[..., Any]) -> str:
    """Where one entry point stands for several functions, a row has the name of the function."""
    if name == "functions" and patching.entry_point_of(call) is not None:
        place = patching.place_of(call)
        return which_functions.name_of(place.original, place.holder, place.attribute)
    label = str(getattr(call, "__qualname__", name))
    return "" if label == name or "." in label or label.startswith("_") else label


def _label_of_first(name: str, first: Any) -> str:
    """The name of an operation, or of a function that is an object: what the method is called on.
    """
    if name == "bind":
        return str(getattr(first, "name", ""))
    return which_functions.name_of_object(first) if name == "functions" else ""


def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The entry point, with its outermost calls counted by site, phase and outcome."""
    label = _label(name, call)

    # The counts are read in both runs, for the work around a call to be the same.
    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not watch.enter():
            return call(*args, **kwargs)
        before, mark = phases.before(), watch.Mark(name)
        start = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            end = perf_counter_ns()
            watch.leave()
            site = _site_of_compiled(args[0]) if name == "compiled_call" and args else None
            called = label if label or not args else _label_of_first(name, args[0])
            site = site or site_of_caller(name, called, sys._getframe(1))
            add(site, before, mark.ending(), start, end)

    return wrapper


def name_frame(call: Any, site: Site) -> None:
    """Have profiles show the frame of `call` under the name of the function that it stands for."""
    name = f"{site.name} ({site.entry_point})"
    if frames.setdefault(name, (site.file, site.line)) != (site.file, site.line):
        name += f" {Path(site.file).name}:{site.line}"
        frames[name] = site.file, site.line
    call.__code__ = call.__code__.replace(co_name=name, co_qualname=name)


def _hook(function: Any) -> Callable[[watch.Pending], Any]:
    """What calls a jitted function and counts that, as `counted` does."""
    defined = site_of_function("jit", function)
    inner = not defined.file or _is_jaxs(defined.file)

    def hook(call: watch.Pending) -> Any:
        if not watch.enter():
            return call()
        before, mark = phases.before(), watch.Mark("jit")
        start = perf_counter_ns()
        try:
            return call()
        finally:
            end = perf_counter_ns()
            watch.leave()
            site = site_of_caller("jit", defined.name, sys._getframe(1)) if inner else defined
            add(site, before, mark.ending(), start, end)

    name_frame(hook, defined)
    return hook


def _watched(_: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """What makes jitted functions, which are watched from then on."""

    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        watch.watch(made, _hook)
        return made

    return wrapper


def count_all(first: Phases) -> None:
    """Count from here on the calls of all entry points, and of all jitted functions."""
    global phases
    phases = first
    first.listen()
    # What jitted functions are called by is seen on the first one, which must not be watched.
    api.jit(lambda: None)
    wrap_all(lambda name, call: (_watched if name == "jit" else counted)(name, call))
    watch.watch_all(_hook)
    atexit.register(watch.release_all)
    # What a report of the script's would measure for that is none of the script's calls.
    saving.of_a_call = lambda name: None    # type: ignore[assignment]

    def unwatched(change: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(change)
        def wrapper(*args: Any) -> Any:
            watch.release_all()
            try:
                return change(*args)
            finally:
                watch.watch_all(_hook)

        return wrapper

    # Both look at what functions are called by.
    jit.use_installed = unwatched(jit.use_installed)
    jit.exclude = unwatched(jit.exclude)


def wrap_all(wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around what stands at each entry point now, JAX's own or jaxmarshal's."""
    installed = patching.installed_names()
    changes = []
    for entry in patching.ENTRY_POINTS:
        for place in entry.places:
            call = place.accelerated if entry.name in installed else place.original
            if call is None:
                continue
            wrapper: Any = wrap(entry.name, call)
            # Profiles show the frame under the entry point's name.
            wrapper.__code__ = wrapper.__code__.replace(co_name=entry.name, co_qualname=entry.name)
            bypassed.put_in_place_of(place.original, wrapper)
            changes.append(patching.Change(place.holder, place.attribute, call, wrapper))
    patching.replace(changes)


def results() -> list[dict[str, Any]]:
    """What was counted so far, as plain data; times in seconds."""
    with _lock:
        return [
            site._asdict()
            | {
                "outcomes": {
                    phase: {
                        ending: {
                            "calls": found.calls,
                            "seconds": found.time / 1e9,
                            "longest": found.longest / 1e9,
                        }
                        for (of, ending), found in endings.items()
                        if of == phase
                    }
                    for phase in (FIRST, STEADY)
                }
            }
            for site, endings in outcomes.items()
        ]


def trace(folder: str) -> None:
    """Take JAX's own profile from the first call of an entry point to the end of the process.

    Not earlier: the profiler starts a backend, and before that the script may still choose one.
    """
    started: list[str] = []

    def start(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not started:
                started.append(name)
                try:
                    jax.profiler.start_trace(folder)
                    atexit.register(jax.profiler.stop_trace)
                except Exception as error:
                    print(f"jaxmarshal compare: no trace: {error}", file=sys.stderr)
            return call(*args, **kwargs)

        return wrapper

    wrap_all(start)
