"""Public functions outside of `jit`: the steps they took the last time, without the rest.

The first calls of a kind go to the reference, and a tape notes the steps: calls of jitted
functions (`recording`). If the result is made of their results, the next such call takes the steps
alone: what Python did in between depends on nothing but what the key, the arrays' avals and
placement, and the context say: whoever looks at an array's elements breaks the tape, and so does a
warning. Which functions there are is in `which_functions`.
"""

from types import MethodType

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from jaxmarshal._core.context.bypassed cimport (
    all_attributes_of, attributes_of, function_rules, has_attributes, is_untouched, late_rules,
    placement_rules
)
from jaxmarshal._core.context.configuration cimport Context, state_is, transfers_unguarded
from jaxmarshal._core.entries.host_indices cimport (
    has_host_data, index_on_device, is_of_numpy, put_own, value_on_device
)
from jaxmarshal._core.placement.host_data cimport is_watched
from jaxmarshal._core.plans.backoff cimport is_left
from jaxmarshal._core.plans.jit_configuration cimport operation_context
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.replay.key cimport (
    HOST, HOST_ARRAYS, HOST_OPERAND, MOST_SOURCES, NO_HOST, TO_ANY, TO_ANY_BUT_KEYS, TO_THE_FIRST,
    HostData, Sources, function_part, key_of, key_with_rows, release_sources
)
from jaxmarshal._core.replay.plays cimport (
    MOST_KEPT, Play, Replay, came_before, drop_play, find_play, has_room, is_play_wanted,
    make_replay, uses_fused, words_of
)
from jaxmarshal._core.replay.recording cimport (
    hears_all, record, record_rows, rows_in, times_to_fuse
)
from jaxmarshal._core.replay.tapes cimport (
    MOST_VALUES, Step, cast_sources, fill_arguments, have_their_rules, take_step
)
from jaxmarshal._core.values.array_words cimport array_sharding, is_gone
from jaxmarshal._core.values.capi cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from jaxmarshal._core.values.errors cimport is_of_program
from jaxmarshal._core.values.forgetting cimport on_forget
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_FLOAT, JM_INT, JM_NDARRAY, Py_TYPE, jm_kind_is_host, jm_kind_of_type, types
)
from jaxmarshal._core.values.live_objects cimport JM_DEBUG
from jaxmarshal._core.values.methods cimport (
    Method, PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._reports.counting cimport (
    DELETED, GUARD, HIT, NOT_RECORDED, OPTIONS, REPLACED, SHARDING, TRACE, UNKNOWN_TYPE,
    UNSUPPORTED, VALUE, count_hit, count_miss, count_hit_of, count_miss_of, decided_to_hit, enter,
    entries, entry_number, is_asked, leave, named_number, perform
)

from jaxmarshal._jax import private

cdef enum:
    MANY_MISSES = 64       # in a row; then most calls of the function are left to the reference
    LEAST_SKIPPED = 4      # before the next one that is looked at; at most seven more
    MORE_MISSES = 256      # in a row; then twice as many are skipped, and again after twice as many
    MOST_DOUBLED = 3       # times
    MOST_NUMBERS = 8       # that are told from numbers which come in for the first time
    MOST_CONVERTED = 8     # arguments of a call with a number that is converted
    LAST_OBJECTS = 64

cdef long long MOST_NUMBER = <long long>1 << 31    # of those that are converted

cdef object _single_type = private.SingleDeviceSharding
# Shardings of which equal ones are alike in all that Python can see.
cdef tuple _sharding_types = (private.SingleDeviceSharding, private.NamedSharding)
cdef object _check_leaks = private.check_tracer_leaks
cdef object _update_type = private.IndexUpdateRef
cdef bint _active = private.HAVE_REPLAY

cdef list _rows = []    # all; they live as long as the process


cdef class Row:
    def __cinit__(self, int entry, reference):
        self.entry = entry
        self.reference = self.call = reference
        self.part = function_part(reference)
        self.numbers = []
        _rows.append(self)


# --- Finding -------------------------------------------------------------------------------------

cdef int _obstacle(Row row, Sources* sources) except -1:
    """Why only the reference can perform a call about these, or HIT."""
    cdef Py_ssize_t i
    cdef int kind
    if not _active:
        return UNSUPPORTED
    if not is_untouched(function_rules):
        return REPLACED
    if row.late and not is_untouched(late_rules):
        return REPLACED
    if row.attributes is not None and not has_attributes(row.reference, row.attributes):
        return REPLACED
    if sources.with_functions and not state_is(_check_leaks, False):
        return OPTIONS    # JAX traces functions in every call then
    if not transfers_unguarded(True, True):
        return GUARD    # constants that are on the device already are not placed again
    for i in range(sources.count):
        source = words_of(<object>sources.items[i])
        kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>source))
        if kind == JM_NDARRAY and is_watched(source):
            return VALUE    # JAX's cache may have another array for it
        if jm_kind_is_host(kind):
            continue
        if kind != JM_ARRAY:
            return SHARDING
        # A donated one is not at once seen to be gone, and one that `__new__` made holds nothing.
        if is_gone(source):
            return DELETED
        if type(array_sharding(source)) not in _sharding_types:
            return SHARDING
    return HIT


# --- Ints that are indices -----------------------------------------------------------------------

cdef object _key_with_rows(
    Row row, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources
):
    """The key of calls that differ in rows alone, and how many rows there are; or None.

    Adds the arrays, which are on one device each, and then the rows to the sources.
    """
    cdef Py_ssize_t i
    cdef list rows = []
    if not row.with_index or not n:
        return None
    key = key_with_rows(row.part, args, n, names, sources, rows)
    if key is None or sources.count + len(rows) > MOST_SOURCES:
        return None
    for i in range(sources.count):
        array = words_of(<object>sources.items[i])
        if jm_kind_of_type(&types, Py_TYPE(<PyObject*>array)) != JM_ARRAY:
            return None
        if type(array_sharding(array)) is not _single_type:
            return None
    for number in rows:
        Py_INCREF(number)
        sources.items[sources.count] = <PyObject*>number
        sources.count += 1
    return key, len(rows)


# --- Calls ---------------------------------------------------------------------------------------

cdef bint _find_functions(Play play, PyObject** functions) except -1:
    """Fill in the functions of the steps, owned. Is none gone, or run in another way?"""
    cdef Py_ssize_t i
    cdef Step step
    for i in range(len(play.steps)):
        step = <Step>play.steps[i]
        function = step.function()
        if function is None:
            _release(functions, i)
            return False
        Py_INCREF(function)
        functions[i] = <PyObject*>function
    return True


cdef int _release(PyObject** objects, Py_ssize_t n) noexcept:
    cdef Py_ssize_t i
    for i in range(n):
        Py_DECREF(<object>objects[i])
    return 0


cdef int _offer(Play play, PyObject** values, Py_ssize_t count) except -1:
    """Have a thread look whether the steps that were just taken can become fewer."""
    # Most programs do not take this path before they are set up.
    from jaxmarshal._core.replay import fusion

    cdef int reason
    cdef Py_ssize_t i
    context = operation_context(&reason)
    found = [<object>values[i] for i in range(count)]
    if context is not None and not fusion.offer(play, found, context, play.states):
        play.left = times_to_fuse
    return 0


cdef object _take_steps(Play play, PyObject** functions, Sources* sources, Context context):
    cdef PyObject* values[MOST_VALUES]
    cdef Py_ssize_t i, count = sources.count
    memcpy(values, sources.items, count * sizeof(PyObject*))
    try:
        for i in range(len(play.steps)):
            take_step(<Step>play.steps[i], functions[i], values, &count, context)
        if play.left and uses_fused:
            play.left -= 1
            if not play.left:
                _offer(play, values, count)
        return fill_arguments(play.result, values)
    finally:
        _release(values + sources.count, count - sources.count)


cdef object _perform(
    Row row, Play play, PyObject** functions, Sources* sources, Context context
):
    """The result, or None, as no function that is replayed returns that."""
    decided_to_hit(row.entry)
    enter()
    try:
        return _take_steps(play, functions, sources, context)
    except Exception as error:
        if is_of_program(error):    # of a signal handler
            raise
        return None    # the reference says what is wrong
    finally:
        leave()


cdef inline void _count_hit(Row row) noexcept:
    if row.named:
        count_hit_of(row.entry, &entries[row.named])
    else:
        count_hit(row.entry)


cdef inline int _count_miss(Row row, int reason) except -1:
    if row.named:
        return count_miss_of(row.entry, &entries[row.named], reason)
    return count_miss(row.entry, reason)


cdef bint _is_alive(Play play, Play taken) except -1:
    """Are primitives run in the same way, and the functions there that fused steps are made of?"""
    cdef Step step
    if not have_their_rules(play.primitives):
        return False
    if taken is not play:
        for step in play.steps:
            if step.function() is None:
                return False
    return True


cdef bint _can_cast(Play play, Sources* sources) except -1:
    """Are the host data such that no conversion may warn? Taking the steps finds out itself."""
    cdef Step step
    try:
        for step in play.steps:
            cast_sources(step, sources.items)
    except Exception:
        return False
    return True


cdef object _replayed(Row row, Replay replay, Sources* sources, Context context):
    """The result, or None where the steps cannot be taken."""
    cdef PyObject* functions[MOST_VALUES]
    cdef Play play = find_play(replay, sources), taken
    if play is None or tapes.current is not None:
        return None
    taken = play if play.fused is None or not uses_fused else play.fused
    if is_asked() and not _can_cast(taken, sources):
        row.failed = True
        return None
    if not _is_alive(play, taken) or not _find_functions(taken, functions):
        if not is_asked():
            drop_play(replay, play)
            replay.seen = replay.wait    # that it can be kept is known
        return None
    try:
        result = _perform(row, taken, functions, sources, context)
    finally:
        _release(functions, len(taken.steps))
    if result is None:
        row.failed = True
        return None
    replay.used = True
    row.missed = row.recorded = 0
    _count_hit(row)
    return result


cdef object _replayed_rows(
    Row row, Context context, object row_key, Py_ssize_t rows, Sources* sources
):
    """As `_replayed`, with the steps that serve every row, or every one in some places."""
    cdef tuple numbers
    known = context.replays.get(row_key)
    if known is None:
        return None
    result = _replayed(row, <Replay>known, sources, context)
    if result is not None or not (<Replay>known).places:
        return result
    numbers = rows_in(sources, rows)
    for places in (<Replay>known).places:
        same = tuple([None if differs else n for differs, n in zip(places, numbers)])
        found = context.replays.get((row_key, same))
        if found is not None:
            result = _replayed(row, <Replay>found, sources, context)
            if result is not None:
                return result
    return None


cdef void _count_missed(Row row) noexcept:
    """Count a miss, unless that is only a question."""
    cdef int doubled
    if is_asked():
        return
    row.missed += 1
    if row.missed > MANY_MISSES:
        # Now more and now fewer: a loop may make a call of one kind every so many.
        row.turn = row.turn * 1103515245 + 12345
        row.skip = LEAST_SKIPPED + (row.turn >> 16) % 8
        for doubled in range(MOST_DOUBLED):
            if row.missed > MORE_MISSES << doubled:
                row.skip *= 2


cdef Replay _replay_for(Context context, object key):
    """What is known of calls with this key, of which something may be kept; None where nothing is.

    What comes for the first time may never come again.
    """
    cdef Replay replay
    cdef dict replays = context.replays
    found = replays.get(key)
    if found is not None:
        return <Replay>found
    if not came_before(<uint64_t><Py_ssize_t>hash(key)):
        return None
    if not has_room(replays):
        return None
    replay = make_replay()
    replay.seen = 1
    replays[key] = replay
    return replay


cdef bint _is_to_record(Replay replay, object key, Sources* sources) except -1:
    """Count a call for which there is a key, and see whether its steps are to be kept."""
    replay.seen += 1
    return replay.seen > replay.wait and is_play_wanted(replay, key, sources)


cdef Context _look_up(
    Row row, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources, int* reason,
    PyObject** key
):
    """The context of a call that may be replayed, and its key, owned; None with a reason."""
    cdef Context context = operation_context(reason)
    if context is None:
        return None
    key[0] = key_of(row.part, args, n, names, sources, reason)
    if key[0] == NULL:
        return None
    reason[0] = _obstacle(row, sources)
    if context.replays is None:
        context.replays = {}
    return context if reason[0] == HIT else None


cdef object _call(
    Row row, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources, Sources* indexed,
    PyObject** key
):
    """The result, or None where the reference is to be called as it is."""
    cdef Context context = None
    cdef Replay replay
    cdef Py_ssize_t rows = 0
    cdef int reason
    cdef bint kept
    cdef object row_key
    try:
        context = _look_up(row, args, n, names, sources, &reason, key)
    except Exception as error:
        if JM_DEBUG or is_of_program(error):
            raise
        reason = UNKNOWN_TYPE
    if context is None:
        if reason != TRACE:
            _count_missed(row)
        _count_miss(row, reason)
        return None
    row.failed = False
    found = context.replays.get(<object>key[0])
    if found is not None:
        result = _replayed(row, <Replay>found, sources, context)
        if result is not None:
            return result
    row_key = _key_with_rows(row, args, n, names, indexed)
    if row_key is not None:
        row_key, rows = row_key
        result = _replayed_rows(row, context, row_key, rows, indexed)
        if result is not None:
            return result
    if row.failed:    # as it may the next time, too: nothing new can be recorded
        _count_missed(row)
        _count_miss(row, VALUE)
        return None
    _count_miss(row, NOT_RECORDED)
    if is_asked() or tapes.current is not None:
        return None
    _count_missed(row)
    if not hears_all():
        return None
    replay = _replay_for(context, <object>key[0])
    if replay is None and row_key is None:
        return None
    if replay is not None and not _is_to_record(replay, <object>key[0], sources):
        return None
    named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    positional = tuple([<object>args[i] for i in range(n)])
    kwargs = {<object>PyTuple_GET_ITEM(names, i): <object>args[n + i] for i in range(named)}
    if replay is None:
        return record_rows(
            context, <object>key[0], row_key, rows, indexed, row.call, positional, kwargs
        )
    result = record(
        replay, <object>key[0], sources, row.call, row.host == HOST, positional, kwargs, &kept
    )
    if kept:
        row.recorded += 1
        if row.recorded < MOST_KEPT:    # else nothing comes of it
            row.missed = 0
    return result


cdef object _call_looked_at(
    Row row, PyObject** args, Py_ssize_t n, PyObject* names, bint converted=False
):
    cdef Sources sources, indexed
    cdef PyObject* key = NULL
    sources.count = indexed.count = 0
    sources.with_functions = row.with_functions
    sources.with_states = indexed.with_states = row.with_states
    sources.numbers = indexed.numbers = row.numbers_to if n else TO_ANY
    sources.host = row.host
    sources.converted = indexed.converted = converted
    indexed.with_functions = False
    indexed.host = NO_HOST
    try:
        return _call(row, args, n, names, &sources, &indexed, &key)
    finally:
        release_sources(&sources)
        release_sources(&indexed)
        if key != NULL:
            Py_DECREF(<object>key)


# --- Numbers that change -------------------------------------------------------------------------

cdef class Number:
    def __cinit__(self, at, name, convert, only=False):
        self.at, self.name, self.convert, self.only = at, name, convert, only


cdef Py_ssize_t _place_of_number(Row row, PyObject** args, Py_ssize_t n, PyObject* names) except -2:
    """Where among the arguments there is a number like those that it is about, or -1."""
    cdef int kind
    cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef Py_ssize_t place = row.number.at if row.number.at < n else -1
    for i in range(named):
        if <object>PyTuple_GET_ITEM(names, i) == row.number.name:
            place = n + i
    if place < 0 or n + named > MOST_CONVERTED:
        return -1
    kind = jm_kind_of_type(&types, Py_TYPE(args[place]))
    if kind == JM_INT or (kind == JM_FLOAT and row.number.convert is None):
        return place
    return -1


cdef bint _is_converted(object number) except -1:
    """Is it one of which an array can be made without an error?"""
    return 0 <= number < MOST_NUMBER


cdef tuple _converting = (
    (private.convert_primitive, attributes_of(private.convert_primitive))
    if private.HAVE_REPLAY else None
)


cdef bint is_converted_as_before() except -1:
    return is_untouched(placement_rules) and have_their_rules([_converting])


cdef bint _comes_again(Row row, object number) except -1:
    """Is it one of the last numbers? Those have recordings of their own, with their arrays."""
    if number in row.numbers:
        return True
    if not is_asked():
        row.numbers = [number, *row.numbers[:MOST_NUMBERS - 1]]
    return False


cdef bint _is_where_others_are(PyObject** args, Py_ssize_t n, Py_ssize_t place) except -1:
    """Are the arrays on one device each? With others the call is not replayed."""
    cdef Py_ssize_t i
    for i in range(n):
        if i != place and jm_kind_of_type(&types, Py_TYPE(args[i])) == JM_ARRAY:
            if type(array_sharding(<object>args[i])) is not _single_type:
                return False
    return True


cdef bint _may_convert(Row row) except -1:
    """May arguments be put on the device before the function is called, which would do so?"""
    cdef Sources none
    cdef int reason
    cdef Context context = operation_context(&reason)
    none.count = 0
    none.with_functions = False
    return (
        context is not None and not context.has_mesh and _obstacle(row, &none) == HIT
        and is_converted_as_before()
    )


cdef object _call_with_number(
    Row row, PyObject** args, Py_ssize_t n, PyObject* names, Py_ssize_t place
):
    """As `_call_looked_at`; a number that is new is made an array, and so is none of the key."""
    cdef PyObject* own[MOST_CONVERTED]
    if (
        not _is_converted(<object>args[place]) or tapes.current is not None
        or _comes_again(row, <object>args[place]) or not _may_convert(row)
        or not _is_where_others_are(args, n, place)
    ):
        return _call_looked_at(row, args, n, names)
    array = put_own(row.number.convert(<object>args[place]))
    memcpy(own, args, (n + (0 if names == NULL else PyTuple_GET_SIZE(names))) * sizeof(PyObject*))
    own[place] = <PyObject*>array
    return _call_looked_at(row, own, n, names)


# --- Numpy data that go to the device ------------------------------------------------------------

cdef bint _is_host_value(Row row, PyObject** args, Py_ssize_t n) noexcept:
    """Is numpy data what `x.at[...]` sets, adds and so on?"""
    return row.with_value and n == 2 and is_of_numpy(<object>args[1])


cdef bint _has_host_data(Row row, PyObject** args, Py_ssize_t n) except -1:
    """Is numpy data the index, or what `x.at[...]` sets there?"""
    if not row.with_index or not n:
        return False
    what = <object>args[0]
    if type(what) is _update_type:
        return has_host_data(what.index) or _is_host_value(row, args, n)
    return n == 2 and has_host_data(<object>args[1])


cdef object _call_with_host_data(Row row, PyObject** args, Py_ssize_t n, PyObject* names):
    """As `_call_looked_at`, with these data on the device."""
    cdef PyObject* own[MOST_CONVERTED]
    cdef Py_ssize_t count = n + (0 if names == NULL else PyTuple_GET_SIZE(names))
    cdef object what = <object>args[0], value = None
    cdef bint is_update = type(what) is _update_type
    if (
        count > MOST_CONVERTED or tapes.current is not None or not _may_convert(row)
        or not _is_on_one_device(what)
    ):
        return _call_looked_at(row, args, n, names)
    if _is_host_value(row, args, n):
        value = value_on_device(<object>args[1])
        if value is None:
            return _call_looked_at(row, args, n, names)
    passed = what.index if is_update else <object>args[1]
    index = index_on_device(passed)
    if index is None and passed is not None:
        return _call_looked_at(row, args, n, names)
    memcpy(own, args, count * sizeof(PyObject*))
    if is_update:
        what = _update_type(what.array, index)
        own[0] = <PyObject*>what
    else:
        own[1] = <PyObject*>index
    if value is not None:
        own[1] = <PyObject*>value
    return _call_looked_at(row, own, n, names, True)


cdef bint _is_on_one_device(object what) except -1:
    """Is an array, or that of `x.at[...]`, on one device?"""
    cdef PyObject* array
    if type(what) is _update_type:
        what = what.array
    array = <PyObject*>what
    return (
        jm_kind_of_type(&types, Py_TYPE(array)) == JM_ARRAY
        and _is_where_others_are(&array, 1, -1)
    )


cdef PyObject* call_row(
    Row row, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef object result
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf), place = -1
    if row.number is not None:
        place = _place_of_number(row, args, n, names)
        if place < 0 and row.number.only:
            return PyObject_Vectorcall(<PyObject*>row.call, args, nargsf, names)
    if row.left_with is not None and names != NULL and row.left_with in <tuple>names:
        _count_miss(row, OPTIONS)
    elif is_left(&row.skip):
        _count_miss(row, NOT_RECORDED)
    else:
        if _has_host_data(row, args, n):
            result = _call_with_host_data(row, args, n, names)
        elif place < 0 or row.number.convert is None:
            result = _call_looked_at(row, args, n, names)
        else:
            result = _call_with_number(row, args, n, names, place)
        if result is not None:
            Py_INCREF(result)
            return <PyObject*>result
    return perform(<PyObject*>row.call, args, nargsf, names)


cdef PyObject* _call_method(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    return (<call_row_function>call_row)(<Row>(<Method>method).inner, args, nargsf, names)


def is_of_random(function) -> bool:
    """Is it one of `jax.random`? These alone read the states which a context lacks."""
    return str(function.__module__).startswith("jax._src.random")


HOST_ITSELF, HOST_OR_ITEMS, HOST_AS_OPERAND = HOST, HOST_ARRAYS, HOST_OPERAND


def make_row(
    str entry, reference, Number number=None, str left_with=None, str written=None,
    bint with_functions=False, HostData host=NO_HOST, bint with_index=False, bint with_value=False,
    bint late=False,
):
    """The replacement of a function of the reference whose calls are replayed.

    Args:
      entry: the name of its entry point.
      reference: the function.
      number: an argument of which it makes an array before it decides anything by it, or None.
      left_with: the name of an argument by which users' code may be called; or None.
      written: how programs write it, if it shares its entry point with others; or None.
      with_functions: whether it takes functions, and traces each once for each kind of arguments.
      host: whether its first argument, or the second one of an operator, may be host data, of which
        it decides by no more than dtype and shape: `HOST_ITSELF`, `HOST_OR_ITEMS`,
        `HOST_AS_OPERAND`.
      with_index: whether it takes an array and an index, and does the same for each row of it.
      with_value: whether it makes an array of its second argument before it asks for anything.
      late: whether it is of a module that JAX imports when a program asks for it.
    """
    cdef Method method
    cdef Row row
    if reference is None:
        return None
    method = make_method(<vectorcallfunc>_call_method, reference)
    method.inner = row = Row(entry_number(entry), reference)
    row.number = number
    row.left_with = left_with
    row.with_functions = with_functions
    row.host = host
    row.with_index, row.with_value, row.late = with_index, with_value, late
    row.with_states = with_functions or late or is_of_random(reference)
    if with_index:
        row.numbers_to = TO_THE_FIRST
    elif is_of_random(reference):
        row.numbers_to = TO_ANY_BUT_KEYS
    row.named = named_number(entry, written) if written else 0
    return method


def _forget() -> None:
    """Look at all calls again."""
    cdef Row row
    for row in _rows:
        row.missed = row.skip = row.turn = row.recorded = 0
        row.numbers = []


on_forget(_forget)


# --- Functions that are objects of a class -------------------------------------------------------

cdef dict _rows_of_objects = {}    # id of such a function -> its Row, which keeps it alive
# The ones that were looked up last, borrowed; NULL for those of other objects, which may be gone.
# The dict needs an int for each call.
cdef PyObject* _objects[LAST_OBJECTS]
cdef PyObject* _rows_of_last[LAST_OBJECTS]


cdef inline PyObject* _row_of_object(PyObject* function) except? NULL:
    """The row of a function, borrowed; NULL if there is none."""
    cdef size_t address = <size_t>function, place = (address >> 4 ^ address >> 10) % LAST_OBJECTS
    if _objects[place] == function:
        return _rows_of_last[place]
    row = _rows_of_objects.get(address)
    _objects[place] = function
    _rows_of_last[place] = NULL if row is None else <PyObject*>row
    return _rows_of_last[place]


cdef PyObject* _call_object(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`cls.__call__(self, *args, **kwargs)`."""
    cdef PyObject* row = NULL
    if PyVectorcall_NARGS(nargsf):
        row = _row_of_object(args[0])
    if row == NULL:
        return PyObject_Vectorcall(<PyObject*>(<Method>method).reference, args, nargsf, names)
    return (<call_row_function>call_row)(<Row>row, args + 1, PyVectorcall_NARGS(nargsf) - 1, names)


def make_object_call(str entry, reference, list functions):
    """The replacement of the method by which objects of a class are called.

    Args:
      entry: the name of the entry point.
      reference: the method, `cls.__call__`.
      functions: an object whose calls are replayed, and as for `make_row` its number and how
        programs write it; for each.
    """
    cdef Method method = make_method(<vectorcallfunc>_call_object, reference)
    for function, number, written in functions:
        add_object(entry, reference, function, number, written)
    return method


def add_object(str entry, reference, function, Number number, str written, bint late=False):
    """Replay calls of one more of these objects; the arguments are as above, and for `make_row`."""
    cdef Row row = Row(entry_number(entry), function)
    row.call = MethodType(reference, function)
    row.attributes = all_attributes_of(function)
    row.number = number
    row.named = named_number(entry, written)
    row.late = row.with_states = late
    _rows_of_objects[id(function)] = row
    memset(_objects, 0, sizeof(_objects))    # it may have had another


def method_calling(function):
    """The reference's method by which one of these objects is called; None for others."""
    row = _rows_of_objects.get(id(function))
    return None if row is None else (<Row>row).call.__func__


# --- Entry points of their own -------------------------------------------------------------------

zeros = make_row("zeros", private.jnp_zeros)
ones = make_row("ones", private.jnp_ones)
full = make_row("full", private.jnp_full)
getitem = make_row("getitem", private.array_getitem, with_index=True)
