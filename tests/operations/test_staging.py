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
from jax._src import dtypes, tree_util
from jax._src.lax import lax
from jax._src.numpy import array_constructors
from support import aligned, without_jaxmarshal

import jaxmarshal
from jaxmarshal._jax import private

if private.stage_primitive is None:
    pytest.skip("this JAX does not stage host data", allow_module_level=True)

stage = lax.stage

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


# --- Lists of numbers -----------------------------------------------------------------------------

LISTS = {
    "floats": lambda i: [i + 0.5, -2.0, 1e-3], "ints": lambda i: [i, -7, 2**31 - 1],
    "bools": lambda i: [i % 2 == 0, True], "a tuple": lambda i: (0.25 * i, 1.0),
    "one": lambda i: [float(i)], "nested": lambda i: [[i, 1], [2, 3]],
    "mixed": lambda i: [i, 0.5, True], "mixed in lists": lambda i: [[0.5 * i, 1], [2, 3.0]],
    "deep": lambda i: [[(1.0 * i,)], [(-0.0,)]], "nan": lambda i: [jnp.nan, jnp.inf, -0.0 * i],
}  # fmt: skip


@pytest.mark.parametrize("items", LISTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_with_other_numbers_each_time(name, items):
    """A list of Python's numbers is made an array by numpy, whatever the numbers are."""
    make = MAKERS[name]
    for i in range(4):
        make(LISTS[items](i))
    before = jaxmarshal.stats()[name]
    for i in range(4, 12):
        same(lambda i=i: make(LISTS[items](i)), turns=1)
    after = jaxmarshal.stats()[name]
    assert after["hits"] - before["hits"] == 8 and after["misses"] == before["misses"]


@pytest.mark.parametrize(
    "dtype", [jnp.float32, np.float32, np.dtype("float32"), jnp.int32, np.uint8, jnp.int8, np.bool_,
              jnp.uint32, np.int16, np.uint16, "float32", jnp.float16, np.float64, jnp.bfloat16,
              float, int, np.int64, jnp.complex64, ">f4", None, jnp.bool_],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_as_a_dtype(name, dtype):
    """As another dtype than JAX would choose, with its errors and warnings."""
    make = MAKERS[name]
    lists = [[0.5, 2.0], [3, 1], [True, False], [1, 0.5], [-1, 300], [70000], [jnp.nan], [1e9, 1.0]]
    for i in range(4):
        for items in lists:
            same(lambda: make(items, dtype=dtype), turns=1)
            same(lambda: getattr(jnp, name)(items, dtype), turns=1)
        same(lambda i=i: make([[i, 1]], dtype=dtype), turns=1)
        same(lambda: make([3, 1], dtype=dtype), context=partial(jax.enable_x64, True))
    same(lambda: make([3, 1], dtype=dtype, copy=False))
    same(lambda: make([3, 1], device=jax.devices()[0]))
    same(lambda: make([3, 1], ndmin=2) if name == "array" else make([3, 1], order="K"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_as_a_dtype_are_hit(name):
    make = MAKERS[name]
    for dtype in (jnp.float32, np.int32, np.dtype("uint8"), jnp.bool_):
        for i in range(4):
            make([i, 1], dtype=dtype)
        for i in range(4):
            hit_by(name, lambda i=i: make([i, 7], dtype=dtype))


class Float(float):
    """A float that numpy asks for its value."""

    def __float__(self):
        return 7.0


@pytest.mark.parametrize(
    "items",
    [
        [], [[], []], [1, 2.0], [2.5, 1], [True, 2], [2, True], [False, 0.5], [1.5, True],
        [1.0, [2.0]], [[1.0], [2.0, 3.0]], [2**31, 1],
        [-(2**31) - 1], [2**70], [1e39], [1e300, 1.0], [1e-40], [5e-324], [1.0, None], ["a"],
        [np.float32(1), 2.0], [np.arange(2.0), 1.0], [1.0, 1j], [1j], [Float(1)], [1.0, Float(1)],
        [[[[[[1.0]]]]]], [np.float64(2), 1.0], [b"x"], {1.0}, range(3), {"a": 1.0},
        [2**31 - 1, -(2**31)], [2**62, 1], [2**24 + 1, 0.5], [10**40, 1.0], [1.0, 2**63],
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_of_whatever_else(name, items):
    """Numbers of several types, too large or too small ones, and what no list of numbers is."""
    make = MAKERS[name]
    for known in LISTS.values():
        for i in range(4):
            make(known(i))
    same(make, items)
    same(make, items, context=lambda: np.errstate(all="raise"))
    same(lambda: make([jnp.float32(1), 2.0]))


@pytest.mark.parametrize("items", LISTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_trap_4_lists_in_contexts(name, items):
    """Trap 4: of which dtype the array is, the configuration says."""
    make = MAKERS[name]
    contexts = [
        partial(jax.enable_x64, True), partial(jax.default_device, jax.devices()[-1]),
        partial(jax.numpy_dtype_promotion, "strict"), jax.disable_jit,
        partial(jax.transfer_guard, "disallow"), partial(jax.debug_nans, True),
        partial(jax.set_mesh, _mesh()),
    ]  # fmt: skip
    for turn in range(2):
        same(lambda: make(LISTS[items](turn)))
        for context in contexts:
            for i in range(4):
                same(lambda i=i: make(LISTS[items](i)), turns=1, context=context)


@pytest.mark.parametrize("function", [double, negate])
def test_more_than_staging_of_a_list(function, monkeypatch):
    """A function in the place of JAX's is called with the list itself."""
    monkeypatch.setattr(array_constructors, "array", lambda x, **_: function(np.asarray(x)))
    before = hits("asarray")
    for i in range(12):
        assert np.array_equal(jnp.asarray([i, 4, 5]), function(np.asarray([i, 4, 5])))
    assert hits("asarray") == before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_with_nan_are_checked(name):
    """What is known of other numbers does not hide a NaN from `debug_nans`."""
    make = MAKERS[name]
    for flag in (jax.debug_nans, jax.debug_infs):
        with flag(True):
            for i in range(5):
                same(lambda i=i: make([1.0, float(i)]), turns=1)
            for bad in (jnp.nan, jnp.inf):
                same(lambda bad=bad: make([1.0, bad]))


def calls_of_bind():
    counts = jaxmarshal.stats()["bind"]
    return counts["hits"] + counts["misses"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_list_that_grows_is_left(name):
    """Of lists with a length that comes once nothing is kept, and nothing more is asked of JAX."""
    make, each = MAKERS[name], []
    make([1.0])
    for n in range(200, 220):
        before = calls_of_bind()
        make([0.5] * n)
        each.append(calls_of_bind() - before)
    assert len(set(each)) == 1    # of the calls that do not come again, too
    before = calls_of_bind()
    make([0.5] * 200)
    assert calls_of_bind() - before == each[0] + 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_of_very_many_lengths_are_left(name):
    """Records do not hold so many, and to learn takes as long as a call."""
    make, third = MAKERS[name], []
    for n in range(1, 312):
        for _ in range(2):
            make([7] * n)
        before = hits(name)
        make([7] * n)
        third.append(hits(name) - before)
    assert any(third[:10]) and not any(third[300:])


REPLACED = {
    "convert_element_type_p.impl": (lax.convert_element_type_p, "impl"),
    "_convert_element_type": (lax, "_convert_element_type"),
    "tree_flatten": (tree_util, "tree_flatten"),
    "lattice_result_type": (dtypes, "lattice_result_type"),
    "numpy.asarray": (np, "asarray"),
}  # fmt: skip


@pytest.mark.parametrize("replaced", REPLACED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_of_a_replaced_reference(name, replaced, monkeypatch):
    """What takes the place of a function that JAX converts lists by is called for each of them."""
    make, called = MAKERS[name], []
    for i in range(4):
        make([1.0, float(i)])
    hit_by(name, make, [1.0, 5.0])
    owner, attribute = REPLACED[replaced]
    original = getattr(owner, attribute)

    def instead(*args, **kwargs):
        called.append(attribute)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, attribute, instead)
    for i in range(3):
        called.clear()
        make([1.0, 6.0 + i])
        assert called


def test_trap_7_lists_are_not_shared():
    """Trap 7: what is done to a list later, its array does not know."""
    items = [1.0, 2.0, 3.0]
    made = []
    for i in range(8):
        items[0] = float(i)
        made.append(jnp.array(items))
    assert [float(x[0]) for x in made] == list(range(8))


def test_trap_2_no_array_of_a_list_is_kept():
    """Trap 2: nor is one that was made to learn what the reference makes of lists."""
    makers = [
        lambda n: jnp.array([0.5] * n), lambda n: jnp.array([1] * n, dtype=jnp.float32),
        lambda n: jnp.array([True] * n, jnp.float32),
    ]  # fmt: skip
    gc.collect()
    before = len(jax.live_arrays())
    for make in makers:
        for n in range(1, 9):
            for _ in range(4):
                make(n)
    gc.collect()
    assert len(jax.live_arrays()) == before
