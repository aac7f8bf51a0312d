"""Host data among the arguments of functions that only hand them on: asarray with a dtype, stack.

The key of such a call holds the dtype and the shape of the data; the steps take the data of the
call, or these in another dtype.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eager import same, together
from observe import observe
from support import aligned, without_jaxmarshal

import jaxmarshal
from jaxmarshal._jax import private

pytestmark = pytest.mark.skipif(
    private.stage_primitive is None, reason="this JAX does not stage host data"
)

DEVICE = jax.devices()[0]
OTHER = jax.devices()[1]


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def hits():
    found = jaxmarshal.stats()
    return sum(found[name]["hits"] for name in ("asarray", "array", "functions"))


def data(seed, shape=(4, 8), dtype=np.float32):
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


CALLS = {
    "asarray, own dtype": lambda h: jnp.asarray(h, jnp.float32),
    "asarray, dtype by name": lambda h: jnp.asarray(h, dtype=np.dtype("int32")),
    "asarray, smaller": lambda h: jnp.asarray(h, jnp.bfloat16),
    "asarray, on a device": lambda h: jnp.asarray(h, device=DEVICE),
    "asarray, on another device": lambda h: jnp.asarray(h, jnp.int8, device=OTHER),
    "array, own dtype": lambda h: jnp.array(h, jnp.float32),
    "array, complex": lambda h: jnp.array(h, dtype=complex),
    "array, bool": lambda h: jnp.array(h, bool),
    "array without a copy": lambda h: jnp.array(h, copy=False),
    "array of two dimensions": lambda h: jnp.array(h, ndmin=3),
    "zeros_like": jnp.zeros_like,
    "full_like": lambda h: jnp.full_like(h, 2.5),
    "full_like, dtype": lambda h: jnp.full_like(h, 2, dtype=jnp.int32),
    "stack": lambda h: jnp.stack([h, h]),
    "concatenate": lambda h: jnp.concatenate([h, jnp.ones_like(h)]),
    "vstack": lambda h: jnp.vstack((h, h)),
}  # fmt: skip
DTYPES = [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_, np.complex64,
          np.complex128, np.float16, ml_dtypes.bfloat16]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@together()
def test_other_elements(name):
    """One recording serves all data of a dtype and shape."""
    call = CALLS[name]
    for dtype in DTYPES:
        for seed in range(6):
            same(call, data(seed, dtype=dtype))
    before = hits()
    for seed in range(4):
        same(call, data(10 + seed))
    assert hits() - before >= 4


@pytest.mark.parametrize("name", CALLS)
@together()
def test_one_thing_changes(name):
    """Shape, order, byte order, class, flags, and what is no array."""
    call, h = CALLS[name], data(1)
    for _ in range(5):
        same(call, h)
    swapped = h.astype(h.dtype.newbyteorder())
    frozen = h.copy()
    frozen.flags.writeable = False
    for other in (
        data(1, (8, 4)), data(1, (32,)), data(1, ()), data(1, (0, 3)), h.T, np.asfortranarray(h),
        h[::2], h[:, ::-1], swapped, frozen, h.view(np.matrix), np.ma.masked_array(h, h > 4),
        h.astype(object), h.astype("U4"), np.float32(3), np.int64(2**40), 3.0, True,
        h.tolist(), [h, h], (h, 1.0), jnp.asarray(h), jax.device_put(h, OTHER), None,
    ):  # fmt: skip
        for _ in range(4):
            same(call, other)
    for _ in range(2):
        same(call, h)


#: Of elements with which a conversion warns, wraps, or is an error.
EXTREME = {
    "large": np.array([1e300, 1.0]), "small": np.array([1e-300, 1.0]),
    "nan": np.array([np.nan, np.inf]), "float32": np.array([3e38, -3e38], np.float32),
    "int64": np.array([2**40, -(2**60)]), "negative": np.array([-1, 300]),
    "complex": np.array([1 + 2j, 1e300j]), "signed zero": np.array([-0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("extreme", EXTREME)
def test_trap_8_elements_that_numpy_warns_of(name, extreme):
    """Trap 8: the warnings are the reference's, with the same lines, after calls without any."""
    call, odd = CALLS[name], EXTREME[extreme]
    with together():
        for _ in range(6):
            same(call, np.ones_like(odd))
    for x64 in (False, True, False):
        with jax.enable_x64(x64), together():
            for _ in range(5):
                same(call, odd)
            same(call, np.ones_like(odd))
    if name.startswith("a"):    # plain JAX ends the process where jaxlib's C++ meets the error
        with np.errstate(all="raise"):
            same(call, odd)
    with np.errstate(all="ignore"):
        same(call, odd)


def seen_after_edit(call, offset, dtype):
    """What the results of some calls show after their data were written."""
    found = []
    for turn in range(6):
        h = aligned((64,), dtype, offset)
        h[...] = turn
        array = call(h)
        array.block_until_ready()
        h[...] = 77
        found.append(np.asarray(array).tolist())
    return found


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("offset", [0, 4])
def test_trap_7_memory_is_shared_as_in_jax(name, offset):
    """Trap 7: what shares its memory with the caller's array in JAX does so, and nothing else."""
    call = CALLS[name]
    found = seen_after_edit(call, offset, np.float32)
    with without_jaxmarshal():
        expected = seen_after_edit(call, offset, np.float32)
    assert found == expected


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_kept(name):
    """Recordings keep no data of a call."""
    call, died = CALLS[name], []
    before = hits()
    for seed in range(6):
        h = data(seed)
        call(h).block_until_ready()
        weakref.finalize(h, died.append, seed)
    del h
    gc.collect()
    assert died == list(range(6))
    assert hits() > before


@pytest.mark.parametrize("name", CALLS)
def test_data_edited_in_place(name):
    """Elements, shape and dtype of the very array are read in each call."""
    call, h = CALLS[name], data(1)
    for _ in range(5):
        same(call, h)
    h[0] = 5
    same(call, h)
    h.shape = (32,)
    same(call, h)
    h.shape = (4, 8)
    h.dtype = np.int32
    same(call, h)
    h.dtype = np.float32
    same(call, h)


@pytest.mark.parametrize("name", CALLS)
def test_trap_16_a_stale_conversion(name):
    """Trap 16: JAX's cache may know the array by another dtype; some functions do not ask it."""
    call = CALLS[name]
    for dtype, wide in ((np.int32, np.int64), (np.float32, np.float64)):
        for _ in range(6):
            same(call, np.zeros(16, dtype))
        h = np.arange(8).astype(wide)
        kept = private.canonicalize_value(h)    # as a sharded result may keep it
        h.dtype = dtype
        with jaxmarshal.uninstalled():
            expected = observe(call, h)
        assert observe(call, h) == expected
        assert kept.dtype == dtype


CONTEXTS = {
    "x64": lambda: jax.enable_x64(True),
    "default device": lambda: jax.default_device(OTHER),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no transfers": lambda: jax.transfer_guard("disallow"),
    "NaNs": lambda: jax.debug_nans(True),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_one_state_changes(name, context):
    """Recorded without it, asked with it, and the other way round."""
    for dtype in (np.float32, np.float64, np.int64):
        h = data(1, dtype=dtype)
        with together():
            for _ in range(5):
                same(CALLS[name], h)
            for _ in range(5):
                same(CALLS[name], h, context=CONTEXTS[context])
            same(CALLS[name], h)
    with CONTEXTS[context]():
        for _ in range(5):
            with jax.transfer_guard("allow"):
                jnp.asarray(data(2))


def test_replaced_functions_are_called():
    """Trap 15: a `device_put` that a test puts in the place of JAX's is called."""
    h = data(1)
    for _ in range(6):
        jnp.asarray(h, jnp.float32)
    before = hits()
    with mock.patch.object(jax._src.api, "device_put", return_value="mocked") as put:
        assert jnp.asarray(h, jnp.float32) == "mocked"
        put.assert_called_once()
    jnp.asarray(h, jnp.float32)
    assert hits() == before + 1


def test_without_the_entry_point_of_device_put():
    """What is not installed makes no step, and then the call is JAX's."""
    h = data(1)
    with jaxmarshal.uninstalled(), jaxmarshal.installed(only=["asarray"]):
        before = jaxmarshal.stats()["device_put"]
        for _ in range(8):
            same(lambda h: jnp.asarray(h, jnp.float32), h)
        after = jaxmarshal.stats()["device_put"]
    assert after["hits"] == before["hits"]


def test_steps_see_the_data_in_their_own_dtype():
    """A cast is seen where it happens: the same data as two sources are told apart."""
    a, b = data(1), data(2)
    for _ in range(6):
        same(lambda a, b: jnp.stack([a, b, a]), a, a.copy())
    same(lambda a, b: jnp.stack([a, b, a]), b, a)
    same(lambda a, b: jnp.stack([a, b, a]), a, a)
    same(lambda a, b: jnp.stack([a, b, a]), a, a.copy())


F, ONES, TWOS = np.float32, np.ones((2, 2), np.float32), np.full((2, 2), 2, np.float32)
#: A call that is made some times with the first argument, and then with each of the others.
DECIDING = {
    "an axis": (lambda a: jnp.stack([jnp.ones(2), jnp.zeros(2)], axis=a), np.int64(0), np.int64(1),
                np.int64(7)),
    "an axis by position": (lambda a: jnp.concatenate([ONES, TWOS], a), np.int32(0), np.int32(1)),
    "a shape": (lambda s: jnp.zeros_like(ONES, shape=s), np.array([2, 3]), np.array([3, 2])),
    "an item of a shape": (lambda n: jnp.full_like(ONES, 1, shape=(n,)), np.int32(2), np.int32(4)),
    "ndmin": (lambda n: jnp.array(jnp.ones(2), ndmin=n), np.int64(3), np.int64(4)),
    "copy": (lambda c: jnp.array(ONES, copy=c, ndmin=1), np.False_, np.True_),
    "a fill value": (lambda v: jnp.full_like(ONES, v), np.float16(1), np.float16(2), np.float16(3)),
    "an int to fill": (lambda v: jnp.full_like(ONES, v), np.int64(1), np.int64(2)),
    "a value for another dtype": (lambda v: jnp.full_like(ONES, v, dtype=int), F(1), F(2)),
    "scalars": (lambda v: jnp.column_stack([v, jnp.float32(2)]), np.True_, np.False_),
    "one bool": (lambda v: jnp.asarray(v, jnp.float32), np.True_, np.False_),
    "a view beside it": (lambda a: jnp.stack(a), [ONES, ONES[:]], [ONES, TWOS], [TWOS, ONES]),
    "equal contents": (lambda a: jnp.array([*a, jnp.ones((2, 2))]), [ONES, ONES.copy()],
                       [ONES, TWOS]),
    "other dtypes": (lambda a: jnp.array([*a, jnp.ones((2, 2))]), [ONES.astype(int), ONES],
                     [ONES.astype(int), TWOS]),
    "symmetric": (lambda a: jnp.array([a, a.T, jnp.ones((2, 2))]), ONES,
                  np.arange(4, dtype=F).reshape(2, 2)),
    "a number beside it": (lambda a: jnp.array([a, 1, jnp.float32(9)]), F(1), F(5)),
}  # fmt: skip


@pytest.mark.parametrize("what", DECIDING)
def test_host_data_that_decide(what):
    """Only data are handed on: what decides is the reference's, and so is what is ambiguous."""
    call, first, *others = DECIDING[what]
    for _ in range(6):
        same(call, first)
    for other in (*others, first, *others):
        same(call, other)


def test_a_scalar_in_a_second_context():
    """What is known of one context is not taken for another."""
    for precision in ("high", "highest"):
        with jax.default_matmul_precision(precision):
            for value in (1, 1, 5, 7):
                same(jnp.full_like, np.ones(2, F), F(value))
                same(jnp.asarray, F(value), jnp.float16)


@pytest.mark.parametrize("name", ["arange", "eye", "zeros", "ones"])
def test_results_share_no_buffer(name):
    """What a call puts on a device where it is already is another array in each call."""
    call = getattr(jnp, name)
    for device in (DEVICE, OTHER):
        for _ in range(6):
            same(lambda device=device: call(4, device=device))
        results = [call(4, device=device) for _ in range(3)]
        assert len({result.unsafe_buffer_pointer() for result in results}) == 3
        results[0].delete()
        assert np.asarray(results[1]).size


FAILING = {
    "large": (np.ones(10**6), jnp.float32), "small numbers": (np.full(8, 1e-40), jnp.float32),
    "NaN": (np.full(8, np.nan, F), jnp.int32), "tiny": (np.full(8, 1e-30, F), jnp.float16),
}  # fmt: skip


@pytest.mark.parametrize("failing", FAILING)
def test_calls_that_may_warn_are_not_recorded_again(failing):
    """They are looked at, and cost little; `explain` says what is counted."""
    h, dtype = FAILING[failing]
    for _ in range(6):
        same(lambda h: jnp.asarray(h, dtype), np.ones_like(h))
    kept = _replay_objects()
    for _ in range(40):
        same(lambda h: jnp.asarray(h, dtype), h)
        said = jaxmarshal.explain(jnp.asarray, h, dtype)
        before = jaxmarshal.stats()["asarray"]["hits"]
        jnp.asarray(h, dtype)
        assert said.hit == (jaxmarshal.stats()["asarray"]["hits"] > before)
    assert _replay_objects() <= kept + 2


def _replay_objects():
    gc.collect()
    return sum(type(x).__name__ in ("Replay", "Play") for x in gc.get_objects())


def test_trap_20_signaling_nans():
    """Trap 20: a cast to a wider dtype warns of them, from JAX's line."""
    odd = np.array([0x7F800001], np.uint32).view(np.float32)
    with jax.enable_x64(True):
        for dtype in (jnp.float64, jnp.complex128, jnp.float32):
            for _ in range(6):
                same(lambda h, dtype=dtype: jnp.asarray(h, dtype), np.ones(1, F))
            found = []
            for side in (jaxmarshal.uninstalled, jaxmarshal.installed):
                with side(), warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    jnp.asarray(odd, dtype)
                found.append([(str(w.message), w.filename, w.lineno) for w in caught])
            assert found[0] == found[1]


# More than there are parts of keys that are kept: some take the place of others.
MANY = [
    (shape, dtype)
    for shape in [(2, 3), (3, 2), (6,), (1, 6), (2, 3, 1), (1, 2, 3, 1), (1, 1, 2, 3, 1), (), (0,)]
    for dtype in ("float32", "int32", "uint8", "int8", "float16", "bool", "uint32", ">i4")
]


def test_many_dtypes_and_shapes():
    """The key tells them apart, in whichever order they come."""
    x = jnp.full((3, 1), 2, jnp.int32)
    all_data = [data(i, shape, dtype) for i, (shape, dtype) in enumerate(MANY)]

    def calls(order):
        found = []
        for i in order:
            h = all_data[i]
            found.append(jnp.asarray(h, jnp.float32))
            if h.ndim == 2 and h.dtype.isnative:
                found.append(x + h.ravel())
        return found

    orders = np.random.default_rng(0)
    for _ in range(3):
        same(calls, orders.permutation(len(MANY)), turns=2)
    before = hits()
    calls(orders.permutation(len(MANY)))
    assert hits() - before > len(MANY)


def test_shapes_are_no_numbers():
    """A dimension that a small float cannot hold is none of its elements."""
    h = np.ones(70_000, F)
    for _ in range(5):
        same(lambda h: jnp.asarray(h, jnp.float16), h)
    before = hits()
    jnp.asarray(h, jnp.float16)
    assert hits() == before + 1


def test_a_function_that_reads_host_data_is_not_replayed_with_them():
    """Functions that decide by elements of host data are not among those that take them."""
    for _ in range(5):
        same(jnp.repeat, data(1, (3,)), np.array([1, 2, 0]))
    same(jnp.repeat, data(1, (3,)), np.array([0, 2, 1]))


def test_warnings_of_a_dtype_that_is_not_there():
    """JAX warns in each call that float64 is not available, with the caller's line."""

    def call():
        return jnp.asarray(data(1), np.float64)

    found = []
    for side in (jaxmarshal.uninstalled, jaxmarshal.installed):
        with side(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(6):
                call()
        found.append([(str(w.message), w.filename, w.lineno) for w in caught])
    assert found[0] == found[1]
    assert found[0]
