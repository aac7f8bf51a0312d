"""Write the committed figures into the documents, between markers.

    python bench/figures.py            rewrite bench/README.md and README.md
    python bench/figures.py --check    exit status 1 where they say something else

The figures are the files in `bench/figures/`, written by `python -m jaxmarshal bench --json`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jaxmarshal.benchmarks import measure, results

HERE = Path(__file__).parent
FIGURES = sorted((HERE / "figures").glob("*.json"))

#: The rows that the first README shows, (group, case).
HEADLINES = (
    ("device_put", "np f32[8]"),
    ("device_put", "Python float"),
    ("device_put", "dict of 9 numpy"),
    ("device_put", "list of 100 arrays"),
    ("shard_args", "1 numpy"),
    ("execute", "MeshExecutable.call, 1 arrays"),
    ("ahead_of_time", "list of 1 arrays"),
    ("ahead_of_time", "list of 100 arrays"),
    ("ahead_of_time", "list of 1000 arrays"),
    ("ahead_of_time", "model of 200 arrays"),
    ("jit", "list of 1 arrays"),
    ("jit", "list of 100 arrays"),
    ("jit", "list of 1000 arrays"),
    ("jit", "model of 200 arrays"),
    ("eager", "lax.add"),
    ("eager", "x[0]"),
    ("eager", "jnp.zeros(3)"),
    ("asarray", "jnp.asarray(np f32[8])"),
)


def _slopes(rows: list[dict[str, Any]]) -> str:
    sides = ("reference", "jaxmarshal", "floor")
    lines = [
        "| µs for each further leaf | JAX | jaxmarshal | floor |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for (group, series), slope in measure.per_leaf(rows).items():
        cells = [f"{slope[side]:.3f}" if side in slope else "" for side in sides]
        lines.append(f"| {group}: {series} | {' | '.join(cells)} |")
    return "\n".join(lines)


def all_figures() -> str:
    """Every file as a table."""
    parts = []
    for path in FIGURES:
        found = results.read(path)
        parts.append(
            f"### {results.title(found)}\n\n{results.markdown(found['rows'])}\n\n"
            f"{_slopes(found['rows'])}"
        )
    return "\n\n".join(parts)


def headlines() -> str:
    """The ratios of a few cases, a column for each file."""
    documents = [results.read(path) for path in FIGURES]
    names = [f"JAX {found['versions']['jax']}" for found in documents]
    lines = [
        "| × faster than JAX (× the floor) | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for group, case in HEADLINES:
        cells = []
        for found in documents:
            (row,) = [r for r in found["rows"] if (r["group"], r["case"]) == (group, case)]
            over = f" ({row['over_floor']:.2f})" if "over_floor" in row else ""
            cells.append(f"{row['speedup']:.2f}{over}")
        lines.append(f"| {group}: {case} | " + " | ".join(cells) + " |")
    machines = {found["versions"]["machine"] for found in documents}
    lines.append(f"\nMeasured on {', '.join(sorted(machines))}; see [bench](bench/README.md).")
    return "\n".join(lines)


def documents() -> dict[Path, str]:
    """What each document should say."""
    texts = {HERE / "README.md": all_figures(), HERE.parent / "README.md": headlines()}
    wanted = {}
    for path, text in texts.items():
        before, start, rest = path.read_text(encoding="utf-8").partition("<!-- figures -->\n")
        _, end, after = rest.partition("<!-- end of figures -->\n")
        if not (start and end):
            raise SystemExit(f"{path} has no place for figures")
        wanted[path] = f"{before}{start}{text}\n{end}{after}"
    return wanted


def main() -> int:
    """Rewrite, or check."""
    stale = {
        path: text for path, text in documents().items()
        if path.read_text(encoding="utf-8") != text
    }  # fmt: skip
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} does not say what the figures say; run bench/figures.py")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
