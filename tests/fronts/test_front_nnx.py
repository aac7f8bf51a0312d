"""`nnx.jit` as flax has it and accelerated: the same values, objects and errors; which calls hit.

Each program runs twice, without jaxmarshal and with it, from the same start. What it returns is
compared, and how many of its calls hit is asserted.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

import jaxmarshal  # noqa: E402
from jaxmarshal import fronts  # noqa: E402

(FRONT,) = [front for front in fronts.FRONTS if front.name == "nnx_jit"]
if fronts.why_inactive(FRONT):
    pytest.skip(str(fronts.why_inactive(FRONT)), allow_module_level=True)

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.out = nnx.Linear(8, 2, rngs=rngs)
        self.scale = 2.0

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.linear(x))))) * self.scale


def described(obj: Any) -> Any:
    """All of an object that anybody can see: types, attributes in order, metadata, and bits."""
    numbers: dict[int, int] = {}

    def describe(obj):
        if isinstance(obj, nnx.Variable):
            if id(obj) in numbers:
                return ("same", numbers[id(obj)])
            numbers[id(obj)] = len(numbers)
            return (type(obj), sorted(map(str, obj.get_metadata().items())),
                    describe(obj.get_raw_value()), obj._can_update)
        if isinstance(obj, nnx.Pytree):
            if id(obj) in numbers:
                return ("same", numbers[id(obj)])
            numbers[id(obj)] = len(numbers)
            own = {key: value for key, value in vars(obj).items() if key != "_pytree__nodes"}
            return (type(obj), [(key, describe(value)) for key, value in own.items()])
        if type(obj).__name__ == "PytreeState":
            return (obj.initializing, obj.is_setup, obj.trace_state.is_valid())
        if isinstance(obj, jax.Array):
            if jnp.issubdtype(obj.dtype, jax.dtypes.prng_key):
                return (str(obj.dtype), describe(jax.random.key_data(obj)))
            return (str(obj.aval), obj.committed, np.asarray(obj).tobytes())
        if isinstance(obj, nnx.State):
            return (type(obj), describe(dict(obj.raw_mapping)))
        if isinstance(obj, dict):
            return (type(obj), [(key, describe(value)) for key, value in obj.items()])
        if isinstance(obj, (tuple, list)):
            return (type(obj), [describe(value) for value in obj])
        if callable(obj) and not isinstance(obj, type):
            return getattr(obj, "__qualname__", type(obj))
        return obj

    return describe(obj)


def counts() -> tuple[int, int]:
    found = jaxmarshal.stats().get("nnx_jit", {"hits": 0, "misses": 0})
    return found["hits"], found["misses"]


def both(program: Callable[[], Any], hits: int, misses: int) -> Any:
    """What a program returns with jaxmarshal, which has to be what it returns without it."""
    with jaxmarshal.uninstalled():
        plain = described(program())
    jaxmarshal.reset_stats()
    with jaxmarshal.installed():
        result = program()
        found = counts()
    assert described(result) == plain
    assert found == (hits, misses)
    return result


def train_step(**options):
    @nnx.jit(**options)
    def step(model, optimizer, x):
        def loss(model):
            return (model(x) ** 2).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return step


def made(seed=0):
    model = Model(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


# --- Training ------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [
    {}, {"donate_argnums": (0, 1)}, {"donate_argnames": ("model", "optimizer")},
])
def test_training(options):
    def program():
        model, optimizer = made()
        step, x = train_step(**options), jax.device_put(X)
        return [step(model, optimizer, x) for _ in range(5)], model, optimizer

    both(program, 4, 1)


def test_by_name():
    def program():
        model, optimizer = made()
        step, x = train_step(), jax.device_put(X)
        return [step(x=x, model=model, optimizer=optimizer) for _ in range(3)], model

    both(program, 2, 1)


def test_host_batches():
    def program():
        model, optimizer = made()
        step = train_step()
        found = [step(model, optimizer, X + i) for i in range(4)]
        return [*found, step(model, optimizer, X.astype(np.float64))], model

    both(program, 3, 2)


class Tower(nnx.Module):
    def __init__(self, rngs, depth=12):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def test_lists_of_modules():
    """What the optimizer keeps for them has numbers for keys."""
    def program():
        model = Tower(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        step, x = train_step(), jax.device_put(X)
        return [step(model, optimizer, x) for _ in range(5)], model, optimizer

    both(program, 4, 1)


@pytest.mark.parametrize("first, second", [(1, 1), (1, True), (True, 1), (300, int("300"))])
def test_keys_that_are_numbers(first, second):
    """A dict of a module is made anew with the recorded keys, even where they are equal."""
    class Holder(nnx.Module):
        def __init__(self, key):
            self.table = nnx.data({0: jnp.arange(3.0), key: jnp.ones(2)})

    def program():
        step = nnx.jit(lambda holder: sum(value.sum() for value in holder.table.values()))
        one, other = Holder(first), Holder(second)
        results = [step(one), step(one), step(other), step(other)]
        vars(one)["table"] = {0: jnp.arange(3.0), int(str(int(second))): jnp.ones(2)}
        return [*results, step(one)], described(one), described(other)

    both(program, 0 if first is True else 3, 5 if first is True else 2)


def test_two_models_in_turns():
    def program():
        pairs = made(0), made(1)
        step, x = train_step(), jax.device_put(X)
        return [[step(*pair, x) for pair in pairs] for _ in range(4)], pairs

    # The static attributes of the second model are made those of the first one by nnx once.
    assert counts_of(program)[0] >= 6


def counts_of(program) -> tuple[int, int]:
    with jaxmarshal.uninstalled():
        plain = described(program())
    jaxmarshal.reset_stats()
    with jaxmarshal.installed():
        result = program()
    assert described(result) == plain
    return counts()


def test_containers_are_made_anew():
    """The optimizer's state is a tuple of namedtuples with mappings in them: new in every call."""
    with jaxmarshal.installed():
        model, optimizer = made()
        step, x = train_step(), jax.device_put(X)
        step(model, optimizer, x)
        before = optimizer.opt_state
        variable = before[0].mu["linear"]["kernel"]
        step(model, optimizer, x)
        assert counts()[0] >= 1
        assert optimizer.opt_state is not before
        assert optimizer.opt_state[0].mu is not before[0].mu
        assert optimizer.opt_state[0].mu["linear"]["kernel"] is variable


def test_train_and_eval():
    def program():
        model, optimizer = made()
        step, x = train_step(), jax.device_put(X)
        losses = []
        for _ in range(3):
            model.train()
            losses += [step(model, optimizer, x), step(model, optimizer, x)]
            model.eval()
            losses += [step(model, optimizer, x), step(model, optimizer, x)]
        return losses, model, optimizer

    both(program, 10, 2)


def test_rngs_streams():
    def program():
        rngs = nnx.Rngs(0, dropout=1)

        @nnx.jit
        def draw(rngs):
            return jax.random.key_data(rngs.dropout()), rngs.params()

        found = [draw(rngs) for _ in range(3)]
        rngs.dropout.count[...] = jnp.uint32(0)
        return [*found, draw(rngs)], rngs

    both(program, 3, 1)


def test_metrics():
    def program():
        metrics = nnx.MultiMetric(
            accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss")
        )

        @nnx.jit
        def update(metrics, loss, logits, labels):
            metrics.update(loss=loss, logits=logits, labels=labels)

        logits, labels = jax.device_put(X), jnp.array([0, 1, 2])
        for i in range(4):
            update(metrics, jnp.float32(i), logits, labels)
        found = metrics.compute()
        metrics.reset()
        update(metrics, jnp.float32(9), logits, labels)
        return found, metrics.compute(), metrics

    assert counts_of(program)[0] >= 3


# --- What changes between two calls --------------------------------------------------------------

def forward():
    return nnx.jit(lambda model, x: model(x))


def changed(change: Callable[[Any], None], hits: int, misses: int) -> None:
    """Two calls, a change of the model, two calls; and all of it once more."""
    def program():
        model, call, x = Model(nnx.Rngs(0)), forward(), jax.device_put(X)
        found = [call(model, x), call(model, x)]
        change(model)
        return [*found, call(model, x), call(model, x)], model

    both(program, hits, misses)


def set_static(model):
    model.scale = 3.0


def add_attribute(model):
    model.another = 1


def remove_attribute(model):
    model.another = 1
    del model.another


def add_variable(model):
    model.another = nnx.Param(jnp.ones(3))


def replace_module(model):
    model.out = nnx.Linear(8, 5, rngs=nnx.Rngs(7))


def replace_variable(model):
    model.out.bias = nnx.Param(jnp.ones(2))


def another_type(model):
    model.out.bias = nnx.BatchStat(jnp.ones(2))


def share_variable(model):
    model.dropout.extra = model.norm.bias


def share_module(model):
    model.linear2 = model.linear


def change_metadata(model):
    model.out.bias.set_metadata("note", "x")


def another_shape(model):
    model.out.bias = nnx.Param(jnp.ones((1, 2)))


def another_dtype(model):
    model.out.bias.set_raw_value(model.out.bias[...].astype(jnp.bfloat16))


def host_value(model):
    model.out.bias.set_raw_value(np.ones(2, np.float32))


@pytest.mark.parametrize(("change", "hits", "misses"), [
    (set_static, 2, 2), (add_attribute, 2, 2), (remove_attribute, 3, 1), (add_variable, 2, 2),
    (replace_module, 2, 2), (replace_variable, 3, 1), (another_type, 2, 2),
    (share_variable, 2, 2), (share_module, 2, 2), (change_metadata, 2, 2),
    (another_shape, 2, 2), (another_dtype, 2, 2),
])
def test_surgery(change, hits, misses):
    changed(change, hits, misses)


def test_an_attribute_that_gets_another_name():
    """The same values in the same order, under other names."""
    class Named(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.ones(3))
            self.zoom = 2.0

    def program():
        model, call = Named(), nnx.jit(lambda m: m.weight * getattr(m, "zoom", 10.0))
        found = [call(model), call(model), call(model)]
        vars(model)["zooms"] = vars(model).pop("zoom")    # past what nnx notes of attributes
        for _ in range(2):
            try:
                found.append(call(model))
            except Exception as error:
                found.append(type(error).__name__)
        return found, list(vars(model))

    counts_of(program)
    assert counts()[0] == 3


@pytest.mark.parametrize(("leaf", "static"), [
    (lambda: np.array(1, np.int32), lambda: np.int32(3)), (lambda: np.array(True), lambda: True),
])
def test_numbers_where_arrays_were(leaf, static):
    """Of what containers hold, nnx takes arrays for leaves, and all else for static."""
    class Holder(nnx.Module):
        def __init__(self):
            self.a = nnx.Param(jnp.ones(2))
            self.items = nnx.data({"held": leaf()})

    def program():
        first = nnx.jit(lambda x: x)    # such a number is known to be placed
        for _ in range(3):
            first(static())
        model = Holder()
        call = nnx.jit(
            lambda m: m.a[...] * (2 if isinstance(m.items["held"], jax.Array) else 3)
        )
        found = []
        for _ in range(4):
            model.items = nnx.data({"held": leaf()})
            found.append(call(model))
        model.items = nnx.data({"held": static()})
        return [*found, call(model), type(model.items["held"]).__name__]

    counts_of(program)
    assert counts()[0] >= 2


class Raises:
    """Equals itself until it is told to raise."""

    def __init__(self):
        self.told = False

    def __eq__(self, other):
        if self.told:
            raise ValueError("told")
        return self is other

    __hash__ = object.__hash__


@pytest.mark.parametrize("make", [lambda: float("nan"), Raises, lambda: (float("nan"), 1)])
def test_static_attributes_that_do_not_equal_themselves(make):
    """Whether nnx asks such an attribute depends on the version of Python; it is asked as often."""
    def program():
        model, traces = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), []
        model.mark = make()
        call, x = nnx.jit(lambda m, x: (traces.append(1), m(x))[1]), jax.device_put(X)
        found = [call(model, x) for _ in range(4)]
        if isinstance(model.mark, Raises):
            model.mark.told = True
            try:
                call(model, x)
                found.append("returned")
            except Exception as error:
                found.append(type(error).__name__)
            model.mark.told, model.mark = False, None
        return found, len(traces)

    counts_of(program)


def test_a_class_that_is_registered_anew():
    """What nnx has for a class in its registry takes its instances apart."""
    import dataclasses

    from flax.nnx import graphlib

    def program():
        class Own(nnx.Module):
            def __init__(self):
                self.weight = nnx.Param(jnp.ones(2))

        model, call, seen = Own(), nnx.jit(lambda m: m.weight[...] * 2), []
        for _ in range(3):
            call(model)
        old = graphlib.GRAPH_REGISTRY[Own]
        graphlib.GRAPH_REGISTRY[Own] = dataclasses.replace(
            old, flatten=lambda node: (seen.append(1), old.flatten(node))[1]
        )
        call(model)
        return len(seen)

    counts_of(program)
    assert counts()[0] == 2


def test_host_values_in_variables():
    def program():
        model, call, x = Model(nnx.Rngs(0)), forward(), jax.device_put(X)
        found = [call(model, x)]
        host_value(model)
        return [*found, call(model, x), call(model, x)], model

    counts_of(program)


def test_sharing_that_ends():
    """Two paths lead to one variable, and then to two equal ones."""
    class Tied(nnx.Module):
        def __init__(self):
            self.a = nnx.Param(jnp.ones(3))
            self.b = self.a

    def program():
        model = Tied()

        @nnx.jit
        def step(model):
            model.a[...] += 1
            return model.b[...]

        found = [step(model), step(model)]
        model.b = nnx.Param(model.a[...])
        found += [step(model), step(model)]
        model.b = model.a
        return [*found, step(model)], model

    both(program, 3, 2)


def test_sharing_between_arguments():
    def program():
        a, b = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 4, rngs=nnx.Rngs(1))

        @nnx.jit
        def step(one, two, x):
            one.kernel[...] += 1
            return two(x)

        x = jax.device_put(X)
        return [step(*pair, x) for pair in [(a, b), (a, b), (a, a), (a, a), (b, a), (b, b)]], a, b

    both(program, 4, 2)


def test_lists_and_dicts():
    class Many(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
            self.named = nnx.Dict(a=nnx.Param(jnp.ones(4)), b=nnx.Linear(4, 4, rngs=rngs))

    def program():
        model = Many(nnx.Rngs(0))

        @nnx.jit
        def step(model, x):
            for layer in model.layers:
                x = layer(x)
            model.named.a[...] *= 2
            return x + model.named.a[...]

        x = jax.device_put(X)
        found = [step(model, x), step(model, x)]
        model.layers.append(nnx.Linear(4, 4, rngs=nnx.Rngs(3)))
        found += [step(model, x), step(model, x)]
        model.layers[0], model.layers[1] = model.layers[1], model.layers[0]
        found += [step(model, x)]
        model.named.c = nnx.Param(jnp.zeros(1))
        return [*found, step(model, x)], model

    both(program, 3, 3)


def test_containers_and_arrays_of_a_module():
    """Lists, dicts and arrays that are data: nnx puts new ones in their place in each call."""
    class Holder(nnx.Module):
        def __init__(self):
            self.array = jnp.arange(3.0)
            self.items = nnx.data([nnx.Param(jnp.ones(2)), jnp.zeros(2)])
            self.table = nnx.data({"z": jnp.ones(1), "a": nnx.Param(jnp.zeros(1))})
            self.nothing = nnx.data(None)

    def program():
        model = Holder()

        @nnx.jit
        def step(model):
            model.array = model.array + 1
            model.items[0][...] += 1
            model.items[1] = model.items[1] + 2
            model.table["z"] = model.table["z"] * 3

        for _ in range(3):
            step(model)
        old, table = model.items, model.table
        step(model)
        assert old is not model.items and table is not model.table
        old.append(1)
        model.items.append(nnx.Param(jnp.ones(1)))
        step(model)
        return model, old, table

    both(program, 3, 2)


def test_changes_of_the_graph_inside():
    """A new variable each time, or an attribute that counts: nnx merges those itself."""
    def program():
        model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        model.calls = 0

        @nnx.jit
        def step(model):
            model.calls += 1
            model.last = nnx.Intermediate(model.kernel[...] + model.calls)

        for _ in range(3):
            step(model)
        return model

    both(program, 0, 3)


def test_modules_are_returned():
    def program():
        model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        @nnx.jit
        def same(model):
            model.kernel[...] += 1
            return {"model": model, "kernel": model.kernel, "sum": model.kernel[...].sum()}

        found = [same(model), same(model)]
        assert all(result["model"] is model for result in found)
        assert all(result["kernel"] is model.kernel for result in found)
        return found, model

    both(program, 1, 1)


def test_new_modules_are_returned():
    def program():
        make = nnx.jit(lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
        one, two = make(), make()
        assert one is not two and one.kernel is not two.kernel
        return one, two

    both(program, 0, 2)


def _gradients(model, x):
    return nnx.grad(lambda model: (model(x) ** 2).mean())(model)


def _new_variables(model, x):
    one, two = nnx.Param(x + 1), nnx.BatchStat(x.sum(), note=("a", 1))
    key = nnx.RngKey(jax.random.fold_in(jax.random.key(0), 1), tag="noise")
    return [one, {"two": two, "again": one}, (nnx.State({"key": key, "two": two}), model.linear, x)]


def variables_of(tree):
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return [leaf for leaf in leaves if isinstance(leaf, nnx.Variable)]


@pytest.mark.parametrize("function, hits", [
    (_gradients, 4),
    (_new_variables, 4),
    (lambda model, x: nnx.state(model), 4),
    (lambda model, x: nnx.state(model, nnx.Param), 4),
    (lambda model, x: nnx.clone(nnx.state(model, nnx.BatchStat)), 4),
    (lambda model, x: (model(x), nnx.value_and_grad(lambda m: m(x).sum())(model)), 4),
    (lambda model, x: (nnx.Linear(4, 4, rngs=nnx.Rngs(0)), model(x)), 0),
    (lambda model, x: nnx.clone(model), 0),
])
def test_new_variables_are_returned(function, hits):
    """nnx makes them anew in each call, and once where they are returned twice."""
    def program():
        model, x, step = Model(nnx.Rngs(0)), jax.device_put(X), nnx.jit(function)
        results = [step(model, x) for _ in range(5)]
        found = [variables_of(result) for result in results]
        valid = [[variable._can_update for variable in variables] for variables in found]
        for variable in itertools.chain(*found):
            variable.set_metadata(seen=True)
        return results, valid, model

    both(program, hits, 5 - hits)


def test_intermediates_that_are_taken_out():
    class Sows(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        def __call__(self, x):
            y = self.linear(x)
            self.sow(nnx.Intermediate, "y", y)
            return y

    def program():
        @nnx.jit
        def step(model, x):
            y = model(x)
            return y, nnx.pop(model, nnx.Intermediate)

        model, x = Sows(), jax.device_put(X)
        return [step(model, x) for _ in range(4)], model

    both(program, 3, 1)


def test_static_arguments():
    def program():
        model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        @nnx.jit(static_argnums=(1,), static_argnames=("how",))
        def step(model, times, x, how="a"):
            return model(x) * times + len(how)

        x = jax.device_put(X)
        calls = [(2, "a")] * 2 + [(3, "a")] * 2 + [(3, "bb")] * 2 + [(2, "a"), (True, "a")]
        return [step(model, times, x, how=how) for times, how in calls]

    both(program, 4, 4)


def test_methods():
    class Counter(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.int32(0))

        @nnx.jit
        def add(self, by):
            self.count[...] += by
            return self.count[...]

    def program():
        one, two = Counter(), Counter()
        by = jnp.int32(2)
        return [one.add(by), one.add(by), two.add(by), one.add(by)], one, two

    # A new object misses once: nnx puts its attributes in order.
    assert counts_of(program)[0] >= 1


def test_nested():
    def program():
        inner = nnx.jit(lambda model, x: model(x))

        @nnx.jit
        def outer(model, x):
            return inner(model, x) + 1

        model, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jax.device_put(X)
        return [outer(model, x), inner(model, x), outer(model, x), inner(model, x)]

    # One more miss: the inner call while the outer one is traced.
    both(program, 2, 3)


def test_no_modules():
    def program():
        add = nnx.jit(lambda x, tree: (x + 1, {"b": tree["b"], "a": None}))
        x = jax.device_put(X)
        return [add(x, {"b": x}) for _ in range(3)]

    both(program, 2, 1)


# --- Errors --------------------------------------------------------------------------------------

def test_exceptions_inside():
    def program():
        model, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jax.device_put(X)

        @nnx.jit(static_argnums=2)
        def step(model, x, fail):
            model.kernel[...] += 1
            if fail:
                raise ValueError("no")
            return model(x)

        found = [step(model, x, False)]
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                step(model, x, True)
            found.append(step(model, x, False))
        return found, model

    both(program, 2, 3)


def test_trace_levels():
    """A model from outside that a traced function closes over cannot be changed in it."""
    def program():
        model, call, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), forward(), jax.device_put(X)
        call(model, x)
        call(model, x)
        found = []

        @jax.jit
        def traced(x):
            try:
                return call(model, x)
            except Exception as error:
                found.append((type(error).__name__, str(error).split("\n")[0]))
                return x

        return traced(x), found, model

    both(program, 1, 2)


def test_leaked_variables():
    """A variable that was made while JAX traced stays one that nnx refuses to change."""
    def program():
        kept = []

        @jax.jit
        def leak(x):
            kept.append(nnx.Param(np.ones(3, np.float32)))
            return x

        leak(jnp.ones(1))

        class Holder(nnx.Module):
            def __init__(self):
                self.value = nnx.Param(jnp.ones(3))

        model, step = Holder(), nnx.jit(lambda model: model.value[...] + 1)
        step(model)
        step(model)
        object.__setattr__(model, "value", kept[0])
        kept[0].__class__._raw_value.__set__(kept[0], jnp.ones(3))
        with pytest.raises(Exception) as error:
            step(model)
        return type(error.value).__name__, str(error.value)

    both(program, 1, 2)


def test_deleted_arrays():
    def program():
        model, call, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), forward(), jax.device_put(X)
        call(model, x)
        call(model, x)
        model.kernel[...].delete()
        with pytest.raises(Exception) as error:
            call(model, x)
        return type(error.value).__name__, str(error.value)

    both(program, 1, 2)


# --- JAX and the library change ------------------------------------------------------------------

def test_caches_are_cleared():
    traces = []

    def program():
        traces.clear()

        @nnx.jit
        def call(model, x):
            traces.append(1)
            return model(x)

        model, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jax.device_put(X)
        found = [call(model, x), call(model, x)]
        jax.clear_caches()
        found += [call(model, x), call(model, x)]
        call.jitted_fn.clear_cache()
        found += [call(model, x), call(model, x)]
        assert len(traces) == 3
        return found

    both(program, 3, 3)


def test_configuration():
    def program():
        model, call, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), forward(), jax.device_put(X)
        found = [call(model, x), call(model, x)]
        with jax.default_matmul_precision("highest"):
            found += [call(model, x), call(model, x)]
        with jax.debug_nans(True):
            found.append(call(model, x))
        with jax.disable_jit():
            found.append(call(model, x))
        return [*found, call(model, x)]

    assert counts_of(program)[0] >= 3


@pytest.mark.parametrize("place", [
    "flax.nnx.graphlib.flatten", "flax.nnx.graphlib.unflatten", "flax.nnx.extract.to_tree",
    "flax.nnx.variablelib.Variable.set_raw_value", "flax.nnx.extract.from_tree",
    "flax.nnx.transforms.compilation.JitWrapped._get_pure_args_kwargs",
])
def test_replaced_functions(place):
    with jaxmarshal.installed():
        model, call, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), forward(), jax.device_put(X)
        call(model, x)
        call(model, x)
        parts = place.split(".")
        owner = __import__("flax.nnx", fromlist=["_"])
        for part in parts[2:-1]:
            owner = getattr(owner, part) if hasattr(owner, part) else __import__(
                ".".join(parts[:parts.index(part) + 1]), fromlist=["_"]
            )
        original, seen = getattr(owner, parts[-1]), []

        def spy(*args, **kwargs):
            seen.append(1)
            return original(*args, **kwargs)

        before = counts()
        with mock.patch.object(owner, parts[-1], spy):
            call(model, x)
        assert seen and counts()[0] == before[0]
        call(model, x)
        call(model, x)
        assert counts()[0] > before[0]


def test_classes_that_change():
    """A method of the user's class that nnx calls, put there between two calls."""
    class Own(nnx.Module):
        def __init__(self):
            self.value = nnx.Param(jnp.ones(3))

    class OwnParam(nnx.Param):
        pass

    seen = []
    with jaxmarshal.installed():
        model = Own()
        model.value = OwnParam(jnp.ones(3))
        step = nnx.jit(lambda model: model.value[...] + 1)
        step(model)
        step(model)
        before = counts()[0]
        OwnParam.set_raw_value = lambda self, value, **_: (
            seen.append(1), nnx.Param.set_raw_value(self, value)
        )
        step(model)
        assert seen and counts()[0] == before


def test_hooks():
    """Hooks do not run when nnx puts results back; they run when the function is traced."""
    seen = []

    def hook(variable, value):
        seen.append(1)
        return value * 2

    def program():
        seen.clear()
        with pytest.warns(UserWarning, match="deprecated"):
            variable = nnx.Param(jnp.ones(3), on_set_value=hook)

        class Holder(nnx.Module):
            def __init__(self):
                self.value = variable

        model = Holder()

        @nnx.jit
        def step(model):
            model.value.set_value(model.value.get_value() + 1)

        for _ in range(3):
            step(model)
        return model.value.get_raw_value(), len(seen)

    counts_of(program)


def test_set_mode():
    """`graph=False` and `graph_updates=False` make other functions, which stay as they are."""
    def program():
        model, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jax.device_put(X)
        call = nnx.jit(lambda model, x: model(x), graph=False)
        other = nnx.jit(lambda model, x: model(x), graph_updates=False)
        return [call(model, x), call(model, x), other(model, x), other(model, x)]

    both(program, 0, 0)


def clones_of(step):
    """The nodes that `cached_partial` made for itself."""
    (clones,) = [
        cell.cell_contents for cell in step.__closure__ if isinstance(cell.cell_contents, tuple)
    ]
    return clones


def test_cached_partial():
    def program():
        model, optimizer = made()
        step, x = nnx.cached_partial(train_step(), model, optimizer), jax.device_put(X)
        clones = clones_of(step)
        before = [id(value) for clone in clones for value in vars(clone).values()]
        results = [step(x) for _ in range(4)]
        after = [id(value) for clone in clones for value in vars(clone).values()]
        return results, model, optimizer, before == after, clones

    both(program, 3, 1)


def test_cached_partial_beside_calls_without():
    """The same function with live modules, and with the clones of two caches."""
    def program():
        function, x = train_step(), jax.device_put(X)
        model, optimizer = made()
        one, other = (nnx.cached_partial(function, model, optimizer) for _ in range(2))
        results = []
        for _ in range(3):
            results += [one(x), other(x), function(model, optimizer, x)]
        return results, model, optimizer

    counts_of(program)
    assert counts()[0] >= 5


@pytest.mark.parametrize("change", ["value", "metadata", "clone", "model", "shape", "deleted"])
def test_cached_partial_after_a_change(change):
    def program():
        model, optimizer = made()
        step, x = nnx.cached_partial(train_step(), model, optimizer), jax.device_put(X)
        results = [step(x) for _ in range(4)]
        clone = clones_of(step)[0]
        if change == "value":
            model.linear.kernel.set_value(model.linear.kernel.get_value() * 2)
        elif change == "metadata":
            model.linear.kernel.set_metadata("tag", 1)
        elif change == "clone":
            clone.linear.kernel = nnx.Param(clone.linear.kernel.get_value() * 2)
        elif change == "model":
            model.linear.kernel = nnx.Param(model.linear.kernel.get_value() * 2)
        elif change == "shape":
            x = x[:2]
        else:
            model.linear.kernel.get_raw_value().delete()
        for _ in range(3):
            try:
                results.append(step(x))
            except Exception as error:
                results.append((type(error), str(error).splitlines()[:1]))
        return results, None if change == "deleted" else clone

    counts_of(program)
    assert counts()[0] >= 3


def test_a_cache_that_no_context_takes():
    """What `static_cache` checks stays true: a call takes the cache, whoever performs it."""
    from flax.nnx import graphlib

    with jaxmarshal.installed():
        model, optimizer = made()
        step, x = nnx.cached_partial(train_step(), model, optimizer), jax.device_put(X)
        for _ in range(4):
            step(x)
            assert graphlib.GRAPH_CONTEXT.tmp_static_cache is None
        assert counts()[0] == 3
        wrong = jax.device_put(np.ones((3, 5), np.float32))
        with pytest.raises(TypeError):
            step(wrong)
        assert graphlib.GRAPH_CONTEXT.tmp_static_cache is None


def test_a_cache_is_not_kept_alive():
    with jaxmarshal.installed():
        model, optimizer = made()
        function, x = train_step(), jax.device_put(X)
        step = nnx.cached_partial(function, model, optimizer)
        for _ in range(4):
            step(x)
        seen = [weakref.ref(clone) for clone in clones_of(step)] + [weakref.ref(model)]
        del step, model, optimizer
        gc.collect()
        assert [ref() for ref in seen] == [None] * 3


# --- Threads, lifetimes, installing --------------------------------------------------------------

def test_threads():
    with jaxmarshal.installed():
        call, x = forward(), jax.device_put(X)
        models = [nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(4)]
        expected = [np.asarray(model(x)) for model in models]
        wrong = []

        def work(number):
            for _ in range(50):
                if not np.allclose(call(models[number], x), expected[number]):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert counts()[0] > 150


def test_nothing_is_kept_alive():
    with jaxmarshal.installed():
        model, optimizer = made()
        step, x = train_step(), jax.device_put(X)
        for _ in range(3):
            step(model, optimizer, x)
        assert counts()[0] >= 2
        seen = [weakref.ref(obj) for obj in (model, model.linear, optimizer)]
        arrays = [weakref.ref(model.linear.kernel.get_raw_value()), weakref.ref(x)]
        inner = weakref.ref(step.jitted_fn)
        del model, optimizer, x
        gc.collect()
        assert [ref() for ref in (*seen, *arrays)] == [None] * 5
        del step
        gc.collect()
        assert inner() is None


def test_the_function_keeps_no_results():
    with jaxmarshal.installed():
        model, call, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), forward(), jax.device_put(X)
        call(model, x)
        result = call(model, x)
        kept = weakref.ref(result)
        del result
        gc.collect()
        assert kept() is None
        gradients = nnx.jit(_gradients)
        jaxmarshal.reset_stats()
        results = [gradients(model, x) for _ in range(3)]
        assert counts() == (2, 1)
        kept = [weakref.ref(leaf) for leaf in jax.tree.leaves(results)]
        del results
        gc.collect()
        assert not any(leaf() is not None for leaf in kept)


def test_install_and_uninstall():
    from flax.nnx.transforms import compilation

    original = vars(compilation.JitWrapped)["__call__"]
    with jaxmarshal.installed(only="nnx_jit"):
        assert vars(compilation.JitWrapped)["__call__"] is not original
        assert fronts.installed_names() == {"nnx_jit"}
        model, call, x = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), forward(), jax.device_put(X)
        for _ in range(4):
            call(model, x)
        assert counts()[0] >= 1
    assert vars(compilation.JitWrapped)["__call__"] is original
    with jaxmarshal.installed(only="jit"):
        assert vars(compilation.JitWrapped)["__call__"] is original
    before = counts()
    call(model, x)
    assert counts() == before


@pytest.fixture(autouse=True)
def clean_counts():
    jaxmarshal.reset_stats()
