from typing import Any

def xla_primitive_callable(prim: Any, **params: Any) -> Any: ...

bind: Any
