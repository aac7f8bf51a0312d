"""Public functions that are replayed: warm, then one thing about an argument changes.

Each function of the table is called with arguments from a list that it accepts, again and again,
and then with others: of the same aval but with other elements, weakly typed, committed, of another
dtype or shape, on another device, deleted. Plain JAX says what is right.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import pickle
import sys
import tokenize
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from operator import getitem
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from eager import compare, together
from jax._src.interpreters import pxla
from observe import observe
from support import shares_memory, without_jaxmarshal

import jaxmarshal
from jaxmarshal._core.entries import public_functions, which_functions
from jaxmarshal._jax import patching
from jaxmarshal._reports import counting

NAMES = [(module, name) for module, names in which_functions._MODULES for name in names]
NAMES += [(module, name) for module, names in which_functions._WITH_DERIVATIVES for name in names]
PRESENT = [
    (module, name) for module, name in NAMES if hasattr(importlib.import_module(module), name)
]
#: Every so many are tried, most of them among the slow tests; with JAXMARSHAL_ALL_FUNCTIONS=1 all,
#: which takes half an hour.
STEP = 1 if os.environ.get("JAXMARSHAL_ALL_FUNCTIONS") else 11
TRIED = [
    pytest.param(*present, marks=[pytest.mark.slow] if place % 4 else [])
    for place, present in enumerate(PRESENT[8 % STEP :: STEP])
]


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def hits(entry="functions"):
    return jaxmarshal.stats()[entry]["hits"]


# --- Arguments -----------------------------------------------------------------------------------


def array(seed, shape=(3, 4), dtype=np.float32):
    """An array with other elements for each seed."""
    data = np.random.default_rng(seed).integers(-3, 5, shape)
    return jnp.asarray(np.asarray(data + (0.25 if dtype == np.float32 else 0), dtype))


def arguments(seed, name, shape=(3, 4), dtype=np.float32):
    """Tuples of arguments, of which a function takes one or another."""
    x, y = array(seed, shape, dtype), array(seed + 1, shape, dtype)
    v, i = x.reshape(-1)[: shape[-1]], array(seed, (2,), np.int32) % 2
    square, mask = x.reshape(-1)[:9].reshape(3, 3), y > 0
    key = jax.random.key(seed)
    if name in ("PRNGKey", "key"):
        return [(seed,)]
    if name in OWN:
        return OWN[name](x, y, v)
    return [
        (x,), (x, y), (v,), (v, v + 1), ([x, y],), ((3, 4),), (key,), (key, (3,)), (key, v),
        (key, 3), (x, i), (v, i), (i,), (x, 1), (x, (4, 3)), (x, jnp.float16), (square,),
        (square, square), (3,), (mask,), (mask, x, y), (mask, x, 0.5), (x, 0.5), (x, [0], 1),
        (key, v, v + 4), (key, (2,), 0, 5), (x, (0, 0), (2, 2)), (x, x[:1], (0, 0)), (i, 4),
        (x, 2, 1), (key, 0.25, (3,)), (i, i), (0.0, 1.0, 5), (x, (1, 0)), ((2, 3), 1.5),
        (np.float32, (2, 3)), (x, i, 1), (x.astype(np.complex64),), (x[None], x[None]),
        (x[:1], (0,)), (x[None, :, None], x[None, :, None], x[None, :, None]),
        (x, x, (1, 1), "SAME"),
        (x[None, None], x[None, None], (1, 1), "SAME"), (x, (1, 1), (2, 2)), (v, v, v), (v, v, 2),
        (x, 1.0, ((0, 1, 0), (0, 0, 0))),
    ]  # fmt: skip


#: Arguments that no other function takes.
OWN = {
    "einsum": lambda x, y, v: [("ij,kj->ik", x, y), ("ij->j", x)],
    "dsplit": lambda x, y, v: [(x[None, :, :2], 2)],
    "kaiser": lambda x, y, v: [(5, 2.0)],
    "multi_dot": lambda x, y, v: [([x, y.T, x],)],
    "argmax": lambda x, y, v: [(x, 1, jnp.int32)],
    "argmin": lambda x, y, v: [(x, 1, jnp.int32)],
    "broadcast_in_dim": lambda x, y, v: [(v, (2, v.size), (1,))],
    "broadcasted_iota": lambda x, y, v: [(np.int32, (2, 3), 1)],
    "conv_general_dilated_patches": lambda x, y, v: [(x[None, None], (2, 2), (1, 1), "SAME")],
    "conv_transpose": lambda x, y, v: [(x[None], y[None].transpose(0, 2, 1), (2,), "SAME")],
    "conv_with_general_padding": lambda x, y, v: [
        (x[None, None], y[None, None], (1, 1), "SAME", None, None),
    ],
    "dynamic_update_slice_in_dim": lambda x, y, v: [(x, y[:1], 1, 0)],
    "index_take": lambda x, y, v: [(v, (jnp.array([0, 1]),), (0,))],
    "iota": lambda x, y, v: [(np.int32, 4)],
    "reduce_and": lambda x, y, v: [(x > 0, (0,))],
    "reduce_or": lambda x, y, v: [(x > 0, (0,))],
    "multinomial": lambda x, y, v: [(jax.random.key(2), 5.0, abs(v))],
    "ragged_dot": lambda x, y, v: [(x, y.T[None], jnp.array([x.shape[0]]))],
    "reduce_xor": lambda x, y, v: [(x > 0, (0,))],
    "slice_in_dim": lambda x, y, v: [(x, 0, 2)],
    "split": lambda x, y, v: [(x, 2, 1), (jax.random.key(v.size),), (x, (2, 2), 1)],
    "multivariate_normal": lambda x, y, v: [(jax.random.key(1), v * 0, jnp.eye(v.size))],
    "triangular": lambda x, y, v: [(jax.random.key(1), 0.0, 0.5, 1.0)],
    "wrap_key_data": lambda x, y, v: [(jax.random.PRNGKey(v.size),)],
}


#: Without these, functions read on the host how many results there are, or refuse the call.
OPTIONS = {
    "fill_diagonal": {"inplace": False},
    **{name: {"size": 5} for name in (
        "argwhere", "flatnonzero", "nonzero", "setdiff1d", "union1d", "unique",
    )},
}  # fmt: skip


def accepted(call, name, enough=all):
    """The places in the list whose arguments plain JAX takes, and makes arrays of.

    `enough` says of which of the leaves that are returned, of all or of any.
    """
    found = []
    with jaxmarshal.uninstalled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, args in enumerate(arguments(1, name)):
            with contextlib.suppress(Exception):
                leaves = jax.tree.leaves(call(*args))
                if leaves and enough(isinstance(leaf, jax.Array) for leaf in leaves):
                    found.append(place)
    return found


def same(call, args, context=contextlib.nullcontext):
    """One call with jaxmarshal and one without, compared."""
    compare(lambda: observe(call, *args, context=context), again=True)


def change_arrays(args, change):
    return jax.tree.map(
        lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, args,
        is_leaf=lambda leaf: isinstance(leaf, str),
    )


def deleted(leaf):
    other = jnp.copy(leaf) if leaf.dtype != jax.dtypes.prng_key else leaf
    if other is not leaf:
        other.delete()
    return other


CHANGES = {
    "committed": lambda leaf: jax.device_put(leaf, jax.devices()[0]),
    "on another device": lambda leaf: jax.device_put(leaf, jax.devices()[1]),
    "deleted": deleted,
    "zero": lambda leaf: leaf * 0 if leaf.dtype != jax.dtypes.prng_key else leaf,
    "host data": lambda leaf: np.asarray(leaf) if leaf.dtype != jax.dtypes.prng_key else leaf,
}

CONTEXTS = {
    "x64": lambda: jax.enable_x64(True),
    "another default device": lambda: jax.default_device(jax.devices()[1]),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no transfers": lambda: jax.transfer_guard("disallow"),
    "NaNs": lambda: jax.debug_nans(True),
}


def find(module, name):
    options = OPTIONS.get(name, {})
    return lambda *args: getattr(importlib.import_module(module), name)(*args, **options)


@together()
def check(call, name, place):
    """Warm, then other elements, then everything else that may differ."""
    args = arguments(1, name)[place]
    for _ in range(4):
        call(*args)
    before = hits()
    same(call, args)
    fast = hits() > before
    for seed in (2, 3):
        same(call, arguments(seed, name)[place])
    for change in CHANGES.values():
        try:
            changed = change_arrays(args, change)
        except Exception:
            continue
        for _ in range(3):
            same(call, changed)
    for other in (arguments(1, name, (2, 6)), arguments(1, name, dtype=np.int32)):
        for _ in range(3):
            same(call, other[place])
    for context in CONTEXTS.values():
        for _ in range(3):
            same(call, args, context)
    same(call, args)
    return fast


def test_the_table_has_what_jax_has():
    """Of the names that the installed JAX lacks there are few, and none is there twice."""
    assert len(PRESENT) > 0.95 * len(NAMES)
    assert len(set(NAMES)) == len(NAMES)
    (entry,) = (entry for entry in patching.ENTRY_POINTS if entry.name == "functions")
    assert entry.active
    assert len(entry.places) > 200


@pytest.mark.parametrize(("module", "name"), TRIED)
def test_one_thing_changes(module, name):
    """Each function, with up to three of the arguments that it takes."""
    call = find(module, name)
    places = accepted(call, name)
    assert places, "no arguments for it"
    for place in places[:: max(1, len(places) // 2)][:3]:
        check(call, name, place)


# --- What no key can hold ------------------------------------------------------------------------

N = [jnp.int32(2), jnp.int32(3)]
REPEATS = [jnp.array([1, 2, 0]), jnp.array([2, 0, 1])]
MASKS = [jnp.array([True, False, True]), jnp.array([False, True, True])]
SEGMENTS = [jnp.array([0, 1, 1]), jnp.array([0, 1, 2])]
READS = {
    "how many are not zero": lambda x, k: jnp.nonzero(MASKS[k])[0] + jnp.nonzero(x)[0][:1],
    "how many there are of each": lambda x, k: jnp.bincount(SEGMENTS[k]),
    "how many differ": lambda x, k: jnp.unique(SEGMENTS[k]),
    "how many segments there are": lambda x, k: jax.ops.segment_sum(x, SEGMENTS[k]),
    "which to keep": lambda x, k: jnp.compress(MASKS[k], x, axis=0),
    "which to leave out": lambda x, k: jnp.delete(x, REPEATS[k][:1], axis=0),
    "where to insert": lambda x, k: jnp.insert(x, N[k], 0.0, axis=1),
    "a mask": lambda x, k: getitem(x, MASKS[k]),
    "a mask that is set": lambda x, k: x.at[MASKS[k]].set(0.0),
    "the end of a slice": lambda x, k: getitem(x, slice(None, N[k])),
    "repeats": lambda x, k: jnp.repeat(x, REPEATS[k], axis=0),
    "where to split": lambda x, k: jnp.split(x, REPEATS[k][:1]),
    "a shape": lambda x, k: jnp.zeros((N[k],)),
    "an axis": lambda x, k: jnp.stack([x, x], N[k] - 2),
    "through numpy": lambda x, k: jnp.full(2, np.asarray(N[k])),
    "a number of elements": lambda x, k: jnp.arange(N[k]),
}


@pytest.mark.parametrize("read", READS)
def test_elements_that_are_read(read):
    """Who looks at the elements of an array finds others the next time."""
    x = array(1, (3, 4))
    call = READS[read]
    for k in (0, 0, 0, 0, 1, 0, 1, 1):
        same(call, (x, k))


#: Ways to look at an array that a function has made on its way.
LOOKS = {
    "item": lambda y: y.reshape(-1)[0].item(),
    "tolist": lambda y: y.tolist(),
    "print": print,
    "np.asarray": np.asarray,
    "np.array": np.array,
    "memoryview": lambda y: bytes(memoryview(y)),
    "DLPack": lambda y: np.from_dlpack(y).tolist(),
    "jax.device_get": jax.device_get,
    "a shard": lambda y: np.asarray(y.addressable_shards[0].data),
    "a part": lambda y: np.asarray(y.addressable_data(0)),
    "iteration": lambda y: [float(part) for row in y for part in row],
    "copying": lambda y: y.copy_to_host_async() or np.asarray(y),
    "a pointer": lambda y: y.unsafe_buffer_pointer(),
    "pickling": pickle.dumps,
}


@pytest.mark.parametrize("look", [None, *LOOKS])
def test_a_look_between_two_steps(look):
    """Who looks at an array on the way decides by it, perhaps: the look is made in each call."""
    if look in ("memoryview", "DLPack") and not shares_memory():
        pytest.skip("NOT DONE: numpy reads no memory of this device")
    looks = []

    def function(x):
        y = x * 2
        if look is not None:
            looks.append(LOOKS[look](y))
        return y + 1

    call = public_functions.make_row("functions", function)
    xs = [array(1), array(2)]
    before = hits() - counting.inner()["functions"]["hits"]
    for i in range(8):
        assert np.array_equal(call(xs[i % 2]), np.asarray(xs[i % 2]) * 2 + 1)
    found = hits() - counting.inner()["functions"]["hits"] - before
    assert (len(looks), found > 0) == ((0, True) if look is None else (8, False))


def test_the_class_of_arrays_stays_as_it_is():
    """Python 3.13 looks everything up anew in a class that has changed a thousand times."""
    cls, seen = type(jnp.ones(1)), []

    def function(x):
        seen.append(dict(vars(cls)))
        return x * 2 + 1

    call, before = public_functions.make_row("functions", function), dict(vars(cls))
    for _ in range(6):
        call(array(1))
    assert 0 < len(seen) < 6    # then it was recorded
    assert all(found == before for found in seen)


@pytest.mark.parametrize("place", ["convert_element_type_p", "shard_args"])
def test_replaced_conversions_of_numbers(place):
    """Trap 15: what makes an array of a number is called as often as in JAX."""
    seen = []
    if place == "shard_args":
        patch = (pxla, "shard_args", pxla.shard_args)
    else:
        primitive = jax.lax.convert_element_type_p
        patch = (primitive, "bind_with_trace", vars(primitive)["bind_with_trace"])

    def stand_in(*args, **kwargs):
        seen.append(place)
        return patch[2](*args, **kwargs)

    key, found = jax.random.key(1), []
    for side in (jaxmarshal.uninstalled, jaxmarshal.installed):
        with side():
            for i in range(12):
                jax.random.fold_in(key, i)
            seen.clear()
            with mock.patch.object(*patch[:2], stand_in):
                for i in range(20, 24):
                    jax.random.fold_in(key, i)
            found.append(len(seen))
    assert found[1] == found[0]
    assert hits()


def test_functions_of_the_program_that_einsum_calls():
    """A way of contracting that a program registered is asked in every call."""
    from opt_einsum import paths

    asked = []
    try:
        paths.register_path_fn("own", lambda *args, **kw: (asked.append(1), [(0, 1), (0, 1)])[1])
        x, before = array(1), hits()
        for i in range(6):
            same(lambda x: jnp.einsum("ij,kj,kl->il", x, x, x, optimize="own"), (x,))
            assert len(asked) == 2 * i + 2
        assert hits() == before
    finally:
        paths._PATH_OPTIONS.pop("own", None)


def test_kinds_of_keys_that_a_program_defines():
    """Their functions are the program's, and are called every time."""
    from jax.extend.random import define_prng_impl

    asked, add = [], [7]

    def words(*args, **kwargs):
        asked.append(1)
        return jnp.full((2,), add[0], jnp.uint32)

    impl = define_prng_impl(
        key_shape=(2,), seed=lambda seed: jnp.zeros(2, jnp.uint32) + seed.astype(jnp.uint32),
        split=lambda key, shape: (asked.append(1), jnp.full((*shape, 2), add[0], jnp.uint32))[1],
        random_bits=lambda key, width, shape: (
            asked.append(1), jnp.full(shape, add[0], jnp.uint32)
        )[1],
        fold_in=words, name=f"own{id(asked)}", tag=f"o{id(asked)}",
    )  # fmt: skip
    key = jax.random.key(3, impl=impl)
    calls = [
        lambda: jax.random.key_data(jax.random.split(key)), lambda: jax.random.bits(key, (2,)),
        lambda: jax.random.key_data(jax.random.fold_in(key, 5)),
    ]  # fmt: skip
    for call in calls:
        for i in range(6):
            add[0] = i
            before = len(asked)
            same(call, ())
            assert len(asked) == before + 2


def test_warnings_that_are_given_every_time():
    """A call that warns is not replayed: the next one warns, too."""
    whole = array(1, (4,), np.int32)
    for call in (lambda: whole.at[0].set(1.5), lambda: jnp.zeros(3, np.float64)):
        for _ in range(6):
            same(call, ())
    assert jnp.zeros(3).dtype == jnp.float32


def test_states_that_the_context_lacks():
    """Raw keys are an error in one configuration, and make keys of other kinds in others."""
    raw = jax.random.PRNGKey(3)
    numbers = jnp.arange(3)

    def draw(i, x):
        return x + jax.random.normal(jax.random.fold_in(raw, i), (2,))

    def make(carry, seed):
        return carry, jax.random.key_data(jax.random.key(seed))

    calls = [lambda: jax.random.normal(raw, (2,)), lambda: jax.random.key(3),
             lambda: jax.random.PRNGKey(3), lambda: jax.lax.fori_loop(0, 2, draw, jnp.zeros(2)),
             lambda: jax.lax.scan(make, 0, numbers)]  # fmt: skip
    contexts = [lambda: jax.legacy_prng_key("error"), lambda: jax.default_prng_impl("rbg"),
                lambda: jax.enable_custom_prng(True)]  # fmt: skip
    for call in calls:
        for _ in range(4):
            call()
        for context in contexts:
            for _ in range(4):
                same(call, (), context)
            same(call, ())


def names_in(path):
    """The names that a module of Python has outside of its comments and texts."""
    with tokenize.open(path) as file:
        return {token.string for token in tokenize.generate_tokens(file.readline)}


def modules_with(names, *folders):
    """Modules of the installed JAX that have one of these names, by their path."""
    home = Path(jax.__file__).parent
    return {
        path.relative_to(home).as_posix()
        for folder in folders
        for path in (home / folder).rglob("*.py")
        if names & names_in(path)
    }


def test_who_reads_these_states():
    """Functions of other modules than `jax.random` are replayed without a look at them."""
    states = {"legacy_prng_key", "enable_custom_prng", "default_prng_impl"}
    found = modules_with(states, "_src", "numpy", "nn", "lax", "random", "scipy")
    others = {path for path in found if not path.startswith(("_src/random", "random"))}
    assert others <= {"_src/config.py", "_src/test_util.py"}
    assert len(found) > len(others) > 0
    for name in which_functions._RANDOM:
        function = getattr(jax.random, name)
        assert public_functions.is_of_random(function), name
    # Nor do those lead there. Initializers are not replayed.
    homes = ("_src/numpy", "_src/lax", "_src/nn", "numpy", "lax", "nn")
    assert modules_with({"random", "prng"}, *homes) == {"_src/nn/initializers.py"}


def test_the_same_array_twice():
    """What was recorded of an array with itself is not what it does with another."""
    x, y = array(1), array(2)
    for _ in range(4):
        same(lambda a, b: jax.lax.sub(a, b), (x, x))
        same(lambda a, b: jax.lax.sub(a, b), (x, y))
        same(lambda a, b: jnp.stack([a, b, a]), (x, y))
        same(lambda a, b: jnp.stack([a, b, a]), (x, x))
    for call in (jnp.vstack, jnp.hstack, lambda pair: jnp.where(pair[0] > 1, *pair)):
        for _ in range(4):
            same(call, ([x, x],))
        same(call, ([x, y],))
    before = hits()
    jax.lax.sub(x, y)
    assert hits() == before + 1


VALUES = [0.0, -0.0, 0, False, 1, 1.0, True, float("nan"), 1j, -1]


def test_values_that_compare_equal():
    """Numbers are told apart by type and sign, as arguments and where their arrays are kept."""
    x, scaled = array(1), jax.jit(lambda x, v: x * v)
    for call in (
        lambda v: jnp.full(2, v), lambda v: x + v, lambda v: x * v, lambda v: scaled(x, v),
        lambda v: jnp.where(x > 1, x, v), lambda v: jnp.pad(x, 1, constant_values=v),
        lambda v: jax.lax.full((2,), v),
    ):  # fmt: skip
        for first, second in itertools.pairwise([*VALUES, *VALUES[::-1]]):
            for value in (first, first, first, first, second, first):
                same(call, (value,))


def test_numbers_in_turns():
    """A function that is called with a few numbers in turns finds the array of each."""
    x = array(1)
    some = [0.0, -0.0, 0.5, float("nan"), 1.0, 3.0]
    scaled = jax.jit(lambda x, v: x * v)
    for value in some * 4:
        same(scaled, (x, value))
    arrays, before = len(jax.live_arrays()), hits("jit")
    for value in some[::-1] * 3:
        same(scaled, (x, value))
    assert hits("jit") == before + 18
    assert len(jax.live_arrays()) == arrays
    for value in range(1000):    # others are not kept, however many there are
        scaled(x, float(value))
    assert len(jax.live_arrays()) <= arrays + 2


def test_a_number_that_stays_after_many_that_did_not():
    """Calls go past the plans while each number is another one, and come back soon after."""
    x = array(1)
    scaled = jax.jit(lambda x, v: x * v)
    for value in range(5000):
        scaled(x, float(value))
    for values in ([0.5], [1.5, 2.5, 3.5]):
        for i in range(1200):
            scaled(x, values[i % len(values)])
        before = hits("jit")
        for value in values * 5:
            same(scaled, (x, value))
        assert hits("jit") == before + 5 * len(values)


SEEDED = {
    "fold_in": lambda i: jax.random.fold_in(jax.random.key(7), i),
    "fold_in, by name": lambda i: jax.random.fold_in(data=i, key=jax.random.PRNGKey(7)),
    "key": lambda i: jax.random.key(i),
    "key, another kind": lambda i: jax.random.key(i, impl="rbg"),
    "PRNGKey": lambda i: jax.random.PRNGKey(seed=i),
}


CONTEXTS_OF_SEEDS = [
    lambda: jax.enable_x64(True),
    lambda: jax.default_device(jax.devices()[-1]),
    lambda: jax.transfer_guard("disallow"),
    lambda: jax.transfer_guard_host_to_device("disallow"),
    lambda: jax.numpy_dtype_promotion("strict"),
    lambda: jax.default_prng_impl("rbg"),
    lambda: jax.threefry_partitionable(False),
    lambda: jax.debug_nans(True),
    lambda: jax._src.config.random_seed_offset(3),
    lambda: jax.disable_jit(),
]


@pytest.mark.parametrize("name", SEEDED)
def test_numbers_that_change(name):
    """One recording serves all numbers of which the function makes an array at once."""
    call = SEEDED[name]
    for i in range(6):
        same(call, (i,))
    before = hits()
    for i in (100, 70, 2**31 - 1, 50, 11, 12):
        same(call, (i,))
    assert hits() >= before + 6
    for i in (0, 1, 1, 1, 100, 1):    # one that comes again is recorded by itself
        same(call, (i,))
    for i in (
        -1, 2**31, 2**32 - 1, 2**32, 2**63, -2**63, 2**64, True, 5.0, np.int8(5), np.uint32(5),
        np.array(5), jnp.uint8(5), np.array([5]), "5", None,
    ):  # fmt: skip
        same(call, (i,))
    for i in (8, 9, 10):
        for make in CONTEXTS_OF_SEEDS:
            same(call, (i,), make)


@pytest.mark.parametrize("name", SEEDED)
def test_numbers_that_change_while_jax_traces(name):
    """A number is not made an array outside of a trace that is in progress."""
    call = SEEDED[name]
    for i in range(6):
        call(i)
    for i in (20, 21):
        same(lambda i: jax.random.key_data(jax.vmap(lambda x: (call(i), x)[0])(jnp.ones(3))), (i,))
        texts = []
        for installed in (jaxmarshal.installed, without_jaxmarshal):
            with installed():
                texts.append(str(jax.make_jaxpr(lambda x: (call(i + 1000), x))(1.0)))
        assert texts[0] == texts[1]


def test_results_are_new_arrays():
    """What a call returned may be deleted or donated; constants among the steps are not."""
    x = array(1)
    for call in (
        lambda: jnp.zeros(3), lambda: jnp.eye(3), lambda: x.at[0].set(0.0),
        lambda: jnp.ones_like(x), lambda: jax.random.split(jax.random.key(0)),
    ):  # fmt: skip
        for _ in range(6):
            found = call()
            assert found is not call()
            words = found if found.dtype != jax.dtypes.prng_key else found._base_array
            words.delete()
        same(call, ())


def test_a_result_that_a_later_step_uses():
    """A result is never kept for the steps behind it: it may be deleted."""

    def both():
        zeros = jnp.zeros(3)
        return zeros, zeros + 1

    call = public_functions.make_row("functions", both)
    before = hits()
    for _ in range(6):
        zeros, ones = call()
        assert ones.tolist() == [1, 1, 1]
        zeros.delete()
    assert hits() >= before + 3
    before = dict(jaxmarshal.stats()["functions"])
    zeros = [call()[0] for _ in range(3)]
    zeros[0].delete()
    assert call()[1].tolist() == [1, 1, 1]
    after = jaxmarshal.stats()["functions"]
    assert (after["hits"], after["misses"]) == (before["hits"] + 4, before["misses"])
    assert len({id(x) for x in zeros}) == 3


def test_a_scalar_that_is_donated():
    """Arrays of scalars are not kept where a call may use them up."""
    step = jax.jit(lambda x, s: (x + s, s), donate_argnums=1)
    many = jax.jit(lambda xs, s: ([x + s for x in xs], s), donate_argnums=1)
    x = array(1)
    for _ in range(6):
        same(step, (x, 1.5))
        same(many, ([x] * 20, 1.5))
    assert hits("jit")


def test_nothing_of_a_call_is_kept_alive():
    """Neither arguments nor results, however often the call was replayed."""

    for _ in range(5):
        x = array(1)
        found = [weakref.ref(x), weakref.ref(jnp.stack([x, x])), weakref.ref(jnp.zeros_like(x))]
        del x
    gc.collect()
    assert [ref() for ref in found] == [None, None, None]


def test_threads():
    """Several at once, each with calls of its own kind."""

    def work(n):
        x = array(n, (n + 1, 3))
        for _ in range(40):
            assert jnp.stack([x, x]).shape == (2, n + 1, 3)
            assert np.array_equal(x.at[0].set(n)[0], np.full(3, n))
            assert jnp.zeros_like(x).shape == x.shape
            assert int(jnp.full((), n)) == n
        return n

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(work, range(12))) == list(range(12))


def test_a_thousand_shapes():
    """One call that stays the same is not pushed out by those that never come back."""
    x = array(1)
    for _ in range(5):
        jnp.zeros_like(x)
    for n in range(5000):
        jnp.full(2, float(n))
        if n % 500 == 0:
            before = hits()
            jnp.zeros_like(x)
            assert hits() == before + 1


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_what_keys_are_made_of(kind):
    """A typed key that a replay makes has what JAX gives it, and nothing else."""
    key = jax.random.key(0, impl=kind)
    calls = (
        lambda: jax.random.split(key), lambda: jax.random.fold_in(key, 3), lambda: key[None],
        lambda: jax.random.key(5, impl=kind), lambda: jnp.stack([key, key]),
        lambda: jax.random.wrap_key_data(jax.random.key_data(key), impl=kind),
    )
    for call in calls:
        for _ in range(4):
            found = call()
        with jaxmarshal.uninstalled():
            expected = call()
        assert type(found) is type(expected)
        assert list(vars(found)) == list(vars(expected))
        assert vars(found)["_impl"] is vars(expected)["_impl"]
        assert vars(found)["_consumed"] is vars(expected)["_consumed"] is False
        assert type(vars(found)["_base_array"]) is type(vars(expected)["_base_array"])
        assert found.aval == expected.aval
    assert hits() >= 8


#: Thread A stops within a collection, at another place each time, until thread B is recording.
AT_ONCE = """
import faulthandler, gc, threading, warnings

import jax, jax.numpy as jnp, numpy as np
import jaxmarshal

faulthandler.dump_traceback_later(60, exit=True)
jaxmarshal.install()
A, warn = threading.get_ident(), warnings.warn
given, recording, done = (threading.Event() for _ in range(3))
x, flag, place, target = jnp.ones(3), jnp.bool_(True), 0, 0


def stop(phase, info):
    global place
    if phase == "start" and target and threading.get_ident() == A and warnings.warn is warn:
        place += 1
        if place == target:
            given.set()
            recording.wait(5)


def make():
    def double(y):
        if threading.get_ident() != A:
            recording.set()
            done.wait(5)
        return y * 2

    return double


def other(double, y):
    given.wait(5)
    jax.lax.cond(flag, double, double, y)    # recorded while JAX traces it for this shape
    recording.set()


gc.callbacks.append(stop)
for number in range(2, 18):
    for event in (given, recording, done):
        event.clear()
    double = make()
    jax.lax.cond(flag, double, double, x), jax.lax.cond(flag, double, double, x)
    jnp.where(x, x, 100.0 + number)    # the next such call is recorded
    thread = threading.Thread(target=other, args=(double, jnp.ones(3 + number)))
    thread.start()
    place, target = 0, number
    gc.set_threshold(1)
    jnp.where(x, x, 100.0 + number)
    gc.set_threshold(0)
    target = 0
    given.set(), done.set()
    thread.join()
    assert warnings.warn is warn
    assert np.asarray(x + number).tolist() == [1.0 + number] * 3
    assert bytes(memoryview(x + 1)) == np.full(3, 2, np.float32).tobytes()
assert jaxmarshal.stats()["functions"]["hits"]
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="collections run between bytecodes alone")
def test_two_threads_that_record_at_once():
    """Another thread may begin to record after this one has asked whether anybody does."""
    run_code(AT_ONCE)
