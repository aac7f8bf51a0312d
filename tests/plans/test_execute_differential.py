"""Property-based comparison of compiled calls with plain JAX: everything observable is equal.

Random programs over random trees of arrays, numpy arrays and scalars, on one device and on eight,
with donation and pruned arguments, and with the configuration switched between two calls.
"""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_recipes import CONTEXTS, changes, host_leaves, leaves_on, trees, wide
from observe import observe
from proof import Proof
from recipes import realise
from support import THOROUGH

from jaxmarshal._core.entries import executables
from jaxmarshal._jax import private

pytestmark = pytest.mark.filterwarnings(
    "ignore:.with mesh.. context manager:DeprecationWarning",
    "ignore:Some donated buffers were not usable:UserWarning",
)


leaves = st.one_of(
    host_leaves(), leaves_on("uncommitted", "uncommitted", 0),
    st.sampled_from([1.5, 2, True, np.float32(3), np.int32(4)]),
)  # fmt: skip


def program(kind, tree):
    """A few primitives over the leaves of a tree; some kinds use only some leaves."""
    found = [jnp.asarray(x) for x in jax.tree_util.tree_leaves(tree)]
    if kind == "each":
        return jax.tree_util.tree_map(lambda x: x * 2 + 1, tree)
    if kind == "sum":
        return {"sum": sum((x.sum() for x in found), jnp.zeros(())), "count": len(found)}
    if kind == "first":
        return [jnp.sin(x) for x in found[:1]], None
    if kind == "many":
        return [[x + i for i in range(20)] for x in found]
    return ()


kinds = st.sampled_from(["each", "sum", "first", "many", "none"])
contexts = st.sampled_from(["plain", "plain", *CONTEXTS])


@pytest.fixture
def proof():
    """Agreement in each context about results too, and about calls that were fast."""
    made = Proof()
    yield made
    made.check(errors=["no_execution"], slow=["debug_nans", "disallow", "disable_jit"])


def compare(proof, reference, accelerated, owner, args, kwargs, context):
    """Reference once, then jaxmarshal twice: the call that records, and the one that may hit."""

    def outcome(function):
        made: dict = {}
        fresh, named = realise(args, made), realise(kwargs, made)
        return observe(function, owner, *fresh, context=CONTEXTS[context], **named)

    proof.compare(context, lambda: outcome(reference), lambda: outcome(accelerated))


def compiled(args, kwargs, kind, donate, keep_unused):
    """An ahead-of-time compiled program for these arguments."""
    function = jax.jit(
        lambda *args, **kwargs: program(kind, (args, kwargs)),
        donate_argnums=tuple(range(len(args))) if donate else (),
        keep_unused=keep_unused,
    )
    made: dict = {}
    return function.lower(*realise(args, made), **realise(kwargs, made)).compile()


def change_one(data, args):
    """The same arguments, or with one of them replaced."""
    if not args or data.draw(st.booleans()):
        return args
    i = data.draw(st.integers(0, len(args) - 1))
    return (*args[:i], data.draw(changes), *args[i + 1 :])


def check_compiled(proof, data, args, kwargs):
    """Calls of one Compiled with its own arguments, then with others, in several contexts."""
    owner = compiled(
        args, kwargs, data.draw(kinds), data.draw(st.booleans()), data.draw(st.booleans())
    )
    for _ in range(2):
        compare(
            proof, private.compiled_call, executables.compiled_call, owner, args, kwargs,
            data.draw(contexts),
        )
        args = change_one(data, args)
    compare(
        proof, private.compiled_call, executables.compiled_call, owner, args, kwargs,
        "plain",
    )


@pytest.mark.slow
@hypothesis.settings(max_examples=120 if THOROUGH else 18)
@hypothesis.given(data=st.data())
def test_compiled_on_one_device(proof, data):
    """`Compiled.__call__` with any tree of positional and keyword arguments."""
    args = tuple(data.draw(st.lists(trees(leaves), max_size=3)))
    kwargs = data.draw(st.dictionaries(st.sampled_from(["scale", "bias"]), leaves, max_size=1))
    check_compiled(proof, data, args, kwargs)


@pytest.mark.slow
@hypothesis.settings(max_examples=40 if THOROUGH else 6)
@hypothesis.given(data=st.data())
def test_compiled_on_eight_devices(proof, data):
    """`Compiled.__call__` with sharded and replicated arguments."""
    check_compiled(proof, data, tuple(data.draw(st.lists(trees(wide), min_size=1, max_size=2))), {})


@pytest.mark.slow
@hypothesis.settings(max_examples=120 if THOROUGH else 18)
@hypothesis.given(data=st.data())
def test_flat_calls(proof, data):
    """`MeshExecutable.call` and `ExecuteReplicated.__call__` with flat arguments."""
    args = tuple(data.draw(st.lists(leaves, max_size=4)))
    owner = compiled(args, {}, data.draw(kinds), data.draw(st.booleans()), True)._executable
    pairs = [
        (private.mesh_executable_call, executables.mesh_executable_call, owner),
        (
            private.execute_replicated_call, executables.execute_replicated_call,
            owner.unsafe_call,
        ),
    ]  # fmt: skip
    for reference, accelerated, holder in pairs:
        compare(proof, reference, accelerated, holder, args, {}, data.draw(contexts))
        compare(proof, reference, accelerated, holder, args, {}, "plain")
    changed = change_one(data, args)
    # unsafe_call does not check: with other arguments even the reference may give garbage.
    compare(proof, *pairs[0], changed, {}, "plain")
