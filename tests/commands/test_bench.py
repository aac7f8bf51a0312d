"""The benchmarks: every case takes its path, and the command does what it says. No timing."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import subprocess
import sys

import jax
import pytest
from browser import ASK_WIDTH, WIDTH, in_scheme, opened
from child import run
from conftest import LAYOUT_OFF
from support import REPOSITORY

from jaxmarshal import commands, fronts
from jaxmarshal.benchmarks import apart, measure, never_slower, page, results, suite
from jaxmarshal.benchmarks.case import Case, Sides
from jaxmarshal.fronts import filtered

pytestmark = [pytest.mark.slow, pytest.mark.commands]

BENCH = REPOSITORY / "bench"
#: Of the survey one of so many; with JAXMARSHAL_ALL_FUNCTIONS=1 all.
EVERY = 1 if os.environ.get("JAXMARSHAL_ALL_FUNCTIONS") else 3
CASES = [
    (group, case)
    for place, (group, case) in enumerate(suite.select())
    if case.leaves <= 201 and (group != "survey" or place % EVERY == 0)
]


def bench(*arguments, **environment):
    return run("-m", "jaxmarshal", "bench", *arguments, **environment)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A real, short run: its JSON file and its page."""
    folder = tmp_path_factory.mktemp("bench")
    done = bench(
        "--group", "device_put", "--group", "eager", "--width", "1", "--width", "10",
        "--seconds", "0.02", "--json", folder / "new.json", "--html", folder / "new.html",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "np f32[8]" in done.stdout and "lax.neg" in done.stdout
    return folder


@pytest.mark.parametrize(("group", "case"), CASES, ids=[f"{g}-{c.name}" for g, c in CASES])
def test_each_case_takes_its_path(group, case):
    """The three sides give the same result, and jaxmarshal's hits, or misses where it should."""
    if LAYOUT_OFF and group not in ("device_put", "shard_args", "asarray"):
        pytest.skip("no plan is made without words")
    sides = case.build()
    if case.accelerated:
        measure.check_path(case, sides)
    with sides.around("reference"):
        expected = str(jax.tree.leaves(sides.reference()))
    with sides.around("jaxmarshal"):
        assert str(jax.tree.leaves(sides.jaxmarshal())) == expected
    if sides.floor is not None:
        sides.floor()


def test_case_that_misses_fails():
    """A case whose call silently goes to the reference is an error, not a figure."""
    (_, hitting), *_ = suite.select(["device_put"], texts=["np f32[8]"])
    (_, refused), *_ = suite.select(["device_put"], texts=["refused"])
    for case, other in ((hitting, refused), (refused, hitting)):
        with pytest.raises(measure.WrongPath):
            measure.check_path(case, other.build())


def test_a_process_for_each_case_where_classes_wear_out(monkeypatch):
    monkeypatch.setattr(apart, "VERSIONS_END", True)
    # measured elsewhere: nothing here may toggle the classes of this process
    monkeypatch.setattr(measure, "measure", lambda *_: pytest.fail("measured in this process"))
    [(group, case)] = suite.select(["survey"], texts=["x + y"])
    row = apart.measure_apart(group, case, 0.01)
    assert (row["group"], row["case"]) == ("survey", "x + y")
    assert row["jaxmarshal"] > 0


def test_what_cannot_be_measured_elsewhere_is_named_here(monkeypatch):
    monkeypatch.setattr(apart, "VERSIONS_END", True)
    group, case = next(chosen for chosen in suite.select(["meshes"]) if chosen[1].devices > 1)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    with pytest.raises(measure.NotHere, match="devices"):
        apart.measure_apart(group, case, 0.01)


def test_groups_are_those_of_the_command():
    """The command names the groups without importing the cases."""
    from jaxmarshal.commands import bench as command

    assert list(command.GROUPS) == list(suite.GROUPS)
    assert "bench" in commands.NAMES
    names = [(group, case.name) for group, case in suite.select()]
    assert len(names) == len(set(names))
    for group in suite.GROUPS:
        assert (BENCH / f"bench_{group}.py").is_file()


def test_choosing_touches_no_device(fresh):
    """Eight devices can be asked for afterwards."""
    source = "from jaxmarshal.benchmarks import suite; from jax._src import xla_bridge\n"
    assert fresh(source + "suite.select(); result = len(xla_bridge._backends)") == 0


def test_list_and_choose():
    """`--list` measures nothing; groups, widths and names choose."""
    done = bench("--list")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(suite.select())
    assert "jit: list of 4000 arrays" in done.stdout
    done = bench("--list", "--group", "ahead_of_time", "--width", "100", "--case", "arrays")
    assert "ahead_of_time: list of 100 arrays" in done.stdout.splitlines()
    assert all(line.startswith("ahead_of_time: ") for line in done.stdout.splitlines())
    done = bench("--list", "--group", "survey", "--case", "x[0", "--case", "jnp.eye")
    assert done.stdout.splitlines() == ["survey: x[0]", "survey: x[0, 1]", "survey: jnp.eye(4)"]
    quick = bench("--list", "--quick").stdout.splitlines()
    assert 10 < len(quick) < 40


def test_json(small):
    """The file holds versions and rows, and can be shown again."""
    found = results.read(small / "new.json")
    assert found["versions"]["backend"] == "cpu"
    rows = {(row["group"], row["case"]): row for row in found["rows"]}
    row = rows["device_put", "np f32[8]"]
    assert row["accelerated"]
    assert math.isclose(row["speedup"], row["reference"] / row["jaxmarshal"])
    assert row["speedup_noise"] >= 0 and math.isfinite(row["speedup_noise"])
    assert rows["eager", "lax.neg"]["jaxmarshal"] > 0
    again = bench("--from", small / "new.json")
    assert again.returncode == 0
    assert "np f32[8]" in again.stdout and "Python float" in again.stdout


def test_numbers_on_axes():
    """Plain ones, whatever part of a decade is shown: 1.1, and not 1.1 × 10⁰."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: NOT tested")
    for speedups in ((0.9, 1.3), (0.5, 80.0), (100.0, 30000.0)):
        rows = [
            {"group": "g", "case": f"c{leaves}", "series": "s", "leaves": leaves,
             "reference": speedup * 2.5, "jaxmarshal": 2.5, "speedup": speedup}
            for leaves, speedup in zip((1, 4000), speedups, strict=True)
        ]  # fmt: skip
        for picture in (page._speedups(rows), page._widths(rows), page._slopes(rows)):
            texts = re.findall(r"<text[^>]*>(.*?)</text>", picture, re.DOTALL)
            numbers = [text for text in texts if re.match(r"[\d.]", text)]
            assert len(numbers) >= 2 and all(re.fullmatch(r"[\d.]+", text) for text in numbers)
            assert "tspan" not in picture    # as powers are written


def test_page(small):
    """One file, no script, nothing loaded; both colour schemes; every case is in it."""
    text = (small / "new.html").read_text()
    assert "<script" not in text and "@import" not in text and "<link" not in text
    assert not re.search(r"<[^>]*\bsrc=", text) and "url(http" not in text    # a case is named so
    assert "prefers-color-scheme: dark" in text
    assert page.INK not in text and page.GRID not in text
    assert text.count("<svg") >= 2
    for row in results.read(small / "new.json")["rows"]:
        assert row["case"] in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(small, tmp_path, scheme):
    """At 1200 pixels it does not scroll sideways, and the console is empty."""
    page = tmp_path / "page.html"
    page.write_text((small / "new.html").read_text(encoding="utf-8") + ASK_WIDTH, encoding="utf-8")
    found, console = opened(page.as_uri(), tmp_path, in_scheme(scheme))
    assert console == []
    width, window = map(int, re.search(r"WIDTH (\d+) of (\d+)", found).groups())
    assert width <= window <= WIDTH


def test_compare(small, tmp_path):
    """Only differences beyond the noise are reported, with their direction."""
    path = small / "new.json"
    done = bench("--from", path, "--compare", path)
    assert done.returncode == 0
    assert "no difference beyond the noise" in done.stdout
    old = json.loads(path.read_text())
    for row in old["rows"]:
        if row["case"] in ("np f32[8]", "Python float"):
            row["speedup_noise"] = 0.01
            row["speedup"] *= 10 if row["case"] == "np f32[8]" else 0.1
    old["versions"]["jax"] = "0.0.1"
    (tmp_path / "old.json").write_text(json.dumps(old))
    new = copy.deepcopy(old)
    new["rows"] = json.loads(path.read_text())["rows"]
    for row in new["rows"]:
        if "speedup_noise" in row:
            row["speedup_noise"] = 0.01
    (tmp_path / "new.json").write_text(json.dumps(new))
    done = bench("--from", tmp_path / "new.json", "--compare", tmp_path / "old.json")
    changes = [line for line in done.stdout.splitlines() if line[:6] in ("better", "worse:")]
    assert [line.partition(":")[0] for line in changes] == ["worse", "better"]
    assert "np f32[8]: " in changes[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "nonsense"], "invalid choice"),
        (["--width", "many"], "invalid int"),
        (["--width", "17"], "no case fits"),
        (["--seconds", "0"], "has to be positive"),
        (["--apart"], "belongs to --never-slower"),
        (["--compare", "{tmp}/missing.json"], "cannot read"),
        (["--compare", "{tmp}/damaged.json"], "is not JSON"),
        (["--compare", "{tmp}/other.json"], "holds no results"),
        (["--from", "{tmp}/rows.json"], "has a row without"),
        (["--json", "{tmp}/no/folder.json"], "there is no folder"),
        (["--html", "{tmp}"], "it is a folder"),
    ],
)
def test_bad_usage(arguments, message, tmp_path):
    """Exit status 2 and one line that says what is wrong, before anything is measured."""
    (tmp_path / "damaged.json").write_text('{"format": 1, "rows": [')
    (tmp_path / "other.json").write_text('{"format": 7}')
    (tmp_path / "rows.json").write_text('{"format": 1, "versions": {}, "rows": [{"case": 1}]}')
    done = bench(*[text.format(tmp=tmp_path) for text in arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_rich(tmp_path):
    """A missing package is named together with the extra that has it."""
    (tmp_path / "rich.py").write_text("raise ImportError('no rich today')\n")
    done = bench("--quick", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "pip install 'jaxmarshal[bench]'" in done.stderr


def test_help():
    """Every option is explained."""
    done = bench("--help")
    assert done.returncode == 0
    for option in ("--quick", "--json", "--html", "--compare", "--group", "--width"):
        assert option in done.stdout


def test_per_leaf():
    """The slope of a straight line is its slope."""
    rows = [
        {"group": "g", "series": "s", "leaves": n, "reference": 3 + 0.5 * n, "floor": 2.0}
        for n in (1, 10, 1000)
    ]
    slopes = measure.per_leaf([*rows, {"group": "g", "series": "", "leaves": 1}])
    assert list(slopes) == [("g", "s")]
    assert math.isclose(slopes["g", "s"]["reference"], 0.5)
    assert abs(slopes["g", "s"]["floor"]) < 1e-12
    assert "jaxmarshal" not in slopes["g", "s"]


def test_documents_say_what_the_figures_say():
    """The tables in the READMEs are those of the committed files."""
    done = subprocess.run(
        [sys.executable, str(BENCH / "figures.py"), "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _row(ratio, error, name="a call"):
    return never_slower.Row("jit", name, "jit", ratio, error)


def test_slower_means_beyond_the_noise():
    """A row is slower where three standard errors do not explain it, and doubtful below the bar."""
    assert _row(0.90, 0.01).slower
    assert not _row(0.90, 0.03).slower
    assert _row(0.90, 0.03).doubtful
    assert not _row(0.98, 0.001).slower and not _row(0.98, 0.001).doubtful


def test_ratio_of_rounds_in_turns():
    """The median of neighbours: a load that comes and goes is on both sides."""
    under = [1.0, 1.1, 5.0, 1.0, 0.9]
    ratio, error = never_slower.ratio_of([2 * seconds for seconds in under], under)
    assert (ratio, error) == (2.0, 0.0)


def test_verdict_names_the_switch_where_something_is_slower():
    """One line for a user: what is slower, and how to do without."""
    assert "JAXMARSHAL=off" in never_slower.verdict([_row(1.5, 0.01), _row(0.5, 0.01, "bad")])
    assert "bad (0.50 x)" in never_slower.verdict([_row(1.5, 0.01), _row(0.5, 0.01, "bad")])
    assert "nothing measured is slower" in never_slower.verdict([_row(1.5, 0.01)])


def test_names_of_never_slower_are_cases():
    """Each name that the quick selections mention is a case of its group."""
    for names in (never_slower.QUICK, never_slower.FEW):
        found = never_slower.select(names)
        gone = tuple(f"{front.name}," for front in fronts.FRONTS if fronts.why_inactive(front))
        named = [name for group in names.values() for name in group if not name.startswith(gone)]
        assert len(found) == len(named)


#: Entry points that have nothing to refuse.
NEVER_REFUSED = {
    "batched_device_put", "batched_device_put_impl", "results_handler_call",
    "xla_primitive_callable",
}  # fmt: skip

#: Their refused rows are slower, and in the full selection only; see bench/README.md.
SLOWER_REFUSED = {"asarray", "bind", "shard_args"}

#: A look-up that JAX makes within other calls, whose rows are those of `bind`.
WITHIN_OTHERS = ["xla_primitive_callable"]


def test_each_entry_point_has_rows_of_never_slower():
    """One that is fast and one that is refused, in the quick selection."""
    cases = [case for _, case in never_slower.select(never_slower.QUICK)]
    assert never_slower.without_rows(cases) == WITHIN_OTHERS
    refused = never_slower.without_rows([case for case in cases if case.hits is False])
    libraries = {filtered.NAME, *(front.name for front in fronts.FRONTS)}
    assert set(refused) <= NEVER_REFUSED | SLOWER_REFUSED | libraries


def test_a_case_that_is_slower_is_found():
    """Both sides in turns, and the slow one is told from the noise."""

    def slow():
        for _ in range(300):
            pass

    sides = Sides(reference=lambda: None, jaxmarshal=slow)
    row = never_slower.judge("jit", Case("slow", "jit", lambda: sides), seconds=0.02)
    assert row.slower and row.ratio < 0.5


@pytest.mark.parametrize("again", [0.90, 0.99, None])
def test_a_slower_row_is_confirmed_by_another_process(monkeypatch, again):
    """Slower is what is slower in both; how code lies in memory is no matter of a call."""
    asked = []

    def elsewhere(function, group, name, seconds):
        asked.append((function, group, name, seconds))
        if again is None:
            raise RuntimeError("no memory is left on the device")
        return _row(again, 0.001, name)

    monkeypatch.setattr(measure, "in_new_process", elsewhere)
    monkeypatch.setattr(
        never_slower, "judge", lambda group, case, seconds: _row(0.95, 0.001, case.name)
    )
    names = {"jit": ("list of 1 arrays",)}
    [(_, row, _)] = never_slower.run(names, 0.01)
    assert asked == [(never_slower._judge_named, "jit", "list of 1 arrays", 0.01)]
    assert (row.ratio, row.slower) == ((0.99, False) if again == 0.99 else (0.95, True))


def test_a_row_of_another_process():
    """A new process finds the case by its name, and counts its calls."""
    arguments = "jit", "list of 1 arrays", 0.02
    row = measure.in_new_process(never_slower._judge_named, *arguments)
    assert (row.group, row.name, row.entry) == ("jit", "list of 1 arrays", "jit")
    assert row.hits + row.misses > 0


def test_never_slower_of_one_case():
    """What is asked for is measured, and nothing else."""
    done = bench("--never-slower", "--width", "1", "--case", "Python fl", "--seconds", "0.02")
    first, *others = done.stdout.splitlines()
    assert "device_put: Python float" in first
    assert len(others) == 1


def test_sides_in_processes_of_their_own(monkeypatch):
    """Each side is as often first as second, installed once or never; hits are ours alone."""
    monkeypatch.setattr(apart, "PROCESSES", 2)
    begun = []
    names = {"eager": ("lax.neg",), "refused": ("x * t, another t each time",)}
    [neg, never_again] = apart.rows_of_sides(names, 0.02, begun.append)
    assert [text.rpartition(" ")[2] for text in begun] == [
        "reference", "jaxmarshal", "jaxmarshal", "reference",
    ]  # fmt: skip
    assert neg[0] == "eager: lax.neg" and neg[2] == ""
    assert neg[1].hits > 0 and neg[1].misses == 0
    assert never_again[1].hits == 0


def test_sides_apart_name_what_cannot_be_built(monkeypatch):
    """Too few devices, or what plain JAX cannot do, is told as without `--apart`."""
    monkeypatch.setattr(apart, "PROCESSES", 1)
    monkeypatch.setattr(measure, "in_new_process", lambda *_: ["it needs 8 devices"])
    [row] = apart.rows_of_sides({"meshes": ("lax.add",)}, 0.02, lambda text: None)
    assert row == ("meshes: lax.add", None, "it needs 8 devices")


def test_never_slower_of_no_case():
    """As without `--never-slower`: who misspells a name is told."""
    for more in ((), ("--never-slower",), ("--never-slower", "--quick")):
        done = run("-m", "jaxmarshal", "bench", "--case", "no such", *more)
        assert done.returncode == 2
        assert "no case fits" in done.stderr


def test_what_cannot_be_built_is_named(monkeypatch):
    """A backend on which plain JAX cannot do a thing is no defect of ours."""

    def fail():
        raise RuntimeError("no such handler")

    monkeypatch.setattr(
        never_slower, "select", lambda names: [("jit", Case("odd", "jit", fail))]
    )
    assert list(never_slower.run(None, 0.01)) == [
        ("jit: odd", None, "plain JAX cannot do this here: RuntimeError: no such handler")
    ]
