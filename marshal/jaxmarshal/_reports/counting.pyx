"""Hit and miss counts per entry point."""

import threading
from contextlib import contextmanager

from libc.string cimport memcpy, memset

from jaxmarshal._core.values.kinds cimport JM_KEY_ARRAY, JM_LITERAL, JM_REF, JM_TOKEN, JM_TRACER

from jaxmarshal._reports.log import log_miss
from jaxmarshal.reasons import REASONS

cdef extern from *:
    """
    static _Thread_local int jm_depth;
    static _Thread_local int jm_is_nobodys;
    """
    int jm_depth    # how many calls are being performed on this thread
    bint jm_is_nobodys    # does nothing count that this thread calls?
    PyObject* PyObject_Vectorcall(
        PyObject* function, PyObject** args, size_t nargsf, PyObject* names
    ) noexcept

cdef list _names = []
cdef object _asking = threading.RLock()
cdef long long _resets = 0
# (name of the entry point, how programs write the function) -> its number, from NAMED on
cdef dict _functions = {}
cdef int _of_programs = 0    # how many of them programs define
cdef Entry _published[2 * MAX_ENTRIES]    # what `take` has handed out already

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


cdef int named_number(str entry, str written) except -1:
    if (entry, written) not in _functions and len(_functions) >= MAX_NAMED:
        raise RuntimeError("too many functions")
    return _functions.setdefault((entry, written), NAMED + len(_functions))


cdef Entry* counts_of_program(str entry, str written) except NULL:
    global _of_programs
    if (entry, written) not in _functions:
        if _of_programs >= MAX_OF_PROGRAMS:
            return &entries[NOBODY]
        _of_programs += 1
    return &entries[named_number(entry, written)]


cdef int number_inside(int entry) noexcept:
    if jm_is_nobodys:
        return NOBODY
    return entry + INNER if jm_depth else entry


cdef void enter() noexcept:
    global performed, jm_depth
    performed += 1
    jm_depth += 1


cdef void leave() noexcept:
    global performed, jm_depth
    performed -= 1
    jm_depth -= 1


cdef PyObject* perform(
    PyObject* reference, PyObject** args, size_t nargsf, PyObject* names
) noexcept:
    cdef PyObject* result
    enter()
    result = PyObject_Vectorcall(reference, args, nargsf, names)
    leave()
    return result


class Answer(BaseException):
    """What a call that is asked about would count; never seen outside of `ask`."""


cdef int answer(int entry, int reason) except -1:
    if is_asked() and entry == question.entry:
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


@contextmanager
def uncounted():
    """A context in which nothing on this thread counts, for no program has called it."""
    global jm_is_nobodys
    enter()
    jm_is_nobodys = 1
    try:
        yield
    finally:
        jm_is_nobodys = 0
        leave()


cdef int first_miss(int entry, int reason) except -1:
    if entry != number_now(entry):
        return 0    # what programs call is what is logged
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


cdef int _add(dict counts, dict more) except -1:
    counts["hits"] += more["hits"]
    counts["misses"] += more["misses"]
    for reason, number in more["misses_by_reason"].items():
        counts["misses_by_reason"][reason] = counts["misses_by_reason"].get(reason, 0) + number
    return 0


def snapshot() -> dict[str, dict]:
    """The counts now: entry point to `hits`, `misses` and `misses_by_reason`."""
    result = {name: _counts(i) for i, name in enumerate(_names)}
    for i, name in enumerate(_names):
        _add(result[name], _counts(i + INNER))
    return result


def inner() -> dict[str, dict]:
    """Of those counts, the calls inside of other calls that have been counted."""
    return {name: _counts(i + INNER) for i, name in enumerate(_names)}


def by_function() -> dict[str, dict[str, dict]]:
    """Calls that were inside of no other, by entry point and function, of those that share one."""
    found = {}
    for (entry, written), number in list(_functions.items()):
        found.setdefault(entry, {})[written] = _counts(number)
    return found


cdef inline void _reset(long long* count, long long* published) noexcept:
    published[0] -= count[0]    # what was not published yet stays so
    count[0] = 0


cdef Py_ssize_t _used():
    """How many counts have been given out; the rest of the table is not touched."""
    return NAMED + len(_functions)


def keep() -> tuple[int, bytes]:
    """All counts, for `put_back`."""
    return _resets, (<char*>entries)[:_used() * sizeof(Entry)]


def put_back(tuple kept) -> None:
    """Forget what was counted since `keep`; and all of it, if the counts were reset since."""
    cdef bytes counts = kept[1]
    if kept[0] != _resets:
        reset()
        return
    memcpy(entries, <char*>counts, len(counts))
    memset(<char*>entries + len(counts), 0, _used() * sizeof(Entry) - len(counts))


def reset() -> None:
    """Set every count to zero."""
    global _resets
    cdef int i, reason
    _resets += 1
    for i in range(2 * MAX_ENTRIES):
        _reset(&entries[i].hits, &_published[i].hits)
        for reason in range(<int>REASON_COUNT):
            _reset(&entries[i].misses[reason], &_published[i].misses[reason])
    memset(&entries[NAMED], 0, len(_functions) * sizeof(Entry))


cdef inline long long _take(long long count, long long* published) noexcept:
    cdef long long more = count - published[0]
    published[0] = count
    return more


def take(str name, int reason) -> int:
    """How many calls of an entry point were added since this was last asked; reason 0 is a hit."""
    cdef int i, number
    cdef long long more = 0
    number = _names.index(name)    # a ValueError for an unknown one
    for i in (number, number + INNER):
        if reason == HIT:
            more += _take(entries[i].hits, &_published[i].hits)
        else:
            more += _take(entries[i].misses[reason], &_published[i].misses[reason])
    return more
