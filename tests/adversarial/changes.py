"""What may change between two equal calls: one change each, generated from tables."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import states
from harness import Change, Subject, happened
from jax import lax
from jax._src import array, core, dispatch, dtypes, pjit
from jax._src.interpreters import pxla
from jax._src.lax import lax as lax_internal
from jax._src.numpy import indexing
from observe import NothingCompared
from states import all_states
from support import aligned

from jaxmarshal._jax import private

# --- States of the configuration -----------------------------------------------------------------


def _holder(name: str) -> Any:
    """The state or flag of an option."""
    known = jax.config._value_holders
    return known[name] if name in known else all_states()[name]


def _is_state(holder: Any) -> bool:
    return hasattr(holder, "get_local")


@contextlib.contextmanager
def globally(name: str, value: Any) -> Iterator[None]:
    """The option has another value in all threads."""
    holder = _holder(name)
    before = holder.get_global() if _is_state(holder) else holder.value
    holder._set(value)
    try:
        yield
    finally:
        if name == "jax_logging_level":
            holder._set("WARNING")    # None leaves the level of jaxlib what it was
        holder._set(before)


@contextlib.contextmanager
def overridden(name: str, value: Any) -> Iterator[None]:
    """It has another value in all threads, and the first one in this thread."""
    first = _holder(name).value
    with globally(name, value), _holder(name)(first):
        yield


@contextlib.contextmanager
def left_behind(name: str, value: Any) -> Iterator[None]:
    """It has another value in all threads, after a context with the first one has ended."""
    with _holder(name)(_holder(name).value):
        pass
    with globally(name, value):
        yield


@contextlib.contextmanager
def elsewhere(name: str, value: Any) -> Iterator[None]:
    """It has another value in another thread alone."""
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with _holder(name)(value):
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _proven(
    name: str, how: Callable[[str, Any], Any], value: Any, changes: bool
) -> Callable[[list[Subject]], Any]:
    """The change, which fails where it did not come about."""

    @contextlib.contextmanager
    def apply(_: list[Subject]) -> Iterator[None]:
        before = _holder(name).value
        with how(name, value):
            if (_holder(name).value != before) is not changes:
                raise NothingCompared(f"{name} is still {before!r}")
            yield
        if _holder(name).value != before:
            raise NothingCompared(f"{name} is not {before!r} again")

    return apply


def in_this_thread(name: str, value: Any) -> Any:
    """The option has another value in this thread."""
    return _holder(name)(value)


def changes_of_state(name: str) -> list[Change]:
    """Each other value of an option, in all the ways in which it can be set."""
    if name not in states.known_names():
        return []
    made = []
    for value in states.values(name):
        ways: dict[str, tuple[Any, bool]] = {"globally": (globally, True)}
        if _is_state(_holder(name)):
            ways["in this thread"] = (in_this_thread, True)
            ways["globally, not in this thread"] = (overridden, False)
            if _holder(name)._update_thread_local_hook:
                ways["globally, after a context ended"] = (left_behind, True)
                ways["in another thread"] = (elsewhere, False)
        for way, (how, changes) in ways.items():
            made.append(Change(f"{name}={value} {way}", _proven(name, how, value, changes)))
    return made


def changes_of_context(name: str) -> list[Change]:
    """Each way to change a state that has no option."""
    if name not in all_states():
        return []

    def proven(make: Callable[[], Any]) -> Callable[[list[Subject]], Any]:
        @contextlib.contextmanager
        def apply(_: list[Subject]) -> Iterator[None]:
            before = [state.value for state in all_states().values()]
            with make():
                if all(a is b.value for a, b in zip(before, all_states().values(), strict=True)):
                    raise NothingCompared(f"{name} did not change")
                yield

        return apply

    return [
        Change(f"{name}: {how}", proven(make)) for how, make in states.CONTEXTS[name].items()
    ]


# --- Implementations and handlers that are replaced ----------------------------------------------

def _with_implementations_of_their_own() -> dict[str, Any]:
    """More primitives of the installed JAX, by name: their modules differ between versions."""
    names = (
        "copy", "custom_jvp_call", "eval_jaxpr", "fft", "random_bits", "random_fold_in",
        "random_seed", "random_split", "random_unwrap", "random_wrap", "stop_gradient",
    )  # fmt: skip
    known = {x.name: x for x in gc.get_objects() if isinstance(x, core.Primitive)}
    return {f"{name}_p": known[name] for name in names if name in known}


#: Primitives whose implementation, and whose way of finding it, is replaced.
PRIMITIVES: dict[str, Any] = {
    "device_put_p": dispatch.device_put_p,
    "jit_p": pjit.jit_p,
    **{
        name: getattr(lax, name)
        for name in (
            "add_p", "broadcast_in_dim_p", "convert_element_type_p", "div_p", "dot_general_p",
            "dynamic_slice_p", "gather_p", "log_p", "mul_p", "neg_p", "rev_p", "slice_p",
            "squeeze_p",
        )
    },
    **({"stage_p": core.stage_p} if hasattr(core, "stage_p") else {}),
    **_with_implementations_of_their_own(),
}  # fmt: skip

#: (module or class, attribute) of functions that a fast path may leave out, and must not while
#: they are replaced.
FUNCTIONS: list[tuple[Any, str]] = [
    (dispatch, "apply_primitive"),
    (dispatch, "xla_primitive_callable"),
    (dispatch, "_device_put_impl"),
    (dispatch, "_batched_device_put_impl"),
    (dispatch, "check_special"),
    (pxla, "shard_args"),
    (pxla, "batched_device_put"),
    (pxla, "global_aval_to_result_handler"),
    (core.EvalTrace, "process_primitive"),
    (core.Primitive, "bind_with_trace"),
    (core.Primitive, "bind"),
    (indexing, "rewriting_take"),
    (lax, "full"),
]

#: Functions of the same kind that are left out while they are replaced, with the reason.
NOT_HEARD: dict[tuple[Any, str], str] = {
    (dispatch, "needs_check_special"): "it reads two states of the configuration, which are asked",
    (dtypes, "canonicalize_value"): "it returns most values as they are; JAX's C++ leaves it out",
    (core, "shaped_abstractify"): "it describes values; JAX's C++ leaves it out",
    (lax_internal, "_convert_element_type"): "it binds a primitive, whose replacement is heard",
}

#: (name, table, type) of handlers that JAX finds by the type of what it is given.
HANDLERS: list[tuple[str, dict, Any]] = [
    *(
        ("shard_arg_handlers", pxla.shard_arg_handlers, kind)
        for kind in (array.ArrayImpl, np.ndarray, float, np.float32, private.PRNGKeyArray)
    ),
    ("global_result_handlers", pxla.global_result_handlers, core.ShapedArray),
    *(
        ("pytype_aval_mappings", core.pytype_aval_mappings, kind)
        for kind in (
            array.ArrayImpl, np.ndarray, bool, int, float, complex, np.float32,
            private.PRNGKeyArray,
        )
    ),
]

#: Types with a handler of their own that is not replaced, with the reason.
_NOT_PASSED = "no entry is called with one: such calls all go to JAX"
LEFT_TO_JAX: dict[str, str] = {
    **dict.fromkeys(
        ("Box", "EArray", "HijaxVariable", "Log", "MaskedArray", "Ref", "ShapeDtypeStruct", "Token",
         "TransformedRef", "_DimExpr", "_ScalarMeta", "str"), _NOT_PASSED,
    ),
    "AbstractToken": "of results with effects, which JAX makes",
    "DynamicJaxprTracer": "inside a trace, where JAX does all",
    "Tracer": "inside a trace, where JAX does all",
    **dict.fromkeys(
        ("TypedComplex", "TypedFloat", "TypedInt", "TypedNdArray"),
        "JAX makes them inside of a trace alone",
    ),
}  # fmt: skip

#: Names among `FUNCTIONS` that some of the supported versions lack, with the reason.
MOVED: dict[str, str] = {}


def _noting(name: str, original: Any) -> Any:
    """A function that does the same, and notes that it was called."""

    @functools.wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        happened(name)
        return original(*args, **kwargs)

    for attribute in ("cache_clear", "cache_info", "cache_key_fn"):
        if hasattr(original, attribute):
            setattr(noting, attribute, getattr(original, attribute))
    return noting


def _replaced(name: str, holder: Any, attribute: str) -> Change:
    """An attribute of a module, class or primitive is replaced."""

    @contextlib.contextmanager
    def apply(_: list[Subject]) -> Iterator[None]:
        original = getattr(holder, attribute)
        with mock.patch.object(holder, attribute, _noting(name, original)):
            yield

    return Change(f"{name} replaced", apply)


def _handler_replaced(name: str, table: dict, kind: type) -> Change:
    """A handler in one of JAX's tables is replaced."""

    @contextlib.contextmanager
    def apply(_: list[Subject]) -> Iterator[None]:
        with mock.patch.dict(table, {kind: _noting(name, table[kind])}):
            yield

    return Change(f"{name}[{kind.__name__}] replaced", apply)


def replacements() -> list[Change]:
    """All of them."""
    made = [
        _replaced(f"{name}.{attribute}", primitive, attribute)
        for name, primitive in PRIMITIVES.items()
        for attribute in ("impl", "bind_with_trace", "bind")
    ]
    made += [
        _replaced(f"{holder.__name__.split('.')[-1]}.{name}", holder, name)
        for holder, name in FUNCTIONS
        if hasattr(holder, name)
    ]
    made += [_handler_replaced(*row) for row in HANDLERS if row[2] in row[1]]
    return made


# --- Caches that are cleared ---------------------------------------------------------------------


def _cleared(name: str, clear: Callable[[Subject], None]) -> Change:
    """What functions close over changes, and a cache is cleared."""

    @contextlib.contextmanager
    def apply(subjects: list[Subject]) -> Iterator[None]:
        for subject in subjects:
            for function in subject.functions.values():
                function(jax.device_put(aligned(8)))
        for number in (3.0, 2.0):
            for subject in subjects:
                subject.box[0] = number
                clear(subject)
            if number == 3.0:
                yield

    return Change(name, apply)


def _clear(relation: str) -> Callable[[Subject], None]:
    def clear(subject: Subject) -> None:
        if relation in subject.functions:
            subject.functions[relation].clear_cache()

    return clear


RELATIONS = (
    "itself", "another jit of it", "a jit of it with static arguments", "a jit of it that donates",
    "a jit of it from before",
)  # fmt: skip


def clearings() -> list[Change]:
    """Each function's cache that may be another's too, and those of all."""
    return [
        _cleared("nothing cleared", lambda subject: None),
        *(_cleared(f"clear_cache of {relation}", _clear(relation)) for relation in RELATIONS),
        _cleared("jax.clear_caches", lambda subject: jax.clear_caches()),
        _cleared(
            "xla_primitive_callable.cache_clear",
            lambda subject: dispatch.xla_primitive_callable.cache_clear(),
        ),
    ]


# --- Host arrays that are edited where they are ---------------------------------------------------


def _attribute(name: str, value: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    """Another shape, dtype or strides."""

    @contextlib.contextmanager
    def edited(x: np.ndarray) -> Iterator[None]:
        before = getattr(x, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setattr(x, name, value(x))
            if getattr(x, name) == before:
                raise NothingCompared(f"{name} is still {before}")
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setattr(x, name, before)

    return edited


@contextlib.contextmanager
def _other_numbers(x: np.ndarray) -> Iterator[None]:
    x += 10
    yield
    x -= 10


@contextlib.contextmanager
def _read_only(x: np.ndarray) -> Iterator[None]:
    x.flags.writeable = False
    yield
    x.flags.writeable = True


EDITS: dict[str, Callable[[np.ndarray], Any]] = {
    "shape": _attribute("shape", lambda x: (4, 2)),
    "shape, columns": _attribute("shape", lambda x: (8, 1)),
    "dtype": _attribute("dtype", lambda x: np.dtype(f"i{x.itemsize}")),
    "byte order": _attribute("dtype", lambda x: x.dtype.newbyteorder()),
    "strides": _attribute("strides", lambda x: (0,)),
    "numbers": _other_numbers,
    "writeable flag": _read_only,
}


def edits() -> list[Change]:
    """Each way to edit the host arrays that are passed again and again."""

    def change(name: str, edit: Callable[[np.ndarray], Any]) -> Change:
        @contextlib.contextmanager
        def apply(subjects: list[Subject]) -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for subject in subjects:
                    for host in subject.hosts:
                        stack.enter_context(edit(host))
                yield

        return Change(f"{name} of a host array edited", apply)

    return [change(name, edit) for name, edit in EDITS.items()]


# --- All -----------------------------------------------------------------------------------------


def configurations() -> list[Change]:
    """Each other value of each state."""
    made = [change for name in states.VALUES for change in changes_of_state(name)]
    return made + [change for name in states.CONTEXTS for change in changes_of_context(name)]


def all_changes() -> list[Change]:
    """Everything that may change."""
    return [*configurations(), *replacements(), *clearings(), *edits()]
