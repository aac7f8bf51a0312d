"""Waiting for the import of a module: nothing is imported here that the program does not import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec

from jaxmarshal._startup.hook import Finder

_complete: set[str] = set()    # modules whose import has just ended


def is_imported(module: str) -> bool:
    """Is the import of a module over?"""
    if module in _complete:
        return True
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


class _Pending(ModuleSpec):
    """The spec of a module while it is imported: knows what to do when the import is over."""

    actions: list[Callable[[], None]]

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            for action in vars(self).pop("actions"):
                if self.name in sys.modules:
                    action()


def when_imported(module: str, action: Callable[[], None]) -> Finder | None:
    """Call `action` when a module that is not there yet has been imported.

    It may be in the middle of its import: it imports JAX, and JAX starts jaxmarshal.

    Returns:
      What waits for the import to begin; None where it has begun.
    """
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if type(spec) is ModuleSpec:
        spec.__class__ = _Pending
        vars(spec)["actions"] = [action]
    elif isinstance(spec, _Pending):
        spec.actions.append(action)
    else:
        finder = Finder(action, (module,))
        sys.meta_path.insert(0, finder)
        return finder
    return None


class Imports:
    """The modules that are waited for, each once."""

    def __init__(self) -> None:
        #: Name of a module -> what waits for its import; None while that is under way.
        self._waiting: dict[str, Finder | None] = {}

    def wait(self, module: str, action: Callable[[], None]) -> None:
        """Call `action` when the module has been imported, unless that is waited for already."""

        def imported() -> None:
            _complete.add(module)
            if module in self._waiting:
                del self._waiting[module]
                action()

        if module not in self._waiting:
            self._waiting[module] = when_imported(module, imported)

    def cancel(self, module: str) -> None:
        """Wait no longer."""
        waiting = self._waiting.pop(module, None)
        if waiting in sys.meta_path:
            sys.meta_path.remove(waiting)
