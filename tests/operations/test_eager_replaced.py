"""Operations outside of `jit` while something of JAX's is replaced, as tests and programs do it.

Each case warms a cache, replaces one thing, and compares with plain JAX; then it is put back.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from operator import getitem
from types import ModuleType
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from eager import X, hits
from jax import lax
from jax._src import ad_util, api, config, core, dispatch, dtypes
from jax._src.interpreters import pxla
from jax.scipy import special
from observe import total_hits
from support import without_jaxmarshal

import jaxmarshal
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import counting
from jaxmarshal.benchmarks import survey

Y = np.arange(12, dtype=np.float32).reshape(3, 4)

#: Calls that take a fast path, by the entry point that counts them.
CALLS = {
    "neg": ("bind", lambda x, y: lax.neg_p.bind(x)),
    "neg of host data": ("bind", lambda x, y: lax.neg(X)),
    "reshape": ("bind", lambda x, y: lax.reshape_p.bind(
        x, new_sizes=(2, 4), dimensions=None, sharding=None
    )),
    "stage": ("bind", lambda x, y: lax.stage_p.bind(X)),
    "lax.neg": ("functions", lambda x, y: lax.neg(x)),
    "lax.reshape": ("functions", lambda x, y: lax.reshape(x, (2, 4))),
    "convert": ("functions", lambda x, y: lax.convert_element_type(x, np.int32)),
    "slice": ("functions", lambda x, y: lax.slice(x, (1,), (3,))),
    "stack": ("functions", lambda x, y: jnp.stack([x, x])),
    "relu": ("functions", lambda x, y: jax.nn.relu(x)),
    "zeros_like": ("functions", lambda x, y: jnp.zeros_like(x)),
    "x.at[1].set(2)": ("functions", lambda x, y: x.at[1].set(2)),
    "bits": ("functions", lambda x, y: jax.random.bits(jax.random.PRNGKey(3), (2,))),
    "PRNGKey": ("functions", lambda x, y: jax.random.PRNGKey(3)),
    "x[1]": ("getitem", lambda x, y: getitem(x, 1)),
    "x[1:3]": ("getitem", lambda x, y: getitem(x, slice(1, 3))),
    "x[x > 3]": ("bind", lambda x, y: getitem(x, x > 3)),
    "y[1:2, 1]": ("getitem", lambda x, y: getitem(y, (slice(1, 2), 1))),
    "y[..., -1]": ("getitem", lambda x, y: getitem(y, (..., -1))),
    "x[::-2]": ("getitem", lambda x, y: getitem(x, slice(None, None, -2))),
    "zeros": ("zeros", lambda x, y: jnp.zeros(3)),
    "ones": ("ones", lambda x, y: jnp.ones((2,), np.int32)),
    "full": ("full", lambda x, y: jnp.full(2, 1.5)),
    "full of a dtype": ("full", lambda x, y: jnp.full((2,), 7, np.float32)),
    "asarray": ("asarray", lambda x, y: jnp.asarray(X)),
    "asarray of an array": ("asarray", lambda x, y: jnp.asarray(x, np.int32)),
    "array": ("array", lambda x, y: jnp.array(1.5)),
}  # fmt: skip
if not hasattr(lax, "stage_p"):    # what came with it
    del CALLS["stage"], CALLS["asarray"], CALLS["array"]

PRIMITIVES = [name for name in (
    "neg_p", "reshape_p", "convert_element_type_p", "stage_p", "slice_p", "squeeze_p", "rev_p",
    "broadcast_in_dim_p", "dynamic_slice_p",
) if hasattr(lax, name)]  # fmt: skip


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def own_hits(entry):
    """Hits of calls that were made here, and are no steps of others; but for single operations."""
    inner = 0 if entry == "bind" else counting.inner()[entry]["hits"]
    return hits(entry) - inner


def warm(x, y):
    for _ in range(20):    # what could not be kept several times is waited for
        for _, call in CALLS.values():
            call(x, y)


def spied(place, name, key=None):
    """A stand-in for a function that calls it, and what calls it had."""
    seen = []
    holder = place if isinstance(place, dict) else vars(place)
    original = holder[key if key is not None else name]

    def stand_in(*args, **kwargs):
        seen.append(name)
        return original(*args, **kwargs)

    return stand_in, seen


def outcomes(call, x, y, seen):
    """What three calls gave, and how often each called what was replaced."""
    found = []
    for _ in range(3):
        seen.clear()
        found.append((np.asarray(call(x, y)).tolist(), len(seen)))
    return found


def check(patch, seen, names=CALLS):
    """All calls, under a replacement, do what plain JAX does, and the same as ever after it."""
    x, y = jnp.asarray(X), jnp.asarray(Y)
    before = {name: np.asarray(CALLS[name][1](x, y)).tolist() for name in names}
    for recorded_before in (True, False):
        if recorded_before:
            warm(x, y)
        else:
            jaxmarshal.api.clear()
        with patch():
            found = [outcomes(CALLS[name][1], x, y, seen) for name in names for _ in range(2)]
            with without_jaxmarshal():
                expected = [outcomes(CALLS[name][1], x, y, seen) for name in names]
        for name, first, second, wanted in zip(
            names, found[::2], found[1::2], expected, strict=True
        ):
            assert first[1:] == wanted[1:] and second[1:] == wanted[1:], name
        for _ in range(3):
            for name in names:
                assert np.asarray(CALLS[name][1](x, y)).tolist() == before[name], name
    warm(x, y)
    for name in names:
        entry, call = CALLS[name]
        count = own_hits(entry)
        call(x, y)
        assert own_hits(entry) > count, name


def test_all_hit():
    """Without a replacement, every call here takes the fast path."""
    check(contextlib.nullcontext, [])


@pytest.mark.parametrize("name", PRIMITIVES)
def test_trap_15_implementations(name):
    """Trap 15: an implementation that is replaced is called, whenever it was recorded."""
    primitive = getattr(lax, name)
    stand_in, seen = spied(primitive, "impl")
    check(lambda: mock.patch.object(primitive, "impl", stand_in), seen)

    def other(*args, **kwargs):
        return spied(primitive, "impl")[0](*args, **kwargs) * 0 - 5

    x, y = jnp.asarray(X), jnp.asarray(Y)
    warm(x, y)
    for _, call in CALLS.values():
        expected = np.asarray(call(x, y))
        with mock.patch.object(primitive, "impl", other):
            for _ in range(4):
                with contextlib.suppress(RecursionError):
                    call(x, y)
        for _ in range(3):
            assert np.array_equal(call(x, y), expected)


PLACES = [
    (core.EvalTrace, "process_primitive"), (core.Primitive, "bind_with_trace"),
    (core.Primitive, "is_high"), (core, "check_eval_args"),
    *([(core.EvalTrace, "stage_value")] if hasattr(core.EvalTrace, "stage_value") else []),
    (core, "full_lower"), (core, "typeof"), (dispatch, "apply_primitive"),
    (dispatch, "xla_primitive_callable"),
    *(
        (importlib.import_module(module), name)
        for module, name in (
            ("jax._src.lax.lax", "full"), ("jax._src.lax.lax", "broadcast_in_dim"),
            ("jax._src.lax.lax", "_convert_element_type"), ("jax._src.lax.lax", "squeeze"),
            ("jax._src.lax.lax", "rev"), ("jax._src.lax.lax", "stage"),
            ("jax._src.lax.slicing", "slice"), ("jax._src.lax.slicing", "_slice_impl"),
            ("jax._src.numpy.indexing", "rewriting_take"), ("jax._src.util", "canonicalize_axis"),
            ("jax._src.numpy.indexing", "_static_slice"), ("jax._src.dtypes", "issubdtype"),
            ("jax._src.dtypes", "canonicalize_dtype"), ("jax._src.numpy.util", "check_arraylike"),
            ("jax._src.dtypes", "check_and_canonicalize_user_dtype"),
            ("jax._src.numpy.array_constructors", "array"),
            ("jax._src.numpy.array_creation", "canonicalize_shape"),
        )
        if hasattr(importlib.import_module(module), name)
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "name"), PLACES, ids=lambda part: getattr(part, "__name__", part)
)
def test_trap_15_functions_and_methods(place, name):
    """Trap 15: a function or method that is replaced is called as often as in plain JAX."""
    stand_in, seen = spied(place, name)
    check(lambda: mock.patch.object(place, name, stand_in), seen)


#: What functions go through that is no function of their own modules: "module:class", the method,
#: and a call.
DEEP = {
    "index": ("jax._src.numpy.indexing:IndexType", "from_index", lambda x, y: y[np.array([0, 2])]),
    "slice": ("jax._src.numpy.indexing:_StaticSliceIndexer", "is_trivial_slice",
              lambda x, y: x[0]),
    "set": ("jax._src.lax.slicing:GatherScatterMode", "from_any", lambda x, y: x.at[0].set(0.)),
    "concrete": ("jax._src.sharding:Sharding", "_is_concrete", lambda x, y: jax.nn.logsumexp(x)),
    "tree": ("jax._src.tree_util:FlatTree", "flatten", lambda x, y: lax.fori_loop(0, 3, add, x)),
    "wrapping": ("jax._src.linear_util", "wrap_init", lambda x, y: jax.nn.relu(x)),
    "names": ("jax._src.source_info_util", "extend_name_stack",
              lambda x, y: jnp.einsum("ij,kj->ik", y, y)),
    "wrapped function": ("jax._src.linear_util:WrappedFun", "call_wrapped",
                         lambda x, y: jax.nn.relu(x)),
    "source": ("jax._src.source_info_util:SourceInfo", "replace",
               lambda x, y: jnp.einsum("ij,kj->ik", y, y)),
    "parser": ("opt_einsum.parser", "parse_einsum_input",
               lambda x, y: jnp.einsum("ij,kj->ik", y, y)),
}  # fmt: skip


def add(i, x):
    return x + i


@pytest.mark.parametrize("name", DEEP)
def test_trap_15_what_functions_go_through(name):
    """Trap 15: methods of other classes, and functions of other modules."""
    place, method, call = DEEP[name]
    holder = private.lookup_quietly(*place.replace(":", ".").rsplit(".", 1))
    if not hasattr(holder, method):
        pytest.skip("this JAX has none")
    x, y = jnp.asarray(X), jnp.asarray(Y)

    def observed():
        try:
            return np.asarray(call(x, y)).tolist()
        except ZeroDivisionError as error:
            return repr(error)

    warm = [observed() for _ in range(8)]
    before = total_hits()
    observed()
    assert total_hits() > before
    with mock.patch.object(holder, method, mock.Mock(side_effect=ZeroDivisionError("replaced"))):
        changed = [observed() for _ in range(3)]
        with without_jaxmarshal():
            expected = observed()
    assert changed == [expected] * 3
    assert observed() == warm[0]


def test_trap_15_a_primitive_by_another_name():
    """Trap 15: a function looks a primitive up in a module that defines no array functions."""

    class Doubling:
        name = "doubling"

        def bind(self, x):
            return x * 2

    x = jnp.asarray(X)
    for _ in range(6):
        before, plain = total_hits(), lax.stop_gradient(x)
    assert total_hits() > before
    with mock.patch.object(ad_util, "stop_gradient_p", Doubling()):
        for _ in range(3):
            assert np.array_equal(lax.stop_gradient(x), 2 * X)
    assert np.array_equal(lax.stop_gradient(x), plain)


@pytest.mark.parametrize("scope", ["explicit_device_put_scope", "explicit_device_get_scope"])
def test_trap_15_scopes_of_transfers(scope):
    """Trap 15: what `device_put` and `device_get` enter while they move data."""
    x = jnp.asarray(X)
    stand_in, seen = spied(config, scope)

    def calls():
        jax.device_put((x, x), jax.devices()[0])
        jax.device_get((x, X))

    for _ in range(4):
        before = total_hits()
        calls()
    assert total_hits() > before
    counts = []
    for side in (without_jaxmarshal, contextlib.nullcontext):
        with side(), mock.patch.object(config, scope, stand_in):
            seen.clear()
            calls()
            counts.append(len(seen))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", ["relu", "logit"])
def test_trap_15_attributes_of_functions(name):
    """Trap 15: a function with a derivative of its own calls what its attribute names."""
    function = {"relu": jax.nn.relu, "logit": special.logit}[name]
    x = jnp.linspace(0.1, 0.9, 3)
    for _ in range(8):
        before, plain = total_hits(), function(x)
    assert total_hits() > before
    with mock.patch.object(function, "fun", lambda x: x * 0 + 7):
        changed = [np.asarray(function(x)).tolist() for _ in range(3)]
        with without_jaxmarshal():
            expected = np.asarray(function(x)).tolist()
    assert changed == [expected] * 3
    assert np.array_equal(function(x), plain)


@pytest.mark.parametrize("package", ["jax._src.numpy", "jax._src.nn.functions.jnp"])
def test_trap_15_packages(package):
    """Trap 15: functions look others up in packages, which hold what the modules in them define."""
    x = jnp.asarray(X)
    for _ in range(6):
        before, plain = hits("functions"), jax.nn.softmax(x)
    assert hits("functions") > before
    with mock.patch(f"{package}.exp", lambda x: x * 0 + 3):
        changed = [np.asarray(jax.nn.softmax(x)) for _ in range(4)]
        with without_jaxmarshal():
            expected = np.asarray(jax.nn.softmax(x))
    assert not np.array_equal(plain, expected)
    assert all(np.array_equal(each, expected) for each in changed)
    assert np.array_equal(jax.nn.softmax(x), plain)


def test_trap_15_every_module_is_watched():
    """Trap 15: each module of array functions that another one has a name for."""
    watched = {id(place) for place in (*private.numpy_rules, *private.function_rules)}
    homes = tuple(f"jax._src.{home}." for home in ("lax", "nn", "numpy", "ops", "random"))
    unwatched = {
        found.__name__
        for place in private.function_rules if isinstance(place, ModuleType)
        for found in vars(place).values()
        if isinstance(found, ModuleType) and f"{found.__name__}.".startswith(homes)
        and id(found) not in watched
    }
    # Functions that are not replayed, one that JAX jitted, and a list of names.
    assert unwatched <= {
        "jax._src.lax.control_flow.solves", "jax._src.lax.eval_jaxpr",
        "jax._src.numpy.array_api_metadata", "jax._src.numpy.hijax",
    }


def test_trap_15_the_modules_of_all_functions_are_watched():
    """Trap 15: each function that is replayed looks names up in a module that is watched."""
    (entry,) = (entry for entry in patching.ENTRY_POINTS if entry.name == "functions")
    watched = {
        id(vars(place)) for place in (*private.numpy_rules, *private.function_rules)
        if isinstance(place, ModuleType)
    }
    late = {id(vars(module)) for name, module in sys.modules.items() if "scipy" in name}
    assert all(
        id(inspect.unwrap(place.original).__globals__) in watched | late for place in entry.places
    )


#: Calls of `device_put` and the like, and of what the survey has not.
PLACING = {
    "device_put": lambda g: jax.device_put(X),
    "to a device": lambda g: jax.device_put(X, jax.devices()[1]),
    "to a sharding": lambda g: jax.device_put(X, _spread()),
    "a tree": lambda g: jax.device_put({"a": X, "b": (g.x,)}),
    "an array": lambda g: jax.device_put((g.x, g.x), jax.devices()[1]),
    "a copy": lambda g: jax.device_put(g.x, may_alias=False),
    "device_get": lambda g: jax.device_get((g.x, g.scalar)),
    "make_array_from_process_local_data": (
        lambda g: jax.make_array_from_process_local_data(_spread(), X)
    ),
}  # fmt: skip
MORE = {
    "jnp.asarray, device": lambda g: jnp.asarray(g.x, device=jax.devices()[1]),
    "jnp.array of a list": lambda g: jnp.array([1.0, 2.0]),
    "jnp.bincount": lambda g: jnp.bincount(g.i, length=6),
    "jnp.nonzero, size": lambda g: jnp.nonzero(g.v, size=4),
    "jnp.unique, size": lambda g: jnp.unique(g.n, size=5),
    "segment_sum": lambda g: jax.ops.segment_sum(g.v, jnp.arange(4)),
    "keys": lambda g: list(g.keys),
}


def _spread():
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("x",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))


def owners_of_functions_run_by(call):
    """(module, class or "") of each function of JAX's in Python that a call runs."""
    found = set()

    def note(frame, event, _):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if event == "call" and module.startswith(("jax.", "opt_einsum")) and "<" not in name:
            found.add((module, name.rpartition(".")[0]))

    for _ in range(3):
        call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("calls", ["placing", "functions"])
def test_trap_15_whatever_calls_run_is_watched(calls):
    """Trap 15: a function of JAX's that a warm call runs is looked up where a rule watches.

    But for those that are entry points themselves, and for `jax.scipy`, which is watched when it
    has been imported.
    """
    given = survey._given()
    rules = [*private.placement_rules]
    if calls == "functions":
        rules += [*private.bind_rules, *private.numpy_rules, *private.function_rules]
    watched, missing, lacking = {id(place) for place in rules}, {}, []
    for name, call in (PLACING if calls == "placing" else {**survey.CALLS, **MORE}).items():
        try:
            with without_jaxmarshal():
                owners = owners_of_functions_run_by(lambda call=call: call(given))
        except jax.errors.JaxRuntimeError:
            lacking.append(name)    # in a plugin
            continue
        for module, cls in owners:
            place = private.lookup_quietly(module, cls) if cls else sys.modules[module]
            if id(place) not in watched and not module.startswith("jax._src.scipy"):
                missing.setdefault((module, cls), []).append(name)
    assert missing == {}
    assert len(lacking) <= 5


@pytest.mark.parametrize("name", ["bind", "bind_with_trace"])
def test_trap_15_the_primitive_of_derivatives(name):
    """Trap 15: functions with derivatives of their own go through a primitive that no tape sees."""
    primitive = private.custom_jvp_primitive
    seen = []

    def stand_in(*args, **kwargs):
        seen.append(name)
        return getattr(type(primitive), name)(primitive, *args, **kwargs)

    check(lambda: mock.patch.object(primitive, name, stand_in), seen, ["relu"])


def test_trap_15_the_binding_of_conversions():
    """Trap 15: the primitive of conversions has a function of its own that binds it."""
    primitive = lax.convert_element_type_p
    stand_in, seen = spied(primitive, "bind_with_trace")
    names = ["convert", "asarray of an array", "x.at[1].set(2)", "neg", "PRNGKey"]
    check(lambda: mock.patch.object(primitive, "bind_with_trace", stand_in), seen, names)
    expected = np.asarray(lax.convert_element_type(jnp.asarray(X), np.int32))
    zeros = jnp.zeros(8, np.int32)
    with mock.patch.object(primitive, "bind_with_trace", lambda *args: zeros):
        assert not np.asarray(lax.convert_element_type(jnp.asarray(X), np.int32)).any()
    assert np.array_equal(lax.convert_element_type(jnp.asarray(X), np.int32), expected)


PUT_PLACES = [
    (api, "_check_sharding"), (api, "_infer_src_sharding"), (api, "tree_flatten"),
    (api, "pspec_to_sharding"), (core, "shaped_abstractify"), (core, "trace_state_clean"),
    (core, "trace_ctx"), (dtypes, "check_valid_dtype"), (pxla, "batched_device_put"),
    (dispatch, "_device_put_impl"),
]  # fmt: skip
#: Ways to put data, an array of another device and a tree.
PUTS = {
    "data": lambda device: jax.device_put(X, device),
    "an array": lambda device: jax.device_put(jax.device_put(X, jax.devices()[1]), device),
    "a tree": lambda device: jax.device_put({"a": X, "b": [1.5]}, device),
}


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize(
    ("place", "name"),
    [(place, name) for place, name in PUT_PLACES if callable(getattr(place, name, None))],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_trap_15_functions_that_putting_goes_past(place, name, put):
    """Trap 15: what `device_put` calls in JAX is called as often when it is replaced."""
    device = jax.devices()[0]
    stand_in, seen = spied(place, name)
    counts = []
    for side in (without_jaxmarshal, contextlib.nullcontext):
        with side():
            for _ in range(4):
                PUTS[put](device)
            with mock.patch.object(place, name, stand_in):
                seen.clear()
                for _ in range(2):
                    PUTS[put](device)
                counts.append(len(seen))
    assert counts[0] == counts[1]
    before = hits("device_put")
    PUTS[put](device)
    assert hits("device_put") > before


def test_trap_15_methods_of_one_object():
    """Trap 15: `process_primitive` of the one trace there is."""
    seen = []

    def stand_in(*args, **kwargs):
        seen.append("")
        return core.EvalTrace.process_primitive(core.eval_trace, *args, **kwargs)

    check(lambda: mock.patch.object(core.eval_trace, "process_primitive", stand_in), seen)


def test_trap_15_tables():
    """Trap 15: what a type's values are is looked up in tables."""
    stand_in, seen = spied(core.pytype_aval_mappings, "array", key=type(jnp.zeros(1)))
    check(
        lambda: mock.patch.dict(core.pytype_aval_mappings, {type(jnp.zeros(1)): stand_in}), seen
    )


def test_a_table_that_grows():
    """A type that a library makes known to JAX changes nothing for the others."""

    class Variable:
        pass

    x, y = jnp.asarray(X), jnp.asarray(Y)
    with mock.patch.dict(core.pytype_aval_mappings, {Variable: lambda _: core.typeof(x)}):
        warm(x, y)
        for entry, call in CALLS.values():
            before = own_hits(entry)
            call(x, y)
            assert own_hits(entry) > before


def test_trap_15_a_rule_for_high_types():
    """Trap 15: JAX's own, which scatters have from 0.12 on, never applies here; another may."""
    x, call = jnp.asarray(X), CALLS["x.at[1].set(2)"][1]
    rules = {"the program's": lambda *args, **params: None}
    if "to_lojax" in vars(lax.scatter_p):
        rules["jax's"] = lax.scatter_p.to_lojax
    for whose, rule in rules.items():
        with mock.patch.object(lax.scatter_p, "to_lojax", rule, create=True):
            before = own_hits("functions")
            for _ in range(8):
                assert call(x, x).tolist() == [X[0], 2, *X[2:]]
            assert (own_hits("functions") > before) is (whose == "jax's")


def test_trap_15_bind_in_a_class():
    """Trap 15: a class of primitives with a way of its own to bind."""
    bound = []

    class Noted(core.Primitive):
        def bind_with_trace(self, *args):
            bound.append(args)
            return super().bind_with_trace(*args)

    primitive = Noted("noted")
    primitive.def_impl(lambda x: x + 1)
    simple = Noted("simple")
    dispatch.simple_impl(simple)
    for i in range(4):
        assert np.array_equal(primitive.bind(jnp.asarray(X)), X + 1)
        assert len(bound) == i + 1


#: Calls between the announcement of a change and the change.
ANNOUNCED = """
import ctypes, gc
from unittest import mock

import jax.numpy as jnp
from jax import lax
from jax._src import core

import jaxmarshal

jaxmarshal.install()
x = jnp.arange(4.)
heard = []

def call():
    return lax.neg(x)

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *3 * [ctypes.c_void_p])
def between(event, mapping, key, value):
    if nested:
        core.Primitive.noted = len(heard)    # another change, which is made at once
        call()                               # and looked at
    heard.append(call())
    return 0

for _ in range(4):
    call()
python = ctypes.pythonapi
[class_dict, *_] = [it for it in gc.get_referents(core.EvalTrace) if type(it) is dict]
watcher = python.PyDict_AddWatcher(between)
assert watcher >= 0
assert python.PyDict_Watch(watcher, ctypes.py_object(class_dict)) == 0
core.EvalTrace.noted = True    # nothing that counts: all is compared once more
del core.EvalTrace.noted
call()
for answer in (3, 4):
    with mock.patch.object(core.EvalTrace, "process_primitive", lambda *args: answer):
        assert type(call()) is int
        assert call() == answer
    assert call().tolist() == [-0.0, -1.0, -2.0, -3.0]
assert len(heard) == 6
before = jaxmarshal.stats()["functions"]["hits"]
call()
assert jaxmarshal.stats()["functions"]["hits"] == before + 1
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python tells of no change")
@pytest.mark.parametrize("nested", [False, True])
def test_trap_15_a_call_while_a_change_is_announced(nested):
    """Trap 15: Python tells of a change before it is made, to others after jaxmarshal."""
    run_code(f"nested = {nested}\n{ANNOUNCED}")


def test_rules_are_not_changed_by_jax():
    """What is watched is not what JAX itself assigns to in the course of its work."""
    from jaxmarshal._core.context import bypassed  # noqa: F401

    x = jnp.asarray(X)
    jax.jit(lambda x: jax.lax.scan(lambda c, v: (c + v, c), 0.0, x))(x)
    jax.grad(lambda x: jnp.sin(x).sum())(x)
    jax.random.normal(jax.random.key(1), (3,))
    with jax.debug_nans(True), jax.enable_x64(True):
        jnp.ones(3) + 1
    jax.clear_caches()
    check(contextlib.nullcontext, [])
    assert private.HAVE_RULES
