"""Arguments of the cases: leaves of each kind, and the trees they stand in."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

KINDS = ("arrays", "numpy", "scalars", "mixed")
TREES = ("list", "dict", "model", "custom")


@jax.tree_util.register_pytree_node_class
class Layer:
    """A custom node, as libraries of neural networks make them."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> Layer:
        return cls(*children)


def leaves(kind: str, count: int, sharding: Any = None) -> list[Any]:
    """`count` leaves of a kind: 8 float32 each, or Python floats."""
    if kind == "arrays and a numpy":
        return [*leaves("arrays", count - 1, sharding), *leaves("numpy", 1)]
    data = np.arange(8, dtype=np.float32)
    make = {
        "arrays": lambda i: jax.device_put(data, sharding),
        "numpy": lambda i: data.copy(),
        "scalars": float,
    }
    kinds = ["arrays", "numpy", "scalars"] if kind == "mixed" else [kind]
    return [make[kinds[i % len(kinds)]](i) for i in range(count)]


def tree_of(tree: str, items: list[Any]) -> Any:
    """The items in a tree: a list, a dict, a nested dict of layers, or a list of custom nodes."""
    if tree == "list":
        return list(items)
    if tree == "dict":
        return {f"k{i:04}": item for i, item in enumerate(items)}
    pairs = [items[i : i + 2] for i in range(0, len(items), 2)]
    if tree == "model":
        return {f"layer{i:04}": dict(zip("wb", pair)) for i, pair in enumerate(pairs)}  # noqa: B905
    return [Layer(*pair) for pair in pairs]


def columns_in_memory() -> Format:
    """The first device, with the data of a matrix column after column."""
    return Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))


def over_all_devices(spec: tuple[Any, ...] = ("x",)) -> NamedSharding:
    """A sharding over every device."""
    return NamedSharding(Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec(*spec))
