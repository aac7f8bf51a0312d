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

#: (dtype, shape) of each leaf.
Leaves = tuple[tuple[Any, tuple[int, ...]], ...]

#: Of every kind so few that nothing is packed.
_SEVERAL: Leaves = (
    *[(jnp.float32, (8,))] * 3, *[(jnp.int32, (8,))] * 2, (jnp.bfloat16, (8,)),
    (jnp.float32, (64, 64)),
)  # fmt: skip


def _half_way(state: Any) -> Any:
    """Elementwise, and it leaves ones alone; the second result is the same packed and not."""
    state = [(x * 0.5 + 0.5).astype(x.dtype) for x in state]
    return state, state[0]


def _loop(function: Callable[..., Any], state: Any, *arguments: Any) -> Call:
    held = [state]

    def call() -> Any:
        held[0], out = function(held[0], *arguments)
        return out

    return call


def _fed_back(leaves: Leaves, donate: bool) -> Sides:
    plain = jax.jit(_half_way, donate_argnums=0 if donate else ())
    packed = jaxmarshal.carry(_half_way, donate=donate)

    def state() -> list[Any]:
        return [jnp.ones(shape, dtype) for dtype, shape in leaves]

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


def _states() -> Iterator[tuple[str, Leaves, tuple[float | None, float | None]]]:
    """(name, leaves, least speed-up if not donated and if donated) of each state."""
    yield "2 × f32[8], not packed", ((jnp.float32, (8,)),) * 2, (0.98, 0.98)
    yield "4 × f32[64,64], not packed", ((jnp.float32, (64, 64)),) * 4, (0.98, 0.98)
    yield "7 of several dtypes, not packed", _SEVERAL, (0.98, 0.98)
    for count, shape, least in (
        (4, (8,), (1.0, 1.0)), (100, (8,), (None, None)), (300, (16, 16), (None, None)),
        (1000, (8,), (None, None)), (200, (64, 64), (None, None)),
    ):  # fmt: skip
        text = ",".join(map(str, shape))
        yield f"{count} × f32[{text}]", ((jnp.float32, shape),) * count, least


def packed_cases() -> Iterator[Case]:
    """Packed carries, with few and many leaves, small and not so small."""
    for name, leaves, least in _states():
        for donate in (False, True):
            yield Case(
                f"{name}{', donated' if donate else ''}", "jit",
                partial(_fed_back, leaves, donate), leaves=len(leaves),
                least_speedup=least[donate], quick=name == "100 × f32[8]" and not donate,
            )  # fmt: skip
    yield Case("batch of 9 numpy in one buffer", "jit", partial(_batch, 9), leaves=9)
