"""haiku: a transformed MLP, state in a named tuple, a jitted update, batches as numpy arrays."""

from typing import Any, NamedTuple

import haiku as hk
import jax
import optax
from synthetic import batches

LIBRARIES = ("haiku", "optax")


class TrainingState(NamedTuple):
    params: Any
    average: Any
    moments: Any


def make():
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([32, 32, 10])(x)))
    optimizer, data = optax.adam(1e-3), batches()

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()

    @jax.jit
    def update(state, x, y):
        value, gradients = jax.value_and_grad(loss)(state.params, x, y)
        changes, moments = optimizer.update(gradients, state.moments)
        params = optax.apply_updates(state.params, changes)
        average = optax.incremental_update(params, state.average, step_size=0.001)
        return TrainingState(params, average, moments), value

    def step(state, i):
        return update(state, *data[i % len(data)])

    params = network.init(jax.random.key(0), data[0][0])
    return TrainingState(params, params, optimizer.init(params)), step
