"""Plain JAX without `jit`: a regression by hand, operation by operation."""

import jax.numpy as jnp
import numpy as np

LIBRARIES = ()


def make():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(32, 4)), jnp.float32)
    y = x @ jnp.asarray([1.0, -2.0, 3.0, 0.5])

    def step(w, i):
        error = x @ w - y
        gradient = 2 * (x.T @ error) / len(x)
        w = jnp.where(jnp.abs(gradient) > 1e-4, w - 0.01 * gradient, w)
        return w, jnp.mean(error**2)

    return jnp.zeros(4), step
