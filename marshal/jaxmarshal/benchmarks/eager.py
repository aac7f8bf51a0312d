"""Cases without a compiled function: operations one by one, and making arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarshal._jax import private
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
    return Sides(call, call, lambda: execute(kept).consume_with_handlers(handlers), True)


def _arrays(count: int) -> tuple[Any, ...]:
    return tuple(jax.device_put(np.arange(1, 9, dtype=np.float32)) for _ in range(count))


def _add(x: Any, y: Any) -> Any:
    """Written as programs do: the function is looked up in each call."""
    return lax.add(x, y)


def _running(function: Callable[[Any, int], Any]) -> Sides:
    """An index that is another one in each call, for each side in turn."""

    def make() -> Callable[[], Any]:
        x, rows = jax.device_put(np.zeros((1 << 14, 4), np.float32)), itertools.count()
        return lambda: function(x, next(rows) % ((1 << 14) - 8))

    return Sides(make(), make(), None, True)


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

    def zeros() -> Any:
        return jnp.zeros(3)

    def ones() -> Any:
        return jnp.ones(3)

    def full() -> Any:
        return jnp.full(3, 1.5)

    order = np.random.default_rng(0).permutation(1 << 14)
    data = np.ones((1 << 14, 4), np.float32)
    leaves = {two: 2, one: 1, keys: 1, tuple: 0}
    for name, entry, function, make, speedup in (
        ("neg_p.bind", "bind", lambda x: lax.neg_p.bind(x), one, 2.0),
        ("lax.add", "functions", _add, two, 2.0),
        ("lax.neg", "functions", lambda x: lax.neg(x), one, 2.0),
        ("x.reshape(2, 4)", "functions", lambda x: x.reshape(2, 4), one, None),
        ("x[0]", "getitem", first, one, 1.3),
        ("x[2:6]", "getitem", half, one, None),
        ("jnp.zeros(3)", "zeros", zeros, tuple, 1.5),
        ("jnp.ones(3)", "ones", ones, tuple, 1.5),
        ("jnp.full(3, 1.5)", "full", full, tuple, 1.5),
        ("random.split", "functions", lambda key: jax.random.split(key), keys, 1.2),
    ):
        yield Case(
            name, entry, partial(_operation, function, make), leaves[make],
            least_speedup=speedup, quick=name in ("lax.add", "x[0]"),
        )  # fmt: skip
    for name, entry, index in (
        ("x[i], another i each time", "getitem", lambda x, i: x[i]),
        ("x[i, 2], another i each time", "getitem", lambda x, i: x[i, 2]),
        ("x[i:i + 8], another i each time", "getitem", lambda x, i: x[i : i + 8]),
        ("x.at[i].set(1.), another i", "functions", lambda x, i: x.at[i].set(1.0)),
        ("x[numpy rows], others each time", "getitem", lambda x, i: x[order[i : i + 8]]),
        ("x[i, numpy int], another i", "getitem", lambda x, i: x[order[i], 2]),
        ("x.at[i].set(numpy), another i", "functions", lambda x, i: x.at[i].set(data[i])),
    ):
        yield Case(name, entry, partial(_running, index), 1, least_speedup=2)
    # One jitted function each, which JAX made before anybody could install anything.
    for name, entry, function, make in (
        ("x + x", "functions", add, two), ("jnp.sin", "jit", jnp.sin, one),
    ):
        yield Case(
            name, entry, partial(_operation, function, make), leaves[make],
            least_speedup=1 / 1.03,
        )  # fmt: skip
    yield Case("lax.add, blocking", "functions", lambda: _operation(_add, two).blocking(), 2)


def _making(function: Callable[[Any], Any], x: Any) -> Sides:
    """An array of host data, which it may not share; the floor is one put that copies."""
    done = function(x)
    floor = partial(
        private.batched_device_put,
        done.aval, done.sharding, [np.asarray(x, done.dtype)], jax.devices()[:1], False, True,
    )  # fmt: skip
    call = partial(function, x)
    return Sides(call, call, floor, True)


def asarray_cases() -> Iterator[Case]:
    """Arrays from host data through `jax.numpy`."""
    x = np.arange(8, dtype=np.float32)

    def asarray(x: Any) -> Any:
        return jnp.asarray(x)

    def array(x: Any) -> Any:
        return jnp.array(x)

    def asarray_f32(x: Any) -> Any:
        return jnp.asarray(x, jnp.float32)

    def asarray_there(x: Any) -> Any:
        return jnp.asarray(x, device=jax.devices()[0])

    def array_f16(x: Any) -> Any:
        return jnp.array(x, dtype=jnp.float16)

    for name, function, argument, speedup in (
        ("jnp.asarray(np f32[8])", asarray, x, 3.0),
        ("jnp.asarray(np f32[8], f32)", asarray_f32, x, 3.0),
        ("jnp.asarray(np f64[8], f32)", asarray_f32, x.astype(np.float64), 2.0),
        ("jnp.asarray(np f32[8], device=)", asarray_there, x, 3.0),
        ("jnp.array(np f32[8], f16)", array_f16, x, 2.0),
        ("jnp.array(np f32[8])", array, x, 2.5),
        ("jnp.asarray(1.0)", asarray, 1.0, 2.0),
        ("jnp.asarray(np.float32)", asarray, np.float32(1), None),
    ):
        yield Case(
            name, function.__name__.partition("_")[0], partial(_making, function, argument),
            least_speedup=speedup, quick=argument is x,
        )  # fmt: skip

    def floats(x: Any, i: int) -> Any:
        return jnp.array([float(i), 2.0, 3.0])

    def ints(x: Any, i: int) -> Any:
        return jnp.asarray([i, 2, 3], jnp.float32)

    if private.stage_primitive is not None:
        for name, entry, changing in (
            ("jnp.array([i, 2., 3.]), another i", "array", floats),
            ("jnp.asarray([i, 2, 3], f32), another i", "asarray", ints),
        ):
            yield Case(name, entry, partial(_running, changing), least_speedup=2)
    yield Case(
        "jnp.asarray(np f32[8]), blocking", "asarray",
        lambda: _making(asarray, x).blocking(),
    )  # fmt: skip
