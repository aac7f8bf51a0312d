"""flax nnx: batch norm, dropout and an optimizer in `nnx.jit`, as its front page trains."""

import jax
import optax
from flax import nnx
from synthetic import batches

LIBRARIES = ("flax", "optax")


class Model(nnx.Module):
    def __init__(self, inputs, width, outputs, rngs):
        self.linear = nnx.Linear(inputs, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(width, outputs, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.linear(x)))))


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def make():
    model = Model(16, 32, 10, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    data = [jax.device_put(batch) for batch in batches()]

    def step(state, i):
        return state, train_step(*state, *data[i % len(data)])

    return (model, optimizer), step


def arrays(state):
    """What is compared: the variables of the modules."""
    return [nnx.state(node) for node in state]
