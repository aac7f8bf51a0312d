"""Plain JAX: momentum written by hand, a batch of numpy arrays placed by one `device_put`."""

import functools

import jax
import jax.numpy as jnp
from synthetic import batches, layers

LIBRARIES = ()


def loss(params, batch):
    x = batch["image"]
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    logits = jax.nn.log_softmax(x @ params[-1]["kernel"] + params[-1]["bias"])
    return -jnp.mean(jnp.take_along_axis(logits, batch["label"][:, None], 1))


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, batch):
    params, momentum = state
    value, gradients = jax.value_and_grad(loss)(params, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
    return (params, momentum), value


def make():
    params = jax.tree.map(jnp.array, layers(16, 32, 32, 32, 10))
    data = batches()

    def step(state, i):
        image, label = data[i % len(data)]
        return train_step(state, jax.device_put({"image": image, "label": label}))

    return (params, jax.tree.map(jnp.zeros_like, params)), step
