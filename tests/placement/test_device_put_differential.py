"""Property-based comparison of `device_put` with plain JAX: everything observable is equal."""

from __future__ import annotations

import contextlib

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from observe import observe
from proof import Proof
from recipes import P, Pair, Recipe, leaves, make_mesh, pool, realise, trees
from support import aligned

import jaxmarshal

# `with mesh:` is one of the contexts a call may be in, whatever JAX thinks of it.
pytestmark = pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning")

TARGETS = [
    lambda: None,
    lambda: None,
    lambda: jax.devices()[0],
    lambda: jax.devices()[3],
    lambda: SingleDeviceSharding(jax.devices()[0]),
    lambda: SingleDeviceSharding(jax.devices()[5]),
    lambda: SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"),
    lambda: SingleDeviceSharding(jax.devices()[1], memory_kind="unpinned_host"),
    lambda: NamedSharding(make_mesh(("x", 8)), P("x")),
    lambda: NamedSharding(make_mesh(("x", 8)), P()),
    lambda: NamedSharding(make_mesh(("x", 4), ("y", 2)), P("x", "y")),
    lambda: NamedSharding(make_mesh(("x", 4), ("y", 2)), P(("x", "y"))),
    lambda: NamedSharding(make_mesh(("x", 4), ("y", 2)), P(None, "y")),
    lambda: NamedSharding(make_mesh(("x", 2)), P("x")),
    lambda: NamedSharding(make_mesh(("x", 1)), P("x")),
]
ODD_TARGETS = [
    lambda: P("x"),
    lambda: "cpu",
    lambda: 3,
    lambda: jax.sharding.PartitionSpec(),
    lambda: object,
]

targets = st.integers(0, 19).flatmap(
    lambda n: st.sampled_from(ODD_TARGETS if n == 0 else TARGETS)
).map(lambda make: make())


@st.composite
def prefixes(draw, tree, depth=2):
    """A tree of targets: usually a prefix of `tree`, sometimes one that does not fit."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(targets)
    if isinstance(tree, Pair):
        return Pair(*[draw(prefixes(child, depth - 1)) for child in tree])
    if type(tree) is tuple or type(tree) is list:
        return type(tree)(draw(prefixes(child, depth - 1)) for child in tree)
    if type(tree) is dict:
        return {key: draw(prefixes(child, depth - 1)) for key, child in tree.items()}
    if draw(st.integers(0, 9)) == 0:
        return [draw(targets)]
    return draw(targets)


CONTEXTS = {
    "plain": contextlib.nullcontext,
    "x64": lambda: jax.enable_x64(True),
    "another default device": lambda: jax.default_device(jax.devices()[2]),
    "a platform as default device": lambda: jax.default_device("cpu"),
    "disallow": lambda: jax.transfer_guard("disallow"),
    "disallow_explicit": lambda: jax.transfer_guard("disallow_explicit"),
    "allow": lambda: jax.transfer_guard("allow"),
    "debug_nans": lambda: jax.debug_nans(True),
    "disable_jit": lambda: jax.disable_jit(),
    "matmul precision": lambda: jax.default_matmul_precision("highest"),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "a mesh": lambda: make_mesh(("x", 8)),
    "an abstract mesh": lambda: jax.sharding.use_abstract_mesh(make_mesh(("x", 8)).abstract_mesh),
    "numpy's errors": lambda: np.errstate(all="raise"),
}
contexts = st.sampled_from(["plain", "plain", *CONTEXTS])

options = st.integers(0, 14).flatmap(
    lambda n: st.sampled_from(
        [{"may_alias": True}, {"may_alias": False}, {"src": jax.devices()[0]},
         {"may_alias": True, "donate": True}, {"donate": None}]
    ) if n == 0 else st.just({})
)  # fmt: skip


@pytest.fixture
def proof():
    """Agreement in each context about results too, and about calls that were fast."""
    made = Proof()
    yield made
    made.check(errors=["disallow_explicit"], slow=["disallow"])


def compare(proof, tree, device, context, keywords):
    """Reference once, then jaxmarshal twice: the call that records, and the one that may hit."""

    def outcome(function):
        return observe(
            function, realise(tree, {}), device, context=CONTEXTS[context], **keywords
        )

    proof.compare(
        context, lambda: outcome(jax.device_put), lambda: outcome(jaxmarshal.device_put)
    )


@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts(proof, context):
    """One call of each kind in each context, which is entered."""
    proof.enough = 1
    for tree in (Recipe(aligned, 3), 1.5, [pool()["committed"]]):
        for device in (None, jax.devices()[0], jax.devices()[3]):
            for _ in range(2):
                compare(proof, tree, device, context, {})


@pytest.mark.slow
@hypothesis.given(data=st.data())
def test_one_leaf(proof, data):
    """Single leaves to single targets: dtypes, values, strides, alignment, options, contexts."""
    compare(proof, data.draw(leaves), data.draw(targets), data.draw(contexts), data.draw(options))


@pytest.mark.slow
@hypothesis.given(data=st.data())
def test_trees(proof, data):
    """Trees to one target."""
    compare(proof, data.draw(trees), data.draw(targets), data.draw(contexts), data.draw(options))


@pytest.mark.slow
@hypothesis.given(data=st.data())
def test_trees_of_targets(proof, data):
    """Trees to trees of targets, fitting and not."""
    tree = data.draw(trees)
    compare(proof, tree, data.draw(prefixes(tree)), data.draw(contexts), {})
