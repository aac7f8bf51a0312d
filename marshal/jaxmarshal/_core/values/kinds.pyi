import enum

class ArgKind(enum.IntEnum):
    OTHER = 0
    ARRAY = 1
    NDARRAY = 2
    NP_SCALAR = 3
    BOOL = 4
    INT = 5
    FLOAT = 6
    COMPLEX = 7
    TRACER = 8
    REF = 9
    KEY_ARRAY = 10
    TOKEN = 11
    LITERAL = 12
    NONE = 13
    LIST = 14
    TUPLE = 15
    DICT = 16

def add_type(cls: type, kind: int) -> None: ...
def kind_of(obj: object) -> ArgKind: ...
