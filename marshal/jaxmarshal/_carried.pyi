from collections.abc import Callable
from typing import Any

class Carried:
    _children: Any
    _plan: Any
    _key: Any

class CarryCall:
    @property
    def _runs(self) -> dict[Any, Any]: ...
    @property
    def _donate(self) -> bool: ...
    def __init__(
        self, made: type, donate: bool, direct: bool, explain: Callable[[Any, Exception], None]
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def carried_of(made: type, children: Any, plan: Any, key: Any) -> Any: ...
def called_directly(carry: type) -> None: ...
