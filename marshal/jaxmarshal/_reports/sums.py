"""The counts of `counting` as plain data: sums, differences, and calls that are set aside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxmarshal._reports import counting

Counts = dict[str, dict[str, Any]]


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
            if "by_function" in count:
                total["by_function"] = added((total.get("by_function", {}), count["by_function"]))
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
        if "by_function" in count:
            result[name]["by_function"] = less(count["by_function"], old.get("by_function", {}))
    return result


@contextmanager
def set_aside() -> Iterator[None]:
    """A context whose calls are not counted once it has ended, in whatever thread."""
    kept = counting.keep()
    try:
        yield
    finally:
        counting.put_back(kept)
