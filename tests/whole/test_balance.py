"""References are given back: after each path into C, arguments are held by no one new."""

from __future__ import annotations

import contextlib
import gc
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.interpreters import pxla

import jaxmarshal

STATIC = object()


def array():
    return jax.device_put(np.arange(4, dtype=np.float32) + 1)


def host():
    return np.arange(4, dtype=np.float32) + 1


def deleted():
    x = array()
    x.delete()
    return x


def model():
    return {"w": [array(), array()], "b": (array(), None, {"c": array()})}


def sharded():
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    return jax.device_put(np.arange(8.0), jax.sharding.NamedSharding(mesh, spec))


def paths():
    """Name to (call, maker of its arguments), made with what is installed now."""
    jit = jax.jit
    double = jit(lambda tree: jax.tree.map(lambda x: x * 2, tree))
    donating = jit(lambda x: x + 1, donate_argnums=0)
    static = jit(lambda x, n, *, m: x * 3, static_argnames=("n", "m"))
    split = jit(jax.random.split)
    ready = double.lower(model()).compile()
    flat = jit(lambda x, y: (x + y, x)).lower(array(), array()).compile()._executable
    keywords = jit(lambda *, x: x).lower(x=array()).compile()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    reuse = pxla.xc.ArrayCopySemantics.REUSE_INPUT
    return {
        "device_put, numpy": (jax.device_put, lambda: (host(),)),
        "device_put, array": (jax.device_put, lambda: (array(),)),
        "device_put, to its device": (jax.device_put, lambda: (array(), jax.devices()[0])),
        "device_put, a tree": (jax.device_put, lambda: ({"a": host(), "b": [array(), 1.5]},)),
        "device_put, refused": (jax.device_put, lambda: (["text", host()],)),
        "device_put, deleted": (jax.device_put, lambda: (deleted(),)),
        "jit, a tree": (double, lambda: (model(),)),
        "jit, mixed": (double, lambda: ([array(), host(), 2.5],)),
        "jit, forty": (double, lambda: ([array() for _ in range(40)] + [host()],)),
        "jit, sharded": (double, lambda: ([sharded()],)),
        "jit, donated": (donating, lambda: (array(),)),
        "jit, deleted": (double, lambda: ([deleted()],)),
        "jit, static": (lambda x: static(x, STATIC, m="m"), lambda: (array(),)),
        "jit, unhashable": (lambda x, n: static(x, n, m=1), lambda: (array(), [1])),
        "jit, a key": (split, lambda: (jax.random.key(3),)),
        "compiled, a tree": (ready, lambda: (model(),)),
        "compiled, another tree": (ready, lambda: ([array()],)),
        "compiled, deleted": (ready, lambda: ({**model(), "w": [deleted(), array()]},)),
        "compiled, by name": (lambda x: keywords(x=x), lambda: (array(),)),
        "MeshExecutable.call": (flat.call, lambda: (array(), array())),
        "MeshExecutable.call, wrong": (flat.call, lambda: (host()[:2], array())),
        "unsafe_call": (flat.unsafe_call, lambda: (array(), array())),
        "shard_args": (
            lambda x: pxla.shard_args([sharding], [None], [reuse], [x]), lambda: (host(),)
        ),
        "shard_args, array": (
            lambda x: pxla.shard_args([sharding], [None], [reuse], [x]), lambda: (array(),)
        ),
        "lax.add": (lax.add, lambda: (array(), array())),
        "lax.add, mixed": (lax.add, lambda: (array(), host())),
        "lax.add, wrong": (lax.add, lambda: (array(), array()[:2])),
        "reshape": (lambda x: lax.reshape(x, (2, 2)), lambda: (array(),)),
        "asarray": (jnp.asarray, lambda: (host(),)),
        "array": (jnp.array, lambda: (array(),)),
        "full": (lambda shape: jnp.full(shape, 2.5), lambda: ((1234, 2),)),
        "index": (lambda x, i: x[i], lambda: (array(), slice(1, 3))),
        "index, wrong": (lambda x, i: x[i], lambda: (array(), "a")),
        "explain": (lambda tree: str(jaxmarshal.explain(double, tree)), lambda: (model(),)),
    }


NAMES = list(paths())
ROUNDS = 5


def watched(tree):
    """Every container and leaf."""
    found = [tree]
    for part in found:
        if isinstance(part, dict):
            found += part.values()
        elif isinstance(part, (list, tuple)):
            found += part
    return [x for x in found if not isinstance(x, (str, int, float, type(None)))]


def changes(call, make):
    """By how much the references to the arguments grew, for each of several calls."""
    found = []
    for _ in range(ROUNDS):
        args = make()
        parts = watched(args)
        before = [sys.getrefcount(x) for x in parts]
        with contextlib.suppress(Exception):
            call(*args)
        gc.collect(1)
        found.append([sys.getrefcount(x) - n for x, n in zip(parts, before, strict=True)])
    return found[2:]    # the first calls are those that compile


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_let_go(name):
    """Fresh arguments, on fast calls and on those that go to the reference."""
    jaxmarshal.uninstall()
    expected = changes(*paths()[name])
    with jaxmarshal.installed():
        assert changes(*paths()[name]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_singletons_are_not_eaten(name):
    """What every object of the process shares is neither lost nor gathered."""
    shared = [None, True, False, (), 0, jax.devices()[0], np.dtype(np.float32), type(array())]
    with jaxmarshal.installed():
        call, make = paths()[name]
        arguments = [make() for _ in range(200)]

        def once(args):
            with contextlib.suppress(Exception):
                call(*args)

        for args in arguments[:3]:
            once(args)
        gc.collect(1)
        before = [sys.getrefcount(x) for x in shared]
        for args in arguments[3:]:
            once(args)
        gc.collect(1)
        after = [sys.getrefcount(x) for x in shared]
    for x, one, two in zip(shared, before, after, strict=True):
        assert abs(two - one) < 150, (x, one, two)
