"""Plain JAX: a Kalman filter, one jitted step for each measurement that numpy brings."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LIBRARIES = ()


class Belief(NamedTuple):
    mean: jax.Array
    covariance: jax.Array


MOTION = np.array([[1.0, 0.1], [0.0, 1.0]], np.float32)
SEEN = np.array([[1.0, 0.0]], np.float32)


@jax.jit
def update(belief, measurement):
    mean = MOTION @ belief.mean
    covariance = MOTION @ belief.covariance @ MOTION.T + 0.01 * jnp.eye(2)
    innovation = measurement - SEEN @ mean
    gain = covariance @ SEEN.T / (SEEN @ covariance @ SEEN.T + 0.1)
    mean = mean + gain @ innovation
    return Belief(mean, (jnp.eye(2) - gain @ SEEN) @ covariance), innovation


def make():
    random = np.random.default_rng(0)
    measured = random.normal(0, 0.3, (256, 1)).astype(np.float32)

    def step(belief, i):
        return update(belief, measured[i % len(measured)])

    return Belief(jnp.zeros(2), jnp.eye(2)), step
