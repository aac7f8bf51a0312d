"""Arrays of host data: `jnp.asarray`, `jnp.array`, and the primitive that they stage with."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import weakref
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eager import HOST_DATA, X, hit_by, hits, same
from jax._src.numpy import array_constructors
from support import aligned, without_jaxmarshal

import jaxmarshal
from jaxmarshal._jax import private

if private.stage_primitive is None:
    pytest.skip("this JAX does not stage host data", allow_module_level=True)

from jax._src.lax.lax import stage

#: The entry points with functions that go through them, as a user finds these when calling.
MAKERS = {
    "bind": lambda x: stage(x),
    "asarray": lambda x, **options: jnp.asarray(x, **options),
    "array": lambda x, **options: jnp.array(x, **options),
}
FUNCTIONS = ("asarray", "array")


@pytest.fixture(autouse=True)
def installed():
    """Every test here runs with jaxmarshal installed."""
    with jaxmarshal.installed():
        yield


@pytest.mark.parametrize("name", MAKERS)
def test_hits(name):
    """An array of numpy data or a number is one put."""
    for value in (X, X.astype(np.int64), np.float32(2), 1.0, 3, True, 1j, jnp.bfloat16(1).item()):
        hit_by(name, MAKERS[name], value)


@pytest.mark.parametrize("value", HOST_DATA, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_trap_5_and_8_host_data(name, value):
    """Traps 5 and 8: kinds of host data, with weak types, overflow, warnings and errors."""
    same(MAKERS[name], X)    # so that something is recorded
    same(MAKERS[name], value)


@pytest.mark.parametrize("name", MAKERS)
def test_trap_8_values_of_one_kind(name):
    """Trap 8: numbers that do not fit get the reference's errors after others that did."""
    for value in (1, 2**31 - 1, -(2**31), 2**31, 2**40, 2**70, -(2**70), 7):
        same(MAKERS[name], value)
    with jax.enable_x64(True):
        for value in (1, 2**40, 2**63, 2**64, -(2**70)):
            same(MAKERS[name], value)


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("size", [8, 100_000])
@pytest.mark.parametrize("name", MAKERS)
def test_trap_7_no_memory_is_shared(name, size, offset):
    """Trap 7: an array of numpy data that are written afterwards keeps what they were."""
    before = hits(name)
    for turn in range(6):
        data = aligned((size,), offset=offset)
        expected = data.copy()
        array = MAKERS[name](data)
        if turn < 3:    # the reference reads large data while the caller goes on
            array.block_until_ready()
        data[...] = 0
        assert np.array_equal(array, expected)
    assert hits(name) >= before + 3


#: Options with which JAX warns, raises, or does in Python what no step does.
IN_PYTHON = [{"dtype": np.float64}, {"order": "C"}, {"nonsense": 1}, {"a": X}, {"object": X}]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": np.float32}, {"dtype": "int32"}, {"dtype": np.float64}, {"order": "K"},
        {"order": "C"}, {"copy": True}, {"copy": False}, {"device": jax.devices()[1]},
        {"ndmin": 2}, {"out_sharding": None}, {"nonsense": 1}, {"a": X}, {"object": X},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", FUNCTIONS)
def test_options(name, options):
    """With whatever else is given, that decides; and what is an error stays one."""
    same(MAKERS[name], X)
    jaxmarshal.reset_stats()
    for _ in range(4):
        same(MAKERS[name], X, **options)
        same(MAKERS[name], [1.0, X[0]], **options)
    counts = jaxmarshal.stats()[name]
    wrong = name == "asarray" and "ndmin" in options
    assert (counts["hits"] > 0) == (options not in IN_PYTHON and not wrong)
    assert set(counts["misses_by_reason"]) <= {"options", "not_recorded"}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.errors
def test_wrong_calls(name):
    """Calls that do not fit the signature are the reference's errors."""
    for args in ((), (X, None, None, None, None, None), (X, "nonsense")):
        same(lambda *args: getattr(jnp, name)(*args), *args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_and_trees(name):
    """What is no host data is the reference's, and so is what is traced."""
    x = jnp.asarray(X)
    for value in (x, [x, 1.0], [], [[1, 2], [3, 4]], range(3), memoryview(X), jax.random.key(1)):
        same(MAKERS[name], value)
    same(lambda x: getattr(jnp, name)(x) is x, x)
    for transform in (jax.jit, jax.vmap, partial(jax.grad, allow_int=True)):
        same(lambda t=transform: t(lambda x: MAKERS[name](x).sum())(x))
    same(lambda: jax.jit(lambda: MAKERS[name](X) + MAKERS[name](1.5))())


def double(data, **options):
    return private.jnp_array(data, **options) * 2


def negate(data, **options):
    return [stage(data), stage(np.negative(data))][1]


@pytest.mark.parametrize("value", [np.True_, ml_dtypes.bfloat16(1)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_way(name, value):
    """What a function makes of an array of its own, by another way, it does not stage."""
    hit_by("bind", stage, value)
    before = hits(name)
    for _ in range(6):
        same(MAKERS[name], value)
    assert hits(name) == before


@pytest.mark.parametrize("function", [double, negate])
def test_more_than_staging(function, monkeypatch):
    """A function in the place of JAX's is called, whatever was seen of that."""
    monkeypatch.setattr(array_constructors, "array", function)    # what `asarray` calls
    data = np.arange(1, 6, dtype=np.int16)
    before = hits("asarray")
    for _ in range(12):
        assert np.array_equal(jnp.asarray(data), function(data))
    assert hits("asarray") == before


def test_each_function_is_seen_by_itself(monkeypatch):
    """What is known of one function says nothing of another."""
    data = np.arange(1, 7, dtype=np.int16)
    for name in ("bind", "array"):
        hit_by(name, MAKERS[name], data)
    monkeypatch.setattr(array_constructors, "array", double)
    for _ in range(4):
        assert np.array_equal(jnp.asarray(data), data * 2)


@pytest.mark.parametrize("name", MAKERS)
def test_trap_4_contexts(name):
    """Trap 4: the configuration of each call decides, also where another was recorded."""
    for value in (X, X.astype(np.float64), 1.5, 3, np.float64(2)):
        same(MAKERS[name], value)
        for context in (
            partial(jax.enable_x64, True), partial(jax.default_device, jax.devices()[-1]),
            partial(jax.numpy_dtype_promotion, "strict"), jax.disable_jit,
            partial(jax.transfer_guard, "disallow"), partial(jax.set_mesh, _mesh()),
        ):  # fmt: skip
            same(MAKERS[name], value, context=context)
        same(MAKERS[name], value, turns=2)


def _mesh():
    return jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_trap_11_clear_caches(name):
    """Trap 11: after `jax.clear_caches()` everything is found anew."""
    for _ in range(3):
        hit_by(name, MAKERS[name], X)
        jax.clear_caches()
        before = hits(name)
        MAKERS[name](X)
        assert hits(name) == before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_trap_12_functions(name):
    """Trap 12: a function that others know as the reference's own."""
    function = getattr(jnp, name)
    with without_jaxmarshal():
        reference = getattr(jnp, name)
    assert function is not reference
    assert inspect.signature(function) == inspect.signature(reference)
    assert function.__doc__ == reference.__doc__
    for attribute in set(dir(reference)) - set(dir(object)) - {"__call__", "__dict__", "__get__"}:
        assert getattr(function, attribute) == getattr(reference, attribute)
    assert isinstance(function, Callable) and inspect.isroutine(function)
    assert np.array_equal(function.__call__(X), X)
    assert repr(function).startswith(f"<function {name} at 0x")
    assert pickle.loads(pickle.dumps(function)) is copy.deepcopy(function) is function
    assert weakref.ref(function)() is function
    for transform in (jax.jit, jax.vmap):
        same(lambda t=transform: t(getattr(jnp, name))(X))
    same(lambda: str(jax.make_jaxpr(getattr(jnp, name))(X)))
    same(lambda: jax.tree.map(getattr(jnp, name), {"a": X, "b": [1, 2.5]}))

    class Holder:
        make = function

        def __jax_array__(self):
            return jnp.asarray(X)

    assert np.array_equal(Holder().make(), X)


def test_trap_2_nothing_is_kept_alive():
    """Trap 2: neither arguments nor results are kept."""
    for make in MAKERS.values():
        data = [X.copy() for _ in range(6)]
        dead = [weakref.ref(array) for array in data]
        made = [weakref.ref(make(array)) for array in data]
        del data
        gc.collect()
        assert [ref() for ref in (*dead, *made)] == [None] * 12


def test_trap_13_threads():
    """Trap 13: several threads at once, with data that nobody has seen before."""
    failed = []

    def work(number):
        try:
            for size in range(1, 40):
                data = np.full(size, number, np.float32)
                for name in (*FUNCTIONS, *FUNCTIONS, *FUNCTIONS):
                    assert np.array_equal(MAKERS[name](data), data)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
