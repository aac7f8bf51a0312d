"""Arrays whose words are known through public attributes: what calibration looks at.

They are made by jaxlib itself, below everything that a trace, a mesh or a configuration state of
JAX could change: no JAX function is called, traced or compiled, no cache or log of JAX sees them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jaxmarshal._jax import private

#: Shapes whose column-major layout is another one than their row-major layout.
SHAPES = ((3, 4), (5, 2), (8, 8), (2, 9))


class AllowTransfers:
    """Lift this thread's transfer guards while calibration makes its own small arrays."""

    def __enter__(self) -> None:
        self._state = private.guard_thread_state()
        self._before = (self._state.host_to_device, self._state.device_to_device)
        allow = private.TransferGuardLevel.ALLOW
        self._state.host_to_device = self._state.device_to_device = allow

    def __exit__(self, *exc_info: object) -> None:
        self._state.host_to_device, self._state.device_to_device = self._before


def put(shape: tuple[int, ...], dtype: Any, device: Any, committed: bool, weak_type: bool = False):
    """A one-device array with an aval and a sharding of its own."""
    aval = private.ShapedArray(shape, np.dtype(dtype), weak_type=weak_type)
    sharding = private.SingleDeviceSharding(device)
    return private.batched_device_put(
        aval, sharding, [np.zeros(shape, dtype)], [device], committed
    )


def different(devices: list[Any]) -> list[Any]:
    """Arrays that differ in every word that is looked for; flags in patterns of their own."""
    first, last = devices[0], devices[-1]
    return [
        put((3,), np.float32, first, True, False),
        put((2, 5), np.int32, last, False, False),
        put((), np.float32, first, False, True),
        put((4, 1, 2), np.int8, last, True, True),
        put((7,), np.bool_, first, True, False),
        put((1, 6), np.complex64, last, False, True),
        put((0,), np.uint16, first, False, False),
    ]


def many(device: Any) -> list[Any]:
    """So many arrays that those in memory that was free before are among them."""
    return [put((n,), np.float32, device, n % 2 == 0) for n in range(48)]


def replicated(devices: list[Any]) -> list[Any]:
    """An array over several devices, as another confirmation; none on one device."""
    if len(devices) < 2:
        return []
    import jax

    mesh = jax.sharding.Mesh(np.asarray(devices), ("jaxmarshal",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    data = np.zeros((2, 2), np.float32)
    aval = private.ShapedArray(data.shape, data.dtype)
    return [
        private.batched_device_put(aval, sharding, [data] * len(devices), list(devices), True)
    ]


def held_twice(device: Any) -> list[tuple[Any, Any]]:
    """Pairs of arrays of the same data: what deletes those of one deletes those of the other."""
    pairs = []
    for n in (2, 3, 5, 600):
        data = put((n,), np.float32, device, True)
        array = private.ArrayImpl(
            data.aval, data.sharding, [data], committed=True, _skip_checks=True
        )
        pairs.append((array, data))
    return pairs


def _column_major_block(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Column-major data that start on a multiple of 64, so that they are not copied."""
    nbytes = rows * columns * dtype.itemsize
    block = np.zeros(nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + nbytes].view(dtype).reshape(columns, rows).T


def imported(device: Any) -> list[Any]:
    """Column-major arrays that share the host's memory, by DLPack; raises on other devices."""
    arrays = []
    for dtype, (rows, columns) in itertools.product((np.float32, np.int32), SHAPES):
        capsule = _column_major_block(rows, columns, np.dtype(dtype)).__dlpack__()
        try:
            array = private.dlpack_to_array(capsule, device, None, None, 1)
        except TypeError:
            array = private.dlpack_to_array(capsule, device, None, None)
        arrays.append(array)
    return arrays


def _program() -> bytes:
    """A program without arguments: column-major results, and as many in the default layout."""
    kinds = [("3x4xf32", "0.0"), ("5x2xi32", "0")]
    results = [
        (f"tensor<{kind}>", zero, mode) for mode in ("{0,1}", "default") for kind, zero in kinds
    ]
    lines = [
        "module @jaxmarshal_calibration {",
        "func.func public @main() -> ("
        + ", ".join(f'{kind} {{mhlo.layout_mode = "{mode}"}}' for kind, _, mode in results)
        + ") {",
        *(
            f"%{i} = stablehlo.constant dense<{zero}> : {kind}"
            for i, (kind, zero, _) in enumerate(results)
        ),
        f"return {', '.join(f'%{i}' for i in range(len(results)))}"
        f" : {', '.join(kind for kind, _, _ in results)}",
        "}",
        "}",
    ]
    return "\n".join(lines).encode()


def compiled(device: Any) -> tuple[list[Any], list[Any]]:
    """Results of one small program on this device: in the default layout, and column-major.

    Every backend that JAX can give a `Format` to takes layouts in this way. It costs a compilation.
    """
    options = private.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = private.DeviceAssignment.create(
        np.array([[device.id]], np.int32)
    )
    executable = device.client.compile_and_load(
        _program(), private.DeviceList((device,)), options
    )
    default: list[Any] = []
    custom: list[Any] = []
    for _ in range(4):
        results = executable.execute_sharded([]).disassemble_into_single_device_arrays()
        arrays = [array for (array,) in results]
        custom += arrays[: len(arrays) // 2]
        default += arrays[len(arrays) // 2 :]
    return default, custom


def by_data_layout(device: Any) -> tuple[list[Any], list[Any]]:
    """Arrays on a device in the default layout, and column-major ones, as cheaply as it goes.

    Raises what jaxlib raises where the backend cannot make any.
    """
    default: list[Any] = []
    custom: list[Any] = []
    if device.client.platform == "cpu" and private.dlpack_to_array is not None:
        try:
            custom = imported(device)
        except Exception:
            custom = []
    if not are_column_major(custom):
        default, custom = compiled(device)
    if not are_column_major(custom) or are_column_major(default):
        raise RuntimeError("the backend does not heed the data layouts that are asked for")
    return default, custom


def are_column_major(arrays: list[Any]) -> bool:
    """Are there any, and all of them in column-major order?"""
    return bool(arrays) and all(
        str(array._pjrt_layout).startswith("{0,1") for array in arrays
    )
