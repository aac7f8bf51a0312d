"""Constants that JAX passes to executables as arguments, where it was told so at import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from child import PACKAGE_ROOT, run
from conftest import LAYOUT_OFF


@pytest.mark.slow
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_constants_that_are_arguments():
    """Trap 5: everything in `constants_checks.py`, in a process that is told."""
    checks = Path(__file__).resolve().parent / "constants_checks.py"
    done = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(checks),
        cwd=checks.parent.parent, JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="1",
        # Some of its tests are with those of `jit`.
        PYTHONPATH=os.pathsep.join([str(PACKAGE_ROOT), str(checks.parents[1] / "jit")]),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
