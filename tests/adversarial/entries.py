"""Every entry point, as it is called again and again while one thing changes.

An entry is a function that makes a `Subject`: calls with good arguments, and calls with arguments
that show what a change does (not a number, 64 bits, another device, host data).
"""

from __future__ import annotations

import functools
import importlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import Call, Deep, Subject, happened
from jax import lax
from jax._src import core, dispatch, dtypes
from jax._src.interpreters import pxla
from jax._src.lib import xla_client
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from old_dispatch import compiled as old_compiled
from support import aligned

import jaxmarshal
from jaxmarshal import fronts
from jaxmarshal._core.entries import v0_3
from jaxmarshal.compat import dispatch_v0_3
from jaxmarshal.fronts import filtered


@dataclass(frozen=True)
class Entry:
    """How to make the subject of an entry point.

    Attributes:
      name: unique.
      make: makes it, given what `early` made.
      early: makes what is there before jaxmarshal is installed.
    """

    name: str
    make: Callable[..., Subject]
    early: Callable[[], Any]


ENTRIES: dict[str, Entry] = {}

#: Entry points of libraries that cannot be called here, and why.
ABSENT: dict[str, str] = {}


def entry(name: str, early: Callable[[], Any] = lambda: None) -> Callable:
    """Register the decorated function under a name."""

    def register(make: Callable[..., Subject]) -> Callable[..., Subject]:
        ENTRIES[name] = Entry(name, make, early)
        return make

    return register


def front_entry(name: str, early: Callable[[], Any] = lambda: None) -> Callable:
    """The same for the front of a library, where the library is there."""
    (front,) = [front for front in fronts.FRONTS if front.name == name]
    reason = fronts.why_inactive(front)
    if reason is None:
        importlib.import_module(front.library)
        return entry(name, early)
    ABSENT[name] = reason
    return lambda make: make


# --- Arguments -----------------------------------------------------------------------------------


def good() -> jax.Array:
    """Eight numbers on the default device."""
    return jax.device_put(aligned(8))


def bad() -> jax.Array:
    """Eight numbers without a logarithm."""
    return jax.device_put(-aligned(8))


def wide() -> np.ndarray:
    """Host data of 64 bits."""
    return aligned(8, np.float64)


def spread() -> NamedSharding:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    return NamedSharding(mesh, PartitionSpec("x"))


class Static:
    """A static argument that says when it is hashed and compared."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        happened("hash")
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        happened("eq")
        return isinstance(other, Static) and self.value == other.value

    def __repr__(self) -> str:
        return f"Static({self.value})"


class Reverse(str):
    """A key that comes after those that a string comes before."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str(self) > str(other)


@jax.tree_util.register_pytree_node_class
class Node:
    """A node that says when it is taken apart and put together."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple:
        happened("flatten")
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Node:
        happened("unflatten")
        return cls(*children)


# --- Placing -------------------------------------------------------------------------------------


@entry("device_put")
def device_put(_: Any) -> Subject:
    """Host data, scalars, trees and arrays, with and without a target."""
    first, other, everywhere = jax.devices()[0], jax.devices()[5], spread()
    host, host64 = aligned(8), wide()
    # Whether a result keeps JAX's conversion alive depends on where numpy found memory for it.
    conversion = dtypes.canonicalize_value(host64)
    put = jax.device_put
    return Subject(
        [
            Call("a host array", put, lambda: (aligned(8),)),
            Call("64 bits", put, lambda: (wide(),)),
            Deep("the same array", put, lambda: (host,), same=True),
            Call("the same array of 64 bits", put, lambda: (host64, everywhere), same=True),
            Deep("too large for 32 bits", put, lambda: (np.full(8, 1e300), first)),
            Call("a float", put, lambda: (1.5,)),
            Deep("an int", put, lambda: (3, first)),
            Deep("a large int", put, lambda: (2**40,)),
            Deep("a numpy scalar", put, lambda: (np.float64(2),)),
            Deep("a tree", put, lambda: ({"a": [aligned(8), 1.0], "b": (aligned(3, np.int64),)},)),
            Deep("to a device", put, lambda: (aligned(8), other)),
            Deep("to a sharding", put, lambda: (aligned(8), SingleDeviceSharding(other))),
            Call("to eight devices", put, lambda: (aligned(8), everywhere)),
            Deep("an array", put, lambda: (good(),)),
            Deep("an array that is there", put, lambda: (put(aligned(8), first), first)),
            Call("an array, to another device", put, lambda: (good(), other)),
            Deep("an array, to eight devices", put, lambda: (good(), everywhere)),
            Deep("a node", put, lambda: (Node(aligned(8), 2.0),)),
            Deep("a typed key", put, lambda: (jax.random.key(3),)),
            Deep("33 dimensions", put, lambda: (np.ones((1,) * 33),)),
            Deep("a target that does not fit", put, lambda: ([], OrderedDict(a=first))),
            Deep("no arguments", put),
        ],
        ("device_put",),
        hosts=[host, host64],
        kept=conversion,
    )


@entry("batched_device_put_impl")
def batched_device_put_impl(_: Any) -> Subject:
    """The implementation of the primitive."""
    reuse = xla_client.ArrayCopySemantics.REUSE_INPUT
    host = aligned(8)

    def call(*xs: Any, target: Any = None) -> Any:
        return dispatch.batched_device_put_impl(
            *xs, devices=[target] * len(xs), srcs=[None] * len(xs),
            copy_semantics=[reuse] * len(xs),
        )  # fmt: skip

    return Subject(
        [
            Call("host arrays", call, lambda: (aligned(8), aligned(3))),
            Deep("the same array", call, lambda: (host,), same=True),
            Call("64 bits", call, lambda: (wide(),)),
            Deep("an array", call, lambda: (good(),)),
            Deep("to a device", call, lambda: (aligned(8),), kwargs=lambda: {
                "target": jax.devices()[2]}),
            Deep("scalars", call, lambda: (1.5, 3)),
        ],
        ("batched_device_put_impl",),
        hosts=[host],
    )  # fmt: skip


@entry("make_array_from_process_local_data")
def process_data(_: Any) -> Subject:
    """A batch of which each process has a part; here it is the only one."""
    host, host64 = aligned(8), wide()
    conversion = dtypes.canonicalize_value(host64)    # as above

    def call(x: Any, *shape: Any) -> Any:
        return jax.make_array_from_process_local_data(spread(), x, *shape)

    return Subject(
        [
            Call("a host array", call, lambda: (aligned(8),)),
            Deep("the same array", call, lambda: (host,), same=True),
            Call("64 bits", call, lambda: (wide(),)),
            Deep("the same 64 bits", call, lambda: (host64,), same=True),
            Call("a batch", call, lambda: ({"x": aligned(8), "y": [aligned((8, 2))]},)),
            Deep("a shape", call, lambda: (aligned(8), (8,))),
            Deep("an array", call, lambda: (good(),)),
            Deep("a number", call, lambda: (1.5,)),
        ],
        ("make_array_from_process_local_data",),
        hosts=[host, host64],
        kept=conversion,
    )


@entry("shard_args")
def shard_args(_: Any) -> Subject:
    """Flat arguments, one sharding each."""
    reuse = xla_client.ArrayCopySemantics.REUSE_INPUT
    host, everywhere = aligned(8), spread()
    single = SingleDeviceSharding(jax.devices()[0])

    def call(*args: Any, to: Any = single) -> Any:
        n = len(args)
        return pxla.shard_args([to] * n, [None] * n, [reuse] * n, list(args))

    return Subject(
        [
            Call("a host array", call, lambda: (aligned(8),)),
            Deep("the same array", call, lambda: (host,), same=True),
            Deep("host arrays", call, lambda: (aligned(8), aligned(3), good())),
            Call("64 bits", call, lambda: (wide(),)),
            Deep("scalars", call, lambda: (1.5, np.float32(2), 3)),
            Deep("eight devices", call, lambda: (aligned(8),), kwargs=lambda: {"to": everywhere}),
            Deep("an array", call, lambda: (good(),)),
            Call("an array, elsewhere", call, lambda: (good(),), kwargs=lambda: {
                "to": SingleDeviceSharding(jax.devices()[4])}),
        ],
        ("shard_args",),
        hosts=[host],
    )  # fmt: skip


@entry("batched_device_put")
def batched_device_put(_: Any) -> Subject:
    """What puts one array on the devices of a sharding."""
    single = SingleDeviceSharding(jax.devices()[0])
    everywhere = spread()
    host = aligned(8)

    def call(x: Any, to: Any = single, committed: bool = True) -> Any:
        devices = list(to.device_set) if to is single else jax.devices()
        aval = core.ShapedArray((8,), np.dtype("float32"))
        parts = [x] if to is single else [x[i : i + 1] for i in range(8)]
        return pxla.batched_device_put(aval, to, parts, devices, committed)

    return Subject(
        [
            Call("a host array", call, lambda: (aligned(8),)),
            Deep("not committed", call, lambda: (aligned(8), single, False)),
            Deep("the same array", call, lambda: (host,), same=True),
            Call("eight devices", call, lambda: (aligned(8), everywhere)),
            Deep("an array", call, lambda: (good(),)),
        ],
        ("batched_device_put",),
        hosts=[host],
    )


# --- Jitted functions ----------------------------------------------------------------------------


def _program(box: list[float]) -> Callable[..., Any]:
    """A function that depends on what it closes over; not a number for negative arguments."""

    def program(x: Any, n: Any = 1, **more: Any) -> Any:
        happened("traced")
        return jnp.log(x * box[0])

    return program


def _early() -> tuple[list[float], Any, Any]:
    """What it closes over, the function, and one that is jitted before all else."""
    box = [2.0]
    program = _program(box)
    return box, program, jax.jit(program)


def _relatives(program: Any, before: Any, function: Any) -> dict[str, Any]:
    """Jitted functions whose caches may be the same."""
    return {
        "itself": function,
        "another jit of it": jax.jit(program),
        "a jit of it with static arguments": jax.jit(program, static_argnums=1),
        "a jit of it that donates": jax.jit(program, donate_argnums=0),
        "a jit of it from before": before,
    }


@entry("jit", _early)
def jit(early: Any) -> Subject:
    """Positional arguments: one array, and a function without any."""
    box, program, before = early
    function = jax.jit(program)
    return Subject(
        [
            Call("good", function, lambda: (good(),)),
            Call("bad", function, lambda: (bad(),)),
            Call("from before", before, lambda: (good(),)),
            Deep("another shape", function, lambda: (jax.device_put(aligned(3)),)),
            Deep("committed", function, lambda: (jax.device_put(aligned(8), jax.devices()[0]),)),
            Deep("elsewhere", function, lambda: (jax.device_put(aligned(8), jax.devices()[3]),)),
            Deep("on eight devices", function, lambda: (jax.device_put(aligned(8), spread()),)),
            Deep("host data", function, lambda: (aligned(8),)),
            Deep("host data of 64 bits", function, lambda: (wide(),)),
            Deep("a number", function, lambda: (1.5,)),
            Deep("size of the cache", lambda: function._cache_size()),
        ],
        ("jit",),
        _relatives(program, before, function),
        box,
    )


@entry("jit, one call alone", _early)
def jit_alone(early: Any) -> Subject:
    """One call, bad, so that no other leads it another way."""
    box, program, before = early
    function = jax.jit(program)
    return Subject(
        [Call("bad", function, lambda: (bad(),))], ("jit",),
        _relatives(program, before, function), box,
    )  # fmt: skip


@entry("jit, by keyword", _early)
def jit_keyword(early: Any) -> Subject:
    """Arguments by name."""
    box, program, before = early
    function = jax.jit(program)
    return Subject(
        [
            Call("good", function, kwargs=lambda: {"x": good(), "extra": good()}),
            Deep("bad", function, lambda: (bad(),), kwargs=lambda: {"extra": good()}),
        ],
        ("jit",),
        _relatives(program, before, function),
        box,
    )


@entry("jit, static", _early)
def jit_static(early: Any) -> Subject:
    """Static arguments, of a type that says when it is asked."""
    box, program, before = early
    function = jax.jit(program, static_argnums=1, static_argnames="mode")
    return Subject(
        [
            Deep("a number", function, lambda: (good(), 3)),
            Call("an object", function, lambda: (good(), Static(2))),
            Deep("by name", function, lambda: (bad(), 3), kwargs=lambda: {"mode": "fast"}),
        ],
        ("jit",),
        _relatives(program, before, function),
        box,
    )


@entry("jit, donated", _early)
def jit_donated(early: Any) -> Subject:
    """Donated arguments, and the same array a second time."""
    box, program, before = early
    function = jax.jit(program, donate_argnums=0)
    gone, used = good(), good()
    gone.delete()
    jax.jit(lambda x: x + 1, donate_argnums=0)(used)
    return Subject(
        [
            Deep("good", function, lambda: (good(),)),
            Call("bad", function, lambda: (bad(),)),
            Deep("deleted", function, lambda: (gone,)),
            Deep("donated before", function, lambda: (used,)),
        ],
        ("jit",),
        _relatives(program, before, function),
        box,
    )


@entry("jit, nodes")
def jit_nodes(_: Any) -> Subject:
    """Dicts, lists, and nodes that say when they are taken apart."""
    box = [2.0]

    def program(tree: Any) -> Any:
        happened("traced")
        return jax.tree.map(lambda x: jnp.log(x * box[0]), tree)

    function = jax.jit(program)
    return Subject(
        [
            Call("a node", function, lambda: (Node(good(), good()),)),
            Deep("two kinds in turns", function, lambda: (Node(good()),)),
            Deep("a dict", function, lambda: ({"b": good(), "a": [bad(), None]},)),
            Deep("a node in a dict", function, lambda: ({"n": (Node(bad()), good())},)),
            Deep("keys", function, lambda: ({1: good(), 2: bad()},)),
            Deep("equal keys that have no order", function, lambda: (
                {1 + 0j: good(), 2 + 0j: bad()},)),
            Deep("keys in order", function, lambda: ({"a": good(), "b": bad()},)),
            Deep("keys with an order of their own", function, lambda: (
                {Reverse("a"): good(), Reverse("b"): bad()},)),
        ],
        ("jit",),
        {"itself": function, "another jit of it": jax.jit(program)},
        box,
    )


@entry("jit, host data")
def jit_host(_: Any) -> Subject:
    """Host arguments among many arrays."""
    host, host64 = aligned(8), wide()
    many = [good() for _ in range(45)]
    function = jax.jit(lambda x, *xs: (jnp.log(x), xs[0] + 1))
    return Subject(
        [
            Deep("a host array", function, lambda: (aligned(8), *many)),
            Deep("the same array", function, lambda: (host, *many), same=True),
            Call("the same array of 64 bits", function, lambda: (host64, *many), same=True),
            Deep("64 bits", function, lambda: (wide(), *many)),
            Deep("a number", function, lambda: (1.5, *many)),
            Deep("a numpy scalar", function, lambda: (np.float64(-2), *many)),
        ],
        ("jit",),
        hosts=[host, host64],
    )


@entry("jit, keys")
def jit_keys(_: Any) -> Subject:
    """Typed keys."""
    function = jax.jit(lambda key: jax.random.key_data(key) + 1)
    return Subject(
        [
            Call("a key", function, lambda: (jax.random.key(1),)),
            Deep("keys", function, lambda: (jax.random.split(jax.random.key(1), 3),)),
            Deep("another kind", function, lambda: (jax.random.key(1, impl="rbg"),)),
        ],
        ("jit",),
    )


def later(make: Callable[[], Any]) -> Callable[..., Any]:
    """What is compiled when it is first called."""
    made: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(make())
        return made[0](*args, **kwargs)

    return call


# --- Executables ---------------------------------------------------------------------------------


@entry("compiled_call")
def compiled_call(_: Any) -> Subject:
    """`Compiled.__call__`."""
    def program(x: Any, scale: Any = 1.0) -> Any:
        return {"log": jnp.log(x), "scaled": x * scale}

    many = [good() for _ in range(30)]
    host = aligned(8)
    def log(x: Any, *others: Any) -> Any:
        return jnp.log(x)

    run = later(lambda: jax.jit(program).lower(good()).compile())
    named = later(lambda: jax.jit(program).lower(good(), scale=good()).compile())
    gone = later(lambda: jax.jit(log, donate_argnums=0).lower(good()).compile())
    twice = later(lambda: jax.jit(jnp.add, donate_argnums=0).lower(good(), good()).compile())
    wider = later(lambda: jax.jit(log).lower(good(), many).compile())
    first = later(lambda: jax.jit(log).lower(good()).compile())
    return Subject(
        [
            Call("good", run, lambda: (good(),)),
            Call("bad", run, lambda: (bad(),)),
            Call("bad alone", first, lambda: (bad(),)),
            Deep("by keyword", named, lambda: (good(),), kwargs=lambda: {"scale": good()}),
            Deep("donated", gone, lambda: (good(),)),
            Deep("another shape", run, lambda: (jax.device_put(aligned(3)),)),
            Deep("elsewhere", run, lambda: (jax.device_put(aligned(8), jax.devices()[3]),)),
            Deep("host data", run, lambda: (aligned(8),)),
            Deep("host data among many", wider, lambda: (aligned(8), many)),
            Deep("the same host data", wider, lambda: (host, many), same=True),
            Deep("host data of 64 bits", wider, lambda: (wide(), many)),
            Deep("host data that overflow", run, lambda: (np.full(8, 1e300),)),
            Deep("host data that overflow, among many", wider,
                 lambda: (np.full(8, 1e300), many)),
            Deep("two, one donated", twice, lambda: (good(), good())),
            Deep("the same donated twice", twice, lambda: (good(),) * 2),
        ],
        ("compiled_call",),
        hosts=[host],
    )


def _flat(way: Callable[[Any], Callable[..., Any]], checked: bool) -> list[Call]:
    """Flat calls, by one of the ways into an executable."""
    def log(x: Any, *others: Any) -> Any:
        return [jnp.log(x), *others]

    everywhere = spread()
    place = jax.device_put(aligned(8), everywhere)
    run = later(lambda: way(jax.jit(log).lower(good()).compile()))
    alone = later(lambda: way(jax.jit(log).lower(good()).compile()))
    eight = later(lambda: way(jax.jit(log).lower(place).compile()))
    several = later(lambda: way(jax.jit(log).lower(*[good()] * 30).compile()))
    many = [good() for _ in range(29)]
    calls = [
        Deep("good", run, lambda: (good(),)),
        Call("bad", run, lambda: (bad(),)),
        Call("bad alone", alone, lambda: (bad(),)),
        Deep("eight devices", eight, lambda: (jax.device_put(aligned(8), everywhere),)),
        Deep("host data", run, lambda: (aligned(8),)),
        Deep("host data among many", several, lambda: (aligned(8), *many)),
    ]
    if checked:
        calls.append(Deep("another shape", run, lambda: (jax.device_put(aligned(3)),)))
        other = jax.devices()[3]
        calls.append(Deep("elsewhere", run, lambda: (jax.device_put(aligned(8), other),)))
    return calls


@entry("mesh_executable_call")
def mesh_executable_call(_: Any) -> Subject:
    """`MeshExecutable.call`."""
    calls = _flat(lambda run: run._executable.call, checked=True)
    return Subject(calls, ("mesh_executable_call",))


@entry("execute_replicated_call")
def execute_replicated_call(_: Any) -> Subject:
    """`MeshExecutable.unsafe_call`, an `ExecuteReplicated`."""
    calls = _flat(lambda run: run._executable.unsafe_call, checked=False)
    return Subject(calls, ("execute_replicated_call",))


@entry("results_handler_call")
def results_handler_call(_: Any) -> Subject:
    """Results made of their buffers."""
    run = jax.jit(lambda x: (x, x * 2)).lower(good()).compile()
    handler = run._executable.unsafe_call.out_handler
    return Subject(
        [
            Call("two", lambda *xs: handler([[x] for x in xs]), lambda: (good(), good())),
            Deep("one", lambda *xs: handler([[x] for x in xs]), lambda: (good(),)),
        ],
        ("results_handler_call",),
    )


# --- Operations one by one -----------------------------------------------------------------------


@entry("bind")
def bind(_: Any) -> Subject:
    """Primitives, with arrays and with host data."""
    host = aligned(8)
    return Subject(
        [
            Call("lax.add", lax.add, lambda: (good(), good())),
            Call("lax.log", lax.log, lambda: (bad(),)),
            Deep("lax.neg of host data", lax.neg, lambda: (aligned(8),)),
            Deep("lax.neg of the same host data", lax.neg, lambda: (host,), same=True),
            Call("lax.neg of 64 bits", lax.neg, lambda: (np.full(8, 2.0),)),
            Deep("lax.neg of what is too large", lax.neg, lambda: (np.full(1, 1e300),)),
            Deep("neg_p.bind", lax.neg_p.bind, lambda: (good(),), kwargs=lambda: {}),
            Deep("a number", lax.mul, lambda: (good(), 2.0)),
            Call("an operator", lambda x: x + 1.5, lambda: (good(),)),
            Call("ranks", jnp.add, lambda: (good(), jnp.ones((2, 8)))),
            Call("dtypes", lambda x: x * jnp.ones(8, "int32"), lambda: (good(),)),
            Call("dot", lax.dot, lambda: (jnp.ones((2, 3)), jnp.ones((3, 2)))),
            Deep("convert", lax.convert_element_type, lambda: (good(), np.int32)),
            Deep("two devices", lax.add, lambda: (
                jax.device_put(aligned(8), jax.devices()[1]),
                jax.device_put(aligned(8), jax.devices()[2]))),
        ],
        ("bind",),
        hosts=[host],
    )  # fmt: skip


@entry("jax.numpy")
def jax_numpy(_: Any) -> Subject:
    """Functions that JAX jitted when it was imported."""
    return Subject(
        [
            Deep("sin", jnp.sin, lambda: (good(),)),
            Deep("log", jnp.log, lambda: (bad(),)),
            Call("divide", jnp.divide, lambda: (good(), 0.0)),
            Deep("sum", jnp.sum, lambda: (good(),)),
            Deep("where", jnp.where, lambda: (good() > 2, good(), 0)),
            Deep("dot", jnp.dot, lambda: (good(), good())),
            Call("take", jnp.take, lambda: (good(), np.array([1, 100]))),
        ],
        (),
    )


def _of_host(function: Callable[..., Any], name: str) -> Subject:
    """What makes arrays of host data."""
    host, host64 = aligned(8), wide()
    return Subject(
        [
            Call("a host array", function, lambda: (aligned(8),)),
            Deep("the same array", function, lambda: (host,), same=True),
            Deep("64 bits", function, lambda: (wide(),)),
            Call("the same array of 64 bits", function, lambda: (host64,), same=True),
            Deep("too large for 32 bits", function, lambda: (np.full(1, 1e300),)),
            Deep("a list", function, lambda: ([1, 2.5],)),
            Call("a float", function, lambda: (1.5,)),
            Deep("a numpy scalar", function, lambda: (np.int64(2),)),
            Deep("33 dimensions", function, lambda: (np.ones((1,) * 33),)),
            Deep("no arguments", function),
            Deep("an array", function, lambda: (good(),)),
            Deep("a dtype", function, lambda: (aligned(8),), kwargs=lambda: {"dtype": "float64"}),
        ],
        (name,),
        hosts=[host, host64],
    )


@entry("asarray")
def asarray(_: Any) -> Subject:
    """`jnp.asarray`."""
    return _of_host(jnp.asarray, "asarray")


@entry("array")
def array(_: Any) -> Subject:
    """`jnp.array`."""
    return _of_host(jnp.array, "array")


def _filled(function: Callable[..., Any], name: str, *value: Any) -> Subject:
    """What makes arrays of one value."""
    return Subject(
        [
            Call("a vector", function, lambda: (3, *value)),
            Deep("integers", function, lambda: ((2, 3), *value, np.int32)),
            Call("64 bits", function, lambda: ((2,), *value, "float64")),
            Deep("no arguments", function),
            Deep("on a device", function, lambda: ((2,), *value), kwargs=lambda: {
                "device": jax.devices()[1]}),
        ],
        (name,),
    )  # fmt: skip


@entry("zeros")
def zeros(_: Any) -> Subject:
    """`jnp.zeros`."""
    return _filled(jnp.zeros, "zeros")


@entry("ones")
def ones(_: Any) -> Subject:
    """`jnp.ones`."""
    return _filled(jnp.ones, "ones")


@entry("full")
def full(_: Any) -> Subject:
    """`jnp.full`."""
    return _filled(jnp.full, "full", 7.0)


@entry("getitem")
def getitem(_: Any) -> Subject:
    """Indexing: static indices, slices, index arrays."""
    def take(index: Any) -> Callable[..., Any]:
        return lambda x: x.__getitem__(index)

    def matrix() -> tuple:
        return (jax.device_put(aligned((4, 3))),)

    indices = {
        "an int": 1, "a negative int": -1, "out of range": 100, "a slice": slice(1, 3),
        "a slice and an int": (slice(1, 2), 1), "backwards": slice(None, None, -1),
        "a new axis": (None, 1), "an array": np.array([0, 2]), "a mask": np.array([True] * 4),
    }  # fmt: skip
    return Subject(
        [
            (Call if name in ("a slice and an int", "out of range") else Deep)(
                name, take(index), matrix
            )
            for name, index in indices.items()
        ]
        + [
            Deep("no index", lambda x: x.__getitem__(), matrix),
            Deep("a key of several", take(1), lambda: (jax.random.split(jax.random.key(0), 3),)),
        ],
        ("getitem",),
    )


@entry("keys")
def keys(_: Any) -> Subject:
    """Typed keys outside of jit."""
    return Subject(
        [
            Deep("split", jax.random.split, lambda: (jax.random.key(1),)),
            Deep("fold_in", jax.random.fold_in, lambda: (jax.random.key(1), 3)),
            Deep("key_data", jax.random.key_data, lambda: (jax.random.key(1),)),
            Call("bits", jax.random.bits, lambda: (jax.random.key(1),)),
            Deep("key", jax.random.key, lambda: (3,)),
            Call("PRNGKey", jax.random.PRNGKey, lambda: (3,)),
            Deep("asarray", jnp.asarray, lambda: (jax.random.key(1),)),
        ],
        (),
    )


# --- Functions that are replayed -----------------------------------------------------------------


def _replayed(calls: list[Call]) -> Subject:
    return Subject(calls, ("functions",))


def _matrix() -> jax.Array:
    return jax.device_put(aligned((4, 3)))


@entry("functions, indexing")
def functions_indexing(_: Any) -> Subject:
    """Updates at indices."""
    return _replayed([
        Call("set", lambda x: x.at[1].set(5.0), lambda: (_matrix(),)),
        Call("add out of range", lambda x: x.at[100].add(1.0), lambda: (_matrix(),)),
        Deep("set at an array", lambda x, i: x.at[i].set(0.0), lambda: (
            _matrix(), jax.device_put(np.array([0, 2], np.int32)))),
        Deep("get", lambda x: x.at[-1].get(mode="fill", fill_value=7.0), lambda: (_matrix(),)),
        Deep("lax.dynamic_slice", lax.dynamic_slice, lambda: (_matrix(), (1, 0), (2, 2))),
        Deep("lax.slice", lax.slice, lambda: (_matrix(), (0, 1), (2, 2))),
        Deep("lax.index_in_dim", lax.index_in_dim, lambda: (_matrix(), 1)),
    ])  # fmt: skip


@entry("functions, operators")
def functions_operators(_: Any) -> Subject:
    """Operators of arrays and numbers."""
    return _replayed([
        Call("+", lambda x: x + 1.5, lambda: (good(),)),
        Call("/ 0", lambda x: x / 0, lambda: (good(),)),
        Deep("*", lambda x: 2 * x, lambda: (good(),)),
        Deep("**", lambda x: x**2, lambda: (good(),)),
        Deep("a number too large", lambda x: x + 1e300, lambda: (good(),)),
        Deep("an int too large", lambda x: x + 2**40, lambda: (good(),)),
        Deep("numbers that change", lambda x, n=iter(range(100_000)): x * next(n), lambda: (
            jax.device_put(aligned(8, np.int32)),)),
        Deep("of two", lambda x, y: x - y, lambda: (good(), bad())),
        Deep("of two ranks", lambda x, y: x + y, lambda: (good(), jnp.ones((2, 8)))),
        Deep("of two dtypes", lambda x, y: x * y, lambda: (good(), jnp.ones(8, "int32"))),
        Deep("bits", lambda x: x & 3, lambda: (jax.device_put(aligned(8, np.int32)),)),
        Deep("compared", lambda x: x > 2, lambda: (good(),)),
    ])  # fmt: skip


@entry("functions, jax.numpy")
def functions_numpy(_: Any) -> Subject:
    """Functions of `jax.numpy`, and methods of arrays."""
    return _replayed([
        Call("where", jnp.where, lambda: (good() > 2, bad(), 0)),
        Call("arange, 64 bits", lambda: jnp.arange(3, dtype="float64")),
        Deep("concatenate", jnp.concatenate, lambda: ([good(), good()],)),
        Deep("concatenate dtypes", jnp.concatenate, lambda: (
            [good(), jax.device_put(aligned(3, np.int32))],)),
        Deep("einsum", jnp.einsum, lambda: ("i,i->", good(), good())),
        Deep("zeros_like", jnp.zeros_like, lambda: (good(),)),
        Deep("linspace", jnp.linspace, lambda: (0.0, 1.0, 5)),
        Deep("eye", jnp.eye, lambda: (3,)),
        Deep("pad", jnp.pad, lambda: (good(), 1)),
        Deep("tile", jnp.tile, lambda: (good(), 2)),
        Deep("std", jnp.std, lambda: (bad(),)),
        Deep("reshape", lambda x: x.reshape(2, 4), lambda: (good(),)),
        Deep("astype", lambda x: x.astype("float64"), lambda: (good(),)),
        Deep("norm", jnp.linalg.vector_norm, lambda: (good(),)),
        Deep("fft", jnp.fft.fft, lambda: (good(),)),
        Deep("on eight devices", jnp.flip, lambda: (jax.device_put(aligned(8), spread()),)),
    ])  # fmt: skip


@entry("functions, nn")
def functions_nn(_: Any) -> Subject:
    """Functions of `jax.nn`, some of which have a derivative of their own."""
    return _replayed([
        Call("relu", jax.nn.relu, lambda: (bad(),)),
        Call("softmax", jax.nn.softmax, lambda: (good(),)),
        Deep("softmax of what has none", jax.nn.softmax, lambda: (bad() / 0,)),
        Deep("gelu", jax.nn.gelu, lambda: (good(),)),
        Deep("logsumexp", jax.nn.logsumexp, lambda: (good(),)),
        Deep("one_hot", jax.nn.one_hot, lambda: (jax.device_put(aligned(3, np.int32)), 4)),
    ])  # fmt: skip


@entry("functions, lax")
def functions_lax(_: Any) -> Subject:
    """Functions of `jax.lax`, each of which binds one primitive."""
    return _replayed([
        Call("log", lax.log, lambda: (bad(),)),
        Call("add", lax.add, lambda: (good(), good())),
        Deep("a number", lax.mul, lambda: (good(), 2.0)),
        Deep("dot", lax.dot, lambda: (_matrix(), jnp.ones((3, 2)))),
        Deep("convert", lax.convert_element_type, lambda: (good(), np.int32)),
        Deep("iota", lax.iota, lambda: (np.int32, 4)),
        Deep("two devices", lax.add, lambda: (
            jax.device_put(aligned(8), jax.devices()[1]),
            jax.device_put(aligned(8), jax.devices()[2]))),
        Deep("two dtypes", lax.add, lambda: (good(), jax.device_put(aligned(8, np.int32)))),
    ])  # fmt: skip


@entry("functions, random")
def functions_random(_: Any) -> Subject:
    """Functions of `jax.random`, with typed and with raw keys."""
    def key() -> Any:
        return jax.random.key(1)

    return _replayed([
        Call("normal", jax.random.normal, lambda: (key(), (3,))),
        Call("split", jax.random.split, lambda: (key(),)),
        Deep("split of a raw key", jax.random.split, lambda: (jax.random.PRNGKey(1),)),
        Deep("fold_in", jax.random.fold_in, lambda: (key(), 3)),
        Deep("numbers that change", lambda key, n=iter(range(100_000)): jax.random.fold_in(
            key, next(n)), lambda: (key(),)),
        Deep("key", jax.random.key, lambda: (3,)),
        Deep("PRNGKey", jax.random.PRNGKey, lambda: (3,)),
        Deep("uniform, 64 bits", lambda key: jax.random.uniform(key, dtype="float64"), lambda: (
            key(),)),
        Deep("randint", jax.random.randint, lambda: (key(), (3,), 0, 5)),
        Deep("categorical", jax.random.categorical, lambda: (key(), good())),
        Deep("another kind", jax.random.normal, lambda: (jax.random.key(1, impl="rbg"), (3,))),
    ])  # fmt: skip


# --- Functions of jitted functions: pytrees whose leaves are not all arrays -----------------------


class _Cleared:
    """A function whose cache is that of the jitted function inside."""

    def __init__(self, call: Callable[..., Any], clear: Callable[[], None]) -> None:
        self._call, self.clear_cache = call, clear

    def __call__(self, x: Any) -> Any:
        return self._call(x)


def _front_calls(function: Callable[..., Any], static: Callable[..., Any]) -> list[Call]:
    """Calls that every front takes; `static` is called with other leaves than arrays too."""
    return [
        Call("good", function, lambda: (good(),)),
        Call("bad", function, lambda: (bad(),)),
        Call("a node and an object", static, lambda: (Node(good(), good()), Static(2))),
        Deep("another object", static, lambda: (Node(good(), good()), Static(3))),
        Deep("a dict", static, lambda: ({"b": good(), "a": [bad(), 2.5]}, "text")),
        Deep("keys with an order of their own", static, lambda: (
            {Reverse("a"): good(), Reverse("b"): bad()}, None)),
        Deep("by keyword", function, kwargs=lambda: {"x": good()}),
        Deep("another shape", function, lambda: (jax.device_put(aligned(3)),)),
        Deep("committed", function, lambda: (jax.device_put(aligned(8), jax.devices()[0]),)),
        Deep("elsewhere", function, lambda: (jax.device_put(aligned(8), jax.devices()[3]),)),
        Deep("host data", function, lambda: (aligned(8),)),
        Deep("host data of 64 bits", function, lambda: (wide(),)),
        Deep("a typed key", static, lambda: (jax.random.key(1), 3)),
    ]  # fmt: skip


def _leaves_of(box: list[float]) -> Callable[..., Any]:
    """A function of trees and of other leaves."""

    def leaves(tree: Any, other: Any) -> Any:
        happened("traced")
        found = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
        return {"other": other, "found": [x * box[0] if x.ndim else x for x in found]}

    return leaves


def _plain_filter_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jaxmarshal.filter_jit` as its Python has it, on JAX's own jit."""
    made = jaxmarshal.filter_jit(function)
    made._cached = jax.jit(made._cached.__wrapped__, static_argnums=2)
    return functools.partial(filtered.reference_call, made)


@entry("filter_jit", _early)
def filter_jit(early: Any) -> Subject:
    """`jaxmarshal.filter_jit`; the other side is its Python alone."""
    box, program, _ = early
    make = jaxmarshal.filter_jit if _fast() else _plain_filter_jit
    function, static = make(program), make(_leaves_of(box))
    inside = getattr(function, "args", (function,))[0]
    return Subject(
        _front_calls(function, static), ("filter_jit",),
        {"itself": _Cleared(function, inside.clear_cache)}, box,
    )  # fmt: skip


@front_entry("equinox_filter_jit", _early)
def equinox_filter_jit(early: Any) -> Subject:
    """`equinox.filter_jit`, and a Module that is called."""
    import equinox

    box, program, _ = early
    function = equinox.filter_jit(program)
    static = equinox.filter_jit(_leaves_of(box))
    layer = equinox.nn.Linear(8, 2, key=jax.random.PRNGKey(0))
    call = equinox.filter_jit(lambda layer, x: layer(x))
    return Subject(
        [
            *_front_calls(function, static),
            Call("a Module", call, lambda: (layer, good())),
        ],
        ("equinox_filter_jit",),
        {"itself": _Cleared(function, function._cached.clear_cache)},
        box,
    )


@front_entry("nnx_jit", _early)
def nnx_jit(early: Any) -> Subject:
    """`flax.nnx.jit`, and a module that a call changes."""
    from flax import nnx

    box, program, _ = early
    function = nnx.jit(program)
    static = nnx.jit(_leaves_of(box), static_argnums=1)

    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(jnp.zeros(8))

    @nnx.jit
    def add(counter: Any, x: Any) -> Any:
        happened("traced")
        counter.count[...] += jnp.log(x)
        return counter.count[...] * box[0]

    def changed(x: Any) -> Any:
        found = add(counter, x)
        return found, counter.count.get_raw_value()

    counter = Counter()
    return Subject(
        [
            *_front_calls(function, static),
            Call("a module", changed, lambda: (good(),)),
            Deep("a module, bad", changed, lambda: (bad(),)),
        ],
        ("nnx_jit",),
        {"itself": _Cleared(function, function.jitted_fn.clear_cache)},
        box,
    )


# --- The module that stands in for `jax._src.dispatch`, and that of JAX 0.3 -----------------------


@entry("dispatch")
def dispatch_module(_: Any) -> Subject:
    """Functions of `jaxmarshal.dispatch`, where JAX has those of its own module."""
    module = jaxmarshal.dispatch if jaxmarshal.api and _fast() else dispatch
    reuse = xla_client.ArrayCopySemantics.REUSE_INPUT

    def put(x: Any, target: Any = None) -> Any:
        return module.batched_device_put_impl(
            x, devices=[target], srcs=[None], copy_semantics=[reuse]
        )

    def apply(x: Any) -> Any:
        return module.apply_primitive(lax.neg_p, x)

    def callable_of(x: Any) -> Any:
        return module.xla_primitive_callable(lax.neg_p)(x)

    return Subject(
        [
            Call("put", put, lambda: (aligned(8),)),
            Deep("put 64 bits", put, lambda: (wide(), jax.devices()[1])),
            Call("apply_primitive", apply, lambda: (good(),)),
            Deep("xla_primitive_callable", callable_of, lambda: (good(),)),
        ],
        ("batched_device_put_impl", "xla_primitive_callable"),
    )


def _fast() -> bool:
    """Is the side of jaxmarshal being made?"""
    return bool(jaxmarshal._jax.patching.installed_names())


@entry("dispatch_v0_3")
def old_dispatch(_: Any) -> Subject:
    """The dispatch API of JAX 0.3; the other side is its Python alone."""
    v0_3.set_replaced(not _fast())
    host = aligned(8)
    device = jax.devices()[0]
    run = old_compiled(lambda x: [jnp.log(x), x], good())
    return Subject(
        [
            Call("put", dispatch_v0_3.device_put, lambda: (aligned(8), device)),
            Deep("put the same array", dispatch_v0_3.device_put, lambda: (host, device), same=True),
            Deep("put 64 bits", dispatch_v0_3.device_put, lambda: (wide(), device)),
            Deep("put a number", dispatch_v0_3.device_put, lambda: (1.5, device)),
            Deep("call, good", run.call, lambda: (good(),)),
            Call("call, bad", run.call, lambda: (bad(),)),
            Deep("call, host data", run.call, lambda: (aligned(8),)),
        ],
        ("dispatch_v0_3.device_put", "dispatch_v0_3.call"),
        hosts=[host],
    )
