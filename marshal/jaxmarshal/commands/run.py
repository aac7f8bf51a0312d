"""`python -m jaxmarshal run`: a script with jaxmarshal installed, run by Python itself."""

from __future__ import annotations

import argparse
import os
import sys

from jaxmarshal._jax import private
from jaxmarshal._tools import launch, malloc
from jaxmarshal.commands import CommandError

HELP = "run a script with jaxmarshal installed"
DESCRIPTION = (
    "Runs a script or module as `python` would, with jaxmarshal installed as soon as it imports "
    "JAX. Programs that the script starts run without it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = launch.USAGE.format("run")
    launch.add_arguments(parser)
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
        choices=sorted(malloc.ALLOCATORS),
        help="preload this malloc (Linux): other speed and memory use of host allocations; "
        "numpy arrays are aligned otherwise, so more or fewer of them are shared with JAX "
        "without a copy",
    )


def run(options: argparse.Namespace) -> int:
    target = launch.target(options)
    if options.no_tracebacks and private.set_tracebacks_enabled is None:
        raise CommandError("--no-tracebacks: the installed jaxlib has no such switch")
    configuration = {
        "install": True,
        "only": launch.entry_points(options),
        "tracebacks": not options.no_tracebacks,
        "report": options.report,
    }
    preload = malloc.find(options.malloc) if options.malloc else None
    command = launch.command(target)
    environment = launch.environment(configuration, preload)
    unsupported = private.why_not_supported()
    if unsupported:
        print(f"jaxmarshal run: nothing is accelerated: {unsupported}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)
