"""Running executables: arguments to buffers, the runtime's call, buffers to results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxmarshal._core.entries import v0_3
from jaxmarshal._jax import private, private_v0_3 as _more
from jaxmarshal.compat._buffers import (
    _copy_device_array_to_device,
    device_put,
    device_put_handlers,
    put_now,
)
from jaxmarshal.compat._handlers import ArrayHandler, check_special

_strict_zip = functools.partial(zip, strict=True)


def _run(name: str, compiled: Any, arrays: list[Any]) -> list[list[Any]]:
    """The buffers of each output, device after device.

    The runtime does not look at the layout of the data, so that is made the usual one here.
    """
    if jax.config.jax_no_execution:
        raise RuntimeError(
            f"JAX tried to execute function {name}, but the no_execution config option is set"
        )
    results = compiled.execute_sharded([_in_usual_layout(array) for array in arrays])
    return results.disassemble_into_single_device_arrays()


def _in_usual_layout(array: Any) -> Any:
    layout = array.format.layout
    usual = tuple(range(array.ndim))
    if layout is None or tuple(layout.major_to_minor) == usual:
        return array
    return put_now(array, Format(Layout(usual), array.sharding))


def _results(
    name: str, output_buffer_counts: Sequence[int] | None, handlers: Sequence[Any], bufs: list[Any]
) -> tuple[Any, ...]:
    """One result of each handler; without counts there is one handler, which takes all buffers."""
    check_special(name, bufs)
    if output_buffer_counts is None:
        return (handlers[0](*bufs),)
    if sum(output_buffer_counts) != len(bufs):
        raise ValueError(f"expected {sum(output_buffer_counts)} output buffers, got {len(bufs)}")
    rest = iter(bufs)
    return tuple(
        handler(*(next(rest) for _ in range(count)))
        for handler, count in _strict_zip(handlers, output_buffer_counts)
    )


def _execute_compiled(
    name: str, compiled: Any, output_buffer_counts: Sequence[int] | None,
    result_handlers: Sequence[Callable[..., Any]], kept_var_idx: Collection[int], *args: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Run an executable on its one device.

    Args:
      name: of the computation, for messages.
      compiled: the loaded executable.
      output_buffer_counts: how many buffers each handler takes, or None for one handler.
      result_handlers: what makes each result of its buffers.
      kept_var_idx: the indices of the arguments that the executable takes.
      *args: values of any type in `device_put_handlers`; those elsewhere are copied.

    Returns:
      A tuple of results.

    Raises:
      FloatingPointError: if there is a nan or inf that the configuration does not allow.
    """
    (device,) = compiled.local_devices()
    buffers = [
        buffer
        for i, x in enumerate(args)
        if i in kept_var_idx
        for buffer in device_put(x, device)
    ]
    outputs = [output[0] for output in _run(name, compiled, buffers)]
    return _results(name, output_buffer_counts, result_handlers, outputs)


def _execute_replicated(
    name: str, compiled: Any, output_buffer_counts: Sequence[int] | None,
    result_handlers: Sequence[Callable[..., Any]], kept_var_idx: Collection[int], *args: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Run an executable on several devices, each with a copy of every argument.

    Arguments and errors are those of `_execute_compiled`; results are those of the first device.
    """
    devices = compiled.local_devices()
    replicated = NamedSharding(Mesh(np.array(devices), ("replica",)), PartitionSpec())
    arrays = [
        array
        for i, x in enumerate(args)
        if i in kept_var_idx
        for array in _put_replicated(x, devices, replicated)
    ]
    outputs = [output[0] for output in _run(name, compiled, arrays)]
    return _results(name, output_buffer_counts, result_handlers, outputs)


def _put_replicated(x: Any, devices: list[Any], sharding: Any) -> list[Any]:
    """Every buffer of a value, each as an array over all devices."""
    handler = device_put_handlers.get(type(x))
    if handler is not None and handler is v0_3.first_handler(type(x)):
        return [put_now(x, sharding)]
    buffers = [device_put(x, device) for device in devices]
    return [
        jax.make_array_from_single_device_arrays(copies[0].shape, sharding, list(copies))
        for copies in _strict_zip(*buffers)
    ]


def _execute_trivial(
    jaxpr: Any, device: Any, consts: Sequence[Any], avals: Sequence[Any],
    handlers: Sequence[Callable[..., Any]], kept_var_idx: Collection[int], *args: Any,
) -> list[Any]:  # fmt: skip
    """The results of a jaxpr without equations: arguments, constants and literals, on a device.

    Args:
      jaxpr: without the arguments that it does not use.
      device: where results are put, or None for where they are.
      consts: the values of the jaxpr's constants.
      avals: of the results.
      handlers: what makes each result of its buffers.
      kept_var_idx: the indices of the arguments that the jaxpr uses.
      *args: all arguments.
    """
    kept = [x for i, x in enumerate(args) if i in kept_var_idx]
    values = dict(_strict_zip(jaxpr.constvars, consts))
    values.update(_strict_zip(jaxpr.invars, kept))
    results = [v.val if type(v) is core.Literal else values[v] for v in jaxpr.outvars]
    return [
        _copy_device_array_to_device(x, device)
        if isinstance(x, private.ArrayImpl)
        else handler(*device_put(x, device))
        for handler, x in _strict_zip(handlers, results)
    ]


class Execution(functools.partial):
    """`_execute_compiled`, or its like, with everything given but the arguments.

    Attributes:
      unsafe_call: today's object for the executable, of which a plan is made, or None.
    """

    __call__ = v0_3.run_execution

    @functools.cached_property
    def unsafe_call(self) -> Any:
        if self.func is not _execute_compiled or not _more.HAVE_PREPARED:
            return None
        name, compiled, counts, handlers, kept = self.args
        if not all(type(handler) is ArrayHandler for handler in handlers):
            return None
        if (counts is None and len(handlers) != 1) or (counts and set(counts) != {1}):
            return None
        sharding = SingleDeviceSharding(*compiled.local_devices())
        if _more.output_memory_kinds(compiled) - {sharding.memory_kind}:
            return None
        prepared = [handler.on(sharding) for handler in handlers]
        return _more.prepared_executable(name, compiled, sharding, len(kept), prepared, kept)
