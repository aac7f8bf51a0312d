"""`python -m jaxmarshal deactivate`: what `activate` did, undone."""

from __future__ import annotations

import argparse

from jaxmarshal._tools import activation

HELP = "undo activate"
DESCRIPTION = "Removes the file that `activate` put into site-packages."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> int:
    file = activation.deactivate()
    print(f"removed: {file}" if file else "it was not activated: nothing to remove")
    return 0
