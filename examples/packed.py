"""A training loop whose state travels packed: many small layers, Adam by hand, one buffer.

Parameters and both moments are some hundred arrays of which none is large. `jaxmarshal.carry` puts
them into one buffer, gives the step the tree, and packs what it returns.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import side_by_side

import jaxmarshal

LAYERS, WIDTH, RATE = 12, 8, 1e-2


def initial_state():
    """Parameters, moments and a count, always the same."""
    random = np.random.default_rng(0)
    params = [
        {"kernel": jnp.asarray(random.normal(0, 0.3, (WIDTH, WIDTH)), jnp.float32),
         "bias": jnp.zeros(WIDTH)}
        for _ in range(LAYERS)
    ]  # fmt: skip
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "mean": zeros, "square": zeros, "count": jnp.zeros((), jnp.float32)}


def loss(params, batch):
    x = batch["image"]
    for layer in params:
        x = x + jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return jnp.mean((x - batch["target"]) ** 2)


def update(state, batch):
    value, gradients = jax.value_and_grad(loss)(state["params"], batch)
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, state["square"], gradients)
    params = jax.tree.map(
        lambda p, m, s: p - RATE * m / (1 - 0.9**count) / (jnp.sqrt(s / (1 - 0.99**count)) + 1e-6),
        state["params"], mean, square,
    )  # fmt: skip
    return {"params": params, "mean": mean, "square": square, "count": count}, value


def batches(steps):
    """What a data loader would hand over: numpy arrays in a dict."""
    random = np.random.default_rng(1)
    for _ in range(steps):
        image = random.normal(size=(4, WIDTH)).astype(np.float32)
        yield {"image": image, "target": np.roll(image, 1, axis=1)}


plain_step = jax.jit(update)
packed_step = jaxmarshal.carry(update)
data = list(batches(100))


def train(step, steps):
    state = initial_state()
    for i in range(steps):
        state, value = step(state, jax.device_put(data[i % len(data)]))
    return value


if __name__ == "__main__":
    plain, packed = (partial(train, step) for step in (plain_step, packed_step))
    sys.exit(side_by_side.main("packed", plain, steps=1000, after_loop=packed, tolerance=1e-4))
