"""Traps of `device_put` that are about caches, garbage collection, threads, importing.

The numbers are those of the design. Every test compares with plain JAX and asserts the exact number
of calls that took the fast path.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref

import jax
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from samples import device, mesh_of, odd_values, targets
from support import aligned, counts, same_as_jax

import jaxmarshal

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning"),
]

P = PartitionSpec


# --- 11: caches and garbage collection -----------------------------------------------------------


def test_clear_caches():
    """Trap 11: `jax.clear_caches()` drops the records, and the next call makes new ones."""
    same_as_jax(odd_values)
    same_as_jax(odd_values, hits=3)
    jax.clear_caches()
    same_as_jax(odd_values)


def test_clear_backends(fresh):
    """Trap 11: after `clear_backends()` results are on the devices of the new backend."""
    found = fresh("""
import gc, weakref
import jax, jax.extend, numpy as np, jaxmarshal
host = np.ones(3, np.float32)
jax.config.update("jax_platforms", "cpu")
for put in (jaxmarshal.device_put, jaxmarshal.device_put):
    put(host); put([1.0, host], jax.devices()[1])
before = jaxmarshal.stats()["device_put"]["hits"]
old = jax.devices()
jax.extend.backend.clear_backends()
jaxmarshal.reset_stats()
a = jaxmarshal.device_put(host)
b = jaxmarshal.device_put(host)
c = jax.device_put(host)
new = jax.devices()
moved = [jaxmarshal.device_put([1.0, host], new[1]) for _ in range(2)]
result = {
    "before": before,
    "fresh devices": not any(d is o for d in new for o in old),
    "devices": [x.devices() == {new[0]} and list(x.devices())[0] is new[0] for x in (a, b, c)],
    "moved": [list(x.devices())[0] is new[1] for pair in moved for x in pair],
    "counts": jaxmarshal.stats()["device_put"],
    "values": [x.tolist() for x in (a, b, c)],
}
""")
    assert found["before"] == 2
    assert found["fresh devices"]
    assert found["devices"] == [True] * 3
    assert found["moved"] == [True] * 4
    assert found["values"] == [[1.0] * 3] * 3
    assert found["counts"]["hits"] == 2
    assert found["counts"]["misses_by_reason"] == {"no_backend": 1, "not_recorded": 1}


@targets("none", "first", "other", "single", "single other", "replicated")
def test_arguments_and_results_die(target):
    """Trap 11: neither a record nor a call keeps an argument or a result alive."""
    def died(make):
        for _ in range(3):
            argument = make()
            result = jaxmarshal.device_put([argument], target())
            references = [weakref.ref(argument), weakref.ref(result[0])]
            del argument, result
            gc.collect()
            assert [reference() for reference in references] == [None, None]

    died(lambda: aligned(3))
    died(lambda: aligned(3, offset=4))
    died(lambda: jax.device_put(aligned(3)))
    died(lambda: jax.device_put(aligned(5), device(1)))
    hits, reasons = counts()
    assert hits + sum(reasons.values()) == 12
    assert hits >= 7


def test_converted_arguments_die():
    """Trap 11: a float64 array that was converted dies no later than with plain JAX."""
    for put in (jax.device_put, jaxmarshal.device_put, jaxmarshal.device_put):
        argument = np.arange(5.0)
        reference = weakref.ref(argument)
        put(argument)
        del argument
        gc.collect()
        assert reference() is None
    assert counts() == (1, {"not_recorded": 1})


def test_reference_counts():
    """Trap 11: a call leaves every reference count as it was."""
    array, host = jax.device_put(aligned(3)), aligned(3)
    committed = jax.device_put(aligned(3), device(0))
    sharding, number = SingleDeviceSharding(device(1)), 123456.75
    key = "".join(["a", "key"])
    tree = {key: [array, host, (committed, number)]}
    objects = [array, host, committed, number, key, tree, tree[key], tree[key][2]]
    objects += [array.aval, committed.aval, host.dtype, sharding, None]

    def counts_now():
        gc.collect()
        return [sys.getrefcount(thing) for thing in objects[:-2]]

    for target in (None, device(0), device(1), sharding):
        for _ in range(3):
            jaxmarshal.device_put(tree, target)
        before = counts_now()
        for _ in range(100):
            jaxmarshal.device_put(tree, target)
        assert counts_now() == before
    # A miss, too, gives back what it took.
    for bad in ("text", jax.random.key(0)):
        tree["z"] = bad
        for _ in range(3):    # before the count, as above
            with contextlib.suppress(TypeError):
                jaxmarshal.device_put(tree)
        before = counts_now()
        for _ in range(100):
            with contextlib.suppress(TypeError):
                jaxmarshal.device_put(tree)
        assert counts_now() == before


def test_target_of_the_caller_may_be_replaced():
    """Trap 11: of equal targets one at a time is kept, and the last records die with `clear`."""
    jax.device_put(1.0, SingleDeviceSharding(device(1)))    # the first one is a key of JAX's caches
    made = [SingleDeviceSharding(device(1)) for _ in range(20)]
    before = list(map(sys.getrefcount, made))
    for target in made:
        jaxmarshal.device_put(1.0, target)
    del target
    kept = [now != then for now, then in zip(map(sys.getrefcount, made), before, strict=True)]
    assert sum(kept) <= 2    # the first, as a key, and the last
    assert counts() == (19, {"not_recorded": 1})
    jaxmarshal.api.clear()
    gc.collect()
    assert list(map(sys.getrefcount, made)) == before


# --- 13: threads ---------------------------------------------------------------------------------


def test_threads():
    """Trap 13: eight threads put mixed trees while another installs, uninstalls and clears."""
    stop = threading.Event()
    failures = []
    single = SingleDeviceSharding(device(1))
    spread = NamedSharding(mesh_of(*range(8)), P("x"))

    def work(seed):
        generator = np.random.default_rng(seed)
        for i in range(60):
            number = int(generator.integers(1, 5))
            host = np.full((8, number), seed + i, np.float32)
            array = jax.device_put(np.full(number, seed - i, np.int32))
            tree = {"a": host, "b": [array, (float(i), i)], "c": None}
            for target in (None, device(seed % 8), single):
                put = jax.device_put if i % 2 else jaxmarshal.device_put
                result = put(tree, target)
                assert result["a"].shape == (8, number)
                assert np.all(np.asarray(result["a"]) == seed + i)
                assert np.all(np.asarray(result["b"][0]) == seed - i)
                assert float(result["b"][1][0]) == i == int(result["b"][1][1])
                assert result["c"] is None
            assert np.all(np.asarray(jaxmarshal.device_put(host, spread)) == seed + i)
            with jax.enable_x64(True):
                assert jaxmarshal.device_put(2.5).dtype == np.float64
            with jax.default_device(device(seed % 8)):
                assert jaxmarshal.device_put(2.5).devices() == {device(seed % 8)}

    def guarded_work(seed):
        try:
            work(seed)
        except BaseException as error:
            failures.append(error)

    def meddle():
        while not stop.is_set():
            jaxmarshal.install()
            jaxmarshal.uninstall()
            jaxmarshal.api.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=guarded_work, args=(n,)) for n in range(8)]
        meddler = threading.Thread(target=meddle)
        for thread in [*workers, meddler]:
            thread.start()
        for thread in workers:
            thread.join()
        stop.set()
        meddler.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert counts()[0] > 0
    jaxmarshal.uninstall()
    assert jax.device_put is not jaxmarshal.device_put


# --- 14: importing and installing touch nothing --------------------------------------------------


def test_import_and_install_touch_nothing(fresh):
    """Trap 14: no backend, no array, no thread; configuration is still open afterwards."""
    found = fresh("""
import threading
import jax, jaxmarshal
from jax._src import xla_bridge
states = [xla_bridge.backends_are_initialized()]
jaxmarshal.install()
states.append(xla_bridge.backends_are_initialized())
jaxmarshal.uninstall(); jaxmarshal.install()
import jaxmarshal.auto
from jaxmarshal._core.values import array_words
states.append(xla_bridge.backends_are_initialized())
calibrated = array_words.describe()["calibrated"]
threads = threading.active_count()
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
result = {
    "states": states, "calibrated": calibrated, "threads": threads,
    "devices": len(jax.devices()), "platform": jax.devices()[0].platform,
    "live": len(jax.live_arrays()),
    "dtype": str(jax.device_put(1.0).dtype), "stats": jaxmarshal.stats()["device_put"],
}
""")
    assert found["states"] == [False] * 3
    assert found["calibrated"] is LAYOUT_OFF
    assert found["threads"] == 1
    assert (found["devices"], found["platform"]) == (3, "cpu")
    assert found["live"] == 0
    assert found["dtype"] == "float64"
    assert (found["stats"]["hits"], found["stats"]["misses"]) == (0, 1)


def test_device_count_set_after_install(fresh):
    """Trap 14: `jax_num_cpu_devices` may be set after jaxmarshal was installed."""
    found = fresh("""
import os
del os.environ["XLA_FLAGS"]
import jax, jaxmarshal
jaxmarshal.install()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 5)
result = [len(jax.devices()), [str(jax.device_put(1.0).devices()) for _ in range(3)],
          jaxmarshal.stats()["device_put"]["hits"]]
""")
    assert found == [5, ["{CpuDevice(id=0)}"] * 3, 2]


def test_first_call_initialises_the_backend(fresh):
    """Trap 14: the very first call is the reference's, and it is recorded."""
    found = fresh("""
import jax, jaxmarshal, numpy as np
jax.config.update("jax_platforms", "cpu")
host = np.ones(3, np.float32)
shapes = [jaxmarshal.device_put(host).shape for _ in range(3)]
result = [shapes, jaxmarshal.stats()["device_put"]]
""")
    assert found[0] == [[3]] * 3
    assert found[1] == {"hits": 2, "misses": 1, "misses_by_reason": {"no_backend": 1}}


FIRST_CONTEXTS = {
    "nothing": "contextlib.nullcontext()",
    "disallow": "jax.transfer_guard('disallow')",
    "disallow_explicit": "jax.transfer_guard('disallow_explicit')",
    "no_execution": "jax.no_execution(True)",
    "mesh": "jax.sharding.Mesh(jax.devices(), ('x',))",
    "set_mesh": "jax.set_mesh(jax.sharding.Mesh(jax.devices()[2:], ('x',)))",
    "default_device": "jax.default_device(jax.devices()[3])",
    "default_device string": "jax.default_device('cpu')",
    "debug_nans": "jax.debug_nans(True)",
    "x64": "jax.enable_x64(True)",
    "disable_jit": "jax.disable_jit()",
    "compile time": "jax.ensure_compile_time_eval()",
    "strict": "jax.numpy_dtype_promotion('strict')",
}
#: What is recorded in these serves outside as well, in the last call.
FIRST_HITS_AFTERWARDS = [FIRST_CONTEXTS[name] for name in ("nothing", "disallow", "debug_nans")]


def first_array(fresh, context, module):
    """Meet the first array in a context; say what was seen there and how calibration went."""
    return fresh(
        """
import contextlib, gc, warnings
import jax, jax.numpy as jnp, numpy as np, jaxmarshal
from jaxmarshal._core.values import array_words
warnings.simplefilter("ignore")
jax.config.update("jax_platforms", "cpu")
array = jax.device_put(np.ones((2, 3), np.float32))
live = len(jax.live_arrays())
put = {"jax": jax, "jaxmarshal": jaxmarshal}[module].device_put
outcome = []

def attempt(function, *args):
    try:
        made = function(*args)
        outcome.append([str(jax.typeof(made)), str(getattr(made, "sharding", "")),
                        str(getattr(made, "committed", ""))])
    except Exception as error:
        outcome.append([type(error).__name__, str(error)])

def body():
    attempt(put, array, jax.devices()[1])
    attempt(put, array)
    attempt(put, np.ones(3, np.float32))
    attempt(put, 2.0)
    if module == "jaxmarshal":
        array_words.read(array)
    attempt(jax.jit(lambda x: x * 2), np.ones(3, np.float32))
    attempt(jnp.add, array, 1.0)

if context == "jit":
    def function(x):
        body()
        return x
    jax.jit(function)(array)
else:
    with eval(context):
        body()
attempt(put, np.ones(3, np.float32))
outcome.append(len(jax.live_arrays()) - live)
result = [outcome, array_words.describe(), jaxmarshal.stats()["device_put"]["hits"]]
""",
        context=context,
        module=module,
    )


@pytest.mark.parametrize("context", ["jit", *FIRST_CONTEXTS.values()],
                         ids=["jit", *FIRST_CONTEXTS])  # fmt: skip
def test_first_array_met_in_a_context(fresh, context):
    """Trap 14: calibration succeeds in every context, and the context is what it was."""
    expected, _, no_hits = first_array(fresh, context, "jax")
    found, layout, hits = first_array(fresh, context, "jaxmarshal")
    assert found == expected
    assert no_hits == 0
    assert layout["calibrated"] is True
    if LAYOUT_OFF:
        assert layout["notes"] == ["switched off by JAXMARSHAL_OBJECT_LAYOUT"]
    else:
        usual = first_array(fresh, "contextlib.nullcontext()", "jaxmarshal")[1]
        # Several words of a buffer or a client can fit, by chance; of the others there is one each.
        assert layout.pop("data_layout")
        assert usual.pop("data_layout")
        clients, others = layout.pop("clients"), usual.pop("clients")
        assert clients.keys() == others.keys() == {"cpu"}
        assert set(clients["cpu"]) & set(others["cpu"])
        assert layout == usual
        assert layout["notes"] == []
        assert None not in layout.values()
    assert hits == (0 if context == "jit" else 2 if context in FIRST_HITS_AFTERWARDS else 1)
