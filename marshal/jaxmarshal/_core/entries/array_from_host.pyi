from typing import Any

asarray: Any
array: Any
