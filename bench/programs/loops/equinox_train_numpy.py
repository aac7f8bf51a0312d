"""equinox: a `filter_jit` step of an MLP with optax, batches as numpy arrays."""

import equinox as eqx
import jax
import optax
from synthetic import batches

LIBRARIES = ("equinox", "optax")

optimizer = optax.adam(1e-3)


@eqx.filter_value_and_grad
def loss(model, x, y):
    logits = jax.vmap(model)(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@eqx.filter_jit
def make_step(model, moments, x, y):
    value, gradients = loss(model, x, y)
    changes, moments = optimizer.update(gradients, moments, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, changes), moments, value


def make(place=lambda batch: batch):
    model = eqx.nn.MLP(16, 10, width_size=32, depth=2, key=jax.random.key(0))
    data = [place(batch) for batch in batches()]

    def step(state, i):
        *state, value = make_step(*state, *data[i % len(data)])
        return state, value

    return [model, optimizer.init(eqx.filter(model, eqx.is_array))], step
