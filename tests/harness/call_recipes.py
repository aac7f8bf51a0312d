"""What property tests of compiled and jitted calls generate: leaves, trees of them, contexts."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import jax
import numpy as np
from jax.sharding import NamedSharding
from recipes import Node, P, Pair, Recipe, aligned, make_mesh
from support import imported


def host(dtype, offset):
    """A host array of shape (8, 4)."""
    data = aligned(32 * np.dtype(dtype).itemsize, offset).view(dtype).reshape(8, 4)
    data[...] = np.arange(32).reshape(8, 4)
    return data


def on_device(dtype, where):
    """The same on one or several devices."""
    data = np.arange(32).reshape(8, 4).astype(dtype)
    if where == "uncommitted":
        return jax.device_put(data)
    if where == "column-major":
        columns = aligned(data.nbytes, 0).view(dtype).reshape(4, 8).T
        columns[...] = data
        return imported(columns)
    if where == "deleted":
        array = jax.device_put(data)
        array.delete()
        return array
    if where == "donated":
        array = jax.device_put(data)
        jax.jit(lambda x: x + 1, donate_argnums=0)(array)
        return array
    if where == "sharded":
        return jax.device_put(data, NamedSharding(make_mesh(("x", 8)), P("x")))
    if where == "replicated":
        return jax.device_put(data, NamedSharding(make_mesh(("x", 8)), P()))
    return jax.device_put(data, jax.devices()[where])


dtypes = st.sampled_from([np.float32, np.int32])


def host_leaves():
    """Host arrays."""
    return st.builds(lambda d, o: Recipe(host, d, o), dtypes, st.sampled_from([0, 8]))


def leaves_on(*where):
    """Arrays in one of these places, as `on_device` knows them."""
    return st.builds(lambda d, w: Recipe(on_device, d, w), dtypes, st.sampled_from(where))


#: What a leaf may become between two calls; most of these JAX refuses or moves.
changes = leaves_on(
    "uncommitted", 0, 3, "column-major", "deleted", "donated", "sharded", "replicated"
)
wide = leaves_on("sharded", "replicated")


def trees(children, *more):
    """Trees of these; `more` are functions from a strategy of subtrees to one of a node."""
    keys = st.sampled_from(["b", "a", "w"])
    return st.recursive(
        children,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=2).map(tuple),
            st.lists(st.tuples(keys, inner), max_size=3).map(dict),
            st.tuples(inner, inner).map(lambda ab: Pair(*ab)),
            st.lists(inner, max_size=2).map(lambda c: Node(*c)),
            *[node(inner) for node in more],
            st.just(None),
        ),
        max_leaves=5,
    )


CONTEXTS = {
    "plain": contextlib.nullcontext,
    "x64": lambda: jax.enable_x64(True),
    "another default device": lambda: jax.default_device(jax.devices()[2]),
    "disallow": lambda: jax.transfer_guard("disallow"),
    "debug_nans": lambda: jax.debug_nans(True),
    "disable_jit": lambda: jax.disable_jit(),
    "no_execution": lambda: jax.no_execution(),
    "matmul precision": lambda: jax.default_matmul_precision("highest"),
    "a mesh": lambda: make_mesh(("x", 8)),
}
