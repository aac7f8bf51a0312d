"""`filter_jit` of a library: calls of functions whose arguments are any trees.

The library's own code performs each call that no plan fits. While it does, what it hands to the
jitted function inside is seen, and where a plan of that fits, a plan for the whole call is made of
it (`make_filtered`). All plans belong to the jitted function: they live and die with its own.
"""

import inspect
import warnings

from cpython.object cimport PyObject
from libc.string cimport memcpy

from jaxmarshal._core.context.bypassed cimport Rules, is_untouched
from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.backoff cimport is_left
from jaxmarshal._core.plans.call cimport (
    Call, StaticRule, are_plain_names, describe_arguments, try_plans
)
from jaxmarshal._core.plans.jit_configuration cimport jit_context
from jaxmarshal._core.plans.jit_plans cimport JitPlans, plans_of_jitted
from jaxmarshal._core.plans.make_filtered cimport (
    Binding, Library, fitting_plan, make_binding, make_filtered_plan
)
from jaxmarshal._core.plans.plan cimport Plan, Plans, add_plan, nothing_fitted, start_afresh
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.values.array_words cimport words_are_vouched_for
from jaxmarshal._core.values.capi cimport (
    PyDict_GetItemWithError, PyErr_Occurred, PyObject_GenericGetDict, PyTuple_GET_ITEM,
    PyTuple_GET_SIZE, jm_tuple_items
)
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.kinds cimport Py_TYPE
from jaxmarshal._core.values.methods cimport (
    Method, PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._reports.counting cimport (
    HIT, NOT_RECORDED, OBJECT_LAYOUT, REPLACED, TREE, UNSUPPORTED, count_hit, count_miss,
    entry_number, is_asked, perform
)

import jax

from jaxmarshal._core.entries import jit

cdef extern from *:
    PyObject* Py_True
    PyObject* Py_False

cdef enum:
    MOST_ARGUMENTS = 30     # of a call; the two static parts come before them
    MOST_BINDINGS = 16      # that are remembered
    SOME_MISSES = 32        # in a row without a new plan; then calls go past the plans

cdef StaticRule _rule = StaticRule((0, 1), ())


# The plans of calls whose jitted function is the same.
cdef class FilteredPlans(Plans):
    cdef list bindings     # replaced, and never changed; the last one that was used first

    def __cinit__(self):
        self.bindings = []


# As their callers see them; see `errors`.
ctypedef PyObject* (*try_function)(Library, FilteredPlans, Context, Call*, int*) noexcept
ctypedef PyObject* (*call_function)(
    Library, Context, PyObject**, size_t, PyObject*, int*
) noexcept

# The attributes of an object that is called; borrowed.
ctypedef struct Wrapper:
    PyObject* signature
    PyObject* dynamic_fun
    PyObject* static_fun
    PyObject* cached
    bint donate_first
    bint donate_rest
    bint filter_warning


# --- What is called ------------------------------------------------------------------------------

cdef bint _read(PyObject* obj, Wrapper* wrapper) except -1:
    """Read the attributes. 0 where one is missing or not of the type that the library gives it."""
    cdef PyObject* values[7]
    cdef Py_ssize_t i
    cdef object attributes = PyObject_GenericGetDict(<object>obj, NULL)
    for i in range(7):
        values[i] = PyDict_GetItemWithError(attributes, _NAMES[i])
        if values[i] == NULL:
            return False
    wrapper.signature, wrapper.dynamic_fun = values[0], values[1]
    wrapper.static_fun, wrapper.cached = values[2], values[3]
    for i in range(4, 7):
        if values[i] != Py_True and values[i] != Py_False:
            return False
    wrapper.donate_first = values[4] == Py_True
    wrapper.donate_rest = values[5] == Py_True
    wrapper.filter_warning = values[6] == Py_True
    return type(<object>wrapper.signature) is inspect.Signature

cdef tuple _NAMES = (
    "_signature", "_dynamic_fun", "_static_fun", "_cached", "donate_first", "donate_rest",
    "filter_warning",
)


cdef bint _same_names(tuple known, PyObject* names) except -1:
    cdef Py_ssize_t i, n = 0 if names == NULL else PyTuple_GET_SIZE(names)
    if len(known) != n:
        return False
    for i in range(n):
        if PyTuple_GET_ITEM(names, i) != <PyObject*>known[i] and (
            <object>PyTuple_GET_ITEM(names, i) != known[i]
        ):
            return False
    return are_plain_names(names)


cdef Binding _known_binding(
    FilteredPlans plans, Wrapper* wrapper, Py_ssize_t n, PyObject* names
):
    cdef Binding binding
    for found in plans.bindings:
        binding = <Binding>found
        if (
            <PyObject*>binding.signature == wrapper.signature and binding.n == n
            and binding.key[1] == wrapper.donate_first and binding.key[2] == wrapper.donate_rest
            and _same_names(binding.names, names)
        ):
            return binding
    return None


cdef Binding _binding_of(FilteredPlans plans, Wrapper* wrapper, Py_ssize_t n, PyObject* names):
    """The binding of the call, or None for one that cannot be bound: the reference says why."""
    cdef Binding binding = _known_binding(plans, wrapper, n, names)
    if binding is not None or not are_plain_names(names):
        return binding
    try:
        binding = make_binding(
            <object>wrapper.signature, n, () if names == NULL else <tuple><object>names,
            wrapper.donate_first, wrapper.donate_rest,
        )
    except TypeError:
        return None
    if not is_asked():
        plans.bindings = [binding, *plans.bindings[:MOST_BINDINGS - 1]]
    return binding


cdef Py_ssize_t _arrange(
    Binding binding, Wrapper* wrapper, PyObject** args, PyObject** items
) except -1:
    """The static parts and then the arguments in the order of their leaves; how many."""
    cdef Py_ssize_t i, place
    items[0] = wrapper.static_fun
    items[1] = <PyObject*>binding.key
    for i in range(len(binding.order)):
        place = binding.order[i]
        items[i + 2] = wrapper.dynamic_fun if place < 0 else args[place]
    return len(binding.order) + 2


cdef FilteredPlans _plans_of(JitPlans inner):
    if inner.filtered is None:
        inner.filtered = FilteredPlans()
        inner.takes_host = True
        inner.leave = 0    # it may have refused host data until now
    return <FilteredPlans>inner.filtered


cdef JitPlans _inner_plans(object cached):
    """The plans of the jitted function inside, which is accelerated if it is not yet; or None."""
    cdef JitPlans plans = plans_of_jitted(cached)
    if plans is None and not is_asked() and jit.is_jitted(cached):
        jit.accelerate(cached, jit.BY_FRONTS)
        plans = plans_of_jitted(cached)
    return plans


# --- The reference -------------------------------------------------------------------------------

cdef class _Stand:
    """Stands in for what is called while the reference performs a call."""

    cdef readonly object _signature, _dynamic_fun, _static_fun
    cdef readonly bint donate_first, donate_rest, filter_warning

    @property
    def _cached(self):
        return self


cdef class _Recorder(_Stand):
    """The same, which hands on what the jitted function gets, and makes a plan of it."""

    cdef Library library
    cdef object function         # the jitted one
    cdef JitPlans inner
    cdef FilteredPlans plans
    cdef Context context
    cdef Binding binding
    cdef Call* call              # while the call goes on
    cdef bint seen

    def __call__(self, *args):
        cdef Plan inner = None, plan = None
        if not self.seen:    # else it has leaked out of the call
            self.seen = True
            inner = _find(self.inner, self.context, args)
        if inner is not None:
            plan = _make(self, inner)
        result = self.function(*args)
        if plan is not None and not inner.dropped:
            add_plan(self.plans, plan, HIT)
            start_afresh(self.plans)
        return result


cdef Plan _find(JitPlans inner, Context context, tuple args):
    cdef Call call
    describe_arguments(&call, jm_tuple_items(args), len(args), NULL, jit_context)
    try:
        return fitting_plan(inner, context, &call)
    except Exception:
        return None


cdef Plan _make(_Recorder self, Plan inner):
    try:
        return make_filtered_plan(self.library, inner, self.binding, self.call, _rule)
    except Exception:
        return None


cdef class _Failing(_Stand):
    """The same, which fails as a call has failed, for the reference to say so."""

    cdef object error

    def __cinit__(self, error):
        self.error = error
        self._signature = inspect.Signature()
        self._dynamic_fun = ()
        self._static_fun = ((), jax.tree_util.tree_structure(()))

    def __call__(self, *args):
        raise self.error


cdef int _raise_as_reference(Library library) except -1:
    """An error was reported by the computation: raise what the library makes of it."""
    try:
        propagate()
    except Exception as error:
        failed = error
    library.reference(_Failing(failed))
    raise failed


cdef PyObject* _record(
    Library library, JitPlans inner, Context context, Binding binding, Wrapper* wrapper,
    Call* call, PyObject** args, size_t n, PyObject* names
) except? NULL:
    """Have the reference perform the call, and make a plan of it."""
    cdef _Recorder recorder = _Recorder.__new__(_Recorder)
    cdef PyObject* own[MOST_ARGUMENTS + 1]
    cdef PyObject* result
    recorder._signature = <object>wrapper.signature
    recorder._dynamic_fun = <object>wrapper.dynamic_fun
    recorder._static_fun = <object>wrapper.static_fun
    recorder.donate_first = wrapper.donate_first
    recorder.donate_rest = wrapper.donate_rest
    recorder.filter_warning = wrapper.filter_warning
    recorder.library = library
    recorder.function = <object>wrapper.cached
    recorder.inner = inner
    recorder.plans = <FilteredPlans>inner.filtered
    recorder.context = context
    recorder.binding = binding
    recorder.call = call
    memcpy(own, args, len(binding.order) * sizeof(PyObject*))
    own[0] = <PyObject*>recorder
    result = perform(<PyObject*>library.reference, own, n, names)
    recorder.seen = True
    recorder.call = NULL
    return result


# --- Calling -------------------------------------------------------------------------------------

cdef PyObject* _try(
    Library library, FilteredPlans plans, Context context, Call* call, int* reason
) except? NULL:
    """The result of a plan, as `try_plans`; what goes wrong on the device is not logged."""
    if library.logger is None:
        return try_plans(plans, _rule, context, call, reason)
    quiet = library.make_filter()
    library.logger.addFilter(quiet)
    try:
        return try_plans(plans, _rule, context, call, reason)
    finally:
        library.logger.removeFilter(quiet)


cdef PyObject* _call_plans(
    Library library, JitPlans inner, Context context, Wrapper* wrapper, PyObject** args,
    Py_ssize_t n, PyObject* names
) except? NULL:
    cdef FilteredPlans plans = _plans_of(inner)
    cdef Binding binding
    cdef Call call
    cdef PyObject* items[MOST_ARGUMENTS + 2]
    cdef PyObject* result = NULL
    cdef int reason = NOT_RECORDED
    if is_left(&plans.skip):
        count_miss(library.entry, plans.refusal)
        return perform(<PyObject*>library.reference, args, n + 1, names)
    binding = _binding_of(plans, wrapper, n, names)
    if binding is None or len(binding.order) > MOST_ARGUMENTS:
        count_miss(library.entry, TREE)
        return perform(<PyObject*>library.reference, args, n + 1, names)
    n_items = _arrange(binding, wrapper, args + 1, items)
    describe_arguments(&call, items, n_items, NULL, jit_context)
    call.entry = library.entry
    if plans.plans:
        result = (<try_function>_try)(library, plans, context, &call, &reason)
        if result != NULL:
            count_hit(library.entry)
            start_afresh(plans)
            if wrapper.filter_warning:
                _forget_warnings()
            return result
        if PyErr_Occurred() != NULL:
            _raise_as_reference(library)
    count_miss(library.entry, reason)
    if not inner.plans:    # as before the first such call
        return perform(<PyObject*>library.reference, args, n + 1, names)
    nothing_fitted(plans, reason, SOME_MISSES)
    return _record(library, inner, context, binding, wrapper, &call, args, n + 1, names)


cdef int _forget_warnings() except -1:
    """What the reference does around each call that donates in silence: filters change, and so
    warnings that are shown once for each place are shown once more."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable*")
    return 0


cdef PyObject* _call_wrapper(
    Library library, Context context, PyObject** args, size_t nargsf, PyObject* names, int* reason
) except? NULL:
    """The result; or NULL with a reason where nothing was done yet."""
    cdef Wrapper wrapper
    cdef JitPlans inner
    cdef tuple _held
    reason[0] = UNSUPPORTED
    if not _read(args[0], &wrapper):
        return NULL
    _held = (
        <object>wrapper.signature, <object>wrapper.dynamic_fun, <object>wrapper.static_fun,
        <object>wrapper.cached,
    )
    inner = _inner_plans(<object>wrapper.cached)
    if inner is None:
        return NULL
    reason[0] = HIT
    return _call_plans(
        library, inner, context, &wrapper, args, PyVectorcall_NARGS(nargsf) - 1, names
    )


cdef PyObject* _call(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef Library library = <Library>(<Method>self).inner
    cdef Context context
    cdef PyObject* result
    cdef int reason
    if not PyVectorcall_NARGS(nargsf) or (
        <PyObject*>Py_TYPE(args[0]) != <PyObject*>library.wrapper
    ):
        return PyObject_Vectorcall(<PyObject*>library.reference, args, nargsf, names)
    if not words_are_vouched_for():
        reason = OBJECT_LAYOUT
    elif tapes.current is not None or not is_untouched(library.rules):
        reason = REPLACED
    else:
        context = jit_context(&reason)
        if context is not None:
            result = (<call_function>_call_wrapper)(library, context, args, nargsf, names, &reason)
            if result != NULL:
                return result
            if PyErr_Occurred() != NULL:
                return NULL
    count_miss(library.entry, reason)
    return perform(<PyObject*>library.reference, args, nargsf, names)


def make_front(
    str name, wrapper, reference, list places, names_of, check, combine, missing, tuple extra,
    logger=None, make_filter=None, tuple own_nodes=(), bint marks=True, bint by_type=False,
):
    """The replacement of `reference`, the function that performs calls of a `wrapper`.

    `places` are modules and classes whose replacement is seen, `names_of` says for a class whose
    flatten function reads attributes which ones these are, or None, and `check` whether they still
    are; `combine` puts the static parts of a result back, `missing` stands for an attribute that is
    not there, and `extra` are names that count where an instance has more attributes. `logger` gets
    a filter of `make_filter` for the time of a call. `own_nodes` are classes of the library's that
    are registered with functions of its own, for which it does not matter how often these run.
    `marks`: the jitted function returns a marker before the arrays, which the library waits for;
    else a flat tuple of arrays, of which `combine` makes the nodes of a result, each once.
    `by_type`: the static part of a call is equal to another one only if the types of all leaves
    are.
    """
    cdef Library library = Library.__new__(Library)
    cdef Method method = make_method(<vectorcallfunc>_call, reference)
    library.entry = entry_number(name)
    library.wrapper = wrapper
    library.reference = reference
    library.rules = Rules(places)
    library.names_of = names_of
    library.check = check
    library.combine = combine
    library.missing = missing
    library.extra = extra
    library.logger = logger
    library.make_filter = make_filter
    library.own_nodes = own_nodes
    library.marks = marks
    library.by_type = by_type
    library.fields = {}
    method.inner = library
    return method


def live_plans(function):
    """How many plans there are for calls of which this is the jitted function; for tests."""
    cdef JitPlans plans = plans_of_jitted(function)
    return 0 if plans is None or plans.filtered is None else len(plans.filtered.plans)
