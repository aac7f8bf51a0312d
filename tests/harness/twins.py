"""A function jitted twice, by plain JAX and by jaxmarshal, and called with equal arguments."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
from observe import observe

import jaxmarshal


def jit_counts() -> tuple[int, dict[str, int]]:
    """(hits, misses by reason) of jitted functions since the last call of this function."""
    found = jaxmarshal.stats()["jit"]
    assert found["misses"] == sum(found["misses_by_reason"].values())
    jaxmarshal.reset_stats()
    return found["hits"], found["misses_by_reason"]


def nothing() -> dict[str, Any]:
    """No arguments by name."""
    return {}


def without_addresses(observation: tuple) -> tuple:
    """The observation with no addresses of objects in the text of its error."""
    outcome, *others = observation
    if outcome[0] == "raised":
        outcome = (*outcome[:2], re.sub("0x[0-9a-f]+", "0x", outcome[2]))
    return (outcome, *others)


class Twins:
    """Two jitted functions that must not be told apart, except by how long they take.

    JAX shares what it compiled between the jitted functions of one function, so that each twin
    gets a function of its own, and every call arguments of its own.

    Args:
      make: makes the function.
      installed: are they `jax.jit` without and with jaxmarshal installed? Otherwise the one is
        `jax.jit` and the other `jaxmarshal.jit`, and nothing else is counted.
      **options: of `jit`.
    """

    def __init__(
        self, make: Callable[[], Callable[..., Any]], *, installed: bool = False, **options: Any
    ) -> None:
        self.traces = [0, 0]
        self.place = jaxmarshal.installed if installed else contextlib.nullcontext
        jit = jax.jit if installed else jaxmarshal.jit
        self.plain: Any = jax.jit(self._counted(make(), 0), **options)
        with self.place():
            self.fast: Any = jit(self._counted(make(), 1), **options)
        jaxmarshal.reset_stats()

    def _counted(self, function: Callable[..., Any], which: int) -> Callable[..., Any]:
        """The function, which counts how often it is traced."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.traces[which] += 1
            return function(*args, **kwargs)

        return counted

    def __call__(
        self,
        args: Callable[[], tuple[Any, ...]],
        kwargs: Callable[[], dict[str, Any]] = nothing,
        context: Any = contextlib.nullcontext,
    ) -> tuple:
        """Call both with arguments made anew; all that can be observed must be equal.

        Returns the observation. A hit or a miss of jaxmarshal is counted.
        """
        expected = without_addresses(observe(self.plain, *args(), context=context, **kwargs()))
        with self.place():
            found = without_addresses(observe(self.fast, *args(), context=context, **kwargs()))
        assert found == expected, f"jax: {expected}\njaxmarshal: {found}"
        assert self.traces[0] == self.traces[1], f"traces: {self.traces}"
        return expected

    def value(self, *args: Any, **kwargs: Any) -> tuple:
        """The same for arguments that both calls may share; the result itself, which is equal."""
        self(lambda: args, lambda: kwargs)
        return self.plain(*args, **kwargs)
