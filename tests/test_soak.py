"""The figures of the soak in the documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOAK = ROOT / "soak"


def test_document_says_what_the_soak_said():
    """The table in docs/reliability.md is that of soak/figures.json, and nothing failed in it."""
    figures = SOAK / "figures.json"
    done = subprocess.run(
        [sys.executable, str(SOAK / "run.py"), "--from", str(figures)],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert done.stdout in text
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert f"Python {found['python']} with JAX {found['jax']}" in text
    assert all(report["passed"] for report in found["reports"])
