"""blackjax: a NUTS kernel, jitted, called sample by sample; a key is folded for each."""

import blackjax
import jax
import jax.numpy as jnp

LIBRARIES = ("blackjax",)


def log_density(position):
    scaled = (position["x"] - jnp.arange(3.0)) / jnp.asarray([1.0, 2.0, 0.5])
    return -0.5 * jnp.sum(scaled**2) - 0.5 * position["y"] ** 2


def make():
    kernel = blackjax.nuts(log_density, step_size=0.5, inverse_mass_matrix=jnp.ones(4))
    sample, key = jax.jit(kernel.step), jax.random.key(0)

    def step(state, i):
        state, info = sample(jax.random.fold_in(key, i), state)
        return state, info.acceptance_rate

    return kernel.init({"x": jnp.zeros(3), "y": jnp.zeros(())}), step
