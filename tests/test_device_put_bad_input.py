"""Bad input gives the reference's errors, leaks nothing, changes nothing, and spoils no record."""

from __future__ import annotations

import collections
import datetime
import fractions
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding
from support import DEBUG, aligned, counts

import jaxmarshal
from jaxmarshal import _counters

P = PartitionSpec
Pair = collections.namedtuple("Pair", "left right")
Triple = collections.namedtuple("Triple", "left right more")


def mesh_of(*numbers, names=("x",)):
    return jax.sharding.Mesh(np.asarray(jax.devices())[list(numbers)], names)


def device(number):
    return jax.devices()[number]


def eight():
    return NamedSharding(mesh_of(*range(8)), P("x"))


@jax.tree_util.register_pytree_node_class
class Node:
    """A custom node whose flatten function first does what `before` says."""

    def __init__(self, children, before=None):
        self.children, self.before = children, before

    def tree_flatten(self):
        return (self.before() if self.before else None) or (tuple(self.children), None)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children)


class WithJaxArray:
    """An object that converts itself when asked through `__jax_array__`."""

    def __jax_array__(self):
        return jnp.ones(3)


class WithArray:
    """An object that converts itself when asked through `__array__`."""

    def __array__(self, dtype=None, copy=None):
        return np.ones(3, np.float32)


class BadRepr:
    """An object whose text cannot be had."""

    def __repr__(self):
        raise ValueError("no text for this")


class OrderedKey:
    """A dict key that can be compared with nothing."""


def outcome(put, *args, **kwargs):
    """What a call returns, in words, or what it raises: type, text, type of the cause."""
    try:
        result = put(*args, **kwargs)
    except BaseException as error:
        return type(error), str(error), type(error.__cause__)
    return str(jax.tree.structure(result)), [
        str(leaf.aval) if leaf.is_deleted() else repr(leaf) for leaf in jax.tree.leaves(result)
    ]


def live():
    """The live-object counters; constant in a release build, where they count nothing."""
    found = _counters.snapshot()
    return {name: number for name, number in found.items() if name.startswith("live")}


def good():
    """A good call that was recorded before hits."""
    before = counts()[0]
    result = jaxmarshal.device_put({"a": [GOOD, 1.5], "b": GOOD}, device(1))
    assert counts()[0] == before + 1
    np.testing.assert_array_equal(result["a"][0], GOOD)
    assert float(result["a"][1]) == 1.5
    assert result["b"].devices() == {device(1)}


GOOD = aligned(3)


@pytest.fixture(autouse=True)
def recorded():
    """Plain arguments and targets are recorded, so that only what is bad can make a call miss."""
    for target in (None, device(1), SingleDeviceSharding(device(1))):
        for _ in range(2):
            jaxmarshal.device_put({"a": [GOOD, 1.5], "b": GOOD, "c": 3}, target)
    jaxmarshal.device_put(np.ones((8, 8), np.float32), eight())
    jaxmarshal.reset_stats()


def check(make, target=None, error=None, hits=0, **kwargs):
    """Compare with plain JAX; then nothing has leaked, and a good call hits.

    `make` makes the arguments anew for each call. Returns the observation.
    """
    plans = live()["live_plans"]
    expected = outcome(jax.device_put, make(), target, **kwargs)
    if error is not None:
        assert issubclass(expected[0], error), expected
    for _ in range(2):
        assert outcome(jaxmarshal.device_put, make(), target, **kwargs) == expected
    found, reasons = counts()
    assert (found, sum(reasons.values())) == (hits, 2 - hits)
    gc.collect()
    assert live() == {
        "live_slots": 0, "live_tables": 0, "live_heap": 0, "live_plans": live()["live_plans"]
    }
    if error is not None:
        assert live()["live_plans"] == plans
    good()
    jaxmarshal.api.clear()
    gc.collect()
    assert set(live().values()) == {0}
    return expected


LEAVES = {
    "str": lambda: "text",
    "empty str": lambda: "",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"bytes"),
    "object": lambda: object,
    "ellipsis": lambda: ...,
    "function": lambda: len,
    "module": lambda: np,
    "set": lambda: {1},
    "frozenset": lambda: frozenset([1]),
    "range": lambda: range(3),
    "slice": lambda: slice(3),
    "fraction": lambda: fractions.Fraction(1, 3),
    "date": lambda: datetime.date(2020, 1, 2),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "timedelta64": lambda: np.timedelta64(3, "s"),
    "dtype": lambda: np.dtype(np.float32),
    "scalar type": lambda: np.float32,
    "str_": lambda: np.str_("x"),
    "bytes_": lambda: np.bytes_(b"x"),
    "void": lambda: np.void(b"abc"),
    "longdouble": lambda: np.longdouble(1),
    "strings": lambda: np.array(["a", "bc"]),
    "byte strings": lambda: np.array([b"a", b"bc"]),
    "objects": lambda: np.array([1, "a", None], object),
    "ragged": lambda: np.array([[1, 2], [3]], object),
    "datetimes": lambda: np.array(["2020-01-01"], "M8[D]"),
    "timedeltas": lambda: np.array([3], "m8[s]"),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "masked constant": lambda: np.ma.masked,
    "structured": lambda: np.zeros(2, [("a", "f4")]),
    "records": lambda: np.rec.array([(1, 2.0)]),
    "voids": lambda: np.zeros(2, "V4"),
    "long doubles": lambda: np.zeros(2, np.longdouble),
    "big-endian": lambda: aligned(3, ">f4"),
    "memoryview": lambda: memoryview(bytes(4)),
    "__jax_array__": WithJaxArray,
    "int too large": lambda: 2**70,
    "int too small": lambda: -(2**31) - 1,
    "bad repr": BadRepr,
}


@pytest.mark.parametrize("target", [None, "device", "sharding"])
@pytest.mark.parametrize("make", list(LEAVES.values()), ids=list(LEAVES))
def test_bad_leaf(make, target):
    """What is no array or scalar to JAX, alone."""
    place = {None: None, "device": device(1), "sharding": SingleDeviceSharding(device(1))}[target]
    value = make()    # one object, where the text shows its address
    found = check(lambda: value, place)
    assert isinstance(found[0], type)


@pytest.mark.parametrize("make", list(LEAVES.values()), ids=list(LEAVES))
def test_bad_leaf_after_good_ones(make):
    """What is no array or scalar to JAX, in a tree."""
    value = make()
    check(lambda: {"a": [GOOD, 1.5], "b": GOOD, "c": (value,)})


def test_objects_with_array():
    """Objects that numpy could convert."""
    value = WithArray()
    check(lambda: value)
    assert outcome(jaxmarshal.device_put, [value]) == outcome(jax.device_put, [value])


def test_ragged_lists():
    """A ragged list is a tree of scalars, not an array."""
    jaxmarshal.device_put(1)
    jaxmarshal.reset_stats()
    found = check(lambda: [[1, 2], [3]], hits=2)
    assert found[0] == "PyTreeDef([[*, *], [*]])"


def test_wide_tree_with_a_bad_end():
    """A thousand good leaves and a bad one: all that was taken is given back."""
    array = jax.device_put(aligned(3))
    found = check(lambda: [GOOD, 1.5, array] * 333 + ["text"], device(1), TypeError)
    assert "text" in found[1]
    assert not array.is_deleted()
    assert jaxmarshal.device_put(array) is array


# --- Targets -------------------------------------------------------------------------------------

BAD_TARGETS = {
    "str": lambda: "cpu",
    "int": lambda: 0,
    "float": lambda: 1.5,
    "type": lambda: int,
    "object": lambda: object,
    "array": lambda: np.zeros(3),
    "empty list": lambda: [],
    "empty dict": dict,
    "spec without a mesh": lambda: P("x"),
    "empty spec without a mesh": lambda: P(),
    "mesh": lambda: mesh_of(0, 1),
    "abstract mesh": lambda: NamedSharding(mesh_of(0, 1).abstract_mesh, P("x")),
    "layout": lambda: Layout((0,)),
    "auto layout": lambda: Format(Layout.AUTO, SingleDeviceSharding(device(0)))
    if hasattr(Layout, "AUTO") else Format(Layout((3, 4)), SingleDeviceSharding(device(0))),
    "format of the wrong rank": lambda: Format(Layout((0, 1)), SingleDeviceSharding(device(0))),
    "devices": lambda: tuple(jax.devices()[:2]),
    "list of devices": lambda: jax.devices()[:3],
    "set": lambda: {device(0)},
}


@pytest.mark.parametrize("make", list(BAD_TARGETS.values()), ids=list(BAD_TARGETS))
def test_wrong_target(make):
    """Targets that the reference rejects, or resolves in its own way."""
    place = make()
    check(lambda: GOOD, place)


@pytest.mark.parametrize("make", list(BAD_TARGETS.values()), ids=list(BAD_TARGETS))
def test_wrong_target_in_a_tree_of_targets(make):
    """The same in a tree of targets, after a good one."""
    place = [device(1), make()]
    check(lambda: [GOOD, GOOD], place)


def test_unhashable_memory_kind():
    """A memory kind that the device does not have."""
    for make in (
        lambda: SingleDeviceSharding(device(0), memory_kind="no such kind"),
        lambda: NamedSharding(mesh_of(0), P(), memory_kind="no such kind"),
    ):
        messages = []
        for put in (jax.device_put, jaxmarshal.device_put):
            messages.append(outcome(lambda x, put=put, make=make: put(x, make()), GOOD))
        assert messages[0] == messages[1]
    good()


@pytest.mark.parametrize("shape", [(9,), (4,), (1,), (7, 8), (3, 3)], ids=str)
@pytest.mark.parametrize("where", ["host", "device"])
def test_uneven_sharding(shape, where):
    """A dimension that the devices do not divide, with the reference's text."""
    host = aligned(shape)
    argument = host if where == "host" else jax.device_put(host)
    place = eight()
    found = check(lambda: argument, place, ValueError)
    assert "evenly divide" in found[1]
    assert argument is host or not argument.is_deleted()
    jaxmarshal.device_put(aligned((8, 8)), place)


@pytest.mark.parametrize("argument", ["array", "host", 1.5, "scalar"])
def test_rank_too_small(argument):
    """A spec with more entries than the argument has dimensions."""
    value = {
        "array": jax.device_put(aligned(8)), "host": aligned(8), 1.5: 1.5,
        "scalar": np.float32(1),
    }[argument]
    place = NamedSharding(mesh_of(*range(8)), P(None, "x"))
    jaxmarshal.device_put(aligned((8, 8)), place)
    jaxmarshal.reset_stats()
    check(lambda: value, place, ValueError)


def test_duplicate_and_unknown_axes():
    """Specs that do not fit their mesh are rejected by the sharding itself, before any call."""
    for spec in (P("x", "x"), P("y")):
        with pytest.raises(Exception):    # noqa: B017
            NamedSharding(mesh_of(0, 1), spec)


@pytest.mark.parametrize(
    "keywords",
    [{"donate": True, "may_alias": True}, {"donate": [True]}, {"may_alias": [None, None]},
     {"src": "cpu"}, {"src": [1, 2]}, {"donate": {"a": True}}, {"may_alias": 3}],
    ids=str,
)  # fmt: skip
def test_wrong_options(keywords):
    """Options that do not fit."""
    check(lambda: GOOD, device(1), **keywords)


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


# --- Arrays that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, "device", "other", "sharding", "spread"])
def test_deleted_array(target):
    """A deleted array, before and after it was recorded."""
    place = {
        None: None, "device": device(0), "other": device(1),
        "sharding": SingleDeviceSharding(device(1)), "spread": eight(),
    }[target]
    array = jax.device_put(aligned(8))
    for _ in range(2):
        jaxmarshal.device_put(array, place)
    jaxmarshal.reset_stats()
    array.delete()
    found = check(lambda: array, place)
    assert jaxmarshal.device_put(array) is array
    if target is not None:
        assert "deleted" in found[1]


@pytest.mark.parametrize("target", [None, "device", "sharding"])
def test_donated_array(target):
    """An array that was donated to a computation or to device_put."""
    place = {None: None, "device": device(1), "sharding": SingleDeviceSharding(device(1))}[target]
    array = jax.device_put(aligned(8))
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()
    # Without a target an array is its own result, whatever became of it.
    check(lambda: [GOOD, array], place, hits=0 if target or LAYOUT_OFF else 2)


@pytest.mark.parametrize("target", ["device", "other", "sharding", "other sharding", "spread"])
@pytest.mark.parametrize("make", ["array", "one of many"])
def test_donated_array_where_such_arrays_were_recorded(target, make):
    """A donated array keeps its buffer, unlike a deleted one; it is found out all the same."""
    place = {
        "device": device(0), "other": device(1), "sharding": SingleDeviceSharding(device(0)),
        "other sharding": SingleDeviceSharding(device(1)), "spread": eight(),
    }[target]
    for _ in range(2):
        jaxmarshal.device_put(jax.device_put(aligned(8)), place)
    jaxmarshal.reset_stats()
    array = jax.device_put(aligned(8))
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()
    found = check((lambda: array) if make == "array" else (lambda: [1.5, array]), place)
    assert "deleted" in found[1] or make == "one of many"
    assert counts()[1].get("deleted", 0) == 2 or make == "one of many"


def test_donation_by_device_put():
    """`donate=True` deletes the argument, or does not, as the reference does."""
    deleted = []
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        array = jax.device_put(aligned(8))
        result = put(array, device(1), donate=True)
        deleted.append(array.is_deleted())
        np.testing.assert_array_equal(result, aligned(8))
    assert len(set(deleted)) == 1
    assert counts() == (0, {"options": 2})
    good()


def test_leaked_tracer():
    """A tracer that outlived its trace."""
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(1.0)
    for place in (None, device(1), SingleDeviceSharding(device(1))):
        expected = outcome(jax.device_put, [GOOD, leaked[0]], place)
        assert isinstance(expected[0], type)
        assert outcome(jaxmarshal.device_put, [GOOD, leaked[0]], place) == expected
    assert counts() == (0, {"tracer": 3})
    assert live()["live_slots"] == 0
    good()


def test_inputs_are_usable_after_an_error():
    """Arguments of a failed call are neither deleted, changed nor kept."""
    host, array = aligned(8), jax.device_put(aligned(8))
    explicit = jax.sharding.Mesh(jax.devices(), ("x",), axis_types=(AxisType.Explicit,))
    for place in (
        device(1), eight(), NamedSharding(explicit, P("x")), SingleDeviceSharding(device(0)),
    ):
        for bad in ("text", 2**70, np.zeros(1, ">f4")):
            for put in (jax.device_put, jaxmarshal.device_put):
                with pytest.raises((TypeError, OverflowError, ValueError)):
                    put([host, array, bad], place)
    np.testing.assert_array_equal(host, aligned(8))
    np.testing.assert_array_equal(array, aligned(8))
    assert host.flags.writeable
    assert not array.is_deleted()
    assert counts()[0] == 0
    good()


def test_debug_build_is_what_it_says():
    """In a debug build the counters count; in a release build they stay at zero."""
    assert (live()["live_plans"] > 0) is DEBUG
