"""Cases of the dispatch API of JAX 0.3, over what today's JAX has for the same work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.api_util import debug_info
from jax.extend import linear_util

from jaxmarshal._jax import private
from jaxmarshal.benchmarks import inputs
from jaxmarshal.benchmarks.case import Case, Sides
from jaxmarshal.benchmarks.transfers import prepared_put
from jaxmarshal.compat import dispatch_v0_3


def _put(to_device: bool) -> Sides:
    x = np.arange(8, dtype=np.float32)
    args = (x, jax.devices()[0]) if to_device else (x,)
    return Sides(
        partial(private.device_put, *args),
        partial(dispatch_v0_3.device_put, *args),
        prepared_put(x, committed=to_device),
    )


def _first_plus_one(*xs: Any) -> list[Any]:
    return [x + 1 for x in xs][:1]    # every argument is used, or it would be left out


def _call(count: int) -> Sides:
    arrays = inputs.leaves("arrays", count)
    fun = linear_util.wrap_init(
        _first_plus_one, debug_info=debug_info("jit", _first_plus_one, arrays, {})
    )
    computation = dispatch_v0_3.lower_xla_callable(
        fun, None, None, "first_plus_one", (False,) * count,
        *map(dispatch_v0_3.arg_spec, arrays),
    ).compile()  # fmt: skip
    # JAX's own counterpart is an executable that compares its arguments, too.
    mesh = jax.jit(_first_plus_one, keep_unused=True).lower(*arrays).compile()._executable
    execute = computation.xla_executable().execute_sharded
    handlers = mesh.unsafe_call.out_handler.handlers
    return Sides(
        partial(private.mesh_executable_call, mesh, *arrays),
        partial(computation.call, *arrays),
        lambda: execute(arrays).consume_with_handlers(handlers),
    )


def dispatch_v0_3_cases() -> Iterator[Case]:
    """`jaxmarshal.compat.dispatch_v0_3`: one buffer, and calls of a compiled computation."""
    for name, to_device in (("np f32[8]", False), ("np f32[8] to a device", True)):
        yield Case(
            f"device_put of {name}", "dispatch_v0_3.device_put", partial(_put, to_device),
            most_over_floor=1.3, quick=not to_device,
        )  # fmt: skip
    bars = {1: 1.5, 10: None, 100: 1.3, 1000: None}
    for count, bar in bars.items():
        yield Case(
            f"XlaCompiledComputation.call, {count} arrays", "dispatch_v0_3.call",
            partial(_call, count), leaves=count, series="call", most_over_floor=bar,
            quick=count in (1, 100),
        )  # fmt: skip
