"""Running compiled executables through plans: three entry points of one mechanism.

`compiled_call` stands in for `jax.stages.Compiled.__call__`, `mesh_executable_call` for
`MeshExecutable.call` and `execute_replicated_call` for `ExecuteReplicated.__call__`. Each looks up
the plans of its owner, compares the arguments with the guard of each, and runs the first that
passes; otherwise the reference performs the call and a plan is recorded.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

from jaxmarshal._argtable cimport (
    jm_table, jm_table_clear, jm_table_free, jm_table_init, jm_table_unresolve, push_argument
)
from jaxmarshal._classify cimport (
    JM_ARRAY, JM_KEY_ARRAY, JM_OTHER, classify, jm_kind_is_argument, jm_kind_is_host,
    kind_of_unknown
)
from jaxmarshal._context cimport Context, execution_context, post_hook_is_set
from jaxmarshal._counters cimport counters
from jaxmarshal._errors cimport propagate
from jaxmarshal._plan cimport (
    Plan, Plans, build_results, check, failed_words, keep_plan, make_plan, plans_of,
    record_host_arguments, run, set_results
)
from jaxmarshal._records cimport REFUSED
from jaxmarshal._stats cimport (
    CONTEXT, DELETED, EXECUTABLE, HIT, HOOK, HOST_LEAVES, NOT_RECORDED, TREE, UNSUPPORTED,
    count_miss, entries, entry_number, reason_is_about_a_kind, reason_of_kind
)
from jaxmarshal._tree cimport (
    NEEDS_REGISTRY, WHOLE_TREE, Structure, flatten, flatten_by_registry, free_structure,
    init_structure, match, match_by_registry, move_structure
)

from jaxmarshal import _reference

cdef extern from *:
    object PyObject_Call(object function, object args, PyObject* kwargs)

# `check`, `run` and `_match_arguments` as their callers see them; see `_errors`.
ctypedef int (*check_function)(Plan, jm_table*) noexcept
ctypedef PyObject* (*run_function)(Plan, jm_table*) noexcept
ctypedef int (*match_function)(Plan, tuple, dict, jm_table*) noexcept

cdef enum:
    # A plan saves some 0.28 us for each array and loses 3.6 to 5.5 us for each host argument.
    ARRAYS_PER_HOST_LEAF = 20

cdef object _compiled_call = _reference.compiled_call
cdef object _mesh_executable_call = _reference.mesh_executable_call
cdef object _execute_replicated_call = _reference.execute_replicated_call
cdef object _results_handler_call = _reference.results_handler_call
cdef object _mesh_executable_type = _reference.MeshExecutable
cdef object _execute_replicated_type = _reference.ExecuteReplicated
cdef bint _active = _reference.HAVE_EXECUTE
cdef int _compiled_entry = entry_number("compiled_call")
cdef int _mesh_entry = entry_number("mesh_executable_call")
cdef int _results_entry = entry_number("results_handler_call")
cdef int _replicated_entry = entry_number("execute_replicated_call")


cdef int _not_now(Plans plans):
    """Is this owner one whose calls are left to the reference for a while? Then the reason."""
    if plans is None or plans.plans or not plans.skip:
        return HIT
    plans.skip -= 1
    return plans.refusal


cdef Context _context_for_execution(Plans plans, int* reason):
    """The current context if an executable may run without the reference looking on.

    The cheapest questions first: a refused call should not cost more than it has to.
    """
    reason[0] = _not_now(plans) if _active else <int>UNSUPPORTED
    if reason[0]:
        return None
    if post_hook_is_set():
        reason[0] = HOOK
        return None
    return execution_context(reason)


cdef bint _is_about_deleted(object error, jm_table* table) except -1:
    """Did a run fail because an argument was donated before? Nothing has happened then."""
    cdef Py_ssize_t i
    if "deleted or donated" not in str(error):
        return False
    for i in range(table.count):
        if table.slots[i].kind != JM_ARRAY and table.slots[i].kind != JM_KEY_ARRAY:
            continue
        if (<object>table.slots[i].obj).is_deleted():
            return True
    return False


cdef list _deleted_or_raise(jm_table* table, int* reason):
    """jaxlib has just reported an error: None with DELETED where nothing was run, or raise it."""
    try:
        propagate()
    except Exception as error:
        if not _is_about_deleted(error, table):
            raise
    reason[0] = DELETED
    return None


cdef int _not_compared() except -1:
    """The guard has just reported an error: whatever cannot be compared is the reference's."""
    try:
        propagate()
    except Exception:
        pass
    return NOT_RECORDED


cdef list _try_plan(Plan plan, jm_table* table, int* reason):
    """The results of the plan, or None with a reason why it does not apply."""
    cdef PyObject* results
    reason[0] = (<check_function>check)(plan, table)
    if reason[0] < 0:
        reason[0] = _not_compared()
    if reason[0]:
        return None
    results = (<run_function>run)(plan, table)
    if results == NULL:
        return _deleted_or_raise(table, reason)
    found = <object>results
    Py_DECREF(found)    # `found` owns it now
    if found is None:
        reason[0] = DELETED
    return found


cdef int _keep(object owner, Plan plan, int reason, jm_table* table) except -1:
    """The reference has performed the call: keep the plan that was made for it, if any."""
    if plan is not None:
        record_host_arguments(plan, table)
    return keep_plan(owner, plan, reason)


# --- Flat arguments: MeshExecutable.call and ExecuteReplicated.__call__ --------------------------

cdef int _fill_flat(tuple args, jm_table* table) except -1:
    cdef int kind
    for x in args:
        kind = classify(<PyObject*>x)
        if not jm_kind_is_argument(kind):
            if kind == JM_OTHER:
                kind = kind_of_unknown(x)
            return reason_of_kind(kind)
        push_argument(table, x, kind, NULL)
    return HIT


cdef Plan _make_flat_plan(object owner, Context context, jm_table* table, int* reason):
    """A plan for these arguments, or None with a reason."""
    try:
        executable = owner if type(owner) is _execute_replicated_type else owner.unsafe_call
        return make_plan(context, table, executable, None, reason)
    except Exception:
        reason[0] = EXECUTABLE
        return None


cdef object _call_flat(object owner, tuple args, int entry, object reference):
    cdef jm_table table
    cdef Plan plan
    cdef int reason
    cdef Plans plans = plans_of(owner)
    cdef Context context = _context_for_execution(plans, &reason)
    if reason:
        count_miss(entry, reason)
        return reference(owner, *args)
    jm_table_init(&table, &counters)
    try:
        reason = _fill_flat(args, &table)
        if reason:
            count_miss(entry, reason)
            return reference(owner, *args)
        reason = NOT_RECORDED
        if plans is not None:
            for item in plans.plans:
                plan = <Plan>item
                if plan.context is not context:
                    continue
                results = _try_plan(plan, &table, &reason)
                if results is not None:
                    entries[entry].hits += 1
                    return results
                jm_table_unresolve(&table)
        count_miss(entry, reason)
        plan = _make_flat_plan(owner, context, &table, &reason)
        result = reference(owner, *args)
        _keep(owner, plan, reason, &table)
        return result
    finally:
        jm_table_free(&table)


def mesh_executable_call(self, *args):
    """`MeshExecutable.call`: flat arguments, checked against the executable's avals."""
    return _call_flat(self, args, _mesh_entry, _mesh_executable_call)


def execute_replicated_call(self, *args):
    """`ExecuteReplicated.__call__`, also known as `unsafe_call`: flat arguments."""
    return _call_flat(self, args, _replicated_entry, _execute_replicated_call)


# --- Results -------------------------------------------------------------------------------------

def results_handler_call(self, out_bufs):
    """`ResultsHandler.__call__`: one result of the buffers of each output.

    Where it is called the reference is at work already, in whatever context: there is no guard,
    only the shape of the arguments.
    """
    handlers = self.handlers
    if type(handlers) is not list or type(out_bufs) is not list or len(handlers) != len(out_bufs):
        count_miss(_results_entry, TREE)
        return _results_handler_call(self, out_bufs)
    entries[_results_entry].hits += 1
    return [handler(buffers) for handler, buffers in zip(handlers, out_bufs)]


# --- Trees: Compiled.__call__ --------------------------------------------------------------------

cdef int _match_arguments(Plan plan, tuple args, dict kwargs, jm_table* table) except -1:
    cdef Py_ssize_t step = 0, leaves = 0
    if plan.arguments.count == 1 and plan.arguments.steps[0].op == WHOLE_TREE:
        return match_by_registry((args, kwargs), &plan.arguments, table)
    return (
        match(args, &plan.arguments, &step, &leaves, table)
        and match(kwargs, &plan.arguments, &step, &leaves, table)
        and step == plan.arguments.count and leaves == 0
    )


cdef bint _matches(Plan plan, tuple args, dict kwargs, jm_table* table) except -1:
    """Fill the table if the arguments have the plan's structure. Errors are the reference's."""
    cdef int matched
    jm_table_clear(table)
    matched = (<match_function>_match_arguments)(plan, args, kwargs, table)
    if matched < 0:
        _not_compared()
        return False
    return matched


cdef bint _is_better_in_cpp(jm_table* table) noexcept:
    """Does jaxlib's C++ call, which makes no array objects of host arguments, cost less?"""
    cdef Py_ssize_t i, host = 0
    for i in range(table.count):
        host += jm_kind_is_host(table.slots[i].kind)
    return host * ARRAYS_PER_HOST_LEAF > table.count - host


cdef Plan _make_tree_plan(
    object owner, tuple args, dict kwargs, Context context, jm_table* table, int* reason
):
    """A plan for a Compiled and these arguments, or None with a reason."""
    cdef Structure structure
    cdef Plan plan = None
    jm_table_clear(table)
    init_structure(&structure)
    try:
        params = owner._params
        executable = params.executable
        if params.is_high or type(executable) is not _mesh_executable_type:
            reason[0] = EXECUTABLE
            return None
        reason[0] = flatten(args, NULL, &structure, table)
        if reason[0] == HIT:
            reason[0] = flatten(kwargs, NULL, &structure, table)
        if reason[0] == NEEDS_REGISTRY:
            free_structure(&structure)
            jm_table_clear(table)
            reason[0] = flatten_by_registry((args, kwargs), &structure, table)
        if reason[0]:
            return None
        if _is_better_in_cpp(table):
            reason[0] = HOST_LEAVES
            return None
        constants = params.const_args
        if constants:
            if context.distributed:
                reason[0] = CONTEXT
                return None
            constants = list(executable.shard_const_args(constants))
        plan = make_plan(context, table, executable.unsafe_call, constants or None, reason)
        if plan is not None:
            move_structure(&plan.arguments, &structure)
            if not set_results(plan, params.out_tree):
                reason[0] = EXECUTABLE
                return None
        return plan
    except Exception:
        reason[0] = TREE
        return None
    finally:
        free_structure(&structure)


cdef object _call_prepared(object compiled, tuple args, dict kwargs):
    """The reference's call, by the C++ function that its `__call__` would call in turn."""
    call = getattr(compiled, "_call", None)
    if call is None:    # not made yet
        return _compiled_call(compiled, *args, **kwargs)
    return PyObject_Call(call, args, <PyObject*>kwargs if kwargs else NULL)


def compiled_call(self, *args, **kwargs):
    """`jax.stages.Compiled.__call__`: positional and keyword arguments, any pytree."""
    cdef jm_table table
    cdef Plan plan
    cdef int reason
    cdef Plans plans = plans_of(self)
    cdef Context context = _context_for_execution(plans, &reason)
    if reason:
        count_miss(_compiled_entry, reason)
        return _call_prepared(self, args, kwargs)
    jm_table_init(&table, &counters)
    try:
        reason = NOT_RECORDED
        if plans is not None:
            for item in plans.plans:
                plan = <Plan>item
                if plan.context is not context or not _matches(plan, args, kwargs, &table):
                    continue
                results = _try_plan(plan, &table, &reason)
                if results is not None:
                    entries[_compiled_entry].hits += 1
                    return build_results(plan, results)
        count_miss(_compiled_entry, reason)
        plan = _make_tree_plan(self, args, kwargs, context, &table, &reason)
        result = _call_prepared(self, args, kwargs)
        _keep(self, plan, reason, &table)
        return result
    finally:
        jm_table_free(&table)


# --- Asking without running ----------------------------------------------------------------------

cdef int _refusal(
    object owner, tuple args, dict kwargs, Context context, jm_table* table, Py_ssize_t* index
) except -1:
    """Why no plan can be made for these arguments, and which one is in the way; or HIT."""
    cdef int reason
    cdef Py_ssize_t i
    index[0] = -1
    if owner._params.const_args:
        return HIT    # they would have to be placed to know
    if _make_tree_plan(owner, args, kwargs, context, table, &reason) is not None:
        return HIT
    for i in range(table.count):
        if table.slots[i].action == REFUSED or not jm_kind_is_argument(table.slots[i].kind):
            index[0] = i
            return reason
    if reason_is_about_a_kind(reason):
        index[0] = table.count    # flattening went no further
    return reason


def probe_compiled(compiled, tuple args, dict kwargs):
    """What `compiled(*args, **kwargs)` would do: (reason, argument, recorded word, found word).

    The argument is a number in the order of the flattened arguments, or -1 for none in particular.
    """
    cdef jm_table table
    cdef Plan plan
    cdef int reason, refused
    cdef bint matched = False
    cdef Py_ssize_t index, passed, best = 0
    cdef tuple words = (-1, None, None)
    cdef Plans plans = plans_of(compiled)
    cdef Context context = _context_for_execution(None, &reason)
    if reason:
        return (reason, *words)
    reason = NOT_RECORDED
    jm_table_init(&table, &counters)
    try:
        for item in [] if plans is None else plans.plans:
            plan = <Plan>item
            if plan.context is not context:
                continue
            if not _matches(plan, args, kwargs, &table):
                reason = reason if matched else <int>TREE
                continue
            refused = check(plan, &table)
            if refused == HIT:
                return (HIT, -1, None, None)
            passed = plan.count if plan.failed_at < 0 else plan.failed_at
            if not matched or passed > best:    # the plan that fits best is the one meant
                best = passed
                reason = refused
                words = failed_words(plan, &table, reason)
            matched = True
        if reason == TREE or reason == NOT_RECORDED:
            refused = _refusal(compiled, args, kwargs, context, &table, &index)
            if refused == HIT and plans is not None and not plans.plans:
                refused = plans.refusal
            if refused:
                return (refused, index, None, None)
    finally:
        jm_table_free(&table)
    return (reason, *words)
