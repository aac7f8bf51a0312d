"""Trap 12: a jitted function is more than a call. All else that it has is the reference's."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import pickle
import pydoc
import types
import typing
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import export
from twins import Twins, jit_counts, without_addresses

import jaxmarshal
from jaxmarshal._jax import private

X = np.arange(3, dtype=np.float32)


def documented(x: jax.Array, scale: float = 2.0, *, shift: int = 0) -> jax.Array:
    """What it does."""
    return x * scale + shift


documented.extra = "attribute"


class Callable:
    """A function object without a name."""

    def __call__(self, x):
        return x + 1


FUNCTIONS = {
    "function": lambda: documented,
    "lambda": lambda: lambda x: x + 1,
    "partial": lambda: functools.partial(documented, scale=3.0),
    "method": lambda: Callable().__call__,
    "object": Callable,
    "builtin": lambda: abs,
    "numpy": lambda: jnp.sin,
    "jitted": lambda: jax.jit(documented),
}


def both(make, **options):
    """(plain JAX's, jaxmarshal's) jitted function of one function."""
    function = make()
    return jax.jit(function, **options), jaxmarshal.jit(function, **options)


def outcome(call, *args):
    """What a call returns, or its error."""
    try:
        return call(*args)
    except Exception as error:
        return (type(error), str(error))


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_attributes(kind):
    """Names, documentation, signature, what is wrapped: as `jax.jit` gives them."""
    plain, fast = both(FUNCTIONS[kind])
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__wrapped__", "_fun",
                 "__annotations__", "extra", "__class__", "missing", "__self__"):  # fmt: skip
        found = [outcome(getattr, f, name) for f in (plain, fast)]
        assert found[0] == found[1], name
    for look in (repr, str, inspect.signature, dir, callable, inspect.getdoc, inspect.unwrap,
                 inspect.isfunction, inspect.ismethod, inspect.isroutine, inspect.isbuiltin,
                 inspect.ismethoddescriptor, inspect.isdatadescriptor, inspect.getsourcefile,
                 inspect.isclass, inspect.iscoroutinefunction, inspect.getsource,
                 typing.get_type_hints, pydoc.describe, inspect.getfullargspec):  # fmt: skip
        found = [outcome(look, f) for f in (plain, fast)]
        assert found[0] == found[1], look
    assert vars(fast).keys() == vars(plain).keys()
    assert [name for name in dir(plain) if not hasattr(fast, name)] == []
    public = [name for name in dir(type(plain)) if not name.startswith("_")]
    assert [name for name in public if not hasattr(type(fast), name)] == []


def test_kinds():
    """`isinstance` and the protocol of `jax.stages.Wrapped`; equality and hash by identity."""
    plain, fast = both(lambda: documented)
    other = jaxmarshal.jit(documented)
    assert isinstance(fast, type(plain)) and isinstance(fast, private.PjitFunction)
    assert isinstance(fast, jax.stages.Wrapped) and isinstance(plain, jax.stages.Wrapped)
    assert not isinstance(fast, types.FunctionType) and not isinstance(fast, jax.stages.Compiled)
    assert type(fast) is type(other)
    assert fast == fast and fast != other and fast != plain and hash(fast) == hash(fast)
    assert {fast: 1, other: 2, plain: 3}[fast] == 1 and len({fast, other, plain}) == 3
    with pytest.raises(TypeError):
        fast < other  # noqa: B015
    assert bool(fast)


def test_setting_attributes():
    """Attributes can be set, found, deleted, and come from the same dict."""
    for function in both(lambda: documented):
        function.note = [1]
        function.__doc__ = "Another text."
        function.__name__ = "other"
        assert function.note == vars(function)["note"] == function.__dict__["note"] == [1]
        assert function.__doc__ == "Another text." and function.__name__ == "other"
        assert "note" in dir(function) and hasattr(function, "note")
        del function.note
        assert not hasattr(function, "note")
        for name in ("missing", "note"):
            with pytest.raises(AttributeError):
                delattr(function, name)
        function.__dict__["direct"] = 2
        assert function.direct == 2
        function(jnp.asarray(X))
        assert function(jnp.asarray(X)).tolist() == [0, 2, 4]
    assert jit_counts() == (0, {"not_recorded": 2})    # jaxlib has it from the first one
    found = [outcome(setattr, f, "_cache_miss", 1) for f in both(lambda: documented)]
    assert found[0] == found[1]


def test_the_type_is_no_base():
    """No class can be made of the type, and the error is JAX's."""
    found = [outcome(type, "Sub", (type(f),), {}) for f in both(lambda: documented)]
    with jaxmarshal.installed("jit"):
        found.append(outcome(type, "Sub", (type(jax.jit(documented)),), {}))
    assert found[0][0] is TypeError and "base type" in found[0][1]
    assert found[0] == found[1] == found[2]


def test_setting_what_is_called():
    """`f.__call__ = ...` sets an attribute, or fails, and calls go on as before."""
    x, found = jnp.asarray(X), []
    for function in both(lambda: lambda x: x + 1):
        function(x)
        other = lambda x: x + 100    # noqa: E731
        outcomes = [outcome(setattr, function, "__call__", other)]
        outcomes += [function(x).tolist() for _ in range(3)]
        outcomes += [function.__call__ is other, outcome(function.__call__, x).tolist()]
        outcomes.append(outcome(delattr, function, "__call__"))
        outcomes += [function(x).tolist(), function.__call__(x).tolist()]
        found.append(outcomes)
    assert found[0] == found[1]
    assert jit_counts()[0] >= 4


def test_wraps():
    """`functools.wraps` over it, and wrappers that look through it."""
    for function in both(lambda: documented):

        @functools.wraps(function)
        def wrapper(*args, function=function, **kwargs):
            return function(*args, **kwargs)

        assert wrapper.__name__ == "documented" and wrapper.__doc__ == "What it does."
        assert wrapper.__wrapped__ is function and inspect.unwrap(wrapper) is documented
        assert inspect.signature(wrapper) == inspect.signature(documented)
        assert wrapper(jnp.asarray(X)).tolist() == [0, 2, 4]


def test_lower_trace_and_compile():
    """Stages give the same program, and do not call the function."""
    x = jnp.asarray(X)
    jax.clear_caches()
    plain, fast = both(lambda: documented, static_argnames="shift")
    for look in (
        lambda f: f.lower(x, shift=1).as_text(), lambda f: str(f.trace(x, scale=x).jaxpr),
        lambda f: f.eval_shape(x, shift=3), lambda f: jax.eval_shape(f, x),
        lambda f: str(jax.make_jaxpr(f)(x)), lambda f: f.lower(x).compile()(x).tolist(),
        lambda f: f.trace(x).lower().compile().as_text(), lambda f: f.lower(x).out_info,
        lambda f: f.lower(x).args_info, lambda f: f.lower("text"), lambda f: f.lower(),
        lambda f: export(f)(x).mlir_module(), lambda f: f._cache_size(),
        lambda f: str(jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(x)),
    ):  # fmt: skip
        found = [outcome(look, f) for f in (plain, fast)]
        assert found[0] == found[1]
    assert jit_counts()[0] == 0


def test_transformations():
    """`grad`, `vmap`, `jvp`, `linearize`, `checkpoint`, `named_call`, `custom_jvp` over it."""
    x = jnp.asarray(X)
    plain, fast = both(lambda: lambda x: jnp.sin(x) * x)
    for transformed in (
        lambda f: jax.grad(lambda x: f(x).sum())(x), lambda f: jax.vmap(f)(x),
        lambda f: jax.jvp(f, (x,), (x,)), lambda f: jax.linearize(f, x)[1](x),
        lambda f: jax.vjp(f, x)[1](x), lambda f: jax.checkpoint(f)(x), lambda f: jax.hessian(
            lambda x: f(x).sum())(x), lambda f: jax.named_call(f, name="n")(x),
        lambda f: jax.jit(f)(x), lambda f: jaxmarshal.jit(f)(x), lambda f: jax.jit(jax.jit(f))(x),
        lambda f: jax.value_and_grad(lambda x: f(x).sum())(x),
        lambda f: jax.lax.scan(lambda c, y: (f(c), y), x, x)[0],
        lambda f: jax.lax.cond(True, f, jnp.cos, x), lambda f: jax.lax.map(f, x),
        lambda f: jax.jit(lambda x: f(f(x)))(x), lambda f: jax.tree.map(f, [x, (x,)])[1][0],
        lambda f: jax.closure_convert(f, x)[0](x),
    ):  # fmt: skip
        for _ in range(2):
            found = [jax.tree.leaves(transformed(f)) for f in (plain, fast)]
            for a, b in zip(*found, strict=True):
                np.testing.assert_array_equal(a, b)


class Model:
    """Jitted functions as methods of every kind."""

    def __init__(self, weight):
        self.weight = weight

    @jaxmarshal.jit
    def method(self, x):
        return self.weight * x

    @functools.partial(jaxmarshal.jit, static_argnums=0)
    def static_self(self, x):
        return x + 1

    @classmethod
    @jaxmarshal.jit(static_argnums=0)
    def of_class(cls, x):
        return x + len(cls.__name__)

    @staticmethod
    @jaxmarshal.jit
    def static(x):
        return x * 5

    @property
    @jaxmarshal.jit
    def doubled(self):
        return self.weight * 2

    @functools.partial(jaxmarshal.jit, static_argnames=("self", "n"))
    def both(self, x, n=2):
        return x * n


jax.tree_util.register_pytree_node(
    Model, lambda m: ((m.weight,), None), lambda _, children: Model(*children)
)


def test_methods():
    """As a method, static method, class method and property; bound and unbound."""
    x = jnp.asarray(X)
    model = Model(jnp.float32(3))
    calls = [
        (lambda: model.method(x), [0, 3, 6]), (lambda: Model.method(model, x), [0, 3, 6]),
        (lambda: model.static_self(x), [1, 2, 3]), (lambda: Model.of_class(x), [5, 6, 7]),
        (lambda: model.of_class(x), [5, 6, 7]), (lambda: model.static(x), [0, 5, 10]),
        (lambda: model.doubled, 6), (lambda: model.both(x, n=4), [0, 4, 8]),
        (lambda: functools.partial(Model.method, model)(x), [0, 3, 6]),
    ]  # fmt: skip
    for call, _ in calls:
        call()
    jit_counts()
    for call, expected in calls:
        assert call().tolist() == expected
    assert jit_counts() == (9, {})
    assert isinstance(model.method, types.MethodType)
    assert model.method.__self__ is model and model.method.__func__ is Model.method
    assert model.method == model.method and model.method.__name__ == "method"
    assert Model.__dict__["method"].__get__(None, Model) is Model.method
    assert model.method.lower is not None


def test_weak_references():
    """It can be referred to weakly, and goes when nothing else refers to it."""
    for function in both(lambda: lambda x: x + 1):
        function(jnp.asarray(X))
        reference = weakref.ref(function)
        assert reference() is function and weakref.getweakrefs(function)
        assert weakref.WeakKeyDictionary({function: 1})[function] == 1
    del function
    gc.collect()
    assert reference() is None


def test_copies_and_pickles():
    """Copying and pickling work, or fail, as for the functions of plain JAX."""
    plain, fast = both(lambda: documented, static_argnames="shift", donate_argnums=())
    x = jnp.asarray(X)
    for function in (plain, fast):
        function(x)
    for attempt in (
        pickle.dumps, lambda f: pickle.dumps(f, protocol=2), copy.copy, copy.deepcopy,
        lambda f: cloudpickle.loads(cloudpickle.dumps(f)),
        lambda f: copy.copy({"f": f})["f"], lambda f: f.__reduce_ex__(4)[0],
    ):  # fmt: skip
        found = [outcome(attempt, f) for f in (plain, fast)]
        if callable(found[0]):
            assert callable(found[1])
        else:
            assert without_addresses((("raised", *found[0]),)) == without_addresses(
                (("raised", *found[1]),)
            )
    for make in (copy.copy, lambda f: cloudpickle.loads(cloudpickle.dumps(f))):
        made = make(fast)
        assert isinstance(made, private.PjitFunction)
        for name in ("__name__", "__wrapped__", "_fun", "_jit_info"):
            assert hasattr(made, name) == hasattr(make(plain), name)
        for _ in range(2):
            assert made(x, shift=2).tolist() == [2, 4, 6]
    assert cloudpickle.loads(cloudpickle.dumps(functools.partial(fast, x)))().tolist() == [0, 2, 4]
    state = fast.__getstate__()
    assert state.keys() == plain.__getstate__().keys()
    assert state["cache"] is plain.__getstate__()["cache"]
    assert type(state["cache_miss"]) is types.FunctionType
    assert fast(x).tolist() == [0, 2, 4]


def test_pickles_of_methods_keep_working():
    """An object whose class has jitted methods is pickled by reference to its class."""
    model = pickle.loads(pickle.dumps(Model(np.float32(3))))
    assert model.method(jnp.asarray(X)).tolist() == [0, 3, 6]


def test_as_static_argument_and_as_node():
    """A jitted function as a static argument, as auxiliary data, in a `Partial`."""
    x = jnp.asarray(X)
    _, fast = both(lambda: documented)
    twins = Twins(lambda: lambda f, x: f(x) + 1, static_argnums=0)
    for _ in range(3):
        twins(lambda: (fast, x))
    assert jit_counts() == (2, {"not_recorded": 1, "trace": 2})    # `f` and the sum
    partial = jax.tree_util.Partial(fast, x)
    nodes = Twins(lambda: lambda p: p() * 2)
    jit_counts()
    for _ in range(3):
        nodes(lambda: (partial,))
    assert jit_counts()[0] == 2


def test_jit_of_jit():
    """A jitted function of a jitted function is one more, with traces of its own."""
    seen = []
    for jit in (jax.jit, jaxmarshal.jit):
        traces = []

        def python(x, n=1, traces=traces):
            traces.append(n)
            return x + n

        inner = jit(python, static_argnames="n")
        outer = jit(inner, static_argnames="n")
        log = []
        for function in (inner, outer, inner, outer):
            for n in (1, 2, 1):
                log.append((function(jnp.asarray(X), n=n).tolist(), len(traces)))
        assert outer.__wrapped__ is inner and outer.__name__ == "python"
        seen.append(log)
    assert seen[0] == seen[1]


def test_call_itself():
    """`f.__call__`, `map`, `functools.reduce`, callbacks: whatever calls, calls it."""
    x = jnp.asarray(X)
    _, fast = both(lambda: lambda x: x + 1)
    assert fast.__call__(x).tolist() == [1, 2, 3]
    assert [y.tolist() for y in map(fast, [x, x])] == [[1, 2, 3]] * 2
    assert fast(*[x]).tolist() == fast(**{"x": x}).tolist() == [1, 2, 3]
    assert functools.reduce(lambda y, _: fast(y), range(3), x).tolist() == [3, 4, 5]
    hits, _ = jit_counts()
    assert hits == 6


def test_installed_functions_are_alike():
    """`jax.jit` under `install()` gives the same protocol as `jaxmarshal.jit`."""
    with jaxmarshal.installed("jit"):
        function = jax.jit(documented)
        assert type(function) is type(jaxmarshal.jit(documented))
        assert isinstance(function, private.PjitFunction)
        assert inspect.signature(jax.jit) == inspect.signature(jaxmarshal.jit)
        assert export(function)(jnp.asarray(X)).fun_name == "documented"
    assert repr(function) == repr(jax.jit(documented))


def test_the_function_jit_itself():
    """`jaxmarshal.jit` has the signature, name and documentation of `jax.jit`."""
    assert inspect.signature(jaxmarshal.jit) == inspect.signature(jax.jit)
    assert jaxmarshal.jit.__doc__ == jax.jit.__doc__ and jaxmarshal.jit.__name__ == "jit"
    assert pickle.loads(pickle.dumps(jaxmarshal.jit)) is jaxmarshal.jit


def test_eval_shape_traces_once():
    """`jax.eval_shape` of a jitted function shares its trace, as in the reference."""
    shapes = []
    for place in (contextlib.nullcontext, jaxmarshal.installed):
        traces = []

        with place():
            @jax.jit
            def function(x, *, n, traces=traces):
                traces.append(n)
                return [x] * 2

            x = jnp.ones(3)
            shapes.append(jax.eval_shape(function, x, n=1.5))
            assert jax.eval_shape(function, x, n=1.5) == shapes[-1]
            function(x, n=1.5)
            with pytest.raises(TypeError, match="missing 1 required"):
                jax.eval_shape(function, x)
            static = jax.jit(lambda x, axis: x.sum(axis), static_argnums=1)
            shapes[-1].append(jax.eval_shape(static, x, 0))
        assert len(traces) == 1
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("find", [lambda: jax.eval_shape, lambda: type(jax.lax.add_p).bind])
def test_methods_are_pickled_by_name(find):
    """Functions that are objects of ours are found by name, by whoever loads them."""
    with jaxmarshal.installed():
        found = find()
        text = pickle.dumps(found)
        assert pickle.loads(text) is found
    assert pickle.loads(text) is find()
