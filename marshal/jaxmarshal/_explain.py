"""`explain`: would this call take the fast path, and if not, what is in its way?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxmarshal import _device_put, _execute, _reference, api
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
      leaf: the path of the argument in question, such as "args[0]['w']", or None.
      recorded: the word of the guard that was recorded for this argument, or None.
      found: the word that was found instead, or None.
    """

    hit: bool
    entry_point: str | None
    reason: str
    meaning: str
    advice: str
    leaf: str | None = None
    recorded: Any = None
    found: Any = None

    def __str__(self) -> str:
        if self.hit:
            return f"{self.entry_point}: a hit."
        lines = [f"{self.entry_point or 'unknown function'}: a miss ({self.reason})."]
        lines.append(self.meaning)
        if self.leaf is not None:
            lines.append(f"argument: {self.leaf}")
        if self.recorded is not None or self.found is not None:
            lines.append(f"recorded: {self.recorded}")
            lines.append(f"found:    {self.found}")
        if self.advice:
            lines.append(self.advice)
        return "\n".join(lines)


def _paths(tree: Any, names: tuple[str, ...]) -> list[str]:
    """The path of every leaf of a tuple of trees, each path starting with its tree's name."""
    paths = []
    for name, part in zip(names, tree, strict=True):
        for path, _ in jax.tree_util.tree_flatten_with_path(part)[0]:
            paths.append(name + jax.tree_util.keystr(path))
    return paths


def _answer(
    entry_point: str, code: int, index: int, paths: list[str], recorded: Any, found: Any
) -> Explanation:
    reason = REASONS[code]
    leaf = paths[index] if 0 <= index < len(paths) else None
    return Explanation(
        code == 0, entry_point, reason.name, reason.meaning, reason.advice, leaf, recorded, found
    )


def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Say whether `f(*args, **kwargs)` would take the fast path; nothing is executed.

    Args:
      f: `device_put` (JAX's or jaxmarshal's) or the result of `jit(...).lower(...).compile()`.
      *args: the positional arguments of the call.
      **kwargs: its keyword arguments.

    Returns:
      An `Explanation`; `print` shows it in words. Only what would be the first obstacle is named.

    Raises:
      TypeError: where the arguments do not fit the signature of `device_put`.
    """
    if f is api.device_put or f is _reference.device_put:
        code, index = _device_put.probe(*args, **kwargs)
        value = args[0] if args else kwargs.get("x")
        paths = _paths((value,), ("x",)) if index >= 0 else []
        return _answer("device_put", code, index, paths, None, None)
    if _reference.Compiled is not None and isinstance(f, _reference.Compiled):
        code, index, recorded, found = _execute.probe_compiled(f, args, kwargs)
        paths = _paths((args, kwargs), ("args", "kwargs")) if index >= 0 else []
        return _answer("compiled_call", code, index, paths, recorded, found)
    return Explanation(
        False,
        None,
        "unknown_function",
        "jaxmarshal has no fast path for this function.",
        "Ask about device_put or a function compiled ahead of time.",
    )
