"""Every state of JAX's configuration, by name, and what it is changed to.

`VALUES` are states that `jax.config` knows; `CONTEXTS` are those that JAX sets by other means;
`IRRELEVANT` says in a line why a state has nothing to do with calls of warm functions. A state
that the installed JAX has and this page does not name makes `test_states.py` fail.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas
import numpy as np
from jax._src import config as jax_config, core as jax_core
from jax.experimental.compute_on import compute_on
from jax.experimental.xla_metadata import set_xla_metadata

GUARDS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
ON, OFF = (True,), (False,)


def other_device() -> tuple:
    """Values of the default device: another one, and the name of a platform."""
    return (jax.devices()[3], "cpu")


#: The other values of each state; those of a function are made when they are needed.
VALUES: dict[str, tuple | Callable[[], tuple]] = {
    "check_vma": ON,
    "eager_constant_folding": ON,
    "jax2tf_associative_scan_reductions": ON,
    "jax2tf_default_native_serialization": OFF,
    "jax_accurate_erf_inv": ON,
    "jax_allow_f16_reductions": OFF,
    "jax_array_garbage_collection_guard": ("allow", "log"),
    "jax_auto_pcast": OFF,
    "jax_bcoo_cusparse_lowering": ON,
    "jax_captured_constants_report_frames": (1,),
    "jax_captured_constants_warn_bytes": (0,),
    "jax_check_static_indices": ON,
    "jax_check_tracer_leaks": ON,
    "jax_compiler_detailed_logging_min_ops": (0,),
    "jax_compiler_enable_remat_pass": OFF,
    "jax_custom_jvp3": ON,
    "jax_custom_vjp3": ON,
    "jax_safer_randint": OFF,    # JAX 0.8
    "jax_debug_infs": ON,
    "jax_debug_key_reuse": ON,
    "jax_debug_log_modules": ("jax._src.interpreters.pxla", "jax._src.dispatch"),
    "jax_debug_nans": ON,
    "jax_default_device": other_device,
    "jax_default_matmul_precision": ("highest", "bfloat16"),
    "jax_default_prng_impl": ("rbg",),
    "jax_disable_bwd_checks": ON,
    "jax_disable_jit": ON,
    "jax_disable_most_optimizations": ON,
    "jax_disable_vmap_shmap_error": ON,
    "jax_disallow_mesh_context_manager": ON,
    "jax_distributed_debug": ON,
    "jax_embedded_constants_max_bytes": (0,),
    "jax_enable_checks": ON,
    "jax_enable_compilation_cache": OFF,
    "jax_enable_custom_prng": ON,
    "jax_enable_pgle": ON,
    "jax_enable_x64": ON,
    "jax_error_checking_behavior_divide": ("raise",),
    "jax_error_checking_behavior_nan": ("raise",),
    "jax_error_checking_behavior_oob": ("raise",),
    "jax_exec_time_optimization_effort": (0.5,),
    "jax_explain_cache_misses": ON,
    "jax_explicit_x64_dtypes": ("error", "allow"),
    "jax_force_dcn_cross_host_transfers": ON,
    "jax_high_dynamic_range_gumbel": ON,
    "jax_hlo_source_file_canonicalization_regex": (".*",),
    "jax_include_debug_info_in_dumps": OFF,
    "jax_include_full_tracebacks_in_locations": OFF,
    "jax_legacy_prng_key": ("warn", "error"),
    "jax_log_checkpoint_residuals": ON,
    "jax_log_compiles": ON,
    "jax_logging_level": ("DEBUG", "ERROR"),
    "jax_memory_fitting_effort": (0.5,),
    "jax_memory_fitting_level": ("O1",),
    "jax_mosaic_allow_hlo": ON,
    "jax_mosaic_unzip_debug_locations": OFF,
    "jax_mutable_array_checks": OFF,
    "jax_no_collectives": ON,
    "jax_no_execution": ON,
    "jax_no_tracing": ON,
    "jax_numpy_dtype_promotion": ("strict",),
    "jax_numpy_rank_promotion": ("warn", "raise"),
    "jax_optimization_level": ("O0",),
    "jax_pallas_auto_assign_collective_ids": ("yes",),
    "jax_pallas_auto_assign_collective_ids_limit": (7,),
    "jax_pallas_enable_debug_checks": ON,
    "jax_pallas_poison_buffers": ON,
    # Off by default in JAX 0.8, and gone from 0.12.
    "jax_pallas_use_mosaic_gpu": OFF if getattr(jax.config, "jax_pallas_use_mosaic_gpu", 1) else ON,
    "jax_pallas_verbose_errors": ON,
    "jax_pgle_aggregation_percentile": (50,),
    "jax_pgle_profiling_runs": (1,),
    "jax_platform_name": ("cpu",),
    "jax_pprint_use_color": OFF,
    "jax_ragged_dot_use_gpu_pallas_triton_lowering": ON,
    "jax_ragged_dot_use_ragged_dot_instruction": OFF,
    "jax_raise_on_ppermute_sort_diff": OFF,
    "jax_random_seed_offset": (1,),
    "jax_refs_to_pins": ON,
    "jax_remat3": ON,
    "jax_remat_barrier_no_cotangents": ON,
    "jax_remove_custom_partitioning_ptr_from_cache_key": ON,
    "jax_remove_size_one_mesh_axis_from_type": ON,
    "jax_scan3": ON,
    "jax_send_traceback_to_runtime": ("on", "full"),
    "jax_softmax_custom_jvp": ON,
    "jax_source_url_schema": ("vscode",),
    "jax_thread_guard": ON,
    "jax_threefry_gpu_kernel_lowering": ON,
    "jax_threefry_partitionable": OFF,
    "jax_traceback_filtering": ("off",),
    "jax_traceback_in_locations_limit": (0,),
    "jax_tracer_error_num_traceback_frames": (1,),
    "jax_transfer_guard": GUARDS,
    "jax_transfer_guard_device_to_device": GUARDS,
    "jax_transfer_guard_device_to_host": GUARDS,
    "jax_transfer_guard_host_to_device": GUARDS,
    "jax_use_cpp_shard_args": ON,
    "jax_use_direct_linearize": OFF,
    "jax_use_emit_pipeline_primitive": ON,
    "jax_use_hlo_logistic_lowering": ON,
    "jax_use_magma": ("off",),
    "jax_use_rgv3": OFF,
    "jax_use_shardy_partitioner": OFF,
    "jax_use_simplified_jaxpr_constants": ON,
    "jax_xla_profile_version": (1,),
}

BACKEND = "read when the backend is made, which is before any call"
COMPILING = "the cache of compiled programs on disk: read while compiling"
EXPORT = "read by jax.export alone"
SEVERAL = "read where several processes take part, whose calls all go to JAX"

IRRELEVANT: dict[str, str] = {
    # Of JAX 0.8 to 0.10.
    "allow_ragged_dot_tpu_explicit_transpose": "read when a program is lowered for TPUs",
    "jax_collectives_common_channel_id": "read when a program is lowered",
    "jax_default_dtype_bits": "has no effect any more",
    "jax_experimental_colocated_python_object_use_weakrefs_at_backend": BACKEND,
    "jax_enable_custom_vjp_by_custom_transpose": "read when a function is differentiated",
    "jax_pmap_no_rank_reduction": "read by pmap",
    "jax_pmap_shmap_merge": "read by pmap",
    "jax_backend_target": BACKEND,
    "jax_check_proxy_envs": SEVERAL,
    "jax_compilation_cache_check_contents": COMPILING,
    "jax_compilation_cache_dir": COMPILING,
    "jax_compilation_cache_expect_pgle": COMPILING,
    "jax_compilation_cache_include_metadata_in_key": COMPILING,
    "jax_compilation_cache_max_size": COMPILING,
    "jax_cpu_collectives_implementation": BACKEND,
    "jax_cpu_enable_async_dispatch": BACKEND,
    "jax_cpu_get_global_topology_timeout_minutes": BACKEND,
    "jax_cpu_get_local_topology_timeout_minutes": BACKEND,
    "jax_cross_host_transfer_socket_address": SEVERAL,
    "jax_cross_host_transfer_timeout_seconds": SEVERAL,
    "jax_cross_host_transfer_transfer_size": SEVERAL,
    "jax_cross_host_transport_addresses": SEVERAL,
    "jax_cuda_visible_devices": BACKEND,
    "jax_debug_leaked_clients_on_clear_backends": "read while backends are dropped",
    "jax_distributed_verify_secure_credentials": SEVERAL,
    "jax_dump_ir_modes": "read where a program is written to a file, while compiling",
    "jax_dump_ir_to": "read where a program is written to a file, while compiling",
    "jax_enable_preemption_service": SEVERAL,
    "jax_enable_recoverability": SEVERAL,
    "jax_experimental_unsafe_xla_runtime_errors": "read while a callback of Pallas is lowered",
    "jax_export_calling_convention_version": EXPORT,
    "jax_export_deserialize_expired_versions": EXPORT,
    "jax_export_ignore_forward_compatibility": EXPORT,
    "jax_mock_gpu_topology": BACKEND,
    "jax_mtls_ca_file": SEVERAL,
    "jax_mtls_cert_file": SEVERAL,
    "jax_mtls_key_file": SEVERAL,
    "jax_mtls_peer_uri_prefix": SEVERAL,
    "jax_num_cpu_devices": BACKEND,
    "jax_oneapi_visible_devices": BACKEND,
    "jax_persistent_cache_enable_xla_caches": COMPILING,
    "jax_persistent_cache_min_compile_time_secs": COMPILING,
    "jax_persistent_cache_min_entry_size_bytes": COMPILING,
    "jax_pjrt_client_create_options": BACKEND,
    "jax_platforms": BACKEND,
    "jax_raise_persistent_cache_errors": COMPILING,
    "jax_rocm_visible_devices": BACKEND,
    "jax_serialization_version": EXPORT,
    "jax_share_binary_between_hosts": SEVERAL,
    "jax_share_binary_between_hosts_timeout_ms": SEVERAL,
    "jax_sort_devices_by_process_index": BACKEND,
    "jax_xla_backend": BACKEND,
    "mlir_thread_local_context": "a cache of the compiler's objects, not a setting",
    "mock_num_gpu_processes": BACKEND,
    "pallas_dynamic_shapes_export": "set while Pallas traces a kernel",
    "pallas_fuser_disable_nested_fuse": "set while Pallas fuses kernels",
    "pallas_grid_context": "set while Pallas traces a kernel",
    "trace_state": "what is being traced: see the changes named `inside …`",
    "trace_state_strong_ref": "what is being traced: see the changes named `inside …`",
}


# --- States that have no option ------------------------------------------------------------------


def mesh() -> jax.sharding.Mesh:
    """Eight devices along one axis."""
    return jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))


def explicit_mesh() -> jax.sharding.Mesh:
    """The same with explicit axes."""
    return jax.sharding.Mesh(
        np.asarray(jax.devices()), ("x",), axis_types=(jax.sharding.AxisType.Explicit,)
    )


def _quiet_hook(*_: Any) -> None:
    """A hook that JAX calls after each fast call, and that does nothing."""


@contextlib.contextmanager
def local(name: str, value: Any) -> Iterator[None]:
    """A state that has no option, with another value in this thread."""
    state = all_states()[name]
    before = state.swap_local(value)
    try:
        yield
    finally:
        state.set_local(before)


@contextlib.contextmanager
def everywhere(name: str, value: Any) -> Iterator[None]:
    """The same in all threads."""
    state = all_states()[name]
    before = state.get_global()
    state.set_global(value)
    try:
        yield
    finally:
        state.set_global(before)


#: Ways to change states that have no option, by the state, then by what is done.
CONTEXTS: dict[str, dict[str, Callable[[], Any]]] = {
    "abstract_mesh_context_manager": {
        "use_abstract_mesh": lambda: jax.sharding.use_abstract_mesh(mesh().abstract_mesh),
        "explicit": lambda: jax.sharding.use_abstract_mesh(explicit_mesh().abstract_mesh),
    },
    "axis_env_state": {"an axis": lambda: jax_core.extend_axis_env_nd([("i", 2)])},
    "compute_on_context_manager": {"host": lambda: compute_on("device_host")},
    "device_context": {
        "set_mesh": lambda: jax.set_mesh(mesh()),
        "set_mesh, explicit": lambda: jax.set_mesh(explicit_mesh()),
    },
    "layout_tracing_mode": {
        "explicit": lambda: local("layout_tracing_mode", _layout_mode()),
    },
    "mesh_context_manager": {"with mesh": mesh},
    "pallas_tpu_interpret_mode_context_manager": {
        "thread": lambda: local("pallas_tpu_interpret_mode_context_manager", "other"),
        "global": lambda: everywhere("pallas_tpu_interpret_mode_context_manager", "other"),
    },
    "post_hook": {
        "thread": lambda: local("post_hook", _quiet_hook),
        "global": lambda: everywhere("post_hook", _quiet_hook),
    },
    "user_context": {"value": lambda: _user_context()(3)},
    "xla_metadata_context_manager": {"a": lambda: set_xla_metadata(a="1")},
}


def _layout_mode() -> Any:
    """Another mode of tracing layouts."""
    from jax._src.layout import LayoutMode

    now = all_states()["layout_tracing_mode"].value
    return next(mode for mode in LayoutMode if mode is not now)


def _user_context() -> Any:
    """A context of the user's own. JAX makes one; each one more makes all of JAX's keys longer."""
    return jax_config.jax_jit_cpp_cache_obj


# --- What JAX has --------------------------------------------------------------------------------


#: Each state that jaxlib keeps, those that only JAX's modules know among them. The collector's list
#: has them as long as it is whole, which it is while tests are imported.
_STATES = {x.name: x for x in gc.get_objects() if isinstance(x, jax_config.config_ext.Config)}


def all_states() -> dict[str, Any]:
    """The states by name."""
    return _STATES


def known_names() -> set[str]:
    """The names of all states and flags in the installed JAX."""
    return {
        *all_states(), *jax.config._value_holders, *jax_config.config_states,
        *getattr(jax_config, "trace_context_names", list)(),    # since JAX 0.10.1
    }  # fmt: skip


def values(name: str) -> tuple:
    """The other values of a state, as `jax.config.update` takes them."""
    found = VALUES[name]
    return found() if callable(found) else found
