"""optax without any `jit`: gradients, updates and their application run operation by operation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

LIBRARIES = ("optax",)


def loss(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def make():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(32, 4)), jnp.float32)
    y = x @ jnp.asarray([1.0, -2.0, 3.0, 0.5]) + 1.0
    params = {"w": jnp.zeros(4), "b": jnp.zeros(())}
    optimizer = optax.adam(1e-2)

    def step(state, i):
        params, moments = state
        gradients = jax.grad(loss)(params, x, y)
        changes, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, changes), moments), gradients

    return (params, optimizer.init(params)), step
