"""Hit and miss counts per entry point."""

from jaxmarshal._classify cimport (
    JM_KEY_ARRAY, JM_LITERAL, JM_REF, JM_TOKEN, JM_TRACER
)

from jaxmarshal.reasons import REASONS

cdef list _names = []

assert len(REASONS) == REASON_COUNT


cdef int entry_number(str name) except -1:
    if name in _names:
        return _names.index(name)
    if len(_names) >= MAX_ENTRIES:
        raise RuntimeError("too many entry points")
    _names.append(name)
    return len(_names) - 1


cdef Reason reason_of_kind(int kind) noexcept:
    if kind == JM_TRACER:
        return TRACER
    if kind == JM_REF:
        return REF
    if kind == JM_KEY_ARRAY:
        return KEY_ARRAY
    if kind == JM_TOKEN:
        return TOKEN
    if kind == JM_LITERAL:
        return LITERAL
    return UNKNOWN_TYPE


def snapshot() -> dict[str, dict]:
    """The counts now: entry point to `hits`, `misses` and `misses_by_reason`."""
    cdef int i, reason
    cdef long long total
    result = {}
    for i, name in enumerate(_names):
        total = 0
        by_reason = {}
        for reason in range(1, <int>REASON_COUNT):
            if entries[i].misses[reason]:
                by_reason[REASONS[reason].name] = entries[i].misses[reason]
                total += entries[i].misses[reason]
        result[name] = {
            "hits": entries[i].hits, "misses": total, "misses_by_reason": by_reason,
        }
    return result


def reset() -> None:
    """Set every count to zero."""
    cdef int i, reason
    for i in range(MAX_ENTRIES):
        entries[i].hits = 0
        for reason in range(<int>REASON_COUNT):
            entries[i].misses[reason] = 0
