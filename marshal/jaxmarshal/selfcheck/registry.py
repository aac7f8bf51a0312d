"""The list of checks, and what a check is given to work with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jaxmarshal.selfcheck.observe import observe
from jaxmarshal.selfcheck.world import World

#: Calls of each kind: one that finds nothing recorded, and two that may be fast.
TURNS = 3


class Recorder:
    """What was observed while a check ran, in order.

    Attributes:
      seen: a list of (what it is about, observation).
      lacking: what could not be compared because JAX itself cannot do it on this backend.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.lacking: list[str] = []

    def calls(
        self,
        about: str,
        call: Callable[..., Any],
        make: Callable[..., tuple] = tuple,
        *,
        context: Callable[[], Any] = contextlib.nullcontext,
    ) -> None:
        """Observe `call(*make())` several times, each with new arguments, in a context."""
        for turn in range(TURNS):
            self.seen.append((f"{about}, call {turn + 1}", observe(call, *make(), context=context)))

    def can(self, about: str, attempt: Callable[[], Any]) -> bool:
        """Does JAX manage this here? Where it does not, that is noted, with its error."""
        try:
            attempt()
        except Exception as error:
            text = str(error).strip().split("\n")[0][:100]
            self.lacking.append(f"{about} ({type(error).__name__}: {text})")
        else:
            return True
        return False

    def fact(self, about: str, value: Any) -> None:
        """Note plain data that has to be the same."""
        self.seen.append((about, value))


@dataclass(frozen=True)
class Check:
    """One program that is run with plain JAX and with jaxmarshal.

    Attributes:
      name: unique.
      about: one sentence on what is compared.
      entry_points: those that it is about, and that alone are installed for it; all are installed
        if it names none.
      trap: the number of the trap that it is about, or None.
      program: what runs; it is called once with plain JAX and once with jaxmarshal.
    """

    name: str
    about: str
    entry_points: tuple[str, ...]
    trap: int | None
    program: Callable[[World, Recorder], None]


CHECKS: list[Check] = []


def check(
    name: str, *, entry_points: Iterable[str] = (), trap: int | None = None
) -> Callable[[Callable[[World, Recorder], None]], Callable[[World, Recorder], None]]:
    """Register the decorated program, whose docstring says what it compares, as a check."""

    def register(
        program: Callable[[World, Recorder], None],
    ) -> Callable[[World, Recorder], None]:
        about = (program.__doc__ or "").strip()
        CHECKS.append(Check(name, about, tuple(entry_points), trap, program))
        return program

    return register
