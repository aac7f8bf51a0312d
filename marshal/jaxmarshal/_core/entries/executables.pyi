from typing import Any

mesh_executable_call: Any
execute_replicated_call: Any
compiled_call: Any

def results_handler_call(self: Any, out_bufs: Any) -> list[Any]: ...
def probe_compiled(
    compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int, Any, Any]: ...
