"""`explain` of what a program has in its hands: its own functions, operators, objects of libraries.

It names what they call; it is about what they are called by; and it says when an object is JAX's.
"""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from support import JAX

import jaxmarshal
from jaxmarshal import api
from jaxmarshal._reports import names_in_code
from jaxmarshal.reasons import MANY, reason_for

explain = jaxmarshal.explain


def said(answer):
    """What is printed, in one line."""
    return " ".join(str(answer).split())


# --- What is JAX's own ---------------------------------------------------------------------------


def test_an_excluded_function():
    """Neither `install()` nor another call makes it fast, and the answer says so."""
    f, x = jaxmarshal.exclude(jax.jit(lambda x: x + 1)), jnp.ones(3)
    for context in (jaxmarshal.installed, jaxmarshal.uninstalled):
        with context():
            answer = explain(f, x)
            assert (answer.hit, answer.reason, answer.installed) == (False, "excluded", False)
            assert "Excluded by `exclude()`" in said(answer)
            assert "not installed" not in said(answer) and "is fast" not in said(answer)
    assert explain(jax.jit(lambda x: x + 1), x).reason == "not_recorded"


def test_a_function_that_was_taken_before():
    """What a program imported above `install()` stays JAX's: not a matter of the next call."""
    done = run_code(
        """
        import jax.numpy as jnp
        from jax.numpy import stack
        import jaxmarshal
        x = jnp.ones(3)
        before = jaxmarshal.explain(stack, [x, x])
        jaxmarshal.install()
        for _ in range(4):
            stack([x, x])
        answer = jaxmarshal.explain(stack, [x, x])
        assert before.reason == "not_recorded", before
        assert "jaxmarshal is not installed" in str(before)
        assert (answer.hit, answer.reason, answer.installed) == (False, "taken_before", False)
        assert "taken from JAX before `install()` and is JAX's own" in str(answer), answer
        assert "not installed" not in str(answer) and "is fast" not in str(answer), answer
        assert jaxmarshal.explain(jnp.stack, [x, x]).reason == "not_recorded"
        """
    )
    assert done.returncode == 0, done.stderr


def test_only_some_entry_points_are_installed():
    """The answer is about the entry point, not about jaxmarshal."""
    with jaxmarshal.installed("device_put"):
        assert "the entry point asarray is not installed" in said(explain(jnp.asarray, 1.0))


# --- Operators -----------------------------------------------------------------------------------

X = "the array"

#: What is called, and with what.
OPERATORS = [
    *(
        (f, args)
        for f, other in (
            (operator.add, 1), (operator.sub, 2.0), (operator.truediv, 2), (operator.lt, 3),
            (operator.iadd, 1), (operator.pow, 2),
        )
        for args in ((X, other), (other, X))
    ),
    (operator.getitem, (X, 0)), (operator.matmul, (X, X)),
    # A lambda function in JAX 0.8.
    *([(operator.neg, (X,))] if JAX >= (0, 9) else []),
    (operator.truediv, (X, X)), (operator.gt, (X, X)), (operator.add, (X, X)),
]  # fmt: skip


@pytest.mark.parametrize("what", OPERATORS, ids=lambda what: f"{what[0].__name__}, {what[1]}")
def test_operators(what):
    """An operator is explained by the method that it calls, and hits once it is recorded."""
    x = jnp.arange(7.0) + 1
    f, args = what[0], [x if arg is X else arg for arg in what[1]]
    with jaxmarshal.installed():
        api.clear()
        before = [jaxmarshal.stats()[name] for name in ("functions", "getitem", "jit", "bind")]
        answer = explain(f, *args)
        assert answer.entry_point in ("functions", "getitem", "jit")
        after = [jaxmarshal.stats()[name] for name in ("functions", "getitem", "jit", "bind")]
        assert after == before, "it was called"
        for _ in range(5):
            f(*args)
        assert explain(f, *args).hit


def test_operators_of_others():
    """An operator without an array is nothing of jaxmarshal's."""
    assert explain(operator.add, 1, 2).reason == "unknown_function"
    assert explain(operator.add, np.ones(3), 2).reason == "unknown_function"


# --- What a function calls -----------------------------------------------------------------------


class Model:
    """With a method, as programs have them."""

    def step(self, x):
        return x[0] + 1 > -x[1]


def test_operators_in_a_function():
    """They are entry points, and named as they are written."""
    answer = explain(lambda x: x + 1, jnp.ones(3))
    assert answer.reason == "leads_to_others"
    assert said(answer).startswith("<lambda> is not accelerated itself. It calls: operators (+).")
    assert "It calls: operators (x[...], +, -, >)." in said(explain(Model().step, jnp.ones(3)))
    def several(x):
        x += 2
        return [y * y for y in x] or ~x
    assert set(names_in_code.operators(several)) == {"+", "*", "~"}


def test_all_that_a_function_calls():
    """Each by its name: functions of nested modules, with derivatives of their own, and so on."""
    add = jax.jit(lambda x: x + 1)

    def step(x):
        return jnp.stack([jax.nn.relu(add(x)), jnp.sum(x), jnp.maximum(x, 1)])

    text = said(explain(step, jnp.ones(3)))
    assert "jitted functions (<lambda>, sum, maximum)" in text
    assert "jax.random (stack, relu)" in text or "jax.random (relu, stack)" in text


def test_only_what_is_an_entry_point():
    """Helpers of JAX that do nothing on a device are not named."""
    def step(x):
        return jnp.issubdtype(x.dtype, jnp.floating), jnp.shape(x), jnp.result_type(x)

    answer = explain(step, jnp.ones(3))
    assert answer.reason == "unknown_function"
    assert "bind" not in said(answer) and "single operations" not in said(answer)


def test_functions_in_a_tuple():
    """As optax keeps those of a chain."""
    functions = (lambda x: jnp.stack([x]), lambda x: jax.device_put(x))

    def chain(x):
        return [f(x) for f in functions]

    text = said(explain(chain, 1.0))
    assert "(stack)" in text and "jax.device_put" in text


# --- Objects that are called ---------------------------------------------------------------------


def test_an_object_whose_call_is_jitted():
    """The class's `__call__` is what the call comes to."""

    class Layer:
        @jax.jit
        def __call__(self, x):
            return x * 2

    jax.tree_util.register_pytree_node(Layer, lambda _: ((), None), lambda *_: Layer())
    layer, x = Layer(), jnp.ones(3)
    with jaxmarshal.installed():
        assert explain(layer, x).reason == "not_recorded"
        for _ in range(3):
            layer(x)
        assert explain(layer, x).hit


def test_objects_of_equinox():
    """A module whose `__call__` is `filter_jit`, one with a plain `__call__`, a wrapper."""
    eqx = pytest.importorskip("equinox", reason="no equinox: its modules were NOT asked about")

    class Jitted(eqx.Module):
        w: jax.Array

        @eqx.filter_jit
        def __call__(self, x):
            return self.w * x

    class Plain(eqx.Module):
        inner: eqx.nn.Linear

        def __call__(self, x):
            return jax.nn.relu(self.inner(x))

    x = jnp.ones(3)
    with jaxmarshal.installed():
        module = Jitted(x)
        assert explain(module, x).reason == "not_recorded"
        for _ in range(4):
            module(x)
        assert explain(module, x).hit
        with pytest.raises(TypeError, match="'x'"):
            explain(module)
        text = said(explain(Plain(eqx.nn.Linear(3, 3, key=jax.random.key(0))), x))
        assert "(relu" in text and "shape" not in text and "single operations" not in text
        gradient = eqx.filter_value_and_grad(lambda w, x: jnp.sum(w * x))
        assert "It calls: jitted functions (sum), operators (*)." in said(explain(gradient, x, x))
        with pytest.raises(TypeError, match="'y'"):
            explain(eqx.filter_jit(lambda x, y: x + y), x)


def test_objects_of_nnx():
    """A module whose `__call__` is `nnx.jit`."""
    nnx = pytest.importorskip("flax.nnx", reason="no flax: its modules were NOT asked about")

    class Module(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(3))

        @nnx.jit
        def __call__(self, x):
            return self.w * x

    with jaxmarshal.installed():
        assert explain(Module(), jnp.ones(3)).entry_point == "nnx_jit"


# --- Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_arguments_that_do_not_fit(args):
    """The call would raise; so does the question."""
    f = jax.jit(lambda x, y: x + y)
    with pytest.raises(TypeError):
        f(*args)
    with pytest.raises(TypeError, match="argument"):
        explain(f, *args)


def test_arguments_of_functions_of_jax():
    """The same."""
    for f in (jnp.stack, jnp.zeros, jax.nn.relu, jax.device_put):
        with pytest.raises(TypeError, match="argument"):
            explain(f)


def test_arguments_of_a_wrapped_function():
    """What a decorator takes counts, and not what it shows."""
    import functools

    def twice(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args, 2.0)

        return wrapper

    f = jax.jit(twice(lambda x, y: x * y))
    assert f(1.0) == 2.0
    assert explain(f, 1.0).entry_point == "jit"


# --- The next call -------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["shape", "placement", "sharding"])
def test_a_call_of_a_new_kind(change):
    """It misses, is recorded, and the call after it hits; the advice promises no more and no less.

    """
    f, x = jax.jit(lambda x: x * 3), jnp.ones(3)
    other = {
        "shape": jnp.ones(4),
        "placement": jax.device_put(jnp.ones(3), jax.devices()[0]),
        "sharding": jax.device_put(jnp.ones(3), jax.devices()[1]),
    }[change]
    with jaxmarshal.installed():
        for _ in range(3):
            f(x)
        answer = explain(f, other)
        assert answer.reason in ("aval", "committed", "sharding")
        assert "the call will be recorded, and is fast from the call after" in said(answer)
        f(other)
        assert explain(f, other).hit


# What never hits with one number after the other, and what the advice says instead.
NUMBERS = {
    "getitem": (lambda x, i: x[i:], lambda x, i: x[jnp.asarray(i)]),
    "functions": (
        lambda x, i: jnp.linspace(0, i, 5), lambda x, i: jnp.linspace(0, jnp.asarray(i), 5),
    ),
    "asarray": (
        lambda x, i: jnp.asarray([i, 1j]),
        lambda x, i: jnp.asarray(np.array([i, 1j], np.complex64)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("entry", NUMBERS)
def test_numbers_that_change(entry):
    """Nobody is told to wait for the next call, and what the advice says makes the calls hit."""
    slow, fast = NUMBERS[entry]
    x = jnp.arange(100.0)
    f = {"getitem": operator.getitem, "functions": jnp.linspace, "asarray": jnp.asarray}[entry]
    args = {
        "getitem": (x, slice(77, None)), "functions": (0, 77, 5), "asarray": ([77, 1j],),
    }[entry]  # fmt: skip
    with jaxmarshal.installed():
        for i in range(4):
            slow(x, i), fast(x, i)
        jaxmarshal.reset_stats()
        for i in range(4, 4 + MANY):
            slow(x, i)
        found = jaxmarshal.stats()[entry]
        assert (found["hits"], found["misses_by_reason"]) == (0, {"not_recorded": MANY})
        f = {"functions": jnp.linspace, "asarray": jnp.asarray}.get(entry, f)
        answer = explain(f, *args)
        assert "each new value or shape is recorded anew" in answer.meaning
        assert f"{MANY} such calls missed so far, and none hit" in answer.meaning
        assert "Nothing" not in answer.advice and "later ones are fast" not in answer.advice
        jaxmarshal.reset_stats()
        for i in range(30, 40):
            fast(x, i)
        assert jaxmarshal.stats()[entry]["hits"] == 10


def test_masks():
    """The shape depends on the elements, so that such calls never hit; `where` does."""
    x = jnp.arange(6.0)
    with jaxmarshal.installed():
        for _ in range(4):
            x[x > 3], jnp.where(x > 3, x, 0)
        jaxmarshal.reset_stats()
        for _ in range(4):
            x[x > 3]
        assert jaxmarshal.stats()["getitem"]["hits"] == 0
        before = jaxmarshal.stats()["functions"]["hits"]
        jnp.where(x > 3, x, 0)
        assert jaxmarshal.stats()["functions"]["hits"] == before + 2
    assert "jnp.where in place of a boolean mask" in reason_for("getitem", "not_recorded").advice


def test_first_calls_and_many():
    """With a hit, or few misses, the words are those of first calls."""
    for entry in ("getitem", "device_put", "zeros", "functions", "array"):
        first = reason_for(entry, "not_recorded")
        assert first == reason_for(entry, "not_recorded", 1, 1000)
        assert first == reason_for(entry, "not_recorded", 0, MANY - 1)
        many = reason_for(entry, "not_recorded", 0, MANY)
        assert "Nothing" in first.advice and "Nothing" not in many.advice
        assert "each new value or shape is recorded anew" in many.meaning
        assert many.advice[0].isupper() and first.advice.endswith(many.advice[1:])
    assert reason_for("getitem", "options", 0, 1000) == reason_for("getitem", "options")
    for entry in ("jit", "nnx_jit", "compiled_call"):    # many functions, each called once
        assert reason_for(entry, "not_recorded", 0, 1000) == reason_for(entry, "not_recorded")
