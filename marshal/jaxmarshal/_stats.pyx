"""Hit and miss counts per entry point."""

from jaxmarshal._classify cimport (
    JM_KEY_ARRAY, JM_LITERAL, JM_REF, JM_TOKEN, JM_TRACER
)

from jaxmarshal._log import log_miss
from jaxmarshal.reasons import REASONS

cdef list _names = []
cdef Entry _published[MAX_ENTRIES]    # what `take` has handed out already

assert len(REASONS) == REASON_COUNT


cdef int entry_number(str name) except -1:
    if name in _names:
        return _names.index(name)
    if len(_names) >= MAX_ENTRIES:
        raise RuntimeError("too many entry points")
    _names.append(name)
    return len(_names) - 1


cdef int first_miss(int entry, int reason) except -1:
    try:
        log_miss(_names[entry], reason)
    except Exception:
        pass    # a broken handler is no reason for a call to fail
    return 0


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


cdef inline void _reset(long long* count, long long* published) noexcept:
    published[0] -= count[0]    # what was not published yet stays so
    count[0] = 0


def reset() -> None:
    """Set every count to zero."""
    cdef int i, reason
    for i in range(MAX_ENTRIES):
        _reset(&entries[i].hits, &_published[i].hits)
        for reason in range(<int>REASON_COUNT):
            _reset(&entries[i].misses[reason], &_published[i].misses[reason])


cdef inline long long _take(long long count, long long* published) noexcept:
    cdef long long more = count - published[0]
    published[0] = count
    return more


def take(str name, int reason) -> int:
    """How many calls of an entry point were added since this was last asked; reason 0 is a hit."""
    cdef int i = _names.index(name)
    if reason == HIT:
        return _take(entries[i].hits, &_published[i].hits)
    return _take(entries[i].misses[reason], &_published[i].misses[reason])
