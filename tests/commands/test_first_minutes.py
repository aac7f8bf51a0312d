"""From the README's first screen to an answer, in two commands, on an example."""

from __future__ import annotations

import importlib.util
import re
import tomllib

import pytest
from child import run
from support import REPOSITORY

from jaxmarshal.reasons import PUBLIC, REASONS, reason_for

README = REPOSITORY / "README.md"
SCRIPT = REPOSITORY / "examples" / "training.py"

#: What of the README a reader sees without scrolling.
FIRST_SCREEN = 45

pytestmark = [
    pytest.mark.commands,
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="the tests run without README.md and examples/"),
]


def commands():
    """The first two commands that take a script, as arguments of Python."""
    lines = README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN]
    found = [line for line in lines if line.startswith("python -m jaxmarshal")]
    return [line.partition("#")[0].split()[1:] for line in found if "script.py" in line][:2]


def answer(arguments):
    """What a command says about the example, with the name of the script put in."""
    if importlib.util.find_spec("optax") is None:
        pytest.skip("optax is not installed: the README's commands were NOT tried")
    script = [str(SCRIPT), "--steps", "50", "--rounds", "1"]
    at = arguments.index("script.py")
    done = run(*arguments[:at], *script, *arguments[at + 1 :], cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert "identical bit for bit" in done.stdout
    return done


def test_the_first_screen():
    """How to get it, one import, four programs, where it does not help, and two commands."""
    text = "\n".join(README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN])
    places = [
        text.index(part)
        for part in ("pip install", "import jaxmarshal.auto", "| program", "does not help")
    ]
    assert places == sorted(places)
    assert len(commands()) == 2
    assert not re.search("^make ", text, re.MULTILINE)
    rows = re.findall(r"^\| .+ \| ([\d.]+) × \|", text, re.MULTILINE)
    assert len(rows) == 4
    (median,) = re.findall(r"run at ([\d.]+) × or more", text)
    assert min(map(float, rows)) < float(median) < max(map(float, rows))


def test_what_the_commands_need():
    """The first screen says it, and the project knows the extras by these names."""
    text = "\n".join(README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN])
    (extras,) = re.findall(r"^pip install '\.\[(.+)\]'$", text, re.MULTILINE)
    assert set(extras.split(",")) == {"bench", "examples"}
    assert text.index(extras) < text.index("python -m jaxmarshal")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_what_does_it_give():
    """`compare`: the calls of the loop by name and line, both times, and how many were hits."""
    (said,) = [answer(arguments).stderr for arguments in commands() if "compare" in arguments]
    found = re.search(
        r"took ([\d.]+) ms with plain JAX and ([\d.]+) ms with jaxmarshal; ([\d.]+)% of them", said
    )
    assert found, said
    assert float(found[3]) > 80
    (row,) = [line for line in said.splitlines() if line.split()[:2] == ["update", "(compiled)"]
              and len(line.split()) == 8]  # fmt: skip
    number = next(i for i, line in enumerate(SCRIPT.read_text().splitlines(), 1)
                  if line.startswith("def update"))  # fmt: skip
    where, calls, hits = row.split()[2:5]
    assert where == f"examples/training.py:{number}"
    assert calls == hits and int(calls) >= 95
    # What the reasons in the table mean is told below it.
    table = said.partition("  call ")[2].partition("apart: ")[0].splitlines()
    rows = [line for line in table if line.startswith("  ")]
    shown = {name for line in rows for name in re.findall(r"(\w+) \d+(?:,|$)", line)}
    shown &= {reason.name for reason in REASONS}
    told = {line.partition(":")[0].partition(",")[0] for line in table if "What to do: " in line}
    assert told == shown


def test_what_the_example_says():
    """Under `run`, too, one side is plain JAX, the other has the fast calls; both were timed."""
    (done,) = [answer(arguments) for arguments in commands() if "run" in arguments]
    plain = re.search(r"^before, plain JAX: .+, (\d+) fast calls$", done.stdout, re.MULTILINE)
    fast = re.search(r"^after, jaxmarshal: .+, (\d+) fast calls$", done.stdout, re.MULTILINE)
    assert plain and int(plain[1]) == 0, done.stdout
    assert fast and int(fast[1]) >= 95, done.stdout
    (speedup,) = re.findall(r"^speedup: +([\d.]+) ×$", done.stdout, re.MULTILINE)
    assert float(speedup) > 0, done.stdout
    assert "\njaxmarshal: " in done.stdout and "hits," not in done.stdout


def test_why_is_this_call_not_fast():
    """`run --report`: each kind of call, the share that was fast, and what to do about the rest."""
    (said,) = [answer(arguments).stderr for arguments in commands() if "run" in arguments]
    title, _, *lines = said.splitlines()
    assert re.fullmatch(
        r"jaxmarshal: \d+ calls, [\d.]+ % of them fast, at least [\d.]+ [mµ]?s saved", title
    )
    rows = {line.split("  ")[1].strip(): line for line in lines if line.startswith("  ")}
    # The steps of one side: those of plain JAX are none of jaxmarshal's calls.
    assert re.search(r"\s50\s+9\d\.\d %", rows["jax.device_put"]), rows
    reasons = {
        call: reason[1]
        for call, line in rows.items()
        if (reason := re.search(r"%.*?\s(\w+) \(\d+\)$", line))
    }
    assert reasons["jax.device_put"] == "not_recorded"
    # The function of the loop, by its name and line; the other side of it is plain JAX.
    number = next(i for i, line in enumerate(SCRIPT.read_text().splitlines(), 1)
                  if line.startswith("def update"))  # fmt: skip
    row = rows[f"update (compiled), examples/training.py:{number}"]
    assert re.search(r"\s\d\d\s+9\d\.\d %", row), row
    entry_points = {call: entry_point for entry_point, call in PUBLIC.items()}
    for call, name in reasons.items():
        kind = {"(jit)": "jit", "(compiled)": "compiled_call"}.get(call.split(",")[0].split()[-1])
        reason = reason_for(kind or entry_points.get(call, "functions"), name)
        assert any(
            line.startswith(name) and line.endswith(f"{reason.meaning} What to do: {reason.advice}")
            for line in lines
        ), (call, name)
