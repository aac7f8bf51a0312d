"""Making plans for calls of a `filter_jit`."""

import jax
from cpython.object cimport PyObject

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.call cimport Call, StaticRule, match_call, signature_of
from jaxmarshal._core.plans.guard cimport begin_guard, end_guard
from jaxmarshal._core.plans.intake cimport jm_intake
from jaxmarshal._core.plans.plan cimport Plan, make_index, run_the_same
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init
from jaxmarshal._core.values.capi cimport jm_list_items
from jaxmarshal._core.values.fields cimport Fields, make_fields, make_node
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._core.values.static_values cimport (
    StaticArgument, asks_user_code, make_static, make_static_part
)
from jaxmarshal._core.values.trees cimport (
    FIELDS_NODE, FIXED_NODE, LEAVES, NONE_NODE, REGISTRY_NODE, SPREAD_NODE, STATIC_LEAF, TUPLE_NODE,
    Structure, add_container, add_leaf, add_step, free_structure, init_structure, move_structure,
    rebuild_tree, sorted_keys
)

from jaxmarshal._jax import private

cdef object _key_type = private.PRNGKeyArray

cdef enum:
    FEW = 4    # plans that are tried one after the other


cdef class Library:
    pass


cdef class Binding:
    pass


# --- Arguments -----------------------------------------------------------------------------------

cdef Binding make_binding(object signature, Py_ssize_t n, tuple names, bint first, bint rest):
    cdef Binding binding = Binding()
    cdef list by_name
    bound = signature.bind(*range(n), **{name: n + i for i, name in enumerate(names)})
    by_name = sorted(bound.kwargs)
    others = [*bound.args[1:], *[bound.kwargs[name] for name in by_name]]
    before = [*bound.args[:1]]
    binding.signature = signature
    binding.n = n
    binding.names = names
    binding.key = (len(bound.args), first, rest, *by_name)
    # As the dicts of what is donated and what is not are flattened: "first", "fun", "rest".
    binding.order = tuple(
        [-1, *others, *before] if rest and not first else [*before, -1, *others]
    )
    return binding


cdef Fields _fields_of(Library library, object cls):
    """The fields of a class that is read by them, or None."""
    if cls not in library.fields:    # of no others: they would be kept alive
        names = library.names_of(cls)
        if names is None:
            return None
        library.fields[cls] = make_fields(
            cls, names[0], names[1], library.extra, library.missing, library.check
        )
    return library.fields[cls]


cdef class _Static:
    """The leaves of a tree that are static, None for the others, in the order of a walk."""

    cdef tuple leaves
    cdef bint by_type
    cdef Py_ssize_t next
    cdef bint asks    # comparing what was passed may run users' code

    def __cinit__(self, tuple leaves, bint by_type):
        self.leaves = leaves
        self.by_type = by_type


cdef int _add_part(_Static static, Structure* structure) except -1:
    """The next leaf."""
    cdef StaticArgument part
    value = static.leaves[static.next]
    static.next += 1
    if value is None:
        return add_leaf(structure)
    part = make_static_part(value, True, not static.by_type)
    static.asks |= asks_user_code(part)
    return add_step(structure, STATIC_LEAF, 0, <PyObject*>part)


cdef bint _asks(tuple parts) except -1:
    return any([asks_user_code(<StaticArgument>part) for part in parts])


cdef bint _add_node(
    Library library, object treedef, tuple node, _Static static, Structure* structure
) except -1:
    """A node whose children follow. 0 if it was taken with all its leaves."""
    cls, words = node
    fields = _fields_of(library, cls)
    count = len(treedef.children())
    if fields is not None:
        made = make_node(fields, words, True)
        static.asks |= _asks(made.static) or _asks(made.extra)
        add_step(structure, FIELDS_NODE, count, <PyObject*>made)
        return True
    if cls is not dict or sorted_keys(dict.fromkeys(words)) is not None:
        if add_container(node, count, structure):
            return True
    static.asks = True
    add_step(structure, SPREAD_NODE, treedef.num_leaves, <PyObject*>treedef)
    for _ in range(treedef.num_leaves):
        _add_part(static, structure)
    return False


cdef int _add_tree(
    Library library, object treedef, _Static static, Structure* structure
) except -1:
    node = treedef.node_data()
    if node is None:
        return _add_part(static, structure)
    if node[0] is type(library.missing):
        return add_step(structure, FIXED_NODE, 0, <PyObject*>library.missing)
    if _add_node(library, treedef, node, static, structure):
        for child in treedef.children():
            _add_tree(library, child, static, structure)
    return 0


cdef int _add_function(tuple leaves, Structure* structure) except -1:
    """The function's own arrays: a tuple with None for all else."""
    add_step(structure, TUPLE_NODE, len(leaves), NULL)
    for static in leaves:
        if static is None:
            add_leaf(structure)
        else:
            add_step(structure, NONE_NODE, 0, NULL)
    return 0


cdef bint _add_rest(
    Library library, tuple static_rest, Binding binding, _Static static, Structure* structure
) except -1:
    """All arguments but the first: (those by position and a None, those by name)."""
    by_position, by_name = static_rest[1].children()
    by_position = by_position.children()
    if len(by_position) != <Py_ssize_t>binding.key[0]:
        return False
    if tuple(by_name.node_data()[1]) != binding.key[3:]:
        return False
    for child in [*by_position[:max(len(by_position) - 1, 0)], *by_name.children()]:
        _add_tree(library, child, static, structure)
    return True


cdef bint _describe(
    Library library, Plan plan, tuple parts, Binding binding, Structure* structure
) except -1:
    """Have the plan know the arguments by what was static in them."""
    cdef _Static static, more
    cdef Py_ssize_t i, leaves = 0
    cdef bint rest_first = binding.order[0] == -1
    static_fun, static_first, static_rest = parts
    static = _Static(static_first[0], library.by_type)
    more = _Static(static_rest[0], library.by_type)
    if binding.key[0] and not rest_first:
        _add_tree(library, static_first[1], static, structure)
    _add_function(static_fun[0], structure)
    if not _add_rest(library, static_rest, binding, more, structure):
        return False
    if binding.key[0] and rest_first:
        _add_tree(library, static_first[1], static, structure)
    plan.statics = [make_static(0, None, static_fun), make_static(1, None, binding.key)]
    plan.runs_user_code = static.asks or more.asks or asks_user_code(plan.statics[0])
    move_structure(&plan.arguments, structure)
    for i in range(plan.arguments.count):
        if plan.arguments.steps[i].op == LEAVES:
            leaves += plan.arguments.steps[i].n
    return leaves == plan.count


# --- Results -------------------------------------------------------------------------------------

cdef class Results:
    """Makes the result of the list of arrays that the jitted function gives."""

    cdef Structure structure
    cdef bint marks

    def __cinit__(self, bint marks):
        self.marks = marks
        init_structure(&self.structure)

    def __dealloc__(self):
        free_structure(&self.structure)

    def __call__(self, list arrays):
        if self.marks:
            arrays[0].block_until_ready()    # the library waits for it, and so do its callers
        return rebuild_tree(&self.structure, jm_list_items(arrays) + self.marks, sizeof(void*))


cdef class CombinedResults:
    """The same, step by step as the library does it: nodes of others run their own code."""

    cdef object unflatten, combine
    cdef bint marks

    def __cinit__(self, unflatten, combine, bint marks):
        self.unflatten = unflatten
        self.combine = combine
        self.marks = marks

    def __call__(self, list arrays):
        *marker, dynamic, static = self.unflatten(arrays)
        if self.marks:
            marker[0].block_until_ready()
        return self.combine(dynamic, static.value)


cdef bint _add_inner(
    Library library, object treedef, list kinds, Structure* structure
) except -1:
    """The arrays among the results. 0 where others make nodes, whose code is to run as often.

    `kinds` gets None for each leaf, or what makes it: a typed key is made of its base array.
    """
    cdef bint known
    node = treedef.node_data()
    if node is None or node[0] is _key_type:
        kinds.append(None if node is None else treedef)
        add_leaf(structure)
        return True
    if node[0] is type(library.missing):
        add_step(structure, FIXED_NODE, 0, <PyObject*>library.missing)
        return True
    if node[0] in library.own_nodes:
        kinds += [None] * treedef.num_leaves
        add_step(structure, REGISTRY_NODE, treedef.num_leaves, <PyObject*>treedef)
        return True
    known = _add_made(library, treedef, node, structure)
    return known and all([
        _add_inner(library, child, kinds, structure) for child in treedef.children()
    ])


cdef bint _add_made(Library library, object treedef, tuple node, Structure* structure) except -1:
    """A node of a result, whose children follow."""
    count = len(treedef.children())
    fields = _fields_of(library, node[0])
    if fields is None:
        return add_container(node, count, structure)
    made = make_node(fields, node[1], False)
    add_step(structure, FIELDS_NODE, count, <PyObject*>made)
    return True


cdef bint _add_custom(
    Library library, object treedef, object leaves, dict kinds, Structure* structure
) except -1:
    """A node that JAX's registry makes, of arrays alone. 0 where it holds something else."""
    made = [kinds.get(id(next(leaves)), library) for _ in range(treedef.num_leaves)]
    if any([kind is not None for kind in made]):
        return False
    add_step(structure, REGISTRY_NODE, treedef.num_leaves, <PyObject*>treedef)
    return True


cdef bint _add_result(
    Library library, object treedef, object leaves, dict kinds, Structure* structure
) except -1:
    """`leaves` is an iterator; those that are not in `kinds` are the same in every result.

    0 where the library has to make a node.
    """
    node = treedef.node_data()
    if node is None:
        leaf = next(leaves)
        if id(leaf) not in kinds:
            add_step(structure, FIXED_NODE, 0, <PyObject*>leaf)
        elif kinds[id(leaf)] is None:
            add_leaf(structure)
        else:
            made = kinds[id(leaf)]
            add_step(structure, REGISTRY_NODE, made.num_leaves, <PyObject*>made)
        return True
    if node[0] is type(library.missing):
        add_step(structure, FIXED_NODE, 0, <PyObject*>library.missing)
        return True
    if node[0] in library.own_nodes or not _add_made(library, treedef, node, structure):
        return _add_custom(library, treedef, leaves, kinds, structure)
    return all([
        _add_result(library, child, leaves, kinds, structure) for child in treedef.children()
    ])


cdef Results _make_known(Library library, object dynamic, object value):
    """For a result whose every node is known: the tree of its arrays, and what is static in it."""
    cdef Results results = Results(library.marks)
    cdef Structure inner
    cdef list slots, kinds = []
    init_structure(&inner)
    try:
        if not _add_inner(library, dynamic, kinds, &inner):
            return None
        slots = [object() for _ in kinds]
        arrays = rebuild_tree(&inner, jm_list_items(slots), sizeof(void*))
    finally:
        free_structure(&inner)
    whole = library.combine(arrays, value)
    leaves, whole = jax.tree_util.tree_flatten(whole)
    order = [id(slot) for slot in slots]
    if [id(leaf) for leaf in leaves if id(leaf) in order] != order:
        return None
    made = dict(zip(order, kinds, strict=True))
    return results if _add_result(
        library, whole, iter(leaves), made, &results.structure
    ) else None


cdef object _make_results(Library library, object unflatten, Py_ssize_t count):
    """For the tree ([marker,] arrays, static parts); None where it is another one."""
    *marker, dynamic, static = unflatten.__self__.children()
    if [part.num_leaves for part in marker] != [1] * library.marks:
        return None
    if static.num_leaves or dynamic.num_leaves != count - library.marks:
        return None
    try:
        known = _make_known(library, dynamic, static.unflatten([]).value)
    except Exception:    # a node of others may bear with nothing but arrays
        known = None
    return known or CombinedResults(unflatten, library.combine, library.marks)


# --- Plans ---------------------------------------------------------------------------------------

cdef Plan make_filtered_plan(
    Library library, Plan inner, Binding binding, Call* call, StaticRule rule
):
    cdef Structure structure
    cdef jm_table table
    cdef Plan plan = Plan(inner.count)
    cdef bint described
    run_the_same(plan, inner)
    if inner.unflatten is None:
        return None
    plan.unflatten = _make_results(library, inner.unflatten, len(inner.handlers))
    if plan.unflatten is None:
        return None
    init_structure(&structure)
    try:
        parts = tuple((<StaticArgument>inner.statics[0]).value)
        described = _describe(library, plan, parts, binding, &structure)
    finally:
        free_structure(&structure)
    if not described:
        return None
    plan.filtered = True
    plan.positional = call.n
    plan.names = ()
    plan.is_static = b"\1\1" + bytes(call.n - 2)
    plan.signature = signature_of(call, rule, plan.context)
    jm_table_init(&table, &counters)
    try:    # what jaxlib takes for equal may be of a type that is told apart here
        return plan if _fits(plan, call, &table) else None
    finally:
        jm_table_free(&table)


cdef bint _fits(Plan plan, Call* call, jm_table* table) except -1:
    cdef jm_intake intake
    cdef bint fits
    begin_guard(plan, &intake, table, False)
    try:
        fits = match_call(plan, call, &intake) == 1 and intake.guard == intake.end
    finally:
        end_guard(&intake)
    return fits


cdef Plan fitting_plan(JitPlans plans, Context context, Call* call):
    cdef Plan plan
    cdef jm_table table
    cdef list candidates = plans.plans
    if len(candidates) > FEW:
        if plans.indexed is not candidates:
            make_index(plans)
        candidates = plans.index.get(signature_of(call, plans.rule, context), [])
    jm_table_init(&table, &counters)
    try:
        for plan in candidates:
            if plan.context is context and not plan.dropped and _fits(plan, call, &table):
                return plan
    finally:
        jm_table_free(&table)
    return None
