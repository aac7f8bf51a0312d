"""`device_put` with `may_alias`, and of spread arrays to a device.

What is compared with plain JAX: results and where they lie, which parts of a result share memory
with which parts of an argument, whether arguments are deleted afterwards, and errors.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from samples import device, mesh_of
from support import aligned, counts

import jaxmarshal


def spread(*spec, numbers=range(8), memory_kind=None):
    return NamedSharding(mesh_of(*numbers), P(*spec), memory_kind=memory_kind)


def array(target=None):
    return jax.device_put(aligned((8, 8)), target)


def columns_in_memory():
    """Data that do not lie row after row."""
    layout = jax.experimental.layout.Layout((1, 0))
    place = SingleDeviceSharding(device(0))
    return jax.device_put(array(), jax.experimental.layout.Format(layout, place))


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
#: of the very device, and those that JAX moves by a program of its own.
LEFT_TO_JAX = {
    ("pinned", "device"), ("rows", "other order"), ("columns", "other order"),
    ("replicated", "other order"), ("tree", "other order"),
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
    for place in (None, device(0), device(3), spread("x")):
        for _ in range(2):
            jaxmarshal.device_put(array(), place, may_alias=False)
        x = array()
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        expected = outcome(jax.device_put, x, place, {"may_alias": False})
        jaxmarshal.reset_stats()
        assert outcome(jaxmarshal.device_put, x, place, {"may_alias": False}) == expected
        assert counts() == (0, {"deleted": 1})


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [("committed", "none", "copy"), ("committed", "device", "copy"), ("rows", "none", "copy"),
     ("rows", "device", "neither"), ("rows", "other", "copy")],
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
