"""flax nnx: split once, then plain `jax.jit` over the state; the module is merged while tracing."""

import jax
import optax
from flax import nnx
from synthetic import batches

LIBRARIES = ("flax", "optax")


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(16, 32, rngs=rngs)
        self.second = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def make():
    graph, params = nnx.split(Model(nnx.Rngs(0)), nnx.Param)
    optimizer = optax.adam(1e-3)
    data = [jax.device_put(batch) for batch in batches()]

    @jax.jit
    def train_step(params, moments, x, y):
        def loss(params):
            logits = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        changes, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, changes), moments, value

    def step(state, i):
        *state, value = train_step(*state, *data[i % len(data)])
        return state, value

    return [params, optimizer.init(params)], step
