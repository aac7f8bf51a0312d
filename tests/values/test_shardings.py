"""Equality of shardings of one device, past JAX's own method in Python."""

from __future__ import annotations

import gc
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from executed import observe_reference
from jax.sharding import SingleDeviceSharding
from jitted import on
from observe import observe
from support import ADDRESSES_COME_BACK

import jaxmarshal

DATA = np.arange(6, dtype=np.float32)


def compared_in_python(call, times=20):
    """Which methods compare shardings in Python meanwhile."""
    methods = ("SingleDeviceSharding.__eq__", "SingleDeviceSharding.__hash__")
    found = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_qualname in methods:
            found.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        for _ in range(times):
            call()
    finally:
        sys.setprofile(None)
    return found


def made_by_several_functions(n=12):
    """Equal arrays, whose shardings are as many objects."""
    arrays = [jax.jit(lambda x, i=i: x + i - i)(DATA) for i in range(n)]
    assert len({id(array.sharding) for array in arrays}) == n
    return arrays


@pytest.mark.parametrize("call", [
    pytest.param(lambda x, y: x + y * 2.0, id="operators"),
    pytest.param(lambda x, y: jnp.concatenate([x, y]), id="function"),
    pytest.param(jax.jit(lambda x, y: x - y), id="jit"),
])  # fmt: skip
def test_equal_shardings_are_compared_once(call):
    """Arrays of several functions go through one plan, and no Python is run to compare them."""
    arrays = made_by_several_functions()

    def in_turns():
        for x, y in zip(arrays, arrays[1:] + arrays[:1], strict=True):
            call(x, y)

    with jaxmarshal.installed():
        for _ in range(4):
            in_turns()
        jaxmarshal.reset_stats()
        assert compared_in_python(in_turns) == []
        stats = jaxmarshal.stats().values()
        assert sum(entry["hits"] for entry in stats) >= 20 * len(arrays)
        assert sum(entry["misses"] for entry in stats) == 0


def test_numbers_are_compared_once():
    """Numbers among the arguments: each plan finds where they go without a comparison in Python."""
    x = jnp.arange(4.0)
    functions = [jax.jit(lambda x, a, b, i=i: x * a + b - i) for i in range(3)]
    with jaxmarshal.installed():
        def in_turns():
            for function in functions:
                function(x, 2, 0.5)

        for _ in range(6):
            in_turns()
        jaxmarshal.reset_stats()
        assert compared_in_python(in_turns) == []
        assert jaxmarshal.stats()["jit"] == {"hits": 60, "misses": 0, "misses_by_reason": {}}


def put(x, place):
    return jax.device_put(x, place)


def memories():
    return [memory.kind for memory in jax.devices()[0].addressable_memories()]


def test_shardings_that_differ():
    """Arrays on other devices and in other memory, in turns, are never taken for each other."""
    double = jax.jit(lambda x: x * 2)
    places = [
        SingleDeviceSharding(device, memory_kind=kind)
        for device in jax.devices()[:3] for kind in memories()
    ]
    with jaxmarshal.installed():
        for turn in range(4):
            for place in places:
                for call in (double, jnp.negative, lambda x: x[1:], partial(put, place=place)):
                    x = jax.device_put(np.arange(3.0, dtype=np.float32) + turn, place)
                    assert observe(call, x) == observe_reference(call, x)


@pytest.mark.skipif(not ADDRESSES_COME_BACK, reason="the sanitizer keeps freed memory")
def test_reused_addresses():
    """A sharding that has died says nothing of another one at its address."""
    addresses = set()
    with jaxmarshal.installed():
        for i in range(600):
            device = jax.devices()[i % 3]
            x = jax.device_put(np.float32(i), SingleDeviceSharding(device))
            addresses.add(id(x.sharding))
            for found in (x + 1, jax.device_put(x, x.sharding), -x):
                assert found.devices() == {device}
            del x, found
    assert len(addresses) < 600


@pytest.mark.parametrize("method", ["__hash__", "__eq__"])
def test_trap_13_clear_while_shardings_are_compared(method):
    """Trap 13: what is cleared meanwhile, here by a profile function, is not used any more."""
    cleared, kept = [], []

    def clear(frame, event, _):
        if event == "call" and frame.f_code.co_qualname == f"SingleDeviceSharding.{method}":
            jaxmarshal.api.clear()
            kept[:] = [{i: str(i) for i in range(8)} for _ in range(50)]
            cleared.append(1)

    with jaxmarshal.installed():
        for _ in range(10):
            x, y, other = made_by_several_functions(3)
            for _ in range(4):
                assert (x + y).tolist() == (DATA + DATA).tolist()
            sys.setprofile(clear)
            try:
                found = other + y    # the sharding of `other` was not seen before
            finally:
                sys.setprofile(None)
            assert found.tolist() == (DATA + DATA).tolist()
        assert len(cleared) >= 10
        for _ in range(4):
            x + y, other + y
        jaxmarshal.reset_stats()
        assert compared_in_python(lambda: (x + y, other + y)) == []


def test_clear_caches_lets_go():
    """What was compared does not outlive `jax.clear_caches()`."""
    def living():
        gc.collect()
        return sum(type(x) is SingleDeviceSharding for x in gc.get_objects())

    with jaxmarshal.installed():
        jax.clear_caches()
        before = living()
        for _ in range(50):
            x = on(1, np.float32(1))
            jax.device_put(x, SingleDeviceSharding(jax.devices()[1])) + 1
        del x
        jax.clear_caches()
        assert living() <= before + 8
