"""What was given to a call and what it returned die when they die in plain JAX.

Measured by weak references, by `jax.live_arrays()`, and by the memory of the process.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from entries import ENTRIES
from jax._src import core, dispatch
from jax._src.interpreters import pxla
from jax._src.lib import xla_client
from old_dispatch import compiled as old_compiled
from support import DEBUG, aligned

import jaxmarshal
from jaxmarshal._core.placement import host_data
from jaxmarshal._jax import patching, private
from jaxmarshal.compat import dispatch_v0_3

CALLS = 12
#: Functions that wrap `jax.jit`, of libraries that are there.
FRONTS = [name for name in ("filter_jit", "equinox_filter_jit", "nnx_jit") if name in ENTRIES]
#: Bytes of one array where memory is measured.
SIZE = 1 << 20


def sides():
    return {"jax": contextlib.nullcontext, "jaxmarshal": jaxmarshal.installed}


def alive(things: list[Any]) -> int:
    return sum(reference() is not None for reference in things)


def references(tree: Any) -> list[Any]:
    """Weak references to the leaves that allow them; none of a tree that has no leaves for JAX."""
    found, leaves = [], []
    with contextlib.suppress(ValueError):    # keys without an order
        leaves = jax.tree.leaves(tree)
    for leaf in leaves:
        with contextlib.suppress(TypeError):
            found.append(weakref.ref(leaf))
    return found


def left_by(call: Any) -> tuple[int, int, int]:
    """How many arguments, results and device arrays are left of some calls."""
    gc.collect()
    before = len(jax.live_arrays())
    arguments, results = [], []
    for _ in range(CALLS):
        args, kwargs = call.make(), call.kwargs()
        with contextlib.suppress(Exception):
            result = call.function(*args, **kwargs)
            results += references(result)
        arguments += references((args, kwargs))
        args = kwargs = result = None
    gc.collect()
    return alive(arguments), alive(results), len(jax.live_arrays()) - before


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.filterwarnings("ignore")
def test_calls(name):
    """Arguments and results of each call of each entry point."""
    left = {}
    for side, place in sides().items():
        early = ENTRIES[name].early()
        with place():
            subject = ENTRIES[name].make(early)
            left[side] = {}
            for call in subject.calls:
                if call.same:
                    continue
                left_by(call)    # what is kept once is kept
                left[side][call.label] = left_by(call)
                if call.label == "a list" and private.stage_primitive is None:
                    # JAX copies the numbers by a jitted function: they are kept as its argument.
                    left[side][call.label] = left[side][call.label][:2]
            del subject, call, early
        jax.clear_caches()
    assert left["jaxmarshal"] == left["jax"]


# --- What parameters and closures hold -----------------------------------------------------------


class Parameter:
    """A parameter of a primitive that holds an array."""

    def __init__(self, held: Any) -> None:
        self.held = held


own_p = core.Primitive("own")
own_p.def_impl(lambda x, *, parameter: x)
own_p.def_abstract_eval(lambda x, *, parameter: x)


def callback(held: Any) -> None:
    jax.debug.callback(lambda x, held=held: None, jnp.ones(2))


def custom_jvp(held: Any) -> None:
    function = jax.custom_jvp(lambda x: x + held[0])
    function.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    function(jnp.ones(2))


def custom_vjp(held: Any) -> None:
    function = jax.custom_vjp(lambda x: x + held[0])
    function.defvjp(lambda x: (x, None), lambda _, g: (g,))
    function(jnp.ones(2))


def own_primitive(held: Any) -> None:
    own_p.bind(jnp.ones(2), parameter=Parameter(held))


def closure(held: Any) -> None:
    jax.jit(lambda x: x + held[0])(jnp.ones(2))


def static(held: Any) -> None:
    jax.jit(lambda x, p: x, static_argnums=1)(jnp.ones(2), Parameter(held))


def compiled(held: Any) -> None:
    jax.jit(lambda x: x + held[0]).lower(jnp.ones(2)).compile()(jnp.ones(2))


HOLDERS: dict[str, Callable[[Any], None]] = {
    "jax.debug.callback": callback, "custom_jvp": custom_jvp, "custom_vjp": custom_vjp,
    "own primitive": own_primitive, "jit, closure": closure, "jit, static argument": static,
    "compiled, closure": compiled,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDERS)
def test_holders(name):
    """A closure, a parameter or a static argument that holds an array."""
    left = {}
    for side, place in sides().items():
        with place():
            held = []
            for _ in range(CALLS):
                array = jax.device_put(aligned(8))
                held.append(weakref.ref(array))
                HOLDERS[name](array)
                del array
            jax.effects_barrier()
            gc.collect()
            left[side] = alive(held)
        jax.clear_caches()
    assert left["jaxmarshal"] <= left["jax"], left


def _objects_left() -> int:
    """How many objects some calls with parameters of their own leave."""
    def call() -> None:
        own_primitive(jax.device_put(aligned(8)))
        jax.nn.relu(jnp.ones(3))

    for _ in range(5):
        call()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        call()
    gc.collect()
    return len(gc.get_objects()) - before


@pytest.mark.slow
def test_records_do_not_grow():
    """`jax.nn.relu` and own primitives leave nothing with each call in what is recorded."""
    left = {}
    for side, place in sides().items():
        with place():
            left[side] = _objects_left()
    assert left["jaxmarshal"] < left["jax"] + 100, left


# --- Views of host memory ------------------------------------------------------------------------

VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a view": lambda raw: raw[:64].view("f4"),
    "a slice": lambda raw: raw.view("f4")[:16],
    "np.ndarray": lambda raw: np.ndarray((16,), "f4", buffer=raw),
    "np.frombuffer": lambda raw: np.frombuffer(raw, "f4", 16),
    "reshaped": lambda raw: raw.view("f4").reshape(2, -1)[0],
}
PUTS: dict[str, Callable[[Any], Any]] = {
    "device_put": jax.device_put,
    "to a device": lambda x: jax.device_put(x, jax.devices()[0]),
    "to eight": lambda x: jax.device_put(x, jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.asarray(jax.devices()), ("x",)), jax.sharding.PartitionSpec("x"))),
    "asarray": lambda x: jnp.asarray(x),
}  # fmt: skip


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, put):
    """A view that is put without a copy, while the result lives, and its base's references."""
    seen = {}
    for side, place in sides().items():
        with place():
            function = jax.device_put if put == "device_put" else PUTS[put]
            seen[side] = []
            for _ in range(4):
                raw = aligned(256, np.uint8)
                x = VIEWS[view](raw)
                died, count = weakref.ref(x), sys.getrefcount(raw)
                result = jax.block_until_ready(function(x))
                held = sys.getrefcount(x)
                del x
                gc.collect()
                seen[side].append((died() is None, held, sys.getrefcount(raw) - count))
                del result
    assert seen["jaxmarshal"] == seen["jax"]


# --- Memory of the process -----------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory that the process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def data() -> np.ndarray:
    return aligned(SIZE // 4)


def _memory_calls() -> dict[str, Callable[[], Any]]:
    """Each entry point, with large arrays."""
    everywhere = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.asarray(jax.devices()), ("x",)), jax.sharding.PartitionSpec("x")
    )
    first = jax.devices()[0]
    single = jax.sharding.SingleDeviceSharding(first)
    aval = core.ShapedArray((SIZE // 4,), np.dtype("float32"))
    reuse = xla_client.ArrayCopySemantics.REUSE_INPUT
    x = jax.device_put(data())
    function, donating = jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 1, donate_argnums=0)
    run = jax.jit(lambda x: x + 1).lower(x).compile()
    old, numbers = old_compiled(lambda x: [x + 1], x), map(float, itertools.count())
    return {
        "device_put": lambda: jax.device_put(data()),
        "device_put of 64 bits": lambda: jax.device_put(data().astype(np.float64)),
        "device_put to eight": lambda: jax.device_put(data(), everywhere),
        "device_put, moved": lambda: jax.device_put(x, jax.devices()[1]),
        "make_array_from_process_local_data": lambda: jax.make_array_from_process_local_data(
            everywhere, data()),
        "batched_device_put": lambda: pxla.batched_device_put(aval, single, [data()], [first]),
        "batched_device_put_impl": lambda: dispatch.batched_device_put_impl(
            data(), devices=[None], srcs=[None], copy_semantics=[reuse]),
        "shard_args": lambda: pxla.shard_args([single], [None], [reuse], [data()]),
        "asarray": lambda: jnp.asarray(data()),
        "array": lambda: jnp.array(data()),
        "jit": lambda: function(x),
        "jit of host data": lambda: function(data()),
        "jit, donated": lambda: donating(jax.device_put(data())),
        "compiled": lambda: run(x),
        "MeshExecutable.call": lambda: run._executable.call(x),
        "unsafe_call": lambda: run._executable.unsafe_call(x),
        "bind": lambda: jax.lax.neg(x),
        "bind of host data": lambda: jax.lax.neg(data()),
        "getitem": lambda: x[1:],
        "zeros": lambda: jnp.zeros(SIZE // 4),
        "ones": lambda: jnp.ones(SIZE // 4),
        "full": lambda: jnp.full(SIZE // 4, 2.0),
        "functions": lambda: jnp.concatenate([x, x]),
        "functions of numbers": lambda: x * next(numbers),
        "results_handler_call": lambda: run._executable.unsafe_call.out_handler([[function(x)]]),
        "xla_primitive_callable": lambda: dispatch.xla_primitive_callable(jax.lax.neg_p)(x),
        "dispatch_v0_3.device_put": lambda: dispatch_v0_3.device_put(data(), first),
        "dispatch_v0_3.call": lambda: old.call(x),
        **_front_calls(x),
    }


def _front_calls(x: Any) -> dict[str, Callable[[], Any]]:
    """The same of functions that wrap `jax.jit`, of libraries that are there."""
    def add(x: Any, number: Any) -> Any:
        return x + number

    own = jaxmarshal.filter_jit(add)
    found: dict[str, Callable[[], Any]] = {
        "filter_jit": lambda: own(x, 1), "filter_jit of host data": lambda: own(data(), 1),
    }  # fmt: skip
    if "equinox_filter_jit" in ENTRIES:
        import equinox

        theirs = equinox.filter_jit(add)
        found["equinox_filter_jit"] = lambda: theirs(x, 1)
    if "nnx_jit" in ENTRIES:
        from flax import nnx

        jitted = nnx.jit(add, static_argnums=1)
        found["nnx_jit"] = lambda: jitted(x, 1)
    return found


@pytest.mark.slow
@pytest.mark.skipif(DEBUG, reason="debug builds keep more")
def test_memory():
    """A hundred calls of each entry point leave nothing of the megabytes they were given."""
    with jaxmarshal.installed():
        for name, call in _memory_calls().items():
            for _ in range(20):
                jax.block_until_ready(call())
            host_data.drop_buffers()    # they have a bound, and a test, of their own
            gc.collect()
            arrays, before = len(jax.live_arrays()), resident()
            for _ in range(100):
                jax.block_until_ready(call())
            host_data.drop_buffers()
            gc.collect()
            assert len(jax.live_arrays()) == arrays, name
            assert resident() - before < 40 * SIZE, name
        counts = jaxmarshal.stats()
        active = [entry.name for entry in patching.ENTRY_POINTS if entry.active]
        slow = [name for name in (*active, *FRONTS) if counts[name]["hits"] < 100]
        # Without a primitive that stages, JAX puts numpy data otherwise.
        assert slow == ([] if private.stage_primitive is not None else ["array"])
