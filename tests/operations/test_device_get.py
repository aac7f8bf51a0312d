"""`jax.device_get`: trees of arrays as numpy arrays."""

from __future__ import annotations

import collections
import signal
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eager import hits, same
from jitted import on, spread
from support import JAX

import jaxmarshal
from jaxmarshal._core.entries.public_functions import make_row
from jaxmarshal._jax import private

DTYPES = [
    np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.int32,
    np.uint8, np.bool_, np.complex64,
]  # fmt: skip
Pair = collections.namedtuple("Pair", ["first", "second"])


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


@pytest.fixture
def fetched_here():
    if not private.HAVE_FETCHES:
        pytest.skip("this JAX lacks what device_get needs")


def seen(tree):
    """All that can be seen of the leaves that `device_get` returns for a tree."""
    described = []
    sources = jax.tree.leaves(tree)
    leaves, treedef = jax.tree.flatten(jax.device_get(tree))
    for source, leaf in zip(sources, leaves, strict=True):
        if not isinstance(leaf, np.ndarray):
            described.append((type(leaf), leaf is source, repr(leaf)))
            continue
        address = None
        if isinstance(source, jax.Array) and source.is_fully_replicated and source.size:
            buffer = source.addressable_shards[0].data
            address = leaf.ctypes.data == buffer.unsafe_buffer_pointer()
        described.append((
            type(leaf), leaf.dtype, leaf.shape, leaf.strides, str(leaf.flags), leaf.tobytes(),
            leaf is source, address, type(leaf.base), leaf is getattr(source, "_npy_value", None),
        ))  # fmt: skip
    return treedef, described


def fast(tree):
    """Is this call of `device_get` a fast one?"""
    before = hits("functions")
    jax.device_get(tree)
    return hits("functions") == before + 1


@pytest.mark.usefixtures("fetched_here")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_kind(dtype):
    for shape in ((), (3,), (0, 2), (2, 3)):
        x = jnp.asarray(np.ones(shape, np.float32)).astype(dtype)
        same(seen, x, turns=2)
        same(seen, {"b": x, "a": [x, x + x if dtype is not np.bool_ else ~x]}, turns=2)
        assert fast({"a": x})


TREES = {
    "nothing": lambda x: (), "None": lambda x: {"a": None, "b": x},
    "a dict that is not sorted": lambda x: {"b": x, "a": (x, [x])},
    "keys that are numbers": lambda x: {2: x, 1: x},
    "a namedtuple": lambda x: Pair(x, {"c": x}),
    "one array twice": lambda x: [x, x],
    "numpy arrays": lambda x: (np.arange(3), np.ones(2)[::2], x, np.ones((2, 3)).T),
    "numbers": lambda x: (1, 2.5, True, 1j, x),
    "numbers of numpy": lambda x: (np.float32(1), np.int64(2), np.bool_(True), x),
    "none of them arrays": lambda x: [1, np.arange(2)],
}  # fmt: skip


@pytest.mark.usefixtures("fetched_here")
@pytest.mark.parametrize("make", TREES.values(), ids=TREES)
def test_trees(make):
    tree = make(jnp.arange(3.0) + 1)
    same(seen, tree, turns=2)
    same(jax.device_get, tree, turns=2)
    assert fast(tree)


class Fetched:
    """What is no array, and makes one."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(2)

    def copy_to_host_async(self):
        pass


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, x):
        self.x = x

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


LEFT = {
    "a text": lambda x: (x, "text"), "an object": lambda x: [x, object],
    "what makes an array": lambda x: (Fetched(), x),
    "a key": lambda x: {"a": jax.random.key(0)},
    "a node": lambda x: [x, Node(x)],
    "an ordered dict": lambda x: collections.OrderedDict(b=x, a=x),
    "keys of two types": lambda x: {1: x, "a": x},
    "a class of numpy's": lambda x: np.ma.masked_array([1, 2]),
    "objects": lambda x: (np.array([None]), x),
}  # fmt: skip


@pytest.mark.errors
@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_what_is_left_to_jax(make):
    same(lambda: jax.tree.map(str, jax.device_get(make(jnp.ones(2)))), turns=2)


@pytest.mark.errors
def test_wrong_calls():
    same(lambda: jax.device_get())
    same(lambda: jax.device_get(1, 2))
    same(lambda: jax.device_get(y=1))
    same(lambda: jax.device_get(x=jnp.ones(2)))


@pytest.mark.errors
def test_deleted_and_donated():
    def deleted():
        x = jnp.ones(3)
        x.delete()
        return jax.device_get({"b": jnp.ones(2), "a": x})

    def donated():
        x = jnp.ones(3)
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        return jax.device_get([x])

    def fetched_before():
        x = jnp.ones(3)
        jax.device_get(x)
        x.delete()
        return jax.device_get([x])

    for call in (deleted, donated, fetched_before):
        same(call, turns=2)


@pytest.mark.usefixtures("fetched_here")
def test_several_devices():
    for x in (on(3, np.arange(4)), spread(np.arange(8.0, dtype=np.float32)), spread(np.float32(2))):
        same(seen, x, turns=3)
        same(seen, [x, x + 1], turns=2)
    if jax.device_count() > 1:
        mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
        whole = jax.NamedSharding(mesh, jax.P())
        assert fast(jax.device_put(np.ones(2), whole))
        assert not fast(jax.device_put(np.ones(2), jax.NamedSharding(mesh, jax.P("x"))))


@pytest.mark.errors
def test_under_traces():
    x = jnp.ones(3)
    same(lambda: jax.jit(lambda y: y + jax.device_get(x))(x), turns=2)
    same(lambda: jax.jit(lambda y: jax.device_get(y) + 1)(x), turns=2)
    same(lambda: jax.grad(lambda y: jnp.sum(jax.device_get({"a": y})["a"]))(x), turns=2)


@pytest.mark.errors
def test_transfer_guards():
    x = jnp.ones(3)
    for level in ("allow", "log_explicit", "disallow", "disallow_explicit"):
        same(lambda: jax.device_get([x, x]), context=lambda level=level: (
            jax.transfer_guard_device_to_host(level)
        ))  # fmt: skip


def test_what_is_kept():
    """The array keeps a copy, where its data were copied, and nothing else."""
    for dtype in (np.float32, ml_dtypes.int4):
        x = jnp.arange(4).astype(dtype)

        def again(x=x):
            first, second = jax.device_get([x, x])
            third = jax.device_get(x)
            return [found is first for found in (second, third, x._npy_value, x._value)]

        same(again, turns=2)


@pytest.mark.usefixtures("fetched_here")
def test_another_method_of_arrays():
    x = jnp.ones(3)
    for place in (
        mock.patch.object(type(x), "__array__", lambda *_, **__: np.zeros(7)),
        mock.patch.object(type(x), "_value", property(lambda _: np.zeros(7))),
        mock.patch("jax._src.api._device_get", lambda _: 8),
    ):
        assert fast(x)
        with place:
            assert np.size(jax.device_get(x)) != 3
            assert not fast(x)
    assert fast(x)


@pytest.mark.usefixtures("fetched_here")
def test_under_the_profiler(tmp_path):
    x = jnp.ones(3)
    with jax.profiler.trace(str(tmp_path)):
        assert not fast(x)
    assert fast(x)


@pytest.mark.usefixtures("fetched_here")
def test_a_signal_meanwhile():
    """The error of a signal's handler is raised, and not taken for one of the data."""

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    work = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ y / 30, x))
    x = jnp.ones((600, 600))
    work(x).block_until_ready()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(3):
            result = work(x)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Stop):
                jax.device_get(result)
                raise AssertionError("the computation was too short")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        result.block_until_ready()


@pytest.mark.usefixtures("fetched_here")
def test_a_tape_hears_of_it():
    """A function that fetches what it is given is not replayed with what it fetched."""

    def double(x):
        return jnp.full((), float(jax.device_get(x)) * 2)

    replayed = make_row("functions", double)
    for value in (1.0, 1.0, 1.0, 3.0, 4.0):
        assert replayed(jnp.asarray(value)) == 2 * value


@pytest.mark.usefixtures("fetched_here")
def test_explained():
    x = jnp.ones(3)
    assert jaxmarshal.explain(jax.device_get, [x]).hit
    x.delete()
    assert jaxmarshal.explain(jax.device_get, [x]).reason == "deleted"


@pytest.mark.skipif(JAX < (0, 9), reason="a name of later versions")
def test_it_is_jaxs_own_name():
    assert jax.device_get.__name__ == "device_get"
    assert jax.device_get is jax._src.api.device_get
