"""What `run` or `compare` asked for, in the user's process once it has imported JAX."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from jaxmarshal import _install, _reference, api


def start(configuration: dict[str, Any]) -> None:
    """Do what the configuration says, see `jaxmarshal.commands.run` and `compare`."""
    if configuration["install"]:
        _install.install(configuration["only"])
    if not configuration.get("tracebacks", True):
        _reference.set_tracebacks_enabled(False)
    if configuration.get("report"):
        process = os.getpid()
        atexit.register(lambda: _print_report(process))
    if configuration.get("record"):
        from jaxmarshal import _record

        _record.start(configuration["record"])
    if configuration.get("trace"):
        from jaxmarshal import _count

        _count.trace(configuration["trace"])


def report(counts: dict[str, dict[str, Any]]) -> str:
    """The counts of `jaxmarshal.stats()` as a table."""
    rows = [("entry point", "calls", "hits", "misses", "by reason")]
    for name, count in counts.items():
        calls = count["hits"] + count["misses"]
        if calls:
            reasons = ", ".join(
                f"{reason} {number}" for reason, number in count["misses_by_reason"].items()
            )
            rows.append((name, f"{calls}", f"{count['hits']}", f"{count['misses']}", reasons))
    if len(rows) == 1:
        return "jaxmarshal: no calls"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["jaxmarshal"]
    for name, *numbers, reasons in rows:
        cells = [
            name.ljust(widths[0]),
            *(number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True)),
            reasons,
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _print_report(process: int) -> None:
    """At exit; not in a copy of the process that a fork has made."""
    if os.getpid() == process and sys.stderr is not None:
        print(report(api.stats()), file=sys.stderr, flush=True)
