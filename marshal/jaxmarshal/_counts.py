"""The counts as plain data: sums, differences, and calls that are set aside.

Counting is C's (`_stats.pyx`), and cannot be undone there. Calls that a tool makes for its own
purpose, such as the runs of a cell that `%%jaxmarshal` compares, are subtracted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxmarshal import _stats

Counts = dict[str, dict[str, Any]]

# What is subtracted, of all counts and of the steps of fast calls; and how often it was dropped.
_aside: tuple[Counts, Counts] = {}, {}
_resets = 0


def added(several: Iterable[Counts]) -> Counts:
    """The sums of the counts of several processes."""
    result: Counts = {}
    for found in several:
        for name, count in found.items():
            total = result.setdefault(name, {"hits": 0, "misses": 0, "misses_by_reason": {}})
            total["hits"] += count["hits"]
            total["misses"] += count["misses"]
            reasons = total["misses_by_reason"]
            for reason, number in count["misses_by_reason"].items():
                reasons[reason] = reasons.get(reason, 0) + number
    return result


def less(counts: Counts, before: Counts) -> Counts:
    """The counts since `before`."""
    result: Counts = {}
    for name, count in counts.items():
        old = before.get(name, {"hits": 0, "misses_by_reason": {}})
        reasons = {
            reason: number - old["misses_by_reason"].get(reason, 0)
            for reason, number in count["misses_by_reason"].items()
            if number > old["misses_by_reason"].get(reason, 0)
        }
        result[name] = {
            "hits": count["hits"] - old["hits"],
            "misses": sum(reasons.values()),
            "misses_by_reason": reasons,
        }
    return result


def _raw() -> tuple[Counts, Counts]:
    return _stats.snapshot(), _stats.steps()


def snapshot() -> Counts:
    """The counts now, without calls that were set aside; as `stats()` returns them."""
    return less(_stats.snapshot(), _aside[0])


def steps() -> Counts:
    """Of those counts, the steps of fast calls; see `_stats.steps`."""
    return less(_stats.steps(), _aside[1])


def reset() -> None:
    """Set every count to zero."""
    global _aside, _resets
    _stats.reset()
    _aside = {}, {}
    _resets += 1


@contextmanager
def set_aside() -> Iterator[None]:
    """A context whose calls `snapshot()` does not show once it has ended, in whatever thread."""
    global _aside
    before, resets = _raw(), _resets
    try:
        yield
    finally:
        if resets != _resets:    # what came before is gone
            before = {}, {}
        new = [less(now, then) for now, then in zip(_raw(), before, strict=True)]
        _aside = added([_aside[0], new[0]]), added([_aside[1], new[1]])
