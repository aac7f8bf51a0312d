"""Cases that place data: `device_put` and `shard_args`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxmarshal import api
from jaxmarshal._core.entries import device_put
from jaxmarshal._jax import private
from jaxmarshal.benchmarks import inputs
from jaxmarshal.benchmarks.case import Call, Case, Sides

# partial() calls straight from C, so that no side pays for a Python frame of its own.


def _sides(args: tuple[Any, ...], floor: Call | None = None, **options: Any) -> Sides:
    return Sides(
        partial(private.device_put, *args, **options),
        partial(api.device_put, *args, **options),
        floor,
    )


def prepared_put(x: Any, committed: bool = False) -> Call:
    """The prepared jaxlib call for one host argument on the default device."""
    done = private.device_put(x)
    host = np.asarray(x, done.dtype)
    return partial(
        private.batched_device_put,
        done.aval, done.sharding, [host], jax.devices()[:1], committed,
    )  # fmt: skip


def _all(calls: list[Call]) -> Call:
    return lambda: [call() for call in calls]


def _tree(kind: str, tree: str, count: int) -> Sides:
    items = inputs.leaves(kind, count)
    puts = [prepared_put(x) for x in items if not isinstance(x, jax.Array)]
    return _sides((inputs.tree_of(tree, items),), _all(puts) if puts else None)


def _one_numpy(to_device: bool = False) -> Sides:
    x = np.arange(8, dtype=np.float32)
    args = (x, jax.devices()[0]) if to_device else (x,)
    return _sides(args, prepared_put(x, committed=to_device))


def _committed() -> Sides:
    device = jax.devices()[0]
    return _sides((private.device_put(np.arange(8, dtype=np.float32), device), device))


def _over_devices(spec: tuple[Any, ...]) -> Sides:
    target = inputs.over_all_devices(spec)
    count = len(jax.devices())
    wide = np.ones((8 * count, 8), np.float32)
    done = private.device_put(wide, target)
    shards = [wide[i * 8 : i * 8 + 8] for i in range(count)] if spec else [wide] * count
    floor = partial(
        private.batched_device_put, done.aval, target, shards, jax.devices(), True
    )
    return _sides((wide, target), floor)


def _to(target: Callable[[], Any]) -> Sides:
    return _sides((jax.device_put(np.ones((8, 8), np.float32)), target()))


def device_put_cases() -> Iterator[Case]:
    """`jax.device_put` of host data and of arrays."""

    def case(name: str, build: Callable[[], Sides], **details: Any) -> Case:
        return Case(name, "device_put", build, **details)

    yield case("np f32[8]", _one_numpy, least_speedup=7, most_over_floor=1.25, quick=True)
    yield case(
        "np f32[8] to a device", partial(_one_numpy, True),
        least_speedup=7, most_over_floor=1.25,
    )  # fmt: skip
    yield case(
        "np f64[8], x64 off", lambda: _sides((np.arange(8, dtype=np.float64),)), quick=True
    )
    yield case("Python float", partial(_sides, (1.0,)), least_speedup=5, quick=True)
    yield case("numpy scalar", lambda: _sides((np.float32(1),)), least_speedup=5)
    yield case(
        "dict of 9 numpy", partial(_tree, "numpy", "dict", 9), leaves=9,
        least_speedup=4.2, most_over_floor=1.25, quick=True,
    )  # fmt: skip
    bars = {("numpy", 100): (4, 1.15), ("arrays", 100): (50, None)}
    for kind in inputs.KINDS:
        for count in (1, 4, 10, 100, 1000):
            yield case(
                f"list of {count} {kind}", partial(_tree, kind, "list", count), leaves=count,
                series=f"list of {kind}", quick=kind in ("arrays", "numpy") and count in (10, 100),
                least_speedup=bars.get((kind, count), (None, None))[0],
                most_over_floor=bars.get((kind, count), (None, None))[1],
            )  # fmt: skip
    for tree in ("dict", "model", "custom"):
        yield case(f"{tree} of 100 numpy", partial(_tree, "numpy", tree, 100), leaves=100)
    yield case("committed array to its device", _committed, least_speedup=4, quick=True)
    for name, spec in (("sharded", ("x",)), ("replicated", ())):
        yield case(
            f"np f32[64,8] {name} over 8", partial(_over_devices, spec), devices=8,
            least_speedup=2.2,
        )  # fmt: skip
    for name, target in (
        ("a Format", inputs.columns_in_memory),
        ("a memory space", lambda: jax.memory.Space.Host),
    ):
        yield case(
            f"array f32[8,8] to {name}", partial(_to, target), least_speedup=2,
        )  # fmt: skip
    yield case("np f32[8], blocking", lambda: _one_numpy().blocking())
    yield case(
        "list of 100 numpy, blocking", lambda: _tree("numpy", "list", 100).blocking(), leaves=100
    )
    yield case(
        "refused (src=)",
        lambda: _sides((np.arange(8, dtype=np.float32),), src=jax.devices()[0]),
        least_speedup=1 / 1.03, hits=False,
    )  # fmt: skip


def _shard_args(kind: str, count: int, spread: bool = False) -> Sides:
    target = inputs.over_all_devices() if spread else SingleDeviceSharding(jax.devices()[0])
    items = inputs.leaves(kind, count, target)
    args = ([target] * count, [None] * count, [private.REUSE_INPUT] * count, items)
    floor = _all([prepared_put(x, True) for x in items]) if kind == "numpy" and not spread else None
    if floor is not None and count == 1:
        floor = prepared_put(items[0], True)
    return Sides(
        partial(private.shard_args, *args), partial(api.shard_args, *args), floor
    )


def _one_buffer() -> Sides:
    x = np.arange(8, dtype=np.float32)
    done = private.device_put(x)
    args = (done.aval, done.sharding, [x], jax.devices()[:1], True)
    return Sides(
        partial(private.pxla_batched_device_put, *args), partial(api.batched_device_put, *args),
        partial(private.batched_device_put, *args),
    )  # fmt: skip


def _primitive() -> Sides:
    """What the primitive of `device_put` comes to."""
    x = np.arange(8, dtype=np.float32)
    options = {"devices": [None], "srcs": [None], "copy_semantics": [private.REUSE_INPUT]}
    return Sides(
        partial(private.batched_device_put_impl, x, **options),
        partial(device_put.batched_device_put_impl, x, **options),
        prepared_put(x),
    )


def _process_data() -> Sides:
    batch = {"x": np.ones((64, 8), np.float32), "y": np.zeros(64, np.int32)}
    args = (inputs.over_all_devices(), batch)
    return Sides(
        partial(private.make_process_array, *args),
        partial(api.make_array_from_process_local_data, *args),
    )


def shard_args_cases() -> Iterator[Case]:
    """`pxla.shard_args`, which places the arguments of compiled code, and what it comes to."""
    yield Case("batched_device_put of 1 numpy", "batched_device_put", _one_buffer)
    yield Case("batched_device_put_impl of 1 numpy", "batched_device_put_impl", _primitive)
    yield Case(
        "make_array_from_process_local_data, dict of 2 numpy",
        "make_array_from_process_local_data", _process_data, leaves=2, devices=8,
    )  # fmt: skip
    bars = {("numpy", 1): (2.2, 1.3), ("arrays", 1): (4, None)}
    for kind in ("arrays", "numpy"):
        for count in (1, 4, 10, 100, 1000):
            yield Case(
                f"{count} {kind}", "shard_args", partial(_shard_args, kind, count),
                leaves=count, series=kind, quick=count in (1, 10),
                least_speedup=bars.get((kind, count), (None, None))[0],
                most_over_floor=bars.get((kind, count), (None, None))[1],
            )  # fmt: skip
        yield Case(
            f"10 {kind} on 8 devices", "shard_args", partial(_shard_args, kind, 10, True),
            leaves=10, devices=8,
        )  # fmt: skip
