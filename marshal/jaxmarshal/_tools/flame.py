"""The page of `compare --html`: two flame graphs and a table in one file that loads nothing."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

from jaxmarshal._tools import comparison_text

#: Frames with less than this share of a run are too narrow to be seen.
LEAST_SHARE = 0.0005


def _pruned(root: dict[str, Any]) -> dict[str, Any]:
    """A copy without the frames that cannot be seen."""
    least = root["time"] * LEAST_SHARE
    top = root | {"children": []}
    waiting = [(root, top)]
    while waiting:
        frame, copy = waiting.pop()
        for child in frame["children"]:
            if child["time"] >= least:
                copied = child | {"children": [], "time": round(child["time"], 6)}
                copy["children"].append(copied)
                waiting.append((child, copied))
    return top


def _table(table: list[list[str]]) -> str:
    head, *rows = [[html.escape(cell) for cell in row] for row in table]
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join(lines)


def _section(table: comparison_text.Table) -> str:
    """A table under its title, with what the reasons in it mean."""
    title = f"<h2>{html.escape(table.title[0].upper() + table.title[1:])}</h2>\n"
    if not table.rows:
        return f"{title}<p>None.</p>"
    rows = table.rows[: 3 * table.most]
    advice = comparison_text.advice(rows) if table.has_reasons else []
    lines = "".join(
        f"<p><code>{html.escape(name)}</code>: {html.escape(text)}</p>\n" for name, text in advice
    )
    return f"{title}<table>{_table(table.make(rows))}</table>\n{lines}"


def page(result: dict[str, Any], speedscope: str) -> str:
    """The page for what `compare` found; `speedscope` is the name of the file beside it."""
    data = {
        name: {
            "seconds": run["seconds"],
            "profile": _pruned(run["profile"]),
            "steady": _pruned(run["steady_profile"]),
        }
        for name, run in result["runs"].items()
    }
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in result["notes"])
    tables = "\n".join(map(_section, comparison_text.tables(result)))
    parts = {
        "SCRIPT": html.escape(" ".join(result["script"])),
        "VERSIONS": html.escape(versions),
        "SUMMARY": html.escape(comparison_text.summary(result)),
        "SPEEDSCOPE": html.escape(speedscope, quote=True),
        "NOTES": notes,
        "TABLES": tables,
        # Inside a script element, nothing may look like its end.
        "DATA": json.dumps(data).replace("<", "\\u003c"),
    }
    text = (resources.files("jaxmarshal._tools") / "flame.html").read_text(encoding="utf-8")
    before, *pieces = text.split("{{")
    filled = [before]
    for piece in pieces:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)
