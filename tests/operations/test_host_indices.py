"""Numpy data as an index, `x[rng.permutation(n)[:8]]`, and as what is set, `x.at[i].set(data)`."""

from __future__ import annotations

from functools import partial
from operator import getitem

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eager import observe, same, together, without_jaxmarshal
from support import JAX, aligned, config_updated

import jaxmarshal

SHAPE = (300, 4)


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def hits(entry):
    return jaxmarshal.stats()[entry]["hits"]


def array(shape=SHAPE, dtype=np.float32):
    return jnp.asarray(np.arange(int(np.prod(shape))).reshape(shape).astype(dtype))


def setter(x, index):
    return x.at[index].set(7)


def adder(x, index):
    return x.at[index].add(2)


def getter(x, index):
    return x.at[index].get(mode="fill", fill_value=3)


CALLS = {"x[i]": getitem, "set": setter, "add": adder, "get": getter}
INT_DTYPES = [np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint8]
IN = slice(None)

INDICES = {
    "rows": lambda: np.array([3, 0, 7]), "rows from the back": lambda: np.array([-1, -300, 5]),
    "rows that are not there": lambda: np.array([300, -301, 2**30, -(2**30)]),
    "one row": lambda: np.array([2]), "no rows": lambda: np.zeros(0, int),
    "a table": lambda: np.array([[1, 2], [3, -4]]), "no axes": lambda: np.array(5),
    "two": lambda: (np.array([1, 2]), np.array([0, -1])),
    "two that are broadcast": lambda: (np.array([[1], [2]]), np.array([0, 3])),
    "rows and all": lambda: (np.array([1, 2]), IN),
    "all and columns": lambda: (IN, np.array([0, 2])),
    "dots": lambda: (..., np.array([0, 2])), "a new axis": lambda: (None, np.array([0, 2])),
    "rows and an int": lambda: (np.array([0, 2]), 1),
    "an int and columns": lambda: (2, np.array([1])),
    "rows and a slice": lambda: (np.array([0, 2]), slice(1, 3)),
    "rows and an array": lambda: (np.array([0, 2]), jnp.array([1, 3])),
    "not in a row": lambda: np.arange(20)[::3],
    "in columns": lambda: np.asfortranarray([[1, 2], [3, 4]]),
    "the other byte order": lambda: np.array([1, 2]).astype(">i8"),
    "read only": lambda: np.broadcast_to(np.int64(3), (4,)),
    "an int of numpy": lambda: np.int64(3), "one from the back": lambda: np.int32(-2),
    "one that is not there": lambda: np.int64(300), "a small one": lambda: np.int8(-1),
    "an unsigned one": lambda: np.uint8(200), "two ints": lambda: (np.int64(3), np.int64(1)),
    "an int and all": lambda: (np.int64(3), IN),
    "a slice of ints": lambda: slice(np.int64(3), np.int64(9)),
    "with a step": lambda: slice(np.int64(30), np.int64(3), np.int64(-2)),
    "a slice of arrays": lambda: slice(np.array(3), np.array(9)),
    "a slice of floats": lambda: slice(np.float32(3), None),
    "a mask": lambda: np.arange(300) % 50 == 0, "a small mask": lambda: np.array([True, False]),
    "a bool": lambda: np.bool_(True), "a bool without axes": lambda: np.array(True),
    "floats": lambda: np.array([1.0, 2.0]),
    "a float": lambda: np.float32(1),
    "texts": lambda: np.array(["a"]),
    "objects": lambda: np.array([1, 2], object), "too many": lambda: (np.array([1]),) * 3,
    "dates": lambda: np.array(["2020-01-01"], "M8[D]"),
    "small ints": lambda: np.array([1]).astype(ml_dtypes.int4),
    "more than 32 bits": lambda: np.array([2**32 - 1, 2**40, 3]),
    "much more": lambda: np.array([-(2**63), 2**63 - 1]),
    "a class of numpy's": lambda: np.ma.masked_array([1, 2]), "in a list": lambda: [np.int64(1)],
    "nothing": lambda: None,
}  # fmt: skip


@pytest.mark.errors
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("make", INDICES.values(), ids=INDICES)
@together()
def test_every_index(make, call):
    for x in (array(), array((300,), np.int32)):
        same(call, x, make(), turns=4)


@pytest.mark.parametrize("dtype", INT_DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("x64", [False, True])
def test_every_dtype(dtype, x64):
    numbers = [0, 5, np.iinfo(dtype).max, np.iinfo(dtype).min, np.array(-1).astype(dtype)]
    with jax.enable_x64(x64) if JAX >= (0, 9) else (
        jax.experimental.enable_x64 if x64 else jax.experimental.disable_x64
    )(), together():
        for shape in ((300,), (70000,), (2, 3), (0, 2)):
            for index in (np.array(numbers, dtype), np.array([0, 1], dtype)):
                same(getitem, array(shape), index, turns=3)
                same(setter, array(shape), index, turns=3)


def test_another_batch_each_time():
    """Rows and numbers that differ are one recording."""
    chance, x = np.random.default_rng(0), array()

    def batches():
        order = np.random.default_rng(1).permutation(300)
        return [
            (np.asarray(x[order[i : i + 8]]).tolist(), np.asarray(x[np.int64(i)]).tolist(),
             np.asarray(x[np.int64(i) : np.int64(i) + 4, 1]).tolist(),
             np.asarray(x.at[order[i : i + 8], 1].set(order[i] * 0.5)).tolist(),
             np.asarray(x.at[i].add(chance.normal(size=4) * 0 + i)).tolist())
            for i in range(0, 200, 8)
        ]  # fmt: skip

    found, before = batches(), (hits("getitem"), hits("functions"))
    assert found == batches()
    assert hits("getitem") >= before[0] + 70
    assert hits("functions") >= before[1] + 45
    with without_jaxmarshal():
        assert found == batches()


VALUES = {
    "floats": lambda: np.arange(4.0), "float32": lambda: np.arange(4, dtype=np.float32),
    "ints": lambda: np.arange(4),
    "bools": lambda: np.arange(4) > 1,
    "a float": lambda: np.float64(2.5),
    "an int": lambda: np.int64(3),
    "a bool": lambda: np.bool_(True),
    "no axes": lambda: np.array(2.5),
    "half floats": lambda: np.arange(4).astype(ml_dtypes.bfloat16),
    "complex": lambda: np.arange(4) * 1j,
    "what overflows": lambda: np.array([1e300, 0, 0, 0]), "a large int": lambda: np.int64(2**40),
    "zeros and NaN": lambda: np.array([-0.0, np.nan, np.inf, 0.0]),
    "columns": lambda: np.ones((4, 4))[:, 0],
    "the other byte order": lambda: np.arange(4).astype(">f4"), "another shape": lambda: np.ones(3),
    "texts": lambda: np.array("text"),
    "objects": lambda: np.array([None] * 4),
    "keys": lambda: jax.random.key(0),
}  # fmt: skip
UPDATES = ("set", "add", "subtract", "multiply", "divide", "max", "min", "power")


@pytest.mark.errors
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
@together()
def test_every_value(make, update):
    for x in (array() + 1, array(SHAPE, np.int32)):
        for index in (3, np.array([1, 2]), (jnp.int32(2), IN)):
            same(lambda x, index, y: getattr(x.at[index], update)(y), x, index, make(), turns=3)
    same(lambda x, y: x.at[2].apply(y), array(), make(), turns=3)
    same(lambda x, y: x.at[2].set(values=y), array(), make(), turns=3)
    same(lambda x, y: x.at[1:3].set(y, mode="drop"), array(), make(), turns=3)


CONTEXTS = {
    "x64": lambda: (jax if JAX >= (0, 9) else jax.experimental).enable_x64(True),
    "default device": lambda: jax.default_device(jax.devices()[-1]),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no promotion of ranks": lambda: jax.numpy_rank_promotion("raise"),
    "no transfers": lambda: jax.transfer_guard("disallow"),
    "NaNs": lambda: jax.debug_nans(True),
    "without jit": lambda: jax.disable_jit(),
    "a mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])),
    "a mesh without devices": lambda: jax.sharding.use_abstract_mesh(jax.make_mesh(
        (2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2]
    ).abstract_mesh),
}  # fmt: skip


@pytest.mark.errors
@pytest.mark.parametrize("context", CONTEXTS)
def test_one_state_changes(context):
    x, index, value = array(), np.array([3, -1, 2]), np.ones(4, np.float32)
    ints = array(SHAPE, np.int32)
    calls = (
        lambda: x[index], lambda: x[np.int64(2)], lambda: x.at[index].set(value),
        lambda: x.at[1].add(value), lambda: x.at[np.int64(1)].max(2.0),
        lambda: ints.at[index].set(value),
    )  # fmt: skip
    for call in calls:
        same(call, turns=3)
        same(call, context=CONTEXTS[context], turns=3)
        same(call, turns=2)


@pytest.mark.errors
@pytest.mark.parametrize("flag", ["jax_no_tracing", "jax_no_execution"])
def test_nothing_is_traced_or_run_that_jax_does_not(flag):
    """JAX goes other ways for data on the device, which it may not have traced yet."""
    x, index, value = array((70, 3)), np.array([1, 2, 4]), np.ones(3, np.float32)
    calls = (
        lambda: x[index], lambda: x.at[index].set(value), lambda: x.at[1].set(value),
        lambda: x.at[np.int64(2)].set(x[0]),
        lambda: x.astype(int).at[index].set(np.float32(1.5)),
    )  # fmt: skip
    for call in calls:
        with without_jaxmarshal():
            for _ in range(3):
                call()
        same(call, context=partial(config_updated, flag, True), turns=3)


def test_nothing_is_compiled_that_jax_does_not():
    """Where somebody hears of it."""
    x, index = array((71, 3)), np.array([1, 2, 4])
    calls = (
        lambda: x[index], lambda: x.at[np.int64(2)].set(1.5),
        lambda: x.at[1].set(np.ones(3, np.float32)),
    )  # fmt: skip

    def compiled():
        jax.clear_caches()
        heard = []
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, *_, **__: heard.append(event) if "backend_compile" in event else None
        )
        try:
            for call in calls:
                for _ in range(5):
                    call()
        finally:
            jax._src.monitoring._event_duration_secs_listeners.pop()
        return len(heard)

    found = compiled()
    with without_jaxmarshal():
        assert found == compiled()


@pytest.mark.errors
def test_other_arrays():
    index = np.array([3, -1, 2])
    gone = array() + 1
    gone.delete()
    others = [
        gone, jax.random.split(jax.random.key(0), 300), np.ones(SHAPE), array((300,)), array(()),
        jax.device_put(array(), jax.devices()[-1]),
    ]  # fmt: skip
    if jax.device_count() > 1:
        mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
        others += [jax.device_put(array(), jax.NamedSharding(mesh, spec)) for spec in (
            jax.P(), jax.P("x"))]  # fmt: skip
    same(getitem, array(), index, turns=4)
    for x in others:
        same(getitem, x, index, turns=4)
        same(lambda x: x.at[index].set(np.float32(2)), x, turns=4)
        same(lambda x: x[np.int64(3)], x, turns=4)


@pytest.mark.errors
def test_under_traces():
    index = np.array([3, -1])
    same(lambda: jax.jit(lambda x: x[index] + x.at[index].set(np.ones(4))[0])(array()), turns=3)
    same(lambda: jax.grad(lambda x: jnp.sum(x[index] ** 2))(array()), turns=3)
    same(lambda: jax.vmap(lambda x: x[np.array([0, 1])])(array()), turns=3)


def test_data_are_the_programs():
    """What the program does to its data afterwards changes no result."""
    x, index, value = array(), aligned(8, np.int32), aligned((8, 4))
    for _ in range(6):
        index[:], value[:] = range(8), 1
        rows, changed = x[index], x.at[index].set(value)
        index[:], value[:] = 99, 5
        assert np.array_equal(rows, np.arange(32).reshape(8, 4))
        assert np.array_equal(changed[:8], np.ones((8, 4)))


@pytest.mark.parametrize("index", [np.array([1, 2]), np.int64(3)], ids=["rows", "an int"])
def test_explained(index):
    x = array()
    for _ in range(6):
        x[index]
    assert jaxmarshal.explain(getitem, x, index).reason != "unknown_type"
    assert jaxmarshal.explain(x.__getitem__, index).hit


def test_warnings_name_the_line():
    x = array(SHAPE, np.int32)
    found = [observe(lambda: x.at[np.array([1])].set(np.float32(1.5))) for _ in range(4)]
    with without_jaxmarshal():
        expected = [observe(lambda: x.at[np.array([1])].set(np.float32(1.5))) for _ in range(4)]
    assert [item[0] for item in found] == [item[0] for item in expected]
    assert [len(item[1]) for item in found] == [len(item[1]) for item in expected]
