"""Chunks: the leaves of a buffer that an executable reads and writes together."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support import shares_memory

from jaxmarshal import carry, pack
from jaxmarshal.packing._forms import CHUNK, KNOWN, Piece, chunks_of, read, write
from jaxmarshal.packing._groups import repeats_of

runs = st.lists(
    st.tuples(
        st.sampled_from([(), (0,), (3,), (2, 2)]), st.integers(1, 40), st.integers(0, 1)
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def pieces_of(runs):
    return tuple(Piece(shape, repeat=repeat) for shape, n, repeat in runs for _ in range(n))


@given(runs, st.sampled_from([1, CHUNK]))
def test_chunks_are_side_by_side(runs, most):
    """All pieces are in one chunk each, in order and without gaps; hidden ones are of one kind."""
    pieces = pieces_of(runs)
    chunks = chunks_of(pieces, most)
    limit = 2 * most if most > 1 and len(chunks) <= KNOWN else most
    assert [piece for chunk in chunks for piece in chunk.pieces] == list(pieces)
    start = 0
    for chunk in chunks:
        assert chunk.row + (chunk.place or 0) == start
        assert 1 <= len(chunk.pieces) <= (most if chunk.place is not None else limit)
        assert chunk.place is None or len(set(chunk.pieces)) == 1
        start += chunk.size
    hidden = [chunk for chunk in chunks if chunk.place is not None]
    assert not hidden or len(chunks) > KNOWN
    starts = {chunk.row for chunk in hidden} | {chunk.place for chunk in hidden}
    sizes = {chunk.pieces[0].size for chunk in hidden}
    assert len(starts) <= (len(sizes) + 1) * (math.isqrt(len(hidden)) + 1) + len(runs)


@given(runs, st.sampled_from([1, CHUNK]))
@settings(max_examples=15, deadline=None)
def test_what_is_read_is_what_was_written(runs, most):
    pieces = pieces_of(runs)
    leaves = [jnp.full(piece.shape, n, np.float32) for n, piece in enumerate(pieces)]

    @jax.jit
    def there_and_back(leaves):
        buffers = write([leaves], (pieces,))
        (found,) = read(buffers, (pieces,), most)
        return buffers, found

    (buffer,), found = there_and_back(leaves)
    assert buffer.tolist() == [n for n, piece in enumerate(pieces) for _ in range(piece.size)]
    assert [(x.shape, x.tolist()) for x in found] == [(x.shape, x.tolist()) for x in leaves]


@pytest.mark.parametrize("count", [3, CHUNK, CHUNK + 1, CHUNK**2, CHUNK**2 + 1, 2 * CHUNK**2, 150])
def test_a_carry_in_chunks(count):
    """Each leaf is computed from itself, in `jit`, under `vmap` and under `grad`."""

    def step(state):
        return [x * (n + 1) for n, x in enumerate(state)]

    fast = carry(step)
    state = [jnp.arange(2, dtype=np.float32) + n for n in range(count)]
    expected = [x.tolist() for x in step(state)]
    packed = pack(state, least=1)
    assert [x.tolist() for x in fast(packed).unpack()] == expected
    assert [x.tolist() for x in jax.jit(fast)(packed).unpack()] == expected

    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), packed)
    (twice,) = jax.tree.leaves(jax.vmap(fast)(several))
    (once,) = jax.tree.leaves(fast(packed))
    assert twice.tolist() == [once.tolist(), (2 * once).tolist()]

    (gradient,) = jax.tree.leaves(jax.grad(lambda p: jax.tree.leaves(fast(p))[0].sum())(packed))
    assert gradient.tolist() == [float(n + 1) for n in range(count) for _ in range(2)]


def test_kernels_are_one_for_many_chunks():
    """XLA finds the same computation in all chunks of eight, and in all optimizer states."""
    state = {name: [jnp.ones(8) for _ in range(24 * CHUNK)] for name in ("p", "m")}

    def step(state):
        pairs = zip(state["p"], state["m"], strict=True)
        return {"p": [p - 0.1 * m for p, m in pairs], "m": [0.9 * m for m in state["m"]]}

    text = carry(step).lower(state).compile().as_text()
    kernels = [line for line in text.splitlines() if " fusion(" in line and "f32[64]" in line]
    if not kernels or not shares_memory():
        pytest.skip("NOT DONE: this is about how XLA compiles for a CPU")
    assert len(kernels) == 2 * 24


def test_repeats_begin_anew():
    """Parameters and moments of one form are told apart; what occurs once is in no repeat."""
    layers = [{"w": 1.0, "b": 2.0} for _ in range(6)]
    found = repeats_of(jax.tree.structure({"params": layers, "mu": layers, "other": [1.0] * 10}))
    assert found == [1] * 12 + [0] * 10 + [2] * 12
    assert repeats_of(jax.tree.structure([layers[0]] * 6)) == [0] * 12
    assert repeats_of(jax.tree.structure(1.0)) == [0]
    assert repeats_of(jax.tree.structure({"a": None, "b": ()})) == []
    deep = [1.0] * 9
    for _ in range(50):
        deep = [deep]
    assert repeats_of(jax.tree.structure([deep, deep])) == [1] * 9 + [2] * 9


def test_a_tree_deeper_than_the_stack():
    """JAX flattens it, so it is packed."""
    tree = [jnp.full(3, n) for n in range(10)]
    for _ in range(700):
        tree = [tree]
    (found,) = jax.tree.leaves(pack(tree))
    assert found.tolist() == [n for n in range(10) for _ in range(3)]


def test_repeats_do_not_change_what_is_packed():
    """A tree of two like parts has one buffer, and is what it was."""
    part = [jnp.full(3, n) for n in range(11)]
    tree = {"a": part, "b": [x + 1 for x in part], "n": [jnp.arange(3)] * 4}
    packed = pack(tree)
    assert [len(group) for group in packed._plan.groups] == [22, 4]
    assert jax.tree.map(lambda x: x.tolist(), packed.unpack()) == jax.tree.map(
        lambda x: x.tolist(), tree
    )
    assert packed["b"][4].tolist() == [5, 5, 5]
