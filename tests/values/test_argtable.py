"""The argument table: one classification and one buffer read an argument, and nothing left over."""

from __future__ import annotations

import collections
import gc
import sys

import jax
import numpy as np
import pytest

import jaxmarshal
from jaxmarshal._core.values import live_objects

WIDTHS = [1, 4, 5, 1000]  # 4 slots are inline; more are on the heap

needs_counters = pytest.mark.skipif(
    not live_objects.debug_build(), reason="the counters exist in the debug build only (make debug)"
)


class Watched:
    """A custom node that notes the counters when it is flattened and when it is rebuilt."""

    def __init__(self, children, fail=None):
        self.children, self.fail = list(children), fail

    seen: dict[str, dict[str, int]] = {}  # noqa: RUF012

    def flatten(self):
        if self.fail == "flatten":
            raise RuntimeError("no flattening today")
        Watched.seen["flatten"] = live_objects.snapshot()
        return tuple(self.children), self.fail

    @staticmethod
    def unflatten(fail, children):
        if fail == "unflatten" and all(isinstance(child, jax.Array) for child in children):
            raise RuntimeError("no rebuilding today")
        Watched.seen["rebuild"] = live_objects.snapshot()
        return Watched(children, fail)


jax.tree_util.register_pytree_node(Watched, Watched.flatten, Watched.unflatten)


def live():
    """What is held between calls; records of earlier calls are none of a call's business."""
    gc.collect()
    counts = live_objects.snapshot()
    return {name: counts[name] for name in ("live_slots", "live_tables", "live_heap")}


NOTHING = {"live_slots": 0, "live_tables": 0, "live_heap": 0}


def work(function, *args, **kwargs):
    """How many arguments one call classified and how many buffers it read."""
    before = live_objects.snapshot()
    function(*args, **kwargs)
    after = live_objects.snapshot()
    return tuple(after[name] - before[name] for name in ("classified", "buffers_read"))


LEAVES = {
    "arrays": lambda n: list(map(jax.numpy.float32, range(n))),
    "ndarrays": lambda n: [np.full(3, i, np.float32) for i in range(n)],
}


@needs_counters
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("leaves", LEAVES)
@pytest.mark.parametrize("target", ["none", "device"])
def test_one_look_at_each_argument(n, leaves, target):
    """A hit classifies each argument once (the list that holds them too) and reads it once."""
    xs = LEAVES[leaves](n)
    device = jax.devices()[0] if target == "device" else None
    jaxmarshal.device_put(xs, device)
    jaxmarshal.reset_stats()
    assert work(jaxmarshal.device_put, xs, device) == (n + 1, n)
    assert jaxmarshal.stats()["device_put"]["hits"] == 1
    assert live() == NOTHING


@needs_counters
@pytest.mark.parametrize("n", WIDTHS)
def test_one_look_at_each_argument_of_a_flat_call(n):
    """The flat entry point has no containers: exactly one look per argument."""
    xs = LEAVES["ndarrays"](n)
    put = jaxmarshal.dispatch.batched_device_put_impl
    reuse = jax._src.dispatch.ArrayCopySemantics.REUSE_INPUT
    keywords = {"devices": [None] * n, "srcs": [None] * n, "copy_semantics": [reuse] * n}
    put(*xs, **keywords)
    jaxmarshal.reset_stats()
    assert work(put, *xs, **keywords) == (n, n)
    assert jaxmarshal.stats()["batched_device_put_impl"]["hits"] == 1


@needs_counters
@pytest.mark.parametrize("n", WIDTHS)
def test_a_miss_looks_once_too(n):
    """What was read before the miss is not read again to record it."""
    xs = LEAVES["ndarrays"](n)
    assert work(jaxmarshal.device_put, xs) == (n + 1, n)
    assert jaxmarshal.stats()["device_put"]["misses_by_reason"] == {"not_recorded": 1}
    assert live() == NOTHING


@needs_counters
def test_scalars_have_no_buffer():
    """Only arrays have a buffer to read."""
    xs = [1, 2.0, True, 1j, np.float32(3)]
    jaxmarshal.device_put(xs)
    assert work(jaxmarshal.device_put, xs) == (6, 0)


@needs_counters
def test_options_look_at_nothing():
    """A call whose options send it to the reference is not looked at."""
    assert work(jaxmarshal.device_put, np.zeros(3), donate=True) == (0, 0)


@needs_counters
@pytest.mark.parametrize(("n", "blocks"), [(1, 0), (4, 0), (5, 1), (16, 1), (17, 1), (1000, 1)])
def test_narrow_calls_stay_off_the_heap(n, blocks):
    """Up to four arguments live in the table itself, more of them in one block."""
    xs = Watched(LEAVES["ndarrays"](n))
    jaxmarshal.device_put(xs)
    jaxmarshal.reset_stats()
    jaxmarshal.device_put(xs)
    assert jaxmarshal.stats()["device_put"]["hits"] == 1
    during = Watched.seen["rebuild"]
    assert (during["live_tables"], during["live_slots"], during["live_heap"]) == (1, n, blocks)
    assert live() == NOTHING


class Noted(collections.namedtuple("Noted", "child")):
    """A namedtuple that notes the counters when it is rebuilt."""

    __slots__ = ()

    def __new__(cls, child):
        Watched.seen["rebuild"] = live_objects.snapshot()
        return super().__new__(cls, child)


@needs_counters
@pytest.mark.parametrize(("nodes", "blocks"), [(5, 0), (6, 1), (40, 1)])
def test_shallow_structures_stay_off_the_heap(nodes, blocks):
    """Eight steps of a structure are inline: here a list, empty lists, a namedtuple and None."""
    jaxmarshal.device_put([*[[]] * nodes, Noted(None)])
    assert Watched.seen["rebuild"]["live_heap"] == blocks
    assert live() == NOTHING


def failing_calls():
    """Calls that end in an error, at every stage, with few and with many arguments."""
    for n in (2, 100):
        xs = LEAVES["ndarrays"](n)
        yield f"{n}, flatten", [*xs, Watched([], "flatten")], RuntimeError
        yield f"{n}, rebuild", [*xs, Watched([jax.numpy.zeros(1)], "unflatten")], RuntimeError
        yield f"{n}, type", [*xs, "text"], TypeError
        yield f"{n}, value", [*xs, 2**70], OverflowError


FAILING = {name: (tree, error) for name, tree, error in failing_calls()}


@pytest.mark.parametrize("name", FAILING)
def test_errors_leave_nothing_behind(name):
    """After an error half-way, every reference and every block is given back."""
    tree, error = FAILING[name]

    def references():
        gc.collect()
        return [sys.getrefcount(leaf) for leaf in tree]

    jaxmarshal.device_put(tree[:-1])
    before, held = references(), live()
    for _ in range(3):
        with pytest.raises(error):
            jaxmarshal.device_put(tree)
    assert references() == before
    assert live() == held == NOTHING


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("target", ["none", "device", "sharding"])
def test_no_reference_is_kept(n, target):
    """Neither the recording call nor a hit keeps an argument, a target or a result alive."""
    device = jax.devices()[0]
    where = {"none": None, "device": device, "sharding": jax.sharding.SingleDeviceSharding(device)}
    xs = LEAVES["ndarrays"](n)
    before = [sys.getrefcount(x) for x in xs]
    jaxmarshal.device_put(xs, where[target])
    jaxmarshal.device_put(xs, where[target])
    gc.collect()
    assert [sys.getrefcount(x) for x in xs] == before


@needs_counters
def test_plans_die_when_they_are_cleared():
    """`clear()` and `jax.clear_caches()` free every plan; a new call makes new ones."""
    for drop in (jaxmarshal.api.clear, jax.clear_caches):
        jaxmarshal.device_put([np.zeros(3), 1.0], jax.devices()[1])
        assert live_objects.snapshot()["live_plans"] == 3
        drop()
        gc.collect()
        assert live_objects.snapshot()["live_plans"] == 0


def test_a_release_build_counts_nothing():
    """The counters cost nothing where nobody asks for them."""
    jaxmarshal.device_put(np.zeros(3))
    counts = live_objects.snapshot()
    assert set(counts) == {
        "live_slots", "live_tables", "live_heap", "live_plans", "classified", "buffers_read"
    }  # fmt: skip
    assert any(counts.values()) is live_objects.debug_build()
