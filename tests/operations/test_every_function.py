"""Every public function of JAX's array libraries: warm, then one thing changes.

Each name of the modules below is called with arguments that plain JAX takes, found by trying, until
what jaxmarshal has for it is warm. Then one thing at a time is another: the dtype, the shape, the
sign of a zero, a weak type, the device, the sharding, the layout, the configuration. Plain JAX says
what is right. Of 900 functions one in five is tried, with 5000 comparisons; each one is with
JAXMARSHAL_ALL_FUNCTIONS=1, in two ways, with 50 000.
"""

from __future__ import annotations

import contextlib
import os
import random
import warnings
import zlib
from types import ModuleType

import jax
import jax.numpy as jnp
import jax.scipy.fft
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.signal
import jax.scipy.special
import jax.scipy.stats
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from eager import together
from jax._src.lax.lax import _convert_element_type
from jax.sharding import NamedSharding, PartitionSpec
from observe import total_hits
from support import column_major
from test_functions import CHANGES, CONTEXTS, accepted, arguments, change_arrays, same

import jaxmarshal

MODULES = {
    "jnp": jnp, "jnp.linalg": jnp.linalg, "jnp.fft": jnp.fft, "lax": jax.lax,
    "lax.linalg": jax.lax.linalg, "nn": jax.nn, "random": jax.random, "scipy.fft": jax.scipy.fft,
    "scipy.linalg": jax.scipy.linalg, "scipy.ndimage": jax.scipy.ndimage,
    "scipy.signal": jax.scipy.signal, "scipy.special": jax.scipy.special,
    "scipy.stats": jax.scipy.stats,
}  # fmt: skip
MODULES |= {
    f"scipy.stats.{name}": module for name, module in vars(jax.scipy.stats).items()
    if not name.startswith("_") and isinstance(module, ModuleType)
}  # fmt: skip

#: What writes files, draws from a state, waits, or leaves elements to chance.
LEFT_OUT = {
    "create_token", "dce_sink", "empty", "empty_like", "from_dlpack", "fromfile", "fromregex",
    "get_printoptions", "infeed", "load", "outfeed", "printoptions", "rng_uniform", "save", "savez",
    "set_printoptions",
}  # fmt: skip

#: Ways for each function.
WAYS = 2 if os.environ.get("JAXMARSHAL_ALL_FUNCTIONS") else 1
#: Changes on each way.
STEPS = 6
#: One of so many functions is tried at all, and in the short run.
TRIED = 1 if os.environ.get("JAXMARSHAL_ALL_FUNCTIONS") else 5
SHORT = 100


def public():
    """(module, name) of every function, each object once, in a fixed order."""
    seen = set()
    for module, found in MODULES.items():
        for name in sorted(dir(found)):
            function = getattr(found, name, None)
            if name.startswith("_") or name in LEFT_OUT or not callable(function):
                continue
            if isinstance(function, type) or id(function) in seen:
                continue
            seen.add(id(function))
            yield module, name


EVERY = list(public())
CHOSEN = [
    pytest.param(*found, marks=[pytest.mark.slow] if place % SHORT else [])
    for place, found in enumerate(EVERY)
    if place % TRIED == 0
]


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def is_key(leaf):
    return leaf.dtype == jax.dtypes.prng_key


def weak(leaf):
    return leaf if is_key(leaf) else _convert_element_type(leaf, weak_type=True)


def spread(*names):
    def change(leaf):
        mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
        spec = PartitionSpec(*([None] * (leaf.ndim - 1)), *names) if leaf.ndim else PartitionSpec()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return change


def in_columns(leaf):
    if is_key(leaf) or leaf.ndim != 2:
        return leaf
    return column_major(np.asarray(leaf))


def of_numpy_data(leaf):
    return leaf if is_key(leaf) else jax.device_put(np.asarray(leaf))


#: One thing about the arrays among the arguments.
OF_ARRAYS = {
    **CHANGES,
    "the other zero": lambda leaf: leaf if is_key(leaf) or leaf.dtype == bool else leaf * -0.0,
    "copies on two devices": spread(None),
    "spread": spread("x"),
    "in columns": in_columns,
    "made of numpy data": of_numpy_data,
    "weak": weak,
    "half size": lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == np.float32 else leaf,
}


def of_numbers(change):
    def changed(args):
        return jax.tree.map(lambda leaf: change(leaf) if type(leaf) in (int, float) else leaf, args)

    return changed


#: One thing about all arguments.
OF_ARGUMENTS = {
    "numbers of numpy": of_numbers(lambda number: np.asarray(number)[()]),
    "numbers that are arrays": of_numbers(jnp.asarray),
    "floats": of_numbers(float),
    "other numbers": of_numbers(lambda number: number + 1),
    "negative numbers": of_numbers(lambda number: -number),
    "bools": of_numbers(lambda number: number > 0.25),
}

#: One thing about the configuration.
OF_CONFIGURATION = {
    **CONTEXTS,
    "precise products": lambda: jax.default_matmul_precision("float32"),
    "keys of another kind": lambda: jax.default_prng_impl("rbg"),
    "other bits of keys": lambda: jax.threefry_partitionable(
        not jax.config.jax_threefry_partitionable
    ),
    "no promotion of ranks": lambda: jax.numpy_rank_promotion("raise"),
    "no compiling": jax.disable_jit,
    "a mesh": lambda: jax.set_mesh(jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])),
    "leaks are looked for": jax.checking_leaks,
    "infinities": lambda: jax.debug_infs(True),
}

#: Other arrays altogether.
OF_ALL = {
    "other elements": lambda name: arguments(7, name),
    "another shape": lambda name: arguments(1, name, (2, 6)),
    "int32": lambda name: arguments(1, name, dtype=np.int32),
    "float16": lambda name: arguments(1, name, dtype=np.float16),
    "uint8": lambda name: arguments(1, name, dtype=np.uint8),
}


def change(chance, call, name, place, args):
    """One change, made and compared three times; the same call again afterwards."""
    table = chance.choice((OF_ARRAYS, OF_ARGUMENTS, OF_CONFIGURATION, OF_CONFIGURATION, OF_ALL,
                           OF_ARRAYS))  # fmt: skip
    make = table[chance.choice(sorted(table))]
    context, changed = contextlib.nullcontext, args
    try:
        if table is OF_ARRAYS:
            changed = change_arrays(args, make)
        elif table is OF_ARGUMENTS:
            changed = make(args)
        elif table is OF_ALL:
            changed = make(name)[place]
        else:
            context = make
    except Exception:
        return    # there is no such thing of these arguments
    for _ in range(3):
        same(call, changed, context)
    same(call, args)


@pytest.mark.parametrize(("module", "name"), CHOSEN)
@together()
def test_one_thing_changes(module, name):
    def call(*args):
        return getattr(MODULES[module], name)(*args)

    places = accepted(call, name, any)
    if not places:
        pytest.skip("it takes none of the arguments")    # `test_most_are_called` counts
    chance = random.Random(zlib.crc32(f"{module}.{name}".encode()))
    for _ in range(WAYS):
        place = chance.choice(places)
        args = arguments(1, name)[place]
        for _ in range(4):
            same(call, args)
        for _ in range(STEPS):
            change(chance, call, name, place, args)


@pytest.mark.slow
def test_most_are_called():
    """Of every twelfth function, most take some of the arguments, and many are fast then."""
    called = fast = 0
    tried = EVERY[5::12]
    for module, name in tried:
        function = getattr(MODULES[module], name)
        places = accepted(function, name, any)
        called += bool(places)
        if places:
            args = arguments(1, name)[places[0]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(6):
                    before = total_hits()
                    function(*args)
            fast += total_hits() > before
    assert called > 0.7 * len(tried), (called, len(tried))
    # Without object layout, compiled functions are left to JAX.
    assert fast > (0.4 if LAYOUT_OFF else 0.7) * called, (fast, called)
