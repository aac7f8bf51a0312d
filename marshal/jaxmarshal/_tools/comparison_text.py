"""A comparison in words: the headline and the tables of `compare`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Container
from functools import partial
from typing import Any, NamedTuple

from jaxmarshal._reports.definitions import short
from jaxmarshal._tools import comparison
from jaxmarshal._tools.profiles import OURS, PLAIN
from jaxmarshal.reasons import PUBLIC, Reason, advice_for, reason_for

#: What a function was made by, where that is not the name of the entry point.
_KINDS = {
    "compiled_call": "compiled", "equinox_filter_jit": "equinox.filter_jit", "nnx_jit": "nnx.jit",
}  # fmt: skip

#: How much of a place tables show.
WIDE, NARROWER, NARROWEST = range(3)
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
    both = comparison.common(rows)
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


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.2f}"


def _took(found: dict[str, Any]) -> str:
    """The time of the calls of one run, if there are any."""
    return _milliseconds(found["seconds"]) if found["calls"] else NOTHING


def _calls(plain: int, ours: int) -> str:
    return f"{plain}" if plain == ours else f"{plain}/{ours}"


def call(row: dict[str, Any], width: int = WIDE) -> str:
    """What is called, as a person writes it."""
    if row["entry_point"] == "functions" and width == NARROWEST:
        return row["name"] or "functions"
    if row["name"]:
        return f"{row['name']} ({_KINDS.get(row['entry_point'], row['entry_point'])})"
    return str(row["entry_point"])


def place(row: dict[str, Any], width: int = WIDE) -> str:
    """Where it is defined, or who calls it; narrower ones leave out folders, then the caller."""
    if not row["file"]:
        return "unknown"
    where = f"{short(row['file'], width != WIDE)}:{row['line']}"
    if row["is_definition"] or width == NARROWEST:
        return where
    function = row["function"].rsplit("<locals>.", 1)[-1]
    return f"{where}, in {function}"


def site_table(rows: list[dict[str, Any]], width: int = WIDE) -> list[list[str]]:
    """Head and rows of the table of calls."""
    table = [
        ["call", "defined at, or called at", "calls", "hits", "JAX ms", "jaxmarshal ms", "left ms",
         "why not fast"],
    ]  # fmt: skip
    for row in rows:
        plain, ours = row[PLAIN], row[OURS]
        reasons = sorted(ours["misses_by_reason"].items(), key=lambda item: -item[1])
        table.append([
            call(row, width),
            place(row, width),
            _calls(plain["calls"], ours["calls"]),
            f"{ours['hits']}" if ours["calls"] else NOTHING,
            _took(plain),
            _took(ours),
            _milliseconds(row["estimated_saving"]) if ours["calls"] else NOTHING,
            ", ".join(f"{reason} {number}" for reason, number in reasons),
        ])
    return table


def first_table(rows: list[dict[str, Any]], width: int = WIDE) -> list[list[str]]:
    """Head and rows of the table of first calls."""
    table = [["call", "defined at, or called at", "calls", "JAX ms", "jaxmarshal ms"]]
    for row in rows:
        plain, ours = (row["first"][run] for run in (PLAIN, OURS))
        table.append([
            call(row, width),
            place(row, width),
            _calls(plain["calls"], ours["calls"]),
            _took(plain),
            _took(ours),
        ])
    return table


def function_table(
    rows: list[dict[str, Any]], width: int = WIDE, runs: Container[str] = (PLAIN, OURS)
) -> list[list[str]]:
    """Head and rows of the table of functions."""
    table = [["function", "file", "JAX ms", "jaxmarshal ms"]]
    for row in rows:
        times = [_milliseconds(row[run]) if run in runs else NOTHING for run in (PLAIN, OURS)]
        where = short(row["file"], width != WIDE) or f"({row['kind']})"
        table.append([row["name"], where, *times])
    return table


def advice(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the reasons in these rows mean and what to do about them: (of what, text)."""
    return advice_for(
        _advice(row, name, misses)
        for row in rows
        for name, misses in row[OURS]["misses_by_reason"].items()
    )


def _advice(row: dict[str, Any], name: str, misses: int) -> tuple[str, Reason]:
    """Of what a reason is told, and the reason: of this row alone, where its many misses say so."""
    entry_point = row["entry_point"]
    reason = reason_for(entry_point, name, row[OURS]["hits"], misses, one_function=True)
    if reason == reason_for(entry_point, name):
        return PUBLIC.get(entry_point, entry_point), reason
    return f"{call(row)} at {place(row)}", reason


class Table(NamedTuple):
    """A table of a comparison.

    Attributes:
      title: what is in it.
      rows: all of them.
      most: how many are printed.
      make: head and rows as text, of some rows and a width.
      has_reasons: does it say why calls were not fast?
    """

    title: str
    rows: list[dict[str, Any]]
    most: int
    make: Callable[..., list[list[str]]]
    has_reasons: bool = False


def tables(result: dict[str, Any]) -> list[Table]:
    """The tables of a comparison."""
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
        Table(f"calls, without tracing, compiling and {apart}", steady, 20, site_table, True),
        Table(
            f"apart: imports, tracing, compiling and first calls; together {compiling}",
            first, 5, first_table,
        ),
        Table(
            "slowest functions after that, own time", result["functions"], 10,
            partial(function_table, runs=result["runs"]),
        ),
    ]


# --- On the error output -------------------------------------------------------------------------


def print_table(table: Table) -> None:
    """With rich on a terminal, otherwise as aligned columns; then what its reasons mean."""
    if not table.rows:
        print(f"{table.title}: none", file=sys.stderr)
        return
    rows = table.rows[: table.most]
    if not (sys.stderr.isatty() and _print_with_rich(table, rows)):
        _print_aligned(table.title, table.make(rows))
    if len(table.rows) > table.most:
        print(f"  and {len(table.rows) - table.most} more, see --json", file=sys.stderr)
    for name, text in advice(rows) if table.has_reasons else ():
        print_text(f"{name}: {text}")


def print_text(text: str) -> None:
    """One line, or as many as a terminal of this width needs."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(text, columns - 1, subsequent_indent="  ", break_on_hyphens=False)
    print(text, file=sys.stderr)


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("/", "").isdigit() or text in ("?", NOTHING)


def _are_numbers(lines: list[list[str]]) -> list[bool]:
    """Which columns are numbers, which stand to the right."""
    return [all(map(_is_number, column)) for column in zip(*lines[1:], strict=True)]


def _print_aligned(title: str, lines: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = _are_numbers(lines)
    print(title, file=sys.stderr)
    for line in lines:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ]
        print(("  " + "  ".join(cells)).rstrip(), file=sys.stderr)


def _print_with_rich(table: Table, rows: list[dict[str, Any]]) -> bool:
    """Print the widest form that fits the terminal; False where rich is not installed."""
    try:
        from rich.console import Console
        from rich.measure import Measurement
    except ImportError:
        return False
    console = Console(stderr=True)
    unlimited = console.options.update(max_width=sys.maxsize)
    for width in (WIDE, NARROWER, NARROWEST):
        shown = _rich_table(table.title, table.make(rows, width), width)
        if Measurement.get(console, unlimited, shown).maximum <= console.width:
            break
    console.print(shown)
    return True


def _rich_table(title: str, lines: list[list[str]], width: int) -> Any:
    """Numbers and places stay whole; where room is short, names and reasons are broken at spaces.
    """
    from rich import box, markup, table

    shown = table.Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for number, (name, is_right) in enumerate(zip(lines[0], _are_numbers(lines), strict=True)):
        shown.add_column(
            name if width == WIDE else name.replace(", or", ",\nor").replace(" ms", "\nms"),
            justify="right" if is_right else "left",
            overflow="fold",
            no_wrap=is_right or number == 1,
        )
    for line in lines[1:]:
        shown.add_row(*map(markup.escape, line))
    return shown
