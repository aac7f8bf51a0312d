"""Matching calls with plans."""

from cpython.object cimport PyObject, PyObject_Hash
from cpython.ref cimport Py_INCREF

from libc.stdint cimport uint64_t

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.placement.records cimport resolve_again
from jaxmarshal._core.plans.guard cimport begin_guard, end_guard
from jaxmarshal._core.plans.intake cimport jm_intake
from jaxmarshal._core.plans.match cimport Walk, match_object, match_array
from jaxmarshal._core.plans.plan cimport (
    Plan, Plans, build_results, make_index, run_plan, run_plan_function
)
from jaxmarshal._core.plans.signature cimport (
    MOST_LEAVES, add_number, number_of_static, number_of_tree, number_of_trees
)
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init
from jaxmarshal._core.values.capi cimport PyErr_Occurred, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from jaxmarshal._core.values.errors cimport is_of_program, propagate
from jaxmarshal._core.values.graph_nodes cimport Nodes, are_expected, forget_nodes
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._core.values.static_values cimport (
    MAYBE, StaticArgument, asks_user_code, make_static, same_static, same_unasked
)
from jaxmarshal._core.values.trees cimport REGISTRY_NODE, Structure, flatten_tree, move_structure
from jaxmarshal._reports.counting cimport HIT, HOST_LEAVES, NOT_RECORDED, TREE

cdef extern from *:
    bint PyUnicode_CheckExact(object obj) noexcept

cdef enum:
    FEW = 4    # so many plans are tried one after the other

# As their callers see them; see `errors`.
ctypedef int (*match_function)(Plan, Call*, jm_intake*) noexcept
ctypedef int (*not_compared_function)(Call*) noexcept
ctypedef PyObject* (*try_function)(Plan, Call*, jm_table*, bint, int*) noexcept


# --- Static arguments ----------------------------------------------------------------------------

cdef class StaticRule:
    def __cinit__(self, numbers, names):
        self.numbers = frozenset(numbers)
        self.names = frozenset(names)


cdef inline bint _is_static(StaticRule rule, Py_ssize_t i, Py_ssize_t n):
    return rule is not None and (i in rule.numbers or i - n in rule.numbers)


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
    for i in range(n):    # a name that is not interned; other kinds have an equality of their own
        if PyUnicode_CheckExact(<object>PyTuple_GET_ITEM(call.names, i)) and (
            <str>(<object>PyTuple_GET_ITEM(call.names, i)) == name
        ):
            return call.args[call.n + i]
    return NULL


cdef bint are_plain_names(PyObject* names) noexcept:
    cdef Py_ssize_t i
    for i in range(0 if names == NULL else PyTuple_GET_SIZE(names)):
        if not PyUnicode_CheckExact(<object>PyTuple_GET_ITEM(names, i)):
            return False
    return True


cdef int _statics_match(Plan plan, Call* call, bint ask) except -1:
    """Are they the plan's? MAYBE where only the user's code knows, which is asked with `ask`."""
    cdef StaticArgument known
    cdef PyObject* found
    cdef int one, result = True
    for item in plan.statics:
        known = <StaticArgument>item
        if known.number >= 0:
            found = call.args[known.number]
        else:
            found = _by_name(call, known.name, 0)
        if found == NULL:
            return False
        one = same_static(known, found, &call.asked) if ask else same_unasked(known, found)
        if not one:
            return False
        result = max(result, one)
    return result


# --- Matching ------------------------------------------------------------------------------------

cdef int _match_dynamic(Plan plan, Call* call, Walk* walk) except -1:
    """The arguments by position that are not static."""
    cdef Py_ssize_t i
    cdef int matched
    if plan.statics is None:
        return match_array(call.args, call.n, walk)
    for i in range(call.n):
        if not plan.is_static[i]:
            matched = match_object(call.args[i], walk)
            if matched != 1:
                return matched
    return 1


cdef int match_call(Plan plan, Call* call, jm_intake* intake) except -1:
    cdef Walk walk
    cdef PyObject* found
    cdef Py_ssize_t i, n_names = 0 if call.names == NULL else PyTuple_GET_SIZE(call.names)
    cdef int matched, statics = True
    if call.n != plan.positional or n_names != plan.keywords:
        return 0
    walk.intake = intake
    walk.step = plan.arguments.steps
    walk.end = plan.arguments.steps + plan.arguments.count
    walk.leaves = 0
    walk.asked = &call.asked
    walk.taken = 0
    walk.nodes = call.nodes
    if call.nodes != NULL:
        forget_nodes(<Nodes>call.nodes)
    if call.flat:    # without a structure
        walk.leaves = plan.count
    if plan.statics is not None:
        statics = _statics_match(plan, call, False)
        if not statics:
            return 0
    matched = _match_dynamic(plan, call, &walk)
    if matched != 1:
        return matched
    if n_names:
        for i in range(len(plan.names)):
            found = _by_name(call, <str>plan.names[i], i)
            if found == NULL:
                return 0
            matched = match_object(found, &walk)
            if matched != 1:
                return matched
    if walk.leaves or walk.step != walk.end:
        return 0
    if statics != MAYBE:
        return 1
    # As in jaxlib: what they change, when they are hashed or compared, comes too late to matter.
    return _in_its_context(plan, call, intake) and _statics_match(plan, call, True) == 1


cdef int _flatten_argument(
    PyObject* arg, int number, Structure* structure, jm_table* table
) except -1:
    cdef Py_ssize_t i, before = table.count
    cdef int reason = flatten_tree(<object>arg, NULL, structure, table)
    for i in range(before, table.count):
        table.slots[i].number = number
    return reason


cdef int flatten_call(
    Call* call, StaticRule rule, Structure* structure, jm_table* table
) except -1:
    cdef Py_ssize_t i
    cdef int reason, number = 0
    for i in range(call.n):
        if not _is_static(rule, i, call.n):
            reason = _flatten_argument(call.args[i], number, structure, table)
            if reason:
                return reason
            number += 1
    if call.names == NULL:
        return HIT
    if not are_plain_names(call.names):
        return TREE
    for name in sorted(<tuple>call.names):
        if rule is None or name not in rule.names:
            reason = _flatten_argument(_by_name(call, name, 0), -1, structure, table)
            if reason:
                return reason
    return HIT


cdef int describe_call(Plan plan, Call* call, StaticRule rule, Structure* structure) except -1:
    cdef Py_ssize_t i
    cdef list names = [] if call.names == NULL else sorted(<tuple>call.names)
    cdef list statics = []
    cdef bytearray flags = bytearray(call.n)
    plan.positional = call.n
    plan.keywords = len(names)
    call.asked.comparing = True
    for i in range(call.n):
        if _is_static(rule, i, call.n):
            flags[i] = 1
            statics.append(make_static(i, None, <object>call.args[i]))
    plan.names = tuple([name for name in names if rule is None or name not in rule.names])
    for name in names:
        if rule is not None and name in rule.names:
            statics.append(make_static(-1, name, <object>_by_name(call, name, 0)))
    call.asked.comparing = False
    for static in statics:
        if asks_user_code(<StaticArgument>static):
            plan.asks_statics = True
    if statics:
        plan.statics = statics
        plan.is_static = bytes(flags)
    for i in range(structure.count):
        if structure.steps[i].op == REGISTRY_NODE:
            plan.runs_user_code = True
    move_structure(&plan.arguments, structure)
    plan.signature = signature_of(call, rule, plan.context)
    return 0


# --- Trying --------------------------------------------------------------------------------------

cdef int keep_error(Call* call, object error) except -1:
    if call.asked.keeps_error and call.asked.error == NULL:
        Py_INCREF(error)
        call.asked.error = <PyObject*>error
    return 0


cdef int _not_compared(Call* call) except -1:
    """The guard has just reported an error: whatever cannot be compared is the reference's.

    What the program's own code raises is raised at once. What static arguments raise, the reference
    has words of its own for, if it meets it again.
    """
    try:
        propagate()
    except Exception as error:
        if not is_of_program(error):
            return 0
        if not call.asked.comparing:
            raise
        call.asked.comparing = False
        keep_error(call, error)
    return 0


cdef bint _in_its_context(Plan plan, Call* call, jm_intake* intake) except -1:
    """Is the configuration that of the plan still, after nodes were taken apart?"""
    cdef Context now
    cdef int reason = HIT
    if plan.runs_user_code and call.context_of != NULL and not call.is_in_context:
        now = call.context_of(&reason)
        if now is not plan.context:
            intake.reason = reason
            return False
        call.is_in_context = True
    return True


cdef bint _still_fits(Plan plan, Call* call, jm_intake* intake) except -1:
    """Is all that was looked at what it was, after the user's code was asked?

    A node that is taken apart, or a static argument's hash, may have changed the configuration, the
    arguments, or what the function closes over, and cleared its cache.
    """
    cdef Py_ssize_t i
    if plan.dropped or (call.nodes != NULL and not are_expected(<Nodes>call.nodes)):
        return False
    if not plan.runs_user_code and not call.asked.ran:
        return True
    if not _in_its_context(plan, call, intake):
        return False
    for i in range(intake.table.count):
        if not resolve_again(&intake.table.slots[i]):
            return False
    return True


cdef PyObject* _try_plan(
    Plan plan, Call* call, jm_table* table, bint by_pointer, int* reason
) except? NULL:
    """The result of this plan, a new reference; or NULL with a reason why it does not fit."""
    cdef jm_intake intake
    cdef int matched
    cdef PyObject* results = NULL
    begin_guard(plan, &intake, table, by_pointer)
    matched = (<match_function>match_call)(plan, call, &intake)
    if matched < 0:
        matched = (<not_compared_function>_not_compared)(call)
    if matched < 0:
        end_guard(&intake)
        propagate()
    if matched and intake.guard == intake.end and _still_fits(plan, call, &intake):
        results = (<run_plan_function>run_plan)(plan, &intake, call.entry)
    if intake.reason and intake.reason != NOT_RECORDED:    # that of another plan says more
        reason[0] = intake.reason
    end_guard(&intake)
    if results == NULL:
        if PyErr_Occurred() != NULL:
            propagate()
        return NULL
    if call.nodes != NULL:
        Py_INCREF(plan)
        call.fitted = <PyObject*>plan
        return results
    return results if call.flat else build_results(plan, results)


# --- Choosing ------------------------------------------------------------------------------------

cdef uint64_t _signature(Call* call, StaticRule rule, Context context) except? 0:
    """A number that calls of one signature have in common, whatever the order of their names."""
    cdef Py_ssize_t i, n_names = 0 if call.names == NULL else PyTuple_GET_SIZE(call.names)
    cdef Py_ssize_t each = MOST_LEAVES // (call.n + n_names) if call.n + n_names else 0
    cdef uint64_t number = add_number(<uint64_t><size_t><PyObject*>context, n_names)
    cdef uint64_t one, by_name = 0
    if rule is None:
        number = add_number(
            number, number_of_trees(call.args, call.n, each * call.n or MOST_LEAVES)
        )
    else:
        for i in range(call.n):
            if _is_static(rule, i, call.n):
                one = number_of_static(call.args[i])
            else:
                one = number_of_tree(call.args[i], each) if each else 0
            number = add_number(number, one)
    for i in range(n_names if each else 0):
        name = <object>PyTuple_GET_ITEM(call.names, i)
        if rule is not None and name in rule.names:
            one = number_of_static(call.args[call.n + i])
        else:
            one = number_of_tree(call.args[call.n + i], each)
        by_name += add_number(one, <uint64_t>PyObject_Hash(name))
    return add_number(number, by_name)


cdef uint64_t signature_of(Call* call, StaticRule rule, Context context) except? 0:
    """The same, or 1 where there is something that cannot be read."""
    try:
        return _signature(call, rule, context)
    except Exception as error:
        if is_of_program(error):
            keep_error(call, error)
        return 1


cdef inline bint _asks(Plan plan) noexcept:
    """Does the user's code decide whether it fits?"""
    return plan.runs_user_code or plan.asks_statics


cdef PyObject* _try_each(
    list candidates, list chosen, Plans plans, Context context, Call* call, jm_table* table,
    int* reason
) except? NULL:
    """The first that fits with the very objects, or one that fits with equal ones.

    What users' code compares may be equal to several, as it may have changed: jaxlib finds the one
    that came first, which is the last one here.
    """
    cdef Plan plan
    cdef PyObject* result
    cdef Py_ssize_t i, n = len(candidates)
    cdef bint by_pointer = n > 1
    while True:
        for i in range(n):
            plan = <Plan>candidates[i if by_pointer else n - 1 - i]
            if plan.context is not context or (by_pointer and _asks(plan)):
                continue
            result = (<try_function>_try_plan)(plan, call, table, by_pointer, reason)
            if result == NULL and PyErr_Occurred() == NULL:
                if call.asked.error != NULL:
                    return NULL
                if reason[0] == HOST_LEAVES:    # it fits, but for a scalar that is not kept
                    return NULL
                continue
            if result == NULL:
                propagate()
            if plans.plans is not chosen:
                return result    # the call itself has dropped plans, or added some
            if candidates is not chosen:
                plans.latest = plan
            return result
        if not by_pointer:
            return NULL
        by_pointer = False


cdef PyObject* _try_chosen(
    list chosen, Plans plans, StaticRule rule, Context context, Call* call, jm_table* table,
    int* reason
) except? NULL:
    """One of many plans: that which fitted last, or one for calls of this signature."""
    cdef PyObject* result
    cdef list candidates
    cdef Plan latest = plans.latest
    if latest is not None and latest.context is context and not _asks(latest):
        result = (<try_function>_try_plan)(latest, call, table, True, reason)
        if result != NULL:
            return result
        if PyErr_Occurred() != NULL:
            propagate()
        if reason[0] == HOST_LEAVES:
            return NULL
    reason[0] = NOT_RECORDED
    candidates = plans.index.get(signature_of(call, rule, context))
    if candidates is None:
        return NULL
    return _try_each(candidates, chosen, plans, context, call, table, reason)


cdef PyObject* try_plans(
    Plans plans, StaticRule rule, Context context, Call* call, int* reason
) except? NULL:
    cdef jm_table table
    cdef PyObject* result
    cdef list flattened, chosen = plans.plans
    cdef dict hashes
    reason[0] = NOT_RECORDED
    if plans.indexed is not chosen:
        make_index(plans)
    if plans.asks_user_code and len(chosen) > 1:
        flattened, hashes = [], {}
        call.asked.flattened = <PyObject*>flattened
        call.asked.hashes = <PyObject*>hashes
    jm_table_init(&table, &counters)
    try:
        if len(chosen) > (1 if plans.asks_user_code else FEW):
            result = _try_chosen(chosen, plans, rule, context, call, &table, reason)
        else:
            result = _try_each(chosen, chosen, plans, context, call, &table, reason)
    finally:
        jm_table_free(&table)
        call.asked.flattened = call.asked.hashes = NULL
    return result
