"""What the tests of bad input share: arguments, nodes, and the comparison with plain JAX."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from support import aligned, counts

import jaxmarshal
from jaxmarshal._core.values import live_objects

P = PartitionSpec


def mesh_of(*numbers, names=("x",)):
    return jax.sharding.Mesh(np.asarray(jax.devices())[list(numbers)], names)


def device(number):
    return jax.devices()[number]


def eight():
    return NamedSharding(mesh_of(*range(8)), P("x"))


@jax.tree_util.register_pytree_node_class
class Node:
    """A custom node whose flatten function first does what `before` says."""

    def __init__(self, children, before=None):
        self.children, self.before = children, before

    def tree_flatten(self):
        return (self.before() if self.before else None) or (tuple(self.children), None)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children)


def outcome(put, *args, **kwargs):
    """What a call returns, in words, or what it raises: type, text, type of the cause."""
    try:
        result = put(*args, **kwargs)
    except BaseException as error:
        return type(error), str(error), type(error.__cause__)
    return str(jax.tree.structure(result)), [
        str(leaf.aval) if leaf.is_deleted() else repr(leaf) for leaf in jax.tree.leaves(result)
    ]


def live():
    """The live-object counters; constant in a release build, where they count nothing."""
    found = live_objects.snapshot()
    return {name: number for name, number in found.items() if name.startswith("live")}


def good():
    """A good call that was recorded before hits."""
    before = counts()[0]
    result = jaxmarshal.device_put({"a": [GOOD, 1.5], "b": GOOD}, device(1))
    assert counts()[0] == before + 1
    np.testing.assert_array_equal(result["a"][0], GOOD)
    assert float(result["a"][1]) == 1.5
    assert result["b"].devices() == {device(1)}


GOOD = aligned(3)


@pytest.fixture(autouse=True)
def recorded():
    """Plain arguments and targets are recorded, so that only what is bad can make a call miss."""
    for target in (None, device(1), SingleDeviceSharding(device(1))):
        for _ in range(2):
            jaxmarshal.device_put({"a": [GOOD, 1.5], "b": GOOD, "c": 3}, target)
    jaxmarshal.device_put(np.ones((8, 8), np.float32), eight())
    jaxmarshal.reset_stats()


def check(make, target=None, error=None, hits=0, **kwargs):
    """Compare with plain JAX; then nothing has leaked, and a good call hits.

    `make` makes the arguments anew for each call. Returns the observation.
    """
    plans = live()["live_plans"]
    expected = outcome(jax.device_put, make(), target, **kwargs)
    if error is not None:
        assert issubclass(expected[0], error), expected
    for _ in range(2):
        assert outcome(jaxmarshal.device_put, make(), target, **kwargs) == expected
    found, reasons = counts()
    assert (found, sum(reasons.values())) == (hits, 2 - hits)
    gc.collect()
    assert live() == {
        "live_slots": 0, "live_tables": 0, "live_heap": 0, "live_plans": live()["live_plans"]
    }
    if error is not None:
        assert live()["live_plans"] == plans
    good()
    jaxmarshal.api.clear()
    gc.collect()
    assert set(live().values()) == {0}
    return expected
