"""`x[i]`, `x[i:i + 3]`, `x.at[i, j].set(v)` with ints that are others in each call: one recording
serves all rows of an array.

Two calls with different ints are compared step by step; what follows the int is an argument then.
"""

from __future__ import annotations

from operator import getitem
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eager import observe, same, together, without_jaxmarshal
from jax._src import dispatch
from support import JAX

import jaxmarshal
from jaxmarshal._core.entries import public_functions
from jaxmarshal._core.replay import fusion, recording

ROWS = 40
SHAPES = [(ROWS,), (ROWS, 3), (ROWS, 1, 2), (2,), (2, 5), (ROWS, 0)]
DTYPES = [np.float32, np.int32, np.bool_, np.complex64, np.float16, ml_dtypes.bfloat16, np.uint8]


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def hits():
    return jaxmarshal.stats()["getitem"]["hits"]


def array(shape, dtype=np.float32):
    """Every element is another one, as far as the dtype goes; and some are no numbers."""
    data = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    if data.dtype.kind in "fcV" and data.size > 3:
        data.reshape(-1)[1:4] = np.nan, -0.0, np.inf
    return jnp.asarray(data)


def all_same(call, x, indices):
    """One call after the other with jaxmarshal, then the same with plain JAX."""
    indices = list(indices)
    found = [observe(call, x, index) for index in indices]
    with without_jaxmarshal():
        expected = [observe(call, x, index) for index in indices]
    for index, ours, reference in zip(indices, found, expected, strict=True):
        assert ours == reference, index


def warm(x):
    """Calls after which every row is a hit, whichever index it is."""
    for i in range(8):
        x[i]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row(shape, dtype):
    """Each row, also those that no call had before, from the front and from the back."""
    x = array(shape, dtype)
    ints = [*range(shape[0]), *range(-shape[0], 0)]
    all_same(getitem, x, [i for i in ints for _ in range(2)] + ints)


#: What one int indexes, and the axis that it counts along.
FORMS = {
    "slice": (lambda i: slice(i, i + 3), 0),
    "slice of one": (lambda i: slice(i, i + 1), 0),
    "all but one": (lambda i: slice(i, i + 11), 1),
    "tuple": (lambda i: (i,), 0),
    "row, all": (lambda i: (i, slice(None)), 0),
    "slice, all": (lambda i: (slice(i, i + 4), slice(None), slice(None)), 0),
    "column": (lambda i: (slice(None), i), 1),
    "columns": (lambda i: (slice(None), slice(i, i + 2)), 1),
    "columns, rest": (lambda i: (slice(None), slice(i, i + 2), ...), 1),
    "last": (lambda i: (..., i), 2),
    "some of the last": (lambda i: (..., slice(i, i + 2)), 2),
    "last but one": (lambda i: (..., i, slice(None)), 1),
    "row, rest": (lambda i: (i, ...), 0),
    "from the back": (lambda i: -1 - i, 0),
    "column from the back": (lambda i: (slice(None), -1 - i), 1),
    "row and first": (lambda i: (i, 0), 0),
    "row and others": (lambda i: (i, (3 * i + 1) % 12), 0),
    "first and column": (lambda i: (0, i), 1),
    "some of a row": (lambda i: (i, slice(2, 5)), 0),
    "a row of some": (lambda i: (slice(i, i + 3), 4), 0),
    "an element": (lambda i: (i, (5 * i + 2) % 12, 6 - i % 7), 0),
    "both move on": (lambda i: (i, (i + 4) % 12), 0),
    "diagonal": (lambda i: (i, i), 1),
}
DEEP = (ROWS, 12, 7)


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form):
    """Each int there is, in the array, past its end and before it."""
    index, axis = FORMS[form]
    x = array(DEEP)
    length = DEEP[axis]
    ints = (*range(0, length, 2), *range(-4, 5), *range(length - 4, length + 4), -length, 3, 8)
    all_same(getitem, x, map(index, [*ints, *ints]))


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_come_once(form):
    """After a few calls each one is a hit, though none comes again."""
    index, axis = FORMS[form]
    shape = [13, 12, 7]
    shape[axis] = 100
    x = array(tuple(shape))
    for i in range(8):
        x[index(i)]
    before = hits()
    for i in range(8, 90):
        x[index(i)]
    on_device = JAX < (0, 9) and form.endswith("from the back")    # where JAX computes the row then
    # Of another length; and of a diagonal nobody knows which int is which.
    if on_device or form in ("all but one", "diagonal"):
        assert hits() == before
    elif form != "both move on":    # there neither, until one begins anew
        assert hits() - before == 82


def test_forms_in_turns():
    """Those of one array, and of two that differ, do not serve each other."""
    arrays = array(DEEP), array((7, 12, ROWS)), array(DEEP, np.int32), array(DEEP[:2]), array((9,))
    calls = [
        (x, index(i)) for i in (3, 4, 5, 0, 8, 11) for index, _ in FORMS.values() for x in arrays
    ]
    all_same(lambda _, call: getitem(*call), None, calls)


@pytest.mark.parametrize("form", FORMS)
def test_forms_after_another(form):
    """What serves one form serves no other, and no other length."""
    x = array(DEEP)
    for i in range(2):
        for j in range(6):
            x[FORMS[form][0](j)]
        all_same(getitem, x, [index(i + 3) for index, _ in FORMS.values()])
        all_same(getitem, x, [slice(i + 2, i + 7), (slice(None), slice(i + 1, i + 9))])


@together()
def test_other_forms():
    """What Python does more, or less, for."""
    x = array(DEEP)
    for i in range(8):
        for form in FORMS:
            x[FORMS[form][0](i)]
    for i in (0, 1, 9):
        for index in (
            slice(i, i), slice(i + 2, i), slice(i, None), slice(None, i + 1), slice(i, i + 3, 1),
            slice(i, i + 3, 2), slice(i, i + 6, 2), slice(i + 3, i, -1), slice(-i - 3, -i - 1),
            slice(i, ROWS + 9), slice(np.int32(i), i + 3), slice(i, np.int64(i + 3)),
            slice(True, i + 3), slice(False, True), (slice(0, ROWS), i),
            (slice(0, ROWS), slice(0, 12)), (i, None), (None, i), (None, slice(i, i + 2)), (i, i),
            (slice(i, i + 2), i % 7), (i, True),
            (True, slice(i, i + 2)), (..., i % 7, ...), (i, slice(None), slice(None), slice(None)),
            (np.int32(i), slice(None)), (slice(None), np.array(i)), (slice(None), jnp.int32(i)),
            (slice(i, i + 2), [0, 1]), [i, i + 1], (), (...,), (slice(None), 2**40),
            slice(i, 2**70), slice(2**70, 2**70 + 3), slice(0, ROWS), slice(1.0, 2),
        ):  # fmt: skip
            same(getitem, x, index, turns=3)


@together()
def test_many_lengths():
    """Slices that grow: each length is recorded by itself, and there is an end to that."""
    x = array((400,))
    for stop in range(1, 400, 8):
        same(getitem, x, slice(stop // 2, stop), turns=2)


UPDATES = {
    "set a number": lambda x, index: x.at[index].set(2.5),
    "set an int": lambda x, index: x.at[index].set(3),
    "set an array": lambda x, index: x.at[index].set(ARRAYS[0]),
    "add": lambda x, index: x.at[index].add(ARRAYS[1]),
    "multiply": lambda x, index: x.at[index].multiply(-2.0),
    "max": lambda x, index: x.at[index].max(40.0, mode="drop"),
    "get": lambda x, index: x.at[index].get(),
    "get filled": lambda x, index: x.at[index].get(mode="fill", fill_value=7.0),
    "divide": lambda x, index: x.at[index].divide(4.0),
    "apply": lambda x, index: x.at[index].apply(jnp.sin),
    "itself": lambda x, index: x.at[index].set(x[0, 0, 0]),
}
ARRAYS = []


#: The others take as long, and other functions of JAX's in the end alone.
FIRST_UPDATES = ("set a number", "add", "get")


@pytest.mark.parametrize("update", [
    update if update in FIRST_UPDATES else pytest.param(update, marks=pytest.mark.slow)
    for update in UPDATES
])  # fmt: skip
def test_updates(update):
    """`x.at[...]`, in each form, in the array, past its end and before it."""
    ARRAYS[:] = jnp.float32(-1.5), jnp.float32(np.inf)
    x = array((9, 12, 7))
    functions = jaxmarshal.stats()["functions"]["hits"]
    ints = (0, 3, 1, 5, 8, 6, 0, -2, 20)
    all_same(UPDATES[update], x, [index(i) for index, _ in FORMS.values() for i in ints])
    if update != "apply":
        assert jaxmarshal.stats()["functions"]["hits"] > functions + 30


def test_updates_that_come_once():
    """A loop that fills an array: each call is a hit, though none comes again."""
    x = jnp.zeros((300, 2))
    for i in range(8):
        x = x.at[i].set(1.0)
    before = jaxmarshal.stats()["functions"]["hits"]
    for i in range(8, 300):
        x = x.at[i].set(1.0)
    assert jaxmarshal.stats()["functions"]["hits"] - before == 292
    assert np.array_equal(x, np.ones((300, 2)))


def test_fused_updates():
    """The same with the steps as one."""
    before = recording.fuse_after(5)
    try:
        x = array((30, 4), np.int32)
        for call in (lambda x, i: x.at[i].set(7), lambda x, i: x.at[i : i + 2, 3].add(1)):
            for i in range(25):
                call(x, i)
            fusion.wait()
            for i in range(30):
                same(call, x, i, turns=1)
    finally:
        recording.fuse_after(before)


def test_wrong_calls_of_updates():
    """A call with too few arguments is none of another one whose index is shorter."""
    x = array(DEEP)
    for i in range(8):
        x.at[(i,)].set(3)
    for i in range(3):
        same(lambda x, i: x.at[i, i : i + 3].set(4), x, i)
        same(lambda x, i: x.at[i, i : i + 3].set(), x, i)
        same(lambda x, i: x.at[i, i : i + 3].set(3, 4), x, i)


@pytest.mark.parametrize("dtype", DTYPES)
@together()
def test_updates_of_each_dtype(dtype):
    """The same, beside arrays of other dtypes, and numbers that JAX warns of."""
    x, others = array((ROWS,), dtype), [array((ROWS,), other) for other in DTYPES]
    for i in (1, 4, 2, 7, 0, ROWS - 1):
        for value in (1, 2.5, True, *[other[3] for other in others]):
            same(lambda x, i, value=value: x.at[i].set(value), x, i, turns=1)


def test_rows_that_come_once():
    """After a few calls each one is a hit, though none comes again."""
    x = array((5000, 2))
    for i in range(12):
        x[i]
    before = hits()
    for i in range(12, 3000):
        x[i]
    assert hits() - before == 3000 - 12
    for i in (0, 17, 2999, 3000, 4999):
        same(getitem, x, i)


@pytest.mark.parametrize("shape", [(300,), (300, 4)], ids=str)
def test_fused(shape):
    """The same with the steps as one."""
    before = recording.fuse_after(5)
    try:
        x = array(shape)
        for i in range(40):
            x[i]
        fusion.wait()
        all_same(getitem, x, range(300))
    finally:
        recording.fuse_after(before)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 3)], ids=str)
@together()
def test_one_thing_changes(shape):
    """What is no row, no int, or no such array."""
    x = array(shape)
    for i in range(8):
        same(getitem, x, i)
    indices = (
        -1, -ROWS, -ROWS - 1, ROWS, ROWS + 5, 2**31, 2**40, -(2**40), 2**70, True, False,
        np.int32(3), np.int64(-2), np.array(4), jnp.int32(5), 1.0, None, (7,), [1, 2],
        slice(3, 5), Ellipsis,
    )  # fmt: skip
    others = (
        array(shape, np.int32), array((ROWS // 2, *shape[1:])), array((1, *shape[1:])), array(()),
        jax.device_put(x, jax.devices()[0]), jax.device_put(x, jax.devices()[1]),
        jax.device_put(x, jax.NamedSharding(jax.make_mesh((4,), ("x",)), jax.P("x"))),
        jax.random.split(jax.random.key(0), ROWS), np.asarray(x),
    )  # fmt: skip
    for index in indices:
        for _ in range(3):
            same(getitem, x, index)
    for other in others:
        for i in (3, 4, 5, 3, 6, 0):
            same(getitem, other, i)
    gone = x + 0
    gone.delete()
    same(getitem, gone, 9)
    same(getitem, x, 11)


CONTEXTS = {
    "x64": lambda: jax.enable_x64(True),
    "default device": lambda: jax.default_device(jax.devices()[1]),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no transfers": lambda: jax.transfer_guard("disallow"),
    "NaNs": lambda: jax.debug_nans(True),
    "without jit": lambda: jax.disable_jit(),
}


@pytest.mark.parametrize("context", CONTEXTS)
@together()
def test_one_state_changes(context):
    """Recorded without it, asked with it, and the other way round."""
    x = array((ROWS,))
    warm(x)
    for i in range(8):
        x.at[i].set(1.0)
    for i in range(15, 22):
        for call in (getitem, UPDATES["set a number"]):
            same(call, x, i, context=CONTEXTS[context])
            same(call, x, i)
            same(call, x, slice(i, i + 3), context=CONTEXTS[context], turns=2)


def test_replaced_functions_are_called():
    """Trap 15: what a test puts in the place of JAX's is called, and not for longer."""
    x, seen = array((ROWS,)), []
    warm(x)
    original = dispatch.apply_primitive

    def noting(*args, **kwargs):
        seen.append(args)
        return original(*args, **kwargs)

    with mock.patch.object(dispatch, "apply_primitive", noting):
        x[20]
    assert seen
    before = hits()
    same(getitem, x, 21)
    assert hits() > before


def test_explain_agrees():
    """It says what the next call then is, and records nothing."""
    x = array((ROWS,))
    for i in range(20):
        said = jaxmarshal.explain(getitem, x, i)
        before = hits()
        x[i]
        assert said.hit == (hits() > before), (i, said)
    assert said.hit


def test_an_int_that_python_decides_by():
    """Steps that differ in more than an argument are not taken for others."""

    functions = (
        lambda x, i: x * 2 if i < 20 else x + i,
        lambda x, i: x[i] * (2.0 if i < 20 else 3.0), lambda x, i: x[i] * (i + 0.5),
        lambda x, i: x[i + 1], lambda x, i: x[i].reshape((1,) * (i % 3)),
    )  # fmt: skip
    for function in functions:
        call = public_functions.make_row("functions", function)
        x = array((ROWS,))
        for i in (*range(40), *range(40)):
            assert np.array_equal(call(x, i), function(x, i), equal_nan=True)


@pytest.mark.parametrize("name", ["an index", "a float beside it", "another int"])
def test_an_int_that_python_computes_with(name):
    """Steps that differ in more than the int are not taken for those of another row."""
    function = {
        "an index": lambda x, i: x[i], "a float beside it": lambda x, i: x[i] * (i + 0.5),
        "another int": lambda x, i: x[i] - x[(i + 1) % ROWS],
    }[name]  # fmt: skip
    call = public_functions.make_row("functions", function, with_index=True)
    x = array((ROWS,))
    before = jaxmarshal.stats()["functions"]["hits"]
    for i in (*range(ROWS), *range(ROWS)):
        assert np.array_equal(call(x, i), function(x, i), equal_nan=True)
    if name == "an index":
        assert jaxmarshal.stats()["functions"]["hits"] - before > ROWS
