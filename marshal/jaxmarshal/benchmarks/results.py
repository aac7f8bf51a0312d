"""Rows of figures as a file: writing, reading, comparing, and Markdown."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxmarshal.benchmarks.measure import meets

FORMAT = 1
REQUIRED = ("group", "case", "series", "leaves", "devices", "accelerated", "reference")


class DamagedFile(ValueError):
    """A file that does not hold results."""


def versions() -> dict[str, str]:
    """What the figures belong to."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"python": platform.python_version(), **found, "machine": machine()}


def machine() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor()


def document(rows: list[dict[str, Any]], backend: str) -> dict[str, Any]:
    """Everything that is written: figures and what they belong to."""
    return {"format": FORMAT, "versions": {**versions(), "backend": backend}, "rows": rows}


def read(path: str | Path) -> dict[str, Any]:
    """Read a file of results.

    Raises:
      OSError: where it cannot be read.
      DamagedFile: where it holds something else.
    """
    try:
        found = json.loads(Path(path).read_text())
    except ValueError as error:
        raise DamagedFile(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DamagedFile(f"{path} holds no results of this version of `jaxmarshal bench`")
    rows = found.get("rows")
    if not isinstance(found.get("versions"), dict) or not isinstance(rows, list):
        raise DamagedFile(f"{path} lacks its versions or its rows")
    for row in rows:
        if not isinstance(row, dict) or any(key not in row for key in REQUIRED):
            raise DamagedFile(f"{path} has a row without {', '.join(REQUIRED)}")
    return found


@dataclass(frozen=True)
class Difference:
    """A ratio that changed by more than the noise of both measurements."""

    group: str
    case: str
    what: str    # "× faster" or "× floor"
    old: float
    new: float
    noise: float    # relative, of old and new together

    @property
    def better(self) -> bool:
        return (self.new > self.old) == (self.what == "× faster")


def compare(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[Difference]:
    """The differences beyond three times the measured noise, and beyond 2 %.

    Absolute times are not compared: only the ratios of one run belong together.
    """
    before = {(row["group"], row["case"]): row for row in old}
    found = []
    for row in new:
        other = before.get((row["group"], row["case"]))
        for key, what in (("speedup", "× faster"), ("over_floor", "× floor")):
            if other is None or key not in row or key not in other:
                continue
            noise = math.hypot(row[f"{key}_noise"], other[f"{key}_noise"])
            change = abs(math.log(row[key] / other[key]))
            if change > max(3 * noise, 0.02):
                found.append(
                    Difference(row["group"], row["case"], what, other[key], row[key], noise)
                )
    return found


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text: case, three times, two ratios with their bars, and a remark."""
    remark = "" if row["accelerated"] else "not accelerated yet"
    if not meets(row):
        remark = "missed"
    least, most = row["least_speedup"], row["most_over_floor"]
    return [
        row["case"],
        _number(row["reference"], 1),
        _number(row.get("jaxmarshal"), 1),
        _number(row.get("floor"), 1),
        _number(row.get("speedup"), 2),
        "" if least is None else f"{least:.3g}",
        _number(row.get("over_floor"), 2),
        "" if most is None else f"{most:.3g}",
        remark,
    ]


HEADINGS = [
    "case", "JAX µs", "jaxmarshal µs", "floor µs", "× faster", "at least", "× floor", "at most", "",
]  # fmt: skip


def title(found: dict[str, Any]) -> str:
    """Versions and machine in one line."""
    facts = found["versions"]
    return (
        f"Python {facts['python']}, JAX {facts['jax']}, jaxlib {facts['jaxlib']}, "
        f"numpy {facts['numpy']}, {facts.get('backend', 'cpu')}, {facts['machine']}"
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of the rows, a line for the heading of each group."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "| " + " | ".join("---" for _ in HEADINGS) + " |"]
    group = None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines.append(f"| **{group}** |" + " |" * (len(HEADINGS) - 1))
        lines.append("| " + " | ".join(cells(row)) + " |")
    return "\n".join(lines)
