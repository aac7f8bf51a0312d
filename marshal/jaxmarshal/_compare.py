"""What two recorded runs say when they are laid side by side; plain data and text.

`_record.py` makes the records, `commands/compare.py` runs the script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

#: The names of the two runs.
PLAIN, OURS = "plain", "jaxmarshal"

#: Reasons for which no other way of calling would be fast, see `reasons.py`.
UNAVOIDABLE = frozenset({"context", "no_backend", "trace", "tracer"})

NOTES = (
    "Counting and sampling slow both runs, and the one that runs more Python slows more; "
    "two runs also differ by themselves. `python -m jaxmarshal bench` measures speed.",
    "A call is counted at the outermost entry point, for the first caller outside JAX.",
    "Savings left are estimates: misses × (mean of a missed call − mean of a hit), "
    "without the slowest call of each kind, which does work that is done once.",
)


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
    return site["entry_point"], site["file"], site["line"], site["function"]


def _summary(outcomes: dict[str, Any]) -> dict[str, Any]:
    return {
        "calls": sum(outcome["calls"] for outcome in outcomes.values()),
        "seconds": sum(outcome["seconds"] for outcome in outcomes.values()),
    }


def sites(plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each entry point and call site, the slowest first."""
    before = {_key(site): site["outcomes"] for site in plain}
    after = {_key(site): site["outcomes"] for site in ours}
    fast = _fast_times(before, after)
    rows = []
    for key in before | after:
        outcomes = after.get(key, {})
        misses = {reason: outcomes[reason] for reason in outcomes if reason not in ("hit", "")}
        rows.append(
            dict(zip(("entry_point", "file", "line", "function"), key, strict=True))
            | {
                PLAIN: _summary(before.get(key, {})),
                OURS: _summary(outcomes)
                | {
                    "hits": outcomes["hit"]["calls"] if "hit" in outcomes else 0,
                    "misses": sum(outcome["calls"] for outcome in misses.values()),
                    "misses_by_reason": {
                        reason: outcome["calls"] for reason, outcome in misses.items()
                    },
                },
                "estimated_saving": _saving(misses, fast, key[0]),
            }
        )
    return sorted(rows, key=lambda row: -(row[PLAIN]["seconds"] + row[OURS]["seconds"]))


def _fast_times(before: dict[Any, Any], after: dict[Any, Any]) -> dict[str, float]:
    """The mean time of a hit at each entry point that has any.

    Under the name "" is how many times faster than plain JAX the hits of the script were.
    """
    hits: dict[str, list[Any]] = {}
    plain_time = hit_time = 0.0
    for key, outcomes in after.items():
        if "hit" in outcomes:
            hits.setdefault(key[0], []).append(outcomes["hit"])
            plain = _mean(before.get(key, {}).values())
            if plain is not None:
                plain_time += plain * outcomes["hit"]["calls"]
                hit_time += (_mean([outcomes["hit"]]) or 0.0) * outcomes["hit"]["calls"]
    fast = {name: _mean(found) or 0.0 for name, found in hits.items()}
    if hit_time:
        fast[""] = plain_time / hit_time
    return fast


def _saving(misses: dict[str, Any], fast: dict[str, float], entry_point: str) -> float | None:
    """Seconds that hits instead of these misses might have saved; None where nothing tells."""
    saving = 0.0
    for reason, outcome in misses.items():
        # Each kind of call is missed once, to be recorded.
        calls = outcome["calls"] - (reason == "not_recorded")
        if reason in UNAVOIDABLE or not calls:
            continue
        missed = _mean([outcome]) or 0.0
        if entry_point in fast:
            hit = fast[entry_point]
        elif "" in fast:
            hit = missed / max(fast[""], 1.0)
        else:
            return None
        saving += max(0.0, calls * (missed - hit))
    return saving


def functions(plain: dict[str, Any], ours: dict[str, Any]) -> list[dict[str, Any]]:
    """The time in each function itself, without those that it calls, in both profiles."""
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    for run, profile in ((PLAIN, plain), (OURS, ours)):
        for frame in _frames(profile):
            own = frame["time"] - sum(child["time"] for child in frame["children"])
            # The counting stands at an entry point, and there is no other file to name.
            file = "" if frame["kind"] == "entry point" else frame["file"]
            row = times.setdefault((frame["name"], file, frame["kind"]), {PLAIN: 0.0, OURS: 0.0})
            row[run] += max(own, 0.0)
    rows = [
        {"name": name, "file": file, "kind": kind, **row}
        for (name, file, kind), row in times.items()
    ]
    return sorted(rows, key=lambda row: -(row[PLAIN] + row[OURS]))


def _frames(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [root]
    while waiting:
        frame = waiting.pop()
        yield frame
        waiting += frame["children"]


def short(path: str) -> str:
    """A path for a table: from the current folder, or its last three parts."""
    relative = path.removeprefix(os.getcwd() + os.sep)
    parts = relative.split(os.sep)
    return relative if relative != path or len(parts) <= 4 else "…/" + "/".join(parts[-3:])


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.2f}"


def site_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Head and rows of the table of call sites."""
    table = [
        ["entry point", "call site", "calls", "plain ms", "jaxmarshal ms", "hits", "misses",
         "saving left ms", "by reason"],
    ]  # fmt: skip
    for row in rows:
        plain, ours = row[PLAIN], row[OURS]
        same = plain["calls"] == ours["calls"]
        reasons = ours["misses_by_reason"].items()
        table.append([
            row["entry_point"],
            f"{short(row['file'])}:{row['line']} {row['function']}" if row["file"] else "unknown",
            f"{plain['calls']}" if same else f"{plain['calls']}/{ours['calls']}",
            _milliseconds(plain["seconds"]),
            _milliseconds(ours["seconds"]),
            f"{ours['hits']}",
            f"{ours['misses']}",
            _milliseconds(row["estimated_saving"]),
            ", ".join(f"{reason} {number}" for reason, number in reasons),
        ])
    return table


def function_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Head and rows of the table of functions."""
    table = [["function", "file", "plain ms", "jaxmarshal ms"]]
    for row in rows:
        times = [_milliseconds(row[run]) for run in (PLAIN, OURS)]
        where = short(row["file"]) or f"({row['kind']})"
        table.append([row["name"], where, *times])
    return table


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("/", "").isdigit() or text == "?"


def print_table(title: str, table: list[list[str]]) -> None:
    """On the error output: with rich on a terminal, otherwise as aligned columns."""
    right = [all(_is_number(cell) for cell in column) for column in zip(*table[1:], strict=True)]
    if sys.stderr.isatty():
        try:
            from rich.box import SIMPLE_HEAD
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table
        except ImportError:
            pass
        else:
            shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
            for name, is_right in zip(table[0], right, strict=True):
                shown.add_column(name, justify="right" if is_right else "left", overflow="fold")
            for row in table[1:]:
                shown.add_row(*map(escape, row))
            Console(stderr=True).print(shown)
            return
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(title, file=sys.stderr)
    for row in table:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        print(("  " + "  ".join(cells)).rstrip(), file=sys.stderr)
