"""flax nnx: the step that `nnx.cached_partial` has bound to model and optimizer."""

import jax
import optax
from flax import nnx
from nnx_train import arrays, train_step
from synthetic import batches

LIBRARIES = ("flax", "optax")
__all__ = ["arrays", "make"]


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(16, 32, rngs=rngs)
        self.second = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def make():
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    bound = nnx.cached_partial(train_step, model, optimizer)
    data = [jax.device_put(batch) for batch in batches()]

    def step(state, i):
        return state, bound(*data[i % len(data)])

    return (model, optimizer), step
