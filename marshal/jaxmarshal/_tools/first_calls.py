"""Which calls of a recorded run are first ones: those that trace or compile, and those before them.

What a program costs while it starts is not what it costs while it runs, so `compare` keeps the two
apart. JAX says when it traces and compiles (`jax.monitoring`); the rest is counted.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable
from time import perf_counter_ns
from typing import Any

import jax

from jaxmarshal._jax import private

#: Events of tracing, lowering and compiling, each reported when it is over.
COMPILING = "/jax/core/compile/"

#: The names of the two phases.
FIRST, STEADY = "first", "steady"

Interval = tuple[int, int]


class _State(threading.local):
    events = 0


class Phases:
    """Tells first calls from steady ones.

    Attributes:
      intervals: times of the main thread in which JAX compiled or first calls ran, in nanoseconds
        of `time.perf_counter_ns`, in the order in which they ended.
    """

    def __init__(self, calls: int | None, seconds: float | None) -> None:
        """Start now.

        Args:
          calls: how many calls of each row are first ones, or None.
          seconds: how long all calls are first ones, or None.
        """
        self.intervals: list[Interval] = []
        self._calls = calls or 0
        self._end = 0
        if seconds:
            now = perf_counter_ns()
            self._end = now + round(seconds * 1e9)
            self.intervals.append((now, self._end))
        self._seen: Counter[Hashable] = Counter()
        self._state = _State()
        self._main = threading.main_thread()

    def listen(self) -> None:
        """Have JAX report when it traces, lowers and compiles."""
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: Any) -> None:
        if event.startswith(COMPILING):
            self._state.events += 1
            now = perf_counter_ns()
            self._note(now - round(seconds * 1e9), now)

    def _note(self, start: int, end: int) -> None:
        if threading.current_thread() is self._main:
            self.intervals.append((start, end))

    def before(self) -> int | None:
        """What to hand to `of` when the call is over; None for a call inside of a trace."""
        return None if private.is_staging() else self._state.events

    def of(self, row: Hashable, before: int | None, start: int, end: int) -> str:
        """The phase of a call that has ended.

        Args:
          row: what calls are counted by.
          before: what `before()` returned.
          start: when it began, in nanoseconds.
          end: when it ended.
        """
        if before is None:
            return FIRST
        self._seen[row] += 1
        compiled = self._state.events != before
        if compiled or self._seen[row] <= self._calls or start < self._end:
            self._note(start, end)
            return FIRST
        return STEADY


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not overlap, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def within(merged: list[Interval], time: float) -> bool:
    """Is this time in one of the intervals that `union` returned?"""
    at = bisect_right(merged, (time, float("inf"))) - 1
    return at >= 0 and merged[at][0] <= time < merged[at][1]
