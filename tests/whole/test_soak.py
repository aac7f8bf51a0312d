"""What the long programs in `soak/` rely on, and the figures of the soak in the documents."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support import REPOSITORY

SOAK = REPOSITORY / "soak"
sys.path.insert(0, str(SOAK))

import guards  # noqa: E402

GUARDS = guards.guards()


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.what)
def test_guards_are_where_they_are_said_to_be(guard):
    """`make guards` finds the text of each guard once, takes something out, and knows its tests."""
    text = (REPOSITORY / guard.path).read_text(encoding="utf-8")
    assert guard.without(text) != text
    assert guard.tests
    assert set(guard.also) <= {other.what for other in GUARDS}
    for test in guard.tests:
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (REPOSITORY / "tests" / file).read_text(encoding="utf-8")


def test_document_says_what_the_soak_said():
    """The table in docs/reliability.md is that of soak/figures.json, and nothing failed in it."""
    figures = SOAK / "figures.json"
    done = subprocess.run(
        [sys.executable, str(SOAK / "run.py"), "--from", str(figures)],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    text = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert done.stdout in text
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert f"Python {found['python']} with JAX {found['jax']}" in text
    assert all(report["passed"] for report in found["reports"])
