"""The private JAX names that `dispatch_v0_3` needs besides those of `jaxmarshal._jax.private`.

The same scheme: a name that the installed JAX does not have is None here and in `missing`, the
flag that needs it is false, and only the functions that cannot do without it raise.
"""

from __future__ import annotations

import re
from typing import Any

from jaxmarshal._jax import private as _main
from jaxmarshal._jax.private import _have, _lookup, _lookup_either, _Missing

# --- The runtime ---------------------------------------------------------------------------------
extension = _lookup("jaxlib", "_jax")
Client = _lookup("jaxlib._jax", "Client")
LoadedExecutable = _lookup("jaxlib._jax", "LoadedExecutable")
DeviceList = _lookup("jaxlib._jax", "DeviceList")
Shape = _lookup("jax._src.lib", "xla_client.Shape")
should_tuple_args = _lookup("jax._src.dispatch", "should_tuple_args")
typematch = _lookup("jax._src.core", "typematch")
safe_zip = _lookup("jax._src.util", "safe_zip")
cache = _lookup("jax._src.util", "cache")
InputsHandler = _lookup("jax._src.interpreters.pxla", "InputsHandler")

# --- Modules and computations --------------------------------------------------------------------
Module = _lookup("jaxlib.mlir", "ir.Module")
make_ir_context = _lookup("jax._src.interpreters.mlir", "make_ir_context")
module_to_string = _lookup("jax._src.interpreters.mlir", "module_to_string")
HloComputation = _lookup("jax._src.lib", "xla_client.XlaComputation")
hlo_of_mlir = _lookup("jaxlib._jax", "mlir.mlir_module_to_xla_computation")
mlir_of_hlo = _lookup("jaxlib._jax", "mlir.xla_computation_to_mlir_module")
is_cache_used = _lookup("jax._src.compilation_cache", "is_cache_used")
compile_or_get_cached = _lookup("jax._src.compiler", "compile_or_get_cached")

# --- What is public since JAX 0.10 ----------------------------------------------------------------
AbstractToken = _lookup_either("jax.extend.core.AbstractToken", "jax._src.core.AbstractToken")
subjaxprs = _lookup_either("jax.extend.core.subjaxprs", "jax._src.core.subjaxprs")
jaxprs_in_params = _lookup_either(
    "jax.extend.core.jaxprs_in_params", "jax._src.core.jaxprs_in_params"
)

# --- Capabilities --------------------------------------------------------------------------------
HAVE_COMPILE: bool = _have(
    "HAVE_COMPILE", DeviceList, Module, module_to_string, typematch, Shape
)
HAVE_HLO: bool = _have("HAVE_HLO", HloComputation, hlo_of_mlir, mlir_of_hlo, module_to_string)
HAVE_CACHE: bool = _have("HAVE_CACHE", is_cache_used, compile_or_get_cached, make_ir_context)
HAVE_PREPARED: bool = _have("HAVE_PREPARED", InputsHandler, flags=("HAVE_EXECUTE",))

for _variable, _value in list(globals().items()):
    if isinstance(_value, _Missing):
        globals()[_variable] = None


def need(flag: str) -> None:
    """Raise unless the capability is there.

    Raises:
      NotImplementedError: names what the installed JAX lacks.
    """
    if not globals()[flag]:
        lacks = ", ".join(_main.lacking[flag]) or _main.why_not_supported()
        raise NotImplementedError(f"not with JAX {_main.JAX_VERSION}: {lacks}")


def lowering_facts(lowered: Any) -> dict[str, Any]:
    """What today's lowering says that a computation needs besides its module.

    Returns:
      A dict, in which `num_devices`, `ordered_effects`, `unordered_effects` and `host_callbacks`
      are looked for; empty where this JAX keeps it elsewhere.
    """
    return dict(getattr(getattr(lowered, "_lowering", None), "compile_args", {}))


def output_memory_kinds(compiled: Any) -> set[str]:
    """Where a loaded executable leaves its results; empty where its backend does not tell.

    Such a backend, the CPU of jaxlib 0.8, has results in the default memory alone.
    """
    try:
        return {kind for kinds in compiled.get_output_memory_kinds() for kind in kinds}
    except _main.JaxRuntimeError:
        return set()


def module_name(module: Any) -> str:
    """The symbol name of a module."""
    return str(module.operation.attributes["sym_name"]).strip('"')


def parse_module(text: str) -> Any:
    """A module from its text."""
    with make_ir_context():
        return Module.parse(text)


def replica_devices(backend: Any, assignment: Any) -> list[Any]:
    """The devices of a `DeviceAssignment` with one computation, replica after replica.

    jaxlib has no accessor for the ids; its `repr` lists them between braces.
    """
    (ids,) = re.findall(r"Computation0\{([\d ]*)\}", repr(assignment))
    devices = {device.id: device for device in backend.devices()}
    return [devices[int(number)] for number in ids.split()]


def prepared_executable(
    name: str, compiled: Any, sharding: Any, inputs: int, handlers: list[Any], kept: Any
) -> Any:
    """Today's object for a loaded executable on one device, of which a plan can be made.

    Args:
      name: of the computation.
      compiled: the loaded executable.
      sharding: of every input and output.
      inputs: how many inputs the executable has.
      handlers: today's result handlers, one an output.
      kept: the indices of the arguments that are inputs.
    """
    return _main.ExecuteReplicated(
        compiled, name, compiled.client,
        InputsHandler([sharding] * inputs, [None] * inputs),
        _main.ResultsHandler(handlers, [sharding] * len(handlers), [None] * len(handlers)),
        [], [], None, False, set(kept), None,
    )  # fmt: skip
