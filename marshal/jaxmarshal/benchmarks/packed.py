"""Cases of packed carries: a state that is fed back from step to step, over plain `jax.jit`.

Each call waits for its result, so that the computation counts on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmarshal
from jaxmarshal.benchmarks.case import Call, Case, Sides


def _half_way(state: Any) -> Any:
    """Elementwise, and it leaves ones alone; the second result is the same packed and not."""
    state = [x * 0.5 + 0.5 for x in state]
    return state, state[0]


def _loop(function: Callable[..., Any], state: Any, *arguments: Any) -> Call:
    held = [state]

    def call() -> Any:
        held[0], out = function(held[0], *arguments)
        return out

    return call


def _fed_back(count: int, shape: tuple[int, ...], donate: bool) -> Sides:
    plain = jax.jit(_half_way, donate_argnums=0 if donate else ())
    packed = jaxmarshal.carry(_half_way, donate=donate)

    def state() -> list[Any]:
        return [jnp.ones(shape, jnp.float32) for _ in range(count)]

    return Sides(_loop(plain, state()), _loop(packed, state())).blocking()


def _with_batch(state: Any, batch: Any) -> Any:
    return state, batch["k0"]


def _batch(count: int) -> Sides:
    batch = {f"k{i}": np.arange(8, dtype=np.float32) + i for i in range(count)}
    state = [jnp.ones(8, jnp.float32)] * 4
    return Sides(
        _loop(jax.jit(_with_batch, keep_unused=True), state, batch),
        _loop(jaxmarshal.carry(_with_batch, pack_host=True), state, batch),
    ).blocking()


def packed_cases() -> Iterator[Case]:
    """Packed carries, with few and many leaves, small and not so small."""
    for count, shape in ((4, (8,)), (100, (8,)), (300, (16, 16)), (1000, (8,)), (200, (64, 64))):
        text = ",".join(map(str, shape))
        for donate in (False, True):
            yield Case(
                f"{count} × f32[{text}]{', donated' if donate else ''}", "jit",
                partial(_fed_back, count, shape, donate), leaves=count,
                quick=count == 100 and not donate,
            )  # fmt: skip
    yield Case("batch of 9 numpy in one buffer", "jit", partial(_batch, 9), leaves=9, hits=False)
