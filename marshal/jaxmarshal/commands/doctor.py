"""`python -m jaxmarshal doctor`: what is active here, and why something is not."""

from __future__ import annotations

import argparse
import json

from jaxmarshal import _doctor

HELP = "what is active here, and why something is not"
DESCRIPTION = (
    "Versions, what was calibrated and where, and which entry points are active. "
    "Exit status 1 when nothing can be accelerated."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: argparse.Namespace) -> int:
    facts = _doctor.examine()
    print(json.dumps(facts, indent=2) if options.json else _doctor.report(facts))
    healthy = not facts["not_supported"] and "backend_error" not in facts
    return 0 if healthy else 1
