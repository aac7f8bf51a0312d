"""`python -m jaxmarshal compare`, through real processes. No time is asserted, only counts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from html.parser import HTMLParser

import pytest
from child import run, status_of

from jaxmarshal import _compare, _flame, _install, _record
from jaxmarshal.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.commands, pytest.mark.reports]

SCRIPT = """
    import sys
    import jax
    import numpy as np

    def feed(values):
        return [jax.device_put(value) for value in values]

    def refused(value):
        for _ in range(7):
            jax.device_put(value, may_alias=False)

    class Model:
        def train(self, step, x):
            for _ in range(5):
                x = step(x)
            return x

    feed([np.arange(3.0)] * 4)
    feed([np.arange(4)] * 2)
    refused(np.arange(3.0))
    step = jax.jit(lambda x: x + 1).lower(np.float32(1)).compile()
    print(Model().train(step, jax.device_put(np.float32(1))), sys.argv[1:])
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
        "--json", "out.json", "--html", "out.html", "--interval", "0.0005",
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
    assert lines[:2] == ["jaxmarshal compare: run: plain", "jaxmarshal compare: run: jaxmarshal"]
    row = next(line for line in lines if "refused" in line).split()
    assert row[0] == "device_put" and row[3] == "7" and row[-2:] == ["options", "7"]
    assert "Counting and sampling slow both runs" in compared.stderr
    assert "estimates" in compared.stderr
    assert compared.stderr.isprintable() or "\x1b" not in compared.stderr


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
    assert row["jaxmarshal"]["hits"] == 4
    assert row["jaxmarshal"]["misses_by_reason"] == {"no_backend": 1, "not_recorded": 1}
    assert row["estimated_saving"] == 0

    row = site(result, "refused")
    assert row["line"] == 11
    assert row["plain"]["calls"] == row["jaxmarshal"]["misses"] == 7
    assert row["jaxmarshal"]["hits"] == 0
    assert row["jaxmarshal"]["misses_by_reason"] == {"options": 7}
    assert row["estimated_saving"] >= 0

    row = site(result, "Model.train", "compiled_call")
    assert row["plain"]["calls"] == 5
    assert row["jaxmarshal"]["hits"] == 4
    for row in result["sites"]:
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
    assert ours["installed"] == sorted(entry.name for entry in _install.ENTRY_POINTS)
    assert all(count["hits"] == count["misses"] == 0 for count in plain["stats"].values())
    for run_ in (plain, ours):
        frames = list(_compare._frames(run_["profile"]))
        assert {"script", "JAX", "entry point"} <= {frame["kind"] for frame in frames}
        for frame in frames:
            own = frame["time"] - sum(child["time"] for child in frame["children"])
            assert own > -1e-6
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
    assert page.loads == []
    assert not re.search(r"https?://|@import|url\(|fetch\(|import\(", text)
    assert "{{" not in text.replace("${{", "")
    assert "prefers-color-scheme: dark" in text
    for row in result["sites"]:
        assert any(row["function"] in cell for cell in page.cells)
    data = re.search(r"^const DATA = (.*);$", "".join(page.scripts), re.MULTILINE)
    assert set(json.loads(data[1])) == {"plain", "jaxmarshal"}


def test_the_page_escapes(result):
    """A name from the script cannot become markup."""
    evil = "</script><img src=x>"
    frame = dict(name=evil, file=evil, line=1, kind="script", time=1.0, children=[])
    runs = {name: {**run_, "profile": frame} for name, run_ in result["runs"].items()}
    sites = [{**result["sites"][0], "function": evil}]
    page = _flame.page({**result, "script": [evil], "sites": sites, "runs": runs})
    assert "<img" not in page
    assert page.count("</script>") == 1


def test_the_page_in_a_browser(compared, folder):
    """Both graphs are drawn."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium: the page was NOT opened in a browser")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={folder / 'profile'}", str(folder / "out.html")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.count('class="graph"') == 2
    panels = done.stdout.split("<section>")[1:]
    assert all(panel.count('class="frame"') > 10 for panel in panels)


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
    assert site(result, "<module>")["jaxmarshal"]["calls"] == 1


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


def outcomes(**found):
    return {
        reason: {"calls": calls, "seconds": seconds, "longest": longest}
        for reason, (calls, seconds, longest) in found.items()
    }


def row(entry_point="device_put", line=1, **found):
    return {
        "entry_point": entry_point, "file": "f", "line": line, "function": "g",
        "outcomes": outcomes(**found),
    }  # fmt: skip


def savings(plain, ours):
    found = _compare.sites(plain, ours)
    return {(row["entry_point"], row["line"]): row["estimated_saving"] for row in found}


def test_the_estimate():
    """Misses × (mean of a missed call − mean of a hit), the slowest call left out."""
    ours = [row(hit=(11, 20.0, 10.0)), row(line=2, options=(3, 102.0, 92.0))]
    assert savings([], ours)["device_put", 2] == pytest.approx(3 * (5 - 1))
    # What cannot be avoided does not count: the first recording, and calls inside a trace.
    ours = [row(hit=(11, 20.0, 10.0), not_recorded=(1, 9.0, 9.0), trace=(4, 99.0, 50.0))]
    assert savings([], ours)["device_put", 1] == 0
    # Without a hit at that entry point, the speedup of the script's other hits is taken.
    plain = [{**row(), "outcomes": {"": {"calls": 2, "seconds": 8.0, "longest": 4.0}}}]
    ours = [row(hit=(2, 2.0, 1.0)), row("shard_args", options=(2, 16.0, 8.0))]
    assert savings(plain, ours)["shard_args", 1] == pytest.approx(2 * (8 - 2))
    # Without any hit there is nothing to tell from; hits that are slower save nothing.
    assert savings([], ours[1:])["shard_args", 1] is None
    ours = [row(hit=(2, 20.0, 10.0), options=(2, 2.0, 1.0))]
    assert savings([], ours)["device_put", 1] == 0


def test_a_site_of_one_run_only():
    """A call that only one run made is a row all the same."""
    (found,) = _compare.sites([row(hit=(1, 1.0, 1.0))], [])
    assert (found["plain"]["calls"], found["jaxmarshal"]["calls"]) == (1, 0)


def test_the_tree_of_samples():
    """Equal stacks are one frame wherever they were sampled; a deep recursion is cut off."""
    stacks = [(["main\x00s.py\x001\x01l5", "a\x00s.py\x002"], 1.0), (["main\x00s.py\x001"], 2.0)]
    root = _record.tree([*stacks, *stacks])
    (top,) = root["children"]
    assert (root["time"], top["name"], top["line"], top["time"]) == (6.0, "main", 1, 6.0)
    assert [(child["name"], child["time"]) for child in top["children"]] == [("a", 2.0)]
    deep = _record.tree([([f"f\x00s.py\x00{i}" for i in range(9000)], 1.0)])
    assert len(list(_compare._frames(deep))) == _record.MOST_FRAMES + 1
    json.dumps(deep)
