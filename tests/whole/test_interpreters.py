"""Interpreters that are refused: a second one of a process, and one without the GIL."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from child import run_code
from support import REPOSITORY

import jaxmarshal

pytestmark = pytest.mark.commands

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

#: Runs code in an interpreter of its own, with or without the GIL of the main one where the two
#: can be told apart. The module has had several names.
SUBINTERPRETER = """
    import sys
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters

    def create(kind):
        if hasattr(interpreters, "new_config"):
            return interpreters.create(kind)
        return interpreters.create(isolated=kind == "isolated")

    def run(kind, code):
        failed = interpreters.run_string(create(kind), code)
        sys.stdout.flush()
        assert failed is None, failed
"""

IMPORT = r"""
import sys
for module in ("jaxmarshal", "jaxmarshal.auto", "jaxmarshal._core.values.trees"):
    try:
        __import__(module)
        print("imported", module)
    except ImportError as error:
        print(error)
print("jax" in sys.modules, "numpy" in sys.modules)
sys.stdout.flush()
"""

MESSAGE = (
    "jaxmarshal cannot be imported in a subinterpreter: like JAX, it serves one interpreter of a "
    "process. Use the main interpreter, or another process"
)


@pytest.mark.parametrize("kind", ["legacy", "isolated"])
@pytest.mark.parametrize("first", ["main", "subinterpreter"])
def test_a_subinterpreter_is_refused(kind, first):
    """An ImportError before JAX is imported there; the main interpreter works all the same."""
    use = """
    import numpy as np, jaxmarshal
    for _ in range(2):
        assert jaxmarshal.device_put(np.arange(3.0)).sum() == 3
    print(jaxmarshal.stats()["device_put"]["hits"])
    """
    ask = f"""
    run({kind!r}, {IMPORT!r})
    """
    order = (use + ask + use) if first == "main" else (ask + use)
    lines = run_code(SUBINTERPRETER + order).stdout.splitlines()
    refusal = [MESSAGE] * 3 + ["False False"]
    assert lines == (["1", *refusal, "3"] if first == "main" else [*refusal, "1"])


def test_a_build_for_a_free_threaded_python_is_refused():
    """Building ends at once, with a sentence, not with errors of the compiler."""
    done = run_code(
        f"""
        import runpy, sys, sysconfig
        from unittest.mock import MagicMock

        for name in (
            "numpy", "Cython", "Cython.Build", "setuptools", "setuptools.command",
            "setuptools.command.build", "setuptools.command.build_ext",
            "setuptools.command.build_py", "setuptools.command.sdist",
        ):
            sys.modules[name] = MagicMock()
        sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1
        try:
            runpy.run_path({str(REPOSITORY / "setup.py")!r}, run_name="__main__")
        except SystemExit as leaving:
            print(leaving.code)
        """
    )
    assert done.stdout == (
        "jaxmarshal relies on the GIL for the consistency of its caches: it cannot be built for a "
        "free-threaded Python. Use a build of Python with the GIL\n"
    )


@pytest.mark.skipif(
    not COMPILER or not Path(sysconfig.get_path("include"), "Python.h").is_file(),
    reason="needs a C compiler and Python's headers",
)
def test_the_headers_refuse_a_free_threaded_python(tmp_path):
    """Code of others that includes them does not compile there either."""
    source = tmp_path / "free_threaded.c"
    source.write_text('#include "jaxmarshal/compat.h"\n')
    done = subprocess.run(
        [
            COMPILER, "-fsyntax-only", "-DPy_GIL_DISABLED=1", str(source),
            f"-I{jaxmarshal.get_include()}", f"-I{sysconfig.get_path('include')}",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "jaxmarshal relies on the GIL for the consistency of its caches" in done.stderr
