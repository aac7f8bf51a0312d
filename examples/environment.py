"""An environment loop: a pole on a cart, simulated in numpy, balanced by a policy on the device.

Every step places a small observation, a dict of numpy values, and asks a policy that was compiled
ahead of time; its answer goes back into the simulation. All of it is latency.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import side_by_side

STEP, GRAVITY, LENGTH = 0.02, 9.8, 0.5


class Cart:
    """The pole falls over unless the cart is pushed under it."""

    def __init__(self):
        self.position = np.zeros(2, np.float32)  # of the cart, and its speed
        self.angle = np.array([0.05, 0.0], np.float32)  # of the pole, and its speed

    def observe(self):
        return {
            "position": self.position.copy(),
            "angle": self.angle.copy(),
            "fallen": np.abs(self.angle[0]) > 0.5,
        }

    def push(self, force):
        pull = (GRAVITY * np.sin(self.angle[0]) - force * np.cos(self.angle[0])) / LENGTH
        self.angle += STEP * np.array([self.angle[1], pull], np.float32)
        self.position += STEP * np.array([self.position[1], force], np.float32)


def policy(params, observation):
    inputs = jnp.concatenate([observation["position"], observation["angle"]])
    hidden = jnp.tanh(params["hidden"] @ inputs)
    return jnp.where(observation["fallen"], 0.0, params["out"] @ hidden)


params = jax.device_put(
    {
        "hidden": np.array([[0, 0, 4, 1], [0.1, 0.1, 0, 0]], np.float32),
        "out": np.array([12, 1], np.float32),
    }
)
act = jax.jit(policy).lower(params, jax.device_put(Cart().observe())).compile()


def play(steps):
    """The path of the pole, which depends on every answer of the policy."""
    cart, path = Cart(), []
    for _ in range(steps):
        observation = jax.device_put(cart.observe())
        cart.push(float(act(params, observation)))
        path.append(cart.angle.copy())
    return path


if __name__ == "__main__":
    sys.exit(side_by_side.main("environment", play, steps=1000))
