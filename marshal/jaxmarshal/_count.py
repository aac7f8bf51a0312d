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

from jaxmarshal import _install, _reference, api


class Site(NamedTuple):
    """Who called which entry point; file, line and function are empty where nobody is known."""

    entry_point: str
    file: str
    line: int
    function: str


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

outcomes: dict[Site, dict[str, Outcome]] = {}


class _State(threading.local):
    inside = False


_state = _State()
_lock = threading.Lock()


def _folder(module: Any) -> str:
    return str(Path(module.__file__).parent) + os.sep


#: The folders of JAX.
JAX = (_folder(jax), _folder(_reference.jaxlib))

#: The files whose frames are no call sites: JAX, this package, and what calls on others' behalf.
_INNER = (
    *JAX, str(Path(__file__).parent) + os.sep, "<frozen importlib",
    str(contextlib.__file__), str(functools.__file__),
)
_inner: dict[str, bool] = {}


def _caller(entry_point: str, frame: FrameType | None) -> Site:
    while frame is not None:
        code = frame.f_code
        inner = _inner.get(code.co_filename)
        if inner is None:
            inner = _inner[code.co_filename] = code.co_filename.startswith(_INNER)
        if not inner:
            return Site(entry_point, code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return Site(entry_point, "", 0, "")


def _ending(before: dict[str, Any], after: dict[str, Any]) -> str:
    """How one call ended, from the counts of its entry point: hit, a reason, or UNCOUNTED."""
    if after["hits"] != before["hits"]:
        return "hit"
    old = before["misses_by_reason"]
    for reason, number in after["misses_by_reason"].items():
        if number != old.get(reason, 0):
            return str(reason)
    return UNCOUNTED


def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The entry point, with its outermost calls counted by call site and outcome."""

    # The counts are read in both runs, for the work around a call to be the same.
    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _state.inside:
            return call(*args, **kwargs)
        _state.inside = True
        before = api.stats()
        start = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            time = perf_counter_ns() - start
            _state.inside = False
            ending = _ending(before[name], api.stats()[name])
            site = _caller(name, sys._getframe(1))
            with _lock:
                outcomes.setdefault(site, {}).setdefault(ending, Outcome()).add(time)

    return wrapper


def wrap_all(wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around what stands at each entry point now, JAX's own or jaxmarshal's."""
    installed = _install.installed_names()
    changes = []
    for entry in _install.ENTRY_POINTS:
        call = entry.accelerated if entry.name in installed else entry.original
        if call is None:
            continue
        wrapper: Any = wrap(entry.name, call)
        # Profiles show the frame under the entry point's name.
        wrapper.__code__ = wrapper.__code__.replace(co_name=entry.name, co_qualname=entry.name)
        changes.append((entry, call, wrapper))
    _install.replace(changes)


def results() -> list[dict[str, Any]]:
    """What was counted so far, as plain data; times in seconds."""
    with _lock:
        return [
            site._asdict()
            | {
                "outcomes": {
                    ending: {
                        "calls": found.calls,
                        "seconds": found.time / 1e9,
                        "longest": found.longest / 1e9,
                    }
                    for ending, found in endings.items()
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
