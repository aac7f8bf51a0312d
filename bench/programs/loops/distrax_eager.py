"""distrax: a distribution is made, sampled and evaluated operation by operation."""

import distrax
import jax
import jax.numpy as jnp

LIBRARIES = ("distrax",)


def make():
    def step(state, i):
        key, mean = state
        key, subkey = jax.random.split(key)
        normal = distrax.MultivariateNormalDiag(mean, jnp.ones(4))
        sample, log_prob = normal.sample_and_log_prob(seed=subkey)
        return (key, 0.9 * mean + 0.1 * sample), (log_prob, normal.entropy())

    return (jax.random.key(0), jnp.zeros(4)), step
