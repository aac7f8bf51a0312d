"""The loops of bench/programs: both sides compute the same and take their path. No timing."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from child import run
from conftest import LAYOUT_OFF
from support import REPOSITORY

PROGRAMS = REPOSITORY / "bench" / "programs"
LOOPS = sorted(path.stem for path in (PROGRAMS / "loops").glob("*.py"))

#: Loops that need no library but optax: the calls a step that are fast, and those that are not.
COUNTS = {
    "device_put_batch": (2, {}),
    "kalman_filter": (1, {}),
    "serving": (1, {}),
}

pytestmark = [
    pytest.mark.commands,
    pytest.mark.skipif(not PROGRAMS.is_dir(), reason="the tests run without the folder bench/"),
]


@pytest.fixture
def here(monkeypatch):
    """The modules of the folder can be imported."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    names = ("bits", "table", "worker", "shares", "run")
    yield
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_short(name):
    """It says what it does and what it needs, and can be read in one go."""
    source = (PROGRAMS / "loops" / f"{name}.py").read_text()
    tree = ast.parse(source)
    assert ast.get_docstring(tree)
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "LIBRARIES" in assigned and "make" in defined
    assert len(source.splitlines()) < 80


def test_libraries_are_those_of_the_extra(here):
    """What a loop names is what `make programs` installs."""
    import tomllib

    import worker

    project = tomllib.loads((PROGRAMS.parents[1] / "pyproject.toml").read_text())
    installed = project["project"]["optional-dependencies"]["programs"]
    needed = {library for name in LOOPS for library in worker.libraries_of(name)}
    distributions = {{"haiku": "dm-haiku"}.get(name, name) for name in needed}
    assert distributions == {text.partition(">")[0] for text in installed}


@pytest.mark.slow
@pytest.mark.one_version
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without words")
def test_loops_on_both_sides(tmp_path):
    """Same bits, and exactly these hits and misses a step."""
    names = sorted(COUNTS)
    done = run(str(PROGRAMS / "run.py"), *names, "--quick", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["loop"] for row in rows] == names
    assert [row["differing"] for row in rows] == [[]] * len(rows)
    found = {row["loop"]: (row["hits"], row["reasons"]) for row in rows}
    assert found == COUNTS
    assert all(row["shares"]["executions"] == 1 for row in rows)
    assert all(f"| {name} |" in done.stdout for name in names)


@pytest.mark.slow
@pytest.mark.one_version
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without words")
def test_loop_of_a_library(tmp_path):
    """optax outside of `jit`: same bits, and every call is fast or has a reason."""
    if importlib.util.find_spec("optax") is None:
        pytest.skip("optax is not installed: its loops were NOT tested")
    file = tmp_path / "rows.json"
    done = run(str(PROGRAMS / "run.py"), "optax_eager_update", "--quick", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert row["differing"] == []
    assert row["libraries"][0].startswith("optax ")
    assert row["hits"] > 10
    assert abs(row["misses"] - sum(row["reasons"].values())) < 1e-9


@pytest.mark.slow
@pytest.mark.one_version
def test_missing_library_is_named(tmp_path):
    """It is skipped, in the output, the file and the table, and nothing else fails."""
    (tmp_path / "gymnax.py").write_text("raise ImportError('not with this JAX')\n")
    done = run(str(PROGRAMS / "run.py"), "gymnax_rollout", "--quick", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "SKIPPED, NOT MEASURED: gymnax: ImportError: not with this JAX" in done.stdout
    assert "| gymnax_rollout | skipped: gymnax: ImportError" in done.stdout


@pytest.mark.slow
@pytest.mark.one_version
def test_failing_loop_is_named(tmp_path):
    """A loop that does not run is no loop that is left out: exit status 1."""
    (tmp_path / "gymnax.py").write_text("")    # it imports, and has nothing
    metadata = tmp_path / "gymnax-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnax\nVersion: 1.0\n")
    done = run(str(PROGRAMS / "run.py"), "gymnax_rollout", "--quick", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "FAILED: gymnax_rollout, plain" in done.stdout
    assert "AttributeError" in done.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["--json", "{tmp}/no/folder.json"]])
def test_bad_usage(arguments, tmp_path):
    """Exit status 2 and one line, before anything is measured."""
    done = run(str(PROGRAMS / "run.py"), *[text.format(tmp=tmp_path) for text in arguments])
    assert done.returncode == 2
    assert "there is no" in done.stderr and "Traceback" not in done.stderr


def test_a_difference_is_noticed(here):
    """The number for the bits depends on sign of zero, dtype, weak type, place, name and order."""
    from bits import digest

    same = digest({"a": jnp.zeros(2), "b": 1})
    assert digest({"b": 1, "a": jnp.zeros(2)}) == same
    others = [
        {"a": -jnp.zeros(2), "b": 1}, {"a": jnp.zeros(2, int), "b": 1}, {"c": jnp.zeros(2), "b": 1},
        {"a": jnp.zeros(2), "b": 1.0}, {"a": np.zeros(2, np.float32), "b": 1},
        {"a": jnp.zeros((2, 1)), "b": 1}, [jnp.zeros(2), 1], {"a": jnp.full(2, 0.0), "b": True},
    ]  # fmt: skip
    assert len({same, *map(digest, others)}) == len(others) + 1
    with pytest.raises(TypeError, match="not compared"):
        digest([object()])


def test_steps_that_differ(here):
    """By number."""
    from run import steps_that_differ

    assert steps_that_differ(list("abc"), list("abc")) == []
    assert steps_that_differ(list("abc"), list("axx")) == [1, 2]


def test_hits_are_counted_for_each_step(here):
    """Over all entry points; the most frequent reason first."""
    from run import hit_counts

    stats = [
        {"jit": {"hits": 6, "misses": 0, "misses_by_reason": {}},
         "bind": {"hits": 0, "misses": 2, "misses_by_reason": {"trace": 2}}},
        {"jit": {"hits": 2, "misses": 6, "misses_by_reason": {"host_leaves": 6}}},
    ]  # fmt: skip
    found = hit_counts(stats, steps=4)
    assert (found["hits"], found["misses"], found["hit_rate"]) == (2.0, 2.0, 0.5)
    assert list(found["reasons"].items()) == [("jit: host_leaves", 1.5), ("bind: trace", 0.5)]
    assert hit_counts([], steps=4)["hit_rate"] is None


def row(**changed):
    return {
        "loop": "a", "libraries": [], "jax": 100.0, "jaxmarshal": 50.0, "ratio": 2.0, "error": 0.01,
        "differing": [], "hit_rate": 0.5, "reasons": {"jit: host_leaves": 1.0},
        "shares": {"library": 20.0, "computation": 30.0, "executions": 1}, **changed,
    }  # fmt: skip


def test_shares_of_a_step(here):
    """Dispatch is what remains; what is not known stays out."""
    from table import shares

    def of(library, computation):
        return shares(row(shares={"library": library, "computation": computation}))

    assert of(20.0, 30.0) == (0.5, 0.2, 0.3)
    assert of(20.0, None) == (None, 0.2, None)
    assert of(60.0, 45.0) == (0.0, 0.6, 0.45)
    assert of(60.0, 60.0) == (None, 0.6, 0.6)
    assert of(60.0, 120.0) == (None, 0.6, None)


def test_table(here):
    """The slowest first, the mean of what was measured, and what was not."""
    from table import markdown

    text = markdown([row(), row(loop="b", ratio=0.5, differing=[7]),
                     {"loop": "c", "libraries": [], "skipped": "haiku: ImportError"}])  # fmt: skip
    lines = text.splitlines()
    assert lines[2].startswith("| b | 100 | 50 | 0.50 ± 0.01 DIFFERENT from step 7 | 50% |")
    assert lines[3].startswith("| a | 100 | 50 | 2.00 ± 0.01 | 50% | jit: host_leaves 1 | 50% |")
    assert lines[4].startswith("| c | skipped: haiku: ImportError |")
    assert "2 loops: geometric mean 1.00 ×, median 1.25 ×, least 0.50 ×" in text
    assert "the same bit for bit in 1." in text
    assert text.endswith("Not measured: c, skipped: haiku: ImportError.")
