"""Helpers of the tests of `jaxmarshal.compat.dispatch_v0_3`."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jax.api_util import debug_info
from jax.extend import linear_util

import jaxmarshal
from jaxmarshal.compat import dispatch_v0_3 as dispatch


def wrapped(function: Any) -> Any:
    """A function of flat arguments as the old API takes it."""
    return linear_util.wrap_init(function, debug_info=debug_info("jit", function, (), {}))


def lower(function: Any, *args: Any, device=None, backend=None, donated=None, name=None) -> Any:
    """The `XlaComputation` of a function that returns a list, for arguments like these."""
    donated = (False,) * len(args) if donated is None else donated
    return dispatch.lower_xla_callable(
        wrapped(function), device, backend, name or function.__name__, donated,
        *map(dispatch.arg_spec, args),
    )  # fmt: skip


def compiled(function: Any, *args: Any, **options: Any) -> Any:
    """The `XlaCompiledComputation` of such a function."""
    return lower(function, *args, **options).compile()


def counts(entry: str) -> tuple[int, int]:
    """(hits, misses) of an entry point of the old API since the last `reset_stats()`."""
    found = jaxmarshal.stats()[f"dispatch_v0_3.{entry}"]
    return found["hits"], found["misses"]


def same(found: Any, expected: Any) -> None:
    """Compare results with those of plain JAX: values, dtypes and weak types."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        assert (one.dtype, one.shape, one.weak_type) == (other.dtype, other.shape, other.weak_type)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@contextlib.contextmanager
def entry(table: dict, key: Any, value: Any):
    """A table with one more or another entry for a while."""
    before = dict(table)
    table[key] = value
    try:
        yield
    finally:
        table.clear()
        table.update(before)


class Pair:
    """A type of a user's: two arrays."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


def put_pair(pair: Pair, device: Any) -> tuple[Any, ...]:
    """The handler for it: two buffers."""
    return (*dispatch.device_put(pair.first, device), *dispatch.device_put(pair.second, device))


def devices() -> list[Any]:
    return jax.local_devices()
