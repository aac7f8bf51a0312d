from typing import Any

class Operation: ...

def xla_primitive_callable(prim: Any, **params: Any) -> Any: ...

bind: Any
