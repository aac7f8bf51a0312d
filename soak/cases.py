"""What the soak calls over and over: the calls of `doctor --check`, with what plain JAX makes of
them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

import jaxmarshal
from jaxmarshal.selfcheck import CHECKS
from jaxmarshal.selfcheck.observe import outcome
from jaxmarshal.selfcheck.registry import Recorder
from jaxmarshal.selfcheck.world import World


@dataclass(frozen=True)
class Case:
    """One kind of call.

    Attributes:
      name: the check that it is of, and what it is about there.
      call, make, context: `call(*make())` in `context()`.
      expected: the outcome with plain JAX.
    """

    name: str
    call: Callable[..., Any]
    make: Callable[..., tuple]
    context: Callable[[], Any]
    expected: Any = None

    def outcome(self) -> tuple:
        """What the call makes now of arguments made now."""
        return _lasting(outcome(self.call, *self.make(), context=self.context))


def _lasting(found: Any) -> Any:
    """The outcome without avals as objects: some from before `jax.clear_caches()` equal none from
    after it. Their texts are part of the outcome, too."""
    if isinstance(found, (tuple, list)):
        return type(found)(_lasting(part) for part in found)
    return str(found) if isinstance(found, jax.core.ShapedArray) else found


class _Collector(Recorder):
    """Keeps the calls of a check, and performs none."""

    def __init__(self, check: str) -> None:
        super().__init__()
        self.check = check
        self.cases: list[Case] = []

    def calls(
        self,
        about: str,
        call: Callable[..., Any],
        make: Callable[..., tuple] = tuple,
        *,
        context: Callable[[], Any] = contextlib.nullcontext,
    ) -> None:
        self.cases.append(Case(f"{self.check}: {about}", call, make, context))


def _collect(accelerated: bool) -> list[Case]:
    found = []
    for check in CHECKS:
        # Those past the tenth are about processes, threads and lifetimes; the soak has its own.
        if check.trap is None or check.trap <= 10:
            collector = _Collector(check.name)
            check.program(World(accelerated), collector)
            found += collector.cases
    return found


def cases(caches_cleared: bool) -> list[Case]:
    """Every case, to be called with jaxmarshal, with its outcome in plain JAX.

    With `caches_cleared` only those whose outcome is the same after `jax.clear_caches()`.
    Calls and functions are made anew while jaxmarshal is installed, and it stays so.
    """
    jaxmarshal.uninstall()
    plain = _collect(accelerated=False)
    expected = []
    for case in plain:
        outcomes = [case.outcome() for _ in range(3)]
        # What depends on the calls before it, such as on JAX's caches, cannot be called at random.
        expected.append(outcomes[0] if outcomes[1:] == outcomes[:-1] else None)
    for i, case in enumerate(plain if caches_cleared else ()):
        jax.clear_caches()
        if case.outcome() != expected[i]:
            expected[i] = None
    jaxmarshal.install()
    fast = _collect(accelerated=True)
    assert [case.name for case in fast] == [case.name for case in plain]
    return [
        Case(case.name, case.call, case.make, case.context, wanted)
        for case, wanted in zip(fast, expected, strict=True)
        if wanted is not None
    ]
