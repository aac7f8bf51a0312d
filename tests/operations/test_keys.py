"""Arrays of keys: `keys[i]`, `keys.reshape`, and `key, subkey = jax.random.split(key)`."""

from __future__ import annotations

import gc
import weakref
from operator import getitem
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from eager import hit_by, hits, observe, same, without_jaxmarshal
from jax.sharding import NamedSharding, PartitionSpec
from samples import mesh_of

import jaxmarshal
from jaxmarshal._jax import private

IMPLEMENTATIONS = ["threefry2x32", "rbg", "unsafe_rbg"]


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def keys_of(n=3, impl="threefry2x32", seed=0):
    return jax.random.split(jax.random.key(seed, impl=impl), n)


def total_hits():
    return sum(counts["hits"] for counts in jaxmarshal.stats().values())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_indexing(impl):
    keys = keys_of(6, impl)
    for index in (0, -1, slice(1, 3), (2,), ..., None, jnp.array([1, 0])):
        hit_by("functions", getitem, keys, index)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_rows_that_change(impl):
    """One recording serves all rows of an array of keys, too."""
    keys = keys_of(40, impl)
    for i in range(8):
        keys[i]
    before = hits("functions")
    found = [keys[i] for i in range(8, 40)]
    assert hits("functions") == before + 32
    with without_jaxmarshal():
        expected = [keys[i] for i in range(8, 40)]
        assert observe(lambda: found) == observe(lambda: expected)


def test_rows_of_another_implementation():
    """Keys of as many bits are of another kind where another function makes numbers of them."""
    for _ in range(3):
        for impl in ("rbg", "unsafe_rbg"):
            same(getitem, keys_of(4, impl), 1)


@pytest.mark.parametrize("call", [
    lambda keys: keys.reshape(2, 2), lambda keys: keys.reshape(2, 2).transpose(),
    lambda keys: keys.reshape(2, 2).swapaxes(0, 1), lambda keys: keys[None].squeeze(),
    lambda keys: keys.at[1].set(keys[0]),
])  # fmt: skip
def test_shapes(call):
    hit_by("functions", call, keys_of(4))


@pytest.mark.errors
def test_wrong_arguments():
    keys = keys_of(4)
    same(getitem, keys, 1.5)
    same(getitem, keys, (0, 0))
    same(lambda: keys.reshape(3))
    same(lambda: keys.swapaxes(0))


def unpacked(keys):
    a, b, c = keys
    return a, b, c


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_unpacking(impl):
    hit_by("functions", unpacked, keys_of(3, impl))


def test_unpacking_what_was_just_split():
    def step(key):
        key, subkey = jax.random.split(key)
        return key, jax.random.normal(subkey, (2,))

    same(step, jax.random.key(1))
    key = jax.random.key(7)
    for _ in range(4):
        key, _ = step(key)
    with without_jaxmarshal():
        expected = jax.random.key(7)
        for _ in range(4):
            expected, _ = step(expected)
    assert observe(lambda: key) == observe(lambda: expected)


def test_a_program_of_its_own_for_each_number_of_keys():
    for n in (1, 2, 3, 99, 100, 101, 205):
        same(list, keys_of(n))


def test_what_is_handed_out():
    """A generator, as in JAX; one after the other has its own keys."""
    keys = keys_of()
    with without_jaxmarshal():
        kind = type(iter(keys))
    for _ in range(4):
        assert type(iter(keys)) is kind
        first, second = iter(keys), iter(keys)
        assert next(first) is not next(second)
        assert len(list(first)) == 2
        assert list(first) == []


def test_nothing_is_done_before_the_first_key():
    """Making the generator takes nothing apart: an array that is deleted meanwhile is noticed."""
    keys = keys_of()
    for _ in range(4):
        list(keys)
    before, generator = total_hits(), iter(keys)
    assert total_hits() == before
    next(generator)
    assert total_hits() > before


@pytest.mark.errors
def test_keys_that_are_deleted_before_the_first_is_taken():
    def delayed(n=3):
        keys = keys_of(n)
        generator = iter(keys)
        keys.delete()
        return list(generator)

    same(delayed)


def test_what_cannot_be_gone_through():
    same(list, jax.random.key(0))
    same(list, keys_of(4).reshape(2, 2))
    same(list, keys_of(4)[:0])

    def deleted():
        keys = keys_of()
        keys.delete()
        return list(keys)

    same(deleted)
    same(lambda: type(keys_of()).__iter__())
    same(lambda: type(keys_of()).__iter__(jnp.arange(3)))


def test_inside_of_a_trace():
    keys = keys_of()
    for _ in range(4):
        list(keys)
    same(jax.jit(lambda x: sum(jax.random.normal(key) for key in keys) + x), 1.0)
    same(lambda: str(jax.make_jaxpr(lambda: [jax.random.bits(key) for key in keys])()))
    same(jax.vmap(lambda key: jax.random.bits(unpacked(jax.random.split(key, 3))[1])), keys)


def test_keys_on_several_devices():
    sharding = NamedSharding(mesh_of(2), PartitionSpec("x"))
    same(unpacked, jax.device_put(keys_of(4)[:3], NamedSharding(mesh_of(2), PartitionSpec())))
    same(list, jax.device_put(keys_of(4), sharding))


def test_another_method_of_arrays():
    """Somebody else's method for taking an array apart is called before a recording and after."""
    keys = keys_of()
    for _ in range(4):
        list(keys)
    unstack, calls = private.ArrayImpl._unstack, []

    def theirs(array):
        calls.append(array.shape)
        return unstack(array)

    with mock.patch.object(private.ArrayImpl, "_unstack", theirs):
        for _ in range(4):
            list(keys)
    assert len(calls) == 4
    same(list, keys)


def test_key_reuse_is_looked_for():
    keys = keys_of()
    for _ in range(4):
        list(keys)
    same(list, keys, context=lambda: jax.debug_key_reuse(True))


def test_nothing_is_kept():
    """Neither the keys nor their array live longer than the program has them."""
    keys = keys_of()
    for _ in range(4):
        parts = list(keys)
    seen = [weakref.ref(x) for x in (keys._base_array, *(key._base_array for key in parts))]
    generator = iter(keys)
    next(generator)
    del keys, parts, generator
    gc.collect()
    assert [ref() for ref in seen] == [None] * 4


def test_explain():
    keys = keys_of()
    iterate = type(keys).__iter__
    for _ in range(4):
        list(keys)
    before = hits("functions")
    assert jaxmarshal.explain(iterate, keys).hit
    assert hits("functions") == before
    list(keys)
    assert hits("functions") == before + 1


def test_uninstalling():
    cls = private.PRNGKeyArray
    with jaxmarshal.uninstalled():
        before = vars(cls)["__iter__"], vars(cls)["__getitem__"]
        with jaxmarshal.installed():
            assert vars(cls)["__iter__"] is not before[0]
        assert (vars(cls)["__iter__"], vars(cls)["__getitem__"]) == before
