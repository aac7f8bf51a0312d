"""Functions outside of `jit` about spread arrays, and while a mesh is set.

Each function is called with arrays on one device and over meshes of both kinds, within meshes of
both kinds, one of which has the same abstract mesh as another. Plain JAX says what is right.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from eager import together
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from support import without_jaxmarshal
from test_functions import STEP, TRIED, accepted, arguments, array, change_arrays, find, same

import jaxmarshal


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def mesh_of(kind, *numbers):
    devices = np.array([jax.devices()[i] for i in numbers])
    return jax.sharding.Mesh(devices, ("x",), axis_types=(kind,))


AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
CONTEXTS = {
    "none": contextlib.nullcontext,
    "auto": lambda: jax.set_mesh(mesh_of(AUTO, 0, 1)),
    "explicit": lambda: jax.set_mesh(mesh_of(EXPLICIT, 0, 1)),
    "explicit, other devices": lambda: jax.set_mesh(mesh_of(EXPLICIT, 2, 3)),
    "abstract": lambda: jax.sharding.use_abstract_mesh(mesh_of(EXPLICIT, 0, 1).abstract_mesh),
}


def spread(kind, *numbers, first=False):
    """A change of arrays: the last axis, or the first one, over two devices if it can be."""
    mesh = mesh_of(kind, *numbers)

    def change(leaf):
        spec = [None] * leaf.ndim
        axis = 0 if first else leaf.ndim - 1
        if leaf.ndim and leaf.shape[axis] % 2 == 0:
            spec[axis] = "x"
        return jax.device_put(leaf, NamedSharding(mesh, P(*spec)))

    return change


PLACES = {
    "one device": lambda leaf: leaf,
    "spread": spread(AUTO, 0, 1),
    "spread, explicit": spread(EXPLICIT, 0, 1),
    "spread, other devices": spread(AUTO, 2, 3),
    "spread otherwise": spread(AUTO, 0, 1, first=True),
}


@together()
def check(call, args):
    """Each placement and each mesh, known and not, and all of them again."""
    placed = [change_arrays(args, change) for change in PLACES.values()]
    for repeat in (3, 1):
        for there in placed:
            for context in CONTEXTS.values():
                for _ in range(repeat):
                    same(call, there, context)


@pytest.mark.parametrize(("module", "name"), TRIED[::2] if STEP > 1 else TRIED)
def test_functions_about_spread_arrays(module, name):
    """Trap 4: what was recorded on one mesh, or without one, is not used in another."""
    call = find(module, name)
    places = accepted(call, name)
    for place in places[:: max(1, len(places) // 2)][:2]:
        check(call, arguments(1, name)[place])


CALLS = {
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1.0,
    "compare": lambda x: x > 0,
    "index": lambda x: x[1],
    "slice": lambda x: x[:, 1:3],
    "update": lambda x: x.at[0, 1].set(2.0),
    "reshape": lambda x: x.reshape(-1),
    "transpose": lambda x: x.T,
    "astype": lambda x: x.astype(jnp.int32),
    "softmax": lambda x: jax.nn.softmax(x),
    "where": lambda x: jnp.where(x > 0, x, 0),
    "zeros_like": lambda x: jnp.zeros_like(x),
    "zeros": lambda x: jnp.zeros((2, 4)),
    "asarray": lambda x: jnp.asarray(np.ones((2, 4), np.float32)),
    "arange": lambda x: jnp.arange(8),
    "split": lambda x: jax.random.split(jax.random.key(0)),
    "matmul": lambda x: x @ x.T,
    "sum": lambda x: x.sum(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_everyday_calls(name):
    """Trap 4: the same with what programs type."""
    check(CALLS[name], (array(1, (4, 4)),))


def done_by_jax(context, x):
    """The names of the calls that plain JAX can do there; some are ambiguous with explicit axes."""
    found = []
    with without_jaxmarshal(), CONTEXTS[context]():
        for name, call in CALLS.items():
            with contextlib.suppress(Exception):
                call(x)
                found.append(name)
    return found


@pytest.mark.parametrize(
    ("context", "place", "least"),
    [
        ("none", "spread", 15), ("none", "spread, explicit", 12), ("auto", "one device", 15),
        ("auto", "spread", 15), ("explicit", "one device", 15),
        ("explicit", "spread, explicit", 11), ("explicit, other devices", "one device", 15),
        ("abstract", "spread, explicit", 7),
    ],
)
def test_they_are_fast(context, place, least):
    """A spread array, or a mesh, is no reason to miss."""
    x = PLACES[place](array(1, (4, 4)))
    # JAX has jitted two of them, and moves what lies on one device in each call.
    others = {"zeros_like", "matmul", "sum"}
    fast = [name for name in done_by_jax(context, x) if name not in others]
    assert len(fast) >= least
    with CONTEXTS[context]():
        for _ in range(24):
            for name in fast:
                CALLS[name](x)
        jaxmarshal.reset_stats()
        for name in fast:
            CALLS[name](x)
    rows = jaxmarshal.report().rows
    assert [row for row in rows if row.fast < row.calls] == []
    assert sum(row.calls for row in rows) >= len(fast)


def test_manual_axes():
    """Trap 4: there JAX casts arrays before it does anything, so it does every operation."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Manual,))
    x = PLACES["spread"](array(1, (4, 4)))
    for _ in range(4):
        same(lambda: jax.lax.neg(x), (), lambda: jax.sharding.use_abstract_mesh(mesh))
    jaxmarshal.reset_stats()
    with jax.sharding.use_abstract_mesh(mesh):
        jax.lax.neg(x)
    found = jaxmarshal.stats()["bind"]
    assert found["hits"] == 0
    if not LAYOUT_OFF:    # no plan is made there at all
        assert found["misses_by_reason"]["context"] == 1


def test_numbers_that_change_beside_spread_arrays():
    """Trap 4: each number is one of the first; an array made of it would be on one device."""
    x = PLACES["spread"](array(1, (4, 4)))
    for i in range(30):
        same(lambda i: x * (i / 3), (i,))
        same(lambda i: x[i % 4], (i,))


def test_keys_that_are_spread():
    """Trap 4: the words of typed keys are where their arrays are."""
    keys = jax.random.split(jax.random.key(0), 4)
    for kind in (AUTO, EXPLICIT):
        there = jax.device_put(keys, NamedSharding(mesh_of(kind, 0, 1), P("x")))
        for context in CONTEXTS.values():
            for of in (there, keys):
                for _ in range(3):
                    same(lambda of: jax.random.key_data(of), (of,), context)
                    same(lambda of: of[0], (of,), context)
                    same(lambda of: jax.random.fold_in(of[1], 3), (of,), context)
