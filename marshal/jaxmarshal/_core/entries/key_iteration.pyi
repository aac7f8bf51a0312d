from collections.abc import Callable, Iterator
from typing import Any

def make_iteration(
    entry: str,
    reference: Any,
    hand_out: Callable[[Callable[[Any], tuple[Any, ...]], Any], Iterator[Any]],
    written: str,
) -> Callable[[Any], Iterator[Any]]: ...
