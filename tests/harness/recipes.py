"""What the property-based tests generate: recipes for leaves, and trees of them.

Every call under test gets arrays of its own, made from the same recipe: JAX remembers conversions
by array, and whether it copies depends on alignment, so nothing is left to chance.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import hypothesis.strategies as st
import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from support import imported

P = PartitionSpec
Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_pytree_node_class
class Node:
    """A custom pytree node."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, len(self.children)

    @classmethod
    def tree_unflatten(cls, aux, children):
        assert aux == len(children)
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A dataclass as a node."""

    weight: Any
    bias: Any
    name: str = dataclasses.field(default="", metadata={"static": True})


DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128, np.longlong, np.intc,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4,
]
BAD_DTYPES = [">f4", ">i8", "S3", "U2", "O", "M8[s]", "m8[s]", np.longdouble, [("a", "f4")]]
VALUES = [0.0, -0.0, 1.5, -3.0, 127.0, 1e30, 1e300, -1e300, 1e-42, 1e-300, np.inf, -np.inf, np.nan]


def aligned(nbytes: int, offset: int) -> np.ndarray:
    """Bytes that start `offset` bytes after a multiple of 64."""
    block = np.zeros(nbytes + 192, np.uint8)
    start = -block.ctypes.data % 64 + offset
    return block[start : start + nbytes]


class Recipe:
    """How to make a leaf. Every call gets arrays of its own: JAX remembers conversions by array."""

    def __init__(self, make, *args):
        self.make, self.args = make, args

    def __repr__(self):
        return f"{self.make.__name__}{self.args}"


def realise(tree, made):
    """The tree with recipes carried out; one recipe makes one object, however often it occurs."""
    if isinstance(tree, Recipe):
        if tree not in made:
            made[tree] = tree.make(*tree.args)
        return made[tree]
    if isinstance(tree, Pair):
        return Pair(*[realise(child, made) for child in tree])
    if isinstance(tree, (list, tuple)):
        return type(tree)(realise(child, made) for child in tree)
    if isinstance(tree, dict):
        return type(tree)((key, realise(child, made)) for key, child in tree.items())
    if isinstance(tree, Node):
        return Node(*[realise(child, made) for child in tree.children])
    if isinstance(tree, Layer):
        return Layer(realise(tree.weight, made), realise(tree.bias, made), tree.name)
    return tree


def array(dtype, shape, offset, values, change):
    """The alignment is never left to chance: whether JAX copies depends on it."""
    dtype = np.dtype(dtype)
    full = (2 * shape[0], *shape[1:]) if change == "step" and shape else shape
    size = int(np.prod(full))
    made = aligned(size * dtype.itemsize, offset).view(dtype)
    made = made.reshape(full, order="F" if change == "F" else "C")
    with np.errstate(all="ignore"):
        made[...] = np.resize(np.asarray(values), full).astype(dtype)
    if change == "reverse" and shape:
        made = made[::-1]
    elif change == "step" and shape:
        made = made[::2]
    elif change == "broadcast":
        made = np.broadcast_to(made, (8, *shape))
    elif change == "readonly":
        made.flags.writeable = False
    return made


def arrays():
    """Arrays of every dtype, shape, order, stride, alignment and writability."""
    return st.builds(
        lambda *args: Recipe(array, *args),
        st.sampled_from(DTYPES),
        st.sampled_from([(), (0,), (1,), (3,), (8,), (8, 4), (2, 3), (16, 1), (0, 8), (8, 8, 2)]),
        st.sampled_from([0, 16, 8]),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=3).map(tuple),
        st.sampled_from(["", "", "", "F", "reverse", "step", "broadcast", "readonly"]),
    )


scalars = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31 - 1, -(2**31), 2**31, 2**63 - 1, 2**63, -(2**70), 10**30]),
    st.sampled_from(VALUES),
    st.sampled_from([1j, complex(1e300, 0), complex(np.nan, np.inf), -0j]),
)


@st.composite
def numpy_scalars(draw):
    with np.errstate(all="ignore"):
        value = np.asarray(draw(st.sampled_from(VALUES)))
        return value.astype(draw(st.sampled_from(DTYPES)))[()]


class Masked(np.ndarray):
    """A subclass of ndarray is not ndarray."""


def bad_leaves():
    return st.sampled_from(BAD).map(Recipe)


BAD = [
    lambda: "text",
    lambda: object,
    lambda: b"bytes",
    lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    lambda: aligned(24, 0).view(np.float64).view(Masked),
    lambda: np.str_("x"),
    lambda: np.datetime64("2020-01-01"),
    lambda: {1, 2},
    lambda: range(3),
    *[lambda d=d: np.zeros(2, d) for d in BAD_DTYPES],
]

_pool: dict[str, jax.Array] = {}


def pool() -> dict[str, jax.Array]:
    """Arrays on devices, made once: committed or not, on other devices, sharded, with layouts."""
    if not _pool:
        devices = jax.devices()
        mesh = jax.sharding.Mesh(devices, ("x",))
        data = np.arange(64, dtype=np.float32).reshape(8, 8)
        _pool["uncommitted"] = jax.device_put(data)
        _pool["weak"] = jax.device_put(2.0)
        _pool["committed"] = jax.device_put(data, devices[0])
        _pool["elsewhere"] = jax.device_put(data[:, :1], devices[3])
        with jax.default_device(devices[2]):
            _pool["uncommitted elsewhere"] = jax.device_put(data)
        _pool["sharded"] = jax.device_put(data, NamedSharding(mesh, P("x")))
        _pool["replicated"] = jax.device_put(data, NamedSharding(mesh, P()))
        columns = aligned(data.nbytes, 0).view(np.float32).reshape(8, 8).T
        _pool["column-major"] = imported(columns)
        _pool["deleted"] = jax.device_put(data + 1)
        _pool["deleted"].delete()
        _pool["int"] = jax.device_put(np.arange(8), devices[1])
        _pool["key"] = jax.random.key(0)
        _pool["empty"] = jax.device_put(np.zeros((0, 3), np.float32))
    return _pool


device_arrays = st.sampled_from(
    ["uncommitted", "weak", "committed", "elsewhere", "uncommitted elsewhere", "sharded",
     "replicated", "column-major", "deleted", "int", "key", "empty"]
).map(lambda name: pool()[name])  # fmt: skip

good_leaves = st.one_of(arrays(), arrays(), scalars, numpy_scalars(), device_arrays)
leaves = st.integers(0, 29).flatmap(lambda n: bad_leaves() if n == 0 else good_leaves)


def _dict(pairs):
    return dict(pairs)


def containers(children):
    keys = st.sampled_from(["b", "a", "kernel", "bias", ""])
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.lists(st.tuples(keys, children), max_size=3).map(_dict),
        st.lists(st.tuples(st.integers(0, 9), children), max_size=3).map(_dict),
        st.lists(st.tuples(st.sampled_from([(1, 2), (0,), (3, 4)]), children), max_size=2).map(
            _dict
        ),
        st.lists(st.tuples(keys, children), max_size=2).map(collections.OrderedDict),
        st.tuples(children, children).map(lambda ab: Pair(*ab)),
        st.lists(children, max_size=2).map(lambda c: Node(*c)),
        children.map(lambda c: [c, c]),
        st.none(),
    )


trees = st.one_of(leaves, st.recursive(leaves, containers, max_leaves=6))


def make_mesh(*axes):
    return jax.sharding.Mesh(
        np.asarray(jax.devices()[: int(np.prod([n for _, n in axes]))]).reshape(
            [n for _, n in axes]
        ),
        [name for name, _ in axes],
    )
