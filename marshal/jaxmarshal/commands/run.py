"""`python -m jaxmarshal run`: a script with jaxmarshal installed, run by Python itself."""

from __future__ import annotations

import argparse
import os
import sys

from jaxmarshal import _malloc, _reference, _script
from jaxmarshal.commands import CommandError

HELP = "run a script with jaxmarshal installed"
DESCRIPTION = (
    "Runs a script or module as `python` would, with jaxmarshal installed as soon as it imports "
    "JAX. Programs that the script starts run without it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = _script.USAGE.format("run")
    _script.add_arguments(parser)
    parser.add_argument(
        "--report",
        action="store_true",
        help="at exit, print jaxmarshal.report() on the error output: calls, by kind and by "
        "function, how many were fast, and what to do about the others",
    )
    parser.add_argument(
        "--no-tracebacks",
        action="store_true",
        help="jaxlib no longer records the Python stack at each operation: cheaper calls, but "
        "JAX's messages, HLO dumps and profiles lose the lines of source they would name",
    )
    parser.add_argument(
        "--malloc",
        choices=sorted(_malloc.ALLOCATORS),
        help="preload this malloc (Linux): other speed and memory use of host allocations; "
        "numpy arrays are aligned otherwise, so more or fewer of them are shared with JAX "
        "without a copy",
    )


def run(options: argparse.Namespace) -> int:
    target = _script.target(options)
    if options.no_tracebacks and _reference.set_tracebacks_enabled is None:
        raise CommandError("--no-tracebacks: the installed jaxlib has no such switch")
    configuration = {
        "install": True,
        "only": _script.entry_points(options),
        "tracebacks": not options.no_tracebacks,
        "report": options.report,
    }
    preload = _malloc.find(options.malloc) if options.malloc else None
    command = _script.command(target)
    environment = _script.environment(configuration, preload)
    unsupported = _reference.why_not_supported()
    if unsupported:
        print(f"jaxmarshal run: nothing is accelerated: {unsupported}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)
