"""flax nnx: the step that `nnx.cached_partial` has bound to model and optimizer."""

import jax
import optax
from flax import nnx
from nnx_functional import Model
from nnx_train import arrays, train_step
from synthetic import batches

LIBRARIES = ("flax", "optax")
__all__ = ["arrays", "make"]


def make():
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    bound = nnx.cached_partial(train_step, model, optimizer)
    data = [jax.device_put(batch) for batch in batches()]

    def step(state, i):
        return state, bound(*data[i % len(data)])

    return (model, optimizer), step
