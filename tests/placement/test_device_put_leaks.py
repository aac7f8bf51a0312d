"""Nothing is left behind: counters return to zero, memory stays flat, caches stay small."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from support import DEBUG, THOROUGH, aligned, counts

import jaxmarshal
from jaxmarshal._core.context import configuration
from jaxmarshal._core.values import live_objects

P = PartitionSpec

counted = pytest.mark.skipif(
    not DEBUG, reason="NOT TESTED: live objects are counted in a debug build only (make debug)"
)


def device(number):
    return jax.devices()[number]


@jax.tree_util.register_pytree_node_class
class Node:
    """A custom node."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


def plans():
    """How many records exist, in any build."""
    gc.collect()
    names = [type(thing).__name__ for thing in gc.get_objects()]
    return names.count("LeafPlan") + names.count("TargetPlan")


HOST = aligned(8)
WIDE = np.arange(8.0)

CALLS = {
    "host array": lambda: (HOST, None),
    "host array to a device": lambda: (HOST, device(1)),
    "host array to shards": lambda: (
        HOST, NamedSharding(jax.sharding.Mesh(jax.devices(), ("x",)), P("x"))
    ),
    "host array that is converted": lambda: (WIDE, None),
    "numpy scalars": lambda: ([np.float32(1), np.float64(2), np.bool_(True)], None),
    "python scalars": lambda: ([True, 7, 1.5, 2j], SingleDeviceSharding(device(2))),
    "array": lambda: (jax.device_put(HOST), None),
    "array to its device": lambda: (jax.device_put(HOST), device(0)),
    "array to another device": lambda: (jax.device_put(HOST), device(1)),
    "array to a sharding": lambda: (jax.device_put(HOST), SingleDeviceSharding(device(1))),
    "tree": lambda: ({"b": [HOST, (1.5, None)], "a": {1: 2, 0: [HOST] * 9}}, device(1)),
    "tree of targets": lambda: ([HOST, (1.5, HOST)], [device(1), (None, device(2))]),
    "custom nodes": lambda: ([HOST, Node(HOST, [Node(1.5)])], None),
    "unusual keys": lambda: ({(1, 2): HOST, (0, 1): [1.5]}, None),
}
MISSES = {
    "unknown type": lambda: ([HOST] * 9 + ["text"], None),
    "key array": lambda: ([HOST, jax.random.key(0)], None),
    "targets that do not fit": lambda: ([HOST, HOST], [device(1)]),
    "wrong target": lambda: ([HOST, HOST], "cpu"),
    "integer out of range": lambda: ([HOST, 2**70], None),
    "value that is reported": lambda: ([HOST, 1e300], None),
    "custom node with a bad leaf": lambda: ([HOST, Node("text")], None),
    "uneven": lambda: (
        aligned(9), NamedSharding(jax.sharding.Mesh(jax.devices(), ("x",)), P("x"))
    ),
}


def attempt(argument, target):
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        jaxmarshal.device_put(argument, target)


@counted
@pytest.mark.parametrize("make", [*CALLS.values(), *MISSES.values()], ids=[*CALLS, *MISSES])
@pytest.mark.filterwarnings("ignore:overflow")
def test_live_objects_return_to_zero(make):
    """Argument slots, tables and heap blocks are given back by each call, records by `clear`."""
    argument, target = make()
    for _ in range(3):
        attempt(argument, target)
        found = live_objects.snapshot()
        assert (found["live_slots"], found["live_tables"], found["live_heap"]) == (0, 0, 0)
    jaxmarshal.api.clear()
    gc.collect()
    assert live_objects.snapshot()["live_plans"] == 0


@counted
def test_live_objects_are_counted():
    """The counters of a debug build do count: records are alive until they are dropped."""
    jaxmarshal.device_put(HOST)
    assert live_objects.snapshot()["live_plans"] == plans() == 2
    assert live_objects.snapshot()["classified"] > 0
    assert live_objects.snapshot()["buffers_read"] > 0
    jax.clear_caches()
    gc.collect()
    assert live_objects.snapshot()["live_plans"] == plans() == 0


@pytest.mark.parametrize("make", list(CALLS.values()), ids=list(CALLS))
def test_allocated_blocks_of_hits(make):
    """A thousand hits leave as many blocks allocated as there were."""
    argument, target = make()
    blocks = blocks_left(argument, target, 1000)
    assert blocks < 100
    hits, reasons = counts()
    assert reasons.keys() <= {"not_recorded"}
    assert hits == 2020 - reasons.get("not_recorded", 0) >= 2010


@pytest.mark.parametrize("make", list(MISSES.values()), ids=list(MISSES))
@pytest.mark.filterwarnings("ignore:overflow")
def test_allocated_blocks_of_misses(make):
    """Calls that end in the reference, and mostly in an error, leave nothing either."""
    argument, target = make()
    assert blocks_left(argument, target, 300) < 200    # one block a call would be 300
    assert counts()[0] == 0


def blocks_left(argument, target, repeat):
    """Blocks of memory that Python has more after `repeat` calls than before them."""
    for _ in range(repeat + 20):
        attempt(argument, target)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(repeat):
        attempt(argument, target)
    gc.collect()
    return sys.getallocatedblocks() - before


def resident_bytes():
    """The memory of this process that is resident now; the peak where the system tells no more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


@pytest.mark.slow
def test_memory_is_flat():
    """Memory does not grow over a million calls (200 000 in the quick profile)."""
    repeat = 1_000_000 if THOROUGH else 200_000
    target = device(1)
    array = jax.device_put(HOST, target)
    tree = {"host": HOST, "rest": (1.5, jax.device_put(HOST)), "none": None}

    def run(number):
        for _ in range(number // 2):
            jaxmarshal.device_put(tree)
            jaxmarshal.device_put(array, target)

    run(repeat // 4)
    gc.collect()
    before = resident_bytes()
    run(repeat)
    gc.collect()
    # 16 bytes a call would be 3 MB in the quick profile.
    assert resident_bytes() - before < 2**20 + 4 * repeat
    hits, reasons = counts()
    assert sum(reasons.values()) == 2
    assert hits == repeat // 4 + repeat - 2


def test_wide_results_are_released():
    """Large buffers of results and of converted arguments are given back at once."""
    def once():
        big = np.ones(4_000_000, np.float64)
        for target in (None, device(1)):
            jax.block_until_ready(
                jaxmarshal.device_put([big, big.astype(np.float32)], target)
            )

    once()
    once()
    gc.collect()
    before = resident_bytes()
    for _ in range(10):
        once()
    gc.collect()
    # jaxlib gives host buffers back at later calls: a few rounds of 100 MB may be under way, ten
    # that were kept are 1000 MB.
    assert resident_bytes() - before < 256 * 2**20


@pytest.mark.parametrize("make", list(CALLS.values()), ids=list(CALLS))
def test_arguments_are_not_kept(make):
    """Arrays die with the caller's last reference, whatever was recorded from them."""
    argument, target = make()
    arguments = jax.tree.map(lambda x: x.copy() if hasattr(x, "shape") else x, argument)
    for _ in range(3):
        result = jaxmarshal.device_put(arguments, target)
    references = [
        weakref.ref(leaf)
        for leaf in jax.tree.leaves((arguments, result))
        if isinstance(leaf, (np.ndarray, jax.Array))
    ]
    assert references
    del argument, arguments, result
    gc.collect()
    kept = [reference() for reference in references]
    assert all(leaf is None or leaf is HOST or leaf is WIDE for leaf in kept)


# --- Caches stay small ---------------------------------------------------------------------------

MANY = 10_000


def test_many_shapes():
    """Records of shapes give way to others: there is a fixed number of places."""
    block = np.zeros(MANY, np.int8)
    for number in range(MANY):
        assert jaxmarshal.device_put(block[:number]).shape == (number,)
    assert plans() <= 256 + 1
    hits, reasons = counts()
    assert reasons == {"not_recorded": MANY}
    assert hits == 0
    # The newest shapes are among those that are found.
    jaxmarshal.device_put(block[: MANY - 1])
    assert counts()[0] == 1


def test_many_dtype_objects():
    """Equal dtypes that are distinct objects, as every dtype with metadata is."""
    host = aligned(3)
    for number in range(MANY):
        found = jaxmarshal.device_put(host.view(np.dtype(np.float32, metadata={"n": number})))
        assert found.dtype == np.float32
    assert plans() <= 256 + 1
    assert counts() == (0, {"not_recorded": MANY})


@pytest.mark.slow
def test_many_targets():
    """Records of targets are dropped when there are many."""
    for number in range(MANY):
        mesh = jax.sharding.Mesh(jax.devices()[:1], (f"axis{number}",))
        target = NamedSharding(mesh, P())
        assert jaxmarshal.device_put(1.5, target).sharding is target
    assert plans() <= 2 * 64
    assert counts() == (0, {"not_recorded": MANY})
    jaxmarshal.device_put(1.5, target)
    assert counts()[0] == 1


def test_many_moves():
    """Records of how arrays move from one sharding to another are dropped when there are many."""
    target = SingleDeviceSharding(device(1))
    block = np.zeros(3_000, np.int8)
    gc.collect()
    before = None
    for number in range(3_000):
        jaxmarshal.device_put(jax.device_put(block[:number]), target)
        if number == 1_000:
            before = plans()
    assert plans() <= before + 256
    assert counts() == (0, {"not_recorded": 3_000})


@pytest.mark.slow
def test_many_contexts():
    """Of many configurations the latest are remembered."""
    for number in range(MANY):
        mesh = AbstractMesh((1,), (f"axis{number}",))
        with jax.sharding.use_abstract_mesh(mesh):
            assert float(jaxmarshal.device_put(1.5)) == 1.5
    assert configuration._cache.cache_info() == "contexts=16"
    assert plans() <= 2 * 16
    assert counts() == (0, {"not_recorded": MANY})
    with jax.sharding.use_abstract_mesh(mesh):
        jaxmarshal.device_put(1.5)
    assert counts()[0] == 1


def test_profile_is_one_that_is_known():
    """A misspelt profile would shorten these tests in silence."""
    assert os.environ.get("JAXMARSHAL_TEST_PROFILE", "quick") in ("quick", "ci")
