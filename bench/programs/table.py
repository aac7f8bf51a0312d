"""The rows of loops as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import median
from typing import Any

#: Where parts come to more than the whole by more than this, what follows from them is left out.
OVERLAP = 0.1
HEADINGS = (
    "loop", "JAX µs", "jaxmarshal µs", "× faster", "hits", "misses, a step", "dispatch", "library",
    "computation",
)  # fmt: skip


def shares(row: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Dispatch, library and computation as parts of a step of plain JAX, None where unknown.

    The three are measured apart, so on a busy machine two can come to more than the whole: by a
    little, then dispatch is 0; by much, then it is not known. Nor is a part beyond the whole.
    """
    whole, found = row["jax"], row["shares"]
    library = found["library"] / whole
    if found["computation"] is None:
        return None, library, None
    computation = found["computation"] / whole
    if computation > 1 + OVERLAP:
        return None, library, None
    dispatch = 1 - library - computation
    return (max(dispatch, 0.0) if dispatch > -OVERLAP else None), library, computation


def _part(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def misses(row: dict[str, Any], most: int = 2) -> str:
    """The most frequent reasons, with how often a step they occur."""
    found = [f"{name} {number:.3g}" for name, number in row["reasons"].items() if number >= 0.01]
    return ", ".join(found[:most])


def cells(row: dict[str, Any]) -> list[str]:
    """One row as text."""
    for word in ("skipped", "failed"):
        if word in row:
            return [row["loop"], f"{word}: {row[word]}", *[""] * (len(HEADINGS) - 2)]
    bits = f" DIFFERENT from step {row['differing'][0]}" if row["differing"] else ""
    return [
        row["loop"],
        f"{row['jax']:.0f}",
        f"{row['jaxmarshal']:.0f}",
        f"{row['ratio']:.2f} ± {row['error']:.2f}{bits}",
        _part(row["hit_rate"]),
        misses(row),
        *map(_part, shares(row)),
    ]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table of the rows, the slowest first, and what they come to together."""
    measured = sorted((row for row in rows if "ratio" in row), key=lambda row: row["ratio"])
    others = [row for row in rows if "ratio" not in row]
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + " --- |" * len(HEADINGS)]
    lines += [f"| {' | '.join(cells(row))} |" for row in [*measured, *others]]
    if measured:
        ratios = [row["ratio"] for row in measured]
        mean = exp(sum(map(log, ratios)) / len(ratios))
        lines.append(
            f"\n{len(measured)} loops: geometric mean {mean:.2f} ×, median {median(ratios):.2f} ×, "
            f"least {min(ratios):.2f} ×; results the same bit for bit in "
            f"{sum(not row['differing'] for row in measured)}."
        )
    for row in others:
        lines.append(f"\nNot measured: {', '.join(cells(row)[:2])}.")
    return "\n".join(lines)


def title(found: dict[str, Any]) -> str:
    """Versions, those of the libraries too, and what is to be known of the machine."""
    facts = found["versions"]
    libraries = sorted({name for row in found["rows"] for name in row["libraries"]})
    note = f" {found['note']}" if found["note"] else ""
    return (
        f"Python {facts['python']}, JAX {facts['jax']}, numpy {facts['numpy']}, "
        f"{', '.join(libraries)}; {facts['machine']}.{note}"
    )
