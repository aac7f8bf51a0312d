"""Checks of what runs computations."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem  # CPython 3.13's `x[0]` misses what changes after 1000 changes
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarshal.selfcheck.registry import Recorder, check
from jaxmarshal.selfcheck.world import World, aligned


def compiled(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A function compiled ahead of time for these arguments."""
    return jax.jit(function, **options).lower(*args).compile()


def _several(world: World) -> dict[str, Any]:
    """Ways to place an argument that its executable is then compiled for."""
    targets = world.targets()
    del targets["another device"], targets["a single-device sharding"]
    return targets


@check("compiled_call: placement", entry_points=["compiled_call"])
def placement(world: World, record: Recorder) -> None:
    """One argument, on one device and on all, in its place and elsewhere."""
    for name, target in _several(world).items():
        run = compiled(lambda x: x * 2 + 1, world.put(target))
        record.calls(f"for {name}", run, lambda target=target: (world.put(target),))
        for elsewhere, other in world.targets().items():
            record.calls(
                f"for {name}, given {elsewhere}", run, lambda other=other: (world.put(other),)
            )
        record.calls(f"for {name}, given numpy", run, lambda: (world.matrix(),))


@check("compiled_call: trees", entry_points=["compiled_call"])
def trees(world: World, record: Recorder) -> None:
    """Containers, keyword arguments, many leaves, scalars and keys among them."""
    def model() -> dict[str, Any]:
        return {
            "w": [world.put(), world.put()], "b": (jnp.float32(1), None), "n": {"k": jnp.ones(3)}
        }  # fmt: skip

    run = compiled(lambda tree: jax.tree.map(lambda x: x + 1, tree), model())
    record.calls("a model", run, lambda: (model(),))
    record.calls("another structure", run, lambda: ({"w": [1.0]},))

    run = jax.jit(lambda x, *, y: (x, y * 2)).lower(world.put(), y=jnp.ones(3)).compile()
    record.calls("by keyword", lambda x, y: run(x, y=y), lambda: (world.put(), jnp.ones(3)))

    many = [jnp.ones(2) * i for i in range(90)]
    run = compiled(lambda xs, n: [x + n for x in xs], many, 2.0)
    record.calls("ninety arrays and a scalar", run, lambda: (list(many), 3.0))
    record.calls("sixty arrays, numpy", run, lambda: ([np.ones(2, "f4")] * 60, 3.0))

    run = compiled(lambda key, x: (jax.random.fold_in(key, 1), x), jax.random.key(0), jnp.ones(2))
    record.calls("a key", run, lambda: (jax.random.key(7), jnp.ones(2)))
    record.calls("a key of two", run, lambda: (jax.random.split(jax.random.key(7)), jnp.ones(2)))


def _flat_calls(world: World, record: Recorder, way: Callable[[Any], Callable[..., Any]]) -> None:
    """Flat arguments, by one of the ways into an executable."""
    for name, target in _several(world).items():
        args = (world.put(target), world.put(target))
        run = way(compiled(lambda x, y: (x + y, x * 2), *args))
        record.calls(
            f"for {name}", run, lambda target=target: (world.put(target), world.put(target))
        )
        record.calls(
            f"for {name}, given numpy", run, lambda t=target: (world.put(t), world.matrix())
        )
    run = way(compiled(lambda x: x + 1, jnp.ones(3)))
    record.calls("another shape", run, lambda: (aligned((2, 2)),))
    many = [jnp.ones(2) * i for i in range(30)]
    run = way(compiled(lambda *xs: [x + 1 for x in xs], *many))
    record.calls("thirty arrays", run, lambda: tuple(many))


@check("mesh_executable_call", entry_points=["mesh_executable_call"])
def mesh_executable_call(world: World, record: Recorder) -> None:
    """An executable called with flat arguments, which it checks."""
    _flat_calls(world, record, lambda run: run._executable.call)


@check("execute_replicated_call", entry_points=["execute_replicated_call"])
def execute_replicated_call(world: World, record: Recorder) -> None:
    """An executable called with flat arguments, as JAX calls it internally."""
    # Without the check a wrong shape is undefined, so only calls that fit are made.
    for name, target in _several(world).items():
        run = compiled(lambda x, y: (x + y, x * 2), world.put(target), world.put(target))
        record.calls(
            f"for {name}", run._executable.unsafe_call,
            lambda target=target: (world.put(target), world.put(target)),
        )


@check("results_handler_call", entry_points=["results_handler_call"])
def results_handler_call(world: World, record: Recorder) -> None:
    """Results made of their buffers, one for each device."""
    for name, target in _several(world).items():
        run = compiled(lambda x: (x, x.sum()), world.put(target))
        handler = run._executable.unsafe_call.out_handler

        def call(*outputs: Any, handler: Any = handler) -> Any:
            return handler([[shard.data for shard in x.addressable_shards] for x in outputs])

        record.calls(name, call, lambda run=run, target=target: run(world.put(target)))
        record.calls(f"too few, {name}", call, lambda run=run, t=target: run(world.put(t))[:1])


@check("jit", entry_points=["jit"])
def jit(world: World, record: Recorder) -> None:
    """Calls of jitted functions: placements, static and donated arguments, keys, errors."""
    for name, target in world.targets().items():
        function = jax.jit(lambda x, n: {"y": x * n, "sum": x.sum()})
        record.calls(name, function, lambda target=target: (world.put(target), 2.0))
    record.calls("numpy", function, lambda: (world.matrix(), np.int32(3)))
    record.calls("two devices at once", function, lambda: (world.put(world.first),
                                                           world.put(world.other)))
    record.calls("a wrong argument", function, lambda: ("text", 1))
    static = jax.jit(lambda x, n: x * n, static_argnums=1)
    record.calls("static", static, lambda: (world.put(), 3))
    record.calls("static, not hashable", static, lambda: (world.put(), []))
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    record.calls("donated", donating, lambda: (world.put(),))
    record.calls("a key", jax.jit(jax.random.split), lambda: (jax.random.key(3),))
    record.calls("a model", jax.jit(lambda t: jax.tree.map(jnp.sin, t)), lambda: (
        {"w": [world.put(), 1.0], "b": (None, world.matrix())},
    ))


@check(
    "eager operations",
    entry_points=[
        "bind",
        "xla_primitive_callable",
        "asarray",
        "array",
        "zeros",
        "ones",
        "full",
        "getitem",
        "functions",
    ],
)
def eager(world: World, record: Recorder) -> None:
    """Operations outside of jit: arithmetic, creation, indexing, conversions."""
    operations: dict[str, Callable[[Any], Any]] = {
        "lax.add": lambda x: jax.lax.add(x, x),
        "add a scalar": lambda x: x + 1,
        "compare": lambda x: x > 2,
        "matmul": lambda x: x @ x.T,
        "first row": lambda x: getitem(x, 0),
        "slice": lambda x: getitem(x, (slice(1, None), slice(None, None, 2))),
        "mask": lambda x: x[np.arange(x.shape[0]) % 2 == 0],
        "set": lambda x: x.at[0].set(7),
        "iterate": list,
        "sum": jnp.sum,
        "reshape": lambda x: x.reshape(-1),
        "astype": lambda x: x.astype("int32"),
        "asarray of an array": jnp.asarray,
        "array of an array": jnp.array,
        "float of an element": lambda x: float(x[0, 0]),
        "wrong shapes": lambda x: jax.lax.add(x, x[0]),
        "wrong dtypes": lambda x: jax.lax.add(x, x.astype("int32")),
    }
    for name, target in _several(world).items():
        for operation, function in operations.items():
            record.calls(f"{operation}, {name}", function, lambda t=target: (world.put(t),))
    record.calls("asarray of numpy", jnp.asarray, lambda: (world.matrix(),))
    record.calls("array of numpy", jnp.array, lambda: (world.matrix(),))
    record.calls("asarray of a list", jnp.asarray, lambda: ([1, 2.5],))
    record.calls("zeros", jnp.zeros, lambda: (3,))
    record.calls("ones", jnp.ones, lambda: ((2, 3), np.int32))
    record.calls("full", jnp.full, lambda: ((2,), 7))
    key = jax.random.key(0)
    functions: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
        "arange": (lambda n: jnp.arange(n), lambda: (5,)),
        "normal": (lambda key: jax.random.normal(key, (3,)), lambda: (key,)),
        "split": (lambda key: jax.random.split(key), lambda: (key,)),
        "relu": (lambda x: jax.nn.relu(x), lambda: (world.put(),)),
        "stack": (lambda x: jnp.stack([x, x]), lambda: (world.put(),)),
        "bind": (lambda x: jax.lax.neg_p.bind(x), lambda: (world.put(),)),
    }
    for name, (function, make) in functions.items():
        record.calls(name, function, make)
