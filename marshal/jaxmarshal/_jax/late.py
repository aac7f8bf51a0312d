"""Modules that JAX imports when a program asks for them, whose functions are replayed from then on.

A module is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from jaxmarshal import fronts
from jaxmarshal._core.entries import which_functions
from jaxmarshal._startup.hook import Finder

_added: set[str] = set()
#: Name of a module -> what waits for its import; None while that is under way.
_waiting: dict[str, Finder | None] = {}


def _add(module: str, add: Callable[[str], None]) -> None:
    _waiting.pop(module, None)
    if module not in _added:
        _added.add(module)
        add(module)


def use_installed(installed: bool, add: Callable[[str], None]) -> None:
    """Call `add` once with each module that has been imported, or when it has been.

    Where the functions are not installed, nothing waits for an import that has not begun.
    """
    for module in which_functions.LATE_MODULES:
        waiting = _waiting.get(module)
        if not installed:
            if waiting in sys.meta_path:
                sys.meta_path.remove(waiting)
                del _waiting[module]
        elif fronts.is_imported(module):
            _add(module, add)
        elif module not in _waiting:
            _waiting[module] = fronts.when_imported(module, partial(_add, module, add))
