"""`device_put` with `may_alias`, and of spread arrays to a device.

What is compared with plain JAX: results and where they lie, which parts of a result share memory
with which parts of an argument, whether arguments are deleted afterwards, and errors.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding
from samples import device, mesh_of
from support import aligned, counts

import jaxmarshal
from jaxmarshal._core.entries import device_put
from jaxmarshal._jax import private


def spread(*spec, numbers=range(8), memory_kind=None):
    return NamedSharding(mesh_of(*numbers), P(*spec), memory_kind=memory_kind)


def array(target=None):
    return jax.device_put(aligned((8, 8)), target)


def in_memory(order, place=None):
    """How data are to lie, and where."""
    place = place or SingleDeviceSharding(device(0))
    return Format(None if order is None else Layout(order), place)


def columns_in_memory():
    """Data that do not lie row after row."""
    return jax.device_put(array(), in_memory((1, 0)))


def twice():
    x = array(device(0))
    return [x, x]


SOURCES = {
    "numpy": lambda: aligned((8, 8)),
    "wide numpy": lambda: aligned((8, 8), np.float64),
    "number": lambda: 1.5,
    "array": array,
    "committed": lambda: array(device(0)),
    "elsewhere": lambda: array(device(3)),
    "rows": lambda: array(spread("x")),
    "columns": lambda: array(spread(None, "x")),
    "replicated": lambda: array(spread()),
    "on two": lambda: array(spread("x", numbers=(1, 2))),
    "pinned": lambda: array(SingleDeviceSharding(device(0), memory_kind="pinned_host")),
    "otherwise in memory": columns_in_memory,
    "twice": twice,
    "tree": lambda: {"a": [array(device(0)), aligned((8, 8))], "b": (array(spread("x")), None)},
    "deleted": lambda: deleted(array()),
}

TARGETS = {
    "none": lambda: None,
    "device": lambda: device(0),
    "other": lambda: device(3),
    "sharding": lambda: SingleDeviceSharding(device(0)),
    "other sharding": lambda: SingleDeviceSharding(device(3)),
    "rows": lambda: spread("x"),
    "columns": lambda: spread(None, "x"),
    "replicated": spread,
    "on two": lambda: spread("x", numbers=(1, 2)),
    "pinned": lambda: SingleDeviceSharding(device(0), memory_kind="pinned_host"),
    "columns in memory": lambda: in_memory((1, 0)),
    "rows in memory": lambda: in_memory((0, 1)),
    "as an array in memory": lambda: array(device(0)).format,
    "no layout": lambda: in_memory(None),
    "spread columns in memory": lambda: in_memory((1, 0), spread("x")),
    "host memory": lambda: jax.memory.Space.Host,
    "device memory": lambda: jax.memory.Space.Device,
    "other order": lambda: spread("x", numbers=reversed(range(8))),
}

OPTIONS = {
    "neither": {},
    "alias": {"may_alias": True},
    "copy": {"may_alias": False},
}


def deleted(x):
    x.delete()
    return x


def pointers(x):
    if isinstance(x, np.ndarray):
        return [x.__array_interface__["data"][0]]
    if not isinstance(x, jax.Array) or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return []
    return [] if x.is_deleted() else [p.data.unsafe_buffer_pointer() for p in x.addressable_shards]


def outcome(put, argument, target, options):
    """What one call did, and to its argument."""
    leaves = jax.tree.leaves(argument)
    before = [(i, j, p) for i, x in enumerate(leaves) for j, p in enumerate(pointers(x))]
    try:
        made = put(argument, target, **options)
    except Exception as error:
        found = [type(error).__name__, str(error)]
    else:
        results = jax.tree.leaves(made)
        found = [str(jax.tree.structure(made))]
        for x in results:
            if not isinstance(x, jax.Array):    # as with `disable_jit`
                found += [type(x), str(x), [i for i, leaf in enumerate(leaves) if leaf is x]]
                continue
            found += [
                str(x.aval), str(jax.typeof(x)), repr(x.sharding), x.committed, x.weak_type,
                [i for i, leaf in enumerate(leaves) if leaf is x],
                [[(i, j) for i, j, known in before if known == p] for p in pointers(x)],
                None if x.is_deleted() else str(x),
            ]
            if not x.is_deleted() and pointers(x):
                found.append(str(x.format))
    return found, [isinstance(x, jax.Array) and x.is_deleted() for x in leaves]


#: (source, target) of calls that JAX can do and jaxmarshal leaves to it: arrays in pinned memory
#: of the very device, those that JAX moves by a program of its own, and host data to a format
#: that is no more than a sharding.
LEFT_TO_JAX = {
    ("pinned", "device"), ("rows", "other order"), ("columns", "other order"),
    ("replicated", "other order"), ("tree", "other order"),
    *((name, "no layout") for name in ("numpy", "wide numpy", "number")),
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_options(target, options):
    """Trap 7: each source, to each target, with each option, shares memory as in JAX."""
    for source, make in SOURCES.items():
        expected = outcome(jax.device_put, make(), TARGETS[target](), OPTIONS[options])
        for _ in range(3):
            argument = make()
            jaxmarshal.reset_stats()
            found = outcome(jaxmarshal.device_put, argument, TARGETS[target](), OPTIONS[options])
            assert found == expected, source
        raised = expected[0][0].endswith("Error")
        fast = not raised and source != "deleted" and (source, target) not in LEFT_TO_JAX
        assert counts()[0] == fast, source


@pytest.mark.parametrize("target", TARGETS)
def test_copies_after_other_calls(target):
    """Trap 7: what was recorded without an option serves with it, and the other way around."""
    for source in ("array", "committed", "elsewhere", "rows", "replicated", "twice"):
        for options in ("neither", "copy", "neither", "copy"):
            expected = outcome(
                jax.device_put, SOURCES[source](), TARGETS[target](), OPTIONS[options]
            )
            found = outcome(
                jaxmarshal.device_put, SOURCES[source](), TARGETS[target](), OPTIONS[options]
            )
            assert found == expected, (source, options)


def test_copy_is_not_the_array():
    """Trap 9: an array that would be its own result is another one, with memory of its own."""
    for place in (None, device(0), SingleDeviceSharding(device(0))):
        x = array(device(0))
        for _ in range(3):
            jaxmarshal.reset_stats()
            made = jaxmarshal.device_put(x, place, may_alias=False)
            assert made is not x
            assert made.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
        assert counts() == (1, {})


def test_donated_array():
    """Trap 5: a copy of an array that was donated is JAX's error."""
    for place in (None, device(0), device(3), spread("x"), in_memory((1, 0))):
        for _ in range(2):
            jaxmarshal.device_put(array(), place, may_alias=False)
        x = array()
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        expected = outcome(jax.device_put, x, place, {"may_alias": False})
        jaxmarshal.reset_stats()
        assert outcome(jaxmarshal.device_put, x, place, {"may_alias": False}) == expected
        assert counts() == (0, {"deleted": 1})


#: Targets that JAX reaches by jitted functions.
BY_FUNCTION = [name for name in TARGETS if name.endswith("memory")]


@pytest.mark.parametrize("target", BY_FUNCTION)
@pytest.mark.parametrize("number", [2**31, -(2**40), 10**30])
def test_number_that_is_too_large(target, number):
    """Trap 6: JAX says so before it calls the function, in other words than that would."""
    place = in_memory(()) if "in memory" in target else TARGETS[target]()
    for _ in range(3):
        jaxmarshal.device_put(1, place)
    expected = outcome(jax.device_put, number, place, {})
    jaxmarshal.reset_stats()
    assert outcome(jaxmarshal.device_put, number, place, {}) == expected
    assert expected[0][0] == "OverflowError"
    assert counts() == (0, {"value": 1})


def explicit_mesh():
    return jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))


CONTEXTS = {
    "disable_jit": jax.disable_jit,
    "x64": lambda: jax.enable_x64(True),
    "mesh": lambda: jax.set_mesh(mesh_of(*range(8))),
    "explicit mesh": lambda: jax.set_mesh(explicit_mesh()),
    "default device": lambda: jax.default_device(device(3)),
    "guard": lambda: jax.transfer_guard_device_to_device("disallow_explicit"),
    "guard of inputs": lambda: jax.transfer_guard_host_to_device("disallow_explicit"),
    "debug_nans": lambda: jax.debug_nans(True),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_functions_in_contexts(context):
    """Trap 4: what is kept of a call serves where it was made, whatever JAX does elsewhere."""
    for target in BY_FUNCTION:
        for source in ("numpy", "wide numpy", "array", "committed", "elsewhere", "replicated"):
            for within in (False, True, False, True):
                place, argument = TARGETS[target](), SOURCES[source]()
                with CONTEXTS[context]() if within else contextlib.nullcontext():
                    expected = outcome(jax.device_put, argument, place, {})
                    for _ in range(2):
                        found = outcome(jaxmarshal.device_put, argument, place, {})
                        assert found == expected, (source, target, within)


def test_functions_and_traces():
    """Trap 3: within a trace the reference is called."""
    for target in BY_FUNCTION:
        place, x = TARGETS[target](), array()
        if target.startswith("spread"):
            continue    # of another number of devices than the arguments
        for _ in range(3):
            jaxmarshal.device_put(x, place)
        jaxmarshal.reset_stats()
        f = jax.jit(lambda x, place=place: jaxmarshal.device_put(x, place) + 1)
        g = jax.jit(lambda x, place=place: jax.device_put(x, place) + 1)
        assert outcome(lambda x, _: f(x), x, None, {}) == outcome(lambda x, _: g(x), x, None, {})
        assert counts()[0] == 0


def test_functions_serve_after_clear_caches():
    """They are compiled again."""
    for target in BY_FUNCTION:
        if target.startswith("spread"):
            continue
        place, x = TARGETS[target](), array()
        for _ in range(3):
            jaxmarshal.device_put(x, place)
        expected = outcome(jax.device_put, x, place, {})
        jax.clear_caches()
        for _ in range(3):
            assert outcome(jaxmarshal.device_put, x, place, {}) == expected


def test_batched_functions():
    """`batched_device_put_impl`: a memory space depends on `srcs`, too, and is JAX's."""
    for target, hits in (("columns in memory", 1), ("host memory", 0)):
        place, x = TARGETS[target](), array()
        put = device_put.batched_device_put_impl
        for src in (None, x.sharding, None):
            for _ in range(3):
                jaxmarshal.reset_stats()
                (made,) = put(
                    x, devices=[place], srcs=[src], copy_semantics=[private.REUSE_INPUT]
                )
                assert made.format == jax.device_put(x, place).format
            assert counts("batched_device_put_impl")[0] == hits


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [("committed", "none", "copy"), ("committed", "device", "copy"), ("rows", "none", "copy"),
     ("rows", "device", "neither"), ("rows", "other", "copy"),
     ("array", "columns in memory", "neither"), ("array", "host memory", "neither")],
)  # fmt: skip
def test_transfer_guards(source, target, options):
    """Trap 4: a guard on transfers between devices has to see them."""
    put = (TARGETS[target](), OPTIONS[options])
    for _ in range(2):
        outcome(jaxmarshal.device_put, SOURCES[source](), *put)
    x = SOURCES[source]()
    with jax.transfer_guard_device_to_device("disallow_explicit"):
        expected = outcome(jax.device_put, x, *put)
        jaxmarshal.reset_stats()
        assert outcome(jaxmarshal.device_put, x, *put) == expected
    assert counts() == (0, {"guard": 1})
