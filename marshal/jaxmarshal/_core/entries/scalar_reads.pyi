from collections.abc import Callable
from typing import Any

CONVERSIONS: tuple[str, ...]

def make_reader(
    entry: str, name: str, reference: Any, written: str
) -> Callable[..., Any]: ...
def watch_tokens() -> bool: ...
