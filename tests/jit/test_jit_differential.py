"""Property-based comparison of jitted functions with plain JAX: everything observable is equal.

Random programs, which use every transformation, over random trees of arrays, numpy arrays, scalars
and keys; called several times, with changed arguments and configuration; on one device and on
eight. What is compared: values, dtypes, weak types, placement, aliasing, containers, donated
arguments, errors, warnings, and how often the Python function was traced.
"""

from __future__ import annotations

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_recipes import (
    CONTEXTS as SHARED_CONTEXTS,
    changes as changed_arrays,
    host_leaves,
    leaves_on,
    trees as trees_of,
    wide,
)
from jax.sharding import NamedSharding
from observe import total_hits
from proof import Proof
from recipes import Layer, P, Recipe, make_mesh, realise
from support import THOROUGH
from twins import Twins

pytestmark = pytest.mark.filterwarnings(
    "ignore:.with mesh.. context manager:DeprecationWarning",
    "ignore:Some donated buffers were not usable:UserWarning",
)

# --- Leaves and trees ----------------------------------------------------------------------------


def key(seed, impl):
    """A typed key."""
    return jax.random.key(seed, impl=impl)


def small(dtype):
    """A 0-dimensional array."""
    return jax.device_put(np.ones((), dtype))


arrays = leaves_on("uncommitted", "uncommitted", 0)
leaves = st.one_of(
    arrays, arrays, arrays, host_leaves(),
    st.sampled_from([1.5, 2, True, np.float32(3), np.int32(4), 2**31, -0.0]),
    st.builds(lambda s, i: Recipe(key, s, i), st.integers(0, 2), st.sampled_from(["threefry2x32",
                                                                                 "rbg"])),
)  # fmt: skip
#: What a leaf may become between two calls; some of these JAX refuses or moves.
changes = st.one_of(
    changed_arrays, leaves, st.sampled_from(["text", None, 1e300, np.float64(2)])
)


def trees(children):
    return trees_of(
        children, lambda inner: st.builds(Layer, inner, inner, st.sampled_from(["a", "b"]))
    )


# --- Programs ------------------------------------------------------------------------------------


def is_key(x):
    return jax.dtypes.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key)


def numbers(tree):
    """The leaves as float32 numbers."""
    return [
        (jax.random.bits(x) if is_key(x) else jnp.asarray(x)).astype(jnp.float32)
        for x in jax.tree.leaves(tree)
    ]


def total(tree):
    return sum((jnp.sin(x).sum() for x in numbers(tree)), jnp.float32(0))


def each(n):
    """Every leaf in its place, with its weak type."""
    return lambda tree: jax.tree.map(lambda x: x if is_key(x) else x * n, tree)


def nested(n):
    inner = jax.jit(lambda tree, k: [x + k for x in numbers(tree)], static_argnums=1)
    return lambda tree: (inner(tree, n), inner(tree, n + 1), inner(inner(tree, n), n))


def gradient(n):
    inner = jax.jit(lambda xs: total([x * n for x in xs]))
    return lambda tree: (jax.grad(inner)(numbers(tree)), jax.value_and_grad(inner)(numbers(tree)))


def batched(n):
    inner = jax.jit(lambda x: jnp.cos(x) * n)
    return lambda tree: [jax.vmap(inner)(jnp.atleast_1d(x)) for x in numbers(tree)]


def looped(n):
    def step(carry, x):
        return carry + total(x) * n, carry

    body = jax.jit(step)
    return lambda tree: jax.lax.scan(body, total(tree), jnp.arange(3.0))


def branching(n):
    return lambda tree: (
        jax.lax.cond(total(tree) > n, jax.jit(jnp.sin), jnp.cos, total(tree)),
        jax.lax.while_loop(lambda x: x < n, jax.jit(lambda x: x + 1), jnp.float32(0)),
    )


def custom(n):
    @jax.custom_vjp
    def function(x):
        return x * n

    function.defvjp(lambda x: (function(x), x), lambda x, g: (g * x * n,))
    return lambda tree: [jax.grad(lambda y: jax.jit(function)(y).sum())(x) for x in numbers(tree)]


def closure(n):
    constant = jnp.arange(4.0) * n
    return lambda tree: [x[..., None] + constant for x in numbers(tree)]


def partial(n):
    return functools.partial(lambda k, tree: [k * x for x in numbers(tree)], n)


class Program:
    """A method, and an object that is called."""

    def __init__(self, n):
        self.n = n

    def method(self, tree):
        return {"n": self.n, "total": total(tree) * self.n}


def method(n):
    return Program(n).method


def rematerialised(n):
    inner = jax.checkpoint(jax.jit(lambda xs: total(xs) * n))
    return lambda tree: (jax.grad(inner)(numbers(tree)), tree)


def random(n):
    return lambda tree: [
        jax.random.split(x, n) if is_key(x) else jax.random.key(n) for x in jax.tree.leaves(tree)
    ]


def eager(n):
    """What is computed while it is traced, of constants, by jitted functions and primitives."""
    inner = jax.jit(lambda x: x * n)
    return lambda tree: [inner(np.float32(2)) + inner(jnp.float32(1)), tree, jnp.zeros(n)]


def across(n):
    """shard_map over eight devices, of what can be divided among them."""
    mesh = make_mesh(("x", 8))
    inner = jax.shard_map(
        lambda x: x * n + jax.lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return lambda tree: [jax.jit(inner)(x) for x in numbers(tree) if x.ndim and x.shape[0] == 8]


def constrained(n):
    """Results with a sharding of their own."""
    place = NamedSharding(make_mesh(("x", 8)), P("x"))
    return lambda tree: [
        jax.lax.with_sharding_constraint(x * n, place)
        for x in numbers(tree)
        if x.ndim and x.shape[0] == 8
    ]


LOCAL = [
    each, each, nested, gradient, batched, looped, branching, custom, closure, partial, method,
    rematerialised, random, eager,
]  # fmt: skip
WIDE = [each, nested, gradient, closure, looped, across, constrained]
CONTEXTS = {
    **SHARED_CONTEXTS,
    "set_mesh": lambda: jax.set_mesh(make_mesh(("x", 8))),
    "an abstract mesh": lambda: jax.sharding.use_abstract_mesh(make_mesh(("x", 8)).abstract_mesh),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
}
contexts = st.sampled_from([*["plain"] * 5, *CONTEXTS])


@pytest.fixture
def proof():
    """Agreement in each context about results too."""
    made = Proof()
    yield made
    made.check(errors=["no_execution"], slow=set(CONTEXTS) - {"plain"})


def replace_leaf(data, tree, new):
    """The tree with one of its leaves replaced."""
    found, structure = jax.tree.flatten(tree, is_leaf=lambda x: x is None)
    if not found:
        return new
    found[data.draw(st.integers(0, len(found) - 1))] = new
    return jax.tree.unflatten(structure, found)


def check(proof, data, programs, children):
    """Twins are called several times, each with one of a few arguments and contexts."""
    program = data.draw(st.sampled_from(programs))
    n = data.draw(st.integers(1, 3))
    many = data.draw(st.booleans())
    some = [jnp.float32(i) for i in range(45)] if many else []
    options = {}
    if data.draw(st.integers(0, 3)) == 0:
        options["donate_argnums"] = 0
    if data.draw(st.booleans()):
        options["keep_unused"] = True
    options["static_argnames"] = ("static", "other")

    def make():
        inner = program(n)

        def function(tree, others, static=0, *, other=None, **kwargs):
            return inner(tree), others[:1], static, {k: v for k, v in kwargs.items()}

        return function

    twins = Twins(make, installed=True, **options)
    first = data.draw(trees(children))
    variants = [first]
    if data.draw(st.booleans()):
        variants.append(replace_leaf(data, first, data.draw(changes)))
    if data.draw(st.booleans()):
        variants.append(data.draw(trees(children)))
    named = data.draw(st.dictionaries(st.sampled_from(["scale", "bias"]), children, max_size=1))
    for _ in range(data.draw(st.integers(2, 5))):
        variant = data.draw(st.sampled_from(variants))
        static = data.draw(st.sampled_from([(), (), (0,), (1,), (True,), (1.0,), ("s",)]))
        other = data.draw(st.sampled_from([{}, {}, {"other": 2}, {"other": (1, "a")}]))
        context = data.draw(contexts)
        for _ in range(data.draw(st.integers(1, 2))):
            made: dict = {}

            def args(variant=variant, static=static, made=made):
                made.clear()
                return (realise(variant, made), some, *static)

            before = total_hits()
            seen = twins(
                args, lambda other=other, made=made: {**realise(named, made), **other},
                CONTEXTS[context],
            )
            proof.note(context, seen, total_hits() - before)


@pytest.mark.slow
@hypothesis.settings(max_examples=80 if THOROUGH else 12)
@hypothesis.given(data=st.data())
def test_on_one_device(proof, data):
    """Any program over any tree."""
    check(proof, data, LOCAL, leaves)


@pytest.mark.slow
@hypothesis.settings(max_examples=25 if THOROUGH else 5)
@hypothesis.given(data=st.data())
def test_on_eight_devices(proof, data):
    """Programs over sharded and replicated arrays."""
    check(proof, data, WIDE, wide)


@pytest.mark.slow
@hypothesis.settings(max_examples=25 if THOROUGH else 5)
@hypothesis.given(data=st.data())
def test_inside_transformations(data):
    """Jitted functions of jaxmarshal inside of traces of plain JAX, between calls outside."""
    program = data.draw(st.sampled_from([nested, gradient, looped, custom, closure, eager]))
    n = data.draw(st.integers(1, 3))
    tree = data.draw(trees(arrays))
    twins = Twins(lambda: program(n), installed=data.draw(st.booleans()))

    def through(wrap):
        found = []
        for function in (twins.plain, twins.fast):
            result = wrap(function)(realise(tree, {}))
            found.append([(str(jax.typeof(x)), np.asarray(x).tolist())
                          for x in jax.tree.leaves(result)])  # fmt: skip
        assert found[0] == found[1]
        assert twins.traces[0] == twins.traces[1]

    wrappers = [
        lambda f: f, lambda f: f, lambda f: jax.jit(f), lambda f: jax.jit(lambda t: (f(t), f(t))),
        lambda f: lambda t: jax.grad(lambda s: total(f(jax.tree.map(lambda x: x * s, t))))(2.0),
        lambda f: lambda t: jax.vmap(lambda s: f(jax.tree.map(lambda x: x * s, t)))(jnp.ones(2)),
        lambda f: lambda t: jax.eval_shape(f, t) and f(t),
        lambda f: lambda t: jax.jvp(
            lambda s: total(f(jax.tree.map(lambda x: x * s, t))), (2.0,), (1.0,)),
    ]  # fmt: skip
    for wrap in data.draw(st.lists(st.sampled_from(wrappers), min_size=1, max_size=5)):
        through(wrap)
