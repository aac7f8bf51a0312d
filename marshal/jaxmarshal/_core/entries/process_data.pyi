from typing import Any

import jax

def make_array_from_process_local_data(
    sharding: jax.sharding.Sharding | Any,
    local_data: Any,
    global_shape: tuple[int, ...] | Any | None = None,
) -> Any: ...
