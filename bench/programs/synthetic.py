"""Data that the loops share: small, made by numpy, the same in every process."""

from __future__ import annotations

import itertools

import numpy as np


def batches(
    count: int = 64, size: int = 16, features: int = 16, classes: int = 10
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of a classification that can be learnt: float32[size, features], int32[size]."""
    random = np.random.default_rng(0)
    centres = random.normal(0, 1, (classes, features))
    found = []
    for _ in range(count):
        label = random.integers(0, classes, size).astype(np.int32)
        image = (centres[label] + random.normal(0, 0.3, (size, features))).astype(np.float32)
        found.append((image, label))
    return found


def layers(*sizes: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Weights of a network with layers of these sizes: a dict of two float32 arrays for each."""
    random = np.random.default_rng(seed)
    return [
        {
            "kernel": random.normal(0, n**-0.5, (n, m)).astype(np.float32),
            "bias": np.zeros(m, np.float32),
        }
        for n, m in itertools.pairwise(sizes)
    ]
