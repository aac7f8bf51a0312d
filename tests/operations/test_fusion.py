"""Steps that become one executable: the same bits, and nobody hears of it.

Replays come to take their steps in one executable after two times here. Then everything that an
executable could make of their arguments is compared with plain JAX: elements at the ends of their
types, NaNs with bits of their own, zeros of both signs, indices out of bounds.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import said
from observe import observe
from support import without_jaxmarshal

import jaxmarshal
from jaxmarshal._core.replay import fusion, recording
from jaxmarshal._jax import private
from jaxmarshal._reports import counting


@pytest.fixture(autouse=True)
def soon():
    """Replays are looked at after two times."""
    before = recording.fuse_after(2)
    with jaxmarshal.installed():
        yield
    fusion.wait()
    recording.fuse_after(before)


def floats(seed, shape=(3, 4), dtype=np.float32):
    """Any bits, NaNs of all kinds among them, and the special values."""
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    data = np.frombuffer(rng.bytes(int(np.prod(shape)) * size), dtype).reshape(shape).copy()
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1.5], dtype)
    count = min(data.size, special.size)
    data.reshape(-1)[rng.permutation(data.size)[:count]] = special[:count]
    return jnp.asarray(data)


def ints(seed, shape=(3, 4), dtype=np.int32):
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    data.reshape(-1)[:2] = info.min, info.max
    return jnp.asarray(data)


def indices(seed):
    """Within bounds and beyond them, negative ones too."""
    return jnp.asarray(np.random.default_rng(seed).integers(-9, 9, 5, np.int32))


def dispatches(call, *args):
    """How many jitted functions one call takes, if it is replayed; else None."""
    jaxmarshal.reset_stats()
    call(*args)
    stats = jaxmarshal.stats()
    replayed = sum(
        stats[name]["hits"] for name in ("functions", "getitem", "zeros", "ones", "full", "array")
    )
    return stats["jit"]["hits"] if replayed else None


def warm(call, *args):
    """Have it recorded, looked at, and taken in fewer steps."""
    for _ in range(24):
        call(*args)
    fusion.wait()


def same(call, *args, context=contextlib.nullcontext):
    found = observe(call, *args, context=context)
    with without_jaxmarshal():
        assert found == observe(call, *args, context=context)


#: A call, what its arguments are for a seed, and how many dispatches it takes.
EXACT = {
    "an index": (lambda x: x[0], lambda s: (floats(s),)),
    "two indices": (lambda x: x[0, -1], lambda s: (floats(s),)),
    "a column": (lambda x: x[:, 1], lambda s: (ints(s),)),
    "an array of indices": (lambda x, i: x[i], lambda s: (floats(s), indices(s))),
    "the second axis by indices": (lambda x, i: x[:, i], lambda s: (ints(s), indices(s))),
    "set": (lambda x, i: x.at[i].set(0.0), lambda s: (floats(s), indices(s))),
    "set to values": (
        lambda x, i, y: x.at[i].set(y),
        lambda s: (floats(s, (6, 4)), indices(s), floats(s + 1, (5, 4))),
    ),
    "add integers": (lambda x, i: x.at[i].add(7), lambda s: (ints(s), indices(s))),
    "get, filled": (
        lambda x, i: x.at[i].get(mode="fill", fill_value=-3),
        lambda s: (ints(s), indices(s)),
    ),
    "vstack": (lambda x, y: jnp.vstack([x, y]), lambda s: (floats(s, (4,)), floats(s + 1, (4,)))),
    "hstack": (lambda x, y: jnp.hstack([x, y]), lambda s: (ints(s, (4,)), ints(s + 1, (4,)))),
    "repeat": (lambda x: jnp.repeat(x, 2), lambda s: (floats(s, (4,)),)),
    "roll": (lambda x: jnp.roll(x, 1), lambda s: (floats(s),)),
    "array_equal": (lambda x, y: jnp.array_equal(x, y), lambda s: (floats(s), floats(s + s % 2))),
    "meshgrid": (lambda x, y: jnp.meshgrid(x, y), lambda s: (floats(s, (4,)), ints(s, (3,)))),
    "choice": (
        lambda key: jax.random.choice(key, 5), lambda s: (jax.random.key(s),)
    ),
    "complex": (
        lambda x: x[1],
        lambda s: (floats(s).astype(np.complex64) * np.complex64(1j),),
    ),
    "bool": (lambda x: x[1], lambda s: (ints(s) > 0,)),
    "8 bits": (lambda x: x[1], lambda s: (ints(s, dtype=np.int8),)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_one_dispatch(name):
    """Whatever the elements are."""
    call, make = EXACT[name]
    warm(call, *make(1))
    assert dispatches(call, *make(1)) == 1
    for seed in range(1, 12):
        same(call, *make(seed))
        assert dispatches(call, *make(seed)) == 1


@pytest.mark.parametrize("name", EXACT)
def test_placement_is_kept(name):
    """Committed arrays, and those on another device, have replays of their own."""
    call, make = EXACT[name]
    for device in (jax.devices()[0], jax.devices()[3]):
        args = jax.device_put(make(1), device)
        warm(call, *args)
        assert dispatches(call, *args) == 1
        same(call, *args)
        same(call, *make(2))
    with jax.default_device(jax.devices()[2]):
        args = make(3)
        warm(call, *args)
        same(call, *args)


def test_arithmetic_of_floats_is_never_fused():
    """A step with it stays by itself; those before and after it may become one."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), np.float32)
    before = _count_steps(jax.nn.softmax, x)
    warm(jax.nn.softmax, x)
    assert dispatches(jax.nn.softmax, x) == before > 1
    same(jax.nn.softmax, x)
    i = jnp.array([0, 2, 0])

    def add(x):
        return x.at[i].add(x[0])

    warm(add, x)
    same(add, x)
    half = x.astype(jnp.bfloat16)
    before = _count_steps(lambda x: x[0], half)
    warm(lambda x: x[0], half)
    assert dispatches(lambda x: x[0], half) == before == 2


def _count_steps(call, *args):
    with jaxmarshal.installed(fuse=False):
        for _ in range(5):
            call(*args)
        return dispatches(call, *args)


def test_scatters_of_floats_take_two():
    """The indices are prepared in one executable, the sums are computed in JAX's own."""
    x, i, v = floats(1), jnp.array([0, 2]), floats(2, (4,))

    def add(x):
        return x.at[i].add(v)

    before = _count_steps(add, x)
    warm(add, x)
    assert dispatches(add, x) == 2 < before
    for seed in range(5):
        same(add, floats(seed))


def test_it_can_be_switched_off():
    x = floats(1)
    warm(lambda: x[0])
    assert dispatches(lambda: x[0]) == 1
    with jaxmarshal.installed(fuse=False):
        assert dispatches(lambda: x[0]) == 2
    assert dispatches(lambda: x[0]) == 1
    jaxmarshal.install(fuse=False)
    assert dispatches(lambda: x[0]) == 2
    warm(lambda: x[1])
    assert dispatches(lambda: x[1]) == 2
    jaxmarshal.install()
    assert dispatches(lambda: x[0]) == 1
    jaxmarshal.uninstall()
    assert fusion.allowed()


def test_nobody_hears_of_it(caplog, capfd):
    """Where anybody would hear that something is compiled, nothing is."""
    x = floats(1)
    heard = []

    def listen(*args, **kwargs):
        heard.append(args)

    for name, change in (
        ("jax_log_compiles", True), ("jax_explain_cache_misses", True),
        ("jax_compilation_cache_dir", "/nowhere"), ("jax_check_tracer_leaks", True),
    ):
        before = getattr(jax.config, name)
        jax.config.update(name, change)
        try:
            assert fusion.is_heard()
        finally:
            jax.config.update(name, before)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        warm(lambda: x[0])
        del heard[:]
        warm(lambda: x[0])
        assert dispatches(lambda: x[0]) == 2
        assert not heard
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    with caplog.at_level(logging.DEBUG, logger="jax._src.interpreters.pxla"):
        warm(lambda: x[1])
        caplog.clear()
        warm(lambda: x[1])
        assert dispatches(lambda: x[1]) == 2
        assert not caplog.records
    with mock.patch.dict(os.environ, XLA_FLAGS="--xla_dump_to=/nowhere"):
        assert fusion.is_heard()
    assert not fusion.is_heard()


def test_counts_are_those_of_calls(monkeypatch):
    """What the thread calls counts nowhere."""
    jobs, fuse = [], fusion._fuse
    monkeypatch.setattr(fusion, "_fuse", jobs.append)
    warm(lambda x: x[1], floats(1))
    (job,) = jobs

    def work():
        with counting.uncounted():
            fuse(job)

    before = jaxmarshal.stats()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert jaxmarshal.stats() == before
    assert dispatches(lambda x: x[1], floats(1)) == 1


def test_under_another_configuration():
    """The thread has the configuration of the process; a replay of another one stays as it is."""
    x = floats(1)
    with jax.enable_x64(True):
        wide = jnp.arange(12.0).reshape(3, 4)
        warm(lambda: wide[0])
        assert dispatches(lambda: wide[0]) == 2
        same(lambda: wide[0])
    warm(lambda: x[0])
    with jax.enable_x64(True):
        same(lambda: x[0])
        same(lambda: wide[0])


def test_replaced_implementations_are_called():
    """Trap 15: also those of primitives that are part of an executable by now."""
    x = floats(1)
    warm(lambda: x[0])
    assert dispatches(lambda: x[0]) == 1
    called = []
    original = jax.lax.squeeze_p.impl

    def impl(*args, **kwargs):
        called.append(1)
        return original(*args, **kwargs)

    with mock.patch.object(jax.lax.squeeze_p, "impl", impl):
        x[0]
    assert called == [1]
    same(lambda: x[0])


@pytest.mark.parametrize("clear", ["clear_caches", "xla_primitive_callable"])
def test_what_was_cleared_is_not_used(clear):
    """An executable dies with what it is made of."""
    x = floats(1)
    warm(lambda: x[0])
    assert dispatches(lambda: x[0]) == 1
    if clear == "clear_caches":
        jax.clear_caches()
    else:
        private.xla_primitive_callable.cache_clear()
        gc.collect()
    assert dispatches(lambda: x[0]) is None
    warm(lambda: x[0])
    assert dispatches(lambda: x[0]) == 1


def test_nothing_is_kept_alive():
    """Trap 17: neither arguments nor results, after the thread has looked at them."""
    jax.clear_caches()
    before = len(jax.live_arrays())
    x = floats(1)
    for _ in range(24):
        y = x[2]
    fusion.wait()
    assert dispatches(lambda x: x[2], x) == 1
    gone = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    kept = jax.live_arrays()[: -before or None]    # the constants of the recording
    assert sum(array.nbytes for array in kept) <= 64


def test_large_arrays_stay():
    """They gain little, and would wait for the thread."""
    x = jnp.zeros((2, 1 << 20))
    warm(lambda: x[0])
    assert dispatches(lambda: x[0]) == 2


@pytest.mark.errors
def test_deleted_arrays():
    x = floats(1)
    warm(lambda x: x[0], x)
    y = floats(2)
    y.delete()
    same(lambda y: y[0], y)


def test_from_many_threads():
    """Calls of all threads meet the executable while it comes into being."""
    expected = {seed: np.asarray(floats(seed)[1]).tobytes() for seed in range(8)}
    wrong = []

    def work(seed):
        x = floats(seed)
        for _ in range(300):
            if np.asarray(x[1]).tobytes() != expected[seed]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    fusion.wait()
    x = floats(1)
    assert dispatches(lambda: x[1]) == 1


SCRIPT = """
import jax.numpy as jnp, os, sys
import jaxmarshal
from jaxmarshal._core.replay import fusion
jaxmarshal.install()
x = jnp.arange(12.0).reshape(3, 4)
for i in range(3):
    for _ in range(104):
        x[i]
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError", "os._exit(4)"])
def test_the_end_of_a_program(end):
    """A program that ends while something is compiled ends as it would."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end=end)], capture_output=True, text=True, check=False
    )
    assert done.returncode == {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}.get(end, 4)
    assert said(done).count("\n") <= (4 if "raise" in end else 0), done.stderr


def test_after_a_fork():
    """The child has no such thread, and makes one when it needs it."""
    script = SCRIPT.format(end="""
import warnings
warnings.simplefilter("ignore")
if (child := os.fork()) == 0:
    fusion.wait()
    os._exit(0 if fusion._worker is None else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
