"""Running a user's script so that Python itself runs it, with jaxmarshal waiting for `import jax`.

Shared by the commands `run` and `compare`; see `_startup/sitecustomize.py` for the other end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jaxmarshal._jax import patching
from jaxmarshal._startup.hook import CONFIGURATION
from jaxmarshal._startup.sitecustomize import ORIGINAL, VARIABLES
from jaxmarshal.commands import CommandError

USAGE = "jaxmarshal {} [options] (SCRIPT | -m MODULE) [ARGS ...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The script or module, everything behind which belongs to it."""
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE [ARGS ...]",
        help="run a module instead of a script, as python -m does",
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGS ...]",
        help="the script; whatever follows it is the script's",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="install only this entry point (repeatable; doctor lists the names)",
    )


def target(options: argparse.Namespace) -> list[str]:
    """What Python is given: `[SCRIPT, …]` or `["-m", MODULE, …]`.

    Raises:
      CommandError: nothing is named, or there is no such script.
    """
    if options.module is not None:
        if not options.module:
            raise CommandError("-m needs the name of a module")
        return ["-m", *options.module]
    if not options.script:
        raise CommandError("name a script, or a module with -m")
    script = options.script[0]
    if script != "-" and not Path(script).exists():
        raise CommandError(f"there is no script {script!r}")
    return list(options.script)


def entry_points(options: argparse.Namespace) -> list[str] | None:
    """The names given with --only, checked, or None for all entry points."""
    try:
        patching._selected(options.only)
    except ValueError as error:
        raise CommandError(f"--only: {error}") from None
    return options.only


def command(target: list[str]) -> list[str]:
    """The command line of a Python started like this one."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise CommandError("the options -E, -I and -S of Python keep jaxmarshal from starting")
    if not sys.executable:
        raise CommandError("the Python that runs this cannot be told (sys.executable is empty)")
    # What multiprocessing gives to the processes that it starts; it leaves out -u and -i.
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    unbuffered = getattr(sys.stdout, "write_through", False)
    flags += ["-u"] * bool(unbuffered) + ["-i"] * bool(sys.flags.interactive)
    return [sys.executable, *flags, *target]


def environment(configuration: dict[str, Any], preload: str | None = None) -> dict[str, str]:
    """The environment that starts jaxmarshal in a Python with this configuration.

    The script does not see it: it finds the environment as it is now.
    """
    folder = str(Path(__file__).resolve().parents[1] / "_startup")
    if os.pathsep in folder:
        raise CommandError(f"{folder!r} cannot be in PYTHONPATH: it contains {os.pathsep!r}")
    variables = dict(os.environ)
    for name in VARIABLES:
        if name in variables:
            variables[ORIGINAL + name] = variables[name]
    variables[CONFIGURATION] = json.dumps(configuration)
    variables["PYTHONPATH"] = os.pathsep.join(
        [folder, *filter(None, [variables.get("PYTHONPATH")])]
    )
    if preload is not None:
        variables["LD_PRELOAD"] = ":".join(
            [preload, *filter(None, [variables.get("LD_PRELOAD")])]
        )
    return variables
