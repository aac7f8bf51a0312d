"""The command line: `python -m jaxmarshal …`, also installed as `jaxmarshal`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from jaxmarshal import commands
from jaxmarshal._version import __version__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxmarshal", description="An accelerated argument path for JAX."
    )
    parser.add_argument("--version", action="version", version=f"jaxmarshal {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in commands.NAMES:
        module = importlib.import_module(f"jaxmarshal.commands.{name}")
        command = subparsers.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except commands.CommandError as error:
        print(f"jaxmarshal {options.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
