"""Measurements in processes of their own.

Python 3.13 gives a class a thousand versions in the life of a process. Each `install()` and each
`uninstall()` uses up one of them; after the last one every lookup of an attribute of an array walks
through its base classes, on all sides. A program installs once and never sees that; a benchmark,
whose sides take turns, is there after two cases.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from jaxmarshal._jax import patching
from jaxmarshal.benchmarks import measure, suite
from jaxmarshal.benchmarks.case import Case

VERSIONS_END = sys.version_info >= (3, 13)    # a class runs out of versions in one process


def _measure_named(group: str, name: str, seconds: float) -> dict[str, Any]:
    """`measure.measure` of the case with this name; what a new process does."""
    patching.uninstall()    # JAXMARSHAL=on may have installed
    [case] = [case for _, case in suite.select([group], name=name) if case.name == name]
    return measure.measure(group, case, seconds)


def measure_apart(group: str, case: Case, seconds: float) -> dict[str, Any]:
    """`measure.measure`, in a new process where classes run out of versions.

    Raises:
      NotHere, WrongPath: as there.
    """
    if not VERSIONS_END:
        return measure.measure(group, case, seconds)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measure_named, group, case.name, seconds).result()
