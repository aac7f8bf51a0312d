"""equinox: `filter_jit` inference with a model of 62 arrays, and a request on the device."""

import equinox as eqx
import jax
from synthetic import batches

LIBRARIES = ("equinox",)


class Tower(eqx.Module):
    layers: list

    def __init__(self, key):
        self.layers = [eqx.nn.Linear(16, 16, key=key) for key in jax.random.split(key, 31)]

    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.tanh(layer(x))
        return x


@eqx.filter_jit
def infer(model, x):
    return jax.vmap(model)(x)


def make():
    model = Tower(jax.random.key(0))
    data = [jax.device_put(x) for x, _ in batches(size=2)]

    def step(model, i):
        return model, infer(model, data[i % len(data)])

    return model, step
