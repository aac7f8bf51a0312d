"""Checks of what an argument or the configuration may hide: the traps of values and contexts.

The numbers are those of `TRAPS`, the list of what a guard must not overlook.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarshal._jax import private
from jaxmarshal.selfcheck.calls import compiled
from jaxmarshal.selfcheck.registry import Recorder, check
from jaxmarshal.selfcheck.world import World, aligned

#: What is easily overlooked, by number.
TRAPS: dict[int, str] = {
    1: "memory layout of the data",
    2: "addresses are used again",
    3: "equal avals are different objects",
    4: "the configuration a call runs under",
    5: "calls and arguments that are not plain",
    6: "committed or not",
    7: "memory shared with numpy",
    8: "Python scalars",
    9: "identity of results",
    10: "errors",
    11: "caches, and what they keep alive",
    12: "a function is more than a call",
    13: "threads",
    14: "importing and installing touch nothing",
}


class Pickled:
    """A leaf that JAX does not know, with a stable name."""

    def __repr__(self) -> str:
        return "an object"


class Subclass(np.ndarray):
    """A subclass of ndarray."""


@check("trap 1: memory layout", trap=1)
def memory_layout(world: World, record: Recorder) -> None:
    """Data that lie column after column where an executable expects rows, and the reverse."""
    columns = world.columns()
    rows = compiled(lambda x: x * 2, world.put())
    sources: dict[str, Callable[[], tuple]] = {
        "rows": lambda: (world.put(),),
        "columns by device_put": lambda: (jax.device_put(world.matrix(), columns),),
        "columns of an array": lambda: (jax.device_put(world.put(), columns),),
        "columns by jit": lambda: (jax.jit(lambda x: x, out_shardings=columns)(world.put()),),
        "columns by DLPack": lambda: (jax.dlpack.from_dlpack(aligned((4, world.rows)).T),),
        "rows again": lambda: (world.put(),),
    }
    if not record.can("DLPack of numpy arrays", sources["columns by DLPack"]):
        del sources["columns by DLPack"]
    for name, make in sources.items():
        record.calls(name, rows, make)
        record.calls(f"put {name}", jax.device_put, lambda make=make: (*make(), world.first))
    custom = jax.jit(lambda x: x + 1, in_shardings=columns).lower(world.put()).compile()
    record.calls("compiled for columns, given rows", custom, lambda: (world.put(world.first),))
    record.calls(
        "compiled for columns", custom, lambda: (jax.device_put(world.matrix(), columns),)
    )


@check("trap 3: avals", trap=3)
def avals(world: World, record: Recorder) -> None:
    """Avals that are equal, and avals that differ in the weak type alone."""
    run = compiled(lambda x: x + 1, jnp.ones((), "float32"))
    sources: dict[str, Callable[[], tuple]] = {
        "by numpy": lambda: (jax.device_put(np.float32(2)),),
        "by jit": lambda: (jax.jit(lambda: jnp.float32(3))(),),
        "by indexing": lambda: (jnp.arange(3, dtype="float32")[1],),
        "weak": lambda: (jax.device_put(2.0),),
        "integer": lambda: (jax.device_put(2),),
        "vector": lambda: (jnp.ones(1),),
    }
    for _ in range(2):
        for name, make in sources.items():
            record.calls(f"argument {name}", jax.device_put, make)
            record.calls(name, run, make)


def _contexts(world: World) -> dict[str, Callable[[], Any]]:
    """Configurations under which a call may do something else."""
    return {
        "plain": contextlib.nullcontext,
        "x64": lambda: jax.enable_x64(True),
        "another default device": lambda: jax.default_device(world.other),
        "transfer guard": lambda: jax.transfer_guard("disallow"),
        "explicit transfer guard": lambda: jax.transfer_guard("disallow_explicit"),
        "debug_nans": lambda: jax.debug_nans(True),
        "disable_jit": jax.disable_jit,
        "no execution": lambda: jax.no_execution(True),
        "matmul precision": lambda: jax.default_matmul_precision("highest"),
        "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
        "a mesh": lambda: jax.set_mesh(world.mesh),
    }


@check("trap 4: configuration", trap=4)
def configuration(world: World, record: Recorder) -> None:
    """The same calls under one configuration after the other, and under the first again."""
    run = compiled(lambda x, y: x / y, world.put(), world.put())
    zero = world.matrix() * 0
    contexts = _contexts(world)
    for name in [*contexts, "plain"]:
        calls = functools.partial(record.calls, context=contexts[name])
        for value in (1.5, 3, np.float64(2), np.float32("nan")):
            calls(f"device_put({value!r}), {name}", jax.device_put, lambda v=value: (v,))
        calls(f"device_put of float64, {name}", jax.device_put, lambda: (aligned((3,), "float64"),))
        calls(f"moved, {name}", jax.device_put, lambda: (world.put(), world.other))
        calls(f"compiled, {name}", run, lambda: (world.put(), world.put()))
        calls(f"compiled, numpy, {name}", run, lambda: (world.put(), world.matrix()))
        calls(f"not a number, {name}", run, lambda: (jax.device_put(zero), jax.device_put(zero)))


@check("trap 4: traces", trap=4)
def traces(world: World, record: Recorder) -> None:
    """Calls while a function is traced."""
    run = compiled(lambda x: x * 3, jnp.ones(2))
    transforms: dict[str, Callable[[Any], Any]] = {
        "jit": lambda f: jax.jit(f)(jnp.ones(2)),
        "grad": lambda f: jax.grad(lambda x: f(x).sum())(jnp.ones(2)),
        "vmap": lambda f: jax.vmap(f)(jnp.ones((3, 2))),
        "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.ones((3, 2)))[1],
    }
    bodies: dict[str, Callable[[Any], Any]] = {
        "of the argument": jax.device_put,
        "of a constant": lambda x: x + jax.device_put(aligned((2,))),
        "with a target": lambda x: jax.device_put(x, world.first),
        "of a compiled function": lambda x: x + run(jnp.ones(2)),
    }
    for name, transform in transforms.items():
        for kind, body in bodies.items():
            record.calls(f"{name}, {kind}", transform, lambda body=body: (body,))


@check("trap 5: arguments that are not plain", trap=5)
def odd_arguments(world: World, record: Recorder) -> None:
    """Keys, references, masked arrays, subclasses, foreign byte orders, strings, objects."""
    values: dict[str, Callable[[], Any]] = {
        "typed key": lambda: jax.random.key(1),
        "raw key": lambda: jax.random.PRNGKey(1),
        "float0": lambda: np.zeros((2,), jax.dtypes.float0),
        "masked array": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
        "subclass": lambda: aligned((3,)).view(Subclass),
        "big-endian": lambda: aligned((3,), ">f4"),
        "objects": lambda: np.array([1, None], dtype=object),
        "string array": lambda: np.array(["a", "b"]),
        "dates": lambda: np.array(["2020-01-01"], "M8[D]"),
        "read-only": lambda: np.broadcast_to(np.float32(1), (3,)),
        "long double": lambda: np.ones(2, np.longdouble),
        "string": lambda: "text",
        "reference": lambda: jax.new_ref(jnp.ones(3)),
        "shape struct": lambda: jax.ShapeDtypeStruct((3,), "float32"),
        "unknown object": Pickled,
    }
    run = compiled(lambda x: x, jnp.ones(3))
    for name, make in values.items():
        record.calls(f"device_put of {name}", jax.device_put, lambda make=make: (make(),))
        record.calls(
            f"device_put of {name} to a device", jax.device_put,
            lambda make=make: ([make()], world.first),
        )
        record.calls(f"compiled with {name}", run, lambda make=make: (make(),))


@check("trap 5: calls that are not plain", trap=5)
def odd_calls(world: World, record: Recorder) -> None:
    """Donation, pruned and constant arguments, callbacks, effects, options."""
    run = compiled(lambda x: x + 1, world.put(), donate_argnums=0)
    record.calls("donated", run, lambda: (world.put(),))
    gone = world.put()
    run(gone)
    record.calls("donated before", run, lambda: (gone,))
    record.calls("deleted, device_put", jax.device_put, lambda: (gone, world.other))

    constant = world.put()
    run = compiled(lambda x, unused: x + constant, world.put(), jnp.ones(3))
    record.calls("unused argument, constant", run, lambda: (world.put(), jnp.ones(3)))
    record.calls("wrong unused argument", run, lambda: (world.put(), jnp.ones(4)))

    for option in ({"donate": True}, {"may_alias": False}, {"may_alias": True}):
        put = functools.partial(jax.device_put, **option)
        record.calls(f"device_put, {option}", put, lambda: (world.put(), world.first))
        record.calls(f"device_put of numpy, {option}", put, lambda: (world.matrix(), world.first))
    shape = jax.ShapeDtypeStruct((2,), "float32")

    def asking(x: Any) -> Any:
        return jax.pure_callback(lambda v: np.asarray(v) * 2, shape, x)

    def attempt() -> Any:
        try:
            return jax.block_until_ready(jax.jit(asking)(jnp.ones(2)))
        except Exception:
            if private.runtime_tokens is not None:
                private.runtime_tokens.clear()    # JAX would raise it again as the process ends
            raise

    if record.can("callbacks of Python", attempt):
        _callbacks(record, asking)


def _callbacks(record: Recorder, asking: Callable[[Any], Any]) -> None:
    """Executables that call Python, without a result and with one."""
    heard: list[float] = []

    def listening(x: Any) -> Any:
        jax.debug.callback(lambda v: heard.append(float(v)), x[0])
        return x + 1

    run = compiled(listening, jnp.ones(2))
    record.calls("callback", run, lambda: (jnp.arange(2.0) + len(heard),))
    jax.effects_barrier()
    record.fact("what the callback heard", sorted(heard))

    record.calls("pure callback", compiled(asking, jnp.ones(2)), lambda: (jnp.ones(2),))


@check("trap 6: committed or not", trap=6)
def committed(world: World, record: Recorder) -> None:
    """Arrays committed to a device or not, mixed in one call."""
    places = {"uncommitted": None, "first": world.first, "other": world.other}
    run = compiled(lambda x, y: x + y, world.put(), world.put())
    function = jax.jit(lambda x, y: x - y)
    for one, x in places.items():
        for two, y in places.items():
            make = functools.partial(lambda x, y: (world.put(x), world.put(y)), x, y)
            record.calls(f"compiled, {one} and {two}", run, make)
            record.calls(f"jit, {one} and {two}", function, make)
            record.calls(f"eager, {one} and {two}", lambda x, y: x * y, make)


@check("trap 7: memory shared with numpy", trap=7)
def shared_memory(world: World, record: Recorder) -> None:
    """What an array holds after the numpy array it was made of has been written to."""
    def write_after(offset: int, target: Any) -> Any:
        data = aligned((64,), "float32", offset)
        array = jax.block_until_ready(jax.device_put(data, target))
        data[...] = -1
        return np.asarray(array).tolist()

    for offset in (0, 4, 16, 32):
        for target in (None, world.first):
            for turn in range(3):
                record.fact(f"{offset} bytes off, call {turn + 1}", write_after(offset, target))


@check("trap 8: Python scalars", trap=8)
def python_scalars(world: World, record: Recorder) -> None:
    """Weak types, integers out of range, values that do not fit."""
    jax.clear_caches()    # JAX warns of some values the first time only
    integers = (0, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 2**70)
    for value in (*integers, 1e300, -0.0, 1e-46, True, 1j):
        record.calls(f"device_put({value!r})", jax.device_put, lambda v=value: (v,))
        record.calls(f"add({value!r})", lambda v: jnp.ones(2) + v, lambda v=value: (v,))
    for scalar in (np.int64(2**40), np.float64(1e300), np.uint64(2**63), np.float16(3)):
        record.calls(f"device_put({scalar!r})", jax.device_put, lambda v=scalar: (v,))


@check("trap 9: identity of results", trap=9)
def identity(world: World, record: Recorder) -> None:
    """When the result is the argument itself, and when it is not."""
    for name, source in world.targets().items():
        x = world.put(source)
        for turn in range(3):
            record.fact(f"{name}, call {turn + 1}", [
                jax.device_put(x) is x, jax.device_put([x])[0] is x,
                jnp.asarray(x) is x, *[jax.device_put(x, t) is x for t in world.targets().values()],
            ])  # fmt: skip


@check("trap 10: errors", trap=10)
def errors(world: World, record: Recorder) -> None:
    """Kind and text of errors, and that calls after them are right."""
    spread = world.spread("x")
    bad: dict[str, Callable[[], tuple]] = {
        "an object": lambda: (Pickled(),),
        "an object in a tree": lambda: ({"a": [1.0, Pickled()]}, world.first),
        "a bad target": lambda: (world.matrix(), "nowhere"),
        "too few dimensions": lambda: (1.5, spread),
        "not divisible": lambda: (aligned((world.rows + 1, 4)), spread),
        "too few targets": lambda: ([1.0, 2.0], [world.first]),
        "mixed keys": lambda: ({"a": 1, 2: 3},),
    }
    for name, make in bad.items():
        record.calls(f"device_put, {name}", jax.device_put, make)
        record.calls(f"device_put after {name}", jax.device_put, lambda: (world.matrix(), spread))
    run = compiled(lambda x, y: x + y, world.put(), jnp.ones(4))
    good = lambda: (world.put(), jnp.ones(4))  # noqa: E731
    for name, make in {
        "too few": lambda: (world.put(),),
        "too many": lambda: (world.put(), jnp.ones(4), 1),
        "another shape": lambda: (world.put(), jnp.ones(5)),
        "another dtype": lambda: (world.put(), jnp.ones(4, "int32")),
        "a tree": lambda: ([world.put()], jnp.ones(4)),
        "an object": lambda: (world.put(), Pickled()),
        "None": lambda: (None, jnp.ones(4)),
    }.items():
        record.calls("a good call", run, good)
        record.calls(f"compiled, {name}", run, make)
    record.calls("a good call", run, good)
