"""blackjax: random-walk Metropolis, jitted; the key is split before each sample."""

import blackjax
import jax
import jax.numpy as jnp

LIBRARIES = ("blackjax",)


def log_density(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2)


def make():
    proposal = blackjax.mcmc.random_walk.normal(0.5 * jnp.ones(3))
    kernel = blackjax.additive_step_random_walk(log_density, proposal)
    sample = jax.jit(kernel.step)

    def step(state, i):
        key, sampler = state
        key, subkey = jax.random.split(key)
        sampler, info = sample(subkey, sampler)
        return (key, sampler), info.is_accepted

    return (jax.random.key(0), kernel.init(jnp.zeros(3))), step
