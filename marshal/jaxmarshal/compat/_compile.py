"""Compiling for the runtime: the compilation cache, dumps of the IR, and the log of durations."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxmarshal._jax import private_v0_3

logger = logging.getLogger("jaxmarshal.dispatch_v0_3")

#: Set it when the process ends: nothing is logged any more.
_on_exit = False

#: The numbers in the names of dumps.
_ir_dump_counter = itertools.count()


class _Flags:
    """JAX's configuration in the form of flags: `FLAGS.jax_dump_ir_to`, to read and to set."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(jax.config, name):
            return getattr(jax.config, name)
        try:
            return jax.config.read(name)
        except (AttributeError, KeyError):
            raise AttributeError(f"JAX has no configuration option {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        jax.config.update(name, value)


FLAGS = _Flags()


def log_priority() -> int:
    """The level of messages about compilation: WARNING with `jax_log_compiles`, else DEBUG."""
    return logging.WARNING if jax.config.jax_log_compiles else logging.DEBUG


@contextlib.contextmanager
def log_elapsed_time(fmt: str) -> Iterator[None]:
    """Log how long the body took; not if it raises.

    Args:
      fmt: the message, with `{elapsed_time}` in the place of the seconds.
    """
    start = time.time()
    yield
    if not _on_exit:
        logger.log(log_priority(), fmt.format(elapsed_time=time.time() - start))


def compile_options(backend: Any, replicas: int, device: Any = None) -> Any:
    """Options for one partition and some replicas, on `device` or on the first devices."""
    from jax.extend.backend import get_compile_options

    devices = [device] if device is not None else default_devices(backend, replicas)
    return get_compile_options(
        num_replicas=replicas, num_partitions=1,
        device_assignment=np.array([[device.id] for device in devices]),
    )  # fmt: skip


def default_devices(backend: Any, count: int) -> list[Any]:
    """The devices that computations are for that no argument is bound to."""
    chosen = jax.config.jax_default_device
    if count == 1 and getattr(chosen, "client", None) is backend:
        return [chosen]
    return backend.local_devices()[:count]


def _devices_of(backend: Any, options: Any) -> list[Any]:
    if options.device_assignment is None:
        return default_devices(backend, options.num_replicas)
    return private_v0_3.replica_devices(backend, options.device_assignment)


@jax.profiler.annotate_function
def backend_compile(backend: Any, built_c: Any, options: Any) -> Any:
    """Have the runtime compile a computation; a function of its own so that profiles show it.

    Args:
      backend: the client.
      built_c: an MLIR module, its text, or an `XlaComputation` of HLO.
      options: `CompileOptions`.

    Returns:
      The loaded executable.
    """
    private_v0_3.need("HAVE_COMPILE")
    if _is_hlo(built_c):
        built_c = private_v0_3.mlir_of_hlo(built_c)
    devices = private_v0_3.DeviceList(tuple(_devices_of(backend, options)))
    return backend.compile_and_load(built_c, devices, options)


def _is_hlo(computation: Any) -> bool:
    return private_v0_3.HAVE_HLO and isinstance(computation, private_v0_3.HloComputation)


def _make_string_safe_for_filename(s: str) -> str:
    """A text without all but letters, digits, underscores, spaces, and `.`, `(`, `)`, `-`."""
    return "".join(c for c in s if c.isalnum() or c in "_.)( -")


def _dump_ir_to_file(name: str, ir: str) -> None:
    """Write a text to a new file in the folder that `jax_dump_ir_to` names."""
    folder = FLAGS.jax_dump_ir_to
    os.makedirs(folder, exist_ok=True)
    number = next(_ir_dump_counter)
    file = f"jax_ir{number}_{_make_string_safe_for_filename(name)}.mlir"
    with open(os.path.join(folder, file), "w") as stream:
        stream.write(ir)


def compile_or_get_cached(backend: Any, computation: Any, compile_options: Any) -> Any:
    """Compile a computation, or load it from JAX's persistent cache where that is in use.

    If `jax_dump_ir_to` names a folder, the computation is written there as text, which
    `backend_compile` takes again.

    Args:
      backend: the client.
      computation: an MLIR module, its text, or an `XlaComputation` of HLO.
      compile_options: `CompileOptions`.

    Returns:
      The loaded executable.
    """
    private_v0_3.need("HAVE_COMPILE")
    module = None if isinstance(computation, str) or _is_hlo(computation) else computation
    if _has_cache(backend):
        text = private_v0_3.mlir_of_hlo(computation) if _is_hlo(computation) else computation
        module = private_v0_3.parse_module(text) if module is None else module
        devices = _devices_of(backend, compile_options)
        return private_v0_3.compile_or_get_cached(
            backend, module, np.array(devices), compile_options, [],
            private_v0_3.DeviceList(tuple(devices)),
        )  # fmt: skip
    if FLAGS.jax_dump_ir_to:
        _dump_ir_to_file(*_name_and_text(computation, module))
    return backend_compile(backend, computation, compile_options)


def _has_cache(backend: Any) -> bool:
    """Is there a persistent cache for this backend?"""
    if not private_v0_3.HAVE_CACHE or not jax.config.jax_compilation_cache_dir:
        return False
    return private_v0_3.is_cache_used(backend)


def _name_and_text(computation: Any, module: Any) -> tuple[str, str]:
    if module is not None:
        return private_v0_3.module_name(module), private_v0_3.module_to_string(module)
    if _is_hlo(computation):
        return computation.name(), private_v0_3.mlir_of_hlo(computation)
    return private_v0_3.module_name(private_v0_3.parse_module(computation)), computation
