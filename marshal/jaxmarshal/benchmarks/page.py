"""One self-contained HTML page of figures: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import io
import re
from typing import Any

import numpy as np

from jaxmarshal.benchmarks import results
from jaxmarshal.benchmarks.measure import meets, per_leaf

SIDES = {"reference": "JAX", "jaxmarshal": "jaxmarshal", "floor": "floor"}
#: Middle tones, which stand out on a light and on a dark page.
COLORS = {"reference": "#8a94a6", "jaxmarshal": "#e8590c", "floor": "#228be6"}
MARKERS = {"reference": "o", "jaxmarshal": "s", "floor": "^"}

# matplotlib writes these two; the page's style sheet decides what they are.
INK, GRID = "#010203", "#040506"

STYLE = """
:root { color-scheme: light dark;
        --ink: #1c2430; --page: #ffffff; --line: #d5dae1; --mark: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --page: #14181f; --line: #3a4250; --mark: #ff8a80; }
}
body { color: var(--ink); background: var(--page); font: 15px/1.5 system-ui, sans-serif;
       margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; }
svg { max-width: 100%; height: auto; color: var(--ink); }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; text-align: right; }
th:first-child, td:first-child, td:last-child { text-align: left; }
tr.group td { font-weight: 600; padding-top: 1rem; }
tr.missed td { color: var(--mark); }
.scroll { overflow-x: auto; }
"""


def _svg(figure: Any, salt: str) -> str:
    """The figure as an element of the page, in the page's colours."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text.replace(INK, "currentColor").replace(GRID, "var(--line)")


def _axes(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.08)    # inches
    figure = Figure(figsize=(width, height), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.tick_params(colors=INK, which="both", labelsize=8)
        axis.grid(color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
        for spine in axis.spines.values():
            spine.set_color(GRID)
    return figure, list(axes.flat)


def _plain_numbers(*scales: Any) -> None:
    """Have logarithmic scales say 1.1, where matplotlib would say 1.1 × 10⁰."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):  # it decides which ticks have room for a number
        def __call__(self, x: float, pos: int | None = None) -> str:
            shown = super().__call__(x, pos)
            return np.format_float_positional(x, 4, fractional=False, trim="-") if shown else ""

    for scale in scales:
        scale.set_major_formatter(Plain())
        scale.set_minor_formatter(Plain())


def _label(axis: Any, title: str, x: str, y: str = "") -> None:
    axis.set_title(title, fontsize=9, color=INK)
    axis.set_xlabel(x, fontsize=8, color=INK)
    axis.set_ylabel(y, fontsize=8, color=INK)


def _legend(axis: Any) -> None:
    axis.legend(fontsize=8, labelcolor=INK, frameon=False)


def _widths(rows: list[dict[str, Any]]) -> str:
    """Cost against the number of leaves, a small plot for each series."""
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["series"]:
            series.setdefault((row["group"], row["series"]), []).append(row)
    series = {key: members for key, members in series.items() if len(members) > 1}
    if not series:
        return ""
    columns = min(3, len(series))
    lines = -(-len(series) // columns)
    figure, axes = _axes(lines, columns, 4 * columns, 3.2 * lines)
    for axis, ((group, name), members) in zip(axes, series.items(), strict=False):
        members = sorted(members, key=lambda row: row["leaves"])
        for side, title in SIDES.items():
            points = [(row["leaves"], row[side]) for row in members if side in row]
            if points:
                axis.loglog(
                    *zip(*points, strict=True), color=COLORS[side], marker=MARKERS[side],
                    markersize=4, linewidth=1.5, label=title,
                )  # fmt: skip
        _plain_numbers(axis.xaxis, axis.yaxis)
        _label(axis, f"{group}: {name}", "leaves", "µs a call")
        _legend(axis)
    for axis in axes[len(series) :]:
        axis.set_visible(False)
    return _svg(figure, "widths")


def _speedups(rows: list[dict[str, Any]]) -> str:
    """How many times faster than JAX, a bar for each case."""
    shown = [row for row in rows if "speedup" in row]
    if not shown:
        return ""
    figure, (axis,) = _axes(1, 1, 10, 0.6 + 0.22 * len(shown))
    names = [f"{row['group']}: {row['case']}" for row in shown]
    places = range(len(shown))
    gains = [row["speedup"] - 1 for row in shown]
    axis.barh(places, gains, left=1, color=COLORS["jaxmarshal"], height=0.7)
    for place, row in zip(places, shown, strict=True):
        axis.text(
            max(row["speedup"], 1), place, f" {row['speedup']:.2f}", va="center", fontsize=7,
            color=INK,
        )
    axis.axvline(1, color=INK, linewidth=0.8)
    axis.set_xscale("log")
    axis.margins(x=0.07)    # for the number behind the longest bar
    axis.set_xlim(left=0.95 * min(1, *(row["speedup"] for row in shown)))
    _plain_numbers(axis.xaxis)
    axis.set_yticks(list(places), names, fontsize=7)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    _label(axis, "", "× faster than JAX (log scale; the line is 1)")
    return _svg(figure, "speedups")


def _slopes(rows: list[dict[str, Any]]) -> str:
    """Cost of each further leaf."""
    slopes = per_leaf(rows)
    if not slopes:
        return ""
    figure, (axis,) = _axes(1, 1, 10, 0.8 + 0.5 * len(slopes))
    for offset, (side, title) in zip((-0.25, 0, 0.25), SIDES.items(), strict=True):
        bars = [(i + offset, s[side]) for i, s in enumerate(slopes.values()) if side in s]
        if bars:
            axis.barh(*zip(*bars, strict=True), height=0.22, color=COLORS[side], label=title)
    names = [f"{group}: {series}" for group, series in slopes]
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xscale("log")
    _plain_numbers(axis.xaxis)
    _label(axis, "", "µs for each further leaf (log scale)")
    _legend(axis)
    return _svg(figure, "slopes")


def _table(rows: list[dict[str, Any]]) -> str:
    heading = "".join(f"<th>{html.escape(text)}</th>" for text in results.HEADINGS)
    lines = [f"<tr>{heading}</tr>"]
    group = None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines.append(
                f'<tr class="group"><td colspan="{len(results.HEADINGS)}">'
                f"{html.escape(group)}</td></tr>"
            )
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in results.cells(row))
        kind = "" if meets(row) else ' class="missed"'
        lines.append(f"<tr{kind}>{cells}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def render(found: dict[str, Any]) -> str:
    """The page for a document of results."""
    rows = found["rows"]
    sections = {
        "Cost and number of leaves": _widths(rows),
        "Speedup": _speedups(rows),
        "Cost of each further leaf": _slopes(rows),
        "All figures": _table(rows),
    }
    body = "".join(f"<h2>{title}</h2>\n{part}\n" for title, part in sections.items() if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>jaxmarshal: what a call costs</title><style>{STYLE}</style></head><body>"
        f"<h1>What a call costs</h1><p>{html.escape(results.title(found))}</p>"
        "<p>Three sides take turns in one process: plain JAX, jaxmarshal, and the floor, the "
        "cheapest prepared jaxlib call that does the work. Only the ratios carry over to other "
        "machines.</p>"
        f"{body}</body></html>\n"
    )
