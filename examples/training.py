"""A training loop: a small network, optax, a step compiled ahead of time that donates its state.

Every step places a batch, a pytree of numpy arrays, and calls the step with parameters and
optimizer state. The network is so small that the way to the device is most of the work.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import side_by_side

SIZES = [16, 32, 32, 4]
optimizer = optax.adam(1e-3)


def initial_params():
    """One dict of weights for each layer, always the same."""
    random = np.random.default_rng(0)
    return [
        {
            "kernel": jnp.asarray(random.normal(0, n**-0.5, (n, m)), jnp.float32),
            "bias": jnp.zeros(m),
        }
        for n, m in itertools.pairwise(SIZES)
    ]


def loss(params, batch):
    x = batch["image"]
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    logits = x @ params[-1]["kernel"] + params[-1]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return jnp.mean(losses * batch["weight"])


def update(params, state, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    changes, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, changes), state, value


def batches(steps, size=8):
    """What a data loader would hand over: numpy arrays in a dict."""
    random = np.random.default_rng(1)
    for _ in range(steps):
        label = random.integers(0, SIZES[-1], size).astype(np.int32)
        image = random.normal(label[:, None], 1, (size, SIZES[0])).astype(np.float32)
        yield {"image": image, "label": label, "weight": np.ones(size, np.float32)}


(example,) = batches(1)
params = initial_params()
step = (
    jax.jit(update, donate_argnums=(0, 1))
    .lower(params, optimizer.init(params), example)
    .compile()
)
data = list(batches(1000))


def train(steps):
    params = initial_params()
    state = optimizer.init(params)
    value = None
    for i in range(steps):
        batch = jax.device_put(data[i % len(data)])
        params, state, value = step(params, state, batch)
    return params, value


if __name__ == "__main__":
    sys.exit(side_by_side.main("training", train, steps=1000))
