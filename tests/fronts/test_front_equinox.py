"""`equinox.filter_jit`: the same as with plain equinox, and how many of the calls were fast."""

from __future__ import annotations

import functools
import gc
import re
import subprocess
import sys
import threading
import warnings
import weakref
from typing import ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run

import jaxmarshal
from jaxmarshal import fronts
from jaxmarshal._core.entries import filtered

eqx = pytest.importorskip("equinox")
(FRONT,) = [front for front in fronts.FRONTS if front.library == "equinox"]
if fronts.why_inactive(FRONT):
    pytest.skip(str(fronts.why_inactive(FRONT)), allow_module_level=True)

NAME = "equinox_filter_jit"


def counts():
    found = jaxmarshal.stats()[NAME]
    return found["hits"], found["misses"]


def described(x):
    """All that can be told of a result; objects that are no data are told by their names."""
    if isinstance(x, jax.Array | np.ndarray):
        where = (str(x.sharding), x.committed) if isinstance(x, jax.Array) else None
        weak = getattr(x, "weak_type", None)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return type(x).__name__, str(x.dtype), x.shape, weak, where, np.asarray(x).tobytes()
    if isinstance(x, eqx.Module):
        return type(x), [(name, described(value)) for name, value in vars(x).items()]
    if isinstance(x, dict):
        return dict, [(key, described(value)) for key, value in x.items()]
    if isinstance(x, list | tuple):
        return type(x), [described(value) for value in x]
    return type(x), getattr(x, "__qualname__", None) or repr(x)


def outcome(call):
    try:
        return described(call())
    except Exception as error:
        return type(error), str(error)


def compare(make, hits, misses=None):
    """`make()` gives calls of functions that it makes; both sides perform them in order.

    The functions are made twice, so that neither side finds what the other compiled.
    """
    plain = [outcome(call) for call in make()]
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        fast = [outcome(call) for call in make()]
        found = counts()
    assert fast == plain
    assert found == (hits, found[1] if misses is None else misses), jaxmarshal.stats()[NAME]


def arrays(n=3):
    return [jnp.arange(4.0) + i for i in range(n)]


def key(n=0):
    return jax.random.key(n)


def linear():
    return eqx.nn.Linear(4, 4, key=key())


def repeated(f, times, *args, **kwargs):
    return [lambda: f(*args, **kwargs)] * times


# --- Calls ---------------------------------------------------------------------------------------

def test_a_model():
    """The first call compiles, the second one is recorded, the others are fast."""

    def make():
        f, model = eqx.filter_jit(lambda model, x: jax.vmap(model)(x)), eqx.nn.MLP(
            4, 2, 8, 2, key=key()
        )
        return repeated(f, 5, model, jnp.ones((3, 4)))

    compare(make, 3, 2)


def test_results_with_static_parts():
    """Modules come back with the very objects that were static when they were traced."""

    def make():
        f = eqx.filter_jit(lambda m, x, s: (m, {"b": x, "a": None}, [jnp.tanh, s, "text"], (), 1.5))
        return repeated(f, 4, linear(), arrays()[0], "other")

    compare(make, 2, 2)
    f = eqx.filter_jit(lambda x, s: (x, s))
    thing = object()
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        results = [f(jnp.ones(2), thing)[1] for _ in range(4)]
        assert counts()[0] == 2
    assert all(result is thing for result in results)


def test_a_training_step():
    """What a step returns is what the next one gets."""

    def make():
        @eqx.filter_jit
        def step(model, x):
            gradients = eqx.filter_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)
            return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradients))

        state = [eqx.nn.MLP(4, 1, 8, 1, key=key())]

        def call():
            state[0] = step(state[0], jnp.ones((2, 4)))
            return state[0]

        return [call] * 6

    compare(make, 4, 2)


@pytest.mark.parametrize("first, second", [
    (2, 3), (True, False), ("a", "b"), (jnp.tanh, jnp.sin), (None, 1.0), (1, 1.0), (1, True),
    ((1, 2), (1, 3)), (float, int), (0.0, -0.0), (np.float32, np.float64),
    (functools.partial(jnp.add, 1), functools.partial(jnp.add, 2)),
], ids=lambda value: re.sub(" at 0x[0-9a-f]*", "", repr(value)))  # fmt: skip
def test_static_leaves_that_change(first, second):
    """Each has a plan of its own, but for values that jaxlib takes for one."""

    def make():
        f = eqx.filter_jit(lambda s, x: (x + 1, s))
        x = arrays()[0]
        return [functools.partial(f, s, x) for s in (first, first, first, second, second, second)]

    plain = [outcome(call) for call in make()]
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        calls = make()
        assert [outcome(call) for call in calls] == plain
        jaxmarshal.reset_stats()
        assert [outcome(call) for call in (calls[0], calls[-1])] == [plain[0], plain[-1]]
        assert counts()[1] == 0


class ByValue:
    """A static leaf with a hash and an equality of its own, which are counted."""

    asked = 0

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        type(self).asked += 1
        return hash(self.value)

    def __eq__(self, other):
        return type(other) is ByValue and self.value == other.value

    def __repr__(self):
        return f"ByValue({self.value})"


def test_static_leaves_with_an_equality_of_their_own():
    """Equal ones are the same; one that has changed is another."""

    def make():
        f = eqx.filter_jit(lambda s, x: x + s.value)
        x, changing = arrays()[0], ByValue(1)

        def change():
            changing.value += 1
            return f(changing, x)

        return [*(functools.partial(f, ByValue(1), x) for _ in range(4)),
                functools.partial(f, changing, x), change, change]

    compare(make, 3, 4)


def test_a_static_leaf_is_asked_no_more_than_by_equinox():
    f, x = eqx.filter_jit(lambda s, x: x + s.value), arrays()[0]
    asked = []
    for context in (jaxmarshal.uninstalled, jaxmarshal.installed):
        with context():
            for _ in range(4):
                f(ByValue(1), x)
            ByValue.asked = 0
            f(ByValue(1), x)
            asked.append(ByValue.asked)
    assert counts()[0] >= 1
    assert 1 <= asked[1] <= asked[0]


def test_what_is_an_array():
    """numpy arrays and scalars are, numbers of Python are not, and neither passes for the other."""

    def make():
        f = eqx.filter_jit(lambda x, y: (x * y, isinstance(y, int | float)))
        x = arrays()[0]
        values = (np.float32(2), 2.0, np.ones(4, np.float32), np.int32(3), np.bool_(True), True)
        return [functools.partial(f, x, y) for y in values for _ in range(4)]

    compare(make, 12, 12)


def test_numpy_arguments_among_few_arrays():
    """jaxlib alone would place them; here there is more to save. They are not kept."""

    def make():
        f = eqx.filter_jit(lambda x: x + 1)
        return [functools.partial(f, np.full(5, i, np.float32)) for i in range(5)]

    compare(make, 3, 2)


def test_arguments_by_name_and_defaults():
    """However an argument is given; the same tree under another name is another call."""

    def make():
        @eqx.filter_jit
        def f(x, y=2.0, *rest, scale=1, **others):
            return x * y * scale + sum(rest) - sum(others.values()), sorted(others)

        a, b, c = arrays()
        calls = [
            lambda: f(a), lambda: f(x=a), lambda: f(a, b), lambda: f(a, y=b), lambda: f(y=b, x=a),
            lambda: f(a, b, c), lambda: f(a, b, scale=c), lambda: f(a, b, other=c),
            lambda: f(a, b, another=c), lambda: f(a, b, p=a, q=b), lambda: f(a, b, q=b, p=a),
        ]
        return [*calls, *calls, *calls]

    compare(make, 19, 14)


def test_arguments_that_do_not_fit():
    def make():
        f = eqx.filter_jit(lambda x: x + 1)
        x = arrays()[0]
        return [*repeated(f, 3, x), lambda: f(), lambda: f(x, x), lambda: f(y=x), lambda: f(x)]

    compare(make, 2, 5)


def test_no_arguments_and_arrays_of_the_function():
    """A function may be a Module, whose arrays are arguments too.

    equinox has one jitted function for all Modules of a name: jaxlib knows the second one's calls,
    and it takes one more to record them.
    """

    def make():
        nothing, model = eqx.filter_jit(lambda: jnp.ones(2)), eqx.filter_jit(linear())
        return [*repeated(nothing, 4), *repeated(model, 4, arrays()[0])]

    compare(make, 3, 5)


def test_methods():
    def make():
        class Model(eqx.Module):
            weight: jax.Array
            name: str = "model"

            @eqx.filter_jit
            def __call__(self, x, flip=False):
                return -self.weight * x if flip else self.weight * x

            @eqx.filter_jit
            def other(self, x):
                return self.weight + x, self.name

        model, x = Model(jnp.ones(4)), arrays()[0]
        return [*repeated(model, 4, x), *repeated(model.other, 4, x),
                *repeated(model, 3, x, flip=True)]

    compare(make, 5, 6)


def test_closures_and_bound_methods_as_leaves():
    def make():
        f = eqx.filter_jit(lambda g, x: g(x))

        def times(n):
            return lambda x: x * n

        twice, thrice, model = times(2), times(3), linear()
        return [functools.partial(f, g, arrays()[0])
                for g in (twice, twice, twice, thrice, thrice, thrice, twice, "x".join)] + [
            functools.partial(f, model.__call__, arrays()[0]) for _ in range(3)]

    compare(make, 4, 7)


@pytest.mark.parametrize(
    "donate", ["all", "all-except-first", "warn", "warn-except-first", "none"]
)
def test_donation(donate):
    """The same arrays are gone; what is donated in one wrapper is not in another."""

    def make():
        def add(x, y, z):
            return x + 1, {"z": y + z}

        f, other = eqx.filter_jit(add, donate=donate), eqx.filter_jit(add)

        def call(function=f):
            args = arrays()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = function(*args)
            return result, [x.is_deleted() for x in args], [str(w.message) for w in caught]

        return [*[call] * 5, *[functools.partial(call, other)] * 5, call]

    fast = 9 if donate == "none" else 7
    compare(make, fast, 11 - fast)


def test_donated_arrays_are_gone():
    def make():
        f = eqx.filter_jit(lambda x: x + 1, donate="all")
        x = arrays()[0]
        return [*[lambda: f(arrays()[0])] * 3, lambda: f(x), lambda: f(x),
                lambda: f(arrays()[0])]

    compare(make, 3)    # whether the one that fails is counted differs between versions


def test_warnings_are_shown_as_often():
    """A call that donates in silence has Python forget which warnings it has shown."""

    def make():
        f = eqx.filter_jit(lambda x: x + 1, donate="all")

        def call():
            f(arrays()[0])
            warnings.warn("once for each place", stacklevel=1)

        def calls():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                for _ in range(5):
                    call()
            return len(caught)

        return [calls]

    compare(make, 3, 2)


# --- Trees ---------------------------------------------------------------------------------------

class Cached(eqx.Module):
    """A Module with an attribute that is there once it was asked for, and a static one."""

    weight: jax.Array
    size: int = eqx.field(static=True)
    shape: tuple = eqx.field(static=True, default=(1, "a"))

    @functools.cached_property
    def norm(self):
        return 2.0


def test_cached_attributes():
    """equinox traces anew when an instance has more attributes than fields; so is it here."""

    def make():
        f = eqx.filter_jit(lambda m: m.weight * m.size)

        def with_attribute():
            model = Cached(arrays()[0], 3)
            model.__dict__["norm"] = 2.0
            return f(model)

        return [*repeated(f, 3, Cached(arrays()[0], 3)), *[with_attribute] * 3,
                *repeated(f, 3, Cached(arrays()[0], 4)),
                *repeated(f, 3, Cached(arrays()[0], 4, (1, "b"))),
                *repeated(f, 3, Cached(arrays()[0], 3))]

    compare(make, 7, 8)


class Wide(eqx.Module):
    """Like `Cached`, but for what the class may do later."""

    weight: jax.Array
    size: int = eqx.field(static=True)


def test_attributes_beside_the_fields():
    """A docstring of an instance's own is a part of it for equinox, and of what comes back."""
    def make():
        f = eqx.filter_jit(lambda m: (m, getattr(m, "__doc__", None) == "own"))
        model, other = Wide(arrays()[0], 3), Wide(arrays()[0], 3)
        object.__setattr__(other, "__doc__", "own")
        calls = [*repeated(f, 3, model), *repeated(f, 2, other), *repeated(f, 1, model)]
        return [lambda call=call: (lambda m: (vars(m[0]), m[1]))(call()) for call in calls]

    compare(make, 2)


def test_instances_that_are_read_in_another_way():
    """equinox asks an instance for its `__dict__`, which a class may give in a way of its own."""
    def getter(self, name):
        found = object.__getattribute__(self, name)
        return {**found, "weight": found["weight"] + 10} if name == "__dict__" else found

    f, model = eqx.filter_jit(lambda m, x: m.weight + x), Wide(arrays()[0], 3)
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        for _ in range(4):
            f(model, 1.0)
        assert counts()[0] == 2
        original = vars(eqx.Module).get("__getattribute__")
        type.__setattr__(Wide, "__getattribute__", getter)
        try:
            found = f(model, 1.0)
            with jaxmarshal.uninstalled():
                assert np.array_equal(found, f(model, 1.0))
        finally:
            type.__delattr__(Wide, "__getattribute__")
        assert vars(eqx.Module).get("__getattribute__") is original
        assert np.array_equal(f(model, 1.0), arrays()[0] + 1)


def test_attributes_that_are_missing():
    def make():
        f = eqx.filter_jit(lambda m: (m.weight, hasattr(m, "size")))
        model = Cached(arrays()[0], 3)

        def without():
            other = Cached(arrays()[0], 3)
            object.__delattr__(other, "size")
            return f(other)

        return [*repeated(f, 3, model), *[without] * 3, *repeated(f, 1, model)]

    compare(make, 3, 4)


def test_switches_of_a_model():
    """`inference_mode` and `tree_at` give other static leaves, or other arrays."""

    def make():
        f = eqx.filter_jit(lambda m, x: m(x, key=jax.random.key(1)))
        model = eqx.nn.Dropout(0.5)
        still = eqx.nn.inference_mode(model)
        other = eqx.tree_at(lambda m: m.p, model, 0.1)
        x = arrays()[0]
        return [functools.partial(f, m, x) for m in (model, still, other) * 4]

    compare(make, 6, 6)


def _stateful():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="ema")

    @eqx.filter_jit
    def step(model, state, x):
        return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    return functools.partial(step, model), state


def test_state():
    def make():
        step, state = _stateful()
        held = [state]

        def call():
            result, held[0] = step(held[0], jnp.arange(12.0).reshape(3, 4))
            return result, type(held[0]), jax.tree.leaves(held[0])

        return [call] * 5

    compare(make, 3, 2)


def test_state_that_is_used_up():
    """A state that was replaced cannot be passed; any other can, as often as one likes."""

    def make():
        step, state = _stateful()
        index, x = eqx.nn.StateIndex(jnp.zeros(4)), jnp.arange(12.0).reshape(3, 4)
        held = [state]

        def call():
            return step(held[0], x)[0]

        def go_on():
            held[0] = step(held[0], x)[1]

        def use_up():
            (marker, *_), old = held[0].tree_flatten()[1], held[0]
            object.__setattr__(index, "marker", marker)
            return jax.tree.leaves(old.set(index, old.get(index)))

        return [call, call, call, go_on, call, call, use_up, call, call]

    compare(make, 4, 2)


def test_a_state_with_keys_or_with_a_tree():
    def make():
        class Layer(eqx.Module):
            index: eqx.nn.StateIndex

            def __init__(self, init):
                self.index = eqx.nn.StateIndex(init)

            def __call__(self, state):
                return state.set(self.index, state.get(self.index))

        calls = []
        for init in (key(), {"b": (jnp.ones(2), None), "a": [jnp.zeros(())]}, linear()):
            layer, state = eqx.nn.make_with_state(Layer)(init)
            f = eqx.filter_jit(lambda layer, state: (layer(state), "text"))
            calls += [lambda f=f, layer=layer, state=state: jax.tree.leaves(f(layer, state))] * 4
        return calls

    compare(make, 6, 6)


class Node:
    """A node that a program registers itself; what is done with it is noted."""

    seen: ClassVar[list[str]] = []

    def __init__(self, x, label):
        Node.seen.append("made")
        self.x, self.label = x, label


def _take_apart(node):
    Node.seen.append("taken apart")
    return (node.x, node.label), "aux"


jax.tree_util.register_pytree_node(Node, _take_apart, lambda aux, parts: Node(*parts))


def test_nodes_of_the_program():
    """They go through JAX's registry, once a call as in equinox."""

    def make():
        f = eqx.filter_jit(lambda n: n.x + len(n.label))
        node = Node(arrays()[0], "abc")
        return [*repeated(f, 4, node), *repeated(f, 3, Node(arrays()[0], "abcd"))]

    compare(make, 3, 4)
    f = eqx.filter_jit(lambda n: n.x + len(n.label))
    with jaxmarshal.installed():
        for _ in range(3):
            f(Node(arrays()[0], "abc"))
        Node.seen.clear()
        f(Node(arrays()[0], "abc"))
        assert counts()[0] > 0 and Node.seen == ["made", "taken apart"]


@pytest.mark.parametrize("give", [
    lambda n, k: Node(n.x, n.label),
    lambda n, k: Node(n.x, n.x + 1),
    lambda n, k: {"n": [Node(n.x, 3), n.x], "k": k},
    lambda n, k: (Node({"k": k}, None), eqx.nn.Dropout(0.1), Node(n, (n.x, n.label))),
    lambda n, k: (jax.tree_util.Partial(jnp.add, n.x), k, "text", n.x),
])
def test_nodes_of_the_program_in_results(give):
    """They are taken apart and made in the same order as by equinox, around the computation."""

    def make():
        f = eqx.filter_jit(lambda *args: give(*args))
        node = Node(arrays()[0], "abc")

        def call():
            Node.seen.clear()
            result = f(node, key())
            return list(Node.seen), jax.tree.structure(result), jax.tree.map(str, result)

        return [call] * 5

    def outcomes():
        return [call() for call in make()][2:]    # at first JAX and the front look for themselves

    plain = outcomes()
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        fast = outcomes()
        assert counts() == (3, 2)
    for (seen, tree, text), (same_seen, same_tree, same_text) in zip(plain, fast, strict=True):
        assert (seen, str(tree)) == (same_seen, str(same_tree))
        assert jax.tree.leaves(text) == jax.tree.leaves(same_text)


def test_a_node_that_fails_when_it_is_made():
    """The error is the program's own, and the next call is as before."""

    def make():
        f = eqx.filter_jit(lambda x: Node(x, "abc"))

        def fail():
            with mock.patch.object(Node, "__init__", side_effect=OverflowError("no node")):
                return f(jnp.ones(2))

        return [*[lambda: f(jnp.ones(2)).x] * 3, fail, lambda: f(jnp.ones(2)).x]

    compare(make, 2)


def test_trees_that_change():
    def make():
        f = eqx.filter_jit(lambda t: jax.tree.map(lambda x: x + 1, t))
        a, b, c = arrays()
        trees = [
            [a, b], (a, b), {"x": a, "y": b}, {"y": b, "x": a}, [a, [b]], [a, None, b], a,
            [a, b, c], {1: a, 2: b}, {(1, 2): a},
        ]
        return [functools.partial(f, tree) for tree in trees * 3]

    compare(make, 12, 18)


def test_classes_of_one_name():
    """Two classes are two, whatever they are called."""

    def make():
        f = eqx.filter_jit(lambda m, x: m(x))

        def model(n):
            class Model(eqx.Module):
                weight: jax.Array

                def __call__(self, x):
                    return self.weight * x * n

            return Model(arrays()[0])

        models = [model(1), model(2)]
        return [functools.partial(f, m, arrays()[0]) for m in models * 4]

    compare(make, 4, 4)


def test_a_class_that_got_another_name():
    """equinox writes the name into the docstrings of its functions for the class; only there."""
    class Renamed(eqx.Module):
        value: jax.Array
        scale: float

    Renamed.__name__ = Renamed.__qualname__ = "Outer.Renamed"

    def make():
        call = eqx.filter_jit(lambda m, x: Renamed(m.value + x, m.scale))
        return repeated(call, 4, Renamed(jnp.ones(3), 2.0), jnp.ones(3))

    compare(make, 2, 2)


def test_a_leaf_that_becomes_a_node():
    class Late:
        def __init__(self, x):
            self.x = x

    f, late = eqx.filter_jit(lambda n, x: x + n.x), Late(1.0)
    with jaxmarshal.installed():
        for _ in range(3):
            f(late, jnp.ones(2))
        assert counts()[0] == 1
        jax.tree_util.register_pytree_node(Late, lambda n: ((n.x,), None), lambda _, c: Late(*c))
        late.x = 5.0
        assert f(late, jnp.ones(2)).tolist() == [6.0, 6.0]
        assert counts()[0] == 1


# --- Where the reference decides -----------------------------------------------------------------

def test_inside_of_transformations():
    """Under a trace the reference decides; a nested `filter_jit` is part of the outer one."""

    def make():
        inner = eqx.filter_jit(lambda x, n: x * n)
        outer = eqx.filter_jit(lambda x: inner(x, 2) + 1)
        x = arrays()[0]
        return [*repeated(inner, 3, x, 2), *repeated(outer, 4, x),
                lambda: jax.vmap(lambda y: inner(y, 2))(x), lambda: inner(x, 2),
                lambda: jax.grad(lambda y: inner(y, 2).sum())(x), lambda: jax.jit(outer)(x)]

    compare(make, 4, 8)


def test_errors_inside(caplog):
    """What `eqx.error_if` raises on the device comes out as equinox has it, and is not logged."""

    def make():
        @eqx.filter_jit
        def f(x):
            return eqx.error_if(x, x[0] > 5, "too large")

        def failing():
            with pytest.raises(eqx.EquinoxRuntimeError, match="too large") as caught:
                f(arrays()[0] + 9)
            return "jax.pure_callback failed" not in caplog.text, "Below is" in str(caught.value)

        return [*repeated(f, 4, arrays()[0]), *[failing] * 2, *repeated(f, 2, arrays()[0])]

    compare(make, 4)    # equinox traces a function of its own, once a process or more often


def test_a_computation_that_fails():
    """What the runtime reports comes out as equinox has it."""
    f, x = eqx.filter_jit(lambda x: x + 1), arrays()[0]
    with jaxmarshal.installed():
        for _ in range(3):
            f(x)
        assert counts()[0] == 1
        with mock.patch.object(
            eqx._jit, "last_error_info", ("a message", ["the stack\n"])
        ), mock.patch.object(
            type(x), "block_until_ready",
            mock.Mock(side_effect=ValueError("_EquinoxRuntimeError: ")), create=True,
        ), pytest.raises(RuntimeError, match="a message") as caught:
            f(x)
        assert type(caught.value) is eqx.EquinoxRuntimeError
        f(x)
        assert counts()[0] == 2


def test_exceptions_of_the_function():
    def make():
        def refuse(x):
            raise KeyError("no")

        f = eqx.filter_jit(lambda x, g: g(x))
        x = arrays()[0]
        return [functools.partial(f, x, g) for g in (*[jnp.sin] * 3, refuse, refuse, jnp.sin)]

    compare(make, 2, 4)


def test_configuration():
    """Each configuration has plans of its own; some are the reference's."""

    def make():
        f, x = eqx.filter_jit(lambda x: x / jnp.sum(x)), arrays()[0]

        def under(context):
            def call():
                with context():
                    return f(x)

            return call

        return [
            *repeated(f, 3, x), *[under(lambda: jax.enable_x64(True))] * 3,
            *[under(lambda: jax.debug_nans(True))] * 3, *[under(jax.disable_jit)] * 2,
            *[under(lambda: jax.default_matmul_precision("float32"))] * 3,
            *[under(lambda: jax.transfer_guard("disallow"))] * 2, *repeated(f, 1, x),
        ]

    plain = [outcome(call) for call in make()]
    with jaxmarshal.installed():
        assert [outcome(call) for call in make()] == plain
        assert counts()[0] >= 5


def test_a_transfer_guard():
    def make():
        f = eqx.filter_jit(lambda x: x + 1)

        def guarded():
            with jax.transfer_guard("disallow_explicit"):
                return f(np.ones(3, np.float32))

        return [*repeated(f, 3, np.ones(3, np.float32)), guarded]

    plain = [outcome(call) for call in make()]
    with jaxmarshal.installed():
        assert [outcome(call) for call in make()] == plain
        assert counts()[0] == 1


def test_replaced_functions_of_equinox():
    """A mock is called."""
    f, x = eqx.filter_jit(lambda x: x + 1), arrays()[0]
    with jaxmarshal.installed():
        for _ in range(3):
            f(x)
        assert counts() == (1, 2)
        partition = eqx._jit.hashable_partition
        with mock.patch.object(
            eqx._jit, "hashable_partition", mock.Mock(side_effect=partition)
        ) as mocked:
            f(x)
        assert mocked.called
        assert jaxmarshal.stats()[NAME]["misses_by_reason"]["replaced"] == 1
        f(x)
        assert counts()[0] == 2


@pytest.mark.parametrize(
    "clear", [lambda f: jax.clear_caches(), lambda f: f._cached.clear_cache()],
    ids=["jax", "function"],
)  # fmt: skip
def test_cleared_caches(clear):
    """What is traced again is what the function is now."""
    scale = [1.0]
    f, x = eqx.filter_jit(lambda x: x * scale[0]), jnp.ones(2)
    with jaxmarshal.installed():
        for _ in range(3):
            f(x)
        assert counts()[0] == 1 and filtered.live_plans(f._cached) == 1
        scale[0] = 3.0
        assert f(x).tolist() == [1.0, 1.0]
        clear(f)
        assert filtered.live_plans(f._cached) == 0
        assert f(x).tolist() == [3.0, 3.0]


def test_other_devices_and_placements():
    def make():
        f = eqx.filter_jit(lambda x: x + 1)
        x = arrays()[0]
        devices = jax.local_devices()
        placed = [jax.device_put(x, device) for device in (devices[0], devices[-1])]
        return [functools.partial(f, y) for y in (x, *placed) * 4]

    plain = [outcome(call) for call in make()]
    with jaxmarshal.installed():
        assert [outcome(call) for call in make()] == plain
        assert counts()[0] >= 4


def test_typed_keys():
    def make():
        f = eqx.filter_jit(lambda k: (jax.random.uniform(k), jax.random.split(k)))
        return [functools.partial(f, key(i)) for i in range(5)]

    compare(make, 3, 2)


# --- Lifetimes, threads, installing --------------------------------------------------------------

def test_nothing_is_kept_alive():
    """Arguments never; a static leaf no longer than equinox's own cache keeps it."""

    class Leaf:
        pass

    f, g = eqx.filter_jit(lambda leaf, x: x + 1), eqx.filter_jit(lambda leaf, x: x + 2)

    def references(function):
        """To a leaf that was passed, once everything was cleared that can be."""
        leaf, model = Leaf(), linear()
        seen = weakref.ref(model)
        for _ in range(4):
            function((leaf, model), arrays()[0])
        del model
        gc.collect()
        assert seen() is None
        function._cached.clear_cache()
        gc.collect()
        return sys.getrefcount(leaf)

    plain = references(f)
    with jaxmarshal.installed():
        assert references(g) <= plain
        assert counts()[0] == 2


def test_classes_of_results_are_not_kept():
    """A class that is no Module is let go of when JAX lets it go."""
    import collections

    def left():
        seen = []
        for _ in range(3):
            pair = collections.namedtuple("pair", ["a", "b"])
            seen.append(weakref.ref(pair))
            f = eqx.filter_jit(lambda x, pair=pair: pair(x, x + 1))
            for _ in range(4):
                f(jnp.ones(2))
            del pair, f
        jax.clear_caches()
        gc.collect()
        return sum(ref() is not None for ref in seen)

    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        found = left()
        assert counts()[0] >= 3
    assert found <= left()


def test_equal_static_leaves_are_not_kept():
    """jaxlib keeps the first of equal ones; the others may go at once."""
    f, x = eqx.filter_jit(lambda s, x: x + s.value), arrays()[0]
    with jaxmarshal.installed():
        values = [ByValue(1) for _ in range(4)]
        for value in values:
            f(value, x)
        assert counts()[0] == 2
        seen = [weakref.ref(value) for value in values]
        del values, value
        gc.collect()
        assert [reference() is None for reference in seen] == [False, True, True, True]


def test_threads():
    f, x = eqx.filter_jit(lambda m, x, n: (m(x) * n, n)), arrays()[0]
    model, wrong = linear(), []
    expected = {n: described(f(model, x, n)) for n in range(4)}

    def work(n):
        for _ in range(50):
            if described(f(model, x, n)) != expected[n]:
                wrong.append(n)

    with jaxmarshal.installed():
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and counts()[0] > 100


def test_installing():
    """By name, with the rest, and exactly back."""
    original = vars(type(eqx.filter_jit(lambda x: x)))["__call__"]
    jaxmarshal.install(only=NAME)
    cls = type(eqx.filter_jit(lambda x: x))
    assert vars(cls)["__call__"] is not original
    f, x = eqx.filter_jit(lambda x: x + 1), arrays()[0]
    for _ in range(4):
        f(x)
    assert counts()[0] == 2 and not jaxmarshal._jax.patching.installed_names() - {NAME}
    jaxmarshal.uninstall()
    assert vars(cls)["__call__"] is original
    f(x)
    assert counts() == (2, 2)
    assert not jaxmarshal._core.entries.jit.uses_plans(f._cached)


def test_explain():
    f, x = eqx.filter_jit(lambda x: x + 1), arrays()[0]
    with jaxmarshal.installed():
        found = jaxmarshal.explain(f, x)
        assert (found.hit, found.entry_point, found.reason) == (False, NAME, "not_recorded")
        for _ in range(3):
            f(x)
        before = counts()
        found = jaxmarshal.explain(f, x)
        assert found.hit and found.entry_point == NAME and found.installed
        assert not jaxmarshal.explain(f, x[:2]).hit
        assert counts() == before


LATER = """
import jaxmarshal
jaxmarshal.install()
import sys
assert "equinox" not in sys.modules
import equinox, jax.numpy as jnp
f, x = equinox.filter_jit(lambda x: x + 1), jnp.ones(3)
for _ in range(4):
    f(x)
assert jaxmarshal.stats()["equinox_filter_jit"]["hits"] == 2, jaxmarshal.stats()
jaxmarshal.uninstall()
f(x)
assert jaxmarshal.stats()["equinox_filter_jit"]["hits"] == 2
"""


def test_a_library_that_is_imported_later():
    subprocess.run([sys.executable, "-c", LATER], check=True)


FIRST = """
import equinox as eqx
import jax.numpy as jnp

f = eqx.filter_jit(lambda x: x + 1)
for _ in range(4):
    f(jnp.ones(3))
"""


@pytest.mark.commands
def test_a_library_that_imports_jax(tmp_path):
    """It is in the middle of its import when jaxmarshal starts."""
    (tmp_path / "script.py").write_text(FIRST)
    done = run("-m", "jaxmarshal", "run", "--report", str(tmp_path / "script.py"))
    assert done.returncode == 0
    (row,) = [line for line in done.stderr.splitlines() if "equinox.filter_jit  " in line]
    assert row.split()[:4] == ["equinox.filter_jit", "4", "50.0", "%"]


def test_versions(monkeypatch):
    """Outside of the bounds it stays the library's own."""
    for version, active in (("0.13.7", False), ("0.13.9", True), ("0.14.0", False)):
        monkeypatch.setattr(fronts, "version_of", lambda _, version=version: version)
        assert (fronts.why_inactive(FRONT) is None) == active
    assert "0.14.0 is outside" in str(fronts.why_inactive(FRONT))
