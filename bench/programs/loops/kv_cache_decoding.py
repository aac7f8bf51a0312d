"""Plain JAX: a transformer writes token by token; the cache is donated, the position is an int."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

LIBRARIES = ()
WIDTH, LENGTH, LAYERS, TOKENS = 32, 64, 6, 50


def weights():
    random = np.random.default_rng(0)

    def matrix(n, m):
        return random.normal(0, n**-0.5, (n, m)).astype(np.float32)

    blocks = [
        {"qkv": matrix(WIDTH, 3 * WIDTH), "out": matrix(WIDTH, WIDTH),
         "up": matrix(WIDTH, 64), "down": matrix(64, WIDTH)}
        for _ in range(LAYERS)
    ]  # fmt: skip
    return jax.device_put({"embedding": matrix(TOKENS, WIDTH), "blocks": blocks})


@functools.partial(jax.jit, donate_argnums=1)
def decode(params, cache, token, position):
    x, kept = params["embedding"][token], []
    for block, old in zip(params["blocks"], cache, strict=True):
        query, key, value = jnp.split(x @ block["qkv"], 3)
        new = {"k": old["k"].at[position].set(key), "v": old["v"].at[position].set(value)}
        scores = new["k"] @ query / WIDTH**0.5
        scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf)
        x = x + (jax.nn.softmax(scores) @ new["v"]) @ block["out"]
        x = x + jax.nn.relu(x @ block["up"]) @ block["down"]
        kept.append(new)
    return kept, jnp.argmax(x @ params["embedding"].T)


def make():
    params = weights()
    cache = [{name: jnp.zeros((LENGTH, WIDTH)) for name in "kv"} for _ in range(LAYERS)]

    def step(state, i):
        cache, token = decode(params, *state, i % LENGTH)
        return (cache, token), int(token)

    return (cache, jnp.asarray(1)), step
