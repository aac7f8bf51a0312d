"""What two recorded runs say when they are laid side by side; plain data and text.

`_record.py` makes the records, `commands/compare.py` runs the script, `_profile.py` has the
profiles.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from jaxmarshal._phases import FIRST, STEADY
from jaxmarshal._profile import OURS, PLAIN

#: Reasons for which no other way of calling would be fast, see `reasons.py`.
UNAVOIDABLE = frozenset({"context", "no_backend", "trace", "tracer"})

NOTES = (
    "Counting and sampling slow both runs, and the one that runs more Python slows more; "
    "two runs also differ by themselves. `python -m jaxmarshal bench` measures speed.",
    "A call that leads to others counts once, at the outermost.",
    "`left ms` is an estimate: what hits would save where calls miss now. First calls are not in "
    "it.",
)

#: What a function was made by, where that is not the name of the entry point.
_KINDS = {
    "compiled_call": "compiled", "equinox_filter_jit": "equinox.filter_jit", "nnx_jit": "nnx.jit",
}  # fmt: skip

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
        rows.append(
            dict(zip(_KEY, key, strict=True))
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
                "first": {
                    PLAIN: _summary(first_before.get(key, {})),
                    OURS: _summary(first_after.get(key, {})),
                },
                "estimated_saving": _saving(outcomes, ratios, key[0]),
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


def summary(result: dict[str, Any]) -> str:
    """One sentence: what jaxmarshal gives in this script."""
    rows, runs = result["sites"], result["runs"]
    calls = {run: sum(row[run]["calls"] for row in rows) for run in (PLAIN, OURS)}
    if set(runs) != {PLAIN, OURS} or not all(calls.values()):
        return "There are no calls to compare."
    seconds = [sum(row[run]["seconds"] for row in rows) for run in (PLAIN, OURS)]
    fast = sum(row[OURS]["hits"] for row in rows) / calls[OURS]
    return (
        f"{calls[OURS]} calls after the first ones took {_milliseconds(seconds[0])} ms with plain "
        f"JAX and {_milliseconds(seconds[1])} ms with jaxmarshal; {fast:.1%} of them were hits."
    )


# --- Text ----------------------------------------------------------------------------------------


def short(path: str) -> str:
    """A path for a table: from the current folder, or its last two parts."""
    relative = path.removeprefix(os.getcwd() + os.sep)
    parts = relative.split(os.sep)
    return relative if relative != path or len(parts) <= 3 else "…/" + "/".join(parts[-2:])


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.2f}"


def _calls(plain: int, ours: int) -> str:
    return f"{plain}" if plain == ours else f"{plain}/{ours}"


def call(row: dict[str, Any]) -> str:
    """What is called, as a person writes it."""
    if row["name"]:
        return f"{row['name']} ({_KINDS.get(row['entry_point'], row['entry_point'])})"
    return str(row["entry_point"])


def place(row: dict[str, Any]) -> str:
    """Where it is defined, or who calls it."""
    if not row["file"]:
        return "unknown"
    where = f"{short(row['file'])}:{row['line']}"
    if row["is_definition"]:
        return where
    function = row["function"].rsplit("<locals>.", 1)[-1]
    return f"{where}, in {function}"


def site_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Head and rows of the table of calls."""
    table = [
        ["call", "defined at, or called at", "calls", "hits", "JAX ms", "jaxmarshal ms", "left ms",
         "why not fast"],
    ]  # fmt: skip
    for row in rows:
        plain, ours = row[PLAIN], row[OURS]
        reasons = sorted(ours["misses_by_reason"].items(), key=lambda item: -item[1])
        table.append([
            call(row),
            place(row),
            _calls(plain["calls"], ours["calls"]),
            f"{ours['hits']}",
            _milliseconds(plain["seconds"]),
            _milliseconds(ours["seconds"]),
            _milliseconds(row["estimated_saving"]),
            ", ".join(f"{reason} {number}" for reason, number in reasons),
        ])
    return table


def first_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Head and rows of the table of first calls."""
    table = [["call", "defined at, or called at", "calls", "JAX ms", "jaxmarshal ms"]]
    for row in rows:
        plain, ours = (row["first"][run] for run in (PLAIN, OURS))
        table.append([
            call(row),
            place(row),
            _calls(plain["calls"], ours["calls"]),
            _milliseconds(plain["seconds"]),
            _milliseconds(ours["seconds"]),
        ])
    return table


def function_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Head and rows of the table of functions."""
    table = [["function", "file", "JAX ms", "jaxmarshal ms"]]
    for row in rows:
        times = [_milliseconds(row[run]) for run in (PLAIN, OURS)]
        where = short(row["file"]) or f"({row['kind']})"
        table.append([row["name"], where, *times])
    return table


def tables(result: dict[str, Any]) -> list[tuple[str, list[Any], int, Any]]:
    """The tables of a comparison: title, rows, how many of them are printed, what makes the text.
    """
    rows = result["sites"]
    steady = [row for row in rows if row[PLAIN]["calls"] or row[OURS]["calls"]]
    first = [row for row in rows if any(row["first"][run]["calls"] for run in (PLAIN, OURS))]
    first.sort(key=lambda row: -_time(row["first"]))
    calls, seconds = result["warmup"]["calls"], result["warmup"]["seconds"]
    apart = f"{seconds} s" if seconds is not None else f"{calls} calls of each row"
    compiling = ", ".join(
        f"{name} {run['profile']['time'] - run['steady_profile']['time']:.3f} s"
        for name, run in result["runs"].items()
    )
    return [
        (f"calls, without tracing, compiling and the first {apart}", steady, 20, site_table),
        (
            f"apart: imports, tracing, compiling and first calls; together {compiling}",
            first, 5, first_table,
        ),
        ("slowest functions after that, own time", result["functions"], 10, function_table),
    ]


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
