"""`float(x)`, `int(x)`, `bool(x)`, `operator.index(x)`, `f"{x:.3f}"`: arrays of one element."""

from __future__ import annotations

import operator
import signal
import sys
import warnings
from contextlib import contextmanager
from unittest import mock

import child
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from eager import hits, observe, same, without_jaxmarshal
from jitted import on, spread
from support import JAX

import jaxmarshal
from jaxmarshal._core.entries import scalar_reads
from jaxmarshal._jax import private

VALUES = [0, 1, -1, 3, -0.0, 2.5, np.nan, np.inf, -np.inf, 1e30]
DTYPES = [
    np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8, np.uint32, np.bool_,
    np.complex64,
]  # fmt: skip
READS = {
    "float": float, "int": int, "bool": bool, "index": operator.index, "complex": complex,
    "format": "{:.3f}".format, "str": "{}".format, "hex": hex, "round": round,
    "wrong format": "{:q}".format, "list": lambda x: [1, 2, 3][x],
}  # fmt: skip


@pytest.fixture(autouse=True)
def installed():
    """As in a process where no computation has had callbacks yet."""
    scalar_reads.watch_tokens()
    with jaxmarshal.installed():
        yield


def read_by_jax(call, *args):
    """Does JAX's own function for the elements of arrays run in this call?"""
    seen = []

    def note(frame, event, _):
        if event == "call":
            seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call(*args)
    finally:
        sys.setprofile(before)
    return "_value" in seen


def is_plugin():
    """Is the default backend one behind the PJRT C API? Its arrays are read by JAX."""
    return jax.devices()[0].client.platform_version.startswith("PJRT C API")


@pytest.fixture
def read_here():
    if not private.HAVE_SCALAR_READS or LAYOUT_OFF or is_plugin():
        pytest.skip("a plugin, or no object layout")


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.filterwarnings("ignore:.*discards the imaginary part.*")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_kind(dtype):
    """The same value of the same type, or the same error."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = [np.asarray(value).astype(dtype) for value in VALUES]
    for value in data:
        x = jnp.asarray(value)
        for read in READS.values():
            same(read, x, turns=2)
            same(read, x | x if x.dtype == bool else x + x, turns=2)
            same(lambda x=x, read=read: type(read(x)), turns=1)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0,), (2,)], ids=str)
def test_arrays_with_axes(shape):
    x = jnp.ones(shape, jnp.int32)
    for read in READS.values():
        same(read, x, turns=2)
        same(read, x.astype(jnp.float32), turns=2)


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("read", ["float", "int", "bool", "index", "format"])
def test_read_without_jax(read):
    x = jnp.asarray(3, jnp.int32 if read == "index" else jnp.float32)
    before = hits("functions")
    assert not read_by_jax(READS[read], x)
    assert hits("functions") == before + 1
    assert read_by_jax(lambda: x._value)


def test_64_bits():
    with jax.enable_x64(True) if JAX >= (0, 9) else jax.experimental.enable_x64(True):
        for value in (2**64 - 1, -2**63, 1e300, 5e-324):
            x = jnp.asarray(np.asarray(value))
            for read in READS.values():
                same(read, x, turns=2)


def test_weak_types_and_placed_ones():
    for x in (jnp.asarray(2.5), jnp.asarray(2) * 3, on(3, np.float32(4)), on(2, np.int32(4)),
              spread(np.float32(4)), spread(np.int32(4))):
        for read in READS.values():
            same(read, x, turns=2)


@pytest.mark.errors
def test_wrong_calls():
    x = jnp.float32(2)
    same(lambda: type(x).__float__())
    same(lambda: x.__float__(1))
    same(lambda: x.__format__())
    same(lambda: x.__format__(spec=""))
    same(lambda: x.__format__(3))
    same(lambda: type(x).__float__(2.5))
    same(lambda: type(x).__int__(jnp.ones(3)))


@pytest.mark.errors
def test_deleted_and_donated():
    donate = jax.jit(lambda x: x + 1, donate_argnums=0)

    def deleted(read):
        x = jnp.float32(1) + 1
        x.delete()
        return read(x)

    def donated(read):
        x = jnp.float32(1) + 1
        donate(x)
        return read(x)

    for read in READS.values():
        same(deleted, read)
        same(donated, read)


def test_keys_and_tracers():
    same(bool, jax.random.key(0))
    same(float, jax.random.key(0))
    same(jax.jit(lambda x: float(x)), 1.0)
    inside = jnp.float32(3)
    same(jax.jit(lambda x: x * float(inside)), 1.0)
    same(lambda: jax.grad(lambda x: x * float(inside))(2.0))
    same(lambda: jax.grad(lambda x: x * float(x))(2.0))


def test_a_function_that_reads_is_not_replayed():
    """What a recorded function reads by these methods may be another value the next time."""
    for _ in range(4):
        for stop in (3, 5, 4):
            same(jnp.arange, jnp.asarray(stop), turns=2)
            same(lambda stop=stop: jnp.zeros(jnp.asarray(stop)), turns=2)
            same(lambda stop=stop: jnp.eye(3, k=jnp.asarray(stop - 4)), turns=2)


def test_another_method_of_arrays():
    """Somebody else's way to the elements is taken."""
    x = jnp.float32(2)
    float(x)
    theirs = property(lambda self: np.float32(7))
    with mock.patch.object(private.ArrayImpl, "_value", theirs):
        assert float(x) == 7.0
    with (
        mock.patch.object(private.core, "check_scalar_conversion", lambda x: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        float(x)
    assert float(x) == 2.0


def test_under_the_profiler(tmp_path):
    """JAX notes in a profile that somebody looked at an array."""
    x = jnp.float32(2)
    float(x)
    with jax.profiler.trace(tmp_path):
        assert read_by_jax(float, x)


@contextmanager
def interrupted(after=0.05):
    class Interruption(Exception):
        pass

    def interrupt(*_):
        raise Interruption("now")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    except Interruption as error:
        raise ValueError(f"interrupted: {error}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.errors
def test_a_signal_meanwhile():
    """The error of a handler is raised, and not taken for one of the array's."""
    def power(x):
        matrix = jnp.full((2000, 2000), x)
        return (matrix @ matrix @ matrix @ matrix @ matrix)[0, 0]

    slow = jax.jit(power)
    float(slow(1.0))

    def read():
        with interrupted():
            return float(slow(1.0))

    with without_jaxmarshal():
        expected = observe(read)
    if expected[0][0] == "returned":
        pytest.skip("the computation was over before the signal came")
    assert observe(read)[0] == expected[0]


INSTALLED = """
    import jaxmarshal
    jaxmarshal.install()
"""

CALLBACKS = """
    import os, time
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    seen = []

    def fail(x):
        time.sleep(0.05)
        raise ValueError("from the callback")

    plain = jax.jit(lambda x: x + 1)
    for _ in range(3):
        seen.append(float(plain(1.0)))

    def result(call, *args):
        try:
            return call(*args)
        except Exception as error:
            return type(error).__name__, "from the callback" in str(error) or str(error)

    debug = jax.jit(lambda x: (jax.debug.callback(fail, x), x + 1)[1])
    ordered = jax.jit(lambda x: (jax.debug.callback(fail, x, ordered=True), x + 1)[1])
    pure = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), x))
    # On several devices one with `pure_callback` would wait for good for the device that failed.
    one, mesh = jnp.float32(1), jax.make_mesh((2,), ("x",))
    several = jax.device_put(one, NamedSharding(mesh, PartitionSpec()))
    for function, x in ((debug, one), (debug, several), (ordered, one), (pure, one)):
        for _ in range(2):
            y = result(function, x)
            parts = y.addressable_shards if isinstance(y, jax.Array) else []
            seen.append([result(float, y), *(result(float, part.data) for part in parts)])
    seen.append(float(plain(2.0)))
    print(seen, flush=True)
    os._exit(0)    # without JAX's own waiting for the callbacks that failed
"""


def test_errors_of_callbacks():
    """Reading what a computation with callbacks returned raises their errors."""
    if is_plugin():
        pytest.skip("the plugin has no callbacks")
    plain = child.run_code(CALLBACKS, JAXMARSHAL="off").stdout
    ours = child.run_code(INSTALLED + CALLBACKS).stdout
    assert ours == plain
    assert "True" in plain


TOKENS = """
    import jax
    import jaxmarshal
    jaxmarshal.install()

    def read():
        x = jax.jit(lambda x: x + 1)(1.0)
        before = jaxmarshal.stats()["functions"]["hits"]
        assert float(x) == 2.0
        return jaxmarshal.stats()["functions"]["hits"] - before

    first = read()
    jax.jit(lambda x: (jax.debug.callback(lambda x: None, x), x)[1])(1.0)
    print(first, read())
"""

#: A computation, and then jaxmarshal is imported.
BEFORE = """
    import jax
    jax.jit(lambda x: x + 1)(1.0)
"""


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize(("devices", "code", "hits"), [
    (1, TOKENS, "1 1"), (2, TOKENS, "1 0"), (1, BEFORE + TOKENS, "1 1"),
    (2, BEFORE + TOKENS, "0 0"),
])  # fmt: skip
def test_which_reads_are_left_to_jax(devices, code, hits):
    """With several devices: from the first callback on, and where nobody knows of earlier ones."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    assert child.run_code(code, XLA_FLAGS=flags, JAXMARSHAL=None).stdout.strip() == hits


@pytest.mark.usefixtures("read_here")
def test_explain():
    x = jnp.float32(2)
    float(x)
    before = hits("functions")
    assert jaxmarshal.explain(type(x).__float__, x).hit
    assert hits("functions") == before


def test_uninstalling():
    cls = private.ArrayImpl
    with jaxmarshal.uninstalled():
        before = {name: vars(cls)[name] for name in scalar_reads.CONVERSIONS}
        with jaxmarshal.installed():
            assert (vars(cls)["__float__"] is not before["__float__"]) == private.HAVE_SCALAR_READS
        assert all(vars(cls)[name] is method for name, method in before.items())
