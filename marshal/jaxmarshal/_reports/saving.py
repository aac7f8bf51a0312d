"""What a fast call saves at least, measured with the smallest call of each kind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarshal._core.entries import jit
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import sums

ROUNDS = 9    # of which the best counts; in the first ones it is recorded
CALLS = 15    # in a round of each side

#: Entry points of libraries that lead to a jitted function; more than its saving comes on top.
AROUND_JIT = ("filter_jit", "equinox_filter_jit", "nnx_jit")

Sides = tuple[Callable[[], Any], Callable[[], Any]]


def _identity(x: Any) -> Any:
    return x


def _of_jit(x: jax.Array) -> Sides:
    plain, fast = jax.jit(partial(_identity)), jit.jit(partial(_identity))
    jit.exclude(plain)
    return partial(plain, x), partial(fast, x)


def _small_calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Arguments of a small call of each entry point.

    None of `functions`: the sum of two arrays saves next to nothing, others a millisecond.
    """
    x, data = jnp.zeros(1), np.zeros(1, np.float32)
    yield "device_put", (data,)
    yield "asarray", (data,)
    yield "array", (data,)
    yield "zeros", (1,)
    yield "ones", (1,)
    yield "full", (1, 1.0)
    yield "getitem", (x, 0)
    yield "bind", (lax.neg_p, x)
    yield "compiled_call", (jax.jit(_identity).lower(x).compile(), x)


def _sides(name: str) -> Sides | None:
    """A small call of an entry point, by JAX's function and by ours; None for one without."""
    if name in ("jit", *AROUND_JIT):
        return _of_jit(jnp.zeros(1)) if private.HAVE_JIT else None
    for entry in patching.ENTRY_POINTS:
        if entry.name == name and entry.active:
            arguments = dict(_small_calls()).get(name)
            return None if arguments is None else _both(entry, arguments)
    return None


def _both(place: Any, arguments: tuple[Any, ...]) -> Sides:
    return partial(place.original, *arguments), partial(place.accelerated, *arguments)


@contextmanager
def _all_stepping_aside() -> Iterator[None]:
    """Something is replaced in a module that every fast path goes past, and JAX never reads it."""
    before = private.core.__doc__
    private.core.__doc__ = "JAX alone"
    try:
        yield
    finally:
        private.core.__doc__ = before


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def _measured(name: str) -> float | None:
    sides = _sides(name)
    if sides is None:
        return None
    plain, fast = sides
    best = [math.inf, math.inf]
    for _ in range(ROUNDS):
        with _all_stepping_aside():
            best[0] = min(best[0], _seconds(plain))
        best[1] = min(best[1], _seconds(fast))
    return max(best[0] - best[1], 0.0)


@cache
def of_a_call(name: str) -> float | None:
    """The seconds that a fast call of an entry point saves at least; None where unknown.

    Measured once in a process.
    """
    with sums.set_aside():
        return _measured(name)


def saved(name: str, hits: int) -> float | None:
    """The seconds that so many fast calls have saved at least; None where that is unknown.

    It calls JAX, but while JAX traces, or before it has a backend.
    """
    if not hits or not private.backends_are_initialized():
        return None
    try:
        if not private.trace_holder.is_top_level():
            return None
        each = of_a_call(name)
    except Exception:    # a configuration in which such a call fails
        return None
    return None if each is None else each * hits
