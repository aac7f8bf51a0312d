from collections.abc import Callable
from typing import Any

def make_getter(entry: str, reference: Any, written: str) -> Callable[..., Any]: ...
