"""Running a piece of Python in a process of its own, for what one process can do only once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jaxmarshal
from jaxmarshal.__main__ import main

#: The folder that the package is imported from, whichever way it was installed.
PACKAGE_ROOT = Path(jaxmarshal.__file__).resolve().parents[1]


def run(
    *arguments: str,
    stdin: str | None = None,
    cwd: Path | None = None,
    **environment: str | None,
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, the package on its path and changes to the environment."""
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(PACKAGE_ROOT), variables.get("PYTHONPATH")])
    )
    for name, value in environment.items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    return subprocess.run(
        [sys.executable, *arguments], env=variables, input=stdin, cwd=cwd,
        capture_output=True, text=True, timeout=300,
    )


def run_code(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run code that has to succeed; what it prints is in `stdout` and `stderr`."""
    done = run("-c", textwrap.dedent(code), **environment)
    assert done.returncode == 0, done.stderr
    return done


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a process said on stderr, but for JAX's remark that a backend is not its own."""
    lines = done.stderr.splitlines(keepends=True)
    return "".join(line for line in lines if "is experimental and not all JAX" not in line)


def status_of(*arguments: str) -> int | str | None:
    """The exit status of the command line, run in this process."""
    try:
        return main(arguments)
    except SystemExit as leaving:
        return leaving.code
