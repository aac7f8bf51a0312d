"""One comparison: the same work by plain JAX, by jaxmarshal, and by jaxlib alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxmarshal import installed, stats

Call = Callable[[], Any]


@dataclass(frozen=True)
class Sides:
    """Three calls without arguments that do the same work.

    Attributes:
      reference: the call through plain JAX.
      jaxmarshal: the same call through jaxmarshal.
      floor: the same work in the cheapest prepared jaxlib calls, or None.
      installed: is it `install()` that makes the jaxmarshal side differ from the reference?
      context: what every side is called in, a mesh for example; entering it is not measured.
    """

    reference: Call
    jaxmarshal: Call
    floor: Call | None = None
    installed: bool = False
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    @contextmanager
    def around(self, side: str) -> Iterator[None]:
        """What to call a side in."""
        ours = self.installed and side == "jaxmarshal"
        with self.context(), installed() if ours else nullcontext():
            yield

    def blocking(self) -> Sides:
        """The same, each call waiting for its results."""

        def waiting(call: Call) -> Call:
            return lambda: jax.block_until_ready(call())

        floor = None if self.floor is None else waiting(self.floor)
        return Sides(
            waiting(self.reference), waiting(self.jaxmarshal), floor, self.installed, self.context
        )


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
      name: what is measured, unique in its group.
      entry: the entry point in `jaxmarshal.stats()`.
      build: makes the sides; the first thing that touches a device.
      leaves: how many arguments the call has.
      series: cases that differ in `leaves` only have the same series; "" for none.
      devices: how many the work is spread over.
      least_speedup: reference / jaxmarshal has to be at least this, or None.
      most_over_floor: jaxmarshal / floor may be at most this, or None.
      hits: does the call take the fast path? A refused call has to miss.
      watched: is it asserted which path the call takes? Not where a call is there for what it is,
        whatever happens to it.
      quick: is it part of the quick selection?
    """

    name: str
    entry: str
    build: Callable[[], Sides] = field(repr=False)
    leaves: int = 1
    series: str = ""
    devices: int = 1
    least_speedup: float | None = None
    most_over_floor: float | None = None
    hits: bool = True
    watched: bool = True
    quick: bool = False

    @property
    def accelerated(self) -> bool:
        """Does this jaxmarshal have the entry point? Otherwise both sides are plain JAX."""
        return self.entry in stats()
