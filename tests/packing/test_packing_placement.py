"""Leaves that are spread over devices in the same way travel together, and stay where they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from jaxmarshal import carry, pack
from jaxmarshal.packing._groups import flat_sharding

MESH = Mesh(np.asarray(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
SHAPES = [(8,), (16,), (8, 3), (8, 2, 2), (24,), (8, 0)]


def spread(spec, mesh=MESH, dtype=np.float32, shapes=SHAPES):
    """Arrays of several shapes with one sharding."""
    where = NamedSharding(mesh, spec)
    return [
        jax.device_put(np.random.default_rng(i).integers(0, 9, shape).astype(dtype), where)
        for i, shape in enumerate(shapes)
        if len(shape) >= len(spec)
    ]


def assert_same(tree, other):
    """The same bits, types and shardings, with the specs as they were written."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert (a.dtype, a.shape, a.committed) == (b.dtype, b.shape, b.committed)
        assert a.sharding == b.sharding and a.sharding.spec == b.sharding.spec
        assert [s.data.tolist() for s in a.addressable_shards] == [
            s.data.tolist() for s in b.addressable_shards
        ]
        assert [s.device for s in a.addressable_shards] == [s.device for s in b.addressable_shards]


@pytest.mark.parametrize("spec", [P("x"), P("y"), P(("x", "y")), P("x", None)], ids=str)
def test_round_trip(spec):
    """Whole, by leaf, moved, and read back from numpy, each shard where it was."""
    tree = spread(spec)
    packed = pack(tree, least=1)
    assert repr(packed).endswith("1 buffers + 0 arrays)")
    (buffer,) = jax.tree.leaves(packed)
    assert buffer.sharding.spec == P(spec[0], None)
    assert_same(tree, packed.unpack())
    assert_same(tree[1], packed[1])
    assert_same(tree, packed.like([np.asarray(x) for x in tree]).unpack())
    assert_same(tree, packed.like(packed.unpack()).unpack())
    moved = jax.device_put(packed, jax.devices()[1]).unpack()
    for x, y in zip(tree, moved, strict=True):
        assert y.devices() == {jax.devices()[1]}
        assert np.array_equal(x, y)


@pytest.mark.parametrize("spec", [P("x"), P(("x", "y"))], ids=str)
@pytest.mark.parametrize("count", [1, 4, 10])
def test_what_is_empty(spec, count):
    """Its shards have the shapes that they had; XLA may make others of nothing."""
    tree = spread(spec, shapes=[(8, 0)] * count)
    assert_same(tree, pack(tree, least=1).unpack())
    assert [[s.data.shape for s in x.addressable_shards] for x in pack(tree, least=1).unpack()] == [
        [s.data.shape for s in x.addressable_shards] for x in tree
    ]


@pytest.mark.parametrize("donate", [False, True])
def test_carry(donate):
    """A step keeps the parts where they are, next to copies and arrays of one device."""
    some = SHAPES[:-1]    # what is empty has copies after a step of plain JAX
    tree = {
        "parts": spread(P("x"), shapes=some), "copies": spread(P(), shapes=some),
        "count": spread(P("x"), dtype=np.int32, shapes=some),
    }  # fmt: skip

    def step(tree, x):
        return jax.tree.map(lambda leaf: leaf * 2 + x.astype(leaf.dtype), tree)

    expected, packed = tree, pack(tree)
    assert repr(packed).endswith("3 buffers + 0 arrays)")
    fast = carry(step, donate=donate)
    for i in range(3):
        expected, packed = jax.jit(step)(expected, jnp.int32(i)), fast(packed, jnp.int32(i))
    assert_same(expected, packed.unpack())
    text = fast.lower(packed, jnp.int32(1)).compile().as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute"))


@pytest.mark.parametrize("is_spread", [False, True], ids=["one device", "spread"])
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
@pytest.mark.parametrize(
    "others", [(), (None,), ((),), (((),),), ({"loss": 1.0},), ((1, 2),), ([],), (2.0,)], ids=repr
)
def test_the_other_part(others, donate, is_spread):
    """Whatever it is, it is not taken for a part of the carry, nor the carry for a pair."""
    tree = spread(P("x") if is_spread else P(), MESH if is_spread else Mesh(jax.devices()[:1], "x"))
    others = jax.tree.map(jnp.float32, others)

    def step(tree):
        after = [x + 1 for x in tree]
        return (after, *others) if others else after

    for some in (tree, tree[:2], tree[:1], []):
        fast, plain = carry(step, donate=donate, least=2), jax.jit(step)
        state, expected = jax.tree.map(jnp.copy, some), some
        for _ in range(3):
            result = fast(state)
            state, *got = result if others else (result,)
            expected, *wanted = plain(expected) if others else (plain(expected),)
            assert_same(expected, state.unpack())
            assert jax.tree.structure(got) == jax.tree.structure(wanted)
            assert jax.tree.leaves(got) == jax.tree.leaves(wanted)


def test_what_stays_loose():
    """Other axes, several axes, typed keys, and meshes whose axes are part of types."""
    explicit = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    trees = [
        spread(P(None, "y"), shapes=[(3, 8)] * 4), spread(P("x", "y"), shapes=[(8, 8)] * 4),
        spread(P("x"), mesh=explicit),
        [jax.device_put(jax.random.split(jax.random.key(i), 8), NamedSharding(MESH, P("x")))
         for i in range(4)],
    ]  # fmt: skip
    for tree in trees:
        packed = pack(tree)
        assert repr(packed).endswith(f"0 buffers + {len(tree)} arrays)")
        assert all(a is b for a, b in zip(packed.unpack(), tree, strict=True))


class OfAnother:
    """A device of another process, which answers nothing about its memory."""

    client = jax.local_devices()[0].client

    def default_memory(self):
        raise RuntimeError("not addressable")


class Over:
    """A sharding over that device, and over one of this process if there is one."""

    memory_kind = jax.local_devices()[0].default_memory().kind

    def __init__(self, *here):
        self.device_set = {OfAnother(), *here}
        self.addressable_devices = set(here)


@pytest.mark.parametrize("here", [0, 1])
def test_memory_of_other_processes(here):
    """Which memory is the default one is asked of a device of this process."""
    sharding = Over(*jax.local_devices()[:here])
    assert flat_sharding(sharding) is None    # for it is of no kind that is known


def test_within_transformations():
    """Spread leaves in `jit`, `vmap`, `grad` and `scan` are those of the tree."""
    tree = spread(P("x"), shapes=[(8,), (8, 3), (16,), (8, 2)])
    packed = pack(tree)
    assert_same(
        jax.tree.map(lambda x: x + 1, tree),
        jax.jit(lambda p: p.like(jax.tree.map(lambda x: x + 1, p.unpack())))(packed).unpack(),
    )
    gradient = jax.grad(lambda p: sum((x**2).sum() for x in p.unpack()))(packed).unpack()
    for x, y in zip(tree, gradient, strict=True):
        assert np.array_equal(2 * x, y)
    batch = jax.tree.map(lambda x: jnp.stack([x, x + 1]), packed)
    for x, y in zip(tree, batch.unpack(), strict=True):
        assert y.shape == (2, *x.shape)
        assert np.array_equal(x + 1, y[1])
    assert np.array_equal(batch[1][1], tree[1] + 1)
    last, _ = jax.lax.scan(
        lambda p, x: (p.like([leaf + x for leaf in p.unpack()]), None), packed, jnp.ones(3)
    )
    for x, y in zip(tree, last.unpack(), strict=True):
        assert np.array_equal(x + 3, y)
    with pytest.raises(ValueError, match="elementwise"):
        jax.tree.map(lambda x: x[0], packed).unpack()
