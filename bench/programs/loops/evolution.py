"""Plain JAX: an evolution strategy; keys and noise outside of `jit`, fitness and update inside."""

import jax
import jax.numpy as jnp

LIBRARIES = ()
POPULATION = 32


@jax.jit
def fitness(candidates):
    return -jnp.sum((candidates - jnp.arange(8.0)) ** 2, axis=1)


@jax.jit
def improve(mean, noise, scores):
    weights = jax.nn.softmax(scores)
    return mean + 0.1 * weights @ noise


def make():
    def step(state, i):
        key, mean = state
        key, subkey = jax.random.split(key)
        noise = jax.random.normal(subkey, (POPULATION, 8))
        scores = fitness(mean + 0.3 * noise)
        return (key, improve(mean, noise, scores)), jnp.max(scores)

    return (jax.random.key(0), jnp.zeros(8)), step
