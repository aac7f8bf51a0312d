"""Plans: keeping and running them."""

from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import weakref

from jaxmarshal._core.context.configuration cimport transfers_unguarded
from jaxmarshal._core.placement.host_data cimport (
    BUSY, FREE, LOST, HostBuffer, copy_array, give_buffer, is_over, state_of_buffers, take_buffer
)
from jaxmarshal._core.placement.records cimport (
    KEPT, REUSED, TargetPlan, make_host_buffer, put_host
)
from jaxmarshal._core.plans.backoff cimport failed_again
from jaxmarshal._core.plans.intake cimport jm_guard, jm_intake
from jaxmarshal._core.values.arguments cimport jm_slot, set_ready
from jaxmarshal._core.values.array_words cimport array_buffer, is_gone
from jaxmarshal._core.values.capi cimport jm_list_items
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.forgetting cimport on_forget
from jaxmarshal._core.values.kinds cimport jm_kind_is_host
from jaxmarshal._core.values.live_objects cimport JM_DEBUG, counters, jm_counters
from jaxmarshal._core.values.methods cimport jm_use_vectorcall, vectorcallfunc
from jaxmarshal._core.values.narrowing cimport bits_of
from jaxmarshal._core.values.trees cimport (
    LEAVES, LIST_NODE, Step, free_structure, init_structure, rebuild_tree, record_treedef
)
from jaxmarshal._reports.counting cimport (
    DELETED, GUARD, HIT, HOST_LEAVES, NOBODY, counts_of_program, decided_to_hit, entries, is_asked
)

from jaxmarshal._jax import private

cdef extern from *:
    """
    #define JM_COUNT_PLANS(counters, by) JM_COUNT(counters, live_plans, by)
    """
    void JM_COUNT_PLANS(jm_counters* counters, int by) noexcept
    int PyDict_DelItem(object mapping, object key) noexcept
    void PyErr_Clear() noexcept
    PyObject* PyObject_CallOneArg(PyObject* function, PyObject* arg) noexcept
    PyObject* PyObject_Vectorcall(
        PyObject* function, PyObject** args, size_t n, PyObject* names
    ) noexcept

cdef enum:
    RECENT_OWNERS = 256    # a power of two
    # jaxlib puts off releasing what other threads let go of; see `run_plan`.
    CALLS_PER_COLLECTION = 64

cdef object _consume = private.consume_results
cdef object _collect_garbage = private.collect_garbage
cdef object _runtime_error = private.JaxRuntimeError
cdef object _array_type = private.ArrayImpl

cdef enum:
    SEEN_OFTEN = 2      # further calls with the same scalar
    MOST_SCALARS = 8    # values of one argument that are known at a time
    FEWER_SCALARS = 2   # where new ones cost little more
    MOST_SEEN = 15      # so often, however often; then others take its place soon enough

cdef enum:    # calls; see `nothing_fitted`
    MOST_SKIPPED = 63
    # A few numbers may come in turns, each of which is met some times before its array is kept. So
    # there are more attempts in a row; for they are for nothing where all are new, less often.
    SOME_NUMBERS = 24
    MORE_NUMBERS = 12
    MOST_SKIPPED_FOR_NUMBERS = 1023

cdef bint _looks_for_donated = private.looks_for_donated
cdef long long _runs = 0
cdef Py_ssize_t most_plans = 4096


cdef class Plan:
    def __cinit__(self, Py_ssize_t count):
        init_structure(&self.arguments)
        init_structure(&self.results)
        self.count = count
        self.guards = <jm_guard*>calloc(count if count else 1, sizeof(jm_guard))
        if self.guards == NULL:
            raise MemoryError()
        JM_COUNT_PLANS(&counters, 1)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.guards != NULL:
            for i in range(self.count):
                Py_XDECREF(self.guards[i].aval)
                Py_XDECREF(self.guards[i].where)
                Py_XDECREF(self.guards[i].impl)
            free(self.guards)
            JM_COUNT_PLANS(&counters, -1)
        free_structure(&self.arguments)
        free_structure(&self.results)


cdef class Plans:
    def __cinit__(self):
        self.plans = []
        self.indexed = self.plans
        self.index = {}
        self.counts = &entries[NOBODY]


cdef int name_counts(Plans plans, str entry, object written, object owner) except -1:
    plans.is_named = True
    try:
        name = written(owner)
    except Exception:    # no error of the user's
        if JM_DEBUG:
            raise
        return 0
    if name:
        plans.counts = counts_of_program(entry, name)
    return 0


cdef int run_the_same(Plan plan, Plan other) except -1:
    cdef Py_ssize_t i
    memcpy(plan.guards, other.guards, other.count * sizeof(jm_guard))
    for i in range(other.count):
        Py_XINCREF(plan.guards[i].aval)
        Py_XINCREF(plan.guards[i].where)
        Py_XINCREF(plan.guards[i].impl)
    plan.context = other.context
    plan.words = other.words
    plan.inputs = other.inputs
    plan.constants = other.constants
    plan.execute = other.execute
    plan.fails_as_jit = other.fails_as_jit
    plan.keeps_scalars = other.keeps_scalars
    plan.reuses = other.reuses
    plan.asks_results = other.asks_results
    plan.handlers = other.handlers
    return 0


cdef int nothing_fitted(Plans plans, int reason, int some) noexcept:
    cdef int more = 1, most = MOST_SKIPPED    # attempts until calls go past the plans again
    if reason == GUARD or reason == DELETED:
        return 0    # a plan fitted, and something else was in the way
    if reason == HOST_LEAVES:
        some, more, most = SOME_NUMBERS, MORE_NUMBERS, MOST_SKIPPED_FOR_NUMBERS
    plans.missed += 1
    if plans.missed > some:
        plans.missed = some + 1 - more
        plans.skip = plans.skipped = min(2 * plans.skipped + 1, most)
        plans.refusal = reason
    return 0


# --- Keeping: plans belong to their owner --------------------------------------------------------

ctypedef struct RecentOwner:
    PyObject* owner    # borrowed, for comparison only
    PyObject* plans    # borrowed from `_owners`

cdef dict _owners = {}    # id of an owner -> (weak reference to it, its Plans)
cdef RecentOwner _recent[RECENT_OWNERS]


cdef inline RecentOwner* _place(uintptr_t owner) noexcept:
    return &_recent[((owner >> 4) ^ (owner >> 12)) & (RECENT_OWNERS - 1)]


cdef Plans plans_of(object owner):
    cdef RecentOwner* place = _place(<uintptr_t><PyObject*>owner)
    if place.owner == <PyObject*>owner:
        return <Plans>place.plans
    entry = _owners.get(<uintptr_t><PyObject*>owner)
    if entry is None:
        return None
    plans = <Plans>(<tuple>entry)[1]
    place.owner = <PyObject*>owner
    place.plans = <PyObject*>plans
    return plans


cdef void _forget_recent(uintptr_t owner) noexcept:
    cdef RecentOwner* place = _place(owner)
    if place.owner == <PyObject*>owner:
        place.owner = NULL
        place.plans = NULL


cdef class _Obituary:
    """Called when an owner dies, before its memory is free for another object: drops its plans.

    In C, and without a comparison: whoever comes to lie there would find them. A Python function is
    not called where the stack is used up, and Ctrl-C may end it.
    """
    cdef vectorcallfunc implementation
    cdef dict owners      # `_owners`, which a module that was taken apart may lack
    cdef object key       # the very object that is the key
    cdef uintptr_t owner

    def __call__(self, reference):
        return self(reference)    # by `vectorcall`


cdef PyObject* _drop(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) noexcept:
    cdef _Obituary obituary = <_Obituary>self
    _forget_recent(obituary.owner)
    if PyDict_DelItem(obituary.owners, obituary.key) < 0:
        PyErr_Clear()
    Py_INCREF(None)
    return <PyObject*>None


jm_use_vectorcall(
    <PyTypeObject*>_Obituary, <Py_ssize_t><void*>&(<_Obituary><void*>NULL).implementation, False
)


cdef int give_plans(object owner, Plans plans) except -1:
    cdef _Obituary obituary = _Obituary()
    obituary.owner = <uintptr_t><PyObject*>owner
    obituary.key = obituary.owner
    obituary.owners = _owners
    obituary.implementation = <vectorcallfunc>_drop
    _owners.pop(obituary.key, None)    # a dict keeps the key that it has
    _forget_recent(obituary.owner)
    _owners[obituary.key] = (weakref.ref(owner, obituary), plans)
    return 0


cdef int keep_plan(object owner, Plan plan, int reason) except -1:
    cdef Plans plans = plans_of(owner)
    if plans is None:
        plans = Plans()
        give_plans(owner, plans)
    return add_plan(plans, plan, reason)


cdef int set_plans(Plans plans, list chosen) except -1:
    cdef Plan plan
    if not chosen:
        for plan in plans.plans:
            plan.dropped = True
    plans.plans = chosen
    plans.latest = None
    if not chosen:
        make_index(plans)    # nothing is kept alive
    return 0


cdef int make_index(Plans plans) except -1:
    cdef Plan plan
    cdef dict index
    cdef list chosen = plans.plans
    index = {}
    plans.asks_user_code = False
    for plan in chosen:
        index.setdefault(plan.signature, []).append(plan)
        if plan.runs_user_code or plan.asks_statics:
            plans.asks_user_code = True
    plans.index = index
    plans.indexed = chosen
    return 0


cdef int take_plan(Plans plans, Plan plan) except -1:
    global _runs
    cdef list kept = plans.plans
    _runs += 1    # the reference has just run it
    plan.used = _runs
    if len(kept) >= most_plans:    # a quarter of them, for this takes a while
        kept = sorted(kept, key=_last_run, reverse=True)[:most_plans - (most_plans + 3) // 4]
    return set_plans(plans, [plan, *kept])


def _last_run(plan: Plan) -> int:
    return plan.used


cdef int add_plan(Plans plans, Plan plan, int reason) except -1:
    if plan is None:
        plans.skip = failed_again(&plans.failures, 0)
        plans.refusal = reason
    else:
        plans.failures = 0
        take_plan(plans, plan)
    return 0


def forget() -> None:
    """Drop every plan."""
    memset(_recent, 0, sizeof(_recent))
    _owners.clear()


on_forget(forget)


def live_owners() -> int:
    """How many objects other than jitted functions have plans now; for tests."""
    return sum([type(plans) is Plans for _, plans in _owners.values()])


def limit_plans(n: int) -> int:
    """Keep at most so many plans of one owner; returns the limit until now. For tests."""
    global most_plans
    before, most_plans = most_plans, n
    return before


# --- Running -------------------------------------------------------------------------------------

cdef int check_transfers(jm_intake* intake) except -1:
    cdef Py_ssize_t i
    for i in range(intake.table.count):
        if jm_kind_is_host(intake.table.slots[i].kind):
            return <int>HIT if transfers_unguarded(True, False) else <int>GUARD
    return HIT


cdef bint _is_the_same(object kept, object scalar) except -1:
    """The same value of the same type; zeros of both signs are told apart."""
    if kept is scalar:
        return True
    if type(kept) is not type(scalar):
        return False
    if type(kept) is not float:
        return kept == scalar
    return bits_of(PyFloat_AS_DOUBLE(kept)) == bits_of(PyFloat_AS_DOUBLE(scalar))


# A scalar among the arguments: a value, how often it came in lately, and its array or None.
cdef class Scalar:
    cdef object value
    cdef int seen
    cdef object array


cdef inline Scalar _taken(jm_slot* slot):
    """What `take_kept_scalar` has found for this argument."""
    return <Scalar>slot.plan if slot.action == KEPT else None


cdef Scalar _scalar_of(Plan plan, jm_slot* slot):
    """What is known of the value that this argument has now, or None."""
    cdef Scalar scalar = _taken(slot)
    cdef list known
    if scalar is not None or plan.scalars is None:
        return scalar
    known = plan.scalars.get(slot.number)
    if known is not None:
        for item in known:
            scalar = <Scalar>item
            if _is_the_same(scalar.value, <object>slot.obj):
                return scalar
    return None


cdef bint take_kept_scalar(Plan plan, jm_slot* slot) except -1:
    cdef Scalar scalar = _scalar_of(plan, slot)
    if scalar is None or scalar.array is None:
        return False
    if is_gone(scalar.array):    # `jax.live_arrays()` hands it out
        if not is_asked():
            scalar.array = None
        return False
    Py_INCREF(scalar)
    slot.plan = <PyObject*>scalar
    slot.action = KEPT
    return True


cdef int _meet_scalar(Plan plan, jm_slot* slot) except -1:
    """Note a new value in place of one that has not come in for long."""
    cdef list known = plan.scalars.setdefault(slot.number, [])
    cdef Scalar other, scalar = Scalar()
    cdef Py_ssize_t i
    scalar.value = <object>slot.obj
    if len(known) < (FEWER_SCALARS if plan.reuses else MOST_SCALARS):
        known.append(scalar)
        return 0
    for i in range(len(known)):
        other = <Scalar>known[i]
        if other.seen == 0:
            known.pop(i)    # that was met first; a few that come in turns all stay
            known.append(scalar)
            return 0
    for item in known:
        (<Scalar>item).seen -= 1
    return 0


cdef bint _note_scalar(Plan plan, jm_slot* slot) except -1:
    """Has the argument a value that comes in often? Notes it, unless that is only a question."""
    cdef Scalar scalar = _scalar_of(plan, slot)
    cdef int seen    # with this call
    if scalar is not None:
        seen = scalar.seen + (scalar.seen < MOST_SEEN)
        if not is_asked():
            scalar.seen = seen
        return seen >= SEEN_OFTEN or scalar.array is not None
    if not is_asked():
        _meet_scalar(plan, slot)
    return False


cdef bint _are_kept(Plan plan, jm_intake* intake) except -1:
    """Have all scalars values that come in often?"""
    cdef Py_ssize_t i
    cdef bint kept = True
    if plan.scalars is None:
        plan.scalars = {}
    for i in range(intake.table.count):
        if is_kept(plan, &intake.table.slots[i]):
            kept = _note_scalar(plan, &intake.table.slots[i]) and kept
    return kept


# --- Host arguments in memory of our own ---

cdef enum:
    MOST_MADE = 8        # HostBuffers beside one for each leaf, while none of them is free again
    SOME_NOT_MADE = 64   # calls; then some more are made


cdef bint _may_make(Plan plan, int state) except -1:
    """May there be one more HostBuffer, where none is free?"""
    if state == BUSY:
        return False
    if plan.made < MOST_MADE + plan.count:
        return True
    if not is_asked():
        plan.not_made += 1
        if plan.not_made % SOME_NOT_MADE == 0:
            plan.made = 0
    return False


cdef object _reused(Plan plan, jm_slot* slot, object where):
    """A host argument's data in an array that was there; or None."""
    cdef int state
    cdef HostBuffer buffer = take_buffer(<object>slot.plan, &state)
    if state == FREE:
        plan.made = 0
    elif not _may_make(plan, state):
        return None
    else:
        plan.made += 1
        plan.asks_results = plan.asks_results or state == LOST
        buffer = make_host_buffer(slot, <TargetPlan>slot.target, where)
    copy_array(<object>slot.ready, buffer.memory)
    set_ready(slot, buffer)
    slot.action = REUSED
    return buffer.array


cdef inline void _choose_another(Plan plan, list results) noexcept:
    """After the first result the last, then those before it, and the first again."""
    plan.chosen = (plan.chosen if plan.chosen else <int>len(results)) - 1


cdef object _chosen(Plan plan, list results):
    """The result that is asked whether the call is over; None where none can be."""
    for _ in range(len(results)):
        result = results[plan.chosen]
        if type(result) is _array_type:
            return result
        _choose_another(plan, results)
    return None


cdef object _witness(Plan plan, object result, list results):
    """A weak reference to a result that tells whether its call is over; None if it is."""
    if plan.asks_results:
        if is_over(result):
            return None
        plan.asks_results = False
        # This one was let go of or donated before it told; others may not be.
        _choose_another(plan, results)
        result = _chosen(plan, results)
    return weakref.ref(result)


cdef int _give_buffers(Plan plan, jm_intake* intake, list results) except -1:
    """Have other calls take those of this one, which had these results, or None if it did not run.

    Those that are not given, as after an error, are lost: something may read them.
    """
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef HostBuffer buffer
    cdef object witness = None
    cdef bint found = results is None
    for i in range(intake.table.count):
        slot = &intake.table.slots[i]
        if slot.action != REUSED:
            continue
        if not found:
            result = _chosen(plan, results)
            if result is None:
                plan.reuses = False
                return 0
            witness = _witness(plan, result, results)
            found = True
        buffer = <HostBuffer>slot.ready
        buffer.witness = witness
        give_buffer(<object>slot.plan, buffer)
    return 0


cdef bint _needs_buffer(Plan plan, jm_slot* slot) noexcept:
    """Is a host argument that is not kept better placed by jaxlib's C++, without a HostBuffer?"""
    return plan.only_reused or (plan.only_kept and is_scalar(slot.kind))


cdef object _placed(Plan plan, jm_slot* slot, object where):
    """A host argument as an array, or None where jaxlib's C++ places it at less cost."""
    cdef Scalar scalar = None
    if is_kept(plan, slot):
        scalar = _scalar_of(plan, slot)
    if scalar is not None and (scalar.array is not None or scalar.seen >= SEEN_OFTEN):
        if scalar.array is None:
            if slot.action == KEPT:    # and was deleted since, by what the garbage collector ran
                return None
            scalar.array = put_host(slot, <TargetPlan>slot.target, where)
        return scalar.array
    if plan.reuses and not plan.guards[slot.number].donated:
        array = _reused(plan, slot, where)
        if array is not None:
            return array
    if _needs_buffer(plan, slot):
        return None
    return put_host(slot, <TargetPlan>slot.target, where)


cdef bint _could_place(Plan plan, jm_slot* slot) except -1:
    """Would `_placed` have an array? For a question."""
    cdef Scalar scalar = None
    cdef int state
    if not _needs_buffer(plan, slot):
        return True
    if is_kept(plan, slot):
        scalar = _scalar_of(plan, slot)
    if scalar is not None and (scalar.array is not None or scalar.seen + 1 >= SEEN_OFTEN):
        return True
    if not plan.reuses or plan.guards[slot.number].donated:
        return False
    state = state_of_buffers(<object>slot.plan)
    return state == FREE or _may_make(plan, state)


cdef int _look_at_host_arguments(Plan plan, jm_intake* intake) except -1:
    """Why they are not to be placed, or HIT."""
    cdef int reason = check_transfers(intake)
    if reason == HIT and plan.keeps_scalars and not _are_kept(plan, intake) and plan.only_kept:
        return <int>HIT if plan.reuses else <int>HOST_LEAVES
    return reason


cdef int _put_host_arguments(Plan plan, jm_intake* intake) except -1:
    """Put the host arguments where they go, unless something is in the way."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef jm_guard* guard
    cdef int reason = _look_at_host_arguments(plan, intake)
    if reason:
        return reason
    for i in range(intake.table.count):
        slot = &intake.table.slots[i]
        guard = &plan.guards[slot.number]
        if jm_kind_is_host(slot.kind) and guard.input >= 0:
            array = _placed(plan, slot, <object>guard.where)
            if array is None:
                return HOST_LEAVES
            Py_INCREF(array)
            intake.inputs[guard.input] = <PyObject*>array
    return HIT


cdef bint _has_deleted(jm_intake* intake) except -1:
    """Was a constant or an argument deleted, perhaps by what ran after it was looked at?"""
    for array in <tuple>intake.tuple:
        if array_buffer(array) == NULL:
            return True
    return False


cdef bint _has_gone(jm_intake* intake) except -1:
    """The same, and donated ones too, which keep their buffer."""
    for array in <tuple>intake.tuple:
        if is_gone(array):
            return True
    return False


cdef inline bint _has_looked(Plan plan) noexcept:
    """Has the guard looked for donated ones?"""
    return plan.words != NULL and plan.words.held >= 0


cdef int raise_as_jit() except -1:
    cdef str failure
    try:
        propagate()
    except Exception as error:
        if type(error) is not _runtime_error:
            raise
        failure = str(error)
    raise ValueError(failure)


cdef int _deleted_or_raise(Plan plan, jm_intake* intake) except -1:
    """jaxlib has just reported an error: raise it unless it is DELETED and nothing was run."""
    cdef bint deleted = False
    try:
        if plan.fails_as_jit:
            raise_as_jit()
        propagate()
    except Exception:
        # A donated one is an error of the runtime, unless jaxlib looks for it before.
        deleted = _has_gone(intake) if _looks_for_donated else _has_deleted(intake)
        if not deleted:
            raise
    intake.reason = DELETED
    return 0


cdef PyObject* _execute(Plan plan, PyObject* inputs) noexcept:
    """A new reference to the list of results, or NULL with an error set."""
    cdef PyObject* results
    cdef PyObject* pair[2]
    pair[0] = PyObject_CallOneArg(<PyObject*>plan.execute, inputs)
    if pair[0] == NULL:
        return NULL
    pair[1] = <PyObject*>plan.handlers
    results = PyObject_Vectorcall(<PyObject*>_consume, pair, 2, NULL)
    Py_DECREF(<object>pair[0])
    return results


cdef int _decide(Plan plan, jm_intake* intake, int entry) except -1:
    """What would become of a call that is asked about; nothing is placed or run."""
    cdef Py_ssize_t i
    cdef PyObject* array
    cdef jm_slot* slot
    intake.reason = _look_at_host_arguments(plan, intake)
    for i in range(intake.table.count if intake.reason == HIT else 0):
        slot = &intake.table.slots[i]
        if jm_kind_is_host(slot.kind) and plan.guards[slot.number].input >= 0:
            if not _could_place(plan, slot):
                intake.reason = HOST_LEAVES
    for i in range(len(<tuple>intake.tuple)):
        array = intake.inputs[i]
        # Host arguments have no place yet.
        if intake.reason == HIT and array != NULL and is_gone(<object>array):
            intake.reason = DELETED
    return decided_to_hit(entry) if intake.reason == HIT else 0


cdef PyObject* run_plan(Plan plan, jm_intake* intake, int entry) except? NULL:
    global _runs
    cdef PyObject* results
    if is_asked():
        _decide(plan, intake, entry)
        return NULL
    if intake.table.count:
        intake.reason = _put_host_arguments(plan, intake)
    if not intake.reason and not plan.fails_as_jit and not _has_looked(plan) and _has_gone(intake):
        intake.reason = DELETED    # the reference looks before jaxlib does, which logs a line
    if intake.reason:
        _give_buffers(plan, intake, None)
        return NULL
    # jaxlib's own calls do this now and then; `execute_sharded` does not.
    _runs += 1
    plan.used = _runs
    if _runs % CALLS_PER_COLLECTION == 0:
        _collect_garbage()
    results = _execute(plan, intake.tuple)
    if results == NULL:
        _deleted_or_raise(plan, intake)
    elif plan.reuses:
        _give_buffers(plan, intake, <list>results)
    return results


cdef PyObject* build_results(Plan plan, PyObject* results) except NULL:
    cdef object built
    if plan.listed:
        return results    # jaxlib has made it for this call
    if plan.single:
        built = <object>jm_list_items(<object>results)[0]
    elif plan.unflatten is not None:
        built = plan.unflatten(<object>results)
    else:
        built = rebuild_tree(&plan.results, jm_list_items(<object>results), sizeof(void*))
    Py_DECREF(<object>results)
    Py_INCREF(built)
    return <PyObject*>built


cdef bint set_results(Plan plan, object treedef) except -1:
    cdef Step* steps
    cdef Py_ssize_t n = len(plan.handlers)
    if treedef.num_leaves != n:
        return False
    if not record_treedef(treedef, &plan.results):
        plan.unflatten = treedef.unflatten
        return True
    steps = plan.results.steps
    plan.single = plan.results.count == 1 and steps[0].op == LEAVES
    plan.listed = plan.results.count == 2 and steps[0].op == LIST_NODE and steps[0].n == n and (
        steps[1].op == LEAVES
    )
    return True
