"""Flattening and rebuilding of trees, against `jax.tree_util`.

`device_put` of arrays without a target returns these very arrays, so what it does to a tree of
arrays is flattening and rebuilding alone.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import typing

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code

import jaxmarshal

Pair = collections.namedtuple("Pair", "left right")
Empty = collections.namedtuple("Empty", "")


class Typed(typing.NamedTuple):
    """A namedtuple with a default and a method."""

    first: object
    second: object = None

    def swapped(self):
        return Typed(self.second, self.first)


class SubPair(Pair):
    """A subclass of a namedtuple is a namedtuple too."""


@jax.tree_util.register_pytree_node_class
class Node:
    """A custom node with any number of children."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, "aux"

    @classmethod
    def tree_unflatten(cls, aux, children):
        assert aux == "aux"
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    """A dataclass whose fields are children, but for a static one."""

    weight: object
    bias: object
    name: str = dataclasses.field(default="layer", metadata={"static": True})


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Static:
    """A node without children."""

    value: int


_arrays: list[jax.Array] = []


def arrays():
    if not _arrays:
        _arrays.extend(jnp.full((n,), n, jnp.float32) for n in range(5))
        _arrays.append(jax.device_put(np.zeros(2), jax.devices()[3]))
    return _arrays


def same(a, b):
    """Are two trees equal: container types, keys in order, auxiliary data, identical leaves?"""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return (
            list(a) == list(b)
            and getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
            and all(same(a[key], b[key]) for key in a)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Node):
        return same(a.children, b.children)
    if isinstance(a, Record):
        return same([a.weight, a.bias, a.name], [b.weight, b.bias, b.name])
    return a is b or (not isinstance(a, jax.Array) and a == b)


def rebuilt(tree):
    """What JAX itself makes of a tree when it takes it apart and puts it together."""
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    return treedef.unflatten(leaves)


def assert_hit(tree):
    """One call that takes the fast path and returns what JAX's own flattening gives."""
    jaxmarshal.reset_stats()
    result = jaxmarshal.device_put(tree)
    assert same(result, rebuilt(tree))
    counts = jaxmarshal.stats()["device_put"]
    assert (counts["hits"], counts["misses"]) == (1, 0)
    return result


leaves = st.integers(0, 5).map(lambda i: arrays()[i])
KEYS = [
    st.text(max_size=3),
    st.integers(-5, 5),
    st.sampled_from([2**70, -(2**70), 0]),
    st.floats(allow_nan=False),
    st.tuples(st.integers(0, 2), st.text(max_size=1)),
    st.booleans(),
    st.binary(max_size=2),
]


def containers(children):
    few = st.lists(children, max_size=4)
    mappings = st.one_of([st.dictionaries(keys, children, max_size=4) for keys in KEYS])
    return st.one_of(
        few,
        few.map(tuple),
        mappings,
        mappings.map(collections.OrderedDict),
        mappings.map(lambda items: collections.defaultdict(list, items)),
        st.tuples(children, children).map(lambda both: Pair(*both)),
        st.tuples(children, children).map(lambda both: SubPair(*both)),
        st.tuples(children, children).map(lambda both: Typed(*both)),
        st.tuples(children, children).map(lambda both: Record(*both)),
        few.map(lambda items: Node(*items)),
        children.map(lambda child: [child, child]),
        st.sampled_from([None, (), [], {}, Empty(), Static(3), Node(), collections.OrderedDict()]),
    )


@hypothesis.given(st.recursive(leaves, containers, max_leaves=25))
def test_random_trees(tree):
    """Any tree of arrays is rebuilt as JAX would, on the fast path, from the first call on."""
    assert_hit(tree)


@pytest.mark.parametrize(
    "tree",
    [[], (), {}, None, Empty(), Node(), Static(1), collections.OrderedDict(), [[], {}, ((),)]],
    ids=lambda tree: type(tree).__name__,
)
def test_trees_without_leaves(tree):
    """Empty containers are rebuilt, not returned, where JAX rebuilds them."""
    result = assert_hit(tree)
    assert (result is tree) == (rebuilt(tree) is tree)


def test_containers_are_new():
    """The result shares leaves with the argument, and no mutable container."""
    tree = {"a": [arrays()[0]], "b": {}}
    result = assert_hit(tree)
    assert result is not tree
    assert result["a"] is not tree["a"]
    assert result["b"] is not tree["b"]
    assert result["a"][0] is tree["a"][0]


def test_the_order_of_keys():
    """A dict comes back in JAX's order, an OrderedDict in its own."""
    a, b = arrays()[:2]
    assert list(assert_hit({"b": a, "a": b, "ab": a})) == ["a", "ab", "b"]
    assert list(assert_hit({10: a, 9: b, -1: a})) == [-1, 9, 10]
    assert list(assert_hit({"\U0001f600": a, "é": b, "z": a})) == ["z", "é", "\U0001f600"]
    ordered = collections.OrderedDict([("b", a), ("a", b)])
    assert list(assert_hit(ordered)) == ["b", "a"]


class Text(str):
    """A str of another type."""


@pytest.mark.parametrize(
    "tree",
    [{Text("b"): 0, Text("a"): 1}, {True: 0, False: 1}, {1: 0, 0.5: 1}, {np.int64(2): 0, 1: 1}],
    ids=repr,
)
def test_unusual_keys(tree):
    """Keys that are not plain str or int are ordered, compared and returned as JAX does it."""
    tree = {key: arrays()[i] for key, i in tree.items()}
    result = assert_hit(tree)
    assert list(map(type, result)) == list(map(type, rebuilt(tree)))


def test_keys_that_cannot_be_ordered():
    """The error is JAX's own."""
    tree = {"a": arrays()[0], 1: arrays()[1]}
    with pytest.raises(Exception) as expected:
        jax.device_put(tree)
    with pytest.raises(expected.type) as found:
        jaxmarshal.device_put(tree)
    assert str(found.value) == str(expected.value)


def register_reversed(cls):
    """Register a namedtuple as a custom node that is recognised by the order of its children."""
    jax.tree_util.register_pytree_node(
        cls, lambda x: (tuple(x)[::-1], None), lambda _, children: ("custom", cls, *children)
    )


def test_a_namedtuple_that_is_registered_before_the_first_call():
    """It is a custom node, although it is a namedtuple too."""
    cls = collections.namedtuple("Before", "a b")
    register_reversed(cls)
    a, b = arrays()[:2]
    assert_hit(cls(a, b))
    assert jaxmarshal.device_put(cls(a, b)) == ("custom", cls, b, a)


@pytest.mark.parametrize("nest", [lambda x: x, lambda x: [x, {"k": x}]], ids=["alone", "nested"])
def test_a_namedtuple_that_is_registered_after_the_first_call(nest):
    """From then on it is a custom node: nothing about a type is remembered."""
    cls = collections.namedtuple("After", "a b")
    a, b = arrays()[:2]
    assert type(assert_hit(cls(a, b))) is cls
    assert_hit(nest(cls(a, b)))
    register_reversed(cls)
    assert jaxmarshal.device_put(cls(a, b)) == ("custom", cls, b, a)
    assert_hit(nest(cls(a, b)))


def test_a_namedtuple_that_becomes_static():
    """Other ways to register a class count as well."""
    cls = collections.namedtuple("Constant", "a")
    (a,) = arrays()[:1]
    assert_hit(cls(a))
    jax.tree_util.register_static(cls)
    value = cls(3)
    assert jax.device_put(value) is value
    assert jaxmarshal.device_put(value) is value


def test_a_class_that_is_registered_after_its_first_call():
    """What was no argument at all becomes a node."""

    class Late:
        def __init__(self, child):
            self.child = child

    (a,) = arrays()[:1]
    with pytest.raises(TypeError):
        jaxmarshal.device_put(Late(a))
    jax.tree_util.register_pytree_node(
        Late, lambda late: ((late.child,), None), lambda _, children: Late(*children)
    )
    jaxmarshal.reset_stats()
    assert jaxmarshal.device_put(Late(a)).child is a
    assert jaxmarshal.stats()["device_put"]["hits"] == 1


def test_what_looks_like_a_namedtuple():
    """A tuple with `fields` is one to JAX, a tuple subclass without them is no node."""

    class Fields(tuple):
        _fields = ("a",)

        def __new__(cls, *items):
            return tuple.__new__(cls, items)

    class Bare(tuple):
        pass

    (a,) = arrays()[:1]
    assert type(assert_hit(Fields(a, a))) is Fields
    for put in (jax.device_put, jaxmarshal.device_put):
        with pytest.raises(TypeError, match="Bare"):
            put(Bare((a,)))


class Trouble(Exception):
    """What a node of a test raises."""


def failing_node(stage):
    def flatten(node):
        if stage == "flatten":
            raise Trouble("while flattening")
        return (arrays()[0],), None

    def unflatten(_, children):
        if stage == "unflatten":
            raise Trouble("while rebuilding")
        return cls()

    cls = type(f"Fails{stage}", (), {})
    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls()


@pytest.mark.parametrize("stage", ["flatten", "unflatten"])
def test_errors_of_nodes(stage):
    """What the functions of a node raise arrives unchanged."""
    tree = [arrays()[0], failing_node(stage), arrays()[1]]
    with pytest.raises(Trouble, match="while"):
        jax.device_put(tree)
    with pytest.raises(Trouble, match="while"):
        jaxmarshal.device_put(tree)


def nested(depth, leaf):
    tree = leaf
    for level in range(depth):
        tree = [tree] if level % 2 else {"k": tree, "l": (arrays()[1],)}
    return tree


def test_deep_trees():
    """Deeper than the steps that are inline."""
    assert_hit(nested(200, arrays()[0]))


TOO_DEEP = """
    import jax, jaxmarshal

    put = {"jax": jax, "jaxmarshal": jaxmarshal}["%s"].device_put
    deep = jax.numpy.zeros(3)
    for _ in range(100_000):
        deep = [deep]
    endless = []
    endless.append(endless)
    for tree in (deep, endless):
        try:
            put(tree)
        except Exception as error:
            print(type(error), type(error.__cause__))
    print(jaxmarshal.device_put([jax.numpy.zeros(3)]))
"""


def test_trees_that_are_too_deep():
    """Endless recursion ends in the reference's error, not in a crash.

    In a process of its own, because jaxlib does not undo its count of recursions after the error.
    """
    outputs = [run_code(TOO_DEEP % name).stdout for name in ("jax", "jaxmarshal")]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("Error") >= 2


def test_nodes_that_are_registered_while_threads_run():
    """Threads put trees while classes turn from namedtuples into custom nodes."""
    classes = [collections.namedtuple(f"Turns{i}", "a b") for i in range(40)]
    a, b = arrays()[:2]
    allowed = {cls: [cls(a, b), ("custom", cls, b, a)] for cls in classes}
    failures, stop = [], threading.Event()

    def put():
        try:
            while not stop.is_set():
                for cls in classes:
                    (result,) = jaxmarshal.device_put([cls(a, b)])
                    assert any(same(result, right) for right in allowed[cls])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=put) for _ in range(3)]
    for thread in threads:
        thread.start()
    for cls in classes:
        register_reversed(cls)
        assert jaxmarshal.device_put([cls(a, b)]) == [("custom", cls, b, a)]
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
