from typing import Any

xla_primitive_callable: Any
bind: Any
