"""Packed trees are the trees they stand for, and a packed carry computes what the step does."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import pickle
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from child import run_code
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from support import column_major, named

import jaxmarshal
from jaxmarshal import Packed, carry, pack
from jaxmarshal.packing import _host
from jaxmarshal.packing._carry import Carry

DTYPES = [
    np.float32, np.float16, jnp.bfloat16, np.int32, np.int8, np.uint16, np.bool_, np.complex64,
    jnp.int4, jnp.float8_e4m3fn,
]  # fmt: skip


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name"]
)
@dataclasses.dataclass
class Layer:
    """A custom node with static data."""

    w: object
    b: object
    name: str = ""


def make(dtype, shape, seed=0):
    """An array with arbitrary bits that are numbers."""
    numbers = np.random.default_rng(seed).integers(-5, 5, shape)
    return jnp.asarray(numbers.astype(np.float32), dtype)


def bits(leaf):
    """Everything about a leaf that has to survive."""
    if not isinstance(leaf, jax.Array):
        return leaf
    words = leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(leaf)
    return (
        str(leaf.dtype), leaf.shape, jax.typeof(leaf).weak_type, leaf.committed, leaf.sharding,
        np.asarray(words).tobytes(),
    )  # fmt: skip


def assert_same(tree, other):
    """The same structure, and the same bits, types and placement of every leaf."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        if isinstance(a, jax.Array):
            assert bits(a) == bits(b)
        else:
            assert a is b


arrays = st.builds(
    make, st.sampled_from(DTYPES), st.sampled_from([(), (0,), (3,), (2, 3), (2, 0, 1), (5, 1)]),
    st.integers(0, 3),
)  # fmt: skip
@functools.cache
def shared(n):
    """One of a few arrays that occur in several places, and in several trees."""
    return make(DTYPES[n], (2, n), n)


leaves = st.one_of(
    arrays,
    st.builds(shared, st.integers(0, 2)),
    st.builds(lambda n: jnp.asarray(n), st.sampled_from([1, 1.5, 2j, True])),    # weakly typed
    st.builds(lambda n: jax.random.key(n), st.integers(0, 3)),
    st.builds(lambda n: jax.random.split(jax.random.key(n, impl="rbg"), 2), st.integers(0, 3)),
    st.builds(lambda n: jax.device_put(np.full(3, n), jax.devices()[n]), st.integers(0, 2)),
    st.sampled_from([None, 3, 2.5, "static", np.int32(4), np.arange(3.0), len]),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Layer, inner, inner, st.sampled_from(["x", "y"])),
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(trees, st.integers(1, 4), st.sampled_from([0, 8, 4096]))
@settings(max_examples=60)
def test_round_trip(tree, least, threshold):
    """What is unpacked is what was packed, whole, in parts, copied and pickled."""
    packed = pack(tree, least=least, threshold=threshold)
    assert_same(tree, packed.unpack())
    assert_same(tree, copy.copy(packed).unpack())
    again = jax.tree.unflatten(*reversed(jax.tree.flatten(packed)))
    assert_same(tree, again.unpack())
    assert jax.tree.structure(pack(tree, least=least, threshold=threshold)) == jax.tree.structure(
        packed
    )
    if isinstance(tree, dict):
        for key, value in tree.items():
            part = packed[key]
            assert_same(value, part.unpack() if hasattr(part, "unpack") else part)


@pytest.mark.slow
@given(trees, st.booleans())
@settings(max_examples=40)
def test_carry_differential(tree, donate):
    """A step over integers and movements of data gives the same bits packed and not packed."""
    on_first = jax.tree.map(
        lambda x: jax.device_put(np.asarray(x)) if isinstance(x, jax.Array) and x.committed else x,
        tree,
    )
    data = [x for x in jax.tree.leaves(on_first) if not (isinstance(x, str) or callable(x))]

    def change(x):
        exact = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.integer)
        return lax.bitwise_xor(x, jnp.ones_like(x)) if exact else x

    def step(leaves, n):
        return [change(x) for x in leaves], n + 1

    packed_step = carry(step, donate=donate, least=1)
    packed = pack(data, least=1)
    expected = data
    for n in range(2):
        packed, count = packed_step(packed, jnp.int32(n))
        expected, other = jax.jit(step)(expected, jnp.int32(n))
        assert count == other
    for a, b in zip(jax.tree.leaves(packed.unpack()), jax.tree.leaves(expected), strict=True):
        assert bits(a) == bits(b)




def model():
    """A tree with many leaves of two shapes."""
    layers = [Layer(make(np.float32, (3, 3), i), make(np.float32, (3,), i)) for i in range(40)]
    return {"layers": layers, "count": jnp.zeros((), jnp.int32), "none": None}


def update(tree, x=1):
    """Elementwise."""
    return jax.tree.map(lambda leaf: leaf * 2 + x, tree)


def test_what_it_is():
    """One line says how many leaves, bytes, buffers and arrays."""
    assert repr(pack(model())) == "Packed(81 leaves, 1.9 kB: 1 buffers + 1 arrays)"
    assert repr(pack([1, None])) == "Packed(1 leaves, 0 B: 0 buffers + 1 arrays)"
    with pytest.raises(TypeError, match="made by"):
        Packed()


def test_parts():
    """Index and attribute read a leaf, a subtree, or what is no data."""
    tree = {"a": model(), "f": len, "empty": []}
    packed = pack(tree)
    assert_same(tree["a"]["layers"][7].w, packed["a"]["layers"][7].w)
    assert_same(tree["a"]["layers"][2:4], packed["a"]["layers"][2:4].unpack())
    assert packed["a"]["layers"][7].name == "" and packed["f"] is len and packed["empty"] == []
    assert len(packed["a"]["layers"]) == 40 and sorted(packed["a"]) == ["count", "layers", "none"]
    assert [bits(x.b) for x in packed["a"]["layers"]] == [bits(x.b) for x in tree["a"]["layers"]]
    with pytest.raises(KeyError):
        packed["b"]
    with pytest.raises(AttributeError, match="method of the packed tree"):
        _ = packed["a"].keys
    assert pack(Layer(jnp.ones(2), [jnp.zeros(3)])).w.shape == (2,)
    key = jax.random.key(3)
    assert bits(pack([key] * 4)[2]) == bits(key)


def test_pickle():
    """A pickle holds the buffers, and what comes back has the very same structure."""
    packed = pack(model())
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(packed, protocol))
        assert_same(packed.unpack(), again.unpack())
        assert jax.tree.structure(packed) == jax.tree.structure(again)


def test_transformations():
    """`jit`, `grad`, `vmap`, `scan`, `device_put` and `jax.tree.map` take it as a pytree."""
    tree = {"a": [make(np.float32, (i + 1,), i) for i in range(6)]}
    packed = pack(tree)

    def loss(tree):
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))

    gradients = jax.grad(lambda p: loss(p.unpack()))(packed)
    assert_same(jax.grad(loss)(tree), gradients.unpack())
    assert_same(update(tree), jax.jit(lambda p: p.like(update(p.unpack())))(packed).unpack())
    twice = jax.tree.map(jnp.add, packed, packed)
    assert_same(jax.tree.map(jnp.add, tree, tree), twice.unpack())
    batch = jax.tree.map(lambda x: jnp.stack([x, x + 1, x + 2]), packed)
    batched = jax.tree.map(lambda x: jnp.stack([x, x + 1, x + 2]), tree)
    assert_same(batched, batch.unpack())
    assert_same(batched["a"][3], batch["a"][3])
    doubled = jax.vmap(lambda p: p.like(update(p.unpack())))(batch)
    assert_same(update(batched), doubled.unpack())
    last, _ = lax.scan(lambda p, x: (p.like(update(p.unpack(), x)), None), packed, jnp.ones(3))
    expected, _ = lax.scan(lambda t, x: (update(t, x), None), tree, jnp.ones(3))
    assert_same(expected, last.unpack())
    there = jax.device_put(packed, jax.devices()[3])
    assert_same(jax.device_put(tree, jax.devices()[3]), there.unpack())
    assert_same(there.unpack()["a"][5], there["a"][5])
    host = jax.device_get(packed)
    assert np.array_equal(host.unpack()["a"][4], np.asarray(tree["a"][4]))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), packed)
    assert half["a"][2].dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="elementwise"):
        jax.tree.map(jnp.sum, packed).unpack()


def test_integers_have_float0_gradients():
    """Buffers of integers have the gradients that integers have."""
    tree = {"n": [jnp.arange(3)] * 4, "x": [jnp.ones(2)] * 4}
    got = jax.grad(lambda p: sum(map(jnp.sum, p.unpack()["x"])), allow_int=True)(pack(tree))
    assert got.unpack()["n"][0].dtype == jax.dtypes.float0
    assert_same(got.unpack()["x"], [jnp.ones(2)] * 4)


def test_like_checks():
    """What does not fit is an error that says why."""
    packed = pack([jnp.ones(3)] * 4)
    with pytest.raises(TypeError, match="expected a tree"):
        packed.like([jnp.ones(3)] * 5)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        packed.like([jnp.ones(3)] * 3 + [jnp.ones(4)])
    with pytest.raises(ValueError, match="several dtypes"):
        packed.like([jnp.ones(3)] * 3 + [jnp.ones(3, jnp.int32)])


def test_what_stays_loose():
    """What a flat buffer cannot stand for is the object it was."""
    spread = jax.device_put(np.zeros(8, np.float32), named("x"))
    columns = column_major()
    loose = [spread, columns, np.zeros(3), 2, 1.5, np.zeros(2, jax.dtypes.float0)]
    small = [jnp.ones(2)] * 4
    packed = pack([small, loose, jnp.zeros(10_000)])
    assert repr(packed).endswith("1 buffers + 7 arrays)")
    assert all(a is b for a, b in zip(packed.unpack()[1], loose, strict=True))
    assert repr(pack(small, least=5)).endswith("0 buffers + 4 arrays)")


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_other_memory(kind):
    """What is not in the default memory stays there, loose, beside what is packed."""
    device = jax.devices()[0]
    if kind not in {memory.kind for memory in device.addressable_memories()}:
        pytest.skip("no such memory here")
    if kind == device.default_memory().kind:
        pytest.skip("the default memory here")
    there = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
    tree = {"there": [jax.device_put(np.full(3, i), there) for i in range(4)]}
    tree["here"] = [make(np.int32, (3,), i) for i in range(4)]
    packed = pack(tree)
    assert repr(packed).endswith("1 buffers + 4 arrays)")
    assert all(a is b for a, b in zip(packed.unpack()["there"], tree["there"], strict=True))
    assert_same(tree, packed.unpack())


def test_placements():
    """Copies on several devices stay so, and groups of several placements are unpacked as such."""
    where = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec())
    tree = [
        [jax.device_put(np.arange(3) + i, place) for i in range(4)]
        for place in (None, jax.devices()[1], where)
    ]
    packed = pack(tree)
    assert repr(packed).endswith("3 buffers + 0 arrays)")
    assert_same(tree, packed.unpack())
    assert_same(tree[2][3], packed[2][3])
    step = carry(lambda t, x: jax.tree.map(lambda a: a + x.sum(), t))
    spread = jax.device_put(np.arange(8), named("x"))
    state = step(step(pack(tree[2]), spread), spread)
    assert_same([x + 56 for x in tree[2]], state.unpack())


# --- carry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("donate", [False, True])
def test_carry(donate):
    """The same results as without packing, from a tree or a Packed, with hits of the fast path."""
    plain = jax.jit(lambda t, x: (update(t, x), x))
    fast = carry(lambda t, x: (update(t, x), x), donate=donate)
    tree, state = model(), model()
    traces = []
    carry(lambda t: traces.append(1) or t)(state)
    assert traces == [1]
    for i in range(6):
        tree, a = plain(tree, jnp.int32(i))
        state, b = fast(state, jnp.int32(i))
        assert type(state) is Packed and a == b
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(state.unpack()), strict=True):
        assert bits(x)[:3] == bits(y)[:3]
        assert np.allclose(x, y, rtol=1e-6)


def test_after_clear_caches():
    """Steps, leaves and whole trees are what they were before JAX forgot what it had compiled."""
    tree, fast = [make(np.int32, (3,), i) for i in range(12)], carry(update)
    packed, expected = pack(tree), update(tree)
    before = fast(packed)
    jax.clear_caches()
    for state in (fast(packed), fast(tree), packed.like(expected), before):
        assert_same(expected, state.unpack())
        assert_same(expected[5], state[5])
    jax.clear_caches()
    assert_same(update(expected), fast(before).unpack())


@pytest.fixture
def slow_calls(monkeypatch):
    """A list that grows with each call of a carry that goes through Python."""
    calls, any_call = [], Carry._any_call
    monkeypatch.setattr(
        Carry, "_any_call", lambda *args, **keywords: calls.append(1) or any_call(*args, **keywords)
    )
    return calls


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("least", [1, 100])
def test_calls_like_one_before(slow_calls, donate, least):
    """Only the first call with a carry goes through Python, whatever the other arguments are."""

    def step(tree, *more, k=0):
        return update(tree, sum(map(jnp.sum, more)) + k), (k, len(more))

    fast, plain = carry(step, donate=donate, least=least), jax.jit(step)
    tree = expected = [make(np.int32, (3,), i) for i in range(3)]
    state = tree = jax.tree.map(jnp.copy, tree)
    calls = (
        ((), {}), ((jnp.int32(1),), {}), ((np.arange(3), 2), {}), ((), {"k": 4}), ((3,), {"k": 4}),
        ((1,) * 15, {}), ((1,) * 14, {"k": 4}),
    )  # fmt: skip
    for args, keywords in calls:
        state, out = fast(state, *args, **keywords)
        expected, other = plain(expected, *args, **keywords)
        assert_same(expected, state.unpack())
        assert_same(other, out)
    assert len(slow_calls) == 1
    for args, keywords in (((1,) * 16, {}), ((1,) * 15, {"k": 4}), ((1,) * 40, {"k": 4})):
        state, out = fast(state, *args, **keywords)    # more arguments than there is room for
        expected, other = plain(expected, *args, **keywords)
        assert_same(expected, state.unpack())
        assert_same(other, out)
    assert len(slow_calls) == 4
    fast.clear_cache()
    for _ in range(2):
        state, expected = fast(state)[0], plain(expected)[0]
        assert_same(expected, state.unpack())
    assert len(slow_calls) == 5


def test_wrong_calls():
    """They are errors of Python, before anything is computed and afterwards."""
    step = carry(lambda tree, x: tree)
    for _ in range(2):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'state'"):
            step()
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'state'"):
            step(tree=1)
        state = step([jnp.ones(2)] * 4, 1)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            step(state)
        with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
            step(state, 1, y=2)
        assert_same(step(state, 1).unpack(), step.__call__(state, 1).unpack())
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'state'"):
            step(state, 1)    # the interpreter leaves its arguments behind, where none are next
            step()


def test_a_consumed_carry():
    """Each use of a carry that was donated says so; others that share its arrays do, too."""
    step = carry(update, donate=True)
    packed = pack(model())
    shared = jax.tree.map(lambda x: x, packed)
    after = step(packed)
    for use in (step, jax.jit(lambda p: p), Packed.unpack, lambda p: p["count"], pickle.dumps):
        with pytest.raises(RuntimeError, match="donated"):
            use(packed)
    assert "consumed" in repr(packed)
    with pytest.raises(RuntimeError, match="deleted or donated"):
        step(shared)
    assert_same(update(model()), after.unpack())
    last = step(after)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this Packed was donated"):
            step(after)
    assert_same(update(update(model())), last.unpack())


def test_donation_within_transformations():
    """Nothing is donated there, so that a carry may be used again."""
    step = carry(lambda tree: [2 * x for x in tree], donate=True)

    def twice(tree):
        state = step(tree)
        once = step(state)
        return once.unpack(), step(state).unpack()

    tree = [make(np.int32, (3,), i) for i in range(4)]
    assert_same(([4 * x for x in tree],) * 2, jax.jit(twice)(tree))


def test_donation_and_host_data():
    """Both at once: the carry is consumed, host data stay as they are."""
    fast = carry(lambda tree, batch: (update(tree, batch["k0"].sum()), batch), donate=True,
                 pack_host=True)    # fmt: skip
    tree = [make(np.int32, (3,), i) for i in range(4)] + [jnp.zeros(10_000, jnp.int32)]
    batch = {f"k{i}": np.arange(8, dtype=np.int32) + i for i in range(9)}
    state = pack(jax.tree.map(jnp.copy, tree))
    for _ in range(3):
        before, arrays = state, jax.tree.leaves(state)
        state, out = fast(state, batch)
        assert all(x.is_deleted() for x in arrays)
        with pytest.raises(RuntimeError, match="this Packed was donated"):
            fast(before, batch)
        tree = update(tree, batch["k0"].sum())
        assert_same(jax.tree.map(jnp.asarray, batch), out)
        batch["k0"][0] += 1
    assert_same(tree, state.unpack())


@pytest.mark.parametrize("kind", ["carry", "jit"])
def test_one_transfer(kind, capfd):
    """JAX itself says how often host data go to a device: once, and not nine times."""
    if kind == "carry":
        fast = carry(lambda tree, batch: (tree, batch), pack_host=True)
    else:
        fast = jaxmarshal.jit(lambda tree, batch: (tree, batch), pack_host=True)
    plain = jax.jit(lambda tree, batch: (tree, batch))
    tree = pack([jnp.ones(2)] * 4)
    batch = {f"k{i}": np.arange(8, dtype=np.float32) + i for i in range(9)}
    for function, count in ((plain, 9), (fast, 1)):
        function(tree, 1)    # a call of another kind, in which nothing is packed
        function(tree, batch)
        capfd.readouterr()
        with jax.transfer_guard_host_to_device("log"):
            function(tree, batch)
        assert capfd.readouterr().err.count("host-to-device transfer") == count


def test_errors_name_the_leaf():
    """What changes is named, with both types; and the carry is not consumed by an error."""
    tree = {"a": [jnp.ones(3)] * 4, "n": jnp.int32(0)}
    packed = pack(tree)

    def fails(change, match):
        with pytest.raises(TypeError, match=match):
            carry(change, donate=True)(packed)

    fails(lambda t: {**t, "n": jnp.float32(1)}, r"\['n'\] was int32\[\] and became float32\[\]")
    fails(lambda t: {**t, "a": t["a"][:3]}, r"carry\['a'\]\[3\] was given and not returned")
    fails(lambda t: ({**t, "z": 1}, 2), r"carry\['z'\] was returned and not given")
    fails(lambda t: {**t, "a": tuple(t["a"])}, "structure")
    fails(lambda t: {**t, "n": 1}, "weakly typed")
    assert_same(tree, packed.unpack())
    for wrong in (3, "f"):
        with pytest.raises(TypeError, match="expected a function"):
            carry(wrong)
    with pytest.raises(ValueError, match="cannot be static"):
        carry(update, static_argnums=0)
    with pytest.raises(ValueError, match="cannot be static"):
        carry(update, static_argnames="tree")


@pytest.mark.parametrize("value", [2, 1.5, 2j])
@pytest.mark.parametrize("count", [4, 9, 10, 13])
def test_weak_types_of_many(value, count):
    """However many there are: what a step makes of them depends on it."""
    tree = [jnp.asarray(value) for _ in range(count)] + [jnp.ones(3, jnp.bfloat16)]
    assert_same(tree, pack(tree).unpack())

    def step(tree, x):
        return tree, [leaf * x for leaf in tree]

    x = jnp.ones((), jnp.bfloat16)
    assert_same(jax.jit(step)(tree, x)[1], carry(step)(tree, x)[1])


@pytest.mark.parametrize("dtype", [
    name for name in (
        "float16", "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
        "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    )
    if hasattr(jnp, name)
])  # fmt: skip
def test_all_bits_of_small_floats(dtype):
    """Those of NaNs too, which XLA changes where it moves such floats."""
    dtype = np.dtype(getattr(jnp, dtype))
    numbers = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    tree = [jax.device_put(numbers.reshape(shape)) for shape in ((-1,), (2, -1), (-1, 4))] * 4
    packed = pack(tree, threshold=1 << 20)
    assert len(jax.tree.leaves(packed)) == 1
    assert_same(tree, packed.unpack())
    assert_same(tree, [packed[i] for i in range(len(tree))])
    assert_same(tree, packed.like(tree).unpack())


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_two_bits_are_loose(dtype):
    """XLA ends the process over buffers of them."""
    if not hasattr(jnp, dtype):
        pytest.skip("not in this JAX")
    done = run_code(f"""
        import jax, numpy as np
        import jax.numpy as jnp
        from jaxmarshal import carry, pack
        numbers = np.array([0, 1, 1, 0]).astype(np.dtype(jnp.{dtype}))
        tree = [jax.device_put(numbers) for _ in range(5)] + [jnp.ones(3)] * 4
        packed = pack(tree)
        assert all(x is y for x, y in zip(packed.unpack()[:5], tree, strict=False))
        carried = carry(lambda tree: tree)(tree).unpack()
        assert all((np.asarray(x) == numbers).all() for x in carried[:5])
        print(packed)
    """)
    assert "1 buffers + 5 arrays" in done.stdout


def test_what_xla_makes_of_it():
    """At the level of optimization of programs, which the other tests do without."""
    done = run_code("""
        import jax, numpy as np
        import jax.numpy as jnp
        from jaxmarshal import carry, pack

        def made(dtype, seed):
            random = np.random.default_rng(seed)
            shapes = [(3,)] * 30 + [(4, 4)] * 30 + [()] * 30 + [(7, 2)] * 3
            return [jnp.asarray(random.integers(-9, 9, shape), dtype) for shape in shapes]

        def exact(tree):    # integers, and movements of what is none
            return {
                "i": [x * 3 - y for x, y in zip(tree["i"], tree["i"][1:30] + tree["i"][:1] +
                                                tree["i"][31:60] + tree["i"][30:31])],
                "f": tree["f"][:30][::-1] + tree["f"][30:60][::-1] + tree["f"][60:],
            }

        for donate in (False, True):
            tree = {"i": made(jnp.int32, 0)[:60], "f": made(jnp.float32, 1)}
            step = carry(exact, donate=donate)
            expected, state = tree, pack(tree)
            for _ in range(3):
                expected, state = jax.jit(exact)(expected), step(state)
            for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(state.unpack())):
                assert x.dtype == y.dtype and x.tobytes() == y.tobytes()

        def train(state):
            def loss(weights):
                x = jnp.ones((2, 4))
                for w in weights:
                    x = jnp.tanh(x @ w) + x
                return jnp.mean(x**2)
            weights, moments = state
            gradients = jax.grad(loss)(weights)
            moments = [0.9 * m + g for m, g in zip(moments, gradients)]
            return [w - 0.01 * m for w, m in zip(weights, moments)], moments

        weights = [x / 20 for x in made(jnp.float32, 2)[30:60]]
        expected = weights, [jnp.zeros_like(w) for w in weights]
        step, state = carry(train), pack(expected)
        for _ in range(5):
            expected, state = jax.jit(train)(expected), step(state)
        for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(state.unpack())):
            assert np.allclose(x, y, rtol=1e-5, atol=1e-7)
        print("compared")
    """, XLA_FLAGS=None)
    assert done.stdout == "compared\n"


def test_static_leaves():
    """Functions and texts in a tree are part of its structure."""
    tree = {"f": jnp.sin, "x": [jnp.ones(2)] * 4}
    step = carry(lambda t: {**t, "x": [t["f"](x) for x in t["x"]]})
    assert step(step(tree)).unpack()["f"] is jnp.sin
    with pytest.raises(TypeError, match=r"\['f'\]"):
        carry(lambda t: {**t, "f": jnp.cos})(tree)


@pytest.mark.parametrize("pack_host", [False, True])
def test_arguments(pack_host, monkeypatch):
    """Static arguments by position and name, keywords, numbers, several signatures."""
    monkeypatch.setattr(_host, "LEAST", 2)
    traces = []

    def step(tree, x, flag, *, k=1, mode="add"):
        traces.append((flag, mode))
        return update(tree, x["a"].sum() if flag else k), (x, mode == "add")

    tree = [make(np.int32, (3,), i) for i in range(4)]
    fast = carry(step, static_argnames=("flag", "mode"), pack_host=pack_host)
    plain = jax.jit(step, static_argnames=("flag", "mode"))
    x = {"a": np.arange(3, dtype=np.int32), "b": np.ones(2, np.float32)}
    y = {"a": np.arange(4, dtype=np.int32), "b": np.ones(2, np.float32)}
    for call in (
        lambda f: f(tree, x, True), lambda f: f(tree, x, flag=False, k=3),
        lambda f: f(tree, y, True, mode="sub"), lambda f: f(tree, x, 1, mode="add", k=2),
    ):  # fmt: skip
        state, out = call(fast)
        expected, other = call(plain)
        assert_same(expected, state.unpack())
        assert_same(other[0], out[0])
        assert out[1] == other[1]
    before = len(traces)
    fast(tree, {name: value + 1 for name, value in x.items()}, True)
    assert len(traces) == before


HOST = {
    "f4": np.array([1.5, np.nan, -0.0], np.float32), "f8": np.array([1e-300, 2.0]),
    "i8": np.array([[1, 2**40], [-3, 4]]), "u1": np.arange(7, dtype=np.uint8),
    "b": np.array([True, False, True]), "c8": np.array([1 + 2j, -3j], np.complex64),
    "f2": np.arange(5, dtype=np.float16), "bf": np.arange(3).astype(ml_dtypes.bfloat16),
    "empty": np.zeros((0, 3), np.int32), "zero-d": np.array(3, np.int16),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "strided": np.arange(10, dtype=np.int32)[::3], "large": np.zeros(20_000, np.float32),
    "c16": np.array([1 + 2j]), "number": 3, "array": jnp.ones(2),
}  # fmt: skip


@pytest.mark.parametrize("x64", [False, True])
def test_host_data_bit_for_bit(x64):
    """Host arrays that travel in one buffer are what JAX makes of them."""
    step = carry(lambda t, batch: (t, batch), pack_host=True)
    tree = [jnp.ones(2, jnp.float32)] * 4
    with jax.enable_x64(x64):
        _, got = step(tree, HOST)
        _, expected = jax.jit(lambda t, batch: (t, batch))(tree, HOST)
        assert_same(expected, got)
        HOST["f4"][0] += 1
        _, got = step(tree, HOST)
        assert got["f4"][0] == HOST["f4"][0]
    with jax.enable_x64(not x64):
        _, got = step(tree, HOST)
        assert got["f8"].dtype == (np.float32 if x64 else np.float64)


def test_decorator_and_lower():
    """With and without options, by name, and ahead of time."""

    @carry(donate=False, static_argnums=1)
    def step(tree, n):
        """Adds."""
        return update(tree, n)

    assert step.__name__ == "step" and step.__doc__ == "Adds."
    tree = [jnp.ones(2, jnp.float32)] * 4
    assert "concatenate" in step.lower(tree, 3).as_text()
    assert_same(update(tree, 3), step(tree, 3).unpack())
    step.clear_cache()
    assert_same(update(tree, 3), step(tree, 3).unpack())


def test_within_transformations():
    """A carried step may be a part of a larger function."""
    tree = [make(np.float32, (3,), i) for i in range(40)]
    step = carry(lambda t: [2 * x for x in t], donate=True)
    got = jax.jit(lambda t: step(step(t)).unpack())(tree)
    assert_same([4 * x for x in tree], got)
    gradient = jax.grad(lambda t: sum(x.sum() for x in step(t).unpack()))(tree)
    assert_same([jnp.full(3, 2, jnp.float32)] * 40, gradient)
    many = [jnp.stack([x, x]) for x in tree]
    assert_same([2 * x for x in many], jax.vmap(lambda t: step(t).unpack())(many))


def test_nothing_stays_alive():
    """A loop leaves no array behind, and plans die with what they belong to."""
    step = carry(update)
    state = step(step(model()))
    del state
    gc.collect()
    before = len(jax.live_arrays())
    state = pack(model())
    for _ in range(5):
        state = step(state)
    del state
    gc.collect()
    assert len(jax.live_arrays()) == before


def test_deleted_buffers():
    """An array that somebody deleted is named as such."""
    packed = pack([jnp.ones(2)] * 4)
    jax.tree.leaves(packed)[0].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        carry(update)(packed)
    with pytest.raises(RuntimeError, match="deleted"):
        packed.unpack()
    step = carry(update)
    for least in (1, 100):
        packed = step(pack([jnp.ones(2)] * 4, least=least))
        step(packed)
        jax.tree.leaves(packed)[0].delete()
        with pytest.raises(RuntimeError, match="an array of this carry was deleted"):
            step(packed)


def test_threads(monkeypatch):
    """Several threads may compile and run the same carry."""
    monkeypatch.setattr(_host, "LEAST", 1)
    step = carry(lambda t, x: update(t, x), pack_host=True)
    results = [None] * 8

    def work(i):
        state = [make(np.int32, (3,), i) for _ in range(4)]
        for _ in range(5):
            state = step(state, np.ones(3, np.int32))
        results[i] = state.unpack()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(results):
        expected = [make(np.int32, (3,), i) for _ in range(4)]
        for _ in range(5):
            expected = update(expected, np.ones(3, np.int32))
        assert_same(expected, result)


def test_import_touches_nothing(fresh):
    """Importing and making a carry initialise no backend."""
    source = "import jaxmarshal; from jax._src import xla_bridge\n"
    source += "jaxmarshal.carry(lambda t: t); jaxmarshal.pack\n"
    assert fresh(source + "result = len(xla_bridge._backends)") == 0


def test_installed():
    """It works the same with everything installed."""
    with jaxmarshal.installed():
        test_carry(True)


@pytest.mark.parametrize("switch", ["off", None])
def test_a_step_is_left_to_jax_where_no_words_are_read(switch):
    """Without plans the compiled step is plain JAX's own; its results are the same."""
    code = """
        import jax.numpy as jnp
        import jaxmarshal
        step = jaxmarshal.carry(lambda state: [x + 1 for x in state], donate=True)
        state = [jnp.zeros(2), jnp.zeros(2)]
        for _ in range(4):
            state = step(state)
        found = jaxmarshal.stats()["jit"]
        print(state.unpack()[1].tolist(), found["hits"] > 0, found["misses"] > 0)
    """
    used = switch is None
    done = run_code(code, JAXMARSHAL_OBJECT_LAYOUT=switch)
    assert done.stdout == f"[4.0, 4.0] {used} {used}\n"
