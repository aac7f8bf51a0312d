"""`explain`: would this call take the fast path, and if not, what is in its way?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import jax

from jaxmarshal import _device_put, _execute, _install, _jit, _jit_ask, _reference, api
from jaxmarshal.reasons import REASONS


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`.

    Attributes:
      hit: would the call take the fast path?
      entry_point: its name in `stats()`, or None for a function that jaxmarshal does not know.
      reason: the name of the reason in `stats()`; "hit" for a hit.
      meaning: the reason in words.
      advice: what can be done about it.
      leaf: the path of the argument in question, such as `args[0]['w']`, or None.
      recorded: the word of the guard that was recorded for this argument, or None.
      found: the word that was found instead, or None.
      installed: does this function go through jaxmarshal now? If not, `hit` says what the call
        would be once `install()` was called.
    """

    hit: bool
    entry_point: str | None
    reason: str
    meaning: str
    advice: str
    leaf: str | None = None
    recorded: Any = None
    found: Any = None
    installed: bool = True

    def __str__(self) -> str:
        if self.hit:
            lines = [f"{self.entry_point}: a hit."]
        else:
            lines = [f"{self.entry_point or 'unknown function'}: a miss ({self.reason})."]
            lines.append(self.meaning)
        if self.leaf is not None:
            lines.append(f"argument: {self.leaf}")
        if self.recorded is not None or self.found is not None:
            lines.append(f"recorded: {self.recorded}")
            lines.append(f"found:    {self.found}")
        if self.advice:
            lines.append(self.advice)
        if not self.installed:
            lines.append("jaxmarshal is not installed: as it is, the call goes to JAX itself.")
        return "\n".join(lines)


def _paths(tree: Any, names: tuple[str, ...]) -> list[str]:
    """The path of every leaf of a tuple of trees, each path starting with its tree's name."""
    paths = []
    for name, part in zip(names, tree, strict=True):
        for path, _ in jax.tree_util.tree_flatten_with_path(part)[0]:
            paths.append(name + jax.tree_util.keystr(path))
    return paths


def _answer(
    entry_point: str, code: int, leaf: str | None, recorded: Any, found: Any, installed: bool
) -> Explanation:
    reason = REASONS[code]
    return Explanation(
        code == 0, entry_point, reason.name, reason.meaning, reason.advice, leaf, recorded, found,
        installed,
    )


def _leaf(index: int, tree: Any, names: tuple[str, ...]) -> str | None:
    """The path of the argument with this number, if there is one."""
    paths = _paths(tree, names) if index >= 0 else []
    return paths[index] if 0 <= index < len(paths) else None


def _leaf_of_jitted(
    f: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The same for the arguments of a jitted function that are not static."""
    numbers, names = _jit_ask.static_arguments(f)
    dynamic = {
        f"args[{i}]": x
        for i, x in enumerate(args)
        if i not in numbers and i - len(args) not in numbers
    }
    dynamic |= {f"kwargs[{name!r}]": kwargs[name] for name in sorted(kwargs) if name not in names}
    return _leaf(index, tuple(dynamic.values()), tuple(dynamic))


def _unwrap(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function that is called in the end: `partial` objects and bound methods opened."""
    while isinstance(f, partial):
        f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
    if isinstance(f, MethodType) and f.__func__ in (
        _reference.compiled_call, _execute.compiled_call
    ):
        f = f.__self__
    elif isinstance(f, MethodType) and _jit.is_jitted(f.__func__):
        f, args = f.__func__, (f.__self__, *args)
    return f, args, kwargs


def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Say whether `f(*args, **kwargs)` would take the fast path; nothing is executed.

    Args:
      f: `device_put` (JAX's or jaxmarshal's), a jitted function, or the result of
        `jit(...).lower(...).compile()`, also as a `functools.partial`.
      *args: the positional arguments of the call.
      **kwargs: its keyword arguments.

    Returns:
      An `Explanation`; `print` shows it in words. Only what would be the first obstacle is named.

    Raises:
      TypeError: where the arguments do not fit the signature of `device_put`.
    """
    f, args, kwargs = _unwrap(f, args, kwargs)
    if f is api.device_put or f is _reference.device_put:
        code, index = _device_put.probe(*args, **kwargs)
        value = args[0] if args else kwargs.get("x")
        return _answer(
            "device_put", code, _leaf(index, (value,), ("x",)), None, None, f is api.device_put
        )
    if _reference.Compiled is not None and isinstance(f, _reference.Compiled):
        code, index, recorded, found = _execute.probe_compiled(f, args, kwargs)
        leaf = _leaf(index, (args, kwargs), ("args", "kwargs"))
        installed = "compiled_call" in _install.installed_names()
        return _answer("compiled_call", code, leaf, recorded, found, installed)
    if _jit.is_jitted(f):
        code, index, recorded, found = _jit_ask.probe(f, args, kwargs)
        leaf = _leaf_of_jitted(f, index, args, kwargs)
        return _answer("jit", code, leaf, recorded, found, _jit.uses_plans(f))
    return Explanation(
        False,
        None,
        "unknown_function",
        "jaxmarshal has no fast path for this function.",
        "Ask about device_put, a function of jaxmarshal.jit (or of jax.jit, made while jaxmarshal "
        "is installed), or a function compiled ahead of time.",
    )
