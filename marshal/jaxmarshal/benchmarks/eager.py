"""Cases without a compiled function: operations one by one, and making arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarshal import _reference
from jaxmarshal.benchmarks.case import Case, Sides


def _operation(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Sides:
    """An operation on arrays; the floor runs its executable with everything prepared."""
    args = make()
    compiled = jax.jit(function).lower(*args).compile()
    loaded = compiled._executable.unsafe_call
    execute, handlers = loaded.xla_executable.execute_sharded, loaded.out_handler.handlers
    kept = [x for i, x in enumerate(args) if i in loaded.kept_var_idx]
    kept = [getattr(x, "_base_array", x) for x in kept]
    call = partial(function, *args)
    return Sides(call, call, lambda: execute(kept).consume_with_handlers(handlers))


def _arrays(count: int) -> tuple[Any, ...]:
    return tuple(jax.device_put(np.arange(1, 9, dtype=np.float32)) for _ in range(count))


def eager_cases() -> Iterator[Case]:
    """Operations on arrays outside `jit`."""
    two, one = partial(_arrays, 2), partial(_arrays, 1)

    def add(x: Any, y: Any) -> Any:
        return x + y

    def first(x: Any) -> Any:
        return x[0]

    def half(x: Any) -> Any:
        return x[2:6]

    def keys() -> tuple[Any, ...]:
        return (jax.random.key(0),)

    yield Case("lax.add", "eager", partial(_operation, lax.add, two), 2, quick=True)
    yield Case("lax.neg", "eager", partial(_operation, lax.neg, one))
    yield Case("x + x", "eager", partial(_operation, add, two), 2)
    yield Case("jnp.sin", "eager", partial(_operation, jnp.sin, one))
    yield Case("x[0]", "eager", partial(_operation, first, one))
    yield Case("x[2:6]", "eager", partial(_operation, half, one))
    yield Case("jnp.zeros(3)", "eager", partial(_operation, lambda: jnp.zeros(3), tuple), 0)
    yield Case("random.split", "eager", partial(_operation, jax.random.split, keys))
    yield Case(
        "lax.add, blocking", "eager", lambda: _operation(lax.add, two).blocking(), 2
    )


def _making(function: Callable[[Any], Any], x: Any) -> Sides:
    done = function(x)
    floor = partial(
        _reference.batched_device_put,
        done.aval, done.sharding, [np.asarray(x, done.dtype)], jax.devices()[:1], False,
    )  # fmt: skip
    call = partial(function, x)
    return Sides(call, call, floor)


def asarray_cases() -> Iterator[Case]:
    """Arrays from host data through `jax.numpy`."""
    x = np.arange(8, dtype=np.float32)
    yield Case("jnp.asarray(np f32[8])", "asarray", lambda: _making(jnp.asarray, x), quick=True)
    yield Case("jnp.array(np f32[8])", "asarray", lambda: _making(jnp.array, x))
    yield Case("jnp.asarray(1.0)", "asarray", lambda: _making(jnp.asarray, 1.0))
    yield Case("jnp.asarray(np.float32)", "asarray", lambda: _making(jnp.asarray, np.float32(1)))
    yield Case(
        "jnp.asarray(np f32[8]), blocking", "asarray",
        lambda: _making(jnp.asarray, x).blocking(),
    )  # fmt: skip
