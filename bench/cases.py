"""The cases of the benchmarks, defined once: reference, jaxmarshal and floor of the same work.

The *floor* is the cheapest single jaxlib call that does the work, with everything prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxmarshal import _execute, _reference, api

P = PartitionSpec
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
      name: what is measured.
      entry: the entry point in `jaxmarshal.stats()`.
      reference: the call through plain JAX.
      jaxmarshal: the same call through jaxmarshal.
      floor: the same work in prepared jaxlib calls, or None.
      least_speedup: reference / jaxmarshal has to be at least this, or None.
      most_over_floor: jaxmarshal / floor may be at most this, or None.
      devices: how many the work is spread over.
      hits: does the call take the fast path? A refused call has to miss.
    """

    name: str
    entry: str
    reference: Call
    jaxmarshal: Call
    floor: Call | None = None
    least_speedup: float | None = None
    most_over_floor: float | None = None
    devices: int = 1
    hits: bool = True


def device_put_cases() -> Iterator[Case]:
    """`jax.device_put` of host data and of arrays."""
    devices = jax.devices()
    x = np.arange(8, dtype=np.float32)
    wide = np.ones((64, 8), np.float32)
    array = jax.device_put(x)
    committed = jax.device_put(x, devices[0])
    aval, sharding = array.aval, array.sharding
    put, first = _reference.batched_device_put, devices[:1]
    mesh = Mesh(np.asarray(devices), ("x",))
    sharded, replicated = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

    # partial() calls straight from C, so that no side pays for a Python frame of its own.
    def case(name: str, args: tuple, floor: Call | None = None, **bars: Any) -> Case:
        return Case(
            f"device_put {name}", "device_put", partial(_reference.device_put, *args),
            partial(api.device_put, *args), floor, **bars,
        )  # fmt: skip

    def one() -> Any:
        return put(aval, sharding, [x], first, False)

    yield case(
        "np f32[8]", (x,), partial(put, aval, sharding, [x], first, False),
        least_speedup=7, most_over_floor=1.25,
    )  # fmt: skip
    yield case(
        "np f32[8] to a device", (x, devices[0]),
        partial(put, aval, sharding, [x], first, True), least_speedup=7, most_over_floor=1.25,
    )  # fmt: skip
    yield case("np f64[8], x64 off", (x.astype(np.float64),))
    yield case("Python float", (1.0,), least_speedup=5)
    yield case("numpy scalar", (np.float32(1),), least_speedup=5)
    nine = {f"k{i}": x for i in range(9)}
    yield case(
        "dict of 9 np", (nine,), lambda: [one() for _ in range(9)],
        least_speedup=4.2, most_over_floor=1.25,
    )  # fmt: skip
    yield case(
        "list of 100 np", ([x] * 100,), lambda: [one() for _ in range(100)],
        least_speedup=4, most_over_floor=1.15,
    )  # fmt: skip
    yield case("list of 100 arrays", ([array] * 100,), least_speedup=50)
    yield case("committed array to its device", (committed, devices[0]), least_speedup=4)
    for name, target in (("sharded", sharded), ("replicated", replicated)):
        done = jax.device_put(wide, target)
        rows = [wide[i * 8 : i * 8 + 8] for i in range(8)]
        shards = rows if name == "sharded" else [wide] * 8
        yield case(
            f"np f32[64,8] {name} over 8", (wide, target),
            partial(put, done.aval, target, shards, devices, True),
            least_speedup=2.2, devices=8,
        )  # fmt: skip
    yield Case(
        "device_put refused (may_alias=False)", "device_put",
        partial(_reference.device_put, x, may_alias=False),
        partial(api.device_put, x, may_alias=False), least_speedup=1 / 1.03, hits=False,
    )  # fmt: skip


def shard_args_cases() -> Iterator[Case]:
    """`pxla.shard_args` with one argument."""
    device = jax.devices()[0]
    sharding = SingleDeviceSharding(device)
    x = np.arange(8, dtype=np.float32)
    array = jax.device_put(x, sharding)
    for name, value, floor, bars in (
        (
            "np", x,
            partial(_reference.batched_device_put, array.aval, sharding, [x], [device], True),
            {"least_speedup": 2.2, "most_over_floor": 1.3},
        ),
        ("array already there", array, None, {"least_speedup": 4}),
    ):  # fmt: skip
        args = ([sharding], [None], [_reference.REUSE_INPUT], [value])
        yield Case(
            f"shard_args {name}", "shard_args", partial(_reference.shard_args, *args),
            partial(api.shard_args, *args), floor, **bars,
        )  # fmt: skip


def _compiled(count: int, sharding: Any = None) -> tuple[Any, list[Any], Call]:
    """An executable of `count` leaves that all go to it, its arguments, and the floor."""
    data = np.arange(16, dtype=np.float32)
    args = [jax.device_put(data, sharding) for _ in range(count)]
    compiled = jax.jit(lambda xs: [xs[0] + 1], keep_unused=True).lower(args).compile()
    loaded = compiled._executable.unsafe_call
    execute, handlers = loaded.xla_executable.execute_sharded, loaded.out_handler.handlers
    return compiled, args, lambda: execute(args).consume_with_handlers(handlers)


def execute_cases() -> Iterator[Case]:
    """Compiled executables: ahead of time, and the two flat ways into them."""
    bars: dict[int, tuple[float | None, float | None]] = {
        1: (1.05, 1.2), 10: (None, None), 100: (1.75, 1.25), 1000: (1.95, 1.2),
    }  # fmt: skip
    for count, (speedup, over_floor) in bars.items():
        compiled, args, floor = _compiled(count)
        yield Case(
            f"ahead of time, {count} leaves", "compiled_call",
            partial(_reference.compiled_call, compiled, args),
            partial(_execute.compiled_call, compiled, args), floor, speedup, over_floor,
        )  # fmt: skip
    mesh = Mesh(np.asarray(jax.devices()), ("x",))
    for count in (1, 10, 100):
        compiled, args, floor = _compiled(count, NamedSharding(mesh, P("x")))
        yield Case(
            f"ahead of time, {count} leaves on 8 devices", "compiled_call",
            partial(_reference.compiled_call, compiled, args),
            partial(_execute.compiled_call, compiled, args), floor, 1.0, devices=8,
        )  # fmt: skip
    compiled, args, floor = _compiled(1)
    executable = compiled._executable
    loaded = executable.unsafe_call
    yield Case(
        "unsafe_call, one array", "execute_replicated_call",
        partial(_reference.execute_replicated_call, loaded, *args),
        partial(_execute.execute_replicated_call, loaded, *args), floor, 2.5,
    )  # fmt: skip
    yield Case(
        "MeshExecutable.call, one array", "mesh_executable_call",
        partial(_reference.mesh_executable_call, executable, *args),
        partial(_execute.mesh_executable_call, executable, *args), floor, 3.2,
    )  # fmt: skip


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "device_put": device_put_cases,
    "shard_args": shard_args_cases,
    "execute": execute_cases,
}
