"""jaxmarshal: an accelerated argument path for JAX, with the reference's own results.

`install()` puts it under an existing program; `device_put`, `jit` and `dispatch` work without.
JAX's own code stays the slow path: whatever is not recognised goes there unchanged.
"""

import jaxmarshal._interpreter  # noqa: F401 (first: in a subinterpreter it raises ImportError)
from jaxmarshal import dispatch
from jaxmarshal._events import publish
from jaxmarshal._explain import Explanation, explain
from jaxmarshal._install import install, installed, uninstall
from jaxmarshal._version import __version__
from jaxmarshal.api import device_put, get_include, jit, reset_stats, stats

__all__ = [
    "Explanation",
    "__version__",
    "device_put",
    "dispatch",
    "explain",
    "get_include",
    "install",
    "installed",
    "jit",
    "publish",
    "reset_stats",
    "stats",
    "uninstall",
]
