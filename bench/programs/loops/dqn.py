"""Plain JAX: Q-learning; numpy has the world and the replay, jitted functions act and learn."""

import jax
import jax.numpy as jnp
import numpy as np
from synthetic import layers

LIBRARIES = ()


def values(params, x):
    hidden = jax.nn.relu(x @ params[0]["kernel"] + params[0]["bias"])
    return hidden @ params[1]["kernel"] + params[1]["bias"]


@jax.jit
def act(params, observation):
    return jnp.argmax(values(params, observation))


@jax.jit
def learn(params, target, batch):
    def loss(params):
        chosen = values(params, batch["before"])[jnp.arange(16), batch["action"]]
        best = values(target, batch["after"]).max(1)
        return jnp.mean((chosen - batch["reward"] - 0.9 * best) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


def make():
    random = np.random.default_rng(0)
    size = 512
    replay = {
        "before": random.normal(size=(size, 4)).astype(np.float32),
        "action": random.integers(0, 2, size).astype(np.int32),
        "reward": random.normal(size=size).astype(np.float32),
        "after": random.normal(size=(size, 4)).astype(np.float32),
    }

    def step(state, i):
        params, target = state
        action = int(act(params, replay["before"][i % size]))
        replay["action"][i % size] = action
        chosen = random.integers(0, size, 16)
        batch = {name: column[chosen] for name, column in replay.items()}
        params, value = learn(params, target, batch)
        return (params, params if i % 100 == 0 else target), (action, value)

    params = jax.tree.map(jnp.array, layers(4, 32, 2))
    return (params, params), step
