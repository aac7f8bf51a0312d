"""Several steps of a replay as one executable, where that gives the same bits.

A replay that takes several steps pays for a dispatch each. Steps that only move data, or compute
with integers and booleans, have the same bits in one executable as in several, so they are traced
into one function. Arithmetic of floats is never traced together: XLA may round otherwise then.

That function is traced and compiled on a thread of its own, once the replay has been taken often
enough, and on no thread that calls anything. Its results are compared with those of a call that
took the steps one by one, bit by bit, before it is used. Where anybody could hear that something
is compiled (a log, a listener, a cache of compiled programs on disk), nothing is.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from jaxmarshal._core.replay import plays, tapes
from jaxmarshal._jax import private
from jaxmarshal._reports import counting

#: Replays that wait to be looked at; what comes in meanwhile is offered again later.
MOST_WAITING = 32

#: Executables that are alive at a time; each takes some hundred kilobytes.
MOST_MADE = 1024

#: Bytes of the arrays of a replay, those between its steps included. Larger ones gain little, and
#: wait here meanwhile.
MOST_BYTES = 1 << 22

#: What only moves data, of any dtype in `_MOVED`.
_MOVES = frozenset((
    "broadcast_in_dim", "concatenate", "copy", "copy_p", "dynamic_slice", "dynamic_update_slice",
    "expand_dims", "gather", "iota", "pad", "random_unwrap", "random_wrap", "reshape", "rev",
    "scatter", "select_n", "slice", "split", "squeeze", "stack", "stop_gradient", "tile",
    "transpose", "unstack",
))  # fmt: skip

#: What compares data of any dtype in `_MOVED`.
_COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "is_finite"))

#: What is exact for integers and booleans.
_COUNTS = frozenset((
    "abs", "add", "and", "argmax", "argmin", "clamp", "clz", "convert_element_type", "cummax",
    "cummin", "cumprod", "cumsum", "div", "integer_pow", "max", "min", "mul", "neg", "not", "or",
    "population_count", "random_bits", "random_fold_in", "random_seed", "random_split",
    "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor", "rem", "scatter_add", "scatter-add", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sort", "square", "sub", "threefry2x32", "xor",
))  # fmt: skip

#: What runs a program of its own: the name of the parameter that holds it.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}  # fmt: skip

#: Dtypes whose moves leave all bits alone. Backends compute some of the smaller floats as larger
#: ones, which changes the bits of NaNs.
_MOVED = frozenset(map(np.dtype, ("float32", "float64", "complex64", "complex128")))


class Job(NamedTuple):
    """A replay, and all that one call had: its sources, then the results of its steps."""

    play: Any
    values: list[Any]
    context: Any
    states: Any


# --- What is exact -------------------------------------------------------------------------------


def _counts_alone(avals: Sequence[Any]) -> bool:
    """Are they integers and booleans, of the sizes that all backends have?"""
    return all(
        isinstance(aval.dtype, np.dtype)
        and aval.dtype.kind in "iub"
        and aval.dtype.name not in ("int2", "int4", "uint2", "uint4")
        for aval in avals
    )


def _is_moved(aval: Any) -> bool:
    """Has it a dtype whose bits no move changes?"""
    if aval.dtype in _MOVED or private.is_own_key_dtype(aval.dtype):
        return True
    return _counts_alone([aval])


def _is_exact_equation(equation: Any) -> bool:
    """Does an equation of a program give the same bits, whatever is computed beside it?"""
    name = equation.primitive.name
    avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    if name in _CALLS:
        return not any(equation.params.get("donated_invars", ())) and is_exact(
            equation.params[_CALLS[name]]
        )
    if not all(map(_is_moved, avals)):
        return False
    if name in _MOVES or name in _COMPARES:
        return True
    if name == "convert_element_type" and len({aval.dtype for aval in avals}) == 1:
        return True    # it makes a weak type a strong one, or the other way round
    keys = [aval for aval in avals if not _counts_alone([aval])]
    return name in _COUNTS and all(private.is_own_key_dtype(aval.dtype) for aval in keys)


def is_exact(closed: Any) -> bool:
    """Does a closed jaxpr give the same bits, whatever is computed beside it?"""
    jaxpr = closed.jaxpr
    return not jaxpr.effects and all(map(_is_exact_equation, jaxpr.eqns))


def _is_exact_step(step: Any, values: dict[int, Any]) -> bool:
    trace = getattr(step.function(), "trace", None)
    if trace is None:
        return False    # to put an array on a device is no program
    args, kwargs = _arguments(step, values)
    return is_exact(trace(*args, **kwargs).jaxpr)


# --- Which steps become one ----------------------------------------------------------------------


def _results(step: Any) -> range:
    return range(step.first, step.first + step.results)


def _groups(steps: list[Any], needs: list[set[int]], exact: list[bool]) -> Iterator[list[int]]:
    """The steps in an order in which as many exact ones as can be come one after another."""
    first = min((step.first for step in steps), default=0)
    known = set(range(first))
    left = list(range(len(steps)))
    while left:
        group = []
        for i in left:
            if exact[i] and needs[i] <= known:
                group.append(i)
                known.update(_results(steps[i]))
        if not group:
            group = [next(i for i in left if needs[i] <= known)]
            known.update(_results(steps[group[0]]))
        left = [i for i in left if i not in group]
        yield group


# --- Tracing -------------------------------------------------------------------------------------


def _filled(described: Any, values: dict[int, Any]) -> Any:
    """`tapes.fill` for tracers as well as arrays."""
    if isinstance(described, tapes.Value):
        return values[described.number]
    if isinstance(described, tapes.Base):
        return private.random_unwrap(values[described.key.number])
    if isinstance(described, tapes.Key):
        return private.random_wrap(_filled(described.words, values), impl=described.impl)
    if isinstance(described, tapes.Cast):
        return _cast(values[described.source.number], described.dtype)
    if isinstance(described, tapes.Nested):
        return described.make([_filled(item, values) for item in described.items])
    return described


def _cast(value: Any, dtype: Any) -> Any:
    """An int of the program's, or the tracer of one, in its dtype."""
    if type(value) is int:
        return np.asarray(value, dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        raise TypeError("numpy may warn of data that are converted")
    return value.astype(dtype)


def _arguments(step: Any, values: dict[int, Any]) -> tuple[list[Any], dict[str, Any]]:
    filled = [_filled(arg, values) for arg in step.args]
    names = step.names or ()
    by_position = len(filled) - len(names)
    return filled[:by_position], dict(zip(names, filled[by_position:], strict=True))


def _leaves(result: Any) -> list[Any]:
    """The arrays of a step's result, in the order of a tape."""
    if result is None:
        return []
    if isinstance(result, dict):
        result = list(result.values())
    if not isinstance(result, (list, tuple)):
        return [result]
    return [leaf for item in result for leaf in _leaves(item)]


def _as_one(steps: list[Any], inputs: list[int], outputs: list[int]) -> Callable[..., Any]:
    """A function of the inputs that takes these steps, and returns the outputs."""

    def fused(*arrays: Any) -> Any:
        values = dict(zip(inputs, arrays, strict=True))
        for step in steps:
            args, kwargs = _arguments(step, values)
            leaves = _leaves(step.function()(*args, **kwargs))
            values.update(zip(_results(step), leaves, strict=True))
        found = [values[number] for number in outputs]
        return found[0] if len(found) == 1 else found

    return fused


# --- Comparing -----------------------------------------------------------------------------------


def _words(array: Any) -> Any:
    """The array itself, or that of the words of a typed key."""
    return getattr(array, "_base_array", array)


def _is_same(found: Any, expected: Any) -> bool:
    """Are two arrays alike in all that can be seen of them, but for where their data lie?"""
    if type(found) is not type(expected) or found.dtype != expected.dtype:
        return False
    found, expected = _words(found), _words(expected)
    return bool(
        found.aval == expected.aval
        and found.aval.weak_type == expected.aval.weak_type
        and found.sharding == expected.sharding
        and found.committed == expected.committed
        and np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    )


def _shared(arrays: list[Any]) -> list[int]:
    """Which of them share their data: for each, the first one with the same."""
    pointers = [
        array.unsafe_buffer_pointer() if getattr(array, "size", 0) else -i    # or an int
        for i, array in enumerate(map(_words, arrays))
    ]
    return [pointers.index(pointer) for pointer in pointers]


def _compiled(
    steps: list[Any], inputs: list[int], outputs: list[int], values: dict[int, Any]
) -> Any:
    """The jitted function for these steps, or None where it differs from them."""
    function = private.jit(_as_one(steps, inputs, outputs))
    arrays = [values[number] for number in inputs]
    expected = [values[number] for number in outputs]
    found = _leaves(function(*arrays))
    if len(found) != len(expected) or not all(map(_is_same, found, expected)):
        return None
    return function if _shared(arrays + found) == _shared(arrays + expected) else None


# --- Jobs ----------------------------------------------------------------------------------------


def is_heard() -> bool:
    """Would anybody hear that something is traced or compiled?"""
    if any(state is None or state.value != value for state, value in private.silent_states):
        return True
    if any(getattr(private.monitoring, name, True) for name in private.MONITORS):
        return True
    if private.util.test_event_listener is not None or "dump" in os.environ.get("XLA_FLAGS", ""):
        return True
    return any(
        isinstance(logger, logging.Logger) and logger.isEnabledFor(logging.DEBUG)
        for name, logger in list(logging.Logger.manager.loggerDict.items())
        if name.split(".")[0] in ("jax", "jaxlib")
    )


def _fuse(job: Job) -> None:
    """Replace steps of a replay by fewer ones, if that can be."""
    if not plays.is_current(job.context, job.states) or is_heard():
        return
    steps = job.play.steps
    values = dict(enumerate(job.values))
    needs = [tapes.numbers_needed(step.args) for step in steps]
    wanted = tapes.numbers_needed((job.play.result,))
    exact = [_is_exact_step(step, values) for step in steps]
    groups = list(_groups(steps, needs, exact))
    if len(groups) == len(steps):
        return
    taken: list[Any] = []
    for group in groups:
        if len(group) == 1:
            taken.append(steps[group[0]])
            continue
        own = {number for i in group for number in _results(steps[i])}
        others = [needs[i] for i in range(len(steps)) if i not in group]
        outputs = sorted(own & wanted.union(*others))
        inputs = sorted(set().union(*(needs[i] for i in group)) - own)
        function = _compiled([steps[i] for i in group], inputs, outputs, values)
        if function is None:
            return
        taken.append((function, inputs, outputs))
    _alive.update(item[0] for item in taken if isinstance(item, tuple))
    job.play.take(*tapes.renumbered(taken, job.play.result, steps[0].first))


_lock = threading.RLock()    # a finalizer may make a call meanwhile
_waiting: deque[Job] = deque()
_worker: threading.Thread | None = None
_alive: WeakSet[Any] = WeakSet()    # what replays hold
_ended = False
_allowed = True


def allowed() -> bool:
    """May replays become fewer steps?"""
    return _allowed


def allow(is_allowed: bool) -> None:
    """Have replays use such executables, or take the steps one by one."""
    global _allowed
    _allowed = is_allowed
    plays.use_fused(is_allowed)


def offer(play: Any, values: list[Any], context: Any, states: Any) -> bool:
    """Have a replay looked at, on another thread. False where it may be offered again later."""
    global _worker
    if sum(getattr(_words(value), "nbytes", 0) for value in values) > MOST_BYTES:
        return True
    with _lock:
        if _ended or len(_waiting) >= MOST_WAITING or len(_alive) >= MOST_MADE:
            return False
        _waiting.append(Job(play, values, context, states))
        if _worker is None:
            _worker = threading.Thread(target=_work, name="jaxmarshal-fusion", daemon=True)
            _worker.start()
    return True


def _next() -> Job | None:
    global _worker
    with _lock:
        if _waiting and not _ended:
            return _waiting.popleft()
        _waiting.clear()
        _worker = None
        return None


def _work() -> None:
    """Look at what waits; the thread ends when nothing does."""
    with counting.uncounted():
        while (job := _next()) is not None:
            with contextlib.suppress(Exception):    # the steps stay as they are
                _fuse(job)
            del job


def wait() -> None:
    """Return when nothing waits to be looked at; for tests and benchmarks."""
    worker = _worker
    if worker is not None:
        worker.join()


@atexit.register
def _end() -> None:
    """Nothing is compiled while Python takes itself apart."""
    global _ended
    _ended = True
    worker = _worker
    if worker is not None:    # at the end of the interpreter no other name may be there
        worker.join()


def _after_fork() -> None:
    """The thread stayed behind in the parent."""
    global _lock, _worker
    _lock = threading.RLock()
    _worker = None
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
