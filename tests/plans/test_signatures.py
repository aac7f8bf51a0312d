"""The plan of a call is found among those of many signatures, and no other one is."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import zlib
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipes import Layer, Node, Pair
from support import DEBUG
from twins import jit_counts

import jaxmarshal
from jaxmarshal._core.plans import plan
from jaxmarshal._core.values import live_objects

FIFTY = 50
HUNDRED = 100


def array(*shape, dtype=np.float32):
    """An array on the device, with an aval of its own."""
    return jax.device_put(np.ones(shape, dtype))


def number_of(*args, **kwargs):
    """What tells one signature from another, as a number."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    shapes = [(jnp.shape(x), str(getattr(x, "dtype", ""))) for x in leaves]
    return zlib.crc32(repr((shapes, treedef)).encode()) % 2**23


def told(*args, **kwargs):
    """The same, as a program for one signature."""
    return jnp.float32(number_of(*args, **kwargs))


#: Ways in which fifty calls differ: i -> arguments by position, and by name.
ROTATIONS = {
    "shape": lambda i: ((array(i + 1),), {}),
    "rank and dtype": lambda i: (
        (array(*[2] * (i // 10 + 1), dtype=f"{'iuf'[i % 3]}{(4, 2)[i % 10 > 4]}"),), {}),
    "length of a list": lambda i: (([array(2)] * (i + 1),), {}),
    "length of a tuple, beside others": lambda i: ((array(3), (array(2),) * (i + 1)), {}),
    "keys of a dict": lambda i: (({f"k{i}": array(2), "same": array(3)},), {}),
    "number of keys": lambda i: (({f"k{j}": array(2) for j in range(i + 1)},), {}),
    "how deep": lambda i: ((functools.reduce(lambda x, _: [x], range(i), array(2)),), {}),
    "the last of many": lambda i: ((*[array(2)] * 40, array(i + 1)), {}),
    "inside of a node": lambda i: ((Node(array(i + 1)), array(2)), {}),
    "by name": lambda i: ((), {"x": array(i + 1), "y": array(2)}),
    "the name": lambda i: ((array(2),), {f"name{i}": array(2)}),
    "the device": lambda i: (
        (jax.device_put(np.ones(i // 8 + 1, np.float32), jax.devices()[i % 8]),), {}),
    "data on the host": lambda i: (
        (*[array(2)] * 40, np.ones(i + 1, np.float32)), {}),
    "typed keys": lambda i: ((jax.random.wrap_key_data(jnp.zeros((i + 1, 2), "u4")),), {}),
}  # fmt: skip


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_many_signatures(rotation):
    """Each of fifty signatures hits from its second call on, with arguments made anew."""
    function, make = jaxmarshal.jit(functools.partial(told)), ROTATIONS[rotation]
    numbers = list(range(0, FIFTY, 5 if rotation == "how deep" else 1))
    for _ in range(2):
        jit_counts()
        for i in numbers:
            args, kwargs = make(i)
            assert function(*args, **kwargs) == number_of(*args, **kwargs)
        random.Random(3).shuffle(numbers)
    hits, reasons = jit_counts()
    assert (hits, reasons) == (len(numbers), {})


@pytest.mark.parametrize(
    "value",
    [
        lambda i: i, float, str, lambda i: (i, "x"), lambda i: ((i,), i), lambda i: frozenset([i]),
        lambda i: functools.partial(max, i), lambda i: np.dtype(f"S{i + 1}"),
    ],
    ids=["int", "float", "str", "tuple", "nested", "frozenset", "object", "dtype"],
)  # fmt: skip
def test_static_values(value):
    """Values of a static argument, by position and by name."""
    def program(x, n=None, *, mode=None):
        return x + len(str(n)) + len(str(mode))

    function = jaxmarshal.jit(program, static_argnums=1, static_argnames="mode")
    x, values = array(2), [value(i) for i in range(10)]
    calls = [((x, v), {}) for v in values] + [((x,), {"mode": v}) for v in values]
    for _ in range(3):
        jit_counts()
        for args, kwargs in calls:
            wanted = program(np.ones(2), *args[1:], **kwargs)
            assert function(*args, **kwargs).tolist() == wanted.tolist()
    assert jit_counts() == (20, {})


def test_order_counts_for_nothing():
    """Names and keys in another order are the same signature."""
    function = jaxmarshal.jit(lambda tree, **more: told(tree, more))
    trees = [{f"k{j}": array(j + 1) for j in range(i + 2)} for i in range(8)]
    for tree in trees:
        function(tree, **tree)
    jit_counts()
    for tree in trees:
        turned = dict(reversed(tree.items()))
        assert function(turned, **turned) == function(tree, **tree)
    assert jit_counts() == (16, {})


def test_signatures_that_look_alike():
    """Trees that differ below what is looked at are told apart by the guard."""
    kinds = [
        lambda x: OrderedDict(a=x), lambda x: Node(x, x), lambda x: Pair(x, x),
        lambda x: Layer(x, x), lambda x: Layer(x, x, "named"), lambda x: [[x, x]] * 30,
        lambda x: {i: x for i in range(30)}, lambda x: {str(i): x for i in range(30)},
    ]  # fmt: skip
    function = jaxmarshal.jit(lambda tree: jax.tree.map(lambda x: x, tree))
    calls = [(kind, n, dtype) for kind in kinds for n in (1, 2, 3) for dtype in ("f4", "i4")]
    for turn in range(2):
        jit_counts()
        for kind, n, dtype in calls:
            x = array(n, dtype=dtype)
            found, wanted = function(kind(x)), kind(x)
            assert jax.tree.structure(found) == jax.tree.structure(wanted)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                assert a.dtype == b.dtype and a.tolist() == b.tolist()
        if turn:
            assert jit_counts() == (len(calls), {})


def test_nodes_are_flattened_once():
    """However many signatures there are, a call asks a node and a static argument once."""
    asked = []

    @jax.tree_util.register_pytree_node_class
    class Telling(Node):
        def tree_flatten(self):
            asked.append("flatten")
            return super().tree_flatten()

    class Static:
        def __init__(self, value):
            self.value = value

        def __hash__(self):
            asked.append("hash")
            return hash(self.value)

        def __eq__(self, other):
            return self.value == other.value

    function = jaxmarshal.jit(lambda tree, n: tree.children[0] + n.value, static_argnums=1)
    calls = [(i + 1, Static(j)) for i in range(4) for j in range(4)]
    for n, static in calls:
        function(Telling(array(n)), static)
    for n, static in calls:
        x, again = array(n), Static(static.value)
        jit_counts()
        asked.clear()
        function(Telling(x), again)
        assert jit_counts() == (1, {})
        assert sorted(asked) == ["flatten", "hash"]


@pytest.mark.parametrize("signatures", [1, 8])
def test_a_node_that_empties_the_list_it_is_in(signatures):
    """Plain JAX reads past the end of the list then; here the call gets what is left."""
    emptied = []

    @jax.tree_util.register_pytree_node_class
    class Emptying(Node):
        def tree_flatten(self):
            for items in emptied:
                del items[3:]
            return super().tree_flatten()

    function = jaxmarshal.jit(lambda tree: jnp.float32(len(jax.tree.leaves(tree))))
    for n in range(300, 300 + signatures):
        for _ in range(2):
            assert function([Emptying(array(2)), *[array(2)] * n]) == n + 1
    jit_counts()
    items = [Emptying(array(2)), *[array(2) for _ in range(300)]]
    emptied.append(items)
    assert function(items) == 3
    emptied.clear()
    assert function([Emptying(array(2)), *[array(2)] * 300]) == 301
    assert jit_counts()[0] == 1


def test_the_oldest_go():
    """Where there are too many signatures, those go that were not called for longest."""
    before = plan.limit_plans(8)
    try:
        function = jaxmarshal.jit(lambda x: x + 1)
        arrays = [array(n) for n in range(1, 31)]
        for x in arrays:
            function(x)
            function(arrays[0])
        if DEBUG:
            gc.collect()
            assert live_objects.snapshot()["live_plans"] <= 8
        jit_counts()
        function(arrays[0])
        for x in arrays[-4:]:
            assert function(x).tolist() == (x + 1).tolist()
        assert jit_counts()[0] >= 5
        function(arrays[1])
        assert jit_counts()[0] == 0
        for x in arrays[:20]:
            assert function(x).tolist() == [2] * len(x)
    finally:
        plan.limit_plans(before)


def test_one_after_many():
    """After fifty signatures, the first one hits again, and so does one that is new."""
    function = jaxmarshal.jit(lambda x: x + 1)
    for n in range(1, 51):
        function(array(n))
    jit_counts()
    for _ in range(10):
        function(array(1))
    assert jit_counts() == (10, {})
    new = array(7, 7)
    for _ in range(10):
        function(new)
    assert jit_counts() == (9, {"not_recorded": 1})


def doubling():
    """A function that compiles quickly, and arguments for a hundred signatures of it."""
    return jax.jit(lambda x: jax.lax.add(x, x)), [array(n) for n in range(1, HUNDRED + 1)]


def rotate(function, arrays):
    """Call it with each array and check the results; (hits, misses)."""
    jit_counts()
    for x in arrays:
        assert function(x).tolist() == [2] * len(x)
    hits, reasons = jit_counts()
    return hits, sum(reasons.values())


def test_a_hundred_in_rotation():
    """Each of a hundred signatures hits from its second call on, in any order."""
    with jaxmarshal.installed("jit"):
        function, arrays = doubling()
        assert rotate(function, arrays) == (0, HUNDRED)
        for _ in range(3):
            random.Random(3).shuffle(arrays)
            assert rotate(function, arrays) == (HUNDRED, 0)


@contextlib.contextmanager
def without_plans(_):
    yield


@contextlib.contextmanager
def under_a_profiler(folder):
    with jaxmarshal.installed("jit"), jax.profiler.trace(str(folder)):
        yield


@pytest.mark.parametrize("first", [without_plans, under_a_profiler])
def test_a_hundred_that_jaxlib_knows(first, tmp_path):
    """Those that jaxlib has answered by itself hit from the third call on, and new ones do, too."""
    function, arrays = doubling()
    with first(tmp_path):
        for x in arrays:
            function(x)
    with jaxmarshal.installed("jit"):
        for _ in range(2):    # the first is noted, the second asks JAX's Python function
            assert rotate(function, arrays) == (0, HUNDRED)
        for _ in range(2):
            assert rotate(function, arrays) == (HUNDRED, 0)
        new = [array(n) for n in range(HUNDRED + 1, HUNDRED + 5)]
        assert rotate(function, new) == (0, 4)
        assert rotate(function, arrays + new) == (HUNDRED + 4, 0)


def test_a_hundred_that_jaxlib_knows_after_others():
    """A function that has plans learns as quickly of the others that jaxlib knows."""
    function, arrays = doubling()
    rotate(function, arrays)
    with jaxmarshal.installed("jit"):
        some = arrays[:3]
        for _ in range(3):
            rotate(function, some)
        for _ in range(2):
            assert rotate(function, arrays[3:]) == (0, HUNDRED - 3)
        assert rotate(function, arrays) == (HUNDRED, 0)


def test_signatures_that_went_come_back():
    """A plan that had to go is made once more, of what jaxlib knows, each time."""
    before = plan.limit_plans(8)
    try:
        function, arrays = doubling()
        rotate(function, arrays[:7])
        with jaxmarshal.installed("jit"):
            for _ in range(2):
                rotate(function, arrays[:7])
            assert rotate(function, arrays[:7]) == (7, 0)
            rotate(function, arrays[7:9])    # a quarter goes
            assert rotate(function, arrays[:2]) == (0, 2)
            rotate(function, arrays[:2])
            assert rotate(function, arrays[:2]) == (2, 0)
    finally:
        plan.limit_plans(before)


def test_few_after_too_many():
    """Signatures whose plans had to go come back when the others stop coming."""
    before = plan.limit_plans(8)
    try:
        with jaxmarshal.installed("jit"):
            function, arrays = doubling()
            for _ in range(3):
                rotate(function, arrays)
            for few in (arrays[:4], arrays[50:54]):
                rotate(function, few * 20)
                assert rotate(function, few * 5) == (20, 0)
    finally:
        plan.limit_plans(before)


def test_a_signature_without_a_plan_takes_nothing_from_others():
    """What has no plan is left alone soon; new signatures are recorded all the same."""
    def program(x):
        if x.ndim == 2:
            jax.debug.callback(lambda: None)
        return jax.lax.add(x, x)

    with jaxmarshal.installed("jit"):
        function = jax.jit(program)
        refused = array(2, 2)
        for _ in range(600):
            function(refused)
        for n in range(1, 5):
            x = array(n)
            for _ in range(4):
                function(refused)
                function(x)
            jit_counts()
            function(x)
            assert jit_counts() == (1, {})
