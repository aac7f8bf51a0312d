from typing import Any, TypedDict

class _Description(TypedDict):
    calibrated: bool
    aval: int | None
    dtype: int | None
    sharding: int | None
    committed: int | None
    buffer: int | None
    data_layout: list[int]
    clients: dict[str, list[int]]
    vouched_for: bool
    notes: list[str]

class _Words(TypedDict):
    aval: Any
    dtype: Any
    sharding: Any
    committed: bool
    deleted: bool
    default_layout: bool
    default_layout_proven: bool
    donated_proven: bool

def describe() -> _Description: ...
def read(array: Any) -> _Words: ...
def recalibrate(by_compiling: bool = False) -> _Description: ...
