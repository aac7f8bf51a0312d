"""The commands of `python -m jaxmarshal`, a module each.

A module has `HELP` (one line for the list of commands), `DESCRIPTION`, `add_arguments(parser)` and
`run(options)`, which returns the exit status. What a command needs beyond JAX itself is imported
when it runs.
"""

from __future__ import annotations

NAMES = ("doctor", "bench", "compare", "run", "activate", "deactivate")


class CommandError(Exception):
    """Something the user can put right: shown as one line, exit status 2."""


def need(package: str, extra: str = "bench") -> CommandError:
    """The error for a package that is not installed."""
    return CommandError(f"{package} is not installed; pip install 'jaxmarshal[{extra}]'")
