"""States of flax, equinox and optax as packed trees: carried, and written and read again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarshal import Packed, carry, pack

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def assert_close(tree, other):
    """The same structure, dtypes and shapes; values as near as two fusions of one program."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        if isinstance(a, jax.Array):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert np.allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert a is b or a == b


def both(step, state, *args, steps=3):
    """The state after some steps, without packing and with."""
    plain, packed_step = jax.jit(step), carry(step)
    expected, packed = state, pack(state)
    for _ in range(steps):
        expected, packed = plain(expected, *args), packed_step(packed, *args)
    assert type(packed) is Packed
    return expected, packed.unpack()


@pytest.fixture
def train_state():
    """A `TrainState` of flax with Adam of optax: functions are static in it."""
    nn = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")
    from flax.training.train_state import TrainState

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(6):
                x = nn.tanh(nn.Dense(4)(x))
            return x

    model = Model()
    return TrainState.create(
        apply_fn=model.apply, params=model.init(jax.random.key(0), X), tx=optax.adam(1e-2)
    )


def train(state, x):
    """A step of training."""
    gradients = jax.grad(lambda p: jnp.mean(state.apply_fn(p, x) ** 2))(state.params)
    return state.apply_gradients(grads=gradients)


def test_a_train_state(train_state):
    """`TrainState` goes through a carry as through `jit`, with its methods."""
    state = jax.tree.map(jnp.asarray, train_state)
    state = state.replace(step=jnp.int32(0))
    expected, got = both(train, state, X)
    assert_close(expected, got)
    assert got.apply_fn is state.apply_fn and int(got.step) == 3


def test_flax_serialization(train_state):
    """A Packed is written and read as the tree that it stands for, bit for bit."""
    serialization = pytest.importorskip("flax.serialization")
    packed = pack(train_state.params)
    assert repr(packed).endswith("1 buffers + 0 arrays)")
    state = serialization.to_state_dict(packed)
    expected = serialization.to_state_dict(train_state.params)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    data = serialization.to_bytes(packed)
    in_order = jax.tree.map(lambda x: x, train_state.params)    # of its keys, as in any tree map
    assert data == serialization.to_bytes(in_order)
    zeros = jax.tree.map(jnp.zeros_like, packed)
    read = serialization.from_bytes(zeros, data)
    assert type(read) is Packed
    for a, b in zip(
        jax.tree.leaves(read.unpack()), jax.tree.leaves(train_state.params), strict=True
    ):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert a.sharding == b.sharding and a.committed == b.committed
    inside = serialization.from_bytes({"state": zeros}, serialization.to_bytes({"state": packed}))
    assert jax.tree.structure(inside["state"]) == jax.tree.structure(packed)
    with pytest.raises(ValueError):
        serialization.from_bytes(zeros, serialization.to_bytes({"other": np.ones(3)}))


def test_orbax(train_state, tmp_path):
    """What orbax gives back is packed as it was, by `like`."""
    checkpoint = pytest.importorskip("orbax.checkpoint")
    packed = pack(train_state.params)
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", packed.unpack())
        checkpointer.wait_until_finished()
        read = checkpointer.restore(tmp_path / "state")
    again = packed.like(read)
    assert jax.tree.structure(again) == jax.tree.structure(packed)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(packed), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_orbax_directly(train_state, tmp_path):
    """A Packed that orbax is given itself is written as its buffers, and read where they are."""
    checkpoint = pytest.importorskip("orbax.checkpoint")
    there = jax.device_put(train_state.params, jax.devices()[1])
    packed = pack(there)
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", packed)
        checkpointer.wait_until_finished()
        again = checkpointer.restore(tmp_path / "state", jax.tree.map(jnp.zeros_like, packed))
        (buffer,) = checkpointer.restore(tmp_path / "state")    # what it is without a target
    assert type(again) is Packed and jax.tree.structure(again) == jax.tree.structure(packed)
    assert np.asarray(buffer).tobytes() == np.asarray(jax.tree.leaves(packed)[0]).tobytes()
    for a, b in zip(jax.tree.leaves(again.unpack()), jax.tree.leaves(there), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert a.sharding == b.sharding and a.committed


def test_an_equinox_module():
    """A module with functions among its leaves."""
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.MLP(4, 4, 4, 6, key=jax.random.key(0))

    def step(model, x):
        @equinox.filter_grad
        def gradient(model):
            return jnp.mean(jax.vmap(model)(x) ** 2)

        changes = jax.tree.map(lambda g: -0.1 * g, gradient(model))
        return equinox.apply_updates(model, changes)

    packed_step = carry(step)
    packed, expected = pack(model), model
    for _ in range(3):
        packed = packed_step(packed, X)
        expected = equinox.filter_jit(step)(expected, X)
    got = packed.unpack()
    assert got.activation is model.activation
    assert_close(equinox.filter(expected, equinox.is_array), equinox.filter(got, equinox.is_array))


def test_an_nnx_state():
    """A state that was split from its graph, with keys of random numbers in it."""
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(4, 4, rngs=rngs)
            self.second = nnx.Linear(4, 4, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.second(self.dropout(nnx.relu(self.first(x))))

    graph, state = nnx.split(Model(nnx.Rngs(0)))

    def step(state, x):
        model = nnx.merge(graph, state)
        gradients = nnx.grad(lambda m: jnp.mean(m(x) ** 2))(model)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients)
        nnx.update(model, params)
        return nnx.state(model)

    expected, got = both(step, state, X)
    words = [
        jax.tree.map(
            lambda x: jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, s,
        )
        for s in (expected, got)
    ]  # fmt: skip
    assert_close(*words)


def test_like_of_numpy_arrays():
    """Numpy arrays are put where the buffer is; what does not fit is named."""
    there = jax.devices()[2]
    packed = pack([jax.device_put(np.full(3, i, np.float32), there) for i in range(4)])
    again = packed.like([np.full(3, i + 1, np.float32) for i in range(4)])
    for i, leaf in enumerate(again.unpack()):
        assert leaf.devices() == {there} and leaf.committed
        assert leaf.tolist() == [i + 1] * 3
    some = packed.like([*again.unpack()[:2], np.ones(3, np.float32), np.zeros(3, np.float32)])
    assert [x.tolist() for x in some.unpack()] == [[1] * 3, [2] * 3, [1] * 3, [0] * 3]
    assert jax.tree.leaves(some)[0].devices() == {there}
    with pytest.raises(ValueError, match=r"\(3,\)"):
        packed.like([np.ones(2, np.float32)] * 4)
