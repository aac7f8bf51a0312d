"""The front of `flax.nnx.jit`: what of the library it needs, and where it is put.

Imported after `flax.nnx` only. How a call goes is in `_core/entries/nnx_jit.pyx`, and how plans
are made in `_nnx_graphs.py`.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from jaxmarshal._core.context import bypassed
from jaxmarshal._core.entries import nnx_jit
from jaxmarshal._jax import private

#: The versions of flax that it was made for: from the first one to before the last one.
VERSIONS = ((0, 12, 8), (0, 13))


def _version() -> tuple[int, ...]:
    import flax

    numbers = re.match(r"\d+(\.\d+)*", flax.__version__)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


def _member(cls: type, name: str) -> Any:
    return inspect.getattr_static(cls, name)


def _look_up() -> tuple[dict[str, Any], list[Any]]:
    """What is needed of the library by name, and what has to stay as it is.

    Raises:
      AttributeError, ImportError, KeyError: for what is not there.
    """
    from flax.nnx import extract, graphlib, pytreelib, statelib, tracers, variablelib
    from flax.nnx.transforms import compilation
    from flax.typing import HashableMapping

    variable, status = variablelib.Variable, pytreelib.PytreeState
    names = {
        "wrapped": compilation.JitWrapped,
        "node_states": extract.NodeStates,
        "status": status,
        "state": statelib.State,
        "mapping": HashableMapping,
        "trace": tracers.TraceState,
        "opaque": type(tracers.TraceState()._jax_trace),
        "context": graphlib.GRAPH_CONTEXT,
        "registries": (
            graphlib.GRAPH_REGISTRY, graphlib.PYTREE_REGISTRY, graphlib.JAX_PYTREE_REGISTRY,
        ),
        "raw": _member(variable, "_raw_value"),
        "metadata": _member(variable, "_var_metadata"),
        "variable_trace": _member(variable, "_trace_state"),
        "jax_trace": _member(tracers.TraceState, "_jax_trace"),
        "status_trace": _member(status, "_trace_state"),
        "initializing": _member(status, "_initializing"),
        "set_up": _member(status, "_is_setup"),
    }
    rules = [
        extract, graphlib, pytreelib, statelib, tracers, variablelib, compilation,
        graphlib.GRAPH_REGISTRY, graphlib.PYTREE_REGISTRY,
        compilation.JitWrapped, extract.NodeStates, graphlib.SplitContext, graphlib.MergeContext,
        graphlib.UpdateContext, graphlib.UpdateContextManager, variable, pytreelib.Pytree, status,
        statelib.State, tracers.TraceState, HashableMapping, graphlib.PythonRefMap,
        graphlib.StaticCache, private.aval_mappings,
    ]
    return names, rules


def _is_here(names: dict[str, Any]) -> bool:
    """Does nnx know in the expected way that no trace is in progress?"""
    known = getattr(names["trace"]()._jax_trace, "_trace_ref", None)
    return known is not None and known is private.eval_trace._weakref


@cache
def _prepare() -> str | None:
    """Make the front ready. Why it cannot be, in words, or None."""
    version = _version()
    if not VERSIONS[0] <= version < VERSIONS[1]:
        first, last = (".".join(map(str, numbers)) for numbers in VERSIONS)
        return f"it is made for flax {first} to before {last}"
    if not private.HAVE_JIT or not private.HAVE_RULES:
        return "JAX lacks what jitted functions need"
    from jaxmarshal.fronts import _nnx_graphs

    try:
        names, rules = _look_up()
        original = vars(names["wrapped"])["__call__"]
        if not _is_here(names):
            return "flax notes traces in another way"
        make_plan = _nnx_graphs.maker(names["node_states"])
    except (AttributeError, ImportError, KeyError) as error:
        return f"flax lacks {error}"
    if not nnx_jit.use_flax(original, names, rules, make_plan):
        return "flax keeps the values of variables in another way"
    global _original, _accelerated
    _original, _accelerated = original, nnx_jit.method_for(original)
    bypassed.put_in_place_of(original, _accelerated)
    return None


_original: Any = None
_accelerated: Any = None


def _wrapped() -> Any:
    from flax.nnx.transforms import compilation

    return compilation.JitWrapped


def place() -> tuple[type, Any] | None:
    """The class of what `nnx.jit` returns, and the library's own function that calls it."""
    return (_wrapped(), _original) if _prepare() is None else None


def explained(function: Any) -> Any:
    """What takes calls of a function that `nnx.jit` made, with itself first; else None."""
    return _accelerated if _prepare() is None and type(function) is _wrapped() else None


def install() -> None:
    """Put the front in the place of `JitWrapped.__call__`, unless that was replaced.

    Raises:
      NotImplementedError: the installed flax lacks something.
    """
    reason = _prepare()
    if reason is not None:
        raise NotImplementedError(reason)
    if vars(_wrapped()).get("__call__") is _original:
        _wrapped().__call__ = _accelerated


def uninstall() -> None:
    """Put the original back."""
    if vars(_wrapped()).get("__call__") is _accelerated:
        _wrapped().__call__ = _original
