"""`python -m jaxmarshal compare`, through real processes. No time is asserted, only counts."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from html.parser import HTMLParser

import pytest
from browser import ASK_WIDTH, WIDTH, in_scheme, opened
from child import PACKAGE_ROOT, run, status_of

from jaxmarshal import fronts
from jaxmarshal.__main__ import main
from jaxmarshal._jax import patching
from jaxmarshal._tools import comparison_text, flame, profiles
from jaxmarshal.reasons import reason_for

pytestmark = [pytest.mark.slow, pytest.mark.commands, pytest.mark.reports]

SCRIPT = """
    import sys
    import jax
    import numpy as np

    def feed(values):
        return [jax.device_put(value) for value in values]

    def refused(value):
        for _ in range(7):
            jax.device_put(value, donate=True)

    @jax.jit
    def double(x):
        return x * 2

    class Model:
        def train(self, step, x):
            for _ in range(5):
                x = step(x)
            return x

    feed([np.arange(3.0)] * 4)
    feed([np.arange(4)] * 2)
    refused(np.arange(3.0))
    step = jax.jit(lambda x: x + 1).lower(np.float32(1)).compile()
    x = jax.device_put(np.float32(1))
    for _ in range(9):
        double(x)
    jax.numpy.sin(x)
    jax.numpy.concatenate([np.ones(1), np.ones(1)]), jax.nn.relu(x)
    print(Model().train(step, x), sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    return folder


def compare(*arguments, **options):
    return run("-m", "jaxmarshal", "compare", *arguments, **options)


@pytest.fixture(scope="module")
def compared(folder):
    """One comparison with everything written, for the tests that look at it."""
    return compare(
        "--json", "out.json", "--html", "out.html", "--interval", "0.0005", "--warmup", "0",
        "script.py", "--json", "x", cwd=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def result(compared, folder):
    assert compared.returncode == 0, compared.stderr
    return json.loads((folder / "out.json").read_text())


def test_the_output(compared):
    """The script's own output twice on its stream; the comparison on the other."""
    assert compared.returncode == 0
    assert compared.stdout == "6.0 ['--json', 'x']\n" * 2
    lines = compared.stderr.splitlines()
    # On a busy machine pyinstrument says that its clock is slow.
    runs = [line for line in lines if line.startswith("jaxmarshal compare: run")]
    assert runs == ["jaxmarshal compare: run: plain", "jaxmarshal compare: run: jaxmarshal"]
    row = next(line for line in lines if "refused" in line).split()
    assert row[:4] == ["device_put", "script.py:11,", "in", "refused"]
    assert row[-2:] == ["options", "7"]
    row = next(line for line in lines if "double (jit)" in line).split()
    assert row[:3] == ["double", "(jit)", "script.py:13"]
    assert re.search(
        r"calls after the first ones took \d+\.\d\d ms with plain JAX and \d+\.\d\d ms with "
        r"jaxmarshal; \d+\.\d% of them were hits\.\n", compared.stderr,
    )  # fmt: skip
    assert "Counting and sampling slow both runs" in compared.stderr
    assert "an estimate" in compared.stderr
    reason = reason_for("device_put", "options")
    assert f"{reason.meaning} What to do: {reason.advice}\n" in compared.stderr
    assert "\x1b" not in compared.stderr


def site(result, function, entry_point="device_put"):
    (found,) = [
        row for row in result["sites"]
        if row["function"].endswith(function) and row["entry_point"] == entry_point
    ]  # fmt: skip
    return found


def test_sites(result, folder):
    """Each call site has its calls in both runs, and the hits and misses of the second."""
    # Until Python 3.12 a comprehension is a function of its own.
    row = site(result, "<listcomp>" if sys.version_info < (3, 12) else "feed")
    assert (row["file"], row["line"]) == (str(folder / "script.py"), 7)
    assert row["plain"]["calls"] == row["jaxmarshal"]["calls"] == 6
    assert row["first"]["plain"]["calls"] == row["first"]["jaxmarshal"]["calls"] == 0
    assert row["jaxmarshal"]["hits"] == 4
    assert row["jaxmarshal"]["misses_by_reason"] == {"no_backend": 1, "not_recorded": 1}
    assert row["estimated_saving"] == 0

    row = site(result, "refused")
    assert row["line"] == 11
    assert row["plain"]["calls"] == row["jaxmarshal"]["misses"] == 7
    assert row["jaxmarshal"]["hits"] == 0
    assert row["jaxmarshal"]["misses_by_reason"] == {"options": 7}
    assert row["estimated_saving"] >= 0

    # What runs on the device, by name and definition.
    row = site(result, "<lambda>", "compiled_call")
    assert (row["name"], row["file"], row["line"]) == ("<lambda>", str(folder / "script.py"), 26)
    assert row["plain"]["calls"] == 5
    assert row["jaxmarshal"]["hits"] == 4
    row = site(result, "double", "jit")
    assert (row["name"], row["file"], row["line"]) == ("double", str(folder / "script.py"), 13)
    assert row["is_definition"]
    assert row["plain"]["calls"] == row["jaxmarshal"]["calls"] == 8
    assert row["jaxmarshal"]["hits"] + row["jaxmarshal"]["misses"] == 8
    assert row["jaxmarshal"]["hits"] >= 6
    # The first call compiles, which the script does not do as it goes.
    assert row["first"]["plain"]["calls"] == row["first"]["jaxmarshal"]["calls"] == 1
    # A function of JAX's own, by who calls it.
    (row,) = [row for row in result["sites"] if row["name"] == "sin"]
    assert (row["line"], row["function"], row["is_definition"]) == (30, "<module>", False)
    # Functions that are replayed, by name, in both runs.
    for name in ("jnp.concatenate", "jax.nn.relu"):
        (row,) = [row for row in result["sites"] if row["name"] == name]
        calls = [row[run]["calls"] + row["first"][run]["calls"] for run in ("plain", "jaxmarshal")]
        assert (row["entry_point"], row["line"], calls) == ("functions", 31, [1, 1])
    for row in result["sites"]:
        assert row["estimated_saving"] is None or not row["plain"]["calls"] or (
            row["estimated_saving"] <= row["plain"]["seconds"]
        )
        assert row["plain"]["seconds"] >= 0 and row["jaxmarshal"]["seconds"] >= 0


def test_nested_calls_belong_to_the_outermost(result):
    """What JAX calls inside an entry point is no call of its own: the totals say so."""
    inside = {row["entry_point"] for row in result["sites"] if row["function"] == "refused"}
    assert inside == {"device_put"}
    assert result["runs"]["jaxmarshal"]["stats"]["batched_device_put"]["misses"] > 0


def test_runs(result):
    """What was run, and that only the second had jaxmarshal installed."""
    plain, ours = result["runs"]["plain"], result["runs"]["jaxmarshal"]
    assert result["script"] == ["script.py", "--json", "x"]
    assert result["interval"] == 0.0005
    assert (plain["exit_status"], ours["exit_status"]) == (0, 0)
    assert plain["installed"] == []
    assert ours["installed"] == sorted(entry.name for entry in patching.ENTRY_POINTS)
    assert all(count["hits"] == count["misses"] == 0 for count in plain["stats"].values())
    for run_ in (plain, ours):
        frames = list(profiles.walk(run_["profile"]))
        assert {"script", "JAX", "entry point"} <= {frame["kind"] for frame in frames}
        for frame in frames:
            own = frame["time"] - sum(child["time"] for child in frame["children"])
            assert own > -1e-6
        assert "double (jit)" in {frame["name"] for frame in frames}
        assert 0 < run_["steady_profile"]["time"] < run_["profile"]["time"]
    # Frames are found again in the other graph.
    tops = [[run_["profile"]["children"][0][key] for key in ("name", "file", "line")]
            for run_ in (plain, ours)]  # fmt: skip
    assert tops[0] == tops[1] == ["MainThread", "<thread>", 0]


class Page(HTMLParser):
    """Collects what a page would load, its text, and its scripts."""

    def __init__(self):
        super().__init__()
        self.loads, self.scripts, self.cells, self.tag = [], [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tag = tag
        names = ("src", "href", "srcset", "data", "action")
        self.loads += [value for name, value in attributes if name in names]

    def handle_data(self, data):
        if self.tag == "script":
            self.scripts.append(data)
        if self.tag == "td":
            self.cells.append(data)


def test_the_page(result, folder):
    """One file that loads nothing, follows the reader's colour scheme, and has all sites."""
    text = (folder / "out.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    page.close()
    assert page.loads == ["out.speedscope.json"]    # a link
    assert not re.search(r"https?://|@import|url\(|fetch\(|import\(", text)
    assert "{{" not in text.replace("${{", "")
    assert "prefers-color-scheme: dark" in text
    for row in result["sites"]:
        assert any(comparison_text.call(row) in cell for cell in page.cells)
    reason = reason_for("device_put", "options")
    assert html.escape(f"{reason.meaning} What to do: {reason.advice}") in text
    data = re.search(r"^const DATA = (.*);$", "".join(page.scripts), re.MULTILINE)
    assert set(json.loads(data[1])) == {"plain", "jaxmarshal"}


def test_the_page_escapes(result):
    """A name from the script cannot become markup."""
    evil = "</script><img src=x>"
    frame = dict(name=evil, file=evil, line=1, kind="script", time=1.0, children=[])
    runs = {
        name: {**run_, "profile": frame, "steady_profile": frame}
        for name, run_ in result["runs"].items()
    }
    sites = [{**result["sites"][0], "function": evil}]
    changed = {**result, "script": [evil], "sites": sites, "runs": runs}
    page = flame.page(changed, evil)
    assert html.escape(comparison_text.summary(changed)) in page
    assert "<img" not in page
    assert page.count("</script>") == 1


def test_the_speedscope_file(result, folder):
    """Every profile is what speedscope's format asks for, and as long as the run was sampled."""
    document = json.loads((folder / "out.speedscope.json").read_text())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(set(frame) <= {"name", "file", "line"} and frame["name"] for frame in frames)
    assert {"name": "double (jit)", "file": str(folder / "script.py"), "line": 13} in frames
    names = [profile["name"] for profile in document["profiles"]]
    assert names == [
        "plain, after the first calls", "plain",
        "jaxmarshal, after the first calls", "jaxmarshal",
    ]  # fmt: skip
    for profile in document["profiles"]:
        run_ = result["runs"][profile["name"].partition(",")[0]]
        assert (profile["type"], profile["unit"]) == ("sampled", "seconds")
        assert profile["startValue"] == 0
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(i in range(len(frames)) for stack in profile["samples"] for i in stack)
        assert profile["endValue"] == pytest.approx(sum(profile["weights"]))
        assert profile["endValue"] == pytest.approx(run_["profile"]["time"])
        shown = sum(
            weight
            for stack, weight in zip(profile["samples"], profile["weights"], strict=True)
            if stack
        )
        all_of_it = run_["steady_profile" if "after" in profile["name"] else "profile"]
        assert shown == pytest.approx(all_of_it["time"])


#: Asks the page itself.
ASK = ASK_WIDTH + """
<script>
say(`TICKS ${document.querySelectorAll(".tick").length}`);
const heads = [...document.querySelectorAll("th")].filter(th => th.textContent === "why not fast");
say(`REASON ${heads.length} ${Math.ceil(heads[0].getBoundingClientRect().right)}`);
const frames = () => document.querySelectorAll(".frame").length, few = frames();
document.getElementById("all").click();
say(`FRAMES ${few} ${frames()}`);
</script>
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(compared, folder, tmp_path, scheme):
    """Both graphs with time axes, no error, and all columns within 1200 pixels."""
    page = tmp_path / "page.html"
    errors = "<script>window.onerror = (text) => document.title = 'ERROR ' + text;</script>"
    text = (folder / "out.html").read_text(encoding="utf-8")
    text = text.replace("<td>", f"<td>{'long_name_' * 30}", 1)
    page.write_text(text.replace("<style>", f"{errors}<style>", 1) + ASK, encoding="utf-8")
    found, console = opened(page.as_uri(), tmp_path, in_scheme(scheme))
    assert "<title>ERROR" not in found
    assert console == []
    assert found.count('class="graph"') == 2
    panels = found.split("<section>")[1:]
    assert all(panel.count('class="frame"') > 10 for panel in panels)
    width, window = map(int, re.search(r"WIDTH (\d+) of (\d+)", found).groups())
    assert width <= window <= WIDTH
    assert int(re.search(r"TICKS (\d+)", found)[1]) >= 6
    tables, right = map(int, re.search(r"REASON (\d+) (\d+)", found).groups())
    assert tables == 1 and right <= window
    few, many = map(int, re.search(r"FRAMES (\d+) (\d+)", found).groups())
    assert 20 < few < many


FRONTS = """
    import jax.numpy as jnp
    import jaxmarshal

    def own(settings, x):
        return x * settings["factor"]

    calls = [jaxmarshal.filter_jit(own)]
    try:
        import equinox as eqx

        @eqx.filter_jit
        def estep(settings, x):
            return x * settings["factor"]

        calls.append(estep)
    except ImportError:
        pass
    try:
        from flax import nnx

        @nnx.jit
        def nstep(settings, x):
            return x * settings["factor"]

        calls.append(lambda settings, x: nstep({"factor": x}, x))
    except ImportError:
        pass
    x = jnp.arange(3.0)
    for _ in range(9):
        for call in calls:
            call({"factor": 2.0}, x)
"""


def test_functions_of_libraries(tmp_path):
    """One row for each, at the user's function, timed in both runs; none for what they lead to."""
    (tmp_path / "script.py").write_text(textwrap.dedent(FRONTS))
    done = compare("--json", "out.json", "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    rows = {row["name"]: row for row in result["sites"] if row["name"] in ("own", "estep", "nstep")}
    expected = [("own", "filter_jit", 5)]
    active = {front.name for front in fronts.FRONTS if fronts.why_inactive(front) is None}
    if "equinox_filter_jit" in active:
        expected.append(("estep", "equinox_filter_jit", 12))
    if "nnx_jit" in active:
        expected.append(("nstep", "nnx_jit", 22))
    assert len(rows) == len(expected)
    for name, entry_point, line in expected:
        row = rows[name]
        assert (row["entry_point"], row["line"]) == (entry_point, line)
        assert (row["file"], row["is_definition"]) == (str(tmp_path / "script.py"), True)
        assert row["plain"]["calls"] == row["jaxmarshal"]["calls"] == 6
        assert row["jaxmarshal"]["hits"] == 6
        assert row["first"]["plain"]["calls"] == row["first"]["jaxmarshal"]["calls"] == 3
        assert row["plain"]["seconds"] > 0 and row["jaxmarshal"]["seconds"] > 0
        assert comparison_text.call(row) in done.stderr
        assert result["runs"]["plain"]["stats"][entry_point]["misses"] == 0
        assert result["runs"]["jaxmarshal"]["stats"][entry_point]["hits"] >= 6
        assert f"{name} ({entry_point})" in {
            frame["name"] for frame in profiles.walk(result["runs"]["plain"]["profile"])
        }
    names = {entry_point for _, entry_point, _ in expected} - {"filter_jit"}
    assert result["runs"]["plain"]["installed"] == []
    assert names <= set(result["runs"]["jaxmarshal"]["installed"])
    # What they lead to is no row of its own.
    assert [row for row in result["sites"] if row["plain"]["calls"]] == [
        row for row in result["sites"] if row["name"] in rows
    ]


INTERRUPTED = """
    import pathlib, sys, time
    import jax, numpy as np

    @jax.jit
    def double(x):
        return x * 2

    runs, last = pathlib.Path("runs"), sys.argv[1]
    number = len(runs.read_text()) + 1 if runs.exists() else 1
    runs.write_text("x" * number)
    x, end = jax.device_put(np.ones(3, np.float32)), time.time() + 120
    for i in range(10**9):
        x = double(x)
        if i == 500:
            if str(number) != last:
                break
            pathlib.Path("here").touch()
        if time.time() > end:
            break
"""


@pytest.mark.parametrize("runs", [["plain"], ["plain", "jaxmarshal"]])
def test_interrupted(tmp_path, runs):
    """Ctrl-C: what was recorded until then is shown and written, and nothing further is run."""
    (tmp_path / "script.py").write_text(textwrap.dedent(INTERRUPTED))
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxmarshal", "compare", "--json", "out.json", "--html", "out.html",
         "script.py", str(len(runs))],
        cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not (tmp_path / "here").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)    # as a terminal does
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 130, stderr
    assert f"note: Interrupted in the {runs[-1]} run.\n" in stderr
    assert "double (jit)" in stderr
    assert ("there is no jaxmarshal run" in stderr) == (len(runs) == 1)
    assert "calls after the first ones took" in stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert list(result["runs"]) == runs
    row = site(result, "double", "jit")
    assert row["plain"]["calls"] >= 490
    assert row["jaxmarshal"]["hits"] == row["jaxmarshal"]["calls"]
    assert (row["jaxmarshal"]["calls"] >= 490) == (len(runs) == 2)
    assert "double (jit)" in (tmp_path / "out.html").read_text(encoding="utf-8")
    profiles = json.loads((tmp_path / "out.speedscope.json").read_text())["profiles"]
    assert len(profiles) == 2 * len(runs)


def test_interrupted_before_jax(tmp_path):
    """Nothing to show is said."""
    (tmp_path / "script.py").write_text("raise KeyboardInterrupt")
    done = compare("script.py", cwd=tmp_path)
    assert done.returncode == 130
    assert "interrupted; nothing was recorded" in done.stderr


INSTALLS = """
    import jax, numpy as np
    import jaxmarshal.auto
    import jaxmarshal

    double = jaxmarshal.exclude(jax.jit(lambda x: x * 2))
    triple = jaxmarshal.jit(lambda x: x * 3)
    x = jax.device_put(np.ones(3, np.float32))
    for _ in range(10):
        double(x)
        with jaxmarshal.installed():
            triple(x)
    with jaxmarshal.uninstalled():
        for _ in range(5):
            jax.device_put(np.ones(3, np.float32))
            triple(x)
    print([row.call for row in jaxmarshal.report().rows])
"""


def test_a_script_that_installs_jaxmarshal(tmp_path):
    """The plain run is plain all the same; what the script excludes is JAX's in the other one."""
    (tmp_path / "script.py").write_text(textwrap.dedent(INSTALLS))
    done = compare("--json", "out.json", "--warmup", "0", "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["runs"]["plain"]["installed"] == []
    by_line = {row["line"]: row for row in result["sites"] if row["entry_point"] == "jit"}
    double, triple = by_line[6], by_line[7]
    assert double["plain"]["calls"] == double["jaxmarshal"]["calls"] == 9
    assert (double["jaxmarshal"]["hits"], double["jaxmarshal"]["misses"]) == (0, 0)
    assert triple["plain"]["calls"] == triple["jaxmarshal"]["calls"] == 14
    assert triple["jaxmarshal"]["hits"] >= 12    # `jaxmarshal.jit` stays fast without install()
    assert result["runs"]["plain"]["stats"]["jit"]["hits"] == 0
    # The calls by which a report measures what was saved are none of the script's.
    assert not [row for row in result["sites"] if row["line"] == 16]
    assert "'<lambda> (jit), script.py:7'" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("warmup", "steady"), [("3", 6), ("100", 0), ("0", 8), ("1000s", 0), ("0s", 8)]
)
def test_warmup(tmp_path, warmup, steady):
    """How many calls of a row are apart; what compiles is apart in any case."""
    (tmp_path / "script.py").write_text(
        "import jax\nf = jax.jit(lambda x: x + 1)\nfor _ in range(9):\n    f(1.0)\n"
    )
    done = compare("--warmup", warmup, "--json", "out.json", "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "out.json").read_text())["sites"]
    for run_ in ("plain", "jaxmarshal"):
        assert (row[run_]["calls"], row["first"][run_]["calls"]) == (steady, 9 - steady)
    if not steady:
        assert row["estimated_saving"] == 0 and ": none" in done.stderr
        assert "all 9 calls of the plain run are first ones" in done.stderr


def test_a_script_that_fails(tmp_path):
    """The script's status, which run it was, and what was recorded until then."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, jax\njax.device_put(1.0)\n"
        "sys.exit(3 if 'jaxmarshal' in type(jax.device_put.__wrapped__).__module__ + "
        "jax.device_put.__wrapped__.__module__ else 0)\n"
    )
    done = compare("--json", str(tmp_path / "out.json"), str(script))
    assert done.returncode == 3
    assert "the run 'jaxmarshal' ended with exit status 3\n" in done.stderr
    assert "the run 'plain'" not in done.stderr
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert (runs["plain"]["exit_status"], runs["jaxmarshal"]["exit_status"]) == (0, 3)


def test_a_script_that_is_killed(tmp_path):
    """Reported as a shell would; there is nothing to compare."""
    script = tmp_path / "dies.py"
    script.write_text("import os, signal, jax\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = compare("--json", str(tmp_path / "out.json"), str(script))
    assert done.returncode == 128 + 9
    assert "the run 'plain' was ended by SIGKILL\n" in done.stderr
    assert "no comparison" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_script_without_jax(tmp_path):
    """Nothing to record is said as such."""
    (tmp_path / "script.py").write_text("")
    done = compare(str(tmp_path / "script.py"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "the script did not import JAX" in done.stderr


def test_a_module_and_the_input(folder):
    """`-m`, an input that both runs read from its beginning, and a chosen entry point."""
    (folder / "module.py").write_text(
        "import sys, jax\njax.device_put(1.0)\nprint(sys.stdin.read(), __name__, sys.argv[1:])\n"
    )
    (folder / "input").write_text("some input")
    code = (
        "import os, runpy, sys\nos.dup2(os.open('input', os.O_RDONLY), 0)\n"
        "sys.argv = ['jaxmarshal', 'compare', '--only', 'shard_args', '--json', 'm.json',"
        " '-m', 'module', '-x']\n"
        "runpy.run_module('jaxmarshal', run_name='__main__')"
    )
    done = run("-c", code, cwd=folder)
    assert (done.returncode, done.stdout) == (0, "some input __main__ ['-x']\n" * 2), done.stderr
    result = json.loads((folder / "m.json").read_text())
    assert result["runs"]["jaxmarshal"]["installed"] == ["shard_args"]
    assert site(result, "<module>")["first"]["jaxmarshal"]["calls"] == 1


def test_switched_off(folder):
    """`JAXMARSHAL=off` is obeyed and said."""
    done = compare("script.py", cwd=folder, JAXMARSHAL="off")
    assert done.returncode == 0
    assert "note: jaxmarshal was not installed in the second run" in done.stderr


@pytest.mark.slow
def test_trace(folder):
    """Two more runs, a trace of each, and a script that may still choose its platform."""
    (folder / "late.py").write_text(
        "import jax\njax.config.update('jax_platforms', 'cpu')\n"
        "jax.jit(lambda x: x + 1)(1.0)\nprint(jax.default_backend())\n"
    )
    done = compare("--trace", "traces", "late.py", cwd=folder, JAX_PLATFORMS="nonsense")
    assert (done.returncode, done.stdout) == (0, "cpu\n" * 4), done.stderr
    for name in ("plain", "jaxmarshal"):
        assert list((folder / "traces" / name).rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a script"),
        (["nowhere.py"], "no script 'nowhere.py'"),
        (["--json", "/no/such/folder/x", __file__], "cannot write '/no/such/folder/x'"),
        (["--html", "/", __file__], "cannot write '/'"),
        (["--trace", f"{__file__}/x", __file__], "cannot write into"),
        (["--only", "nothing", __file__], "unknown entry points"),
        (["--interval", "0", __file__], "not a number of seconds above 0"),
        (["--interval", "x", __file__], "not a number of seconds above 0"),
        (["--warmup", "x", __file__], "neither a number of calls"),
        (["--warmup", "-1", __file__], "neither a number of calls"),
        (["--warmup=-1s", __file__], "neither a number of calls"),
        (["--warmup", "2.5", __file__], "neither a number of calls"),
        (["--nonsense", __file__], "--nonsense"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",
)
def test_bad_arguments(arguments, message, capfd):
    """Exit status 2 before anything is run."""
    status = status_of("compare", *arguments)
    output = capfd.readouterr()
    assert (status, output.out) == (2, "")
    assert message in output.err
    assert "run: plain" not in output.err


def test_without_pyinstrument(monkeypatch, capfd, tmp_path):
    """The extra that has it is named."""
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    assert main(["compare", __file__]) == 2
    assert capfd.readouterr().err == (
        "jaxmarshal compare: pyinstrument is not installed; pip install 'jaxmarshal[bench]'\n"
    )
