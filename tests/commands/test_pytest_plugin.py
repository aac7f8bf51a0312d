"""`pytest --jaxmarshal`, through real processes, with and without workers."""

from __future__ import annotations

import importlib.util
import re
import textwrap
import tomllib

import pytest
from child import run
from support import REPOSITORY

pytestmark = pytest.mark.commands

SUITE = """
    import pytest

    @pytest.mark.parametrize("i", range(4))
    def test_put(i):
        import jax, numpy as np
        from jaxmarshal._jax import patching
        assert len(patching.installed_names()) > 10
        for _ in range(5):
            jax.device_put(np.zeros(3))
"""


@pytest.fixture
def suite(tmp_path):
    """Run pytest over the files of a folder, with the plugin as an installed package has it."""

    def run_suite(*arguments, text=SUITE, conftest="", **environment):
        (tmp_path / "test_suite.py").write_text(textwrap.dedent(text))
        (tmp_path / "conftest.py").write_text(textwrap.dedent(conftest))
        plugin = () if _is_registered() else ("-p", "jaxmarshal_pytest")
        return run(
            "-m", "pytest", *plugin, "-q", "-p", "no:cacheprovider", *arguments, str(tmp_path),
            cwd=tmp_path, **environment,
        )

    return run_suite


def _is_registered():
    import importlib.metadata

    points = importlib.metadata.entry_points(group="pytest11")
    return any(point.value == "jaxmarshal_pytest" for point in points)


def row(done, call):
    """Calls and share of a row of the summary."""
    found = re.search(rf"^  {re.escape(call)} +(\d+) +([\d.]+) %", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1]), float(found[2])


def test_the_summary(suite):
    """The whole suite ran with it, and its calls are counted."""
    done = suite("--jaxmarshal")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert row(done, "jax.device_put") == (20, 95.0)
    assert "no_backend (1)" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist: NOT tested")
def test_the_sum_over_workers(suite):
    """Hits and misses of all workers; each has a first call of its own."""
    done = suite("--jaxmarshal", "-n", "2", "--dist", "each")
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
    assert "2 of 2 workers have counted" in done.stdout
    assert row(done, "jax.device_put") == (40, 95.0)


def test_without_the_option(suite):
    """Nothing is installed, imported or printed."""
    text = "import sys\ndef test_it(): assert 'jax' not in sys.modules"
    done = suite(text=text)
    assert done.returncode == 0, done.stdout
    assert "jaxmarshal" not in done.stdout
    done = suite("--jaxmarshal", text=text)
    assert done.returncode == 0, done.stdout
    assert "JAX was not imported" in done.stdout


def test_what_a_suite_sets_before_it_imports_jax(suite):
    """The plugin imports neither JAX nor jaxmarshal before the suite does."""
    done = suite(
        "--jaxmarshal",
        text="""
            def test_it():
                import jax
                assert jax.numpy.arange(3.0).dtype == "float64"
        """,
        conftest="""
            import os, sys
            assert "jax" not in sys.modules and "jaxmarshal" not in sys.modules
            os.environ["JAX_ENABLE_X64"] = "1"
        """,
    )
    assert done.returncode == 0, done.stdout


def test_switched_off(suite):
    """JAXMARSHAL=off is stronger, and said."""
    done = suite(
        "--jaxmarshal", JAXMARSHAL="off",
        text="def test_it():\n    import jax; assert jax.device_put.__module__ == 'jax._src.api'",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "JAXMARSHAL=off: it was not installed" in done.stdout


def test_the_entry_point_is_declared():
    """pytest finds the plugin by the name in pyproject.toml; importing it imports no JAX."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"jaxmarshal": "jaxmarshal_pytest"}
    code = "import sys, jaxmarshal_pytest; print({'jax', 'jaxmarshal'} & set(sys.modules))"
    done = run("-c", code)
    assert (done.returncode, done.stdout) == (0, "set()\n")
