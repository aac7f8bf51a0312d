"""The command line: `python -m jaxmarshal …`, also installed as `jaxmarshal`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from jaxmarshal import _doctor
from jaxmarshal._version import __version__


def _doctor_command(options: argparse.Namespace) -> int:
    facts = _doctor.examine()
    print(json.dumps(facts, indent=2) if options.json else _doctor.report(facts))
    healthy = not facts["not_supported"] and "backend_error" not in facts
    return 0 if healthy else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxmarshal", description="An accelerated argument path for JAX."
    )
    parser.add_argument("--version", action="version", version=f"jaxmarshal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="what is active here, and why something is not",
        description="Versions, what was calibrated and where, and which entry points are active. "
        "Exit status 1 when nothing can be accelerated.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    doctor.set_defaults(run=_doctor_command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
