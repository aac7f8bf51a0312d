"""flax linen: a classifier in a `TrainState`, a jitted step, batches as numpy arrays."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from synthetic import batches

LIBRARIES = ("flax", "optax")


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in (32, 32):
            x = nn.relu(nn.LayerNorm()(nn.Dense(width)(x)))
        return nn.Dense(10)(x)


@jax.jit
def train_step(state, x, y):
    def loss(params):
        logits = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


def make():
    model, data = Classifier(), batches()
    params = model.init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    def step(state, i):
        return train_step(state, *data[i % len(data)])

    return state, step
