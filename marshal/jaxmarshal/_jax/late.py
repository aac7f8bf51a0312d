"""Modules that JAX imports when a program asks for them, whose functions are replayed from then on.

A module is never imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxmarshal._core.entries import which_functions
from jaxmarshal._jax.imports import Imports, is_imported

_added: set[str] = set()
_awaited = Imports()


def _add(module: str, add: Callable[[str], None]) -> None:
    if module not in _added:
        _added.add(module)
        add(module)


def use_installed(installed: bool, add: Callable[[str], None]) -> None:
    """Call `add` once with each module that has been imported, or when it has been.

    Where the functions are not installed, nothing waits for an import.
    """
    for module in which_functions.LATE_MODULES:
        if not installed:
            _awaited.cancel(module)
        elif is_imported(module):
            _add(module, add)
        else:
            _awaited.wait(module, partial(_add, module, add))
