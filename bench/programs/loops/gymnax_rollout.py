"""gymnax: CartPole, a jitted policy and a jitted step of the environment, keys split outside."""

import gymnax
import jax
import jax.numpy as jnp
from synthetic import layers

LIBRARIES = ("gymnax",)


@jax.jit
def act(params, observation, key):
    hidden = jnp.tanh(observation @ params[0]["kernel"] + params[0]["bias"])
    return jax.random.categorical(key, hidden @ params[1]["kernel"] + params[1]["bias"])


def make():
    env, settings = gymnax.make("CartPole-v1")
    params = jax.device_put(layers(4, 16, 2))
    env_step = jax.jit(env.step)
    key, reset = jax.random.split(jax.random.key(0))
    observation, world = env.reset(reset, settings)

    def step(state, i):
        key, observation, world = state
        key, for_policy, for_world = jax.random.split(key, 3)
        action = act(params, observation, for_policy)
        observation, world, reward, *_ = env_step(for_world, world, action, settings)
        return (key, observation, world), reward

    return (key, observation, world), step
