from collections.abc import Sequence
from typing import Any

import jax

def shard_args(
    shardings: Sequence[jax.sharding.Sharding],
    layouts: Sequence[Any],
    copy_semantics: Sequence[Any],
    args: Sequence[Any],
    canonicalize: bool = True,
) -> list[jax.Array]: ...
def batched_device_put(
    aval: Any,
    sharding: jax.sharding.Sharding,
    xs: Sequence[Any],
    devices: Sequence[jax.Device],
    committed: bool = True,
    enable_x64: bool | None = None,
) -> jax.Array: ...
