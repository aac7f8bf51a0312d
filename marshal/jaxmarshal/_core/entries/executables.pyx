"""Running compiled executables through plans: three entry points of one mechanism.

`compiled_call` stands in for `jax.stages.Compiled.__call__`, `mesh_executable_call` for
`MeshExecutable.call` and `execute_replicated_call` for `ExecuteReplicated.__call__`. Each tries the
plans of its owner, and the first that fits is run; otherwise the reference performs the call and a
plan is recorded.
"""

from cpython.object cimport PyObject

from jaxmarshal._core.context.bypassed cimport is_untouched, placement_rules
from jaxmarshal._core.context.configuration cimport Context, results_are_checked, running_context
from jaxmarshal._core.plans.backoff cimport is_left
from jaxmarshal._core.plans.call cimport (
    Call, describe_arguments, describe_call, signature_of, try_plans
)
from jaxmarshal._core.plans.host_leaves cimport flatten_for_plan
from jaxmarshal._core.plans.make cimport make_plan, record_host_arguments
from jaxmarshal._core.plans.plan cimport (
    Plan, Plans, compiling, give_plans, keep_plan, name_counts, plans_of, reason_of_miss,
    set_results
)
from jaxmarshal._core.plans.probe cimport gather_call, probe_plans, refused_argument
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init, push_argument
from jaxmarshal._core.values.array_words cimport words_are_vouched_for
from jaxmarshal._core.values.kinds cimport JM_OTHER, classify, jm_kind_is_argument, kind_of_unknown
from jaxmarshal._core.values.live_objects cimport JM_DEBUG, counters
from jaxmarshal._core.values.methods cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._core.values.trees cimport Structure, free_structure, init_structure
from jaxmarshal._reports.counting cimport (
    CONTEXT, EXECUTABLE, HIT, HOOK, NOT_RECORDED, OBJECT_LAYOUT, REPLACED, TREE, NOBODY,
    UNSUPPORTED, Entry, count_hit, count_hit_of, count_miss, count_miss_of, entries, entry_number,
    perform, reason_of_kind
)

from jaxmarshal._jax import private
from jaxmarshal._reports import definitions

cdef object _compiled_call = private.compiled_call
cdef object _mesh_executable_call = private.mesh_executable_call
cdef object _execute_replicated_call = private.execute_replicated_call
cdef object _results_handler_call = private.results_handler_call
cdef object _mesh_executable_type = private.MeshExecutable
cdef object _execute_replicated_type = private.ExecuteReplicated
cdef object _cpp_type = private.PjitFunction
cdef bint _active = private.HAVE_EXECUTE
cdef int _compiled_entry = entry_number("compiled_call")
cdef int _mesh_entry = entry_number("mesh_executable_call")
cdef int _results_entry = entry_number("results_handler_call")
cdef int _replicated_entry = entry_number("execute_replicated_call")


cdef int _not_now(Plans plans):
    """Is this owner one whose calls are left to the reference for a while? Then the reason."""
    if plans is None or plans.plans or not is_left(&plans.skip):
        return HIT
    return plans.refusal


cdef Context context_for_execution(Plans plans, int* reason):
    """The current context if an executable may run without the reference looking on.

    The cheapest questions first: a refused call should not cost more than it has to.
    """
    reason[0] = _not_now(plans) if _active else <int>UNSUPPORTED
    if reason[0]:
        return None
    if not words_are_vouched_for():
        reason[0] = OBJECT_LAYOUT
        return None
    if results_are_checked():
        reason[0] = HOOK
        return None
    return running_context(reason)


cdef int _keep(PyObject* owner, Plan plan, int reason, jm_table* table) except -1:
    """The reference has performed the call: keep the plan that was made for it, if any."""
    try:
        if plan is not None:
            record_host_arguments(plan, table)
        keep_plan(<object>owner, plan, reason)
    except Exception:    # no error of the user's
        if JM_DEBUG:
            raise
    return 0


# --- Flat arguments ------------------------------------------------------------------------------

cdef int _fill_flat(PyObject** args, Py_ssize_t n, jm_table* table) except -1:
    cdef Py_ssize_t i
    cdef int kind
    for i in range(n):
        kind = classify(args[i])
        if not jm_kind_is_argument(kind):
            if kind == JM_OTHER:
                kind = kind_of_unknown(<object>args[i])
            return reason_of_kind(kind)
        push_argument(table, <object>args[i], kind, NULL)
    return HIT


cdef Plan _make_flat_plan(
    object owner, Call* call, Context context, jm_table* table, int* reason
):
    """A plan for an executable and these arguments, or None with a reason."""
    cdef Plan plan
    try:
        reason[0] = _fill_flat(call.args, call.n, table)
        if reason[0]:
            return None
        executable = owner
        while executable is not None and type(executable) is not _execute_replicated_type:
            executable = executable.unsafe_call
        plan = make_plan(context, table, executable, None, reason)
        if plan is not None:
            plan.positional = call.n
            plan.signature = signature_of(call, None, context)
        return plan
    except Exception:
        reason[0] = EXECUTABLE
        return None


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
    count_hit(_results_entry)
    return [handler(buffers) for handler, buffers in zip(handlers, out_bufs)]


# --- Trees ---------------------------------------------------------------------------------------

cdef object _cpp_call_of(object compiled):
    """What the reference's `__call__` calls: a function of jaxlib, made now if there is none."""
    if compiled._call is None:
        made = compiled._executable.create_cpp_call(compiled._params)
        if made is not None:
            compiled._call = made
    return compiled._call


cdef list _placed_constants(object compiled):
    """The constants as the reference has placed them, once for all calls; None if not to be had."""
    call = _cpp_call_of(compiled)
    ask = getattr(call, "_cache_miss", None)
    code = getattr(ask, "__code__", None)
    if code is None or "params" not in code.co_freevars:
        return None
    params = ask.__closure__[code.co_freevars.index("params")].cell_contents
    return list(params.const_args)


cdef Plan _make_tree_plan(
    object owner, Call* call, Context context, jm_table* table, int* reason
):
    """A plan for a Compiled and these arguments, or None with a reason."""
    cdef Structure structure
    cdef Plan plan = None
    init_structure(&structure, by_node=True)
    try:
        params = owner._params
        executable = params.executable
        if params.is_high or type(executable) is not _mesh_executable_type:
            reason[0] = EXECUTABLE
            return None
        reason[0] = flatten_for_plan(call, None, &structure, table, None, False)
        if reason[0]:
            return None
        constants = None
        if params.const_args:
            if context.distributed:
                reason[0] = CONTEXT
                return None
            constants = _placed_constants(owner)
            if constants is None:
                reason[0] = EXECUTABLE
                return None
        plan = make_plan(context, table, executable.unsafe_call, constants, reason)
        if plan is not None:
            # What the reference makes is jaxlib's, or a function of Python.
            plan.fails_as_jit = type(_cpp_call_of(owner)) is _cpp_type
            describe_call(plan, call, None, &structure)
            if not set_results(plan, params.out_tree):
                reason[0] = EXECUTABLE
                return None
        return plan
    except Exception:
        reason[0] = TREE
        return None
    finally:
        free_structure(&structure)


cdef Entry* _counts(object compiled, Plans plans) except NULL:
    """Where calls count by the name of the function, which the first miss finds out."""
    if plans is None:
        plans = Plans()
        try:
            give_plans(compiled, plans)
        except TypeError:    # it is none
            return &entries[NOBODY]
    if not plans.is_named:
        name_counts(plans, "compiled_call", definitions.of_compiled, compiled)
    return plans.counts


# --- Calls ---------------------------------------------------------------------------------------

cdef inline int _count_miss(
    PyObject* owner, Plans plans, int entry, bint flat, int reason
) except -1:
    if flat:
        return count_miss(entry, reason)
    return count_miss_of(entry, _counts(<object>owner, plans), reason)


cdef Context _context_for_flat(Plans plans, int* reason):
    """`context_for_execution` for what the reference performs in Python: its modules count, too."""
    cdef Context context
    if plans is None and compiling:
        reason[0] = NOT_RECORDED
        return None
    context = context_for_execution(plans, reason)
    if reason[0] == HIT and not is_untouched(placement_rules):
        reason[0] = REPLACED
    return context


cdef inline PyObject* _call(
    PyObject** args, Py_ssize_t n, PyObject* names, int entry, PyObject* reference, bint flat
) except? NULL:
    """Call the first of these with the others, which are flat or any pytrees."""
    cdef jm_table table
    cdef Call call
    cdef Plan plan
    cdef Context context
    cdef PyObject* results
    cdef PyObject* owner = args[0]
    cdef Plans plans = None
    cdef int refused, reason = HIT
    if flat and not words_are_vouched_for():    # before anything is looked up
        count_miss(entry, OBJECT_LAYOUT)
        return perform(reference, args, n, names)
    plans = plans_of(<object>owner)
    if flat:
        context = _context_for_flat(plans, &reason)
    else:
        context = context_for_execution(plans, &reason)
    if reason:
        _count_miss(owner, plans, entry, flat, reason)
        return perform(reference, args, n, names)
    describe_arguments(&call, args + 1, n - 1, names, running_context)
    call.flat = flat
    call.entry = entry
    reason = NOT_RECORDED
    if plans is not None:
        results = try_plans(plans, None, context, &call, &reason)
        if results != NULL:
            if flat:
                count_hit(entry)
            else:
                count_hit_of(entry, plans.counts)
            return results
    jm_table_init(&table, &counters)
    try:
        if flat:
            plan = _make_flat_plan(<object>owner, &call, context, &table, &refused)
        else:
            plan = _make_tree_plan(<object>owner, &call, context, &table, &refused)
        _count_miss(owner, plans, entry, flat, reason_of_miss(plan, refused, reason))
        results = perform(reference, args, n, names)
        if results != NULL:
            _keep(owner, plan, refused, &table)
        return results
    finally:
        jm_table_free(&table)


cdef PyObject* call_flat(
    PyObject** args, Py_ssize_t n, int entry, PyObject* reference
) except? NULL:
    return _call(args, n, NULL, entry, reference, True)


cdef PyObject* _call_method_flat(
    PyObject** args, size_t nargsf, PyObject* names, int entry, PyObject* reference
) except? NULL:
    """Call a method that takes flat arguments by position, the object itself first."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    if n == 0 or names != NULL:    # an error
        return PyObject_Vectorcall(reference, args, nargsf, names)
    return call_flat(args, n, entry, reference)


cdef PyObject* _mesh_executable(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`MeshExecutable.call`: flat arguments, checked against the executable's avals."""
    return _call_method_flat(args, nargsf, names, _mesh_entry, <PyObject*>_mesh_executable_call)


cdef PyObject* _execute_replicated(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`ExecuteReplicated.__call__`, also known as `unsafe_call`: flat arguments."""
    return _call_method_flat(
        args, nargsf, names, _replicated_entry, <PyObject*>_execute_replicated_call
    )


mesh_executable_call = make_method(<vectorcallfunc>_mesh_executable, _mesh_executable_call)
execute_replicated_call = make_method(
    <vectorcallfunc>_execute_replicated, _execute_replicated_call
)


cdef PyObject* _compiled(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`jax.stages.Compiled.__call__`: positional and keyword arguments, any pytree."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    if n == 0:    # an error
        return PyObject_Vectorcall(<PyObject*>_compiled_call, args, nargsf, names)
    return _call(args, n, names, _compiled_entry, <PyObject*>_compiled_call, False)


compiled_call = make_method(<vectorcallfunc>_compiled, _compiled_call)


# --- Asking without running ----------------------------------------------------------------------

cdef int _refusal(
    object owner, Call* call, Context context, jm_table* table, Py_ssize_t* index
) except -1:
    """Why no plan can be made for these arguments, and which one is in the way; or HIT."""
    cdef int reason
    index[0] = -1
    if owner._params.const_args:
        return HIT    # they would have to be placed to know
    if _make_tree_plan(owner, call, context, table, &reason) is not None:
        return HIT
    index[0] = refused_argument(table, reason)
    return reason


def probe_compiled(compiled, tuple args, dict kwargs):
    """What `compiled(*args, **kwargs)` would do: (reason, argument, recorded word, found word).

    The argument is a number in the order of the flattened arguments, or -1 for none in particular.
    """
    cdef jm_table table
    cdef Call call
    cdef int reason, refused
    cdef Py_ssize_t index
    cdef tuple answer, _alive = gather_call(&call, args, kwargs)
    cdef Plans plans = plans_of(compiled)
    cdef Context context = context_for_execution(None, &reason)
    if reason:
        return (reason, -1, None, None)
    answer = probe_plans(plans, context, &call)
    if answer[0] != TREE and answer[0] != NOT_RECORDED:
        return answer
    jm_table_init(&table, &counters)
    try:
        refused = _refusal(compiled, &call, context, &table, &index)
    finally:
        jm_table_free(&table)
    if refused == HIT and plans is not None and not plans.plans:
        refused = plans.refusal
    return (refused, index, None, None) if refused else answer
