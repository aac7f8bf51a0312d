from typing import Any

type_of_array: Any

def use_installed(is_installed: bool) -> None: ...
