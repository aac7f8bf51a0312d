"""From functions and primitives to compiled computations."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.api_util import debug_info, safe_map
from jax.errors import UnexpectedTracerError
from jax.extend import core, linear_util as lu
from jax.extend.backend import get_backend

from jaxmarshal._jax import private_v0_3
from jaxmarshal.compat._arguments import (
    _device_from_arg_devices,
    _xla_callable_device,
    arg_spec,
    prefetch,
)
from jaxmarshal.compat._compile import log_elapsed_time, log_priority, logger
from jaxmarshal.compat._computations import XlaComputation
from jaxmarshal.compat._queries import (
    _prune_unused_inputs,
    apply_outfeed_rewriter,
    jaxpr_has_pmap,
    jaxpr_literals,
    jaxpr_replicas,
)


def apply_primitive(prim: Any, *args: Any, **params: Any) -> Any:
    """Compile a primitive for its arguments, and run it."""
    return xla_primitive_callable(prim, *safe_map(arg_spec, args), **params)(*args)


def _primitive_callable(prim: Any, *arg_specs: Any, **params: Any) -> Any:
    def prim_fun(*args: Any) -> Any:
        results = prim.bind(*args, **params)
        return results if prim.multiple_results else [results]

    device = _device_from_arg_devices([device for _, device in arg_specs])
    fun = lu.wrap_init(prim_fun, debug_info=debug_info("jit", prim_fun, (), {}))
    donated = (False,) * len(arg_specs)
    with jax.disable_jit(False):
        compiled = _xla_callable_uncached(fun, device, None, prim.name, donated, *arg_specs)
    if prim.multiple_results:
        return compiled
    return lambda *args, **kw: compiled(*args, **kw)[0]


# JAX's own cache also looks at the configuration.
_cache = functools.cache if private_v0_3.cache is None else private_v0_3.cache()
_cached_primitive_callable = _cache(_primitive_callable)


def xla_primitive_callable(prim: Any, *arg_specs: Any, **params: Any) -> Any:
    """A function of arguments like these that runs a primitive; cached until `clear_caches()`.

    Args:
      prim: the primitive.
      *arg_specs: an `arg_spec` for each argument.
      **params: of the primitive.
    """
    return _cached_primitive_callable(prim, *arg_specs, **params)


def _xla_call_impl(
    fun: Any, *args: Any, device: Any, backend: str | None, name: str,
    donated_invars: Sequence[bool], inline: bool,
) -> Any:  # fmt: skip
    """Compile a function for its arguments, and run it.

    Where the results have a nan or inf that the configuration does not allow, the function is run
    again operation by operation, which raises at the one that makes it.
    """
    del inline    # only looked at while tracing
    compiled = _xla_callable(
        fun, device, backend, name, tuple(donated_invars), *safe_map(arg_spec, args)
    )
    try:
        return compiled(*args)
    except FloatingPointError:
        print(
            "Invalid value encountered in the output of a jit/pmap-ed function. "
            "Calling the de-optimized version."
        )
        for store in fun.stores:    # they were filled when the function was traced
            if store is not None:
                store.reset()
        with jax.disable_jit():
            fun.call_wrapped(*args)
        raise


def _xla_callable_uncached(
    fun: Any, device: Any, backend: str | None, name: str, donated_invars: Sequence[bool],
    *arg_specs: Any,
) -> Any:  # fmt: skip
    """A compiled function of arguments like these; see `lower_xla_callable`."""
    computation = lower_xla_callable(fun, device, backend, name, donated_invars, *arg_specs)
    return computation.compile().unsafe_call


#: The same, cached for as long as the function lives, until `jax.clear_caches()`.
_xla_callable = functools.wraps(_xla_callable_uncached)(lu.cache(_xla_callable_uncached))


@jax.profiler.annotate_function
def lower_xla_callable(
    fun: Any, device: Any, backend: str | None, name: str, donated_invars: Sequence[bool],
    *arg_specs: Any,
) -> XlaComputation:  # fmt: skip
    """Trace a function and lower it to a computation.

    Args:
      fun: a `WrappedFun` from flat arguments to a list of results.
      device: the device that the computation is for, or None.
      backend: the name of a platform, or None.
      name: for messages.
      donated_invars: for each argument, may the computation have its memory?
      *arg_specs: an `arg_spec` for each argument.

    Raises:
      ValueError: if both a device and a backend are given, if the arguments are bound to several
        devices, or if more replicas are needed than there are devices.
      UnexpectedTracerError: if the function uses a value of another trace.
      NotImplementedError: for computations with effects, with calls back into Python, or over
        several devices; the message says what runs them.
    """
    if device is not None and backend is not None:
        raise ValueError(
            f"can't specify both a device and a backend for jit, "
            f"got device={device} and backend={backend}"
        )
    with log_elapsed_time(
        f"Finished tracing + transforming {fun.__name__} for jit in {{elapsed_time}} sec"
    ):
        closed = jax.make_jaxpr(fun.call_wrapped)(*(_struct(spec[0]) for spec in arg_specs))
    consts, out_avals = closed.consts, closed.out_avals
    if any(isinstance(const, jax.core.Tracer) for const in consts):
        raise UnexpectedTracerError("Encountered an unexpected tracer.")
    jaxpr, kept_const_idx, kept_var_idx = _prune_unused_inputs(closed.jaxpr)
    consts = [const for i, const in enumerate(consts) if i in kept_const_idx]
    kept_specs = [spec for i, spec in enumerate(arg_specs) if i in kept_var_idx]
    donated = [donate for i, donate in enumerate(donated_invars) if i in kept_var_idx]
    in_avals = [aval for aval, _ in kept_specs]
    for value in itertools.chain(consts, jaxpr_literals(jaxpr)):
        prefetch(value)
    jaxpr = apply_outfeed_rewriter(jaxpr)
    nreps = jaxpr_replicas(jaxpr)
    device = _xla_callable_device(nreps, backend, device, [bound for _, bound in kept_specs])
    client = device.client if device is not None else get_backend(backend)
    if not jaxpr.eqns:
        return XlaComputation(
            name, None, True, None, jaxpr=jaxpr, consts=consts, device=device, in_avals=in_avals,
            out_avals=out_avals, kept_var_idx=kept_var_idx,
        )  # fmt: skip
    _log_compilation(fun, in_avals)
    _check_replicas(name, jaxpr, nreps, client)
    module = _lower(fun.__name__, core.ClosedJaxpr(jaxpr, consts), client.platform, donated)
    tuple_args = private_v0_3.should_tuple_args
    return XlaComputation(
        name, module, False, donated, nreps=nreps, device=device, backend=client,
        tuple_args=bool(tuple_args and tuple_args(len(in_avals), client.platform)),
        in_avals=in_avals, out_avals=out_avals, kept_var_idx=kept_var_idx,
    )  # fmt: skip


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _log_compilation(fun: Any, avals: Sequence[Any]) -> None:
    from jaxmarshal.compat import _compile

    if _compile._on_exit:
        return
    level = log_priority()
    if level > logging.DEBUG or logger.isEnabledFor(level):
        many = f"for {len(avals)} args" if len(avals) > 10 else f"for args {list(avals)}"
        logger.log(level, f"Compiling {fun.__name__} ({id(fun)}) {many}.")


def _check_replicas(name: str, jaxpr: Any, nreps: int, client: Any) -> None:
    """Warn of what is slow, and raise for what cannot be done."""
    if nreps > 1:
        warnings.warn(
            f"The jitted function {name} includes a pmap. Using jit-of-pmap can lead to "
            "inefficient data movement, as the outer jit does not preserve sharded data "
            "representations and instead collects input and output arrays onto a single device. "
            "Consider removing the outer jit unless you know what you're doing. "
            "See https://github.com/google/jax/issues/2926.",
            stacklevel=4,
        )
    if nreps > client.device_count():
        raise ValueError(
            f"compiling computation `{name}` that requires {nreps} replicas, but only "
            f"{client.device_count()} XLA devices are available."
        )
    if jax.process_count() > 1 and (nreps > 1 or jaxpr_has_pmap(jaxpr)):
        raise NotImplementedError(
            "jit of multi-host pmap not implemented (and jit-of-pmap can cause extra data "
            "movement anyway, so maybe you don't want it after all)."
        )


def _lower(name: str, jaxpr: Any, platform: str, donated: Sequence[bool]) -> Any:
    """The module of a closed jaxpr, with a parameter for each of its arguments."""
    run = core.jaxpr_as_fun(jaxpr)

    def call(*args: Any) -> Any:
        return run(*args)

    call.__name__ = call.__qualname__ = name
    donate = [i for i, may in enumerate(donated) if may]
    traced = jax.jit(call, donate_argnums=donate, keep_unused=True).trace(
        *map(_struct, jaxpr.in_avals)
    )
    lowered = traced.lower(lowering_platforms=(platform,))
    facts = private_v0_3.lowering_facts(lowered)
    if facts.get("ordered_effects") or facts.get("unordered_effects"):
        raise NotImplementedError(f"{name} has effects: call it through jax.jit")
    if facts.get("host_callbacks"):
        raise NotImplementedError(f"{name} calls back into Python: call it through jax.jit")
    if facts.get("num_devices", 1) > 1:
        raise NotImplementedError(
            f"{name} runs on {facts['num_devices']} devices: call it through jax.jit"
        )
    return lowered.compiler_ir("stablehlo")
