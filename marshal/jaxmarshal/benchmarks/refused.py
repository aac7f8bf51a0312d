"""Cases that jaxmarshal leaves to JAX, one at least for each entry point: what does a look cost?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import SingleDeviceSharding

from jaxmarshal import api
from jaxmarshal._core.entries import executables
from jaxmarshal._jax import private
from jaxmarshal.benchmarks import inputs
from jaxmarshal.benchmarks.case import Call, Case, Sides


def _array() -> Any:
    return jax.device_put(np.arange(1, 9, dtype=np.float32))


def _installed(make: Callable[[], Call]) -> Sides:
    global _beginning
    _beginning = next(_beginnings)
    return Sides(make(), make(), None, True)    # in step, each with a series of its own


def _keys_to_shard() -> Sides:
    target = SingleDeviceSharding(jax.devices()[0])
    args = ([target], [None], [private.REUSE_INPUT], [jax.random.key(0)])
    return Sides(partial(private.shard_args, *args), partial(api.shard_args, *args))


def _callback(which: str) -> Sides:
    """A program that calls the host."""

    def function(x: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x + 1

    xs = inputs.leaves("arrays", 1)
    owner: Any = jax.jit(function).lower(*xs).compile()._executable
    reference, ours = private.mesh_executable_call, executables.mesh_executable_call
    if which == "unsafe_call":
        owner = owner.unsafe_call
        reference, ours = private.execute_replicated_call, executables.execute_replicated_call
    return Sides(partial(reference, owner, *xs), partial(ours, owner, *xs))


class _Parameter:
    """What is no plain value."""


def _own_primitive() -> Call:
    own = Primitive("own")
    own.def_impl(lambda x, *, parameter: x)
    x, parameter = _array(), _Parameter()
    return lambda: own.bind(x, parameter=parameter)


#: Where the numbers of a case begin, which is built anew in each attempt.
_beginnings = itertools.count(1, 100_000)
_beginning = 1


def _numbers() -> Call:
    """A number that is another one in each call, for as long as anybody measures."""
    return itertools.count(_beginning).__next__


def _ends() -> Call:
    number = _numbers()
    return lambda: jnp.linspace(0.0, float(number()), 5)


def _factors() -> Call:
    x, number = _array(), _numbers()
    return lambda: lax.mul(x, float(number()))


def _operands() -> Call:
    x, number = _array(), _numbers()
    return lambda: x * float(number())


#: (name, entry point, what makes the call).
_CALLS: tuple[tuple[str, str, Callable[[], Call]], ...] = (
    ("bind, an object as a parameter", "bind", _own_primitive),
    ("jnp.asarray of a list of numpy", "asarray", lambda: partial(_asarray, _host())),
    ("jnp.array of a list of numpy", "array", lambda: partial(_array_of, _host())),
    ("x[numpy mask]", "getitem", lambda: partial(_take, _array(), np.arange(8) < 2)),
    ("jnp.zeros on a device", "zeros", lambda: partial(_on_device, "zeros")),
    ("jnp.ones on a device", "ones", lambda: partial(_on_device, "ones")),
    ("jnp.full on a device", "full", lambda: partial(_on_device, "full", 1.5)),
    (
        "make_array_from_process_local_data of an array", "make_array_from_process_local_data",
        lambda: partial(_make_array, _array()),
    ),
    ("lax.neg of numpy", "functions", lambda: partial(_negative, _host())),
)

#: Calls that never come again. Their entry points may see others inside of them.
_NEVER_AGAIN: tuple[tuple[str, str, Callable[[], Call]], ...] = (
    ("jnp.linspace, another end each time", "functions", _ends),
    ("lax.mul, another number each time", "functions", _factors),
    ("x * t, another t each time", "functions", _operands),
)


def _host() -> Any:
    return np.arange(8, dtype=np.float32)


def _asarray(x: Any) -> Any:
    return jnp.asarray([x, x])


def _array_of(x: Any) -> Any:
    return jnp.array([x, x])


def _take(x: Any, index: Any) -> Any:
    return x[index]


def _on_device(name: str, *value: Any) -> Any:
    return getattr(jnp, name)(3, *value, device=jax.devices()[0])


def _make_array(x: Any) -> Any:
    return jax.make_array_from_process_local_data(x.sharding, x)


def _negative(x: Any) -> Any:
    return lax.neg(x)


def refused_cases() -> Iterator[Case]:
    """Calls that are JAX's, and calls that do not repeat."""

    def case(name: str, entry: str, build: Callable[[], Sides]) -> Case:
        return Case(name, entry, build, least_speedup=1 / 1.03, hits=False)

    yield case("shard_args of a typed key", "shard_args", _keys_to_shard)
    yield case(
        "MeshExecutable.call of a callback", "mesh_executable_call",
        partial(_callback, "MeshExecutable.call"),
    )  # fmt: skip
    yield case(
        "unsafe_call of a callback", "execute_replicated_call",
        partial(_callback, "unsafe_call"),
    )  # fmt: skip
    for name, entry, make in (*_CALLS, *_NEVER_AGAIN):
        yield case(name, entry, partial(_installed, make))
