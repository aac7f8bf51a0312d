"""A sampler: random-walk Metropolis, one compiled step a sample.

The state is a pytree with a typed PRNG key among its leaves; every step returns the next one.
"""

import sys

import jax
import jax.numpy as jnp
import side_by_side


def log_density(x):
    """Rosenbrock's banana."""
    return -((1 - x[0]) ** 2) - 5 * (x[1] - x[0] ** 2) ** 2


def metropolis(state, scale):
    key, for_move, for_choice = jax.random.split(state["key"], 3)
    moved = state["x"] + scale * jax.random.normal(for_move, state["x"].shape)
    density = log_density(moved)
    accept = jnp.log(jax.random.uniform(for_choice)) < density - state["density"]
    return {
        "key": key,
        "x": jnp.where(accept, moved, state["x"]),
        "density": jnp.where(accept, density, state["density"]),
        "accepted": state["accepted"] + accept,
    }


def start():
    x = jnp.zeros(2)
    return {
        "key": jax.random.key(0),
        "x": x,
        "density": log_density(x),
        "accepted": jnp.zeros((), jnp.int32),
    }


scale = jnp.float32(0.5)
step = jax.jit(metropolis).lower(start(), scale).compile()


def sample(steps):
    """The chain, and how many moves were accepted."""
    state, chain = start(), []
    for _ in range(steps):
        state = step(state, scale)
        chain.append(state["x"])
    return chain, state["accepted"], jax.random.key_data(state["key"])


if __name__ == "__main__":
    sys.exit(side_by_side.main("sampler", sample, steps=2000))
