from collections.abc import Iterable

class StaticRule:
    def __new__(cls, numbers: Iterable[int], names: Iterable[str]) -> StaticRule: ...
