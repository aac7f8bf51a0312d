"""Measurements in processes of their own: of a case, and of a side.

A program installs once, or never. `rows_of_sides` measures that: each process is of one side, and
calls one case after the other. Where sides take turns in one process, each turn of jaxmarshal's
begins with changed classes, and code of both sides competes for the processor's caches.

Python 3.13 gives a class a thousand versions in the life of a process. Each `install()` and each
`uninstall()` uses up one of them; after the last one every lookup of an attribute of an array walks
through its base classes, on all sides. A program installs once and never sees that; a benchmark,
whose sides take turns, is there after two cases.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

from jaxmarshal import install, stats
from jaxmarshal._jax import patching
from jaxmarshal.benchmarks import measure, never_slower
from jaxmarshal.benchmarks.case import Case

VERSIONS_END = sys.version_info >= (3, 13)    # a class runs out of versions in one process

#: Warm calls before a side is measured, at most: what never repeats is left alone after thousands.
WARM_UP = 6000
#: Processes of each side.
PROCESSES = 8


def _measure_named(group: str, name: str, seconds: float) -> dict[str, Any]:
    """`measure.measure` of the case with this name; what a new process does."""
    return measure.measure(group, never_slower.case_for_new_process(group, name), seconds)


def measure_apart(group: str, case: Case, seconds: float) -> dict[str, Any]:
    """`measure.measure`, in a new process where classes run out of versions.

    Raises:
      NotHere, WrongPath: as there.
    """
    if not VERSIONS_END:
        return measure.measure(group, case, seconds)
    return measure.in_new_process(_measure_named, group, case.name, seconds)


class _Warm(NamedTuple):
    """What one process found out about one side of a case: seconds of a call, and what counted."""

    seconds: float
    entry: str
    hits: int
    misses: int


def _one_side(
    side: str, names: dict[str, tuple[str, ...]], seconds: float
) -> list[_Warm | str]:
    """About each case, or why it cannot be measured; what a new process does."""
    patching.uninstall()
    if side == "jaxmarshal":
        install()
    found: list[_Warm | str] = []
    for _, case in never_slower.select(names):
        try:
            found.append(_warm_call(side, case, seconds))
        except measure.NotHere as error:
            found.append(str(error))
    return found


def _warm_call(side: str, case: Case, seconds: float) -> _Warm:
    """The median of rounds, in processor time, after other calls for twice as long at most.

    Raises:
      NotHere: it cannot be measured on this backend.
    """
    sides = measure.build(case)
    call = getattr(sides, side)
    with sides.context():
        called = 0
        start = time.perf_counter()
        while called < WARM_UP and time.perf_counter() - start < 2 * seconds:
            call()
            called += 1
        number = max(3, int(measure.ROUND * called / (time.perf_counter() - start)))
        gc.collect()
        before = stats()
        rounds: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(rounds) < never_slower.ROUNDS:
            rounds.append(never_slower.processor_seconds(call, number))
        return _Warm(median(rounds), *never_slower.counted(case, before, stats()))


def rows_of_sides(
    names: dict[str, tuple[str, ...]], seconds: float, show: Callable[[str], None]
) -> Iterator[tuple[str, never_slower.Row | None, str]]:
    """Like `never_slower.run`, each side in processes of its own, which take turns.

    Args:
      names: the cases by group.
      seconds: of each case in each process.
      show: called with a text when a process begins.
    """
    found: dict[str, list[list[_Warm | str]]] = {"reference": [], "jaxmarshal": []}
    order = list(found)
    for number in range(PROCESSES):
        for side in order:
            show(f"process {number + 1} of {PROCESSES}: {side}")
            found[side].append(measure.in_new_process(_one_side, side, names, seconds))
        order.reverse()
    for place, (group, case) in enumerate(never_slower.select(names)):
        theirs, ours = ([process[place] for process in found[side]] for side in found)
        yield f"{group}: {case.name}", *_row(group, case, theirs, ours)


def _row(
    group: str, case: Case, theirs: list[Any], ours: list[Any]
) -> tuple[never_slower.Row | None, str]:
    """The row of a case, of all that processes found out about it; or None, and why."""
    reasons = [result for result in (*theirs, *ours) if isinstance(result, str)]
    if reasons:
        return None, reasons[0]
    ratio, error = never_slower.ratio_of(
        [result.seconds for result in theirs], [result.seconds for result in ours]
    )
    hits, misses = sum(result.hits for result in ours), sum(result.misses for result in ours)
    return never_slower.Row(group, case.name, ours[0].entry, ratio, error, hits, misses), ""
