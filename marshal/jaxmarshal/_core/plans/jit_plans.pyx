"""The plans of jitted functions: whose they are, who shares them, and what drops them."""

import weakref

from jaxmarshal._core.plans.call cimport StaticRule
from jaxmarshal._core.plans.plan cimport give_plans, plans_of, set_plans, start_afresh
from jaxmarshal._core.values.forgetting cimport on_forget

cdef set _all_plans = set()    # weak references
# id of a function -> (weak reference to it, [(options, may be shared, JitPlans)])
cdef dict _by_function = {}


cdef class JitPlans(Plans):
    def __cinit__(self, rule=None):
        self.rule = rule
        self.known = {}


cdef int _clear(JitPlans plans) except -1:
    set_plans(plans, [])
    if plans.filtered is not None:
        set_plans(plans.filtered, [])
        start_afresh(plans.filtered)
        plans.filtered.failures = 0
    start_afresh(plans)
    plans.leave = plans.failures = 0
    plans.known.clear()
    return 0


cdef object jit_info_of(object function):
    return vars(function).get("_jit_info")


cdef frozenset _donated_by(object function):
    info = jit_info_of(function)
    try:
        numbers, names = frozenset(info.donate_argnums), info.donate_argnames
    except Exception:
        return None
    if not (numbers or names):
        return numbers
    # Those by name are not told apart. Whether static ones count differs between versions of JAX.
    return numbers | {-1} if static_rule_of(function) is None else None


cdef StaticRule static_rule_of(object function):
    return _rule(function.__getstate__())


cdef StaticRule _rule(dict state):
    if state["static_argnums"] or state["static_argnames"]:
        return StaticRule(state["static_argnums"], state["static_argnames"])
    return None


cdef tuple _options(dict state):
    """By what jaxlib's cache knows a jitted function, beside what it jits; and what is static."""
    return (
        state["cache"], state["global_cache_key"], tuple(state["static_argnums"]),
        tuple(state["static_argnames"]),
    )


cdef list _known_of(object function):
    """The plans of all jitted functions of one function, or None if it cannot be referred to."""
    key = id(function)
    found = _by_function.get(key)
    if found is None or found[0]() is not function:
        _by_function.pop(key, None)
        try:
            reference = weakref.ref(function, lambda _: _by_function.pop(key, None))
        except TypeError:
            return None
        found = _by_function.setdefault(key, (reference, []))
    return found[1]


cdef JitPlans _make_plans(object function, bint share):
    cdef JitPlans plans
    cdef dict state = function.__getstate__()
    cdef tuple options = _options(state)
    cdef list known = _known_of(state.get("fun"))
    if share and known is not None:
        for other, may_be_shared, found in known:
            if may_be_shared and other[0] is options[0] and other == options:
                return found
    plans = JitPlans(_rule(state))
    plans.options = options
    if known is not None:
        plans.made_of = weakref.ref(state["fun"])
    plans.donated = _donated_by(function)
    _all_plans.add(weakref.ref(plans, _all_plans.discard))
    if known is not None:
        known.append((options, share, plans))
    return plans


cdef bint is_accelerated(object function) except -1:
    entry = accelerated.get(id(function))
    return entry is not None and entry[0]() is function


cdef JitPlans plans_of_jitted(object function):
    plans = plans_of(function)
    if plans is None and is_accelerated(function):
        plans = _make_plans(function, False)
        give_plans(function, plans)
    return <JitPlans>plans


cdef int give_shared_plans(object function) except -1:
    return give_plans(function, _make_plans(function, True))


cdef list _living_plans():
    """A copy that is made in one go, as other threads may add some at any time."""
    references = list(_all_plans)
    return [plans for plans in [reference() for reference in references] if plans is not None]


cdef int clear_plans(object function) except -1:
    cdef dict state = function.__getstate__()
    cdef tuple options = _options(state)
    cdef JitPlans plans
    found = plans_of(function)
    if found is not None:
        _clear(<JitPlans>found)
    for plans in _living_plans():    # `_by_function` may have been emptied since
        if plans.made_of is None or plans.made_of() is not state.get("fun"):
            continue
        if plans.options[0] is options[0] and plans.options[1] == options[1]:
            _clear(plans)
    return 0


cdef int expect_more(object function) except -1:
    cdef JitPlans plans
    known = _by_function.get(id(function))
    if known is None or known[0]() is not function:
        return 0
    for _, _, found in known[1]:
        plans = <JitPlans>found
        start_afresh(plans)
        plans.leave = 0
        plans.failures = min(plans.failures, FREE_FAILURES)
    return 0


cpdef forget_plans():
    """Drop every plan. What is made from now on shares nothing with what was made before."""
    cdef JitPlans plans
    for plans in _living_plans():
        _clear(plans)
    forget_functions()


cdef int forget_functions() except -1:
    _by_function.clear()
    return 0


accelerated = {}
on_forget(forget_plans)
