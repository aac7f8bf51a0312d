"""Traps of `device_put` that are about what is in memory: layout, addresses, avals.

The numbers are those of the design. Every test compares with plain JAX and asserts the exact number
of calls that took the fast path.
"""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from samples import device, mesh_of, targets
from support import (
    ADDRESSES_COME_BACK,
    JAX,
    aligned,
    column_major,
    counts,
    same_as_jax,
    shares_memory,
)

import jaxmarshal
from jaxmarshal._core.values import array_words

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning"),
]

P = PartitionSpec


# --- 1: memory layout of the data ----------------------------------------------------------------


@targets("none", "first", "other", "single", "single other", "replicated", "subset")
def test_column_major_array(target):
    """Trap 1: a column-major array keeps or loses its layout exactly as with plain JAX."""
    name = target()
    hits = 3 if name is None else 2
    same_as_jax(column_major, name, hits=hits)


@targets("none", "first", "other", "single", "replicated")
def test_column_major_after_row_major(target):
    """Trap 1: a record made for row-major data does not spoil column-major data, nor inversely."""
    rows = jax.device_put(aligned((3, 4)))
    same_as_jax(lambda: rows, target(), hits=3 if target() is None else 2)
    same_as_jax(column_major, target(), hits=3)
    same_as_jax(lambda: rows, target(), hits=3)


def test_format_target():
    """Trap 1: a target that asks for a data layout gets it."""
    target = Format(Layout((1, 0)), SingleDeviceSharding(device(0)))
    outcome = same_as_jax(lambda: aligned((3, 4)), target, hits=2)
    assert "(1, 0)" in str(outcome)
    same_as_jax(lambda: jax.device_put(aligned((3, 4))), target, hits=2)


def test_column_major_host_arrays():
    """Trap 1: the order of a numpy array's elements is not the order of the result's."""
    same_as_jax(lambda: np.asfortranarray(aligned((3, 4))))
    same_as_jax(lambda: aligned((3, 4))[:, ::-1], hits=3)


def test_layout_words_tell_column_major():
    """Trap 1: the layout words prove the default layout for it and never for another one."""
    for made in (
        jax.device_put(aligned((3, 4))), jax.device_put(1.0), jax.device_put(aligned(3), device(3))
    ):
        found = array_words.read(made)
        assert found["default_layout"] is True
        assert found["default_layout_proven"] is (not LAYOUT_OFF)
    by_format = jax.device_put(
        aligned((5, 7)), Format(Layout((1, 0)), SingleDeviceSharding(device(0)))
    )
    for made in (column_major(), by_format):
        found = array_words.read(made)
        assert found["default_layout"] is False
        assert found["default_layout_proven"] is False


def test_layout_words_of_deleted_array():
    """Trap 1: a deleted array proves nothing."""
    made = jax.device_put(aligned(3))
    made.delete()
    found = array_words.read(made)
    assert found["deleted"] is True
    assert found["default_layout_proven"] is found["default_layout"] is False


# --- 2: addresses are reused ---------------------------------------------------------------------


def test_reused_host_array_addresses():
    """Trap 2: another numpy array at the address of a freed one is judged by itself."""
    seen, reused = set(), 0
    for i in range(300):
        shape, dtype = [(3,), (4,), (2, 2), ()][i % 4], [np.float32, np.int32, np.int8][i % 3]
        host = np.full(shape, i % 100, dtype)
        reused += id(host) in seen
        seen.add(id(host))
        result = jaxmarshal.device_put(host)
        assert (result.shape, result.dtype) == (host.shape, host.dtype)
        np.testing.assert_array_equal(result, host)
        del host, result
    assert reused > 100 or not ADDRESSES_COME_BACK
    assert counts() == (288, {"not_recorded": 12})


def test_reused_device_array_addresses():
    """Trap 2: another jax.Array at the address of a freed one is judged by itself."""
    seen, reused = set(), 0
    sources = [aligned(3), aligned((2, 2)), aligned(5, np.int32), np.bool_(True)]
    target = SingleDeviceSharding(device(1))
    for i in range(200):
        source = jax.device_put(sources[i % 4], device(i % 3))
        reused += id(source) in seen
        seen.add(id(source))
        result = jaxmarshal.device_put(source, target)
        assert (result is source) == (i % 3 == 1)
        assert result.aval == source.aval
        assert result.sharding == target
        np.testing.assert_array_equal(result, sources[i % 4])
        del source, result
    assert reused > 20 or not ADDRESSES_COME_BACK
    hits, reasons = counts()
    # Four shapes from two other devices; the first call of all finds no target.
    assert reasons == {"not_recorded": 8}
    assert hits == 192


def test_reused_list_addresses():
    """Trap 2: another list, or the same list with other contents, is walked again."""
    first, second = aligned(3), aligned(4)
    jaxmarshal.device_put([first, second])
    jaxmarshal.reset_stats()
    tree = []
    for i in range(50):
        tree = [first] * (i % 5) + [[second]] * (i % 3)
        result = jaxmarshal.device_put(tree)
        assert jax.tree.structure(result) == jax.tree.structure(tree)
        assert [a.shape for a in jax.tree.leaves(result)] == [
            a.shape for a in jax.tree.leaves(tree)
        ]
    grown = []
    for i in range(50):
        grown.append(first)
        assert len(jaxmarshal.device_put(grown)) == i + 1
    assert counts() == (100, {})


def test_reshaped_in_place():
    """Trap 2: the same numpy array object with another shape or dtype is another argument."""
    host = aligned(4, np.int32)
    for shape, dtype in (((4,), np.int32), ((2, 2), np.int32), ((8,), np.int16), ((4,), np.uint32)):
        host = host.view(dtype).reshape(shape)
        result = jaxmarshal.device_put(host)
        assert (result.shape, result.dtype) == (shape, dtype)
    assert counts() == (0, {"not_recorded": 4})


def test_many_kinds_of_host_arrays():
    """Trap 2: more dtypes and shapes than there are places for their records."""
    dtypes = [np.dtype(kind) for kind in "?bhiBHIefF"]
    shapes = [(n,) for n in range(40)] + [(n, 2) for n in range(20)]
    for _ in range(2):
        for dtype in dtypes:
            for shape in shapes:
                result = jaxmarshal.device_put(np.zeros(shape, dtype))
                assert (result.shape, result.dtype) == (shape, dtype)


# --- 3: avals are not interned -------------------------------------------------------------------


def test_equal_avals_made_anew():
    """Trap 3: an aval is recognised by what it says, whichever object says it, dead ones included.

    The supported versions intern avals as long as one is alive; this is not relied on.
    """
    target = SingleDeviceSharding(device(2))
    same_as_jax(lambda: jax.device_put(aligned((2, 3))), target)
    for _ in range(3):
        gc.collect()
        same_as_jax(lambda: jax.device_put(aligned((2, 3))), target, hits=3)
        same_as_jax(lambda: jax.device_put(aligned((2, 3)), device(0)), target, hits=3)
        same_as_jax(
            lambda: jax.jit(lambda x: x * 2)(jax.device_put(aligned((2, 3)))), target, hits=3
        )


def test_avals_that_differ_in_their_mesh_only():
    """Trap 3: avals of arrays on a mesh are not those of arrays on one device."""
    alone = jax.device_put(aligned(8))
    spread = jax.device_put(alone, NamedSharding(mesh_of(*range(8)), P()))
    assert alone.aval.shape == spread.aval.shape
    assert alone.aval.dtype == spread.aval.dtype
    assert alone.aval is not spread.aval
    for target in (
        SingleDeviceSharding(device(2)), NamedSharding(mesh_of(0, 1), P("x")),
        NamedSharding(mesh_of(0, 1, axis_types=(jax.sharding.AxisType.Explicit,)), P("x")),
    ):
        same_as_jax(lambda: alone, target)
        same_as_jax(lambda: spread, target)
        same_as_jax(lambda: alone, target, hits=3)
        same_as_jax(lambda: spread, target, hits=3)


def test_avals_that_differ_in_weak_type_only():
    """Trap 3: a weak type makes another aval."""
    target = SingleDeviceSharding(device(2))
    weak, strong = jax.device_put(2.0), jax.device_put(np.float32(2.0))
    assert weak.weak_type
    assert not strong.weak_type
    same_as_jax(lambda: weak, target)
    same_as_jax(lambda: strong, target)
    same_as_jax(lambda: weak, target, hits=3)


# --- 7: zero copy --------------------------------------------------------------------------------


@targets("none", "first", "other", "single", "replicated")
@pytest.mark.parametrize("offset", [0, 16, 8, 4])
def test_zero_copy(offset, target):
    """Trap 7: a buffer is aliased or copied as with plain JAX, and later writes show likewise."""

    def outcome(put):
        host = aligned(16, offset=offset)
        low = host.ctypes.data
        result = put(host, target()).block_until_ready()
        pointers = [s.data.unsafe_buffer_pointer() - low for s in result.addressable_shards]
        host[0] = 77
        values = [float(np.asarray(s.data)[0]) for s in result.addressable_shards]
        return [p if 0 <= p < host.nbytes else None for p in pointers], values

    expected = outcome(jax.device_put)
    if offset == 0 and shares_memory():
        assert expected[0][0] == 0
        assert expected[1][0] == 77.0
    else:
        assert expected[0][0] is None
        assert expected[1][0] == 1.0
    jaxmarshal.reset_stats()
    assert [outcome(jaxmarshal.device_put) for _ in range(3)] == [expected] * 3
    assert counts() == (2, {"not_recorded": 1})


@pytest.mark.parametrize("offset", [0, 4])
def test_shards_of_a_host_array(offset):
    """Trap 7: each shard aliases its part of the numpy array or not, as with plain JAX."""
    target = NamedSharding(mesh_of(0, 1, 2, 3), P("x"))

    def outcome(put):
        host = aligned((4, 16), offset=offset)
        result = put(host, target).block_until_ready()
        low = host.ctypes.data
        pointers = [s.data.unsafe_buffer_pointer() - low for s in result.addressable_shards]
        host[:, 0] = 77
        return (
            [p if 0 <= p < host.nbytes else None for p in pointers],
            [float(np.asarray(s.data)[0, 0]) for s in result.addressable_shards],
        )

    expected = outcome(jax.device_put)
    assert (77.0 in expected[1]) == (offset == 0)
    jaxmarshal.reset_stats()
    assert [outcome(jaxmarshal.device_put) for _ in range(3)] == [expected] * 3
    assert counts() == (2, {"not_recorded": 1})


@targets("first", "single", "replicated")
def test_buffer_of_a_device_array(target):
    """Trap 7: a result shares the buffer of the array it was made from, or not."""

    def outcome(put, array):
        result = put(array, target())
        return [
            s.data.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
            for s in result.addressable_shards
        ]

    array = jax.device_put(aligned(8))
    expected = outcome(jax.device_put, array)
    assert True in expected
    assert [outcome(jaxmarshal.device_put, array) for _ in range(3)] == [expected] * 3
    assert counts() == (2, {"not_recorded": 1})


def test_result_outlives_the_numpy_array():
    """Trap 7: an aliased buffer stays valid after the numpy array was dropped."""
    jaxmarshal.device_put(aligned(1024))
    made = [jaxmarshal.device_put(aligned(1024)) for _ in range(20)]
    gc.collect()
    trash = [np.full(1024 + 48, -1.0, np.float32) for _ in range(50)]
    for result in made:
        np.testing.assert_array_equal(result, aligned(1024))
    assert counts() == (20, {"not_recorded": 1})
    del trash


def test_converted_array_shared_between_leaves():
    """Trap 7: one float64 array twice in a tree is converted once, and may be aliased twice."""

    def pairs(put):
        shared, alive = set(), []
        for i in range(200):
            host = np.arange(16 + 4 * (i % 5), dtype=np.float64)
            a, b = put((host, host))
            # So that the next one lies elsewhere, aligned or not.
            alive += [a, b, np.empty(host.size, np.float32)]
            shared.add(a.unsafe_buffer_pointer() == b.unsafe_buffer_pointer())
            np.testing.assert_array_equal(a, b)
        return shared

    expected = pairs(jax.device_put)
    jaxmarshal.reset_stats()
    found = pairs(jaxmarshal.device_put)
    assert found == expected == ({True, False} if JAX >= (0, 9) and shares_memory() else {False})
    assert counts() == (195, {"not_recorded": 5})


def test_converted_array_shared_between_calls():
    """Trap 7: JAX remembers the conversion of an array from one call to the next, stale or not."""
    expected, found = [], []
    for put, values in ((jax.device_put, expected), (jaxmarshal.device_put, found)):
        jaxmarshal.device_put(np.arange(8.0))
        host = np.arange(8.0)
        for i in range(4):
            values.append(np.asarray(put(host)).tolist())
            host[0] = 100 + i
    assert found == expected
