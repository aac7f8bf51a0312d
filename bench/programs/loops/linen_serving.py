"""flax linen: a jitted `apply` answers requests, numpy in and numpy out."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from synthetic import batches

LIBRARIES = ("flax",)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(8):
            x = x + nn.Dense(16)(nn.gelu(nn.LayerNorm()(x)))
        return nn.Dense(10)(x)


def make():
    model, data = Network(), batches(size=1)
    params = model.init(jax.random.key(0), jnp.ones((1, 16)))
    predict = jax.jit(model.apply)

    def step(params, i):
        x, _ = data[i % len(data)]
        return params, np.asarray(predict(params, x))

    return params, step
