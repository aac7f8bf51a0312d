"""`python -m jaxmarshal doctor`: what is active here, and why something is not."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from jaxmarshal._reports import doctor

HELP = "what is active here, and why something is not"
DESCRIPTION = (
    "Versions, what was calibrated and where, and which entry points are active. "
    "Exit status 1 when nothing can be accelerated, or when --check finds a difference."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--check", action="store_true",
        help="also compare every entry point with plain JAX on this machine, in a minute",
    )  # fmt: skip


def _check() -> tuple[bool, dict[str, Any], str]:
    """Perform the self-check: passed or not, as data, as text."""
    from jaxmarshal import selfcheck

    # The question is what jaxmarshal does here once it is switched on.
    switch = os.environ.pop("JAXMARSHAL", None)
    started = time.perf_counter()
    try:
        # Some of JAX's errors print; what is asked for is the report.
        with contextlib.redirect_stdout(sys.stderr):
            results = selfcheck.run()
    finally:
        if switch is not None:
            os.environ["JAXMARSHAL"] = switch
    seconds = time.perf_counter() - started
    passed = selfcheck.passed(results)
    data = {
        "passed": passed,
        "seconds": round(seconds, 1),
        "without_fast_calls": selfcheck.uncovered(results),
        "checks": [result.as_data() for result in results],
    }
    return passed, data, selfcheck.as_text(results, seconds)


def _speed() -> tuple[list[dict[str, Any]], str]:
    """Is a call slower than with plain JAX here? The rows as data, and a line about them."""
    from jaxmarshal import api
    from jaxmarshal.benchmarks import never_slower

    api.clear()    # the checks have left contexts and records of all kinds
    found = never_slower.run(never_slower.FEW, seconds=0.2)
    rows = [row for _, row, _ in found if row is not None]
    return [asdict(row) for row in rows], never_slower.verdict(rows)


def run(options: argparse.Namespace) -> int:
    facts = doctor.examine()
    healthy = not facts["not_supported"] and "backend_error" not in facts
    text = doctor.report(facts)
    if options.check and "backend_error" not in facts:
        passed, facts["check"], found = _check()
        healthy = healthy and passed
        text += "\n" + found
        if passed and not facts["not_supported"]:
            facts["speed"], line = _speed()
            text += "\n" + line
    print(json.dumps(facts, indent=2) if options.json else text)
    return 0 if healthy else 1
