from collections.abc import Callable
from typing import Any

class Row: ...

class Number:
    at: int
    name: str
    convert: Callable[[Any], Any] | None
    only: bool

    def __new__(
        cls, at: int, name: str, convert: Callable[[Any], Any] | None, only: bool = False
    ) -> Number: ...

HOST_ITSELF: int
HOST_OR_ITEMS: int
HOST_AS_OPERAND: int

def is_of_random(function: Any) -> bool: ...
def make_row(
    entry: str,
    reference: Any,
    number: Number | None = None,
    left_with: str | None = None,
    written: str | None = None,
    with_functions: bool = False,
    host: int = 0,
    with_index: bool = False,
    with_value: bool = False,
    late: bool = False,
) -> Callable[..., Any] | None: ...
def make_object_call(
    entry: str, reference: Any, functions: list[tuple[Any, Number | None, str]]
) -> Callable[..., Any]: ...
def add_object(
    entry: str, reference: Any, function: Any, number: Number | None, written: str,
    late: bool = False,
) -> None: ...
def method_calling(function: Any) -> Any: ...

zeros: Callable[..., Any]
ones: Callable[..., Any]
full: Callable[..., Any]
getitem: Callable[..., Any]
