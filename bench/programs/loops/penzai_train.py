"""penzai: an MLP trained by the `StatefulTrainer` of its tool shed."""

import jax
import jax.numpy as jnp
import optax
from penzai import pz
from penzai.models import simple_mlp
from penzai.toolshed import basic_training
from synthetic import batches

LIBRARIES = ("penzai", "optax")


def loss(model, rng, state, x, y):
    logits = model(pz.nx.wrap(x).tag("batch", "features")).untag("batch", "features").unwrap()
    value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return value, state, {"loss": value}


def make():
    model = simple_mlp.MLP.from_config(
        name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[16, 32, 10]
    )
    trainer = basic_training.StatefulTrainer.build(
        root_rng=jax.random.key(1),
        model=model,
        optimizer_def=optax.adam(1e-3),
        loss_fn=loss,
        initial_loss_fn_state=None,
    )
    data = [jax.device_put(batch) for batch in batches()]

    def step(state, i):
        x, y = data[i % len(data)]
        return state, jnp.asarray(state.step(x=x, y=y)["loss"])

    return trainer, step


def arrays(trainer):
    """What is compared: the values of the model's variables."""
    return pz.unbind_variables(trainer.model, freeze=True)[1]
