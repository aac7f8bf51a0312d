"""The oracle of the differential tests, which is also that of `doctor --check`.

What is observed here is counted besides, for each test: `conftest` fails a test whose calls were
all refused by plain JAX and by jaxmarshal alike, unless it is marked as one about errors, and
reports those in which nothing was accelerated.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import jaxmarshal
from jaxmarshal.selfcheck import observe as oracle
from jaxmarshal.selfcheck.observe import (
    NothingCompared,
    describe,
    entered,
    input_leaves,
    input_pointers,
    observe_leaf,
)

__all__ = [
    "SEEN", "NothingCompared", "describe", "entered", "input_leaves", "input_pointers", "observe",
    "observe_leaf", "total_hits",
]  # fmt: skip


@dataclass
class Seen:
    """What the observations of one test amount to.

    Attributes:
      returned: how many calls had a result.
      raised: how many had an error.
      hits: how many of either were accelerated, by whichever entry point.
    """

    returned: int = 0
    raised: int = 0
    hits: int = 0

    def clear(self) -> None:
        self.returned = self.raised = self.hits = 0


#: The observations of the test that is running.
SEEN = Seen()


def total_hits() -> int:
    """The accelerated calls of all entry points."""
    return sum(counts["hits"] for counts in jaxmarshal.stats().values())


def observe(
    call: Any, *args: Any, context: Any = contextlib.nullcontext, **kwargs: Any
) -> tuple:
    """The observation of one call; see `jaxmarshal.selfcheck.observe`."""
    before = total_hits()
    found = oracle.observe(call, *args, context=context, **kwargs)
    SEEN.hits += max(0, total_hits() - before)
    if found[0][0] == "returned":
        SEEN.returned += 1
    else:
        SEEN.raised += 1
    return found
