"""A real training step, by JAX, by jaxmarshal, and packed: flax with optax, some hundred leaves.

    python bench/training_step.py [--layers 36] [--rounds 60] [--json build/training.json]

The model is small, so that the way to the device matters; parameters and optimizer state are fed
back from step to step, as in any training loop. The sides take turns, in rounds of some steps; the
best round of each counts, in processor time of all threads. Needs flax and optax.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxmarshal

STEPS = 20    # of a round


class Model(nn.Module):
    """A stack of small layers, each with a residual connection."""

    layers: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = x + nn.relu(nn.Dense(x.shape[-1])(x))
        return nn.Dense(1)(x)


def training(jit: Callable[..., Any], layers: int) -> tuple[Callable[[int], float], int]:
    """(run so many steps and return the seconds of one, leaves of a call)."""
    model, optimizer = Model(layers), optax.adam(1e-3)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)), jnp.float32)
    labels = jnp.ones((4, 1))
    params = model.init(jax.random.key(0), images)
    state = params, optimizer.init(params)
    held: list[Any] = [state]

    def step(state: Any, images: Any, labels: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            return jnp.mean((model.apply(params, images) - labels) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        changes, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, changes), moments), value

    compiled = jit(step)

    def run(steps: int) -> float:
        jax.block_until_ready(held[0])
        started = time.process_time()
        for _ in range(steps):
            held[0], value = compiled(held[0], images, labels)
        value.block_until_ready()
        jax.block_until_ready(held[0])
        return (time.process_time() - started) / steps

    return run, len(jax.tree.leaves((state, images, labels)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="where the figures go, for figures.py")
    options = parser.parse_args()
    plain, leaves = training(jax.jit, options.layers)
    others = [training(jit, options.layers)[0] for jit in (jaxmarshal.jit, jaxmarshal.carry)]
    for run in (plain, *others):
        run(3)
    jaxmarshal.reset_stats()
    times: list[list[float]] = [[], [], []]
    for _ in range(options.rounds):
        for run, side in zip((plain, *others), times, strict=True):
            side.append(run(STEPS))
    counts = jaxmarshal.stats()["jit"]
    assert counts["misses"] == 0, counts
    best = [1e6 * min(side) for side in times]
    print(
        f"JAX {jax.__version__}, {leaves} leaves in, {leaves - 1} out: JAX {best[0]:.0f} µs, "
        f"jaxmarshal {best[1]:.0f} µs, {best[0] / best[1]:.2f} × faster; packed {best[2]:.0f} µs, "
        f"{best[0] / best[2]:.2f} × faster"
    )
    if options.json:
        found = {"jax": jax.__version__, "leaves": leaves, "us": [round(us, 1) for us in best]}
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
