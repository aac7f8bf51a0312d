"""`python -m jaxmarshal doctor --check`: plain JAX and jaxmarshal, side by side on this machine.

Each check is a small program of ordinary JAX calls. It runs without and with jaxmarshal installed,
and everything observable of every call must be the same: values, types, placement, aliasing,
object identity, errors and warnings.

Importing this package imports the checks; `CHECKS` is the list of them, `run` performs them.
"""

from jaxmarshal.selfcheck import calls, lifetimes, transfers, traps  # noqa: F401 (they register)
from jaxmarshal.selfcheck.registry import CHECKS, Check
from jaxmarshal.selfcheck.report import as_text
from jaxmarshal.selfcheck.runner import Result, passed, run, uncovered

__all__ = ["CHECKS", "Check", "Result", "as_text", "passed", "run", "uncovered"]
