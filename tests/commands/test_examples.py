"""Every example runs, computes the same both ways, and takes the fast path."""

from __future__ import annotations

import ast
import importlib.util
import re

import pytest
from child import run
from support import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
HELPER = "side_by_side"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != HELPER)

#: The calls that each takes a step through, as the rows of the table name them.
FAST = {
    "training": {"jax.device_put", "update (compiled)"},
    "serving": {"model (compiled)"},
    "environment": {"jax.device_put", "policy (compiled)"},
    "sampler": {"metropolis (compiled)"},
    "packed": {"jax.device_put", "update (jit)"},
}

pytestmark = [
    pytest.mark.commands,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the tests run without the folder examples/"),
]


def run_example(name, *arguments):
    """Run an example in a process of its own."""
    if name == "training" and importlib.util.find_spec("optax") is None:
        pytest.skip("optax is not installed: examples/training.py was NOT tested")
    return run(str(EXAMPLES / f"{name}.py"), *arguments, JAXMARSHAL=None)


def test_none_is_forgotten():
    """Each example is run below and has a paragraph in the README."""
    assert sorted(FAST) == NAMES
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"[`{name}.py`]({name}.py)" in text for name in (*NAMES, HELPER))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAST))
def test_example(name):
    """It prints both times, the results agree, and every step but the first is a hit."""
    done = run_example(name, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    title, before, after, speedup, results, summary, _, *lines = done.stdout.splitlines()
    assert re.fullmatch(rf"{name}: 10 steps, JAX [\w.]+, cpu", title)
    assert re.fullmatch(r"before, plain JAX: +\d+\.\d µs per step, 0 fast calls", before)
    assert re.fullmatch(r"after, jaxmarshal: +\d+\.\d µs per step, [1-9]\d* fast calls", after)
    assert re.fullmatch(r"speedup: +\d+\.\d\d ×", speedup)
    agreement = "equal within 0.0001" if name == "packed" else "identical bit for bit"
    assert re.fullmatch(rf"results: +{agreement}", results)
    counted = r"jaxmarshal: \d+ calls, [\d.]+ % of them fast(, at least .+ saved)? .+"
    assert re.fullmatch(counted, summary)
    rows = (re.match(r"  (\S.*?)(, \S+:\d+)?  +(\d+) +([\d.]+) %", line) for line in lines)
    fast = {row[1] for row in rows if row and int(row[3]) * float(row[4]) / 100 >= 7.9}
    assert fast >= FAST[name]


@pytest.mark.parametrize("name", sorted(FAST))
def test_example_is_short(name):
    """A newcomer reads it in one go."""
    source = (EXAMPLES / f"{name}.py").read_text()
    assert len(source.splitlines()) < 100
    assert ast.get_docstring(ast.parse(source))


def test_a_difference_is_noticed(monkeypatch):
    """The comparison sees the sign of a zero, a dtype, a shape and a structure."""
    import numpy as np

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import side_by_side

    same = side_by_side.same_bits
    x = [np.zeros(2, np.float32), {"a": np.ones(3)}]
    assert same(x, [np.zeros(2, np.float32), {"a": np.ones(3)}])
    assert not same(x, [-np.zeros(2, np.float32), {"a": np.ones(3)}])
    assert not same(x, [np.zeros(2, np.int32), {"a": np.ones(3)}])
    assert not same(x, [np.zeros((2, 1), np.float32), {"a": np.ones(3)}])
    assert not same(x, (np.zeros(2, np.float32), {"a": np.ones(3)}))


def test_help():
    """The options are explained."""
    done = run_example("sampler", "--help")
    assert done.returncode == 0
    assert "--quick" in done.stdout
