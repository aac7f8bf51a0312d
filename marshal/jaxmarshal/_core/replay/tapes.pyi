from collections.abc import Callable
from typing import Any

class Value:
    number: int

class Base:
    key: Value

class Key:
    impl: Any
    words: Any

class Cast:
    source: Value
    dtype: Any

class Nested:
    make: Callable[[list[Any]], Any]
    items: list[Any]

class Step:
    function: Callable[[], Any]
    args: tuple[Any, ...]
    names: tuple[str, ...] | None
    first: int
    results: int

class Tape: ...

def numbers_needed(described: tuple[Any, ...]) -> set[int]: ...
def renumbered(
    taken: list[Step | tuple[Any, list[int], list[int]]], described: Any, sources: int
) -> tuple[list[Step], Any]: ...
