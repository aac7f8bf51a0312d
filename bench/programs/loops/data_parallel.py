"""Plain JAX: a training step over four devices, the batch placed in shards, the state donated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from synthetic import batches, layers

LIBRARIES = ()
DEVICES = 4

jax.config.update("jax_num_cpu_devices", DEVICES)


def loss(params, x, y):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    logits = jax.nn.log_softmax(x @ params[-1]["kernel"] + params[-1]["bias"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))


@functools.partial(jax.jit, donate_argnums=0)
def train_step(params, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


def make():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), ("batch",))
    shards = NamedSharding(mesh, PartitionSpec("batch"))
    params = jax.device_put(layers(16, 32, 32, 10), NamedSharding(mesh, PartitionSpec()))
    data = batches()

    def step(params, i):
        x, y = jax.device_put(data[i % len(data)], shards)
        params, value = train_step(params, x, y)
        # With many steps on their way, XLA's devices on two cores can wait for each other for ever.
        return params, float(value)

    return params, step
