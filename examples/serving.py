"""A serving loop: fixed weights in many arrays, one small request after the other.

The model is compiled ahead of time. Each call passes all weights, which have not changed since
the last call, and one numpy array.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import side_by_side

LAYERS, WIDTH = 48, 16


def model(weights, request):
    x = request
    for layer in weights:
        y = jnp.tanh(x @ layer["kernel"] + layer["bias"])
        x = x + layer["scale"] * y
    return jax.nn.softmax(x)


def load_weights():
    """As from a checkpoint: placed once, before the first request."""
    random = np.random.default_rng(0)
    return jax.device_put(
        [
            {
                "kernel": random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32),
                "bias": random.normal(0, 0.1, WIDTH).astype(np.float32),
                "scale": np.ones(WIDTH, np.float32),
            }
            for _ in range(LAYERS)
        ]
    )


weights = load_weights()
requests = np.random.default_rng(1).normal(size=(1000, WIDTH)).astype(np.float32)
predict = jax.jit(model).lower(weights, requests[0]).compile()


def serve(steps):
    """The answers to `steps` requests, each fetched before the next one comes."""
    answers = []
    for i in range(steps):
        answers.append(np.asarray(predict(weights, requests[i % len(requests)])))
    return answers


if __name__ == "__main__":
    sys.exit(side_by_side.main("serving", serve, steps=1000))
