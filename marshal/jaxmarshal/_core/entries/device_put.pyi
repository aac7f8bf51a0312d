from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax.experimental.layout import Format

# A tree prefix of targets is any tree, so a type checker cannot say more than JAX does.
_Target: TypeAlias = jax.Device | jax.sharding.Sharding | jax.sharding.PartitionSpec | Format | Any

def device_put(
    x: Any,
    device: _Target | None = None,
    *,
    src: _Target | None = None,
    donate: bool | Any = False,
    may_alias: bool | Any | None = None,
) -> Any: ...
def batched_device_put_impl(
    *xs: Any,
    devices: Sequence[_Target | None],
    srcs: Sequence[_Target | None],
    copy_semantics: Sequence[Any],
) -> list[Any]: ...
def probe(
    x: Any,
    device: _Target | None = None,
    *,
    src: _Target | None = None,
    donate: bool | Any = False,
    may_alias: bool | Any | None = None,
) -> tuple[int, int]: ...
