"""A comparison in words: the headline and the tables of `compare`."""

from __future__ import annotations

import os
import sys
from typing import Any

from jaxmarshal import _compare
from jaxmarshal._profile import OURS, PLAIN

#: What a function was made by, where that is not the name of the entry point.
_KINDS = {
    "compiled_call": "compiled", "equinox_filter_jit": "equinox.filter_jit", "nnx_jit": "nnx.jit",
}  # fmt: skip

#: What stands where there are no calls to time.
NOTHING = "–"


def _counts(rows: list[dict[str, Any]], run: str) -> tuple[int, int]:
    """The calls of a run after the first ones, and the first ones."""
    return sum(row[run]["calls"] for row in rows), sum(row["first"][run]["calls"] for row in rows)


def _first_ones(warmup: dict[str, Any]) -> str:
    """Which calls are first ones, in words."""
    if warmup["seconds"] is not None:
        return f"the calls of the first {warmup['seconds']:g} s"
    return f"the first {warmup['calls']} calls of each row"


def _without_calls(result: dict[str, Any], run: str) -> str:
    """Why a run has no calls to compare."""
    _, first = _counts(result["sites"], run)
    name = "plain run" if run == PLAIN else "jaxmarshal run"
    if run not in result["runs"]:
        return f"there is no {name}"
    if not first:
        return f"the {name} called nothing that jaxmarshal knows"
    return (
        f"all {first} calls of the {name} are first ones: {_first_ones(result['warmup'])}, and "
        "those that trace or compile (see --warmup)"
    )


def _one_side(result: dict[str, Any]) -> str:
    """The headline where not both runs have calls after the first ones."""
    rows = result["sites"]
    reasons = dict.fromkeys(
        _without_calls(result, run) for run in (PLAIN, OURS) if not _counts(rows, run)[0]
    )
    text = "; ".join(reasons) or "no row has calls in both runs"
    found = [
        f"{_counts(rows, run)[0]} calls after the first ones took {_time(rows, run)} ms with "
        f"{'plain JAX' if run == PLAIN else 'jaxmarshal'}"
        for run in (PLAIN, OURS) if _counts(rows, run)[0]
    ]  # fmt: skip
    return ". ".join([*found, f"Nothing to compare: {text}"]) + "."


def _time(rows: list[dict[str, Any]], run: str) -> str:
    return _milliseconds(sum(row[run]["seconds"] for row in rows))


def summary(result: dict[str, Any]) -> str:
    """What jaxmarshal gives in this script, for equally many calls in both runs; or why not."""
    rows = result["sites"]
    both = _compare.common(rows)
    if set(result["runs"]) != {PLAIN, OURS} or not both["calls"]:
        return _one_side(result)
    text = (
        f"{both['calls']:.0f} calls after the first ones took {_milliseconds(both[PLAIN])} ms with "
        f"plain JAX and {_milliseconds(both[OURS])} ms with jaxmarshal; "
        f"{both['hits'] / both['calls']:.1%} of them were hits."
    )
    if all(row[PLAIN]["calls"] == row[OURS]["calls"] for row in rows):
        return text
    plain, ours = (_counts(rows, run)[0] for run in (PLAIN, OURS))
    return (
        f"{text} The plain run made {plain} such calls and the jaxmarshal run {ours}: of each row "
        "the smaller number counts, at the mean time of a call."
    )


def short(path: str) -> str:
    """A path for a table: from the current folder, or its last two parts."""
    relative = path.removeprefix(os.getcwd() + os.sep)
    parts = relative.split(os.sep)
    return relative if relative != path or len(parts) <= 3 else "…/" + "/".join(parts[-2:])


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.2f}"


def _took(found: dict[str, Any]) -> str:
    """The time of the calls of one run, if there are any."""
    return _milliseconds(found["seconds"]) if found["calls"] else NOTHING


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
            f"{ours['hits']}" if ours["calls"] else NOTHING,
            _took(plain),
            _took(ours),
            _milliseconds(row["estimated_saving"]) if ours["calls"] else NOTHING,
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
            _took(plain),
            _took(ours),
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
    first.sort(key=lambda row: -sum(row["first"][run]["seconds"] for run in (PLAIN, OURS)))
    apart = _first_ones(result["warmup"])
    compiling = ", ".join(
        f"{name} {run['profile']['time'] - run['steady_profile']['time']:.3f} s"
        for name, run in result["runs"].items()
    )
    return [
        (f"calls, without tracing, compiling and {apart}", steady, 20, site_table),
        (
            f"apart: imports, tracing, compiling and first calls; together {compiling}",
            first, 5, first_table,
        ),
        ("slowest functions after that, own time", result["functions"], 10, function_table),
    ]


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("/", "").isdigit() or text in ("?", NOTHING)


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
