"""Write the committed figures, and the versions of the matrix, into the documents, between markers.

    python bench/figures.py            rewrite them
    python bench/figures.py --check    exit status 1 where they say something else

The figures are the files in `bench/figures/`, written by `python -m jaxmarshal bench`,
`bench/packed_figures.py` and `bench/several_processes.py` with `--json`, and those in
`bench/programs/figures/`, written by `bench/programs/run.py --json`. The versions are those of
`noxfile.py`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from jaxmarshal.benchmarks import measure, results

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "programs"))

import table  # noqa: E402  (the folder of the loops is no package)


def by_version(path: Path) -> list[tuple[int, str]]:
    """The name of a file, with its numbers as numbers."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.stem)]


FIGURES = sorted((HERE / "figures").glob("py*.json"), key=by_version)
TRAINING = sorted((HERE / "figures").glob("training-*.json"))
PACKED = sorted((HERE / "figures").glob("packed-*.json"), key=lambda path: path.stem)
PROCESSES = sorted((HERE / "figures").glob("processes-*.json"), key=by_version)
GPUS = sorted((HERE / "figures").glob("gpu-*.json"), key=by_version)
SURVEYS = sorted((HERE / "figures").glob("survey-*.json"), key=lambda path: path.stem)
PROGRAMS = sorted((HERE / "programs" / "figures").glob("*.json"))

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
    ("jit", "dict of 200 arrays"),
    ("eager", "lax.add"),
    ("eager", "x[0]"),
    ("eager", "jnp.zeros(3)"),
    ("asarray", "jnp.asarray(np f32[8])"),
)

#: The states that the first README shows, and whether they are donated.
PACKED_HEADLINES = (
    ("4 × f32[8]", False),
    ("100 × f32[8]", False),
    ("300 × f32[16,16]", False),
    ("1000 × f32[8]", False),
    ("1000 × f32[8]", True),
    ("200 × f32[64,64]", True),
)

#: The loops that the first README shows, and what they are: above and below the median.
PROGRAM_HEADLINES = (
    ("serving", "serving a model of 300 arrays, compiled ahead of time"),
    ("blackjax_random_walk", "random-walk Metropolis with blackjax"),
    ("nnx_train", "training with flax nnx and optax"),
    ("linen_train", "training with flax linen and optax"),
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


def _documents(on_cpu: bool) -> list[dict[str, Any]]:
    """The files of JAX's own CPU backend, or those of plugins."""
    found = [results.read(path) for path in FIGURES]
    return [one for one in found if (one["versions"]["backend"] == "cpu") == on_cpu]


def all_figures() -> str:
    """Every file of the CPU as a table, and what the first README shows of those of plugins."""
    parts = [
        f"### {results.title(found)}\n\n{results.markdown(found['rows'])}\n\n"
        f"{_slopes(found['rows'])}"
        for found in _documents(True)
    ]
    plugins = _documents(False)
    if plugins:
        parts.append(
            "### Behind the PJRT C API\n\nXLA's CPU client as a plugin, alone (`xcpu`) and beside "
            f"JAX's own CPU backend (`xcpu,cpu`).\n\n{_ratios(plugins)}"
        )
    return "\n\n".join(parts)


def gpus() -> str:
    """Every file of a GPU as a table."""
    return "\n\n".join(
        f"### {results.title(found)}\n\n{results.markdown(found['rows'])}\n\n"
        f"{_slopes(found['rows'])}"
        for found in map(results.read, GPUS)
    )


def _column(found: dict[str, Any]) -> str:
    """The version, and the backend where that is not JAX's own CPU."""
    backend = found["versions"]["backend"]
    return f"JAX {found['versions']['jax']}" + ("" if backend == "cpu" else f", {backend}")


def _by_version(what: str, names: list[str], rows: Iterable[tuple[str, list[str]]]) -> str:
    """A table with a column for each version."""
    lines = [f"| {what} | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)])


def _ratios(documents: list[dict[str, Any]]) -> str:
    """The ratios of a few cases, a column for each file."""
    names = [_column(found) for found in documents]
    lines = [
        "| × faster than JAX (× the floor) | " + " | ".join(names) + " |",
        "| --- |" + " ---: |" * len(names),
    ]
    for group, case in HEADLINES:
        cells = []
        for found in documents:
            rows = [r for r in found["rows"] if (r["group"], r["case"]) == (group, case)]
            if not rows or "speedup" not in rows[0]:    # a case that this backend does not have
                cells.append("")
                continue
            (row,) = rows
            over = f" ({row['over_floor']:.2f})" if "over_floor" in row else ""
            cells.append(f"{row['speedup']:.2f}{over}")
        lines.append(f"| {group}: {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def headlines() -> str:
    """Those of the CPU, and of a plugin alone with the newest JAX."""
    plugins = [found for found in _documents(False) if "," not in found["versions"]["backend"]]
    documents = [*_documents(True), *plugins[-1:]]
    lines = [_ratios(documents)]
    machines = {found["versions"]["machine"] for found in documents}
    lines.append(f"\nMeasured on {', '.join(sorted(machines))}; see [bench](bench/README.md).")
    return "\n".join(lines)


#: A call that takes this many times as long as one dispatch counts as one.
NEAR = 1.5


def _near(rows: list[dict[str, Any]], side: str) -> str:
    """The share of calls that take little more than one dispatch."""
    found = [row[side] <= NEAR * row["floor"] for row in rows]
    return f"{100 * sum(found) / len(found):.0f} %"


def survey() -> str:
    """What the surveys come to, a column for each file."""
    documents = [results.read(path) for path in SURVEYS]
    speedups = [[row["speedup"] for row in found["rows"]] for found in documents]
    return _by_version("everyday calls outside of `jit`", [_column(x) for x in documents], (
        ("calls", [str(len(found)) for found in speedups]),
        ("× faster than JAX, geometric mean", [f"{geometric_mean(x):.2f}" for x in speedups]),
        ("median", [f"{median(x):.2f}" for x in speedups]),
        ("least", [f"{min(x):.2f}" for x in speedups]),
        (f"within {NEAR} dispatches, JAX", [_near(x["rows"], "reference") for x in documents]),
        ("the same, jaxmarshal", [_near(x["rows"], "jaxmarshal") for x in documents]),
    ))  # fmt: skip


def surveys() -> str:
    """The same, and then every call: µs of the first file, ratios of all."""
    documents = [results.read(path) for path in SURVEYS]
    ratios = [{row["case"]: row["speedup"] for row in found["rows"]} for found in documents]
    lines = [
        survey(), "",
        f"| call | JAX, µs ({_column(documents[0])}) | jaxmarshal, µs | × "
        + " | × ".join(map(_column, documents)) + " |",
        "| --- |" + " ---: |" * (2 + len(documents)),
    ]  # fmt: skip
    for row in documents[0]["rows"]:
        cells = [f"{found[row['case']]:.2f}" if row["case"] in found else "" for found in ratios]
        lines.append(
            f"| `{row['case']}` | {row['reference']:.1f} | {row['jaxmarshal']:.1f} | "
            f"{' | '.join(cells)} |"
        )
    return "\n".join(lines)


def training() -> str:
    """The training step of each version."""
    lines = [
        "| JAX | JAX µs | jaxmarshal µs | × faster | packed µs | × faster |",
        "| --- |" + " ---: |" * 5,
    ]
    for path in TRAINING:
        found = json.loads(path.read_text())
        plain, ours, packed = found["us"]
        lines.append(
            f"| {found['jax']} | {plain:.0f} | {ours:.0f} | {plain / ours:.2f} | {packed:.0f} | "
            f"{plain / packed:.2f} |"
        )
    return "\n".join(lines)


def _packed() -> tuple[list[dict[str, Any]], list[str]]:
    """What `packed_figures.py` has written, and how its columns are called."""
    found = [json.loads(path.read_text()) for path in PACKED]
    return found, [_column({"versions": x}) for x in found]


def _packed_steps(wanted: tuple[tuple[str, bool], ...]) -> str:
    """Steps of packed states, × over plain JAX: each waited for, and waited for at the end."""
    found, names = _packed()
    steps = [{(row["state"], row["donated"]): row for row in x["steps"]} for x in found]
    rows = [
        (
            f"{state}{', donated' if donated else ''}",
            [f"{x[state, donated]['each']:.2f} and {x[state, donated]['end']:.2f}" for x in steps],
        )
        for state, donated in wanted
    ]
    return _by_version("state", names, rows)


def packed_headlines() -> str:
    """Some steps of packed states."""
    return _packed_steps(PACKED_HEADLINES)


def packed() -> str:
    """All steps of packed states, and host data in one buffer."""
    found, names = _packed()
    steps = tuple((row["state"], row["donated"]) for row in found[0]["steps"])
    host = [
        (found[0]["host"][i]["what"], [f"{x['host'][i]['ratio']:.1f}" for x in found])
        for i in range(len(found[0]["host"]))
    ]
    return f"{_packed_steps(steps)}\n\n{_by_version('9 numpy arrays', names, host)}"


def packed_compile_times() -> str:
    """Time to compile a packed step, × that of the same step without packing."""
    found, names = _packed()
    rows = [
        (
            f"{row['step']}, {row['leaves']} leaves",
            [f"{x['compile'][i]['ratio']:.1f}" for x in found],
        )
        for i, row in enumerate(found[0]["compile"])
    ]
    return _by_version("step", names, rows)


def processes() -> str:
    """What `several_processes.py` has written, a column for each file."""
    found = [json.loads(path.read_text()) for path in PROCESSES]
    rows = [
        (row["call"], [f"{x['rows'][i]['ratio']:.1f}" for x in found])
        for i, row in enumerate(found[0]["rows"])
    ]
    names = [_column({"versions": x}) for x in found]
    return _by_version("× faster than JAX, in one of two processes", names, rows)


def programs() -> str:
    """Every file of loops as a table."""
    parts = []
    for path in PROGRAMS:
        found = json.loads(path.read_text())
        title = f"### JAX {found['versions']['jax']}"
        parts.append(f"{title}\n\n{table.markdown(found['rows'])}\n\n{table.title(found)}")
    return "\n\n".join(parts)


def program_headlines() -> str:
    """The ratios of a few loops, a column for each file, and what all come to."""
    documents = [json.loads(path.read_text()) for path in PROGRAMS]
    names = [f"JAX {found['versions']['jax']}" for found in documents]
    ratios = [
        {row["loop"]: row["ratio"] for row in found["rows"] if "ratio" in row}
        for found in documents
    ]
    rows = [
        (what, [f"{found[loop]:.2f} ×" if loop in found else "" for found in ratios])
        for loop, what in PROGRAM_HEADLINES
    ]
    lines = [_by_version("program", names, rows), ""]
    for name, found in zip(names, ratios, strict=True):
        of = f" with {name}" if len(names) > 1 else ""
        lines.append(
            f"Half of {len(found)} [such programs](bench/programs/README.md){of} run at "
            f"{median(found.values()):.2f} × or more; the worst runs at "
            f"{min(found.values()):.2f} ×, the best at {max(found.values()):.2f} ×."
        )
    return "\n".join(lines)


def versions() -> str:
    """The pairs of Python and JAX that the whole suite runs with."""
    tree = ast.parse((HERE.parent / "noxfile.py").read_text(encoding="utf-8"))
    (matrix,) = (
        ast.literal_eval(node.value) for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MATRIX"
    )  # fmt: skip
    lines = ["| Python | JAX |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {python} | {jax} |" for jax, python in matrix.items())])


def documents() -> dict[Path, str]:
    """What each document should say."""
    wanted: dict[Path, str] = {}
    for path, name, text in (
        (HERE / "README.md", "figures", all_figures()),
        (HERE / "README.md", "survey", surveys()),
        (HERE / "README.md", "training", training()),
        (HERE / "README.md", "gpu", gpus()),
        (HERE.parent / "README.md", "survey", survey()),
        (HERE / "programs" / "README.md", "figures", programs()),
        (HERE.parent / "README.md", "programs", program_headlines()),
        (HERE.parent / "README.md", "figures", headlines()),
        (HERE.parent / "README.md", "packed", packed_headlines()),
        (HERE.parent / "README.md", "versions", versions()),
        (HERE.parent / "docs" / "packing.md", "packed", packed()),
        (HERE.parent / "docs" / "packing.md", "compile times", packed_compile_times()),
        (HERE.parent / "docs" / "distributed.md", "processes", processes()),
    ):
        old = wanted.get(path) or path.read_text(encoding="utf-8")
        before, start, rest = old.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not (start and end):
            raise SystemExit(f"{path} has no place for {name}")
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
