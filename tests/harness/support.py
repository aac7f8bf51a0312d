"""Helpers of the tests: comparison with plain JAX, exact counts, and fresh processes."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import core, literals
from jax.experimental.layout import Format, Layout
from observe import observe

import jaxmarshal
from jaxmarshal._core.values import live_objects
from jaxmarshal._jax import private

#: The folder of the project.
REPOSITORY = Path(__file__).resolve().parents[2]

#: The installed version.
JAX = private.version_tuple(jax.__version__)

#: Do the live-object counters count?
DEBUG: bool = live_objects.debug_build()

#: The address sanitizer keeps freed memory for a while, so that its addresses do not come back.
ADDRESSES_COME_BACK: bool = "ASAN_OPTIONS" not in os.environ

#: The longer profile of the tests.
THOROUGH: bool = os.environ.get("JAXMARSHAL_TEST_PROFILE") == "ci"


def free_stack(so_far: int = 0) -> int:
    """How many calls deep Python can still go from here."""
    try:
        return free_stack(so_far + 1)
    except RecursionError:
        return so_far


def aligned(shape: Any, dtype: Any = np.float32, offset: int = 0) -> np.ndarray:
    """1, 2, 3, … at `offset` bytes after a multiple of 64, which decides whether JAX copies."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape))
    block = np.zeros(size * dtype.itemsize + 192, np.uint8)
    start = -block.ctypes.data % 64 + offset
    made = block[start : start + size * dtype.itemsize].view(dtype).reshape(shape)
    made[...] = np.arange(1, size + 1).reshape(shape).astype(dtype)
    return made


def shares_memory() -> bool:
    """Are the data of the default backend in the host's memory? A CPU's are, plugin or not."""
    return jax.devices()[0].platform == "cpu"


def imported(data: np.ndarray) -> jax.Array:
    """An array on the default backend whose data lie as in this contiguous ndarray.

    By DLPack, which shares memory, where that backend is JAX's own CPU backend.
    """
    if jax.devices()[0] in _own_cpu_devices():
        return jax.dlpack.from_dlpack(data)
    order = tuple(range(data.ndim)) if data.flags.c_contiguous else tuple(range(data.ndim))[::-1]
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.device_put(data, Format(Layout(order), sharding))


def _own_cpu_devices() -> list[Any]:
    try:
        return jax.devices("cpu")
    except RuntimeError:
        return []


def column_major(data: np.ndarray | None = None) -> jax.Array:
    """These numbers, or 3 rows and 4 columns of some, as an array whose columns lie in a row."""
    columns = aligned((4, 3)) if data is None else aligned(data.shape[::-1], data.dtype)
    if data is not None:
        columns.T[...] = data
    array = imported(columns.T)
    assert array.format.layout.major_to_minor == (1, 0)
    return array


def deleted_array() -> jax.Array:
    """An array without its data."""
    array = jax.device_put(aligned(8))
    array.delete()
    return array


def literal(data: Any, weak_type: bool = False) -> Any:
    """Host data as JAX has them while it traces, with a dtype that no configuration changes."""
    data = np.asarray(data)
    if "weak_type" in inspect.signature(literals.TypedNdArray).parameters:    # older ones
        return literals.TypedNdArray(data, weak_type)
    aval = core.ShapedArray(data.shape, data.dtype, weak_type=weak_type)
    return literals.TypedNdArray(data, aval)


def named(*spec: Any) -> jax.sharding.NamedSharding:
    """All devices, along one axis that is called x."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def transfer_log(capfd: Any) -> list[str]:
    """The lines that the runtime logged about transfers, without time and place."""
    return [
        line.split("]", 1)[1] for line in capfd.readouterr().err.splitlines() if "transfer" in line
    ]


@contextlib.contextmanager
def without_jaxmarshal() -> Iterator[None]:
    """Plain JAX for a while, in a test that runs with jaxmarshal installed."""
    with jaxmarshal.uninstalled():
        yield


def counts(entry: str = "device_put") -> tuple[int, dict[str, int]]:
    """(hits, misses by reason) since the last `reset_stats()`."""
    found = jaxmarshal.stats()[entry]
    assert found["misses"] == sum(found["misses_by_reason"].values())
    return found["hits"], found["misses_by_reason"]


def same_as_jax(
    make: Callable[[], Any],
    target: Any = None,
    *,
    context: Any = contextlib.nullcontext,
    hits: int | None = None,
    reasons: dict[str, int] | None = None,
) -> tuple:
    """Put `make()` with plain JAX and three times with jaxmarshal; all must observe the same.

    Of the three calls `hits` must take the fast path and the others must go to the reference for
    `reasons`. Without either, the first call finds nothing recorded and the others hit.
    Returns the observation.
    """
    if reasons is None:
        hits = 2 if hits is None else hits
        reasons = {"not_recorded": 3 - hits} if hits < 3 else {}
    expected = observe(jax.device_put, make(), target, context=context)
    jaxmarshal.reset_stats()
    for _ in range(3):
        assert observe(jaxmarshal.device_put, make(), target, context=context) == expected
    assert counts() == (3 - sum(reasons.values()), reasons)
    return expected


class Fresh:
    """Runs Python source in processes in which JAX is imported and no backend is initialised.

    One process imports JAX and jaxmarshal and is forked for each source, which is much faster
    than to start anew. It has no threads as long as it has no backend, so that forking is safe.
    """

    def __init__(self) -> None:
        here = Path(__file__).parent
        package = Path(jaxmarshal.__file__).parents[1]
        environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
        environment["PYTHONPATH"] = f"{package}{os.pathsep}{here}"
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        self._process = subprocess.Popen(
            [sys.executable, str(here / "fresh_process.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )

    def __call__(self, source: str, may_die: bool = False, **values: Any) -> Any:
        """What the source assigned to `result`; `values` are its variables at the start.

        With `may_die`, a process that ended otherwise than in order makes the result "died".
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"source": source, "values": values}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if may_die and answer["status"]:
            return "died"
        assert answer["status"] == 0, answer["output"]
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def config_updated(name: str, value: Any) -> Iterator[None]:
    """A configuration value for the whole process, all threads."""
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)
