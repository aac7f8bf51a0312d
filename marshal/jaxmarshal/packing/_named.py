"""Arguments that are told by position or by name: each completed by the other, as in `jax.jit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def as_tuple(given: Any) -> tuple[Any, ...]:
    """One of them, several, or None, as a tuple."""
    if given is None:
        return ()
    return (given,) if isinstance(given, (int, str)) else tuple(given)


def positional(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that can be passed by position; none where that is not known."""
    return [p.name for p in _parameters(function) if p.kind in _BY_POSITION]


def completed(
    function: Callable[..., Any], argnums: Any, argnames: Any
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the same arguments.

    Args:
      function: whose arguments they are.
      argnums: one position, several, or None.
      argnames: one name, several, or None.

    Returns:
      (positions, names); where only one of both was given, the other is found by the signature.

    Raises:
      ValueError: for a negative position, which `jax.jit` counts from the end of each call.
    """
    numbers, names = as_tuple(argnums), as_tuple(argnames)
    if any(number < 0 for number in numbers):
        raise ValueError(f"positions of arguments have to be positive here, not {min(numbers)}")
    order = positional(function)
    by_keyword = {p.name for p in _parameters(function) if p.kind in _BY_KEYWORD}
    if argnames is None:
        names = tuple(order[i] for i in numbers if i < len(order) and order[i] in by_keyword)
    elif argnums is None:
        numbers = tuple(order.index(name) for name in names if name in order)
    return numbers, names


_Parameter = inspect.Parameter
_BY_POSITION = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (_Parameter.KEYWORD_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
