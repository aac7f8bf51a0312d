"""Fronts: entry points of libraries that lead to jitted functions, accelerated as a whole.

A library is never imported here. Where it is there already, its front is installed at once;
otherwise when the program has imported it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import Any

from jaxmarshal._jax import private
from jaxmarshal._jax.imports import Imports, is_imported
from jaxmarshal._reports import counting

logger = logging.getLogger("jaxmarshal")


@dataclass(frozen=True)
class Front:
    """One accelerated function of a library.

    Attributes:
      name: in `install(only=…)` and in `stats()`.
      library: the module whose import makes it available.
      distribution: the name that the library is distributed by.
      lower: the first version that it was checked against.
      upper: the first version that it may not fit.
      home: the module of jaxmarshal with `install()`, `uninstall()`, which may be called at any
        time; `explained(f)`: the replacement of the function that calls `f`, or None; and
        `place()`: the class whose `__call__` it replaces and the library's own `__call__`, or None.
      capability: the flag of `private` that it needs.
    """

    name: str
    library: str
    distribution: str
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    home: str
    capability: str = "HAVE_EAGER"


FRONTS: tuple[Front, ...] = (
    Front(
        "equinox_filter_jit", "equinox", "equinox", (0, 13, 8), (0, 14),
        "jaxmarshal.fronts._equinox",
    ),
    Front("nnx_jit", "flax.nnx", "flax", (0, 12, 8), (0, 13), "jaxmarshal.fronts.nnx"),
)

for _front in FRONTS:
    counting.register(_front.name)

_installed: dict[str, Front] = {}
_failed: dict[str, str] = {}        # name of a front -> why it could not be installed
_awaited = Imports()


@cache
def version_of(front: Front) -> str | None:
    """The installed version of the library, or None where there is none; looked up once."""
    try:
        return metadata.version(front.distribution)
    except metadata.PackageNotFoundError:
        return None


def why_inactive(front: Front) -> str | None:
    """Why a front cannot be installed here, or None."""
    if private.why_not_supported():
        return private.why_not_supported()
    if not getattr(private, front.capability):
        return "JAX lacks " + ", ".join(private.lacking[front.capability])
    version = version_of(front)
    if version is None:
        return f"{front.distribution} is not there"
    if not front.lower <= private.version_tuple(version) < front.upper:
        low, high = (".".join(map(str, bound)) for bound in (front.lower, front.upper))
        return f"{front.distribution} {version} is outside the supported range >={low},<{high}"
    return _failed.get(front.name)


def _install(front: Front) -> None:
    try:
        import_module(front.home).install()
    except Exception as error:  # the library works without
        _failed[front.name] = f"{type(error).__name__}: {error}"
        logger.warning("%s is not accelerated: %s", front.name, _failed[front.name])
        return
    _installed[front.name] = front


def _apply() -> None:
    """Install what is asked for, now that a library is there."""
    from jaxmarshal._jax import patching as installing

    installing.apply()


def use_installed(held: set[str]) -> bool:
    """Install the fronts of these names, and uninstall the others. Is any of them installed?"""
    for front in FRONTS:
        if front.name in held:
            if front.name in _installed:
                continue
            if why_inactive(front) is not None:
                continue
            if is_imported(front.library):
                _install(front)
            else:
                _awaited.wait(front.library, _apply)
            continue
        _awaited.cancel(front.library)
        if _installed.pop(front.name, None) is not None:
            import_module(front.home).uninstall()
    return bool(_installed)


def installed_names() -> frozenset[str]:
    """The names of the fronts that are installed now."""
    return frozenset(_installed)


def explained(f: Any) -> tuple[str, Callable[..., Any], bool] | None:
    """The entry point of calls of an object, what performs them, and is it installed; or None."""
    own = sys.modules.get("jaxmarshal.fronts.filtered")    # imported by who makes such a function
    if own is not None and type(f) is own.FilterJit and own.accelerated is not None:
        return own.NAME, own.accelerated, True
    for front in FRONTS:
        if front.library in sys.modules and why_inactive(front) is None:
            found = import_module(front.home).explained(f)
            if found is not None:
                return front.name, found, front.name in _installed
    return None


def place_of(front: Front) -> tuple[type, Callable[..., Any]] | None:
    """The class whose `__call__` a front replaces, and the library's own; None where it cannot.

    Needs the library to be imported.
    """
    if why_inactive(front) is not None:
        return None
    try:
        place: tuple[type, Callable[..., Any]] | None = import_module(front.home).place()
    except Exception:    # as when it is installed
        return None
    return place
