"""What is compared of a loop: every array that it holds or shows, bit for bit."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np


def _describe(leaf: Any) -> list[bytes]:
    """A leaf as bytes: for an array its type and place, then its data."""
    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return [str(leaf.dtype).encode(), *_describe(jax.random.key_data(leaf))]
        facts = (leaf.dtype, leaf.shape, leaf.weak_type, leaf.committed, leaf.sharding)
        return [str(facts).encode(), np.asarray(leaf).tobytes()]
    if isinstance(leaf, (np.ndarray, np.generic)):
        return [str((type(leaf), leaf.dtype, leaf.shape)).encode(), leaf.tobytes()]
    if isinstance(leaf, (bool, int, float, complex, str)):
        return [repr(leaf).encode()]
    if callable(leaf):    # modules of equinox have functions as leaves
        return [str(getattr(leaf, "__qualname__", type(leaf))).encode()]
    raise TypeError(f"a loop holds or shows a {type(leaf).__name__}, which is not compared")


def digest(tree: Any) -> str:
    """A number for the bits, types, places and names of all leaves of a pytree.

    Raises:
      TypeError: where a leaf is neither array nor scalar, string or function.
    """
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        found.update(jax.tree_util.keystr(path).encode())
        for part in _describe(leaf):
            found.update(part)
    return found.hexdigest()[:16]
