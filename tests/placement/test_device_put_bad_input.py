"""Bad input gives the reference's errors, leaks nothing, changes nothing, and spoils no record."""

from __future__ import annotations

import datetime
import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bad_input import GOOD, check, device, eight, good, live, mesh_of, outcome, recorded  # noqa: F401
from conftest import LAYOUT_OFF
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding
from support import DEBUG, aligned, counts

import jaxmarshal

P = PartitionSpec


class WithJaxArray:
    """An object that converts itself when asked through `__jax_array__`."""

    def __jax_array__(self):
        return jnp.ones(3)


class WithArray:
    """An object that converts itself when asked through `__array__`."""

    def __array__(self, dtype=None, copy=None):
        return np.ones(3, np.float32)


class BadRepr:
    """An object whose text cannot be had."""

    def __repr__(self):
        raise ValueError("no text for this")


LEAVES = {
    "str": lambda: "text",
    "empty str": lambda: "",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"bytes"),
    "object": lambda: object,
    "ellipsis": lambda: ...,
    "function": lambda: len,
    "module": lambda: np,
    "set": lambda: {1},
    "frozenset": lambda: frozenset([1]),
    "range": lambda: range(3),
    "slice": lambda: slice(3),
    "fraction": lambda: fractions.Fraction(1, 3),
    "date": lambda: datetime.date(2020, 1, 2),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "timedelta64": lambda: np.timedelta64(3, "s"),
    "dtype": lambda: np.dtype(np.float32),
    "scalar type": lambda: np.float32,
    "str_": lambda: np.str_("x"),
    "bytes_": lambda: np.bytes_(b"x"),
    "void": lambda: np.void(b"abc"),
    "longdouble": lambda: np.longdouble(1),
    "strings": lambda: np.array(["a", "bc"]),
    "byte strings": lambda: np.array([b"a", b"bc"]),
    "objects": lambda: np.array([1, "a", None], object),
    "ragged": lambda: np.array([[1, 2], [3]], object),
    "datetimes": lambda: np.array(["2020-01-01"], "M8[D]"),
    "timedeltas": lambda: np.array([3], "m8[s]"),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "masked constant": lambda: np.ma.masked,
    "structured": lambda: np.zeros(2, [("a", "f4")]),
    "records": lambda: np.rec.array([(1, 2.0)]),
    "voids": lambda: np.zeros(2, "V4"),
    "long doubles": lambda: np.zeros(2, np.longdouble),
    "big-endian": lambda: aligned(3, ">f4"),
    "memoryview": lambda: memoryview(bytes(4)),
    "__jax_array__": WithJaxArray,
    "int too large": lambda: 2**70,
    "int too small": lambda: -(2**31) - 1,
    "bad repr": BadRepr,
}


@pytest.mark.parametrize("target", [None, "device", "sharding"])
@pytest.mark.parametrize("make", list(LEAVES.values()), ids=list(LEAVES))
def test_bad_leaf(make, target):
    """What is no array or scalar to JAX, alone."""
    place = {None: None, "device": device(1), "sharding": SingleDeviceSharding(device(1))}[target]
    value = make()    # one object, where the text shows its address
    found = check(lambda: value, place)
    assert isinstance(found[0], type)


@pytest.mark.parametrize("make", list(LEAVES.values()), ids=list(LEAVES))
def test_bad_leaf_after_good_ones(make):
    """What is no array or scalar to JAX, in a tree."""
    value = make()
    check(lambda: {"a": [GOOD, 1.5], "b": GOOD, "c": (value,)})


def test_objects_with_array():
    """Objects that numpy could convert."""
    value = WithArray()
    check(lambda: value)
    assert outcome(jaxmarshal.device_put, [value]) == outcome(jax.device_put, [value])


def test_ragged_lists():
    """A ragged list is a tree of scalars, not an array."""
    jaxmarshal.device_put(1)
    jaxmarshal.reset_stats()
    found = check(lambda: [[1, 2], [3]], hits=2)
    assert found[0] == "PyTreeDef([[*, *], [*]])"


def test_wide_tree_with_a_bad_end():
    """A thousand good leaves and a bad one: all that was taken is given back."""
    array = jax.device_put(aligned(3))
    found = check(lambda: [GOOD, 1.5, array] * 333 + ["text"], device(1), TypeError)
    assert "text" in found[1]
    assert not array.is_deleted()
    assert jaxmarshal.device_put(array) is array


# --- Targets -------------------------------------------------------------------------------------

BAD_TARGETS = {
    "str": lambda: "cpu",
    "int": lambda: 0,
    "float": lambda: 1.5,
    "type": lambda: int,
    "object": lambda: object,
    "array": lambda: np.zeros(3),
    "empty list": lambda: [],
    "empty dict": dict,
    "spec without a mesh": lambda: P("x"),
    "empty spec without a mesh": lambda: P(),
    "mesh": lambda: mesh_of(0, 1),
    "abstract mesh": lambda: NamedSharding(mesh_of(0, 1).abstract_mesh, P("x")),
    "layout": lambda: Layout((0,)),
    "auto layout": lambda: Format(Layout.AUTO, SingleDeviceSharding(device(0)))
    if hasattr(Layout, "AUTO") else Format(Layout((3, 4)), SingleDeviceSharding(device(0))),
    "format of the wrong rank": lambda: Format(Layout((0, 1)), SingleDeviceSharding(device(0))),
    "devices": lambda: tuple(jax.devices()[:2]),
    "list of devices": lambda: jax.devices()[:3],
    "set": lambda: {device(0)},
}


@pytest.mark.parametrize("make", list(BAD_TARGETS.values()), ids=list(BAD_TARGETS))
def test_wrong_target(make):
    """Targets that the reference rejects, or resolves in its own way."""
    place = make()
    check(lambda: GOOD, place)


@pytest.mark.parametrize("make", list(BAD_TARGETS.values()), ids=list(BAD_TARGETS))
def test_wrong_target_in_a_tree_of_targets(make):
    """The same in a tree of targets, after a good one."""
    place = [device(1), make()]
    check(lambda: [GOOD, GOOD], place)


def test_unhashable_memory_kind():
    """A memory kind that the device does not have."""
    for make in (
        lambda: SingleDeviceSharding(device(0), memory_kind="no such kind"),
        lambda: NamedSharding(mesh_of(0), P(), memory_kind="no such kind"),
    ):
        messages = []
        for put in (jax.device_put, jaxmarshal.device_put):
            messages.append(outcome(lambda x, put=put, make=make: put(x, make()), GOOD))
        assert messages[0] == messages[1]
    good()


@pytest.mark.parametrize("shape", [(9,), (4,), (1,), (7, 8), (3, 3)], ids=str)
@pytest.mark.parametrize("where", ["host", "device"])
def test_uneven_sharding(shape, where):
    """A dimension that the devices do not divide, with the reference's text."""
    host = aligned(shape)
    argument = host if where == "host" else jax.device_put(host)
    place = eight()
    found = check(lambda: argument, place, ValueError)
    assert "evenly divide" in found[1] or "should be divisible" in found[1]
    assert argument is host or not argument.is_deleted()
    jaxmarshal.device_put(aligned((8, 8)), place)


@pytest.mark.parametrize("argument", ["array", "host", 1.5, "scalar"])
def test_rank_too_small(argument):
    """A spec with more entries than the argument has dimensions."""
    value = {
        "array": jax.device_put(aligned(8)), "host": aligned(8), 1.5: 1.5,
        "scalar": np.float32(1),
    }[argument]
    place = NamedSharding(mesh_of(*range(8)), P(None, "x"))
    jaxmarshal.device_put(aligned((8, 8)), place)
    jaxmarshal.reset_stats()
    check(lambda: value, place, ValueError)


def test_duplicate_and_unknown_axes():
    """Specs that do not fit their mesh are rejected by the sharding itself, before any call."""
    for spec in (P("x", "x"), P("y")):
        with pytest.raises(Exception):    # noqa: B017
            NamedSharding(mesh_of(0, 1), spec)


@pytest.mark.parametrize(
    "keywords",
    [{"donate": True, "may_alias": True}, {"donate": [True]}, {"may_alias": [None, None]},
     {"src": "cpu"}, {"src": [1, 2]}, {"donate": {"a": True}}, {"may_alias": 3}],
    ids=str,
)  # fmt: skip
def test_wrong_options(keywords):
    """Options that do not fit."""
    check(lambda: GOOD, device(1), **keywords)


# --- Arrays that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, "device", "other", "sharding", "spread"])
def test_deleted_array(target):
    """A deleted array, before and after it was recorded."""
    place = {
        None: None, "device": device(0), "other": device(1),
        "sharding": SingleDeviceSharding(device(1)), "spread": eight(),
    }[target]
    array = jax.device_put(aligned(8))
    for _ in range(2):
        jaxmarshal.device_put(array, place)
    jaxmarshal.reset_stats()
    array.delete()
    found = check(lambda: array, place)
    assert jaxmarshal.device_put(array) is array
    if target is not None:
        assert "deleted" in found[1]


@pytest.mark.parametrize("target", [None, "device", "sharding"])
def test_donated_array(target):
    """An array that was donated to a computation or to device_put."""
    place = {None: None, "device": device(1), "sharding": SingleDeviceSharding(device(1))}[target]
    array = jax.device_put(aligned(8))
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()
    # Without a target an array is its own result, whatever became of it.
    check(lambda: [GOOD, array], place, hits=0 if target or LAYOUT_OFF else 2)


@pytest.mark.parametrize("target", ["device", "other", "sharding", "other sharding", "spread"])
@pytest.mark.parametrize("make", ["array", "one of many"])
def test_donated_array_where_such_arrays_were_recorded(target, make):
    """A donated array keeps its buffer, unlike a deleted one; it is found out all the same."""
    place = {
        "device": device(0), "other": device(1), "sharding": SingleDeviceSharding(device(0)),
        "other sharding": SingleDeviceSharding(device(1)), "spread": eight(),
    }[target]
    for _ in range(2):
        jaxmarshal.device_put(jax.device_put(aligned(8)), place)
    jaxmarshal.reset_stats()
    array = jax.device_put(aligned(8))
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()
    found = check((lambda: array) if make == "array" else (lambda: [1.5, array]), place)
    assert "deleted" in found[1] or make == "one of many"
    assert counts()[1].get("deleted", 0) == 2 or make == "one of many"


def test_donation_by_device_put():
    """`donate=True` deletes the argument, or does not, as the reference does."""
    deleted = []
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        array = jax.device_put(aligned(8))
        result = put(array, device(1), donate=True)
        deleted.append(array.is_deleted())
        np.testing.assert_array_equal(result, aligned(8))
    assert len(set(deleted)) == 1
    assert counts() == (0, {"options": 2})
    good()


def test_leaked_tracer():
    """A tracer that outlived its trace."""
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(1.0)
    for place in (None, device(1), SingleDeviceSharding(device(1))):
        expected = outcome(jax.device_put, [GOOD, leaked[0]], place)
        assert isinstance(expected[0], type)
        assert outcome(jaxmarshal.device_put, [GOOD, leaked[0]], place) == expected
    assert counts() == (0, {"tracer": 3})
    assert live()["live_slots"] == 0
    good()


def test_inputs_are_usable_after_an_error():
    """Arguments of a failed call are neither deleted, changed nor kept."""
    host, array = aligned(8), jax.device_put(aligned(8))
    explicit = jax.sharding.Mesh(jax.devices(), ("x",), axis_types=(AxisType.Explicit,))
    for place in (
        device(1), eight(), NamedSharding(explicit, P("x")), SingleDeviceSharding(device(0)),
    ):
        for bad in ("text", 2**70, np.zeros(1, ">f4")):
            for put in (jax.device_put, jaxmarshal.device_put):
                with pytest.raises((TypeError, OverflowError, ValueError)):
                    put([host, array, bad], place)
    np.testing.assert_array_equal(host, aligned(8))
    np.testing.assert_array_equal(array, aligned(8))
    assert host.flags.writeable
    assert not array.is_deleted()
    assert counts()[0] == 0
    good()


def test_debug_build_is_what_it_says():
    """In a debug build the counters count; in a release build they stay at zero."""
    assert (live()["live_plans"] > 0) is DEBUG
