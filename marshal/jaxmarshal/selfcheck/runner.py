"""Running the checks: each program twice, and what was seen compared."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jaxmarshal import api
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import counting
from jaxmarshal.selfcheck.registry import CHECKS, Check, Recorder
from jaxmarshal.selfcheck.world import World

#: Longest text of one side of a difference.
LONGEST = 400


@dataclass
class Result:
    """What became of one check.

    Attributes:
      check: which one.
      outcome: `same`, `different`, `failed` (the program could not run with plain JAX, so that
        nothing was compared) or `inactive` (no entry point of it is accelerated with this JAX).
      observations: how many were compared.
      hits: fast calls of the entry points that were installed.
      misses: by reason, the calls that went to JAX itself.
      detail: the first difference, or why the check failed.
      lacking: parts that were left out because plain JAX cannot do them here.
    """

    check: Check
    outcome: str
    observations: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)
    detail: str = ""
    lacking: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "name": self.check.name,
            "about": self.check.about,
            "entry_points": list(self.check.entry_points),
            "trap": self.check.trap,
            "outcome": self.outcome,
            "observations": self.observations,
            "hits": self.hits,
            "misses_by_reason": self.misses,
            "detail": self.detail,
            "lacking": self.lacking,
        }


def passed(results: Iterable[Result]) -> bool:
    """Is there nothing to report?"""
    return all(result.outcome in ("same", "inactive") for result in results)


def uncovered(results: Iterable[Result]) -> list[str]:
    """The active entry points none of whose own checks had a fast call."""
    fast = {
        name
        for result in results
        for name in result.check.entry_points
        if result.hits.get(name)
    }
    return [e.name for e in patching.ENTRY_POINTS if e.active and e.name not in fast]


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def first_difference(expected: Any, found: Any) -> tuple[str, str]:
    """The smallest parts at which two observations differ, as text."""
    if (
        isinstance(expected, (tuple, list))
        and type(expected) is type(found)
        and len(expected) == len(found)
    ):
        for one, two in zip(expected, found, strict=True):
            if not _equal(one, two):
                return first_difference(one, two)
    if isinstance(expected, dict) and isinstance(found, dict) and list(expected) == list(found):
        for key in expected:
            if not _equal(expected[key], found[key]):
                one, two = first_difference(expected[key], found[key])
                return f"{key}: {one}", f"{key}: {two}"
    return _text(expected), _text(found)


def _equal(expected: Any, found: Any) -> bool:
    try:
        return bool(expected == found)
    except Exception:
        return False


def _compare(
    expected: list[tuple[str, Any]], found: list[tuple[str, Any]], failure: str
) -> str:
    """The first difference between what was seen, or nothing; `failure` ended the second list."""
    for (about, one), (about_too, two) in zip(expected, found, strict=False):
        if about != about_too or not _equal(one, two):
            wanted, got = first_difference(one, two)
            return f"{about}: JAX: {wanted}; jaxmarshal: {got}"
    if failure:
        last = found[-1][0] if found else "the start"
        return f"after {last}: jaxmarshal raised {failure}"
    if len(expected) != len(found):
        return f"{len(expected)} observations with JAX, {len(found)} with jaxmarshal"
    return ""


def _see(check: Check, accelerated: bool) -> tuple[Recorder, str]:
    """What a program saw, and how it failed, if it did."""
    record = Recorder()
    failure = ""
    try:
        check.program(World(accelerated), record)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    gc.collect()
    return record, failure


def _counts(before: dict, after: dict) -> tuple[dict[str, int], dict[str, int]]:
    """Hits by entry point and misses by reason, between two snapshots of the counts."""
    hits: dict[str, int] = {}
    misses: dict[str, int] = {}
    for name, counts in after.items():
        if number := counts["hits"] - before[name]["hits"]:
            hits[name] = number
        for reason, total in counts["misses_by_reason"].items():
            if number := total - before[name]["misses_by_reason"].get(reason, 0):
                misses[reason] = misses.get(reason, 0) + number
    return hits, misses


def _run_one(check: Check) -> Result:
    active = {entry.name for entry in patching.ENTRY_POINTS if entry.active}
    if not active or (check.entry_points and not active.intersection(check.entry_points)):
        return Result(check, "inactive", detail=private.why_not_supported() or "")
    patching.uninstall()
    expected, failure = _see(check, accelerated=False)
    if failure:
        return Result(check, "failed", len(expected.seen), detail=f"with plain JAX: {failure}")
    api.clear()
    before = counting.snapshot()
    patching.install(check.entry_points or None)
    try:
        found, failure = _see(check, accelerated=True)
    finally:
        patching.uninstall()
    difference = _compare(expected.seen, found.seen, failure)
    hits, misses = _counts(before, counting.snapshot())
    outcome = "different" if difference else "same"
    return Result(
        check, outcome, len(expected.seen), hits, misses, difference, expected.lacking
    )


def run(checks: Iterable[Check] | None = None) -> list[Result]:
    """Perform checks, all by default, one after the other.

    What is installed in this process is taken out for as long as this takes, and `clear_caches()`
    is called on the way. `JAXMARSHAL=off` has to be out of the environment.
    """
    before = patching.installed_names()
    try:
        return [_run_one(check) for check in (CHECKS if checks is None else checks)]
    finally:
        patching.uninstall()
        if before:
            patching.install(before)
