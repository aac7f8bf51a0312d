from collections.abc import Callable
from logging import Filterer, Logger
from typing import Any

class FilteredPlans: ...

def make_front(
    name: str,
    wrapper: type,
    reference: Callable[..., Any],
    places: list[Any],
    names_of: Callable[[type], tuple[tuple[str, ...], tuple[str, ...]] | None],
    check: Callable[[type], bool],
    combine: Callable[..., Any],
    missing: object,
    extra: tuple[str, ...],
    logger: Logger | None = None,
    make_filter: Callable[[], Filterer] | None = None,
    own_nodes: tuple[type, ...] = (),
    marks: bool = True,
    by_type: bool = False,
) -> Any: ...
def live_plans(function: Any) -> int: ...
