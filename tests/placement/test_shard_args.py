"""The traps of `pxla.shard_args` and `pxla.batched_device_put`: flat arguments, placed as told."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding
from observe import observe
from support import aligned, column_major, counts, deleted_array, named

import jaxmarshal
from jaxmarshal import dispatch
from jaxmarshal._jax import private

Semantics = type(private.REUSE_INPUT)


def single(i=0, **options):
    """One device."""
    return SingleDeviceSharding(jax.devices()[i], **options)


def placed(sharding, shape=(8, 4)):
    """An array that is there already."""
    return jax.device_put(aligned(shape), sharding)


def donated():
    """An array whose buffer an executable has taken."""
    array = placed(single())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    return array


#: name: (sharding, how to make the argument of a recorded call, and of the next one, its reason)
ARGUMENTS = {
    "host data": (single, lambda: aligned(8), lambda: aligned(8), None),
    "host data to another device": (
        lambda: single(3), lambda: aligned(8), lambda: aligned(8), None
    ),
    "host data to all": (lambda: named("x"), lambda: aligned(8), lambda: aligned(8), None),
    "another dtype": (
        single, lambda: aligned(8), lambda: aligned(8, np.int32), "not_recorded"
    ),
    "another shape": (single, lambda: aligned(8), lambda: aligned((2, 4)), "not_recorded"),
    "a scalar of another type": (single, lambda: 1.5, lambda: 1, "not_recorded"),
    "an integer that does not fit": (single, lambda: 1, lambda: 2**40, "value"),
    "in place": (single, lambda: placed(single()), lambda: placed(single()), None),
    "in place on all": (
        lambda: named("x"), lambda: placed(named("x")), lambda: placed(named("x")), None
    ),
    "from another device": (
        single, lambda: placed(single()), lambda: placed(single(2)), "sharding"
    ),
    "from all devices": (single, lambda: placed(single()), lambda: placed(named()), "sharding"),
    "split along another axis": (
        lambda: named("x"), lambda: placed(named("x"), (8, 8)),
        lambda: placed(named(None, "x"), (8, 8)), "sharding",
    ),
    "from pinned memory": (
        single, lambda: placed(single()), lambda: placed(single(memory_kind="pinned_host")),
        "sharding",
    ),
    "column-major": (lambda: column_major().sharding, column_major, column_major, None),
    "deleted": (single, lambda: placed(single()), deleted_array, "deleted"),
    "donated": (single, lambda: placed(single()), donated, "deleted"),
    "text": (single, lambda: aligned(8), lambda: "text", "unknown_type"),
    "a typed key": (single, lambda: aligned(8), lambda: jax.random.key(0), "key_array"),
    "a subclass": (
        single, lambda: aligned(8), lambda: np.ma.masked_array(aligned(8), [1] * 8),
        "unknown_type",
    ),
    "big-endian": (
        single, lambda: aligned(8), lambda: aligned(8).astype(">f4"), "not_recorded"
    ),
}  # fmt: skip


def shard(function, sharding, x, layout=None, semantics=Semantics.REUSE_INPUT):
    """The entry point with one argument."""
    return function([sharding], [layout], [semantics], [x])


@pytest.mark.parametrize("among", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.errors("a subclass", "does not fit", "big-endian", "deleted", "donated", "text")
def test_argument_after_a_recorded_one(name, among):
    """Trap 5: each kind of argument after another that was recorded for the same sharding."""
    make_sharding, make_first, make, reason = ARGUMENTS[name]
    sharding = make_sharding()

    def call(function, x):
        if not among:
            return shard(function, sharding, x)
        return function(
            [single(), sharding, single()], [None] * 3, [Semantics.REUSE_INPUT] * 3,
            [aligned(3), x, 2.5],
        )  # fmt: skip

    expected = observe(lambda x: call(private.shard_args, x), make())
    for _ in range(2):
        call(dispatch.shard_args, make_first())
    for again in range(2):
        jaxmarshal.reset_stats()
        assert observe(lambda x: call(dispatch.shard_args, x), make()) == expected
        found = counts("shard_args")
        if reason != "not_recorded":
            assert found == ((1, {}) if reason is None else (0, {reason: 1}))
        elif not again:
            assert found == (0, {reason: 1})


@pytest.mark.parametrize("semantics", ["ALWAYS_COPY", "DONATE_INPUT"])
@pytest.mark.parametrize("make", [lambda: placed(single()), lambda: aligned(8)])
def test_semantics(semantics, make):
    """Trap 5: copies that were asked for, and donations, are not the fast path's."""
    shard(dispatch.shard_args, single(), make())
    wanted = getattr(Semantics, semantics)
    expected = observe(lambda x: shard(private.shard_args, single(), x, None, wanted), make())
    jaxmarshal.reset_stats()
    found = observe(lambda x: shard(dispatch.shard_args, single(), x, None, wanted), make())
    assert found == expected
    assert counts("shard_args") == (0, {"options": 1})


def test_trap_1_layouts():
    """Trap 1: an array that lies where it should, but is wanted in another layout."""
    rows = placed(single())
    format_ = Format(Layout((1, 0)), single())
    layout = jax.device_put(rows, format_).format.layout
    shard(dispatch.shard_args, single(), rows)

    def outcome(function):
        return observe(lambda x: shard(function, single(), x, layout), rows)

    expected = outcome(private.shard_args)
    jaxmarshal.reset_stats()
    assert outcome(dispatch.shard_args) == expected
    assert counts("shard_args") == (0, {"options": 1})


@pytest.mark.errors
def test_lengths_that_differ():
    """Trap 10: as many shardings, layouts and semantics as arguments, or the reference's error."""
    for n, m, k in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (0, 1, 1)):
        args = ([single()] * n, [None] * m, [Semantics.REUSE_INPUT] * k, [aligned(8)])
        expected = observe(private.shard_args, *args)
        assert observe(dispatch.shard_args, *args) == expected


def _part():
    """What each device gets of eight rows."""
    return aligned((8 // len(jax.devices()), 4))


PUTS = {
    "one": lambda: (single(), [aligned((8, 4))], jax.devices()[:1]),
    "one each": lambda: (named("x"), [_part() for _ in jax.devices()], jax.devices()),
    "too few": lambda: (named("x"), [aligned((1, 4))], jax.devices()),
    "none": lambda: (named("x"), [], []),
    "an array": lambda: (single(), [placed(single())], jax.devices()[:1]),
    "a deleted array": lambda: (single(), [deleted_array()], jax.devices()[:1]),
    "a tuple": lambda: (single(), (aligned((8, 4)),), jax.devices()[:1]),
    "text": lambda: (single(), ["text"], jax.devices()[:1]),
    "a typed key": lambda: (single(), [jax.random.key(0)], jax.devices()[:1]),
}


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("name", PUTS)
@pytest.mark.errors("deleted", "typed key", "none", "text", "too few")
def test_batched_device_put(name, committed):
    """Trap 5: `pxla.batched_device_put` with what it is made for, and what it is not."""
    aval = private.ShapedArray((8, 4), np.dtype(np.float32))
    if name == "too few" and len(jax.devices()) == 1:
        pytest.skip("NOT DONE: needs several devices")

    def outcome(function):
        sharding, xs, devices = PUTS[name]()
        return observe(lambda xs: function(aval, sharding, xs, devices, committed), xs)

    expected = outcome(private.pxla_batched_device_put)
    for _ in range(2):
        assert outcome(dispatch.batched_device_put) == expected
    hits, _ = counts("batched_device_put")
    assert hits == (2 if name in ("one", "one each") else 0)
