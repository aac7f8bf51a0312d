"""What `run` or `compare` asked for, in the user's process once it has imported JAX."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

from jaxmarshal import _install, _reference


def start(configuration: dict[str, Any]) -> None:
    """Do what the configuration says, see `jaxmarshal.commands.run` and `compare`."""
    if configuration["install"]:
        _install.install(configuration["only"])
    else:
        _install.refuse()
    if not configuration.get("tracebacks", True):
        _reference.set_tracebacks_enabled(False)
    if configuration.get("report"):
        # At exit, to import it would execute text, and Python then forgets that a Ctrl-C ended
        # the program, which is to end by the signal.
        from jaxmarshal import _report

        process = os.getpid()
        atexit.register(lambda: _print_report(process, _report.report))
    if configuration.get("record"):
        from jaxmarshal import _record

        _record.start(configuration["record"])
    if configuration.get("trace"):
        from jaxmarshal import _count

        _count.trace(configuration["trace"])


def _print_report(process: int, report: Callable[[], object]) -> None:
    """At exit; not in a copy of the process that a fork has made."""
    if os.getpid() == process and sys.stderr is not None:
        print(report(), file=sys.stderr, flush=True)
