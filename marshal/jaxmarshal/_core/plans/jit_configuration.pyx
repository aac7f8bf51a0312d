"""The context of jitted functions: one of `configuration` with the states that it lacks."""

from jaxmarshal._core.context.configuration cimport (
    Context, results_are_checked, running_context, state_is
)
from jaxmarshal._core.placement.records cimport records_of
from jaxmarshal._reports.counting cimport CONTEXT, HOOK

from jaxmarshal._jax import private

cdef enum:
    INNER_CONTEXTS = 16    # that a context remembers

cdef tuple _states = private.jit_key_states


cdef bint _same_states(Context context) except -1:
    cdef Py_ssize_t i
    cdef tuple words = context.words
    for i in range(len(words)):
        if not state_is(_states[i], words[i]):
            return False
    return True


cdef Context _find_inner(Context context):
    """The context for the values that these states have now: one that is remembered, or new."""
    cdef Context inner
    cdef tuple words = tuple([state.value for state in _states])
    for known in context.all_for_jit:
        if (<Context>known).words == words:
            return <Context>known
    inner = Context(words, context.backend, True, context.distributed)
    inner.device_put_records = records_of(context)
    mesh = private.abstract_mesh()
    inner.has_mesh = not mesh.empty
    inner.plain_operations = not mesh.manual_axes and not private.disable_jit.value
    context.all_for_jit = [inner, *context.all_for_jit[:INNER_CONTEXTS - 1]]
    return inner


cdef Context jit_context(int* reason):
    """The current context with the states that jitted functions depend on and it lacks."""
    cdef Context inner, context
    if results_are_checked():
        reason[0] = HOOK
        return None
    context = running_context(reason)
    if context is None:
        return None
    inner = context.for_jit
    if inner is None or not _same_states(inner):
        context.for_jit = inner = _find_inner(context)
    return inner


cdef Context staging_context(int* reason):
    cdef Context context = jit_context(reason)
    if context is not None and not context.plain_operations:
        reason[0] = CONTEXT
        return None
    return context


cdef Context operation_context(int* reason):
    cdef Context context = staging_context(reason)
    if context is not None and context.distributed:
        reason[0] = CONTEXT
        return None
    return context
