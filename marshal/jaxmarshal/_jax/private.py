"""The gateway to JAX's private names: the only module that knows what they are called.

Everything else asks this module for an object or for a capability flag (`HAVE_…`). A name that
the installed JAX does not have is recorded in `missing`, the capability that needs it turns
false, and the entry points that need that capability stay the reference's. Nothing here
initialises a backend, reads a configuration value or creates an array.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

#: Where the files of JAX, jaxlib, numpy and jaxmarshal are.
FOLDERS = tuple(
    os.path.join(os.path.dirname(file), "")
    for file in (jax.__file__, jaxlib.__file__, np.__file__, os.path.dirname(__file__))
)

LOWER_BOUND = (0, 8)
UPPER_BOUND = (0, 13)


def version_tuple(text: str) -> tuple[int, ...]:
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

#: Is the installed JAX one whose semantics this release was checked against? The tests of this
#: project can be run with any other, to see what it lacks.
SUPPORTED: bool = (
    LOWER_BOUND <= version_tuple(JAX_VERSION) < UPPER_BOUND
    or os.environ.get("JAXMARSHAL_TEST_ANY_JAX") == "1"
)

#: "module.name" -> why it could not be had.
missing: dict[str, str] = {}


#: Object of JAX's -> fields of it that no version had with which this release was checked.
unknown_fields: dict[str, tuple[str, ...]] = {}

#: Capability flag -> the names, in the form of `missing`, for want of which it is off.
lacking: dict[str, tuple[str, ...]] = {}

_HAS_VECTORCALL = 1 << 11    # of a type's flags


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


def _called_by_pointer(owner: Any, names: str = "") -> Any:
    """An object that was looked up, or what these names lead to: a function that holds the pointer
    by which it is called; or a _Missing.
    """
    found = owner
    for name in names.split(".") if names and not isinstance(owner, _Missing) else ():
        found = getattr(found, name, None)
    if isinstance(found, _Missing) or type(found).__flags__ & _HAS_VECTORCALL:
        return found
    name = f"{owner.__module__}.{owner.__name__}.{names}".rstrip(".")
    missing[name] = "not a function that holds a pointer by which it is called"
    return _Missing(name)


def _method(cls: Any, *names: str) -> Any:
    """The first of these methods that a class that was looked up has; or a _Missing."""
    for name in names:
        if isinstance(cls, _Missing) or hasattr(cls, name):
            return getattr(cls, name, cls)
    missing[f"{cls.__name__}.{names[-1]}"] = "no such method"
    return _Missing(f"{cls.__name__}.{names[-1]}")


def _names_in(member: Any) -> set[str]:
    """The attributes that a property of JAX's reads; none where its code is not to be had."""
    code = getattr(inspect.unwrap(getattr(member, "fget", member)), "__code__", None)
    return set() if code is None else set(code.co_names)


def _for_each(function: Any) -> Any:
    """What calls a function that was looked up for each item of a list; or a _Missing."""

    def call_each(items: list[Any]) -> None:
        for item in items:
            function(item)

    return function if isinstance(function, _Missing) else call_each


def lookup_quietly(module: str, name: str) -> Any:
    """`module.name`, or None: a name that need not be there, nor the module."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _lookup_either(*names: str) -> Any:
    """The same for what has moved to another module, or been renamed: "module.name", each."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = lookup_quietly(module, attribute)
        if found is not None:
            return found
    missing[names[0]] = f"neither it nor {' nor '.join(names[1:])}"
    return _Missing(names[0])


def _have(flag: str, *objects: Any, flags: tuple[str, ...] = ()) -> bool:
    """The value of a flag that needs these objects and other flags; fills `lacking`."""
    names = [name for other in flags for name in lacking[other]]
    names += [obj.name for obj in objects if isinstance(obj, _Missing)]
    lacking[flag] = tuple(dict.fromkeys(names))
    return SUPPORTED and not names


def _known(name: str, found: Iterable[str], expected: frozenset[str]) -> Any:
    """True if an object has no other fields than those, or a _Missing.

    An unknown one may be the flag of a new effect, which nothing here would look at.
    """
    new = tuple(sorted(set(found) - expected))
    if not new:
        return True
    unknown_fields[name] = new
    missing[f"{name} as it was"] = f"unknown fields: {', '.join(new)}"
    return _Missing(f"{name} as it was")


def _slots(cls: Any) -> tuple[str, ...]:
    """The fields of the instances of a class with slots; `__dict__` where it has none."""
    return () if isinstance(cls, _Missing) else tuple(getattr(cls, "__slots__", ("__dict__",)))


def _flags(cls: Any) -> tuple[str, ...]:
    """The data among the attributes of a class."""
    return tuple(
        name for name, value in (() if isinstance(cls, _Missing) else vars(cls).items())
        if not name.startswith("__") and not callable(value)
    )  # fmt: skip


def _state(function: Any) -> tuple[str, ...]:
    """What a jitted function says of itself."""
    try:
        return tuple(function.__getstate__())
    except (AttributeError, TypeError):
        return ()


#: Is `jax.random` written in several modules? In one before JAX 0.10.2.
HAS_RANDOM_MODULES: bool = hasattr(jax._src.random, "__path__")

# --- Types ---------------------------------------------------------------------------------------
ArrayImpl = _lookup("jax._src.array", "ArrayImpl")
Tracer = _lookup("jax._src.core", "Tracer")
Ref = _lookup("jax._src.core", "Ref")
Token = _lookup("jax._src.core", "Token")
#: Where JAX has its typed keys: a module of its own before JAX 0.10.2.
PRNG = "jax._src.random.prng" if HAS_RANDOM_MODULES else "jax._src.prng"
PRNGKeyArray = _lookup("jax._src.random", "prng.PRNGKeyArray")
TypedNdArray = _lookup("jax._src.literals", "TypedNdArray")
typed_scalar_types = _lookup("jax._src.literals", "typed_scalar_types") or frozenset()
numpy_scalar_types = _lookup("jax._src.abstract_arrays", "numpy_scalar_types") or frozenset()
Device = _lookup("jaxlib._jax", "Device")
SingleDeviceSharding = _lookup("jax._src.sharding_impls", "SingleDeviceSharding")
NamedSharding = _lookup("jax._src.sharding_impls", "NamedSharding")
PartitionSpec = _lookup("jax._src.partition_spec", "PartitionSpec")
ShapedArray = _lookup("jax._src.core", "ShapedArray")

# --- State that decides what a call does ---------------------------------------------------------
trace_context = _lookup("jax._src.config", "trace_context")
config_states = _lookup("jax._src.config", "config_states")
trace_state_clean = _lookup("jax._src.core", "trace_state_clean")
ConfigState = _lookup("jaxlib._jax", "config.Config")
eval_trace = _lookup("jax._src.core", "eval_trace")
#: The state that holds the current trace, and what it holds outside of all traces. Before JAX 0.10
#: it is a weak reference, or None in a thread that has not traced yet.
HOLDS_TRACES: bool = not hasattr(jax._src.config, "trace_state")
if HOLDS_TRACES:
    current_trace = _lookup("jax._src.core", "trace_state_strong_ref")
else:
    current_trace = _lookup("jax._src.config", "trace_state")
no_trace = eval_trace if HOLDS_TRACES else getattr(eval_trace, "_weakref", eval_trace)
trace_holder = _lookup("jax._src.core", "trace_ctx")
StagingTrace = _lookup("jax._src.interpreters.partial_eval", "DynamicJaxprTrace")
profiling = _lookup("jax._src.lib", "_profiler.TraceMe.is_enabled")
post_hook = _lookup("jax._src.api", "_post_hook_state")
debug_nans = _lookup("jax._src.config", "debug_nans")
debug_infs = _lookup("jax._src.config", "debug_infs")
enable_pgle = _lookup("jax._src.config", "enable_pgle")
host_to_device_guard = _lookup("jax._src.config", "transfer_guard_host_to_device")
device_to_device_guard = _lookup("jax._src.config", "transfer_guard_device_to_device")
device_to_host_guard = _lookup("jax._src.config", "transfer_guard_device_to_host")
guard_thread_state = _lookup("jaxlib._jax.guard_lib", "thread_local_state")
TransferGuardLevel = _lookup("jaxlib._jax.guard_lib", "TransferGuardLevel")
#: Whose documentation `saving` replaces for a moment, so that every call is left to JAX.
core = _lookup("jax._src", "core")
xla_bridge = _lookup("jax._src", "xla_bridge")
process_count = _lookup("jax._src.xla_bridge", "process_count")
default_device = _lookup("jax._src.interpreters.pxla", "get_default_device")
backends_are_initialized = _lookup("jax._src.xla_bridge", "backends_are_initialized")
util = _lookup("jax._src", "util")
register_cache = _lookup("jax._src.util", "register_cache")

# --- Operations ----------------------------------------------------------------------------------
batched_device_put = _lookup("jaxlib._jax", "batched_device_put")
REUSE_INPUT = _lookup("jaxlib._jax", "ArrayCopySemantics.REUSE_INPUT")
ALWAYS_COPY = _lookup("jaxlib._jax", "ArrayCopySemantics.ALWAYS_COPY")
physical_sharding = _lookup("jax._src.sharding_impls", "physical_sharding")
debug_key_reuse = _lookup("jax._src.config", "debug_key_reuse")
disable_jit = _lookup("jax._src.config", "disable_jit")
shard_args = _lookup("jax._src.interpreters.pxla", "shard_args")
result_handler = _lookup("jax._src.interpreters.pxla", "global_aval_to_result_handler")
abstractify = _lookup("jax._src.core", "shaped_abstractify")
tree_leaves = jax.tree_util.tree_leaves
JaxRuntimeError = jax.errors.JaxRuntimeError
canonicalize_value = _lookup("jax._src.dtypes", "canonicalize_value")
#: Lets go of what the runtime's threads have done with, as many of jaxlib's functions do first.
collect_garbage = lookup_quietly("jaxlib._jax", "collect_garbage")
#: Does jaxlib cut host data into shards itself? A state that came with a later version.
use_cpp_shard_args = getattr(jax._src.config, "use_cpp_shard_args", None)
dlpack_to_array = _lookup("jaxlib._jax", "dlpack_managed_tensor_to_buffer")
CompileOptions = _lookup("jaxlib._jax", "CompileOptions")
DeviceAssignment = _lookup("jaxlib._jax", "DeviceAssignment")
DeviceList = _lookup("jaxlib._jax", "DeviceList")
pytree_registry = _lookup("jax._src.tree_util", "default_registry")
pytree_node_types = _lookup("jax._src.tree_util", "_registry")
PyTreeDef = jax.tree_util.PyTreeDef

# --- Modules and the objects that `install` replaces ---------------------------------------------
dispatch = _lookup("jax._src", "dispatch")
device_put: Callable[..., Any] = jax.device_put
make_process_array = _lookup("jax._src.array", "make_array_from_process_local_data")
batched_device_put_impl = _lookup("jax._src.dispatch", "batched_device_put_impl")
device_put_primitive = _lookup("jax._src.dispatch", "device_put_p")
runtime_tokens = lookup_quietly("jax._src.dispatch", "runtime_tokens")

stages = _lookup("jax._src", "stages")
pxla = _lookup("jax._src.interpreters", "pxla")
Compiled = _lookup("jax._src.stages", "Compiled")
InputsHandler = _lookup("jax._src.interpreters.pxla", "InputsHandler")
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
pjit = _lookup("jax._src", "pjit")
cpp_pjit = _lookup("jax._src.pjit", "_cpp_pjit")
PjitFunction = _lookup("jaxlib._jax", "PjitFunction")
FastpathData = _lookup("jax._src.interpreters.pxla", "MeshExecutableFastpathData")
#: Does jaxlib's own call ask whether an argument was donated before it runs? Later ones do.
looks_for_donated: bool = version_tuple(JAXLIB_VERSION) >= (0, 11)
#: Does XLA make one kernel of concatenations of concatenations? Later ones make one for each.
fuses_nested_concatenations: bool = version_tuple(JAXLIB_VERSION) < (0, 11)
#: Does a warning of `jax.jit` name the file of whoever called? Before, it names JAX's.
jit_warns_its_caller: bool = version_tuple(JAX_VERSION) >= (0, 10, 2)
#: What makes the data that jaxlib keeps of a call of a jitted function.
fastpath_data = _lookup("jax._src.pjit", "_get_fastpath_data")
#: The inputs of the program of a call of a jitted function; traces it where JAX's caches lack it.
infer_params = _lookup("jax._src.pjit", "_infer_params")
infer_params_cache = _lookup("jax._src.pjit", "_infer_params_cached")
no_tracing = _lookup("jax._src.config", "no_tracing")


def _cache_miss_code() -> Any:
    """The code of the function that jaxlib calls for a signature it does not know, or a _Missing.

    It is defined inside `_cpp_pjit`, and knows which jitted function it belongs to by `jit_info`.
    """
    for constant in getattr(cpp_pjit, "__code__", _NO_CODE).co_consts:
        if getattr(constant, "co_name", "") == "cache_miss" and (
            "jit_info" in constant.co_freevars
        ):
            return constant
    missing["jax._src.pjit._cpp_pjit.cache_miss"] = "its code is not what it was"
    return _Missing("jax._src.pjit._cpp_pjit.cache_miss")


_NO_CODE = compile("", "", "exec")
cache_miss_code = _cache_miss_code()
optimization_level = _lookup("jax._src.config", "optimization_level")
memory_fitting_level = _lookup("jax._src.config", "memory_fitting_level")
device_context = _lookup_either("jax._src.mesh.device_context", "jax._src.config.device_context")
#: The configuration states that jitted functions depend on and the trace context lacks. Some came
#: with later versions, and one is gone.
jit_key_states: tuple[Any, ...] = (
    optimization_level,
    memory_fitting_level,
    device_context,
    *(
        getattr(jax._src.config, name)
        for name in (
            "jax_pallas_auto_assign_collective_ids",
            "jax_pallas_auto_assign_collective_ids_limit",
            "safer_randint",
        )
        if hasattr(jax._src.config, name)
    ),
)

# --- Operations one by one -----------------------------------------------------------------------
Primitive = _lookup("jax._src.core", "Primitive")
primitive_bind = _lookup("jax._src.core", "Primitive.bind")
jaxprs_in_params = _lookup("jax._src.core", "jaxprs_in_params")
xla_primitive_callable = _lookup("jax._src.dispatch", "xla_primitive_callable")
Format = _lookup("jax._src.layout", "Format")
Layout = _lookup("jax._src.layout", "Layout")
MemorySpace = _lookup("jax._src.core", "MemorySpace")
#: What `device_put` to a Format jits.
reshard_identity = _lookup_either(
    "jax._src.dispatch._device_put_reshard", "jax._src.dispatch._identity_fn"
)
apply_primitive = _lookup("jax._src.dispatch", "apply_primitive")
#: Makes arrays of data on the host since JAX 0.10.1; what made them before is `device_put`.
stage_primitive = lookup_quietly("jax._src.core", "stage_p")
jit_primitive = _lookup("jax._src.pjit", "jit_p")
convert_primitive = _lookup("jax._src.lax.lax", "convert_element_type_p")
convert_bind_with_trace = _lookup("jax._src.lax.lax", "_convert_element_type_bind_with_trace")
abstract_mesh = _lookup("jax._src.mesh", "get_abstract_mesh")
jnp_zeros = jnp.zeros
jnp_ones = jnp.ones
jnp_full = jnp.full
jnp_asarray = jnp.asarray
jnp_array = jnp.array
array_getitem = _method(ArrayImpl, "__getitem__")
aval_mappings = _lookup("jax._src.core", "pytype_aval_mappings")
type_of_array = lookup_quietly("jax._src.array", "_get_aval_array")
buffer_to_dlpack = _lookup("jaxlib._jax", "buffer_to_dlpack_managed_tensor")
data_pointer = _called_by_pointer(ArrayImpl, "unsafe_buffer_pointer")
#: What hands out the elements of an array: through the first of them go Python's conversions and
#: `__array__`, through the last one `__dlpack__`. (The buffer protocol is another way.)
array_readers = (
    _called_by_pointer(ArrayImpl, "_value.fget"),
    data_pointer,
    _called_by_pointer(buffer_to_dlpack),
)
#: `jax.device_get`, and what it asks each array in the end: all of it at once, or the one shard.
device_get = _lookup("jax._src.api", "device_get")
array_to_numpy = _method(
    ArrayImpl, *_names_in(_method(ArrayImpl, "_value")).intersection(["_to_np_array_did_copy"]),
    "_single_device_array_to_np_array_did_copy",
)
#: Begins to copy several arrays to the host; a later jaxlib does so in one call.
start_copies = lookup_quietly("jaxlib._jax", "batched_copy_to_host_async") or _for_each(
    _method(ArrayImpl, "_copy_single_device_array_to_host_async")
)
block_until_ready = _method(ArrayImpl, "block_until_ready")
is_ready = _method(ArrayImpl, "is_ready")
consume_token = _lookup("jaxlib._jax", "ExecuteResults.consume_token")
#: Is called after each computation that has callbacks or effects, before its results are arrays.
token_taker = _called_by_pointer(consume_token)
canonicalize_dtype = _lookup("jax._src.dtypes", "canonicalize_dtype")
jax_dtypes = _lookup("jax._src.dtypes", "_jax_dtype_set")
enable_x64 = _lookup("jax._src.config", "enable_x64")
IndexUpdateRef = _lookup("jax._src.numpy.array_methods", "_IndexUpdateRef")
custom_jvp = _lookup("jax._src.custom_derivatives", "custom_jvp")
custom_jvp_primitive = _lookup("jax._src.custom_derivatives", "custom_jvp_call_p")
custom_jvp_call = _lookup("jax._src.custom_derivatives", "custom_jvp.__call__")
ufunc = _lookup("jax._src.numpy.ufunc_api", "ufunc")
ufunc_call = _lookup("jax._src.numpy.ufunc_api", "ufunc.__call__")
check_tracer_leaks = _lookup("jax._src.config", "check_tracer_leaks")
legacy_prng_key = _lookup("jax._src.config", "legacy_prng_key")
enable_custom_prng = _lookup("jax._src.config", "enable_custom_prng")
default_prng_impl = _lookup("jax._src.config", "default_prng_impl")
#: JAX's own kinds of typed keys; a program can define others, by functions of its own.
all_prng_impls = lookup_quietly(PRNG, "prngs") or {}
prng_impls: tuple[Any, ...] = tuple(
    impl for impl in all_prng_impls.values()
    if all(
        getattr(function, "__module__", "").startswith("jax._src.")
        for function in (impl.seed, impl.split, impl.random_bits, impl.fold_in)
    )
)  # fmt: skip
prng_impl_names = frozenset(impl.name for impl in prng_impls)
random_wrap = lookup_quietly(PRNG, "random_wrap")
random_unwrap = lookup_quietly(PRNG, "random_unwrap")
#: The configuration states that functions of `jax.random` depend on, no others of JAX, and which
#: the trace context lacks.
states_of_random: tuple[Any, ...] = (legacy_prng_key, enable_custom_prng, default_prng_impl)
#: Types of parameters that are values: their instances own nothing but plain values, and JAX's own.
value_tuples: tuple[type, ...] = tuple(
    getattr(jax.lax, name) for name in ("GatherDimensionNumbers", "ConvDimensionNumbers")
    if issubclass(getattr(jax.lax, name, object), tuple)
)
value_enums: tuple[type, ...] = tuple(
    cls for cls in (
        getattr(jax.lax, "GatherScatterMode", None), getattr(jax.lax, "Precision", None),
        getattr(jax.lax, "AccuracyMode", None), getattr(jax.lax, "RoundingMethod", None),
        getattr(jax.lax, "RandomAlgorithm", None), getattr(jax.lax, "FftType", None),
        getattr(jax.lax, "DotAlgorithmPreset", None), jax.sharding.AxisType,
    )
    if isinstance(cls, type)
)

# --- Who hears that something is compiled -------------------------------------------------------
monitoring = _lookup("jax._src", "monitoring")
#: The lists of functions that hear of it.
MONITORS = (
    "_event_listeners", "_event_duration_secs_listeners", "_event_time_span_listeners",
    "_scalar_listeners",
)
#: States that have JAX say that something is compiled, or keep it; their values when they do not.
silent_states: tuple[tuple[Any, Any], ...] = tuple(
    (getattr(jax._src.config, name, None), value)
    for name, value in (
        ("log_compiles", False), ("explain_cache_misses", False), ("compilation_cache_dir", None),
        ("no_tracing", False), ("no_execution", False), ("check_tracer_leaks", False),
        ("jax_dump_ir_to", ""),
    )
)  # fmt: skip

# --- What fast paths go past ---------------------------------------------------------------------


def _module_and_name(place: str) -> list[str]:
    """Where a place is found: "module", or "module:name" of a class or a table in one."""
    return place.replace(":", ".").rsplit(".", 1)


def _places_of_some(*names: str) -> list[Any]:
    """Modules and classes that some of the versions lack, those of them that are there."""
    found = [lookup_quietly(*_module_and_name(name)) for name in names]
    return [place for place in found if place is not None]


def _places(*names: str) -> list[Any]:
    """Modules, and classes and tables in them, of which none may be missing."""
    found = []
    for place in (_lookup(*_module_and_name(name)) for name in names):
        if isinstance(place, _Missing):
            return [place]
        found.append(place)
    return found


#: What `Primitive.bind` looks names up in, outside a trace.
bind_rules = _places(
    "jax._src.core", "jax._src.dtypes", "jax._src.dispatch", "jax._src.mesh",
    "jax._src.core:Primitive", "jax._src.core:EvalTrace", "jax._src.core:TracingContext",
    "jax._src.core:pytype_aval_mappings", "jax._src.mesh:AbstractMesh",
)  # fmt: skip
bind_rules += _places_of_some(
    "jax._src.core:RefMeta", "jax._src.core:SetCurrentTraceContextManager",
)  # fmt: skip
#: What entry points of `jax.numpy`, and indexing, look names up in beside these.
numpy_rules = _places(
    "jax._src.abstract_arrays", "jax._src.array", "jax._src.lax.lax", "jax._src.lax.slicing",
    "jax._src.literals", "jax._src.numpy.array_constructors", "jax._src.numpy.array_creation",
    "jax._src.numpy.indexing", "jax._src.numpy.util", "jax._src.sharding_impls", "jax._src.util",
    "jax._src.array:ArrayImpl", "jax._src.core:ShapedArray", "jax._src.literals:TypedNdArray",
    "jax._src.literals:TypedFloat", "jax._src.literals:TypedInt",
    "jax._src.sharding_impls:SingleDeviceSharding", "jax._src.numpy.indexing:NDIndexer",
)  # fmt: skip
numpy_rules.append(np)
#: What the functions of `_core/entries/which_functions.py` look names up in beside these.
function_rules = _places(
    "jax.lax", "jax.nn", "jax.numpy", "jax.random", "jax._src.lax", "jax._src.numpy",
    "jax._src.custom_derivatives", "jax._src.lax.ann", "jax._src.lax.control_flow",
    "jax._src.lax.control_flow.common", "jax._src.lax.control_flow.conditionals",
    "jax._src.lax.control_flow.loops", "jax._src.lax.convolution", "jax._src.lax.fft",
    "jax._src.lax.linalg", "jax._src.lax.other", "jax._src.lax.parallel", "jax._src.lax.special",
    "jax._src.lax.utils", "jax._src.lax.windowed_reductions", "jax._src.nn.functions",
    "jax._src.numpy.array_methods", "jax._src.numpy.einsum", "jax._src.numpy.error",
    "jax._src.numpy.fft", "jax._src.numpy.index_tricks", "jax._src.numpy.lax_numpy",
    "jax._src.numpy.linalg", "jax._src.numpy.polynomial", "jax._src.numpy.reductions",
    "jax._src.numpy.setops", "jax._src.numpy.sorting", "jax._src.numpy.tensor_contractions",
    "jax._src.numpy.ufuncs", "jax._src.numpy.ufunc_api", "jax._src.numpy.vectorize",
    "jax._src.numpy.window_functions", "jax._src.ops.scatter", "jax._src.ops.special",
    "jax._src.pjit",
    "jax._src.random", PRNG, f"{PRNG}:PRNGKeyArray",
    *(
        f"jax._src.random.{name}" for name in (
            "core", "philox2x32", "philox4x32", "rbg", "threefry2x32", "threefry4x32",
        ) if HAS_RANDOM_MODULES
    ),
    "jax._src.api", "jax._src.api_util", "jax._src.tree_util", "jax._src.named_sharding",
    "jax._src.numpy.scalar_types",
    "jax._src.named_sharding:NamedSharding", "jax._src.partition_spec:PartitionSpec",
    "jax._src.custom_derivatives:custom_jvp", "jax._src.custom_derivatives:CustomJVPCallPrimitive",
    "jax._src.numpy.array_methods:_IndexUpdateRef",
    "jax._src.numpy.array_methods:_IndexUpdateHelper", "jax._src.numpy.ufunc_api:ufunc",
    "jax._src.linear_util", "jax._src.op_shardings", "jax._src.sharding",
    "jax._src.source_info_util", "jax._src.interpreters.batching",
    "jax._src.interpreters.partial_eval", "jax._src.core:AbstractValue", "jax._src.core:Jaxpr",
    "jax._src.lax.slicing:GatherScatterMode", "jax._src.numpy.indexing:IndexType",
    "jax._src.numpy.scalar_types:_ScalarMeta", "jax._src.sharding:Sharding", f"{PRNG}:KeyTy",
    f"{PRNG}:KeyTyRules", f"{PRNG}:PRNGImpl",
)  # fmt: skip
function_rules += _places_of_some(
    "jax._src.flattree", "jax._src.flattree:FlatTree", "jax._src.tree_util:FlatTree",
    "jax._src.core:ClosedJaxpr", "jax._src.core:ManualAxisType",
    "jax._src.numpy.indexing:_StaticSliceIndexer",
    "jax._src.source_info_util:ExtendNameStackContextManager",
    "jax._src.ad_util", "jax._src.config", "jax._src.config:UserConfig", "jax._src.core:JaxprEqn",
    "jax._src.effects:EffectTypeSet", "jax._src.flattree:FTDict", "jax._src.flattree:FTFiltered",
    "jax._src.flattree:FTPyTree", "jax._src.flattree:FTSingleton", "jax._src.flattree:FTTuple",
    "jax._src.hijax", "jax._src.hijax:HiPrim", "jax._src.interpreters.mlir", "jax._src.lib",
    "jax._src.interpreters.pxla:JitGlobalCppCacheKeys", "jax._src.linear_util:DebugInfo",
    "jax._src.linear_util:EqualStore", "jax._src.linear_util:Store",
    "jax._src.linear_util:WrappedFun", "jax._src.mesh:Mesh", "jax._src.numpy.hijax",
    "jax._src.numpy.hijax:Nonzero", "jax._src.numpy.indexing:IndexingStrategy",
    "jax._src.partition_spec", "jax._src.source_info_util:NameStack",
    "jax._src.source_info_util:SourceInfo", "jax._src.traceback_util", "jax._src.util:Either",
    "jax._src.xla_bridge",
)
function_rules += [
    importlib.import_module(f"opt_einsum{name}")
    for name in ("", ".blas", ".contract", ".helpers", ".parser", ".paths")
]
#: What placing arguments, and calls of executables in Python, look names up in.
placement_rules = _places(
    "jax._src.api", "jax._src.array", "jax._src.core", "jax._src.dispatch", "jax._src.dtypes",
    "jax._src.interpreters.pxla", "jax._src.sharding_impls", "jax._src.tree_util",
    "jax._src.array:ArrayImpl", "jax._src.named_sharding:NamedSharding",
    "jax._src.sharding_impls:SingleDeviceSharding",
    "jax._src.interpreters.pxla:shard_arg_handlers",
    "jax._src.interpreters.pxla:global_result_handlers",
    "jax._src.core:pytype_aval_mappings",
)  # fmt: skip
placement_rules += _places_of_some(
    "jax._src.abstract_arrays", "jax._src.api_util", "jax._src.config",
    "jax._src.core:AbstractValue", "jax._src.core:ManualAxisType", "jax._src.core:RefMeta",
    "jax._src.core:SetCurrentTraceContextManager", "jax._src.core:ShapedArray",
    "jax._src.core:TracingContext", "jax._src.dispatch:_DeferredShardArg",
    "jax._src.layout", "jax._src.literals:TypedNdArray", "jax._src.mesh",
    "jax._src.mesh:AbstractMesh", "jax._src.mesh:Mesh", "jax._src.mesh:_HashableDeviceArray",
    "jax._src.named_sharding", "jax._src.partition_spec",
    "jax._src.partition_spec:PartitionSpec", "jax._src.sharding:Sharding",
    "jax._src.traceback_util", "jax._src.util", "jax._src.xla_bridge",
)
#: Names in these, and in modules of libraries, that these assign to themselves.
VARIABLES = frozenset({
    "test_event_listener", "last_error_info", "already_configured_with_absl", "_backends",
    "_backend_errors", "_default_backend", "_plugins_registered", "_at_fork_handler_installed",
})

# --- Switches that `python -m jaxmarshal run` offers ---------------------------------------------
set_tracebacks_enabled = _lookup("jaxlib._jax", "set_tracebacks_enabled")

# --- The fields of JAX's objects -----------------------------------------------------------------
#: Object -> its fields in the versions that were checked; see `_known`.
EXPECTED_FIELDS: dict[str, frozenset[str]] = {
    "jax._src.interpreters.pxla.ExecuteReplicated": frozenset((
        "xla_executable", "name", "backend", "in_handler", "out_handler", "has_unordered_effects",
        "ordered_effects", "keepalive", "has_host_callbacks", "_local_devices", "kept_var_idx",
        "mut", "pgle_profiler", "__weakref__",
    )),
    "jax._src.interpreters.pxla.InputsHandler": frozenset((
        "handler", "in_shardings", "in_layouts", "local_devices", "input_indices",
    )),
    "jax._src.interpreters.pxla.ResultsHandler": frozenset((
        "handlers", "out_shardings", "out_avals",
    )),
    "jax._src.stages.Compiled": frozenset((
        "args_info", "out_tree", "_executable", "_no_kwargs", "_params",
    )),
    "jax._src.interpreters.pxla.MeshExecutableFastpathData": frozenset((
        "xla_executable", "out_pytree_def", "in_shardings", "out_shardings", "out_avals",
        "out_committed", "kept_var_bitvec", "in_device_local_layouts", "const_args",
    )),
    "jax.jit": frozenset((
        "cache", "cache_miss", "fun", "function_name", "global_cache_key", "pytree_registry",
        "shard_arg_fallback", "static_argnames", "static_argnums", "version",
    )),
    "jax._src.core.Primitive": frozenset((
        "multiple_results", "call_primitive", "ref_primitive", "skip_canonicalization",
        "ref_allocating", "is_effectful", "map_primitive", "to_lojax",
    )),
}  # fmt: skip
#: The fields that these objects have here.
FOUND_FIELDS: dict[str, tuple[str, ...]] = dict(zip(EXPECTED_FIELDS, (
    _slots(ExecuteReplicated), _slots(InputsHandler), _slots(ResultsHandler), _slots(Compiled),
    getattr(FastpathData, "_fields", ()), _state(jnp.sin), _flags(Primitive),
), strict=True))  # fmt: skip
known_fields: dict[str, Any] = {
    name: _known(name, FOUND_FIELDS[name], expected) for name, expected in EXPECTED_FIELDS.items()
}

#: Whether anything in a namespace was replaced is seen by its version; see
#: `_core/context/bypassed.pyx`.
dict_versions: Any = True
if sys.version_info >= (3, 14):
    missing["CPython's versions of dicts"] = "gone since Python 3.14"
    dict_versions = _Missing("CPython's versions of dicts")

# --- Capabilities --------------------------------------------------------------------------------
HAVE_CONTEXT: bool = _have(
    "HAVE_CONTEXT", *placement_rules, enable_pgle, trace_context, trace_state_clean,
    current_trace, eval_trace, xla_bridge, process_count, util, register_cache, profiling,
    post_hook, debug_nans, debug_infs, dict_versions,
)
HAVE_GUARDS: bool = _have(
    "HAVE_GUARDS", host_to_device_guard, device_to_device_guard, device_to_host_guard
)
HAVE_PYTREE: bool = _have("HAVE_PYTREE", pytree_registry, pytree_node_types)
HAVE_DEVICE_PUT: bool = _have(
    "HAVE_DEVICE_PUT", ArrayImpl, Device, SingleDeviceSharding, NamedSharding, PartitionSpec,
    default_device,
    device_context, batched_device_put, shard_args, result_handler, REUSE_INPUT,
    ALWAYS_COPY, canonicalize_value, canonicalize_dtype,
    flags=("HAVE_CONTEXT", "HAVE_GUARDS", "HAVE_PYTREE"),
)
HAVE_EXECUTE: bool = _have(
    "HAVE_EXECUTE", Compiled, MeshExecutable, ExecuteReplicated, compiled_call,
    mesh_executable_call, execute_replicated_call, consume_results, post_hook, abstractify,
    physical_sharding, debug_key_reuse, collect_garbage, InputsHandler,
    *(known_fields[f"jax._src.interpreters.pxla.{name}"]
      for name in ("ExecuteReplicated", "InputsHandler", "ResultsHandler")),
    known_fields["jax._src.stages.Compiled"], flags=("HAVE_DEVICE_PUT",),
)
HAVE_JIT: bool = _have(
    "HAVE_JIT", pjit, cpp_pjit, PjitFunction, FastpathData, fastpath_data, infer_params,
    infer_params_cache, no_tracing,
    known_fields["jax._src.interpreters.pxla.MeshExecutableFastpathData"], known_fields["jax.jit"],
    cache_miss_code, *jit_key_states, abstract_mesh, disable_jit, flags=("HAVE_EXECUTE",),
)
HAVE_REUSE: bool = _have("HAVE_REUSE", data_pointer, is_ready, flags=("HAVE_JIT",))
HAVE_RULES: bool = _have(
    "HAVE_RULES", *bind_rules, *numpy_rules, eval_trace, dict_versions
)
if not HAVE_RULES:
    bind_rules = numpy_rules = function_rules = []
if not HAVE_CONTEXT:
    placement_rules = []
HAVE_EAGER: bool = _have(
    "HAVE_EAGER", Primitive, primitive_bind, xla_primitive_callable, apply_primitive,
    convert_bind_with_trace, canonicalize_value, jax_dtypes, enable_x64,
    jit_primitive, known_fields["jax._src.core.Primitive"], flags=("HAVE_JIT", "HAVE_RULES"),
)
HAVE_REPLAY: bool = _have(
    "HAVE_REPLAY", array_getitem, PRNGKeyArray, IndexUpdateRef, custom_jvp, custom_jvp_call,
    custom_jvp_primitive, ufunc, ufunc_call, check_tracer_leaks, convert_primitive,
    jaxprs_in_params, *array_readers, *states_of_random, *function_rules,
    flags=("HAVE_EAGER",),
)
HAVE_SCALAR_READS: bool = _have(
    "HAVE_SCALAR_READS", block_until_ready, token_taker, backends_are_initialized,
    flags=("HAVE_REPLAY",),
)
HAVE_FETCHES: bool = _have(
    "HAVE_FETCHES", device_get, array_to_numpy, start_copies,
    flags=("HAVE_REPLAY", "HAVE_GUARDS"),
)
HAVE_LAYOUT_PROBE: bool = _have(
    "HAVE_LAYOUT_PROBE", ArrayImpl, ShapedArray, SingleDeviceSharding, batched_device_put,
    guard_thread_state, TransferGuardLevel, xla_bridge,
)
# Of entry points that need one name more than those they are built on.
HAVE_BATCHED_IMPL: bool = _have(
    "HAVE_BATCHED_IMPL", batched_device_put_impl, flags=("HAVE_DEVICE_PUT",)
)
HAVE_RESHARD: bool = _have(
    "HAVE_RESHARD", Format, Layout, MemorySpace, reshard_identity, xla_primitive_callable,
    device_put_primitive, flags=("HAVE_DEVICE_PUT",),
)
HAVE_PROCESS_DATA: bool = _have(
    "HAVE_PROCESS_DATA", make_process_array, flags=("HAVE_DEVICE_PUT",)
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


def is_own_key_dtype(dtype: Any) -> bool:
    """Is it the dtype of JAX's default kind of typed keys, whose words are computed by integers?"""
    return getattr(getattr(dtype, "_impl", None), "name", None) == "threefry2x32"


def is_staging() -> bool:
    """Does JAX write down a program on this thread, to compile it?

    False where the installed JAX does not tell. `grad` and `vmap` outside of `jit` run what they
    trace, and do not count.
    """
    trace = getattr(trace_holder, "trace", None)
    while trace is not None:
        if StagingTrace is not None and isinstance(trace, StagingTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def source_of(compiled: Any) -> tuple[str, str, int] | None:
    """The name, file and line of the function that was compiled ahead of time, where JAX tells."""
    try:
        text = compiled._executable._all_args_info.debug_info.func_src_info
        name, place = text.rsplit(" at ", 1)
        file, line = place.rsplit(":", 1)
        return name, file, int(line)
    except (AttributeError, ValueError):
        return None


def why_not_supported() -> str | None:
    """One sentence on why nothing is accelerated here, or None."""
    if SUPPORTED:
        return None
    low = ".".join(map(str, LOWER_BOUND))
    high = ".".join(map(str, UPPER_BOUND))
    return f"JAX {JAX_VERSION} is outside the supported range >={low},<{high}"
