"""The gateway to JAX's private names: the only module that knows what they are called.

Everything else asks this module for an object or for a capability flag (`HAVE_…`). A name that
the installed JAX does not have is recorded in `missing`, the capability that needs it turns
false, and the entry points that need that capability stay the reference's. Nothing here
initialises a backend, reads a configuration value or creates an array.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

LOWER_BOUND = (0, 10, 2)
UPPER_BOUND = (0, 13)


def _version_tuple(text: str) -> tuple[int, ...]:
    """The leading numeric components of a version string."""
    parts = []
    for part in text.split("."):
        digits = ""
        for char in part:
            if not char.isdigit():
                break
            digits += char
        if not digits:
            break
        parts.append(int(digits))
        if digits != part:
            break
    return tuple(parts)


JAX_VERSION: str = jax.__version__
JAXLIB_VERSION: str = jaxlib.version.__version__
NUMPY_VERSION: str = np.__version__

#: Is the installed JAX one whose semantics this release was checked against?
SUPPORTED: bool = LOWER_BOUND <= _version_tuple(JAX_VERSION) < UPPER_BOUND

#: "module.name" -> why it could not be had.
missing: dict[str, str] = {}


#: Capability flag -> the names, in the form of `missing`, for want of which it is off.
lacking: dict[str, tuple[str, ...]] = {}


class _Missing:
    """Stands for a name that is not there while this module is imported; None afterwards."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False


def _lookup(module: str, name: str) -> Any:
    """`module.name`, or None with an entry in `missing`. Dots in `name` are followed."""
    try:
        obj = importlib.import_module(module)
        for part in name.split("."):
            obj = getattr(obj, part)
    except (ImportError, AttributeError) as error:
        missing[f"{module}.{name}"] = str(error)
        return _Missing(f"{module}.{name}")
    return obj


def _lookup_in_either(name: str, *modules: str) -> Any:
    """The same for a name that has moved from one module to another."""
    for module in modules:
        found = getattr(importlib.import_module(module), name, None)
        if found is not None:
            return found
    missing[f"{modules[0]}.{name}"] = f"not in {' nor '.join(modules)}"
    return _Missing(f"{modules[0]}.{name}")


def _have(flag: str, *objects: Any, flags: tuple[str, ...] = ()) -> bool:
    """The value of a flag that needs these objects and other flags; fills `lacking`."""
    names = [name for other in flags for name in lacking[other]]
    names += [obj.name for obj in objects if isinstance(obj, _Missing)]
    lacking[flag] = tuple(dict.fromkeys(names))
    return SUPPORTED and not names


# --- Types ---------------------------------------------------------------------------------------
ArrayImpl = _lookup("jax._src.array", "ArrayImpl")
Tracer = _lookup("jax._src.core", "Tracer")
Ref = _lookup("jax._src.core", "Ref")
Token = _lookup("jax._src.core", "Token")
PRNGKeyArray = _lookup("jax._src.random", "prng.PRNGKeyArray")
TypedNdArray = _lookup("jax._src.literals", "TypedNdArray")
typed_scalar_types = _lookup("jax._src.literals", "typed_scalar_types") or frozenset()
numpy_scalar_types = _lookup("jax._src.abstract_arrays", "numpy_scalar_types") or frozenset()
Device = _lookup("jaxlib._jax", "Device")
SingleDeviceSharding = _lookup("jax._src.sharding_impls", "SingleDeviceSharding")
NamedSharding = _lookup("jax._src.sharding_impls", "NamedSharding")
ShapedArray = _lookup("jax._src.core", "ShapedArray")

# --- State that decides what a call does ---------------------------------------------------------
trace_context = _lookup("jax._src.config", "trace_context")
trace_context_names = _lookup("jax._src.config", "trace_context_names")
trace_state_clean = _lookup("jax._src.core", "trace_state_clean")
ConfigState = _lookup("jaxlib._jax", "config.Config")
current_trace = _lookup("jax._src.core", "trace_state_strong_ref")
eval_trace = _lookup("jax._src.core", "eval_trace")
profiling = _lookup("jax._src.lib", "_profiler.TraceMe.is_enabled")
post_hook = _lookup("jax._src.api", "_post_hook_state")
host_to_device_guard = _lookup("jax._src.config", "transfer_guard_host_to_device")
device_to_device_guard = _lookup("jax._src.config", "transfer_guard_device_to_device")
guard_thread_state = _lookup("jaxlib._jax.guard_lib", "thread_local_state")
TransferGuardLevel = _lookup("jaxlib._jax.guard_lib", "TransferGuardLevel")
xla_bridge = _lookup("jax._src", "xla_bridge")
process_count = _lookup("jax._src.xla_bridge", "process_count")
backends_are_initialized = _lookup("jax._src.xla_bridge", "backends_are_initialized")
util = _lookup("jax._src", "util")
register_cache = _lookup("jax._src.util", "register_cache")

# --- Operations ----------------------------------------------------------------------------------
batched_device_put = _lookup("jaxlib._jax", "batched_device_put")
REUSE_INPUT = _lookup("jaxlib._jax", "ArrayCopySemantics.REUSE_INPUT")
physical_sharding = _lookup("jax._src.sharding_impls", "physical_sharding")
debug_key_reuse = _lookup("jax._src.config", "debug_key_reuse")
disable_jit = _lookup("jax._src.config", "disable_jit")
shard_args = _lookup("jax._src.interpreters.pxla", "shard_args")
result_handler = _lookup("jax._src.interpreters.pxla", "global_aval_to_result_handler")
abstractify = _lookup("jax._src.core", "shaped_abstractify")
tree_leaves = jax.tree_util.tree_leaves
JaxRuntimeError = jax.errors.JaxRuntimeError
canonicalize_value = _lookup("jax._src.dtypes", "canonicalize_value")
dlpack_to_array = _lookup("jaxlib._jax", "dlpack_managed_tensor_to_buffer")
pytree_registry = _lookup("jax._src.tree_util", "default_registry")
pytree_node_types = _lookup("jax._src.tree_util", "_registry")

# --- Modules and the objects that `install` replaces ---------------------------------------------
dispatch = _lookup("jax._src", "dispatch")
eval_shape: Callable[..., Any] = jax.eval_shape
device_put: Callable[..., Any] = jax.device_put
batched_device_put_impl = _lookup("jax._src.dispatch", "batched_device_put_impl")
device_put_primitive = _lookup("jax._src.dispatch", "device_put_p")

stages = _lookup("jax._src", "stages")
pxla = _lookup("jax._src.interpreters", "pxla")
Compiled = _lookup("jax._src.stages", "Compiled")
MeshExecutable = _lookup("jax._src.interpreters.pxla", "MeshExecutable")
ExecuteReplicated = _lookup("jax._src.interpreters.pxla", "ExecuteReplicated")
ResultsHandler = _lookup("jax._src.interpreters.pxla", "ResultsHandler")
results_handler_call = _lookup("jax._src.interpreters.pxla", "ResultsHandler.__call__")
compiled_call = _lookup("jax._src.stages", "Compiled.__call__")
mesh_executable_call = _lookup("jax._src.interpreters.pxla", "MeshExecutable.call")
execute_replicated_call = _lookup("jax._src.interpreters.pxla", "ExecuteReplicated.__call__")
consume_results = _lookup("jaxlib._jax", "ExecuteResults.consume_with_handlers")
collect_garbage = _lookup("jaxlib._jax", "collect_garbage")
pxla_batched_device_put = _lookup("jax._src.interpreters.pxla", "batched_device_put")

jit: Callable[..., Any] = jax.jit
cpp_pjit = _lookup("jax._src.pjit", "_cpp_pjit")
PjitFunction = _lookup("jaxlib._jax", "PjitFunction")
FastpathData = _lookup("jax._src.interpreters.pxla", "MeshExecutableFastpathData")
_fun_only_cache = _lookup("jax._src.pjit", "_cpp_pjit_cache_fun_only")
_options_cache = _lookup("jax._src.pjit", "_cpp_pjit_cache_explicit_attributes")
#: JAX's caches of what its jitted functions compiled.
jit_caches: tuple[Any, ...] = (_fun_only_cache, _options_cache)
optimization_level = _lookup("jax._src.config", "optimization_level")
memory_fitting_level = _lookup("jax._src.config", "memory_fitting_level")
device_context = _lookup_in_either("device_context", "jax._src.mesh", "jax._src.config")
#: The configuration states that jitted functions depend on and the trace context lacks. Some came
#: with later versions.
jit_key_states: tuple[Any, ...] = (
    optimization_level,
    memory_fitting_level,
    device_context,
    *(
        getattr(jax._src.config, name)
        for name in (
            "jax_pallas_auto_assign_collective_ids",
            "jax_pallas_auto_assign_collective_ids_limit",
        )
        if hasattr(jax._src.config, name)
    ),
)

# --- Operations one by one -----------------------------------------------------------------------
Primitive = _lookup("jax._src.core", "Primitive")
primitive_bind = _lookup("jax._src.core", "Primitive.bind")
xla_primitive_callable = _lookup("jax._src.dispatch", "xla_primitive_callable")
apply_primitive = _lookup("jax._src.dispatch", "apply_primitive")
stage_primitive = _lookup("jax._src.core", "stage_p")
convert_bind_with_trace = _lookup("jax._src.lax.lax", "_convert_element_type_bind_with_trace")
abstract_mesh = _lookup("jax._src.mesh", "get_abstract_mesh")
jnp_zeros = jnp.zeros
jnp_ones = jnp.ones
jnp_full = jnp.full
jnp_asarray = jnp.asarray
jnp_array = jnp.array
array_getitem = ArrayImpl if isinstance(ArrayImpl, _Missing) else ArrayImpl.__getitem__
canonicalize_dtype = _lookup("jax._src.dtypes", "canonicalize_dtype")
jax_dtypes = _lookup("jax._src.dtypes", "_jax_dtype_set")
#: Types of parameters that are programs; the newest JAX has one of them.
jaxpr_types: tuple[type, ...] = tuple(
    getattr(jax._src.core, name) for name in ("Jaxpr", "ClosedJaxpr")
    if hasattr(jax._src.core, name)
)

# --- Switches that `python -m jaxmarshal run` offers ---------------------------------------------
set_tracebacks_enabled = _lookup("jaxlib._jax", "set_tracebacks_enabled")

# --- Capabilities --------------------------------------------------------------------------------
HAVE_CONTEXT: bool = _have(
    "HAVE_CONTEXT", trace_context, trace_state_clean, current_trace, eval_trace, xla_bridge,
    process_count, util, register_cache, profiling, post_hook,
)
HAVE_GUARDS: bool = _have("HAVE_GUARDS", host_to_device_guard, device_to_device_guard)
HAVE_PYTREE: bool = _have("HAVE_PYTREE", pytree_registry, pytree_node_types)
HAVE_DEVICE_PUT: bool = _have(
    "HAVE_DEVICE_PUT", ArrayImpl, Device, SingleDeviceSharding, NamedSharding, batched_device_put,
    shard_args, result_handler, REUSE_INPUT, canonicalize_value,
    flags=("HAVE_CONTEXT", "HAVE_GUARDS", "HAVE_PYTREE"),
)
HAVE_EXECUTE: bool = _have(
    "HAVE_EXECUTE", Compiled, MeshExecutable, ExecuteReplicated, compiled_call,
    mesh_executable_call, execute_replicated_call, consume_results, post_hook, abstractify,
    physical_sharding, debug_key_reuse, collect_garbage, flags=("HAVE_DEVICE_PUT",),
)
HAVE_JIT: bool = _have(
    "HAVE_JIT", cpp_pjit, PjitFunction, FastpathData, *jit_caches,
    *jit_key_states, abstract_mesh, disable_jit, flags=("HAVE_EXECUTE",),
)
HAVE_EAGER: bool = _have(
    "HAVE_EAGER", Primitive, primitive_bind, xla_primitive_callable, apply_primitive,
    stage_primitive, convert_bind_with_trace, canonicalize_value, jax_dtypes,
    flags=("HAVE_JIT",),
)
HAVE_REPLAY: bool = _have(
    "HAVE_REPLAY", array_getitem, canonicalize_dtype, flags=("HAVE_EAGER",)
)
HAVE_LAYOUT_PROBE: bool = _have(
    "HAVE_LAYOUT_PROBE", ArrayImpl, ShapedArray, SingleDeviceSharding, batched_device_put,
    guard_thread_state, TransferGuardLevel, xla_bridge,
)
# Of entry points that need one name more than those they are built on.
HAVE_BATCHED_IMPL: bool = _have(
    "HAVE_BATCHED_IMPL", batched_device_put_impl, flags=("HAVE_DEVICE_PUT",)
)
HAVE_PXLA_PUT: bool = _have(
    "HAVE_PXLA_PUT", pxla_batched_device_put, flags=("HAVE_DEVICE_PUT",)
)
HAVE_RESULTS_HANDLER: bool = _have(
    "HAVE_RESULTS_HANDLER", ResultsHandler, results_handler_call, flags=("HAVE_EXECUTE",)
)

for _variable, _value in list(globals().items()):
    if isinstance(_value, _Missing):
        globals()[_variable] = None


def numpy_scalars() -> frozenset[type]:
    """The numpy and ml_dtypes scalar types that the installed JAX accepts as arrays."""
    return frozenset(numpy_scalar_types)


def why_not_supported() -> str | None:
    """One sentence on why nothing is accelerated here, or None."""
    if SUPPORTED:
        return None
    low = ".".join(map(str, LOWER_BOUND))
    high = ".".join(map(str, UPPER_BOUND))
    return f"JAX {JAX_VERSION} is outside the supported range >={low},<{high}"
