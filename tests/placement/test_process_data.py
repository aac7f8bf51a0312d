"""`jax.make_array_from_process_local_data` in a program of one process.

There it comes to `device_put`. What it does with several is in `test_distributed.py`.
"""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec, SingleDeviceSharding
from observe import observe
from recipes import Node
from support import aligned, config_updated, named, without_jaxmarshal

import jaxmarshal

NAME = "make_array_from_process_local_data"
put = jax.make_array_from_process_local_data
Pair = collections.namedtuple("Pair", "first second")


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def rows():
    return named("x")


#: name: (the sharding, the data, more arguments, why it is left to JAX)
CALLS = {
    "rows": (rows, lambda: aligned((8, 4)), (), None),
    "columns": (lambda: named(None, "x"), lambda: aligned((2, 8)), (), None),
    "copies": (named, lambda: aligned((3, 4)), (), None),
    "one device": (lambda: SingleDeviceSharding(jax.devices()[3]), lambda: aligned(3), (), None),
    "a shape": (rows, lambda: aligned((8, 4)), ((8, 4),), None),
    "64 bits": (rows, lambda: np.arange(16.0).reshape(8, 2), (), None),
    "too large": (rows, lambda: np.full(8, 1e300), (), "value"),
    "strides": (rows, lambda: aligned((8, 8))[:, ::2], (), None),
    "dict": (rows, lambda: {"x": aligned((8, 4)), "y": [aligned(8)]}, (), None),
    "namedtuple": (rows, lambda: Pair(aligned((8, 4)), None), (), None),
    "a sharding each": (
        lambda: {"x": rows(), "y": named()}, lambda: {"x": aligned(8), "y": aligned(3)}, (), None,
    ),
    "nothing": (rows, dict, (), None),
    "a node of the program's": (rows, lambda: Node(aligned(8), [aligned(16)]), (), "tree"),
    "another shape": (rows, lambda: aligned((8, 4)), ((8, 8),), "options"),
    "a list for a shape": (rows, lambda: aligned((8, 4)), ([8, 4],), "options"),
    "a shape for two": (rows, lambda: [aligned(8), aligned(8)], ((8,),), "options"),
    "an array": (rows, lambda: jax.device_put(aligned(8)), (), "options"),
    "a number": (rows, lambda: 1.5, (), "options"),
    "masked": (rows, lambda: np.ma.masked_less(aligned(8), 3), (), "tree"),
    "text": (rows, lambda: np.array(["a"] * 8), (), "not_recorded"),
    "not even": (rows, lambda: aligned(9), (), "not_recorded"),
    "a device": (lambda: jax.devices()[0], lambda: aligned(8), (), "target"),
    "a spec without a mesh": (lambda: PartitionSpec("x"), lambda: aligned(8), (), "target"),
    "no sharding": (lambda: None, lambda: aligned(8), (), "target"),
    "other keys": (
        lambda: {"x": rows(), "z": rows()}, lambda: {"x": aligned(8), "y": aligned(8)}, (), "tree",
    ),
}  # fmt: skip


@pytest.mark.errors(
    "too large", "another shape", "a shape for two", "an array", "a number", "masked", "text",
    "even", "a list for", "a device", "a spec", "no sharding", "other keys",
)  # fmt: skip
@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    """Results, errors and warnings are those of JAX; all calls but the first are fast."""
    sharding, data, more, reason = CALLS[name]

    def call():    # from one place, which some errors name
        return jax.make_array_from_process_local_data(sharding(), data(), *more)

    with without_jaxmarshal():
        expected = observe(call)
    observe(call)
    jaxmarshal.reset_stats()
    for _ in range(3):
        assert observe(call) == expected
    found = jaxmarshal.stats()[NAME]
    assert found["hits"] == (0 if reason else 3)
    assert found["misses_by_reason"] == ({reason: 3} if reason else {})


def test_the_arguments_have_names():
    """As in JAX; and what is missing is named as there."""
    for _ in range(2):
        made = jax.make_array_from_process_local_data(local_data=aligned(8), sharding=rows())
    assert made.sharding == rows()
    assert jaxmarshal.stats()[NAME]["hits"] == 1
    with pytest.raises(TypeError, match="local_data"):
        jax.make_array_from_process_local_data(rows())
    with without_jaxmarshal():
        assert jax.make_array_from_process_local_data is put
        assert jaxmarshal.api.make_array_from_process_local_data.__doc__ == put.__doc__


def test_trap_4_what_changes_between_calls():
    """Another configuration, a transfer guard: as in JAX. (Edited arrays: `adversarial`.)"""

    def call(by=1.0):
        x = aligned((8, 2), np.float64)
        x *= by
        return jax.make_array_from_process_local_data(rows(), x)

    def seen():
        found = [observe(call) for _ in range(3)]
        with jax.enable_x64(True):
            found += [observe(call) for _ in range(3)]
        with jax.transfer_guard("disallow_explicit"):
            found += [observe(call) for _ in range(3)]
        with config_updated("jax_debug_nans", True):
            found += [observe(call, np.nan) for _ in range(3)]
        return [*found, observe(call)]

    with without_jaxmarshal():
        expected = seen()
    assert seen() == expected
    assert jaxmarshal.stats()[NAME]["hits"] >= 6


def test_a_call_counts_once():
    """What JAX comes to by itself is inside of the call."""
    for _ in range(4):
        jax.make_array_from_process_local_data(rows(), aligned(8))
    row = next(row for row in jaxmarshal.report().rows if NAME in row.call)
    assert (row.calls, row.fast) == (4, 3)


def test_explain():
    """It answers as the call would count."""
    call = jax.make_array_from_process_local_data
    assert jaxmarshal.explain(call, rows(), aligned(8)).reason == "not_recorded"
    call(rows(), aligned(8))
    assert jaxmarshal.explain(call, rows(), aligned(8)).reason == "hit"
    assert jaxmarshal.explain(call, rows(), [1.5]).reason == "options"
