"""Operations outside of `jit`: what records keep alive, and what code of users they run."""

from __future__ import annotations

import gc
import sys
import weakref
from operator import getitem

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eager import ALONE, X, hit_by, hits, same
from jax import lax
from jax._src import dispatch
from jax.extend.core import Primitive
from support import without_jaxmarshal

import jaxmarshal
from jaxmarshal._core.replay import fusion


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed(ALONE):
        yield


def simple(name):
    """A primitive that JAX runs by its own rule."""
    primitive = Primitive(name)
    dispatch.simple_impl(primitive)
    primitive.def_abstract_eval(lambda x, **params: x)
    jax.interpreters.mlir.register_lowering(primitive, lambda context, x, **params: [x])
    return primitive


class Held:
    """A parameter that owns an array."""

    def __init__(self):
        self.array = jnp.zeros(1 << 18) + 1


def debug(x):
    held = Held()
    jax.debug.callback(lambda v: (held.array, None)[1], x)
    return held


def custom_jvp(x):
    held = Held()
    function = jax.custom_jvp(lambda x: x + held.array[0])
    function.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    function(x)
    return held


def custom_vjp(x):
    held = Held()
    function = jax.custom_vjp(lambda x: x + held.array[0])
    function.defvjp(lambda x: (x, None), lambda _, g: (g,))
    function(x)
    return held


def callback(x):
    held = Held()
    jax.pure_callback(lambda v: np.asarray(v), x, x)
    return held


_own = Primitive("own")
_own.def_impl(lambda x, **params: x + 1)


def own_parameter(x):
    held = Held()
    _own.bind(x, held=held, more=(1, (held,)))
    return held


def own_implementation(x):
    held = Held()
    primitive = Primitive("fresh")
    primitive.def_impl(lambda x: x + held.array[0])
    primitive.bind(x)
    primitive.bind(x)
    return held


def attribute_of_a_function(x):
    held = Held()
    _own.bind(x, function=lambda: held)
    return held


@pytest.mark.parametrize(
    "use",
    [debug, custom_jvp, custom_vjp, callback, own_parameter, own_implementation,
     attribute_of_a_function],
)  # fmt: skip
def test_trap_17_parameters_are_not_kept(use, request):
    """Trap 17: what closures and objects among parameters own dies when JAX lets it go."""
    if use in (debug, callback):
        request.getfixturevalue("callbacks")

    def live():
        x = jnp.asarray(X)
        for _ in range(60):    # what is kept of scalars is kept by then, and steps are one
            use(x)
        fusion.wait()
        jax.effects_barrier()
        gc.collect()
        before = len(jax.live_arrays())
        dead = [weakref.ref(use(x)) for _ in range(20)]
        jax.effects_barrier()
        gc.collect()
        return len(jax.live_arrays()) - before, [ref() is None for ref in dead].count(True)

    found = live()
    with without_jaxmarshal():
        expected = live()
    assert found == expected


def test_trap_17_no_record_for_each_call():
    """Trap 17: calls that JAX compiles nothing for leave nothing behind."""
    x = jnp.asarray(X)
    for _ in range(5):
        jax.nn.relu(x), custom_jvp(x), own_parameter(x), jnp.full(2, float("nan"))
    gc.collect()

    def grown():
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(300):
            jax.nn.relu(x), own_parameter(x), jnp.full(2, float("nan"))
        gc.collect()
        return sys.getallocatedblocks() - before

    grown()
    found = grown()
    with without_jaxmarshal():
        assert found < grown() + 150


class Counted:
    """A parameter that counts how often it is hashed and compared."""

    counts: list[int] = [0, 0]  # noqa: RUF012

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        Counted.counts[0] += 1
        return hash(self.value)

    def __eq__(self, other):
        Counted.counts[1] += 1
        return isinstance(other, Counted) and self.value == other.value


class CountedInt(int):
    def __hash__(self):
        Counted.counts[0] += 1
        return int(self)

    def __eq__(self, other):
        Counted.counts[1] += 1
        return int(self) == other


class CountedTuple(tuple):
    def __hash__(self):
        Counted.counts[0] += 1
        return 1


@pytest.mark.parametrize("make", [Counted, CountedInt, lambda n: CountedTuple((n,)),
                                  lambda n: (1, (Counted(n),))])  # fmt: skip
def test_trap_18_hashing_and_comparing(make):
    """Trap 18: parameters are hashed and compared as often as in JAX, where it does so at all."""
    compiled, direct, x = simple("compiled"), Primitive("direct"), jnp.asarray(X)
    direct.def_impl(lambda x, **params: x + 1)

    def counts(primitive):
        found = []
        for _ in range(4):
            Counted.counts[:] = [0, 0]
            primitive.bind(x, by=make(3))
            found.append(tuple(Counted.counts))
        return found

    for primitive in (compiled, direct):
        primitive.bind(x, by=make(3))
        found = counts(primitive)
        with without_jaxmarshal():
            assert found == counts(primitive)


def test_parameters_that_compare_equal():
    """1, 1.0 and True, and the zeros, are parameters of their own; so are tuples of them."""
    primitive, seen = Primitive("told"), []

    def impl(x, *, by):
        seen.append(repr(by))
        return x

    primitive.def_impl(impl)
    x = jnp.asarray(X)
    values = [1, True, 1.0, 0.0, -0.0, 0, False, (1, 2), (True, 2), (1.0, 2), ((0.0,),), ((-0.0,),),
              "a", b"a", None, np.dtype("float32"), "float32", float("nan")]  # fmt: skip
    for _ in range(3):
        for value in values:
            seen.clear()
            primitive.bind(x, by=value)
            assert seen == [repr(value)]
    compiled = simple("rotated")
    for _ in range(3):
        for value in values:
            same(lambda value=value: compiled.bind(x, by=value), turns=2)


@pytest.mark.parametrize(
    "params",
    [{"by": 1}, {"by": (1, ("a", None), 2.5)}, {"by": True, "to": np.dtype("float32")}, {},
     {"mode": lax.GatherScatterMode.CLIP}, {"precision": lax.Precision.HIGHEST}],
    ids=str,
)  # fmt: skip
def test_plain_parameters_hit(params):
    """Numbers, texts, dtypes, enumerations of JAX's, and tuples of them are plain values."""
    hit_by("bind", lambda x, p=simple("plain"): p.bind(x, **params), jnp.asarray(X))


def test_many_operations():
    """More operations than are kept: each is found again when it comes back."""
    x, primitive = jnp.asarray(X), Primitive("many")
    dispatch.simple_impl(primitive)
    for index in range(700):
        assert float(getitem(x, index % 8)) == index % 8 + 1
        lax.slice(x, (index % 8,), (8,)), lax.broadcast(x, (index % 30 + 1,))
    hit_by("bind", lax.neg, x)


def test_caches_that_are_cleared():
    """What was made of an operation's function goes with it, whoever clears the cache."""
    x = jnp.asarray(X)
    cache = dispatch.xla_primitive_callable
    with without_jaxmarshal():
        original = dispatch.xla_primitive_callable
    for clear in (lambda: cache.cache_clear(), lambda: original.cache_clear()):
        for entry, call in (
            ("bind", lambda: lax.neg(x)), ("bind", lambda: lax.neg(X)),
            ("getitem", lambda: getitem(x, 1)), ("zeros", lambda: jnp.zeros(3)),
        ):  # fmt: skip
            for _ in range(3):
                hit_by(entry, call)
                clear()
                assert original.cache_info().misses == 0
                before = hits(entry)
                call()
                assert hits(entry) == before and original.cache_info().misses > 0
                call(), call()
