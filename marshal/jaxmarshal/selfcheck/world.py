"""The devices that the checks use, and what they put there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

#: More devices than these show nothing that these do not.
MOST_DEVICES = 8


def aligned(shape: tuple[int, ...], dtype: Any = "float32", offset: int = 0) -> np.ndarray:
    """0, 1, 2, … at `offset` bytes after a multiple of 64, which decides whether JAX copies."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape))
    block = np.zeros(size * dtype.itemsize + 192, np.uint8)
    start = -block.ctypes.data % 64 + offset
    made = block[start : start + size * dtype.itemsize].view(dtype).reshape(shape)
    made[...] = np.arange(size).reshape(shape).astype(dtype)
    return made


class World:
    """Devices of the default backend, and targets and arrays on them.

    Attributes:
      accelerated: is jaxmarshal installed?
      devices: local devices, eight at most.
      first, other: the first device and the last, which are the same where there is only one.
      rows: a multiple of the number of devices: what a first dimension has to be to be spread.
    """

    def __init__(self, accelerated: bool) -> None:
        self.accelerated = accelerated
        self.devices = jax.local_devices()[:MOST_DEVICES]
        self.first, self.other = self.devices[0], self.devices[-1]
        self.rows = 2 * len(self.devices)
        self.mesh = jax.sharding.Mesh(np.asarray(self.devices), ("x",))

    def single(self, device: Any = None) -> SingleDeviceSharding:
        return SingleDeviceSharding(self.first if device is None else device)

    def spread(self, *spec: Any) -> NamedSharding:
        """Over all devices: `spread("x")` divides the rows, `spread()` replicates."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def columns(self, device: Any = None) -> Format:
        """A target that stores a matrix column after column."""
        return Format(Layout((1, 0)), self.single(device))

    def matrix(self, dtype: Any = "float32", offset: int = 0) -> np.ndarray:
        return aligned((self.rows, 4), dtype, offset)

    def put(self, target: Any = None, dtype: Any = "float32") -> jax.Array:
        """A matrix on a device or several, placed by whatever is installed."""
        return jax.device_put(self.matrix(dtype), target)

    def targets(self) -> dict[str, Any]:
        """Every kind of target, by name."""
        return {
            "no target": None,
            "the first device": self.first,
            "another device": self.other,
            "a single-device sharding": self.single(self.other),
            "rows over all devices": self.spread("x"),
            "replicated on all devices": self.spread(),
        }
