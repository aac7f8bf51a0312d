"""What the tests of jitted functions share: functions, arrays, and hits to begin with."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from twins import jit_counts

P = PartitionSpec
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
#: So many arrays pay for two arguments on the host.
MANY = 45


def add_one():
    return lambda x: x + 1


def counting():
    """A function that adds one, and a list that grows each time that it is traced."""
    traces = []

    def python(x):
        traces.append(1)
        return x + 1

    return python, traces


def several():
    """Arrays that make it pay to place an argument from the host here."""
    return [jax.device_put(np.float32(i)) for i in range(MANY)]


def on(device, data=DATA):
    return jax.device_put(data, jax.devices()[device])


def spread(data=DATA, spec=None):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    return jax.device_put(data, NamedSharding(mesh, P() if spec is None else spec))


def warm(twins, args, kwargs=dict):
    """Two calls: one that records, one that hits."""
    twins(args, kwargs)
    twins(args, kwargs)
    assert jit_counts() == (1, {"not_recorded": 1})


class Fussy:
    """A node that raises where it is taken apart or put together."""

    fail = ""

    def __init__(self, child):
        self.child = child

    def flatten(self):
        if Fussy.fail == "flatten":
            raise ZeroDivisionError("flatten")
        return (self.child,), None

    @classmethod
    def unflatten(cls, _, children):
        if cls.fail == "unflatten":
            raise ZeroDivisionError("unflatten")
        return cls(*children)


jax.tree_util.register_pytree_node(Fussy, Fussy.flatten, Fussy.unflatten)
