"""What two recorded runs say when they are laid side by side, as plain data.

`recording.py` makes the records, `commands/compare.py` runs the script, `profiles.py` has the
profiles, `comparison_text.py` the words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxmarshal._tools.first_calls import FIRST, STEADY
from jaxmarshal._tools.profiles import OURS, PLAIN

#: Reasons for which no other way of calling would be fast, see `reasons.py`.
UNAVOIDABLE = frozenset({"context", "no_backend", "trace", "tracer"})

NOTES = (
    "Counting and sampling slow both runs, and the one that runs more Python slows more; "
    "two runs also differ by themselves. `python -m jaxmarshal bench` measures speed.",
    "A call that leads to others counts once, at the outermost.",
    "`left ms` is an estimate: what hits would save where calls miss now. First calls are not in "
    "it.",
)

_KEY = ("entry_point", "name", "file", "line", "function", "is_definition")


def _mean(outcomes: Iterable[dict[str, Any]]) -> float | None:
    """Seconds a call, without the slowest of each outcome where there are others."""
    calls = seconds = 0
    for outcome in outcomes:
        if outcome["calls"] > 1:
            calls += outcome["calls"] - 1
            seconds += outcome["seconds"] - outcome["longest"]
        else:
            calls += 1
            seconds += outcome["seconds"]
    return seconds / calls if calls else None


def _key(site: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(site[name] for name in _KEY)


def _summary(outcomes: dict[str, Any]) -> dict[str, Any]:
    return {
        "calls": sum(outcome["calls"] for outcome in outcomes.values()),
        "seconds": sum(outcome["seconds"] for outcome in outcomes.values()),
    }


def _phase(sites: list[dict[str, Any]], phase: str) -> dict[Any, Any]:
    return {_key(site): site["outcomes"][phase] for site in sites}


def _misses(outcomes: dict[str, Any]) -> dict[str, Any]:
    return {reason: outcomes[reason] for reason in outcomes if reason not in ("hit", "")}


def sites(plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each function and call site, the slowest first: those with steady calls before.

    `plain`, `jaxmarshal` and `estimated_saving` are about steady calls, `first` about the others.
    """
    before, after = _phase(plain, STEADY), _phase(ours, STEADY)
    first_before, first_after = _phase(plain, FIRST), _phase(ours, FIRST)
    ratios = _ratios(before, after)
    rows = []
    for key in first_before | first_after:
        outcomes = after.get(key, {})
        misses = _misses(outcomes)
        needed = _summary(before.get(key, {}))
        saving = _saving(outcomes, ratios, key[0])
        if saving is not None and needed["calls"]:
            saving = min(saving, needed["seconds"])
        rows.append(
            dict(zip(_KEY, key, strict=True))
            | {
                PLAIN: needed,
                OURS: _summary(outcomes)
                | {
                    "hits": outcomes["hit"]["calls"] if "hit" in outcomes else 0,
                    "misses": sum(outcome["calls"] for outcome in misses.values()),
                    "misses_by_reason": {
                        reason: outcome["calls"] for reason, outcome in misses.items()
                    },
                },
                "first": {
                    PLAIN: _summary(first_before.get(key, {})),
                    OURS: _summary(first_after.get(key, {})),
                },
                "estimated_saving": saving,
            }
        )
    return sorted(rows, key=lambda row: (-_time(row), -_time(row["first"])))


def _time(row: dict[str, Any]) -> float:
    return float(row[PLAIN]["seconds"] + row[OURS]["seconds"])


def _ratios(before: dict[Any, Any], after: dict[Any, Any]) -> dict[str, float]:
    """How many times faster than plain JAX the hits of each entry point are; of all, under ""."""
    times: dict[str, tuple[float, float]] = {}
    for key, outcomes in after.items():
        plain = _mean(before.get(key, {}).values())
        if "hit" not in outcomes or plain is None:
            continue
        calls = outcomes["hit"]["calls"]
        hit = _mean([outcomes["hit"]]) or 0.0
        for name in (key[0], ""):
            slow, fast = times.get(name, (0.0, 0.0))
            times[name] = slow + plain * calls, fast + hit * calls
    return {name: slow / fast for name, (slow, fast) in times.items() if fast}


def _saving(outcomes: dict[str, Any], ratios: dict[str, float], entry_point: str) -> float | None:
    """Seconds that hits instead of these misses might have saved; None where nothing tells."""
    hit = _mean([outcomes["hit"]]) if "hit" in outcomes else None
    ratio = ratios.get(entry_point, ratios.get(""))
    saving = 0.0
    for reason, outcome in _misses(outcomes).items():
        # Each kind of call is missed once, to be recorded.
        calls = outcome["calls"] - (reason == "not_recorded")
        if reason in UNAVOIDABLE or not calls:
            continue
        missed = _mean([outcome]) or 0.0
        if hit is not None:
            fast = hit
        elif ratio is not None:
            fast = missed / max(ratio, 1.0)
        else:
            return None
        saving += max(0.0, calls * (missed - fast))
    return saving


def common(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What both runs did: the calls of each row that both made, at the mean time of a call.

    A script that runs for some time, or is interrupted, makes more calls in one run.

    Returns:
      `calls`, `hits`, and the seconds of the runs by their names.
    """
    total = {"calls": 0.0, "hits": 0.0, PLAIN: 0.0, OURS: 0.0}
    for row in rows:
        calls = min(row[PLAIN]["calls"], row[OURS]["calls"])
        if not calls:
            continue
        total["calls"] += calls
        total["hits"] += row[OURS]["hits"] * calls / row[OURS]["calls"]
        for run in (PLAIN, OURS):
            total[run] += row[run]["seconds"] * calls / row[run]["calls"]
    return total
