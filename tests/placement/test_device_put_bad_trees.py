"""Trees that JAX cannot flatten, or that do not fit: the reference's errors, and nothing leaked."""

from __future__ import annotations

import collections
import gc

import jax
import numpy as np
import pytest
from bad_input import GOOD, Node, check, device, good, live, outcome, recorded  # noqa: F401
from jax.sharding import PartitionSpec, SingleDeviceSharding
from support import counts

import jaxmarshal

P = PartitionSpec
Pair = collections.namedtuple("Pair", "left right")
Triple = collections.namedtuple("Triple", "left right more")


class OrderedKey:
    """A dict key that can be compared with nothing."""


# --- Trees of targets that do not fit ------------------------------------------------------------

TREE = {"a": [GOOD, 1.5], "b": (GOOD, Pair(GOOD, 3)), "c": None}


PREFIXES = {
    "too short": lambda d: {"a": [d], "b": d, "c": None},
    "too long": lambda d: {"a": [d, d, d], "b": d, "c": None},
    "list for tuple": lambda d: {"a": d, "b": [d, d], "c": None},
    "tuple for list": lambda d: {"a": (d, d), "b": d, "c": None},
    "tuple for namedtuple": lambda d: {"a": d, "b": (d, (d, d)), "c": None},
    "other namedtuple": lambda d: {"a": d, "b": (d, Triple(d, d, d)), "c": None},
    "namedtuple for tuple": lambda d: {"a": d, "b": Pair(d, d), "c": None},
    "missing key": lambda d: {"a": d, "b": d},
    "other key": lambda d: {"a": d, "b": d, "z": None},
    "further key": lambda d: {"a": d, "b": d, "c": None, "d": d},
    "int key": lambda d: {"a": d, "b": d, 3: d},
    "list for dict": lambda d: [d, d, d],
    "dict for list": lambda d: {"a": {"x": d}, "b": d, "c": None},
    "dict for leaf": lambda d: {"a": [{"x": d}, d], "b": d, "c": None},
    "list for leaf": lambda d: {"a": [[d], d], "b": d, "c": None},
    "empty list for leaf": lambda d: {"a": [[], d], "b": d, "c": None},
    "list for None": lambda d: {"a": d, "b": d, "c": []},
    "ordered dict": lambda d: collections.OrderedDict(a=d, b=d, c=None),
    "ordered dict for list": lambda d: {"a": collections.OrderedDict(a=d), "b": d, "c": None},
    "node": lambda d: Node([d, d]),
    "node for list": lambda d: {"a": Node([d, d]), "b": d, "c": None},
    "nested too deep": lambda d: {"a": [d, [[d]]], "b": d, "c": None},
    "str for leaf": lambda d: {"a": [d, "cpu"], "b": d, "c": None},
    "spec for leaf": lambda d: {"a": [d, P("x")], "b": d, "c": None},
}


@pytest.mark.parametrize("kind", ["device", "sharding"])
@pytest.mark.parametrize("make", list(PREFIXES.values()), ids=list(PREFIXES))
def test_tree_of_targets_that_does_not_fit(make, kind):
    """Too short, too long, other types, other keys: the reference's text names the place."""
    place = make(device(1) if kind == "device" else SingleDeviceSharding(device(1)))
    found = check(lambda: TREE, place)
    assert isinstance(found[0], type)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: {"a": None, "b": None, "c": None},
        lambda d: {"a": [None, d], "b": (d, None), "c": None},
        lambda d: {"a": d, "b": (None, Pair(d, None)), "c": None},
        lambda d: {"c": None, "b": d, "a": d},
        lambda d: {"a": d, "b": d, "c": d},
    ],
)
def test_tree_of_targets_with_none_in_odd_places(make):
    """None in a tree of targets stands for no target, wherever it is, and such trees fit."""
    place = make(device(1))
    found = check(lambda: TREE, place, hits=2)
    assert not isinstance(found[0], type)


#: Trees without leaves, alone and in others.
EMPTY = [[], (), {}, None, collections.namedtuple("Empty", "")(), [[]], [{}, None], Pair([], ())]


@pytest.mark.parametrize("place", [lambda x: x, lambda x: [x], lambda x: {"a": x, "b": GOOD}])
@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_targets_of_nothing(empty, place):
    """Trap 10: a target that no leaf is put to is wrong or not, as the reference says."""
    targets = [
        None, device(1), SingleDeviceSharding(device(1)), [], (), {}, "cpu", 3, [device(1)],
        collections.OrderedDict(), collections.OrderedDict(a=device(1)), Node([device(1)]),
        collections.defaultdict(int, a=device(1)), Pair(device(1), None), np.ones(2),
    ]  # fmt: skip
    for target in targets:
        for where in (target, [target], {"a": target, "b": device(2)}):
            expected = outcome(jax.device_put, place(empty), where)
            for _ in range(3):
                assert outcome(jaxmarshal.device_put, place(empty), where) == expected


# --- Dicts, lists and custom nodes ---------------------------------------------------------------


class DictSubclass(dict):
    """A subclass of dict is a leaf, and no argument."""


class ListSubclass(list):
    """A subclass of list is a leaf, and no argument."""


class TupleSubclass(tuple):
    """A subclass of tuple without fields is a leaf, and no argument."""


CONTAINERS = {
    "str and int keys": lambda: {"a": GOOD, 1: GOOD},
    "None and str keys": lambda: {None: GOOD, "a": GOOD},
    "tuple and int keys": lambda: {(1,): GOOD, 1: GOOD},
    "keys without order": lambda: {OrderedKey: GOOD, len: GOOD},
    "complex keys": lambda: {1j: GOOD, 2j: GOOD},
    "mixed keys deep in a tree": lambda: [GOOD, {"a": {"b": GOOD, 2: GOOD}}],
    "dict subclass": lambda: DictSubclass(a=GOOD),
    "list subclass": lambda: ListSubclass([GOOD]),
    "tuple subclass": lambda: TupleSubclass([GOOD]),
    "user dict": lambda: collections.UserDict(a=1),
    "deque": lambda: collections.deque([GOOD]),
    "generator": lambda: (leaf for leaf in [GOOD]),
}


@pytest.mark.parametrize("make", list(CONTAINERS.values()), ids=list(CONTAINERS))
def test_bad_container(make):
    """Containers that JAX cannot flatten, or takes for a leaf."""
    value = make()
    found = check(lambda: value)
    assert isinstance(found[0], type)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {1.5: GOOD, 0.5: GOOD},
        lambda: {True: GOOD, False: 1.5},
        lambda: {(2, "b"): GOOD, (1, "a"): 1.5},
        lambda: {"b": GOOD, np.str_("a"): GOOD},
        lambda: {3: GOOD, np.int64(2): 1.5},
        lambda: collections.OrderedDict(b=GOOD, a=1.5),
        lambda: collections.defaultdict(list, b=GOOD, a=1.5),
        lambda: collections.defaultdict(None, b=[{"x": GOOD, "c": 3}]),
    ],
)
def test_unusual_dict(make):
    """Keys and dicts that are unusual, but in order."""
    found = check(make, hits=2)
    assert not isinstance(found[0], type)


def nested(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@pytest.mark.parametrize("depth", [50, 400])
def test_deep_tree(depth):
    """A deep tree is put, and a deep tree with a bad leaf gives back what it took."""
    check(lambda: nested(depth, GOOD), hits=2)
    for _ in range(2):    # record again
        jaxmarshal.device_put({"a": [GOOD, 1.5], "b": GOOD}, device(1))
    jaxmarshal.reset_stats()
    value = nested(depth, "text")
    check(lambda: value, error=TypeError)


DEEP = """
import jax, numpy as np, jaxmarshal, collections
jax.config.update("jax_platforms", "cpu")
put = {"jax": jax, "jaxmarshal": jaxmarshal}[module].device_put
good = np.ones(3, np.float32)
put(good), put(good)
Pair = collections.namedtuple("Pair", "left right")

class Node:
    def __init__(self, children):
        self.children = children

jax.tree_util.register_pytree_node(
    Node, lambda node: (tuple(node.children), None), lambda aux, children: Node(children)
)
inner = [good]
tree = inner
if kind == "list":
    inner.append(inner)
elif kind == "dict":
    tree = {"a": good}
    tree["b"] = tree
elif kind == "tuple":
    tree = (good, inner)
    inner.append(tree)
elif kind == "namedtuple":
    tree = Pair(good, inner)
    inner.append(tree)
elif kind == "node":
    tree = Node(inner)
    inner.append([tree])
elif kind == "dict with odd keys":
    tree = {(1, 2): good}
    tree[3, 4] = tree
else:
    for _ in range(100_000):
        tree = [tree]
result = []
for _ in range(3):
    try:
        put(tree)
    except BaseException as error:
        text = str(error).partition(" at 0x")[0]
        result.append([type(error).__name__, text, repr(error.__cause__)[:40]])
if module == "jaxmarshal":
    hits = jaxmarshal.stats()["device_put"]["hits"]
    assert hits == 1, hits
"""


@pytest.mark.parametrize(
    "kind",
    ["list", "dict", "tuple", "namedtuple", "node", "dict with odd keys", "hundred thousand"],
)
def test_infinitely_deep_tree(kind, fresh):
    """A tree that contains itself, or is too deep, ends in the reference's error every time.

    For some kinds of nodes that error is the end of the process, with plain JAX as well.
    """
    expected = fresh(DEEP, may_die=True, kind=kind, module="jax")
    assert expected == "died" or len(expected) == 3
    assert fresh(DEEP, may_die=True, kind=kind, module="jaxmarshal") == expected


ERRORS = [ValueError("from the node"), KeyError("key"), MemoryError(), RecursionError("mine"),
          StopIteration(3), KeyboardInterrupt("stop"), SystemExit(3), GeneratorExit()]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_node_that_raises(error):
    """What a flatten function raises reaches the caller, once, whatever it is."""
    raised = []

    def before():
        raised.append(error)
        raise error

    for make in (
        lambda: Node([GOOD], before),
        lambda: [GOOD, {"a": 1.5, "b": Node([GOOD], before)}],
        lambda: [Node([GOOD]), Node([GOOD], before)],
    ):
        plans = live()["live_plans"]
        expected = outcome(jax.device_put, make())
        once = len(raised)
        raised.clear()
        assert outcome(jaxmarshal.device_put, make()) == expected
        assert expected[0] is type(error)
        assert len(raised) == once == 1
        raised.clear()
        assert live() == {
            "live_slots": 0, "live_tables": 0, "live_heap": 0, "live_plans": plans
        }
        good()


GARBAGE = {
    "None": lambda: None,
    "no tuple": lambda: 5,
    "one item": lambda: ((1,),),
    "three items": lambda: ((1,), None, None),
    "list of children": lambda: ([GOOD, 1.5], None),
    "children that are no sequence": lambda: (5, None),
    "generator of children": lambda: ((c for c in (GOOD, 1.5)), None),
    "strings as children": lambda: ("ab", None),
    "unhashable data": lambda: ((GOOD,), [1]),
    "unequal data": lambda: ((GOOD,), np.arange(3)),
}


@pytest.mark.parametrize("make", list(GARBAGE.values()), ids=list(GARBAGE))
def test_node_that_returns_garbage(make):
    """A flatten function that returns something else than children and data."""
    def before():
        found = make()
        return ((), None) if found is None else found

    expected = outcome(jax.device_put, [GOOD, Node([1], before)])
    for _ in range(2):
        assert outcome(jaxmarshal.device_put, [GOOD, Node([1], before)]) == expected
    hits, reasons = counts()
    assert hits + sum(reasons.values()) == 2
    good()
    jaxmarshal.api.clear()
    gc.collect()
    assert set(live().values()) == {0}


def test_node_with_one_shot_children():
    """Children that can be iterated over once are iterated over once."""
    class Stream(Node):
        pass

    jax.tree_util.register_pytree_node(
        Stream, lambda node: (node.children, None), lambda aux, children: list(children)
    )
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        for values in ([GOOD, 1.5], [np.ones(17), "text"], [np.ones((4, 3), np.int8)]):
            expected = outcome(jax.device_put, Stream(iter(values)))
            assert outcome(put, Stream(iter(values))) == expected


def test_how_often_a_node_is_flattened():
    """A call runs a flatten function as often as the reference does, whether it hits or not."""
    calls = []
    for target in (None, device(1), "cpu", [device(1), None]):
        for leaf in (GOOD, np.ones(19), "text", 2**70):
            tree = [1.5, Node([leaf], lambda: calls.append(1))]
            expected = outcome(jax.device_put, tree, target)
            once = len(calls)
            for _ in range(3):
                calls.clear()
                found = outcome(jaxmarshal.device_put, tree, target)
                assert found == expected
                assert len(calls) == once
            calls.clear()


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_node_that_replaces_its_sibling(kind, place):
    """A flatten function that puts something else into the container that holds its node.

    Taking something out is left alone: plain JAX then reads freed memory.
    """
    def make():
        node = Node([GOOD])
        if kind == "list":
            tree = [GOOD, 1.5, 2.5]
            tree[place] = node
            node.before = lambda: tree.__setitem__(-1, 7.5)
        else:
            tree = {"a": GOOD, "b": 1.5, "c": 2.5}
            tree["abc"[place]] = node
            node.before = lambda: tree.__setitem__("c", 7.5)
        return tree

    found = check(make, hits=2)
    assert not isinstance(found[0], type)
