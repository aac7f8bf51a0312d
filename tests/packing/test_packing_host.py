"""`jaxmarshal.jit(f, pack_host=True)`: numpy arrays of a call travel in one buffer."""

from __future__ import annotations

import threading
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from test_packing import assert_same

import jaxmarshal
from jaxmarshal._jax import private
from jaxmarshal.packing import _host

DTYPES = [
    np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint16, np.bool_,
    np.complex64, np.float64, np.int64, np.complex128,
]  # fmt: skip


@pytest.fixture(autouse=True)
def two_are_enough(monkeypatch):
    """Pack from two arrays on, so that tests can be small."""
    monkeypatch.setattr(_host, "LEAST", 2)


def buffers(function):
    """How many forms of calls were compiled with a buffer."""
    return len(function._runs)


host = st.builds(
    lambda dtype, shape, n: np.random.default_rng(n).integers(0, 9, shape).astype(dtype),
    st.sampled_from(DTYPES), st.sampled_from([(), (0,), (3,), (2, 3), (5, 1)]), st.integers(0, 3),
)  # fmt: skip
anything = st.one_of(host, host, st.sampled_from([3, 2.5, True, np.float32(2), jnp.ones(2)]))


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from("abcdef"), anything, max_size=6), st.booleans())
@settings(max_examples=40)
def test_random_batches(batch, x64):
    """What the function is given has the same types and bits as without the buffer."""
    with jax.enable_x64(x64):
        fast = jaxmarshal.jit(lambda tree: tree, pack_host=True)
        for _ in range(2):
            assert_same(jax.jit(lambda tree: tree)(batch), fast(batch))


def test_one_buffer():
    """One executable for each form of a call; few or large arrays go as they are."""
    traces = []

    def total(batch, scale=1):
        traces.append(1)
        return {name: value.sum() * scale for name, value in batch.items()}

    fast = jaxmarshal.jit(total, pack_host=True)
    batch = {f"k{i}": np.arange(8, dtype=np.int32) + i for i in range(9)}
    plain = jax.jit(total)
    for i in range(3):
        batch["k0"][0] = i
        assert_same(plain(batch), fast(batch))
        assert_same(plain(batch, scale=2), fast(batch, scale=2))
    assert buffers(fast) == 2 and len(traces) == 4
    one = {"x": np.ones(3), "y": jnp.ones(2), "large": np.ones(100_000, np.float32)}
    assert_same(plain(one), fast(one))
    assert buffers(fast) == 2
    fast.clear_cache()
    assert buffers(fast) == 0
    assert_same(plain(batch), fast(batch))
    with pytest.raises(TypeError, match="positional argument"):
        fast(batch, 1, 2)


def test_few(monkeypatch):
    """Fewer than it pays for go as they are."""
    monkeypatch.undo()
    fast = jaxmarshal.jit(lambda *xs: sum(x.sum() for x in xs), pack_host=True)
    x = np.ones(3, np.float32)
    assert fast(*[x] * (_host.LEAST - 1)) == 3 * (_host.LEAST - 1)
    assert buffers(fast) == 0
    assert fast(*[x] * _host.LEAST) == 3 * _host.LEAST
    assert buffers(fast) == 1


def test_static_and_donated():
    """Static arguments and donated ones by position and name."""

    def step(state, batch, mode, *, flag="a"):
        return state + batch["x"].sum() + batch["y"].sum(), (mode, flag) == ("add", "a")

    batch = {"x": np.ones(3, np.float32), "y": np.arange(3, dtype=np.float32)}
    for options in (
        {"static_argnums": 2, "static_argnames": ("mode", "flag")},
        {"static_argnames": ("mode", "flag")},
    ):  # fmt: skip
        fast = jaxmarshal.jit(step, pack_host=True, **options)
        plain = jax.jit(step, **options)
        for call in (
            lambda f: f(jnp.ones(4), batch, "add"), lambda f: f(jnp.ones(4), batch, "sub"),
            lambda f: f(jnp.ones(4), batch=batch, mode="add"),
        ):  # fmt: skip
            assert_same(call(plain), call(fast))
        assert buffers(fast) == 2
    for options in ({"donate_argnums": 0}, {"donate_argnames": "state"}):
        fast = jaxmarshal.jit(step, pack_host=True, static_argnames="mode", **options)
        for args, kwargs in ((batch, "add"), {}), ((), {"batch": batch, "mode": "b"}):
            state = jnp.ones(4)
            given = {**kwargs, "state": state} if kwargs else kwargs
            out = fast(*args, **given) if kwargs else fast(state, *args)
            assert out[0].tolist() == [7.0] * 4
            assert state.is_deleted()


def test_what_cannot_be_combined():
    """Options about places of arguments are refused, and others are those of `jax.jit`."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ValueError, match="in_shardings"):
        jaxmarshal.jit(lambda x: x, pack_host=True, in_shardings=where)
    with pytest.raises(TypeError):
        jaxmarshal.jit(lambda x: x, pack_host=True, unknown=1)
    with pytest.raises(ValueError, match="positive"):
        jaxmarshal.jit(lambda x: x, pack_host=True, static_argnums=-1)
    there = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    fast = jaxmarshal.jit(lambda x, y: x + y, pack_host=True, out_shardings=there)
    assert fast(np.ones(3), np.ones(3)).devices() == {jax.devices()[1]}


def test_protocol():
    """A decorator, a method, `lower` and `eval_shape`, within transformations, by threads."""

    @jaxmarshal.jit(pack_host=True)
    def add(x, y):
        """Adds."""
        return x + y

    x = np.arange(3, dtype=np.int32)
    assert add.__name__ == "add" and add.__doc__ == "Adds." and "add" in repr(add)
    assert add(x, x).tolist() == add.lower(x, x).compile()(x, x).tolist() == [0, 2, 4]
    assert add.eval_shape(x, x).shape == (3,)
    assert jax.jit(lambda z: z + add(x, x))(x).tolist() == [0, 3, 6]
    assert jax.vmap(lambda z: add(z, x))(np.stack([x, x])).tolist() == [[0, 2, 4]] * 2

    class Adder:
        @jaxmarshal.jit(pack_host=True, static_argnums=0)
        def add(self, x, y):
            return x + y

    assert Adder().add(x, x).tolist() == [0, 2, 4]
    results = [None] * 6

    def work(i):
        results[i] = [add(x + i, x).tolist() for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[(2 * x + i).tolist()] * 5 for i in range(6)]


def test_the_place_of_a_warning():
    """A warning of `jax.jit` comes from whoever called it, here as there."""
    places = []
    for jit in (jax.jit, jaxmarshal.jit):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jit(lambda x: x, device=jax.devices()[0])
        places.append([(w.filename, w.category, str(w.message)) for w in caught])
    assert places[0] == places[1]
    assert (places[0][0][0] == __file__) is private.jit_warns_its_caller
