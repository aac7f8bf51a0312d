"""Objects that nothing has filled in, deleted, or donated: the errors of JAX, or its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxmarshal

#: So many cases may end the process.
DEATHS = 60


def outcomes(side: str) -> tuple[dict[str, object], int]:
    """What became of each case, and how many calls were accelerated.

    A process that dies is started again after the case that it died of.
    """
    found: dict[str, object] = {}
    here = Path(__file__).parent
    package = Path(jaxmarshal.__file__).parents[1]
    paths = (package, here.parent / "harness", here)
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONFAULTHANDLER": "0",
    }  # fmt: skip
    for _ in range(DEATHS):
        done = subprocess.run(
            [sys.executable, str(here / "crash.py"), side, str(len(found))],
            capture_output=True, text=True, timeout=300, env=environment,
        )  # fmt: skip
        last = None
        for line in done.stdout.splitlines():
            name, *outcome = json.loads(line)
            if name == "hits":
                return found, outcome[0]
            last = name
            if outcome:
                found[name] = outcome[0]
        assert last is not None and last not in found, done.stderr
        found[last] = f"died with {done.returncode}"
    raise AssertionError(f"{side}: more than {DEATHS} cases ended the process")


@pytest.mark.slow
@pytest.mark.one_version
def test_objects():
    """Each odd object, in each place."""
    expected, _ = outcomes("jax")
    found, hits = outcomes("jaxmarshal")
    assert hits > 20
    assert len(expected) > 120
    assert list(found) == list(expected)
    different = {
        name: (expected[name], found[name])
        for name in expected
        if expected[name] != found[name] and not str(expected[name]).startswith("died")
    }
    lines = [f"{name}: JAX {a}; jaxmarshal {b}" for name, (a, b) in different.items()]
    assert not lines, "\n".join(lines)
