"""Cases while a mesh is set, the style that JAX's documentation teaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxmarshal import api
from jaxmarshal._jax import private
from jaxmarshal.benchmarks import inputs
from jaxmarshal.benchmarks.case import Case, Sides


def _mesh(count: int | None = None) -> Mesh:
    """One of so many devices, or of all, with an axis that JAX spreads by itself."""
    devices = np.asarray(jax.devices()[:count])
    return Mesh(devices, ("x",), axis_types=(AxisType.Auto,))


def _rows() -> Any:
    return np.arange(8 * len(jax.devices()), dtype=np.float32)


def _call(
    function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], count: int | None
) -> Sides:
    """A call while a mesh is set. On several devices most of it would be their own work."""
    call = partial(function, *make())
    return Sides(call, call, installed=True, context=partial(jax.set_mesh, _mesh(count)))


def _put() -> Sides:
    """Host data to a spec, whose mesh is the one that is set."""
    args = (_rows(), PartitionSpec("x"))
    return Sides(
        partial(private.device_put, *args), partial(api.device_put, *args),
        context=partial(jax.set_mesh, _mesh()),
    )  # fmt: skip


def meshes_cases() -> Iterator[Case]:
    """Operations, arrays of host data, and specs as targets, while a mesh is set."""

    def one() -> tuple[Any, ...]:
        return (jax.device_put(np.arange(8, dtype=np.float32)),)

    def two() -> tuple[Any, ...]:
        return one() + one()

    def spread() -> tuple[Any, ...]:
        return (private.device_put(_rows(), inputs.over_all_devices()),)

    def host() -> tuple[Any, ...]:
        return (np.arange(8, dtype=np.float32),)

    for name, entry, function, make, leaves in (
        ("lax.add", "functions", lambda x, y: lax.add(x, y), two, 2),
        ("lax.neg, spread", "functions", lambda x: lax.neg(x), spread, 1),
        ("x[0]", "getitem", lambda x: x[0], one, 1),
        ("jnp.zeros(8)", "zeros", lambda: jnp.zeros(8), tuple, 0),
        ("jnp.asarray(np f32[8])", "asarray", lambda x: jnp.asarray(x), host, 1),
    ):
        yield Case(
            name, entry, partial(_call, function, make, None if make is spread else 1), leaves,
            least_speedup=1.0, devices=8 if make is spread else 1,
        )  # fmt: skip
    yield Case(
        "device_put of numpy to a spec", "device_put", _put, least_speedup=1.0, devices=8
    )
