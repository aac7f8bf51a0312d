"""Numpy arrays on their way to a device: what is read of them, what is kept of them, what is said.

Every test runs the same calls with plain JAX and with jaxmarshal installed.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax._src import dispatch
from jax._src.interpreters import pxla
from jax._src.lax import lax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from samples import device, mesh_of
from support import aligned, config_updated, counts, named

import jaxmarshal
from jaxmarshal._jax import private

REUSE = private.REUSE_INPUT
TARGETS = {
    "default": lambda: None,
    "device": lambda: device(1),
    "sharding": lambda: SingleDeviceSharding(device(2)),
    "one of a mesh": lambda: NamedSharding(mesh_of(0), PartitionSpec("x")),
    "replicated": lambda: named(),
    "sharded": lambda: named("x"),
}


def shard(x, sharding):
    """`pxla.shard_args` with one argument."""
    return pxla.shard_args([sharding], [None], [REUSE], [x])[0]


def place(x, target):
    """`dispatch.batched_device_put_impl` with one argument."""
    return dispatch.batched_device_put_impl(
        x, devices=[target], srcs=[None], copy_semantics=[REUSE]
    )[0]


#: Makes an array of data on the host, where this JAX has a primitive for it.
stage = getattr(lax, "stage", None)
#: name: (the call, the entry point that counts it)
CALLS = {
    "device_put": (lambda x: jax.device_put(x), "device_put"),
    "device_put sharded": (lambda x: jax.device_put(x, named("x")), "device_put"),
    "device_put replicated": (lambda x: jax.device_put(x, named()), "device_put"),
    "impl": (lambda x: place(x, device(1)), "batched_device_put_impl"),
    "shard_args": (lambda x: shard(x, SingleDeviceSharding(device(2))), "shard_args"),
    "shard_args sharded": (lambda x: shard(x, named("x")), "shard_args"),
    "asarray": (lambda x: jnp.asarray(x), "asarray"),
    "array": (lambda x: jnp.array(x), "array"),
}
if stage is not None:
    CALLS["stage"] = (stage, "bind")
else:    # JAX's own put the data in another way
    del CALLS["asarray"], CALLS["array"]


def both(body, entry="device_put"):
    """What `body` finds with plain JAX, which is what it finds with jaxmarshal; and the hits."""
    expected = body()
    with jaxmarshal.installed():
        body()
        body()
        jaxmarshal.reset_stats()
        found = body()
    assert found == expected
    return expected, jaxmarshal.stats()[entry]["hits"]


def seen(array):
    """An array's aval and what is in its buffers, or that these do not fit together."""
    shards = [shard.data for shard in array.addressable_shards]
    if any(part.on_device_size_in_bytes() != part.nbytes for part in shards):
        return str(array.aval), "inconsistent"
    with jax.enable_x64(True):
        return str(array.aval), [np.asarray(part).tolist() for part in shards]


# --- JAX's cache of converted arrays --------------------------------------------------------------

def enter(x):
    """What keeps an entry for an array in JAX's cache alive: a sharded result that shares memory.

    Converted data share it by chance, where the allocator aligned them so.
    """
    held = [jax.device_put(x, named("x"))]
    if held[0].dtype != x.dtype:
        held.append(private.canonicalize_value(x))
    return held


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("first", [True, False])
def test_trap_16_another_x64(name, first):
    """Trap 16: what was converted under another x64 is not used where the guard knows better.

    The sharded result keeps the entry of JAX's cache alive, which answers whatever x64 says.
    """
    call, entry = CALLS[name]

    def body():
        x = aligned(8, np.float64)
        with jax.enable_x64(first):
            held = enter(x)
        with jax.enable_x64(not first):
            found = [seen(call(x)), seen(call(x))]
        del held
        with jax.enable_x64(not first):
            return [*found, seen(call(aligned(8, np.float64)))]

    _, hits = both(body, entry)
    assert hits >= 1


def _reshape(x):
    x.shape = (8, 2)


def _retype(x):
    x.dtype = np.dtype(np.int32) if x.dtype == np.float32 else np.dtype(np.float32)


def _stand_still(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x.strides = (0,)


def _write(x):
    x[...] = x[...] * 3


EDITS = {"shape": _reshape, "dtype": _retype, "strides": _stand_still, "data": _write}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", CALLS)
def test_trap_15_edited_in_place(name, edit, dtype):
    """Trap 15: an array edited between two calls, with and without its entry in JAX's cache."""
    call, entry = CALLS[name]
    if edit == "dtype" and dtype == np.float64:
        pytest.skip("there is no such dtype")

    def body():
        found = []
        for keep in (False, True):
            x = aligned(16, dtype)
            held = enter(x) if keep else None
            found.append(seen(call(x)))
            EDITS[edit](x)
            try:
                found.append(seen(call(x)))
            except Exception as error:
                found.append((type(error), str(error)))
            del held
        return found

    _, hits = both(body, entry)
    assert hits >= 1


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_trap_16_jitted_functions_do_not_ask_the_cache(dtype):
    """Trap 16: jaxlib converts the arguments of a jitted function itself."""
    function = jax.jit(lambda x, *arrays: x + arrays[0])
    arrays = [jnp.ones(())] * 20    # host data among few of them are left to C++

    def body():
        function(aligned(8, dtype), *arrays)
        x = aligned(8, dtype)
        held = enter(x)
        found = [function(x, *arrays).tolist()]
        x[...] = 7
        found.append(function(x, *arrays).tolist())
        found.append(jnp.asarray(x).tolist())
        del held
        return [*found, function(aligned(8, dtype), *arrays).tolist()]

    _, hits = both(body, "jit")
    assert bool(hits) is not LAYOUT_OFF, jaxmarshal.stats()["jit"]


def test_trap_16_entries_that_jaxlib_holds_no_more():
    """Trap 16: threads of the runtime let go of data late; JAX's own way has that noticed first."""
    where = named("x")
    with jaxmarshal.installed():
        stale = 0
        for _ in range(12):
            x = aligned(1024, np.float32)
            jax.block_until_ready(jnp.asarray(x, device=where))
            time.sleep(0.01)    # the data are on the devices, and a thread is done with them
            x.shape = (16, 64)
            stale += jnp.asarray(x).shape != x.shape
    assert stale <= 3


@pytest.mark.skipif(stage is None, reason="this JAX does not stage host data")
def test_trap_16_nothing_is_recorded_of_a_stale_entry():
    """Trap 16: what one array became by its entry in JAX's cache says nothing of the next one."""
    def body():
        x = aligned(8, np.complex128)
        held = private.canonicalize_value(x)
        with jax.enable_x64(True):
            found = [str(stage(x).aval) for _ in range(3)]
            del held
            return [*found, str(stage(aligned(8, np.complex128)).aval)]

    expected, _ = both(body)
    assert expected == ["complex64[8]"] * 3 + ["complex128[8]"]


# --- What is kept alive ---------------------------------------------------------------------------

def _block(size=64, offset=0):
    block = np.zeros(4 * size + 192, np.uint8)
    start = -block.ctypes.data % 64 + offset
    return block, block[start : start + 4 * size]


def _from_bytes():
    block = bytearray(4 * 64 + 192)
    start = -np.frombuffer(block, np.uint8).ctypes.data % 64
    return _Bytes(), np.frombuffer(block, "f4", 64, start)


class _Bytes:
    """Stands for what has no reference count of its own here."""


def _read_only():
    block, part = _block()
    part = part.view("f4")
    part.flags.writeable = False
    return block, part


#: What makes memory and an array in it.
VIEWS = {
    "view": lambda: (lambda b, p: (b, p.view("f4")))(*_block()),
    "view that is copied": lambda: (lambda b, p: (b, p.view("f4")))(*_block(offset=4)),
    "view of a view": lambda: (lambda b, p: (b, p.view("f4").reshape(8, 8)))(*_block()),
    "buffer": lambda: (lambda b, p: (b, np.ndarray((64,), "f4", buffer=p)))(*_block()),
    "bytes": _from_bytes,
    "strided": lambda: (lambda b, p: (b, p.view("f4")[::2]))(*_block()),
    "reversed": lambda: (lambda b, p: (b, p.view("f4")[::-1]))(*_block()),
    "of one element": lambda: (
        lambda b, p: (b, np.lib.stride_tricks.as_strided(p.view("f4"), (8,), (0,)))
    )(*_block()),
    "read only": _read_only,
    "64 bits": lambda: (lambda b, p: (b, p.view("f8")))(*_block()),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", VIEWS)
def test_trap_17_views(name, target):
    """Trap 17: a result that shares memory keeps the objects alive that it keeps in plain JAX."""
    where = TARGETS[target]()

    def put():
        memory, x = VIEWS[name]()
        before = sys.getrefcount(memory), sys.getrefcount(x)
        result = jax.device_put(x, where).block_until_ready()
        gc.collect()
        after = sys.getrefcount(memory) - before[0], sys.getrefcount(x) - before[1]
        reference = weakref.ref(x)
        del x
        gc.collect()
        with_result = reference() is not None, sys.getrefcount(memory) - before[0]
        del result
        gc.collect()
        return after, with_result, reference() is not None, sys.getrefcount(memory) - before[0]

    _, hits = both(put)
    assert hits == 1


@pytest.mark.parametrize("target", TARGETS)
def test_trap_17_arrays_that_own_their_memory(target):
    """Trap 17: as many references as in plain JAX, for as long."""
    where = TARGETS[target]()

    def put():
        x = np.ones(1000, np.float32)
        spare = []
        while x.ctypes.data % 64:    # so that it is not copied
            spare.append(x)
            x = np.ones(1000, np.float32)
        before = sys.getrefcount(x)
        result = jax.device_put(x, where).block_until_ready()
        gc.collect()
        during = sys.getrefcount(x) - before
        del result
        gc.collect()
        return during, sys.getrefcount(x) - before

    both(put)


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", CALLS)
def test_trap_17_no_memory_is_kept(name):
    """Trap 17: arguments and results of a call are gone after it: host memory and device memory."""
    call, entry = CALLS[name]
    growth = []
    with jaxmarshal.installed():
        for _ in range(20):    # the allocator's own pools fill
            call(np.ones(1 << 20, np.float32)).block_until_ready()
        gc.collect()
        live = len(jax.live_arrays())
        jaxmarshal.reset_stats()
        # What is kept grows every time; pools of threads grow now and then.
        for _ in range(3):
            resident = _resident()
            for _ in range(40):
                call(np.ones(1 << 20, np.float32)).block_until_ready()
            gc.collect()
            assert len(jax.live_arrays()) == live
            growth.append(_resident() - resident)
        assert min(growth) < 40 << 20    # a quarter of the host data
        assert jaxmarshal.stats()[entry]["hits"] == 120


# --- What is said ---------------------------------------------------------------------------------

LOUD = {
    "too large": lambda: np.full(8, 1e300),
    "too small": lambda: np.full(8, 1e-310),
    "no number": lambda: np.frombuffer(b"\x01\0\0\0\0\0\xf0\x7f" * 8, np.float64),
    "complex": lambda: np.full(8, 1e300 + 1j),
    "strided": lambda: np.full((8, 2), 1e300)[:, 0],
    "of many dimensions": lambda: np.full((8,) + (1,) * 39, 1e300),
    "large": lambda: np.full(1 << 16, 1e300),
    "numpy scalar": lambda: np.float64(1e300),
    "silent": lambda: np.arange(8.0),
}


@pytest.mark.parametrize("filter_", ["always", "default", "once", "error"])
@pytest.mark.parametrize("name", CALLS)
def test_trap_20_warnings_carry_their_place(name, filter_):
    """Trap 20: numpy's warnings name the same file and line as in plain JAX, as often."""
    call, entry = CALLS[name]

    def body():
        found = []
        for make in LOUD.values():
            for module in list(sys.modules.values()):
                getattr(module, "__warningregistry__", {}).clear()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(filter_)
                for _ in range(3):
                    try:
                        call(make())
                    except Exception as error:
                        found.append((type(error), str(error)))
            found += [(w.category, str(w.message), w.filename, w.lineno) for w in caught]
        return found

    with np.errstate(all="ignore"):
        for make in LOUD.values():
            if make().ndim or "shard" not in name:
                call(make())
    expected, hits = both(body, entry)
    assert len(expected) >= 7
    assert hits >= 2


@pytest.mark.parametrize("size", [8, 20_000])
@pytest.mark.parametrize("dimensions", [1, 32, 33, 40, 64])
def test_trap_20_many_dimensions(dimensions, size, monkeypatch):
    """Trap 20: arrays of as many dimensions as numpy has, and nothing said on the side."""
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    for step in (1, -1, 2):
        whole = np.arange(float(size * abs(step)))
        x = whole.reshape(-1, *(1,) * (dimensions - 1))[::step]

        def body(x=x):
            return np.asarray(jax.device_put(x)).tobytes()

        _, hits = both(body)
        assert hits == (size == 8)
    assert not said


# --- Arrays that are none, and other implementations ----------------------------------------------

@pytest.mark.parametrize("name", ["none", "device", "sharding", "sharded", "impl", "shard_args"])
def test_trap_19_an_array_of_nothing(name, fresh):
    """Trap 19: what the class makes of nothing is refused, as in plain JAX."""
    found = fresh("""
import jax, numpy as np, jaxmarshal
from jax._src import dispatch
from jax._src.interpreters import pxla
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxmarshal._jax import private
devices = jax.devices()
reuse = private.REUSE_INPUT
mesh = jax.sharding.Mesh(np.asarray(devices), ("x",))
target = {
    "device": devices[-1], "sharding": SingleDeviceSharding(devices[-1]),
    "sharded": NamedSharding(mesh, PartitionSpec("x")), "impl": devices[-1],
    "shard_args": SingleDeviceSharding(devices[-1]),
}.get(name)
def call(x):
    if name == "shard_args":
        return pxla.shard_args([target], [None], [reuse], [x])
    if name == "impl":
        return dispatch.batched_device_put_impl(
            x, devices=[target], srcs=[None], copy_semantics=[reuse])
    return jax.device_put(x, target)
def outcome():
    x = jax.device_put(np.ones(8, np.float32))
    for _ in range(3):
        call(x)
    try:
        call(type(x).__new__(type(x)))
    except Exception as error:
        return [type(error).__name__, str(error)]
result = [outcome()]
jaxmarshal.install()
result.append(outcome())
""", may_die=True, name=name)    # fmt: skip
    assert found != "died"
    assert found[0] == found[1]
    assert found[0][0] == "TypeError"


@pytest.mark.parametrize("devices", ["list", "tuple", "generator", "array"])
def test_devices_of_a_batched_put(devices):
    """Trap 15: devices in whatever they come: an iterator is used up once, by the reference."""
    aval = private.ShapedArray((8,), np.dtype(np.float32))
    make = {
        "list": lambda: [device(0)], "tuple": lambda: (device(0),),
        "generator": lambda: iter([device(0)]), "array": lambda: np.asarray([device(0)]),
    }[devices]  # fmt: skip

    def body():
        try:
            result = pxla.batched_device_put(
                aval, SingleDeviceSharding(device(0)), [aligned(8)], make()
            )
        except Exception as error:
            return type(error), str(error)
        return seen(result)

    both(body, "batched_device_put")


@pytest.mark.skipif(
    not hasattr(jax.config, "jax_use_cpp_shard_args"), reason="this JAX has one way of cutting"
)
def test_trap_15_sharding_in_jaxlib():
    """Trap 15: a state that JAX asks in Python alone, about how host data are cut."""
    for target in TARGETS.values():
        jaxmarshal.device_put(aligned(8), target())
        jaxmarshal.device_put(aligned(8), target())
    jaxmarshal.reset_stats()
    with config_updated("jax_use_cpp_shard_args", True):
        for target in TARGETS.values():
            jaxmarshal.device_put(aligned(8), target())
    assert counts() == (0, {"context": len(TARGETS)})
