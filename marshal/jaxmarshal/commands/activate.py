"""`python -m jaxmarshal activate`: from now on JAXMARSHAL=on is obeyed in this environment."""

from __future__ import annotations

import argparse

from jaxmarshal._jax import private
from jaxmarshal._tools import activation

HELP = "have JAXMARSHAL=on install jaxmarshal in every program of this environment"
DESCRIPTION = (
    "Puts one .pth file into site-packages. From then on every Python of this environment that is "
    "started with JAXMARSHAL=on installs jaxmarshal as soon as it has imported JAX; so do the "
    "processes that it starts. Without the variable nothing changes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> int:
    unsupported = private.why_not_supported()
    print(f"activated: {activation.activate()}")
    if unsupported:
        print(f"nothing will be accelerated, though: {unsupported}")
    print("now start a program with JAXMARSHAL=on: JAXMARSHAL=on python script.py")
    return 0
