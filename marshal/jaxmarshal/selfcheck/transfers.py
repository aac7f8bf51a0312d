"""Checks of what places data: `device_put` and what it is made of, and the object layout."""

from __future__ import annotations

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarshal._core.values import array_words
from jaxmarshal._jax import private
from jaxmarshal.selfcheck.registry import Recorder, check
from jaxmarshal.selfcheck.world import World, aligned

Pair = collections.namedtuple("Pair", "left right")

DTYPES = (
    "bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "bfloat16",
)  # fmt: skip
SCALARS = (1.5, 3, True, 2j, np.float32(1.5), np.int64(7), np.bool_(True))


def _default_layout(array: jax.Array) -> bool:
    """By public attributes: is the data layout that of a new array of this kind and place?"""
    fresh = jax.device_put(np.zeros(array.shape, array.dtype), array.sharding)
    return bool(array.format.layout == fresh.format.layout)


def _words(array: jax.Array, accelerated: bool) -> dict[str, Any]:
    """The words of an array: as jaxmarshal reads them, or by the array's public attributes."""
    if accelerated:
        found = array_words.read(array).items()
        return {name: word for name, word in found if not name.endswith("_proven")}
    return {
        "aval": array.aval,
        "dtype": array.dtype,
        "sharding": array.sharding,
        "committed": array.committed,
        "deleted": array.is_deleted(),
        "default_layout": not array.is_deleted() and _default_layout(array),
    }


@check("calibration")
def calibration(world: World, record: Recorder) -> None:
    """The words of arrays, read from the objects, are those of their public attributes."""
    arrays = {
        "uncommitted": jnp.ones((2, 3)),
        "weak type": jax.device_put(1.5),
        "empty": jnp.zeros((0, 3)),
        "result of jit": jax.jit(lambda x: x + 1)(jnp.ones((2, 3))),
        "column after column": jax.device_put(world.matrix(), world.columns()),
        "deleted": world.put(world.first),
        "donated": world.put(world.first),
        **{dtype: jax.device_put(aligned((3, 4), dtype)) for dtype in DTYPES},
        **{f"on {name}": world.put(target) for name, target in world.targets().items()},
        **{f"on device {i}": world.put(device) for i, device in enumerate(world.devices)},
    }
    arrays["deleted"].delete()
    jax.jit(lambda x: x + 1, donate_argnums=0)(arrays["donated"])
    for name, array in arrays.items():
        record.fact(name, _words(array, world.accelerated))


@check("device_put: numpy arrays", entry_points=["device_put"])
def numpy_arrays(world: World, record: Recorder) -> None:
    """Dtypes, shapes, alignments and targets."""
    for dtype in DTYPES:
        for offset in (0, 8):
            make = functools.partial(lambda d, o: (aligned((3, 4), d, o),), dtype, offset)
            record.calls(f"{dtype}, {offset} bytes off alignment", jax.device_put, make)
    for shape in ((), (0,), (5,), (2, 3, 4)):
        record.calls(f"shape {shape}", jax.device_put, lambda shape=shape: (aligned(shape),))
    for name, target in world.targets().items():
        record.calls(name, jax.device_put, lambda target=target: (world.matrix(), target))
        record.calls(
            f"transposed, {name}", jax.device_put,
            lambda target=target: (aligned((4, world.rows)).T, target),
        )


@check("device_put: scalars", entry_points=["device_put"])
def scalars(world: World, record: Recorder) -> None:
    """Scalars of Python and of numpy, with and without a target."""
    for value in SCALARS:
        for name, target in world.targets().items():
            if "rows" not in name:
                record.calls(
                    f"{value!r}, {name}", jax.device_put, lambda v=value, t=target: (v, t)
                )


@check("device_put: arrays", entry_points=["device_put"])
def arrays(world: World, record: Recorder) -> None:
    """Arrays that are in place already, and arrays that have to move."""
    for start, source in world.targets().items():
        for name, target in world.targets().items():
            record.calls(
                f"from {start} to {name}", jax.device_put,
                lambda source=source, target=target: (world.put(source), target),
            )


@check("device_put: trees", entry_points=["device_put"])
def trees(world: World, record: Recorder) -> None:
    """Containers of every kind, mixed leaves, and a tree of targets."""
    def leaves() -> list[Any]:
        return [world.matrix(), 1.5, world.put(), np.float32(2)]

    record.calls("list", jax.device_put, lambda: (leaves(),))
    record.calls("tuple", jax.device_put, lambda: (tuple(leaves()), world.first))
    record.calls("dict", jax.device_put, lambda: ({"b": leaves(), "a": (1, None)},))
    record.calls("namedtuple", jax.device_put, lambda: (Pair(leaves(), {"x": 1}),))
    record.calls("ordered dict", jax.device_put, lambda: (collections.OrderedDict(b=1, a=2),))
    record.calls("nothing", jax.device_put, lambda: ({}, world.first))
    record.calls("a hundred", jax.device_put, lambda: ([aligned((i,)) for i in range(100)],))
    targets = {"a": world.spread("x"), "b": None}
    record.calls(
        "a tree of targets", jax.device_put,
        lambda: ({"a": world.matrix(), "b": world.matrix()}, targets),
    )


@check(
    "make_array_from_process_local_data", entry_points=["make_array_from_process_local_data"]
)
def process_data(world: World, record: Recorder) -> None:
    """The part that a process has of an array."""
    def call(sharding: Any, data: Any, *shape: Any) -> Any:
        return jax.make_array_from_process_local_data(sharding, data, *shape)

    everywhere = world.spread("x")
    record.calls("a batch", call, lambda: (everywhere, {"x": world.matrix(), "y": world.matrix()}))
    record.calls("64 bits", call, lambda: (everywhere, world.matrix().astype(np.float64)))
    record.calls("a shape", call, lambda: (everywhere, world.matrix(), world.matrix().shape))
    record.calls("another shape", call, lambda: (everywhere, world.matrix(), (3,)))


@check("batched_device_put_impl", entry_points=["batched_device_put_impl"])
def batched_impl(world: World, record: Recorder) -> None:
    """A leaf and its target each, as flat sequences."""
    def call(*pairs: Any) -> Any:
        leaves, targets = zip(*pairs, strict=True)
        count = len(leaves)
        return private.dispatch.batched_device_put_impl(
            *leaves, devices=list(targets), srcs=[None] * count,
            copy_semantics=[private.REUSE_INPUT] * count,
        )

    for name, target in world.targets().items():
        record.calls(f"numpy, {name}", call, lambda t=target: ((world.matrix(), t),))
        for start, source in world.targets().items():
            record.calls(
                f"from {start} to {name}", call, lambda s=source, t=target: ((world.put(s), t),)
            )
    record.calls("a target each", call, lambda: (
        (world.matrix(), None), (1.5, world.other), (np.float16(2), None),
        (world.put(), world.spread("x")), (world.put(world.first), world.first),
    ))
    record.calls("many", call, lambda: tuple((aligned((i,)), None) for i in range(40)))
    record.calls("a key", call, lambda: ((jax.random.key(1), world.other),))


@check("shard_args", entry_points=["shard_args"])
def shard_args(world: World, record: Recorder) -> None:
    """Arguments placed for an executable."""
    def call(*pairs: Any) -> Any:
        values, shardings = zip(*pairs, strict=True)
        count = len(values)
        return private.pxla.shard_args(
            list(shardings), [None] * count, [private.REUSE_INPUT] * count, list(values)
        )

    targets = {
        "one device": world.single(), "another device": world.single(world.other),
        "rows": world.spread("x"), "replicated": world.spread(),
    }  # fmt: skip
    for name, target in targets.items():
        record.calls(f"numpy, {name}", call, lambda t=target: ((world.matrix(), t),))
        record.calls(f"array in place, {name}", call, lambda t=target: ((world.put(t), t),))
        record.calls(f"array elsewhere, {name}", call, lambda t=target: ((world.put(), t),))
        record.calls(
            f"several, {name}", call,
            lambda t=target: ((world.matrix(), t), (world.put(t), t), (world.matrix("int32"), t)),
        )


@check("batched_device_put", entry_points=["batched_device_put"])
def batched_device_put(world: World, record: Recorder) -> None:
    """One array made of one piece of host data for each device."""
    def call(*pieces: Any) -> Any:
        shape = (2 * len(pieces), *pieces[0].shape[1:])
        aval = private.ShapedArray(shape, pieces[0].dtype)
        return private.pxla.batched_device_put(
            aval, world.spread("x"), list(pieces), world.devices
        )

    for dtype in ("float32", "int8"):
        record.calls(
            dtype, call,
            lambda dtype=dtype: tuple(aligned((2, 4), dtype) for _ in world.devices),
        )
    data = world.matrix()
    record.calls(
        "make_array_from_callback", jax.make_array_from_callback,
        lambda: (data.shape, world.spread("x"), lambda index: data[index]),
    )
