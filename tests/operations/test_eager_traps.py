"""Operations outside of `jit`: the traps of `bind` and of replayed calls."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import warnings
import weakref
from functools import partial
from operator import getitem  # CPython 3.13's `x[0]` misses what changes after 1000 changes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eager import ALONE, HOST_DATA, X, hit_by, hits, same
from jax import lax
from jax._src import dispatch
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec
from support import JAX, transfer_log, without_jaxmarshal

import jaxmarshal


@pytest.fixture(autouse=True)
def installed():
    """Every test here runs with jaxmarshal installed, so that calls are written as users do."""
    with jaxmarshal.installed(ALONE):
        yield


@pytest.mark.parametrize("name", ["add", "mul", "max", "pow", "atan2"])
def test_operations_hit(name):
    """One primitive of arrays is a plan."""
    x = jnp.asarray(X)
    hit_by("bind", getattr(lax, name), x, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.reshape(2, 4), lambda x: lax.rev(x, (0,)), lambda x: lax.reduce_max(x, (0,)),
        lambda x: lax.sort(x), lambda x: lax.sort((x, -x)), lambda x: lax.top_k(x, 3),
        lambda x: lax.convert_element_type(x, "int32"),
        lambda x: lax.bitcast_convert_type(x, "int32"),
        lambda x: lax.concatenate([x, x], 0), lambda x: lax.cumsum(x),
        lambda x: lax.dynamic_slice(x, (2,), (3,)), lambda x: lax.expand_dims(x, (0,)),
    ],
)  # fmt: skip
def test_operations_with_parameters(call):
    """Parameters are part of what is looked up; several results come as in JAX."""
    hit_by("bind", call, jnp.asarray(X))


def test_arrays_of_arrays():
    """A copy is one step, and what is an array already is its own result."""
    x = jnp.asarray(X)
    hit_by("array", lambda x: jnp.array(x), x)
    hit_by("asarray", lambda x: jnp.asarray(x), x)
    hit_by("asarray", lambda x: jnp.asarray(x, jnp.int32), x)
    assert jnp.asarray(x) is x


def test_trap_4_contexts():
    """Trap 4: the configuration of each call decides."""
    x, y = jnp.asarray(X), jnp.asarray(X[:4])
    calls = [lambda: lax.add(x, x), lambda: jnp.zeros(3), lambda: jnp.asarray(X),
             lambda: getitem(x, 2), lambda: jnp.asarray(1.0), lambda: jnp.full(2, 1.5),
             lambda: lax.neg(y)]  # fmt: skip
    contexts = [
        partial(jax.enable_x64, True), partial(jax.default_device, jax.devices()[-1]),
        partial(jax.default_matmul_precision, "float32"), jax.disable_jit, jax.debug_nans,
        jax.debug_infs, partial(jax.transfer_guard, "disallow"),
        partial(jax.transfer_guard, "log"), partial(jax.numpy_rank_promotion, "raise"),
        partial(jax.numpy_dtype_promotion, "strict"), jax.checking_leaks,
        partial(jax.debug_key_reuse, True), partial(jax.log_compiles, True),
        partial(jax.default_prng_impl, "rbg"),
    ]  # fmt: skip
    for call in calls:
        same(call)
        for context in contexts:
            same(call, context=context, turns=3)
        same(call, turns=2)


def test_trap_4_meshes(mesh):
    """Trap 4: under a mesh, and with arrays that lie on one, results are those of JAX."""
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    x = jax.device_put(np.arange(16.0, dtype=np.float32), sharding)
    calls = [lambda: lax.add(x, x), lambda: getitem(x, 3), lambda: getitem(x, slice(2, 8)),
             lambda: jnp.zeros(8)]  # fmt: skip
    for call in calls:
        same(call)
        same(call, context=lambda: jax.set_mesh(mesh), turns=3)


def test_trap_4_traces():
    """Trap 4: under a trace nothing is dispatched."""
    x = jnp.asarray(X)

    def function(x):
        return lax.add(x, x)[1] + jnp.zeros(3).sum() + jnp.asarray(X)[0] + jnp.full(2, 1.0)[1]

    same(function, x)
    for transform in (jax.jit, jax.grad, jax.value_and_grad, jax.make_jaxpr):
        # A function of its own each time: JAX keeps what it has traced of one.
        same(lambda t=transform: str(t(lambda x: function(x))(x)))
    same(lambda: jax.vmap(function)(jnp.stack([x, x])))


def warned_once(function, *args):
    """Has JAX 0.8 give the warnings that it gives for the first call with a number alone."""
    if JAX < (0, 9):
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            function(*args)


@pytest.mark.parametrize("value", HOST_DATA, ids=str)
@pytest.mark.parametrize("make", [lax.neg, lax.abs])
def test_trap_5_and_8_host_data(make, value):
    """Traps 5 and 8: kinds of host data, with weak types, overflow, warnings and errors."""
    same(make, X)    # so that the operation is known
    warned_once(make, value)
    same(make, value)


CREATIONS = [
    ("zeros", (3,)), ("zeros", ((2, 3),)), ("ones", (3, "int32")), ("ones", (2, np.int8)),
    ("full", (3, 2.0)), ("full", ((2,), 7)), ("full", (2, True)), ("full", (2, 7, np.float32)),
    ("zeros", ((), np.float32)), ("zeros", ((0, 4),)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), CREATIONS, ids=str)
def test_creations_hit(name, args):
    """Calls that take the steps alone, and whose results are arrays of their own."""
    def call(*args):
        return getattr(jnp, name)(*args)

    same(call, *args)
    if name != "ones" or args[1] != "int32":    # a dtype by its name is the reference's
        before = hits(name)
        first, second = call(*args), call(*args)
        assert hits(name) == before + 2
        first.delete()
        assert not second.is_deleted() and np.array_equal(second, call(*args))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("zeros", (-1,)), ("zeros", (np.int32(3),)), ("zeros", ((True, 2),)), ("zeros", (2.0,)),
        ("zeros", ("ab",)), ("zeros", (3, np.float64)), ("zeros", (3, float)), ("ones", (3, "f8")),
        ("full", (2, 2**40)), ("full", (2, -0.0)), ("full", (2, 0.0)), ("full", (2, float("inf"))),
        ("full", (2, float("nan"))), ("full", (2, 1j)), ("full", (2, X[:2])), ("full", (2, "a")),
        ("full", (2, 300, np.int8)), ("full", (2, 1.5, np.int32)), ("zeros", (3, np.str_)),
        ("zeros", (3, jnp.bfloat16)), ("ones", (2, np.complex64)), ("full", (2, 1e300, np.float32)),
        ("full", (2, float("nan"), np.int32)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.errors("(2, 'a')", "('ab',)", "(-1,)", "(2.0,)", "numpy.str_")
def test_odd_creations(name, args):
    """Signs of zero, dtypes JAX has not, numbers out of range, and what is wrong."""
    warned_once(getattr(jnp, name), *args)
    same(lambda *args: getattr(jnp, name)(*args), *args)


def test_values_that_compare_equal():
    """1, True and 1.0, and the zeros, are told apart where JAX tells them apart."""
    for _ in range(3):
        for value in (1, True, 1.0, 0.0, -0.0, 0, False):
            same(lambda value: jnp.full(2, value), value, turns=2)
            assert np.signbit(np.asarray(jnp.full(2, -0.0))).all()


def test_float64_is_warned_of_every_time():
    """A dtype that JAX narrows is warned of in each call, as in the reference."""
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jnp.zeros(3, np.float64)
        assert len(caught) == 1


INDICES = [
    0, 3, -1, -8, 7, 8, 100, -9, slice(2, 6), slice(None), slice(None, None, -1), slice(1, 7, 2),
    slice(-3, None), slice(5, 2), Ellipsis, None, (0,), (slice(1, 3),), (None, 2), (Ellipsis, 1),
    True, np.int32(2), np.array([0, 2]), [1, 2], "a", 1.5, (0, 0), slice(0, 2, None),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.errors("(0, 0)", "1.5", "[1, 2]", "a")
def test_indices(index):
    """Static indices of every form, in and out of bounds, and others."""
    same(getitem, jnp.asarray(X), index)


@pytest.mark.parametrize("index", [0, -1, slice(2, 6), (slice(1, 5), 0)], ids=str)
def test_indexing_hits(index):
    """A static index takes its steps alone; shapes and dtypes have steps of their own."""
    arrays = [jnp.asarray(X.reshape(8, 1)), jnp.ones((9, 2)), jnp.ones((8, 1), "int32")]
    for _ in range(3):
        for x in arrays:
            same(getitem, x, index, turns=2)
    before = hits("getitem")
    for x in arrays:
        getitem(x, index)
    assert hits("getitem") == before + 3


def test_trap_6_other_devices():
    """Trap 6: results lie where the array lies, committed or not."""
    last = jax.devices()[-1]
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    data = np.arange(64, dtype=np.float32).reshape(16, 4)
    for x in (
        jnp.asarray(data), jax.device_put(data, last), jax.device_put(data, jax.devices()[0]),
        jax.device_put(data, NamedSharding(mesh, PartitionSpec("x"))),
        jax.device_put(data, NamedSharding(mesh, PartitionSpec())),
    ):  # fmt: skip
        for index in (1, slice(2, 4), slice(0, 8), slice(None, None, 2), (slice(0, 8), 1)):
            for _ in range(2):
                same(lambda x=x, index=index: (getitem(x, index), lax.neg(x)))


def test_trap_5_deleted_arrays():
    """Trap 5: a deleted or donated array gives the reference's error."""
    for call in (lambda x: getitem(x, 0), lambda x: lax.add(x, x), jnp.array):
        same(call, jnp.asarray(X))
        gone = jnp.asarray(X)
        gone.delete()
        same(call, gone)
        donated = jnp.asarray(X)
        jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
        same(call, donated)


def test_trap_3_weak_types_and_dtypes():
    """Trap 3: weak types and dtypes make other results."""
    for x in (jnp.asarray(1.0), jnp.asarray(np.float32(1)), jnp.asarray(1), jnp.float16(1)):
        hit_by("bind", lax.neg, x)


def test_implementations_of_users():
    """A primitive runs the implementation it has at the time of the call."""
    primitive = Primitive("triple")
    primitive.def_impl(lambda x, *, by: x * by)
    x = jnp.asarray(X)
    for _ in range(3):
        assert np.array_equal(primitive.bind(x, by=3), X * 3)
    primitive.def_impl(lambda x, *, by: x - by)
    for _ in range(3):
        assert np.array_equal(primitive.bind(x, by=3), X - 3)
    with pytest.raises(ZeroDivisionError):
        primitive.def_impl(lambda x, *, by: 1 / 0)
        primitive.bind(x, by=3)


def test_primitives_that_bind_themselves():
    """A primitive whose binding does more than to call the implementation keeps doing it."""
    primitive, bound = Primitive("noted"), []
    primitive.def_impl(lambda x: x + 1)

    def bind_with_trace(*args):
        bound.append(args)
        return Primitive.bind_with_trace(primitive, *args)

    primitive.bind_with_trace = bind_with_trace
    for i in range(3):
        assert np.array_equal(primitive.bind(jnp.asarray(X)), X + 1)
        assert len(bound) == i + 1


def test_primitives_of_jax_that_bind_themselves():
    """The same of one that JAX compiles, and that binds in a way of its own from the start."""
    primitive, bound = Primitive("compiled"), []
    primitive.def_impl(partial(dispatch.apply_primitive, primitive))
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x + 1, multiple_results=False))

    def bind_with_trace(*args):
        bound.append(args)
        return Primitive.bind_with_trace(primitive, *args)

    primitive.bind_with_trace = bind_with_trace
    for _ in range(4):
        before = len(bound)    # it is bound once more while it is compiled
        assert np.array_equal(primitive.bind(jnp.asarray(X)), X + 1)
        assert len(bound) > before


def test_trap_4_transfer_logs(capfd):
    """Trap 4: where transfers are logged, each is, in the words of the reference."""
    def lines():
        jax.clear_caches()    # the first transfer of a kind is logged in more words
        for call in (
            lambda: jnp.asarray(X), lambda: lax.neg(X), lambda: jnp.full(2, 1.5),
            lambda: jnp.array([2.5, 3.5]),
        ):  # fmt: skip
            for _ in range(4):
                with jax.transfer_guard("log"):
                    call()
        return transfer_log(capfd)

    found = lines()
    assert len(found) >= (12 if hasattr(lax, "stage_p") else 8)
    with without_jaxmarshal():
        assert found == lines()


def test_programs_and_keys():
    """Sub-programs, custom rules and typed keys behave as in JAX."""
    x = jnp.asarray(X)
    key = jax.random.key(3)

    @jax.custom_vjp
    def custom(x):
        return x * 2

    custom.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 3,))
    for call in (
        lambda: lax.scan(lambda c, y: (c + y, c * y), jnp.float32(0), x),
        lambda: lax.while_loop(lambda c: c < 9, lambda c: c + 1, 1),
        lambda: lax.cond(x[0] > 0, lambda: x + 1, lambda: x - 1),
        lambda: custom(x), lambda: jax.grad(lambda x: custom(x).sum())(x),
        lambda: jax.random.split(key), lambda: jax.random.fold_in(key, 2),
        lambda: jax.random.normal(key, (3,)), lambda: jax.random.key_data(key),
        lambda: lax.add(x, x[:3]), lambda: lax.add(x, x.astype("int32")),
    ):  # fmt: skip
        same(call)


@pytest.mark.usefixtures("callbacks")
def test_callbacks():
    """A computation may call Python."""
    x = jnp.asarray(X)
    same(lambda: jax.pure_callback(lambda v: v + 1, x, x))


def test_trap_2_nothing_is_kept_alive():
    """Trap 2: neither arguments nor results are kept."""
    x = jnp.asarray(X)
    for _ in range(4):
        lax.add(x, x), x[1], x[2:5], jnp.array(x)
    results = [lax.neg(x), x[1], jnp.zeros(3), jnp.asarray(X)]
    dead = [weakref.ref(array) for array in (x, *results)]
    del x, results
    gc.collect()
    assert [ref() for ref in dead] == [None] * len(dead)


def test_trap_11_clear_caches():
    """Trap 11: after `jax.clear_caches()` everything is found anew."""
    x = jnp.asarray(X)
    for _ in range(3):
        hit_by("bind", lax.sin, x)
        hit_by("getitem", getitem, x, 1)
        jax.clear_caches()
        before = hits("bind"), hits("getitem")
        lax.sin(x), getitem(x, 1)
        assert (hits("bind"), hits("getitem")) == before


def test_trap_13_threads():
    """Trap 13: several threads at once, also while others install and uninstall."""
    x = jnp.asarray(X)
    failed = []

    def work():
        try:
            for _ in range(60):
                assert np.array_equal(lax.add(x, x), X + X)
                assert float(x[3]) == 4 and np.array_equal(jnp.full(2, 1.5), [1.5, 1.5])
                assert np.array_equal(jnp.asarray(X), X)
        except BaseException as error:
            failed.append(error)

    def switch():
        for _ in range(10):
            with jaxmarshal.installed():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    threads.append(threading.Thread(target=switch))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_trap_13_steps_of_another_thread():
    """Trap 13: what another thread does while the steps of a call are noted is not one of them."""
    x, other = jnp.asarray(X), jnp.arange(7)
    for _ in range(4):
        lax.neg(other)

    def work(frame, event, arg):
        thread = threading.Thread(target=lax.neg, args=(other,))
        sys.setprofile(None)
        thread.start()
        thread.join()

    for _ in range(8):
        sys.setprofile(work)
        try:
            found = x[1:3]
        finally:
            sys.setprofile(None)
        assert np.array_equal(found, X[1:3])
    before = hits("getitem")
    x[1:3]
    assert hits("getitem") == before + 1


def test_unhashable_parameters():
    """What cannot be looked up is the reference's."""
    primitive = Primitive("listed")
    primitive.def_impl(lambda x, *, by: x * by[0])
    for _ in range(3):
        assert np.array_equal(primitive.bind(jnp.asarray(X), by=[2]), X * 2)
    assert jaxmarshal.stats()["bind"]["misses_by_reason"].get("options", 0) >= 2
