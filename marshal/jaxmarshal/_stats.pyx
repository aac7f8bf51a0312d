"""Hit and miss counts per entry point."""

import threading

from libc.string cimport memcpy

from jaxmarshal._classify cimport (
    JM_KEY_ARRAY, JM_LITERAL, JM_REF, JM_TOKEN, JM_TRACER
)

from jaxmarshal._log import log_miss
from jaxmarshal.reasons import REASONS

cdef list _names = []
cdef object _asking = threading.RLock()
cdef long long _resets = 0
cdef Entry _published[MAX_ENTRIES]    # what `take` has handed out already

assert len(REASONS) == REASON_COUNT


cdef int entry_number(str name) except -1:
    if name in _names:
        return _names.index(name)
    if len(_names) >= MAX_ENTRIES:
        raise RuntimeError("too many entry points")
    _names.append(name)
    return len(_names) - 1


def register(str name) -> int:
    """Have `snapshot` list an entry point, also before it is called; returns its number."""
    return entry_number(name)


cdef int _number_of_steps(str name) except -1:
    """One more number for an entry point; `_names` then has the name twice."""
    _names.append(name)
    return len(_names) - 1


cdef Numbers _whole = Numbers(entry_number("jit"), entry_number("bind"))
cdef Numbers _steps = Numbers(_number_of_steps("jit"), _number_of_steps("bind"))
numbers = _whole


cdef void count_steps(bint on) noexcept:
    global numbers
    numbers = _steps if on else _whole


class Answer(BaseException):
    """What a call that is asked about would count; never seen outside of `ask`."""


cdef inline int _whole_number(int entry) noexcept:
    """The number of an entry point, of which this may be that of its steps."""
    if entry == _steps.jit:
        return _whole.jit
    return _whole.bind if entry == _steps.bind else entry


cdef int answer(int entry, int reason) except -1:
    # Another thread that takes steps has the calls of this one count as steps, too.
    if is_asked() and _whole_number(entry) == question.entry:
        raise Answer(reason)
    return 0


cdef object _with_question(int entry, object function, tuple args, dict kwargs):
    """What the function returns, asked about an entry point; one thread asks at a time."""
    global question
    cdef Question before
    with _asking:
        before = question    # of this thread: a flatten function may ask, too
        question.entry = entry
        question.thread = PyThread_get_thread_ident()
        question.is_open = True
        try:
            return function(*args, **kwargs)
        finally:
            question = before


cdef object call_aside(object function, object arg):
    if not is_asked():
        return function(arg)
    question.is_open = False
    try:
        return function(arg)
    finally:
        question.is_open = True


def ask(str name, function, *args, **kwargs):
    """The reason that a call of an entry point would count, 0 for a hit; nothing is performed.

    `function` is called, up to that decision. None where it has ended without being counted.
    """
    try:
        _with_question(_names.index(name), function, args, kwargs)
    except Answer as found:
        return found.args[0]
    return None


def look(function, *args, **kwargs):
    """What a function returns that looks at a call as it is decided, and changes nothing."""
    return _with_question(-1, function, args, kwargs)


cdef int first_miss(int entry, int reason) except -1:
    if entry != _whole_number(entry):
        return 0    # the call that takes these steps is a hit
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


cdef object _counts(int i):
    """The counts under one number."""
    cdef int reason
    by_reason = {
        REASONS[reason].name: entries[i].misses[reason]
        for reason in range(1, <int>REASON_COUNT) if entries[i].misses[reason]
    }
    return {
        "hits": entries[i].hits, "misses": sum(by_reason.values()), "misses_by_reason": by_reason,
    }


def snapshot() -> dict[str, dict]:
    """The counts now: entry point to `hits`, `misses` and `misses_by_reason`."""
    cdef int i
    result = {}
    for i, name in enumerate(_names):
        counts = _counts(i)
        known = result.setdefault(name, counts)
        if known is not counts:
            known["hits"] += counts["hits"]
            known["misses"] += counts["misses"]
            for reason, number in counts["misses_by_reason"].items():
                known["misses_by_reason"][reason] = (
                    known["misses_by_reason"].get(reason, 0) + number
                )
    return result


def steps() -> dict[str, dict]:
    """Of those counts, what calls such as `x[0]` did on the fast path, step by step."""
    return {"jit": _counts(_steps.jit), "bind": _counts(_steps.bind)}


cdef inline void _reset(long long* count, long long* published) noexcept:
    published[0] -= count[0]    # what was not published yet stays so
    count[0] = 0


def keep() -> tuple[int, bytes]:
    """All counts, for `put_back`."""
    return _resets, (<char*>entries)[:sizeof(entries)]


def put_back(tuple kept) -> None:
    """Forget what was counted since `keep`; and all of it, if the counts were reset since."""
    cdef bytes counts = kept[1]
    if kept[0] != _resets:
        reset()
        return
    memcpy(entries, <char*>counts, sizeof(entries))


def reset() -> None:
    """Set every count to zero."""
    global _resets
    cdef int i, reason
    _resets += 1
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
    cdef int i
    cdef long long more = 0
    _names.index(name)    # a ValueError for an unknown one
    for i, known in enumerate(_names):
        if known != name:
            continue
        if reason == HIT:
            more += _take(entries[i].hits, &_published[i].hits)
        else:
            more += _take(entries[i].misses[reason], &_published[i].misses[reason])
    return more
