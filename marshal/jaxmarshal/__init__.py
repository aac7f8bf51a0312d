"""jaxmarshal: an accelerated argument path for JAX, with JAX's own results.

`install()` puts it under an existing program; `device_put`, `jit` and `dispatch` work without.
JAX's own code stays the slow path: whatever is not recognised goes there unchanged.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jaxmarshal._core.interpreter  # noqa: F401 (first: in a subinterpreter it raises ImportError)
from jaxmarshal import dispatch
from jaxmarshal._jax.patching import install, installed, uninstall, uninstalled
from jaxmarshal._reports.events import publish
from jaxmarshal._reports.explain import Explanation, explain
from jaxmarshal._version import __version__
from jaxmarshal.api import device_put, exclude, get_include, jit, reset_stats, stats

if TYPE_CHECKING:
    from jaxmarshal._reports.magics import load_ipython_extension, unload_ipython_extension
    from jaxmarshal._reports.summary import Report, report
    from jaxmarshal.fronts.filtered import filter_jit
    from jaxmarshal.packing import Packed, carry, pack

__all__ = [
    "Explanation",
    "Packed",
    "Report",
    "__version__",
    "carry",
    "device_put",
    "dispatch",
    "exclude",
    "explain",
    "filter_jit",
    "get_include",
    "install",
    "installed",
    "jit",
    "load_ipython_extension",
    "pack",
    "publish",
    "report",
    "reset_stats",
    "stats",
    "uninstall",
    "uninstalled",
    "unload_ipython_extension",
]


#: Names that most programs never ask for, and the modules that are imported for them.
_ON_DEMAND = {
    "Packed": "packing",
    "Report": "_reports.summary",
    "carry": "packing",
    "filter_jit": "fronts.filtered",
    "load_ipython_extension": "_reports.magics",
    "pack": "packing",
    "report": "_reports.summary",
    "unload_ipython_extension": "_reports.magics",
}


def __getattr__(name: str) -> Any:
    """What `_ON_DEMAND` has under this name."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
