"""The dispatch API of JAX 0.3 on today's runtime: the same names, signatures and meanings.

    from jaxmarshal.compat import dispatch_v0_3 as dispatch

A *buffer* is a `jax.Array` on one device, an *executable* jaxlib's `LoadedExecutable`. What is put
into the tables is honoured everywhere, and so is what is assigned to a name of this module.
docs/dispatch_v0_3.md has a row for every name.
"""

# ruff: noqa: F401 (the names are gathered here for others)

from __future__ import annotations

import builtins
import sys
import types
from functools import partial
from typing import Any

from jax.api_util import safe_map

from jaxmarshal._core.entries import v0_3 as _v0_3
from jaxmarshal._jax import private as _main, private_v0_3 as _more
from jaxmarshal.compat import (
    _arguments,
    _buffers,
    _callables,
    _compile,
    _computations,
    _execution,
    _handlers,
    _queries,
)
from jaxmarshal.compat._arguments import (
    ArgSpec,
    _device_from_arg_devices,
    _xla_callable_device,
    arg_spec,
    prefetch,
)
from jaxmarshal.compat._buffers import (
    Buffer,
    _copy_device_array_to_device,
    _device_put_array,
    _device_put_device_array,
    _device_put_impl,
    _device_put_lowering,
    _device_put_scalar,
    _device_put_token,
    _scalar_types,
    device_put,
    device_put_handlers,
    device_put_p,
)
from jaxmarshal.compat._callables import (
    _xla_call_impl,
    _xla_callable,
    _xla_callable_uncached,
    apply_primitive,
    lower_xla_callable,
    xla_primitive_callable,
)
from jaxmarshal.compat._compile import (
    FLAGS,
    _dump_ir_to_file,
    _ir_dump_counter,
    _make_string_safe_for_filename,
    _on_exit,
    backend_compile,
    compile_or_get_cached,
    log_elapsed_time,
)
from jaxmarshal.compat._computations import (
    XlaCompiledComputation,
    XlaComputation,
    check_arg_avals_for_call,
)
from jaxmarshal.compat._execution import _execute_compiled, _execute_replicated, _execute_trivial
from jaxmarshal.compat._handlers import (
    ResultHandler,
    _check_special,
    array_result_handler,
    aval_to_num_buffers,
    aval_to_result_handler,
    check_special,
    needs_check_special,
    num_buffers_handlers,
    result_handlers,
)
from jaxmarshal.compat._queries import (
    _prune_unused_inputs,
    apply_outfeed_rewriter,
    eqn_replicas,
    initial_style_primitive_replicas,
    jaxpr_has_pmap,
    jaxpr_literals,
    jaxpr_replicas,
    outfeed_rewriter,
)

MYPY = False
xe = _more.extension
Backend = _more.Client
Device = _main.Device
XlaExecutable = _more.LoadedExecutable
map, unsafe_map = safe_map, builtins.map
zip, unsafe_zip = _more.safe_zip or partial(builtins.zip, strict=True), builtins.zip

#: Names that no living thing stands for -> why, and what to use.
_GONE = {
    "_device_put_unit": "JAX has no units any more; leave the argument out, or pass None, which "
    "is a tree without leaves",
    "device_array": "lazy device arrays became jax.Array; use jax.Array, jax.device_put and "
    "array_result_handler",
    "masking": "jax.mask was removed; use jax.numpy.where",
    "xla_call_p": "jit has a primitive of its own; use jax.jit, or _xla_call_impl to run a "
    "WrappedFun",
}

_PARTS = (
    _arguments, _buffers, _callables, _compile, _computations, _execution, _handlers, _queries,
)  # fmt: skip


#: What this module needs for itself.
_OWN = {"Any", "annotations", "builtins", "partial", "safe_map", "sys", "types"}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"{__name__}.{name} is gone: {_GONE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Gathered(types.ModuleType):
    """A module whose names are those of its parts: what is assigned here, they use."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        for part in _PARTS:
            if name in vars(part):
                setattr(part, name, value)
        replaced = any(vars(self)[name] is not original for name, original in _ORIGINALS.items())
        _v0_3.set_replaced(replaced)


# Where one of these is replaced, the calls that would go past it take the way through Python.
_ORIGINALS = {
    name: value
    for part in _PARTS
    for name, value in vars(part).items()
    if name in globals() and (callable(value) or isinstance(value, dict))
}
__all__ = [    # pytest adds names of its own, such as "@py_builtins", to a module of a plugin
    name
    for name in globals()
    if name.isidentifier() and not name.startswith("_") and name not in _OWN
]

sys.modules[__name__].__class__ = _Gathered
