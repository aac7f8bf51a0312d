"""What `run` or `compare` asked for, in the user's process once it has imported JAX."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

from jaxmarshal._jax import patching, private


def start(configuration: dict[str, Any]) -> None:
    """Do what the configuration says, see `jaxmarshal.commands.run` and `compare`."""
    if configuration["install"]:
        patching.install(configuration["only"])
    else:
        patching.refuse()
    if not configuration.get("tracebacks", True):
        private.set_tracebacks_enabled(False)
    if configuration.get("report"):
        # At exit, to import it would execute text, and Python then forgets that a Ctrl-C ended
        # the program, which is to end by the signal.
        from jaxmarshal._reports import summary

        process = os.getpid()
        atexit.register(lambda: _print_report(process, summary.report))
    if configuration.get("record"):
        from jaxmarshal._tools import recording

        recording.start(configuration["record"])
    if configuration.get("trace"):
        from jaxmarshal._tools import call_sites

        call_sites.trace(configuration["trace"])


def _print_report(process: int, report: Callable[[], object]) -> None:
    """At exit; not in a copy of the process that a fork has made."""
    if os.getpid() == process and sys.stderr is not None:
        print(report(), file=sys.stderr, flush=True)
