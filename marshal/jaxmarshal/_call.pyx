"""Matching calls with plans."""

from cpython.object cimport Py_EQ, PyObject, PyObject_Hash

from jaxmarshal._argtable cimport jm_table, jm_table_free, jm_table_init
from jaxmarshal._classify cimport Py_TYPE
from jaxmarshal._context cimport Context
from jaxmarshal._counters cimport counters
from jaxmarshal._errors cimport propagate
from jaxmarshal._guard cimport begin, end
from jaxmarshal._intake cimport jm_intake
from jaxmarshal._match cimport Walk, match, match_array
from jaxmarshal._plan cimport Plan, Plans, build_results, run
from jaxmarshal._stats cimport HIT, NOT_RECORDED
from jaxmarshal._tree cimport REGISTRY_NODE, Structure, flatten, move_structure

cdef extern from *:
    """
    /* Is equality of this object its identity, so that nothing has to be asked? */
    static inline int jm_is_its_identity(PyObject *obj) {
        return Py_TYPE(obj)->tp_hash == PyBaseObject_Type.tp_hash &&
               Py_TYPE(obj)->tp_richcompare == PyBaseObject_Type.tp_richcompare;
    }
    /* Is it of a type whose objects never change, nor compare by anything but their value? */
    static inline int jm_is_plain_value(PyObject *obj) {
        return PyUnicode_CheckExact(obj) || PyLong_CheckExact(obj) || PyBool_Check(obj) ||
               PyBytes_CheckExact(obj) || obj == Py_None;
    }
    """
    bint jm_is_its_identity(PyObject* obj) noexcept
    bint jm_is_plain_value(PyObject* obj) noexcept
    PyObject* PyTuple_GET_ITEM(PyObject* items, Py_ssize_t i) noexcept
    Py_ssize_t PyTuple_GET_SIZE(PyObject* items) noexcept
    PyObject* PyErr_Occurred() noexcept
    object PyObject_RichCompare(object a, object b, int op)
    bint PyObject_IsTrue(object obj) except -1

cdef enum:
    NEAR = 4    # a plan that is found this far back comes to the front

# As their callers see them; see `_errors`.
ctypedef int (*match_function)(Plan, Call*, jm_intake*) noexcept
ctypedef PyObject* (*run_function)(Plan, jm_intake*) noexcept
ctypedef PyObject* (*try_function)(Plan, Call*, jm_table*, bint, int*) noexcept


# --- Static arguments ----------------------------------------------------------------------------

cdef class StaticRule:
    def __cinit__(self, numbers, names):
        self.numbers = frozenset(numbers)
        self.names = frozenset(names)


cdef inline bint _is_static(StaticRule rule, Py_ssize_t i, Py_ssize_t n):
    return rule is not None and (i in rule.numbers or i - n in rule.numbers)


cdef bint _same_static(StaticArgument known, PyObject* found) except -1:
    """What jaxlib's own cache asks: equal hashes, one type, and equality.

    An object whose class says what equality is may have changed since: it is always asked.
    """
    cdef PyObject* value = <PyObject*>known.value
    if Py_TYPE(found) != Py_TYPE(value):
        return False
    if found == value and (jm_is_plain_value(found) or jm_is_its_identity(found)):
        return True
    if PyObject_Hash(<object>found) != known.hash:
        return False
    return PyObject_IsTrue(PyObject_RichCompare(known.value, <object>found, Py_EQ))


cdef PyObject* _by_name(Call* call, str name, Py_ssize_t likely) noexcept:
    """The argument with this name, or NULL; `likely` is where its name may be."""
    cdef Py_ssize_t i, n
    if call.names == NULL:
        return NULL
    n = PyTuple_GET_SIZE(call.names)
    if likely < n and PyTuple_GET_ITEM(call.names, likely) == <PyObject*>name:
        return call.args[call.n + likely]
    for i in range(n):
        if PyTuple_GET_ITEM(call.names, i) == <PyObject*>name:
            return call.args[call.n + i]
    for i in range(n):    # a name that is not interned
        if <str>(<object>PyTuple_GET_ITEM(call.names, i)) == name:
            return call.args[call.n + i]
    return NULL


cdef bint _statics_match(Plan plan, Call* call) except -1:
    cdef StaticArgument known
    cdef PyObject* found
    for item in plan.statics:
        known = <StaticArgument>item
        if known.number >= 0:
            found = call.args[known.number]
        else:
            found = _by_name(call, known.name, 0)
        if found == NULL or not _same_static(known, found):
            return False
    return True


# --- Matching ------------------------------------------------------------------------------------

cdef int _match_dynamic(Plan plan, Call* call, Walk* walk) except -1:
    """The arguments by position that are not static."""
    cdef Py_ssize_t i
    cdef int matched
    if plan.statics is None:
        return match_array(call.args, call.n, walk)
    if not _statics_match(plan, call):
        return 0
    for i in range(call.n):
        if not plan.is_static[i]:
            matched = match(call.args[i], walk)
            if matched != 1:
                return matched
    return 1


cdef int match_call(Plan plan, Call* call, jm_intake* intake) except -1:
    cdef Walk walk
    cdef PyObject* found
    cdef Py_ssize_t i, n_names = 0 if call.names == NULL else PyTuple_GET_SIZE(call.names)
    cdef int matched
    if call.n != plan.positional or n_names != plan.keywords:
        return 0
    walk.intake = intake
    walk.step = plan.arguments.steps
    walk.end = plan.arguments.steps + plan.arguments.count
    walk.leaves = 0
    if call.flat:    # without a structure
        walk.leaves = plan.count
    matched = _match_dynamic(plan, call, &walk)
    if matched != 1:
        return matched
    if n_names:
        for i in range(len(plan.names)):
            found = _by_name(call, <str>plan.names[i], i)
            if found == NULL:
                return 0
            matched = match(found, &walk)
            if matched != 1:
                return matched
    return walk.leaves == 0 and walk.step == walk.end


cdef int flatten_call(
    Call* call, StaticRule rule, Structure* structure, jm_table* table
) except -1:
    cdef Py_ssize_t i
    cdef int reason
    for i in range(call.n):
        if not _is_static(rule, i, call.n):
            reason = flatten(<object>call.args[i], NULL, structure, table)
            if reason:
                return reason
    if call.names == NULL:
        return HIT
    for name in sorted(<tuple>call.names):
        if rule is None or name not in rule.names:
            reason = flatten(<object>_by_name(call, name, 0), NULL, structure, table)
            if reason:
                return reason
    return HIT


cdef StaticArgument _static_argument(Py_ssize_t number, str name, object value):
    cdef StaticArgument static = StaticArgument()
    static.number = number
    static.name = name
    static.value = value
    static.hash = PyObject_Hash(value)
    return static


cdef int describe_call(Plan plan, Call* call, StaticRule rule, Structure* structure) except -1:
    cdef Py_ssize_t i
    cdef list names = [] if call.names == NULL else sorted(<tuple>call.names)
    cdef list statics = []
    cdef bytearray flags = bytearray(call.n)
    plan.positional = call.n
    plan.keywords = len(names)
    for i in range(call.n):
        if _is_static(rule, i, call.n):
            flags[i] = 1
            statics.append(_static_argument(i, None, <object>call.args[i]))
    plan.names = tuple([name for name in names if rule is None or name not in rule.names])
    for name in names:
        if rule is not None and name in rule.names:
            statics.append(_static_argument(-1, name, <object>_by_name(call, name, 0)))
    if statics:
        plan.statics = statics
        plan.is_static = bytes(flags)
    for i in range(structure.count):
        if structure.steps[i].op == REGISTRY_NODE:
            plan.runs_user_code = True
    move_structure(&plan.arguments, structure)
    return 0


# --- Trying --------------------------------------------------------------------------------------

cdef int _not_compared() except -1:
    """The guard has just reported an error: whatever cannot be compared is the reference's."""
    try:
        propagate()
    except Exception:
        pass
    return 0


cdef PyObject* _try_plan(
    Plan plan, Call* call, jm_table* table, bint by_pointer, int* reason
) except? NULL:
    """The result of this plan, a new reference; or NULL with a reason why it does not fit."""
    cdef jm_intake intake
    cdef int matched
    cdef PyObject* results = NULL
    begin(plan, &intake, table, by_pointer)
    matched = (<match_function>match_call)(plan, call, &intake)
    if matched < 0:
        matched = _not_compared()
    if matched and intake.guard == intake.end:
        results = (<run_function>run)(plan, &intake)
    reason[0] = intake.reason or <int>NOT_RECORDED
    end(&intake)
    if results == NULL:
        if PyErr_Occurred() != NULL:
            propagate()
        return NULL
    return results if call.flat else build_results(plan, results)


cdef int _use_next(Plans plans, Plan plan) except -1:
    """Have a plan be the first to be tried."""
    plans.plans = [plan, *[other for other in plans.plans if other is not plan]]
    return 0


cdef PyObject* try_plans(
    Plans plans, Context context, Call* call, int* reason
) except? NULL:
    cdef jm_table table
    cdef Plan plan
    cdef PyObject* result
    cdef Py_ssize_t i
    cdef list candidates = plans.plans
    cdef bint several = len(candidates) > 1, by_pointer = several
    reason[0] = NOT_RECORDED
    jm_table_init(&table, &counters)
    while True:
        for i in range(len(candidates)):
            plan = <Plan>candidates[i]
            if plan.context is not context or (by_pointer and plan.runs_user_code):
                continue
            result = (<try_function>_try_plan)(plan, call, &table, by_pointer, reason)
            if result == NULL and PyErr_Occurred() == NULL:
                continue
            jm_table_free(&table)
            if result == NULL:
                propagate()
            if i >= NEAR or (i and plan.runs_user_code):
                _use_next(plans, plan)
            return result
        if not by_pointer:
            break
        by_pointer = False
    jm_table_free(&table)
    return NULL
