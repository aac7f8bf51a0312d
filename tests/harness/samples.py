"""Targets, values and transformations that several tests of `device_put` use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from support import aligned

P = PartitionSpec


def mesh_of(*numbers, names=("x",), axis_types=None):
    devices = np.asarray(jax.devices())[list(numbers)]
    return jax.sharding.Mesh(devices, names, axis_types=axis_types)


def device(number):
    return jax.devices()[number]


TARGETS = {
    "none": lambda: None,
    "first": lambda: device(0),
    "other": lambda: device(3),
    "single": lambda: SingleDeviceSharding(device(0)),
    "single other": lambda: SingleDeviceSharding(device(5)),
    "replicated": lambda: NamedSharding(mesh_of(*range(8)), P()),
    "subset": lambda: NamedSharding(mesh_of(1, 2), P()),
}


def targets(*names):
    return pytest.mark.parametrize("target", [TARGETS[n] for n in names], ids=names)


def odd_values():
    """Arguments that show what a context changes: their device, their width, what is not finite."""
    return [aligned(3), np.float32(np.nan), aligned(2, np.float64), 1.5, 3, True, 2j, np.int64(7)]


TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(jnp.ones(2)),
    "grad": lambda f: jax.grad(f)(jnp.ones(2)),
    "vmap": lambda f: jax.vmap(f)(jnp.ones((3, 2))),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.ones((3, 2)))[1],
    "jvp": lambda f: jax.jvp(f, (jnp.ones(2),), (jnp.ones(2),))[1],
    "eval_shape": lambda f: jax.eval_shape(f, jnp.ones(2)).shape,
    "make_jaxpr": lambda f: str(jax.make_jaxpr(f)(jnp.ones(2))),
}
