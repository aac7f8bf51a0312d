"""`jaxmarshal.filter_jit`: fast calls do what its own Python does, for any pytrees."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import inspect
import operator
import pickle
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from observe import observe

import jaxmarshal
from jaxmarshal import filter_jit
from jaxmarshal.fronts import filtered

NAME = "filter_jit"


def counts():
    found = jaxmarshal.stats()[NAME]
    return found["hits"], found["misses"]


def plain(function, **options):
    """The same function, all of whose calls are performed by the Python code, and by JAX."""
    made = filter_jit(function, **options)
    made._cached = jax.jit(
        made._cached.__wrapped__, donate_argnums=0 if made.donate_rest else (), static_argnums=2
    )
    return functools.partial(filtered.reference_call, made)


def same(function, *calls, hits, turns=4, **options):
    """Each call some times, with both; `calls` make (args, kwargs) anew."""
    sides = []
    for side in (plain(function, **options), filter_jit(function, **options)):
        jaxmarshal.reset_stats()
        sides.append([
            observe(lambda side=side, call=call: side(*call()[0], **call()[1]))
            for call in calls for _ in range(turns)
        ])
    assert sides[1] == sides[0]
    assert counts()[0] == hits, jaxmarshal.stats()[NAME]
    return sides[0]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w", "n"], meta_fields=["name"]
)
@dataclasses.dataclass
class State:
    w: object
    n: object
    name: str = "state"


def arrays():
    return {"w": jnp.arange(4.0), "act": jnp.tanh, "n": 3}


# --- Arguments and results -----------------------------------------------------------------------

def test_arrays_are_traced_and_all_else_is_static():
    """Arrays of JAX and numpy, typed keys and numpy's scalars are traced; a call is fast."""
    seen = []

    def function(tree, key, extra, *, scale):
        seen.append((type(tree["n"]), type(scale)))
        found = tree["act"](tree["w"]) * scale + jax.random.uniform(key) + extra
        return {"found": found, "act": tree["act"], "text": "done", "none": None, "key": key}

    def call():
        return (arrays(), jax.random.key(1), np.float32(2)), {"scale": 2}

    same(function, call, hits=2)
    assert seen == [(int, int)] * 2    # each side has traced once


@pytest.mark.parametrize(
    "values",
    [(1, True, 1.0), (1.0, 1, 2), ("a", "b", "a"), (jnp.sin, jnp.cos, jnp.sin), (None, 1, None)],
)  # fmt: skip
def test_static_leaves_that_change(values):
    """Values that compare equal, and are of other types, are told apart in every order."""
    def function(x, value):
        return x, value

    kinds = len({(type(value), value) for value in values})
    same(function, *[lambda v=v: ((jnp.ones(2), v), {}) for v in values], hits=12 - 2 * kinds)


def test_nodes():
    """Custom nodes, namedtuples and containers as arguments and results."""
    def function(state, pair, rest):
        return dataclasses.replace(state, w=state.w + pair[0], n=state.n + 1), {"rest": rest}

    def call(name="a"):
        pair = (np.ones(4, np.float32), "x")
        return (State(jnp.arange(4.0), jnp.int32(1), name), pair, [jnp.ones(2), None, 3]), {}

    same(function, call, lambda: call("b"), call, hits=8)


def test_trap_21_names_of_another_type():
    """Trap 21: names of arguments are sorted, and may be of any class of strings."""
    class Backwards(str):
        __hash__ = str.__hash__

        def __lt__(self, other):
            return str.__gt__(self, other)

    def call(kind=str):
        return (), {kind("a"): jnp.zeros(2), kind("b"): jnp.ones(3)}

    same(lambda **arrays: jax.tree.leaves(arrays), call, lambda: call(Backwards), call, hits=6)


def test_results_without_arrays_and_functions_of_none():
    """No arguments at all, and a result that is static."""
    same(lambda: "static", lambda: ((), {}), hits=2)
    same(lambda: (jnp.zeros(3), 1), lambda: ((), {}), hits=2)


def test_nodes_with_static_leaves_in_results():
    """Custom nodes of a result that hold more than arrays are made as by the Python code."""
    same(lambda x: State(x, 3), lambda: ((jnp.ones(2),), {}), hits=2)
    same(
        lambda x, k: {"b": State(k, {"x": x}), "a": [jnp.sin, State(State(x, None), k)]},
        lambda: ((jnp.ones(2), jax.random.key(3)), {}), hits=2,
    )  # fmt: skip


def test_nodes_that_take_nothing_but_arrays():
    """They refuse what stands for an array while the plan is made, and are fast all the same."""
    class OfArrays:
        def __init__(self, x):
            assert isinstance(x, jax.Array)
            self.x = x

    jax.tree_util.register_pytree_node(
        OfArrays, lambda node: ((node.x,), None), lambda _, parts: OfArrays(*parts)
    )
    f = jaxmarshal.filter_jit(lambda x: {"node": OfArrays(x), "text": "text"})
    jaxmarshal.reset_stats()
    for i in range(4):
        result = f(jnp.full(2, i))
        assert result["node"].x.tolist() == [i, i] and result["text"] == "text"
    assert jaxmarshal.stats()["filter_jit"]["hits"] == 2


def test_shapes_and_types_that_change():
    """Each signature is compiled once, and is fast then."""
    makers = [
        lambda: jnp.ones(2), lambda: np.ones(3), lambda: jnp.int32(1), lambda: jnp.ones(2),
        lambda: [jnp.ones(2)], lambda: 2.0,
    ]  # fmt: skip
    calls = [lambda make=make: ((make(),), {}) for make in makers]
    same(lambda x: jax.tree.map(lambda leaf: leaf * 2, x), *calls, hits=14)


def test_pytrees_that_are_called():
    """Arrays of the function itself are traced."""
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=[])
    @dataclasses.dataclass
    class Layer:
        w: object

        def __call__(self, x):
            return self.w * x

    same(Layer(jnp.arange(3.0)), lambda: ((jnp.ones(3),), {}), hits=2)
    assert filter_jit(Layer(jnp.ones(3)))(2.0).tolist() == [2, 2, 2]


def test_methods():
    """In a class it is a method, whose instance is an argument as any other."""
    class Model:
        @filter_jit
        def double(self, x):
            return x * 2

    model = Model()
    jaxmarshal.reset_stats()
    for _ in range(4):
        assert model.double(jnp.ones(2)).tolist() == [2, 2]
    assert counts()[0] == 2
    assert Model.double is vars(Model)["double"]


# --- Donation ------------------------------------------------------------------------------------

@pytest.mark.parametrize("donate", ["none", "all", "all-except-first"])
def test_donation(donate):
    """What is donated is gone, in fast calls too."""
    step = filter_jit(lambda x, y: (x + 1, y + 2), donate=donate)
    jaxmarshal.reset_stats()
    for _ in range(4):
        x, y = jnp.ones(4), jnp.zeros(4)
        jax.block_until_ready(step(x, y))
        assert x.is_deleted() == (donate == "all")
        assert y.is_deleted() == (donate != "none")
    assert counts()[0] == 2


def test_a_donated_array_again():
    """Deleted arrays are JAX's error."""
    for step in (plain(jnp.negative, donate="all"), filter_jit(jnp.negative, donate="all")):
        for _ in range(3):
            x = jnp.ones(3)
            step(x)
            with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
                step(x)


def test_unused_donations_are_warned_of():
    """JAX's own warning, where it traces."""
    step = filter_jit(lambda x: x.sum(), donate="all")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            step(jnp.ones(4))
    assert len([w for w in caught if "donated" in str(w.message)]) == 1


# --- Wrong calls ---------------------------------------------------------------------------------

@pytest.mark.errors
def test_wrong_calls():
    """Arguments that do not fit the signature, and static leaves without a hash."""
    found = same(
        lambda x, *, y: x, lambda: ((), {}), lambda: ((1, 2), {"y": 3}), lambda: ((1,), {"y": {1}}),
        lambda: ((jnp.ones(2),), {"y": 1}), lambda: ((jnp.ones(2),), {"y": bytearray()}), hits=2,
    )  # fmt: skip
    assert [found[i][0][0] for i in (0, 4, 8, 12)] == [*["raised"] * 3, "returned"]


@pytest.mark.errors
def test_wrong_options():
    """Each is named."""
    with pytest.raises(ValueError, match="none, all, all-except-first, not 'first'"):
        filter_jit(jnp.sin, donate="first")
    with pytest.raises(TypeError, match="takes a function, not int"):
        filter_jit(3)


@pytest.mark.errors
def test_errors_of_the_function():
    """What the function raises while JAX traces reaches the caller."""
    same(lambda x: [][1], lambda: ((jnp.ones(2),), {}), hits=0)


# --- One thing changed ---------------------------------------------------------------------------

@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.enable_x64(True), lambda: jax.debug_nans(True), lambda: jax.disable_jit(),
        lambda: jax.transfer_guard("disallow"), lambda: jax.default_device(jax.devices()[1]),
    ],
)  # fmt: skip
def test_trap_4_contexts(context):
    """Trap 4: the configuration of each call decides."""
    def function(tree, x):
        return tree["act"](tree["w"]) + x, tree["n"]

    outcomes = []
    for side in (plain(function), filter_jit(function)):
        def call(side=side):
            return observe(lambda: side(arrays(), np.float64(1.5)))

        found = [call() for _ in range(3)]
        with context():
            found += [call() for _ in range(3)]
        outcomes.append([*found, *[call() for _ in range(3)]])
    assert outcomes[1] == outcomes[0]


def test_inside_of_transformations():
    """Under a trace the Python code calls the jitted function, which JAX transforms."""
    step = filter_jit(lambda tree, x: (tree["act"](tree["w"]) * x).sum())
    tree = arrays()
    for _ in range(4):
        value = step(tree, jnp.float32(2))
    for transform in (jax.jit, jax.grad, jax.value_and_grad):
        found = transform(lambda x: step(tree, x))(jnp.float32(2))
        assert jnp.allclose(jax.tree.leaves(found)[0], value) or transform is jax.grad


def test_cleared_caches():
    """After `clear_cache()` and `jax.clear_caches()` it is traced anew."""
    traced = []
    step = filter_jit(lambda x: (traced.append(1), x)[1])
    for clear in (lambda: None, step.clear_cache, jax.clear_caches):
        clear()
        for _ in range(4):
            step(jnp.ones(2))
    assert len(traced) == 3


# --- The object ----------------------------------------------------------------------------------

def test_attributes():
    """It has the function's name, documentation and signature, and is copied and pickled."""
    def step(x: int, *, y: int = 2) -> int:
        """Say what it does."""
        return x * y

    made = filter_jit(donate="all")(step)
    assert made.__name__ == "step" and made.__doc__ == "Say what it does."
    assert inspect.signature(made) == inspect.signature(step)
    assert "step" in repr(made) and made.__wrapped__ is step
    other = pickle.loads(pickle.dumps(filter_jit(operator.add, donate="all-except-first")))
    for twin in (other, copy.copy(other), copy.deepcopy(other)):
        assert twin(jnp.ones(2), 1.0).tolist() == [2, 2] and twin.donate_rest


def test_explain():
    """`explain` says what the next call does."""
    step = filter_jit(lambda x, mode: x)
    x = jnp.ones(2)
    assert jaxmarshal.explain(step, x, "a").reason == "not_recorded"
    for _ in range(3):
        step(x, "a")
    assert jaxmarshal.explain(step, x, "a").hit
    assert not jaxmarshal.explain(step, x, "b").hit


def test_nothing_is_kept_alive():
    """Arguments and results go when the program lets them go, and all else with the function."""
    def function(x, thing):
        return x + 1

    class Thing:
        pass

    step, thing = filter_jit(function), Thing()
    held = weakref.ref(thing)
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(5):
        step(jnp.ones(8), thing)
    assert len(jax.live_arrays()) == before
    gone = weakref.ref(step)
    del step, thing, function
    gc.collect()
    jax.clear_caches()    # JAX keeps what was traced, and so its static arguments
    gc.collect()
    assert gone() is None and held() is None


def test_threads():
    """Calls of several threads with other static leaves do not meet."""
    step = filter_jit(lambda tree, n: (tree["w"] + n, n))
    wrong = []

    def work(number):
        for i in range(200):
            n = (number + i) % 5
            found, same_n = step(arrays(), n)
            if same_n != n or found[0] != n:
                wrong.append((n, same_n))

    workers = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert counts()[0]
