"""optax: gradients from a jitted function, `update` and `apply_updates` outside of it."""

import jax
import jax.numpy as jnp
import optax
from synthetic import batches, layers

LIBRARIES = ("optax",)


@jax.jit
def value_and_gradients(params, x, y):
    def loss(params):
        hidden = jax.nn.relu(x @ params[0]["kernel"] + params[0]["bias"])
        logits = hidden @ params[1]["kernel"] + params[1]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    return jax.value_and_grad(loss)(params)


def make():
    params = jax.tree.map(jnp.asarray, layers(16, 32, 10))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    data = [jax.device_put(batch) for batch in batches()]

    def step(state, i):
        params, moments = state
        value, gradients = value_and_gradients(params, *data[i % len(data)])
        changes, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, changes), moments), value

    return (params, optimizer.init(params)), step
