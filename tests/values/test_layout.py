"""The words of an array, read from the object, are those of its public attributes."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from child import run_code
from conftest import LAYOUT_OFF
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from support import imported

from jaxmarshal._core.values import array_words, layout_samples

P = PartitionSpec
WORDS = ["aval", "dtype", "sharding", "committed", "buffer"]

DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32,
    np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4,
]  # fmt: skip


def columns(rows=4, width=6):
    """A column-major ndarray whose data start on a multiple of 64."""
    block = np.zeros(rows * width * 4 + 64, np.uint8)
    start = -block.ctypes.data % 64
    made = block[start : start + rows * width * 4].view(np.float32).reshape(width, rows).T
    made[...] = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    return made


def one_device():
    return SingleDeviceSharding(jax.devices()[0])


def column_major():
    return Format(Layout((1, 0)), one_device())


def sharded(spec, shape=(8, 4)):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(4, 2), ("x", "y"))
    return jax.device_put(np.zeros(shape, np.float32), NamedSharding(mesh, spec))


def deleted():
    array = jnp.arange(3)
    array.delete()
    return array


def donated():
    array = jax.device_put(np.arange(16, dtype=np.float32), jax.devices()[0])
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    return array


def with_x64(value):
    with jax.enable_x64(True):
        return jax.device_put(value)


ARRAYS = {
    "scalar": lambda: jnp.float32(1),
    "weak": lambda: jax.device_put(1.0),
    "uncommitted": lambda: jnp.zeros((2, 3)),
    "committed": lambda: jax.device_put(np.zeros((2, 3)), jax.devices()[0]),
    "committed elsewhere": lambda: jax.device_put(np.zeros((2, 3)), jax.devices()[5]),
    "committed to a sharding": lambda: jax.device_put(np.zeros(3), one_device()),
    "empty": lambda: jnp.zeros((0, 3)),
    "wide": lambda: jnp.zeros((1,) * 10),
    "float64": lambda: with_x64(np.zeros(3)),
    "int64": lambda: with_x64(3),
    "result of jit": lambda: jax.jit(lambda x: x + 1)(jnp.zeros(3)),
    "result of eager": lambda: jnp.zeros(3) + 1,
    "sharded": lambda: sharded(P("x", "y")),
    "partly replicated": lambda: sharded(P("x")),
    "replicated": lambda: sharded(P()),
    "shard": lambda: sharded(P("x")).addressable_shards[3].data,
    **{np.dtype(d).name: lambda d=d: jax.device_put(np.zeros((2, 2), d)) for d in DTYPES},
}

COLUMN_MAJOR = {
    "DLPack": lambda: imported(columns()),
    "device_put of ndarray": lambda: jax.device_put(columns().copy(), column_major()),
    "device_put of array": lambda: jax.device_put(jnp.zeros((4, 6)), column_major()),
    "out_shardings": lambda: jax.jit(lambda x: x * 2, out_shardings=column_major())(
        jnp.zeros((4, 6))
    ),
    "cube": lambda: jax.device_put(
        jnp.zeros((2, 3, 4)), Format(Layout((0, 2, 1)), one_device())
    ),
    "elsewhere": lambda: jax.device_put(
        jnp.zeros((4, 6)), Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[3]))
    ),
}

DEFAULT_FORMATS = {
    "DLPack": lambda: imported(columns().T),
    "device_put": lambda: jax.device_put(jnp.zeros((4, 6)), Format(Layout((0, 1)), one_device())),
    "out_shardings": lambda: jax.jit(
        lambda x: x * 2, out_shardings=Format(Layout((0, 1)), one_device())
    )(jnp.zeros((4, 6))),
    "there and back": lambda: jax.device_put(
        jax.device_put(jnp.zeros((4, 6)), column_major()), Format(Layout((0, 1)), one_device())
    ),
}


def is_row_major(array):
    """What the public attributes say about the data layout."""
    return array.format.layout.major_to_minor == tuple(range(array.ndim))


def assert_words(array):
    """Every word equals the public attribute; objects are the same objects."""
    words = array_words.read(array)
    assert words["aval"] is array.aval
    assert words["dtype"] is array.dtype
    assert words["sharding"] is array.sharding
    assert words["committed"] is array.committed
    return words


@pytest.mark.parametrize("name", ARRAYS)
def test_words_are_the_public_attributes(name):
    """Arrays of every placement and dtype, all of them alive and in the default layout."""
    array = ARRAYS[name]()
    words = assert_words(array)
    assert words["deleted"] is False
    assert words["default_layout"] is is_row_major(array) is True
    assert words["default_layout_proven"] is not LAYOUT_OFF
    assert words["donated_proven"] is False


@pytest.mark.parametrize("name", COLUMN_MAJOR)
def test_other_data_layouts_are_seen(name):
    """However a column-major array came to be, it is not taken for a row-major one."""
    array = COLUMN_MAJOR[name]()
    words = assert_words(array)
    assert words["default_layout"] is is_row_major(array) is False
    assert words["default_layout_proven"] is False


@pytest.mark.parametrize("name", DEFAULT_FORMATS)
def test_an_explicit_default_layout_is_the_default(name):
    """Asking for the layout that is the default anyway makes no difference to the answer."""
    array = DEFAULT_FORMATS[name]()
    assert assert_words(array)["default_layout"] is is_row_major(array) is True


def test_a_deleted_array():
    """Its buffer is gone; its other words can still be read."""
    array = deleted()
    words = assert_words(array)
    assert words["deleted"] is True
    assert words["default_layout"] is False


def test_a_donated_array():
    """Its words can still be read; a runtime may keep the pointer of a buffer that was donated."""
    array = donated()
    assert array.is_deleted()
    words = assert_words(array)
    assert words["deleted"] is True
    assert words["donated_proven"] is (finds_donated() and words["default_layout_proven"])


def finds_donated():
    """Can a word tell that an array of the default backend was donated?"""
    array_words.read(jnp.zeros(3))
    return array_words.describe()["data"] is not None


@pytest.mark.parametrize("name", ARRAYS)
def test_data_deleted_through_another_array(name):
    """An array whose data another one has deleted is gone, on one device or on several."""
    array = ARRAYS[name]()
    parts = [shard.data for shard in array.addressable_shards]
    other = jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)
    array.delete()
    for part in parts:
        part.delete()
    assert other.is_deleted()
    words = assert_words(other)
    assert words["deleted"] is True
    assert words["donated_proven"] is (finds_donated() and words["default_layout_proven"])


def test_words_change_with_the_array():
    """Nothing about an array is remembered: deletion is seen at once."""
    array = jnp.arange(4)
    assert array_words.read(array)["deleted"] is False
    array.delete()
    assert array_words.read(array)["deleted"] is True


@pytest.mark.parametrize("value", [np.zeros(3), 1.0, None, "text", jax.random.key(0)], ids=repr)
def test_only_array_impl_is_read(value):
    """Offsets mean nothing in other objects."""
    with pytest.raises(TypeError, match="expected an ArrayImpl"):
        array_words.read(value)


def test_tracers_are_not_read():
    """A tracer is no ArrayImpl, whatever `isinstance` says."""
    with pytest.raises(TypeError, match=r"expected an ArrayImpl, got .*Tracer"):
        jax.jit(array_words.read)(1.0)


def test_describe():
    """On the supported versions every word is found, inside the object and without a note."""
    array_words.read(jnp.zeros(3))
    facts = array_words.describe()
    assert facts["calibrated"] is True
    if LAYOUT_OFF:
        assert [facts[word] for word in WORDS] == [None] * len(WORDS)
        assert facts["data_layout"] == []
        assert facts["notes"] == ["switched off by JAXMARSHAL_OBJECT_LAYOUT"]
        return
    offsets = [facts[word] for word in WORDS]
    size = type(jnp.zeros(3)).__basicsize__
    assert all(object.__basicsize__ <= offset < size for offset in offsets)
    assert len(set(offsets)) == len(offsets)
    assert facts["data_layout"] and all(word % 8 == 0 for word in facts["data_layout"])
    assert facts["notes"] == []
    assert (facts["data"] is not None) is os.path.exists("/proc/self/mem")
    # Behind the PJRT C API what holds the data is one handle further.
    in_process = set(facts["clients"]) == {"cpu"}
    assert len(facts["data"] or ()) in ((0, 2) if in_process else (0, 3))


def test_recalibration_finds_the_same_words():
    """Searching again changes nothing and leaves no array alive."""
    array_words.read(jnp.zeros(3))
    before, arrays = array_words.describe(), len(jax.live_arrays())
    after = array_words.recalibrate()
    assert {word: after[word] for word in WORDS} == {word: before[word] for word in WORDS}
    assert len(jax.live_arrays()) == arrays
    assert_words(jnp.zeros(3))


def test_calibration_does_not_depend_on_the_heap():
    """Allocations of one size differ by a few bytes; that must not cost the data layout words."""
    blocks, found = [], []
    for i in range(100):
        blocks.append(bytearray(100 + 37 * i % 300))
        if i % 3 == 0:
            del blocks[::7]
        found.append(array_words.recalibrate())
    assert all(facts["notes"] == found[0]["notes"] for facts in found)
    assert {bool(facts["data_layout"]) for facts in found} == {not LAYOUT_OFF}


def fill_free_memory(byte):
    """What the next allocations of the size of a runtime buffer hold, until they are written to."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc_usable_size.argtypes = libc.free.argtypes = [ctypes.c_void_p]
    for size in range(56, 700, 16):
        blocks = [libc.malloc(size) for _ in range(200)]
        for block in blocks:
            ctypes.memset(block, byte, libc.malloc_usable_size(block))
        for block in blocks:
            libc.free(block)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the C library of Linux")
def test_calibration_does_not_depend_on_what_memory_held(monkeypatch):
    """A word that no buffer writes to, set in column-major samples alone, is not taken for one."""
    usual = array_words.recalibrate()["data_layout"]
    samples = layout_samples.by_data_layout

    def from_other_memory(device):
        fill_free_memory(0xFF)
        found = samples(device)
        fill_free_memory(0)
        return found

    monkeypatch.setattr(layout_samples, "by_data_layout", from_other_memory)
    try:
        assert array_words.recalibrate()["data_layout"] == usual
        fill_free_memory(0xFF)
        assert array_words.read(jnp.zeros(4))["default_layout_proven"] is not LAYOUT_OFF
    finally:
        monkeypatch.undo()
        array_words.recalibrate()


def test_threads():
    """Threads that read while others search again see the right words."""
    arrays = [make() for make in ARRAYS.values()]
    arrays += [make() for make in COLUMN_MAJOR.values()]
    expected = [is_row_major(array) for array in arrays]
    failures, stop = [], threading.Event()

    def read():
        try:
            while not stop.is_set():
                found = [assert_words(array)["default_layout"] for array in arrays]
                assert found == expected
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        array_words.recalibrate()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


REPORT = """
    import os
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.layout import Format, Layout
    from jaxmarshal._core.values import array_words

    switched_off = os.environ.get("JAXMARSHAL_OBJECT_LAYOUT") == "off"
    assert array_words.describe()["calibrated"] is switched_off
    gone = jnp.arange(3)
    gone.delete()
    column_major = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    for array in (
        jnp.zeros(3), jax.device_put(1.0), jax.device_put(np.zeros((2, 2)), jax.devices()[-1]),
        jax.device_put(jnp.zeros((2, 3)), column_major), gone,
    ):
        words = array_words.read(array)
        del words["default_layout_proven"]
        print({name: str(word) for name, word in words.items()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", ["8", "1"])
def test_the_switch_changes_no_answer(count):
    """With JAXMARSHAL_OBJECT_LAYOUT=off, and on a single device, all answers are the same."""
    flags = f"--xla_force_host_platform_device_count={count}"
    off, on = (
        run_code(REPORT, JAXMARSHAL_OBJECT_LAYOUT=switch, XLA_FLAGS=flags).stdout
        for switch in ("off", None)
    )
    assert on == off
    assert on.count("'default_layout': 'True'") == 3


CONTEXTS = """
    import contextlib, sys
    import jax, numpy as np
    from jaxmarshal._core.values import array_words

    array = jax.device_put(np.zeros((2, 3), np.float32))
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    results = []

    def calibrate(context, by_compiling=bool(int(sys.argv[1]))):
        with context:
            array_words.recalibrate(by_compiling)
        results.append(array_words.describe())
        assert array_words.read(array)["default_layout"]

    calibrate(contextlib.nullcontext())
    for context in (
        jax.transfer_guard("disallow"), jax.transfer_guard("disallow_explicit"),
        jax.default_device(jax.devices()[-1]), jax.enable_x64(True), jax.debug_nans(True),
        jax.disable_jit(), jax.no_execution(True),
        jax.sharding.use_abstract_mesh(mesh.abstract_mesh), jax.set_mesh(mesh),
        jax.log_compiles(False), jax.checking_leaks(),
    ):
        calibrate(context)
    jax.jit(lambda x: [calibrate(contextlib.nullcontext()), x][1])(1.0)
    jax.vmap(lambda x: [calibrate(contextlib.nullcontext()), x][1])(np.zeros(2))
    for result in results:
        assert result["notes"] == results[0]["notes"], results
        assert bool(result.pop("data_layout")) == bool(result["buffer"]), results
        del result["clients"]
    assert all(result == results[0] for result in results), results
    assert len(jax.live_arrays()) == 1, jax.live_arrays()
"""


@pytest.mark.parametrize("by_compiling", [False, True], ids=["quick samples", "compiled samples"])
def test_calibration_under_any_context(by_compiling):
    """The first array may be met under a guard, a trace or a mesh: the words found are the same."""
    run_code(CONTEXTS.replace("int(sys.argv[1])", str(int(by_compiling))))


def _compiled_events(run):
    """The events that JAX reports while this runs."""
    heard = []

    def hear(name, *_, **__):
        heard.append(name)

    jax.monitoring.register_event_listener(hear)
    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_listener(hear)
        jax.monitoring.unregister_event_duration_listener(hear)
    return heard


@pytest.mark.skipif(LAYOUT_OFF, reason="nothing is calibrated")
def test_trap_14_compiled_samples_touch_nothing(capfd):
    """Trap 14: samples by a small program leave no array, no event, no line, no change of flags."""
    array_words.read(jnp.zeros(3))
    gc.collect()
    arrays, context = len(jax.live_arrays()), jax._src.config.trace_context()
    capfd.readouterr()
    with jax.log_compiles(True):
        heard = _compiled_events(lambda: array_words.recalibrate(by_compiling=True))
    assert heard == []
    assert capfd.readouterr() == ("", "")
    assert len(jax.live_arrays()) == arrays
    assert jax._src.config.trace_context() == context
    facts = array_words.describe()
    assert facts["data_layout"] and facts["notes"] == []


@pytest.mark.skipif(LAYOUT_OFF, reason="nothing is calibrated")
def test_both_kinds_of_samples_find_the_same():
    """DLPack imports and results of a program are in the same words."""
    by_import = array_words.recalibrate()["data_layout"]
    assert array_words.recalibrate(by_compiling=True)["data_layout"] == by_import
