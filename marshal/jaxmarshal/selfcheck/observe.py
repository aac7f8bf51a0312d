"""Everything observable about a call, as plain data that can be compared.

The oracle of the self-check and of the differential tests: `observe(function, …)` for plain JAX and
for jaxmarshal must give equal observations.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxmarshal._jax import patching, private


class NothingCompared(Exception):
    """The comparison itself is at fault: the call was not made in the context that it was for."""


def _configuration() -> tuple:
    """What a context may change: JAX's states, numpy's error handling, what is installed."""
    local = [state.get_local() for state in (private.config_states or {}).values()]
    context = private.trace_context() if private.trace_context else ()
    return context, local, jax.config.values, np.geterr(), patching.installed_names()


@contextlib.contextmanager
def entered(context: Callable[[], Any]) -> Iterator[None]:
    """The context; an error where it cannot be entered, or changes nothing.

    The error is never part of an observation: two equal errors of the harness would look like
    agreement.
    """
    before = _configuration() if context is not contextlib.nullcontext else None
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(context())
        except Exception as error:
            raise NothingCompared(f"a context cannot be entered: {error!r}") from error
        if before is not None and _configuration() == before:
            raise NothingCompared(f"a context changes nothing: {context}")
        yield


def input_leaves(tree: Any) -> list[Any]:
    """The leaves of a tree; none where JAX cannot flatten it."""
    try:
        return jax.tree_util.tree_leaves(tree)
    except Exception:
        return []


def input_pointers(tree: Any) -> list[tuple[int, int]]:
    """(address, length in bytes) of the host and device buffers of the leaves of a tree."""
    spans = []
    for leaf in input_leaves(tree):
        if isinstance(leaf, np.ndarray) and leaf.dtype != object and leaf.size:
            low, high = np.lib.array_utils.byte_bounds(leaf)
            spans.append((low, high - low))
        elif isinstance(leaf, jax.Array) and _is_plain(leaf) and not leaf.is_deleted():
            spans += [
                (address, shard.data.nbytes)
                for shard in leaf.addressable_shards
                if shard.data.nbytes and (address := _address(shard)) is not None
            ]
    return spans


def _without_addresses(text: str) -> str:
    """The text of a message, which may name functions and objects by their addresses."""
    return re.sub(r"\b0x[0-9a-f]+", "0x…", text)


def _address(shard: Any) -> int | None:
    """Where a shard's data are; None where the platform does not say."""
    try:
        return int(shard.data.unsafe_buffer_pointer())
    except Exception:
        return None


def _data(shard: Any) -> bytes | str:
    """A shard's data, or why there are none: another array with the same buffer may be deleted."""
    try:
        return np.asarray(shard.data).tobytes()
    except RuntimeError as error:
        return str(error)


def _is_plain(array: jax.Array) -> bool:
    return not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended)


def _alias(pointer: int | None, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Which inputs a pointer lies in, and where."""
    if pointer is None:
        return []
    return [(i, pointer - low) for i, (low, size) in enumerate(spans) if 0 <= pointer - low < size]


def observe_leaf(leaf: Any, spans: list[tuple[int, int]], inputs: list[Any]) -> tuple:
    """One leaf of a result: type, aval, placement, layout, data, aliasing, identity."""
    identity = [i for i, x in enumerate(inputs) if x is leaf]
    if not isinstance(leaf, jax.Array):
        return (type(leaf), repr(leaf), identity)
    if leaf.is_deleted():
        return (type(leaf), str(leaf.aval), "deleted", identity)
    if not _is_plain(leaf):
        return (type(leaf), str(leaf.aval), str(jax.random.key_data(leaf)), identity)
    shards = [
        (
            shard.device,
            str(shard.index),
            _data(shard),
            _alias(_address(shard), spans) if shard.data.nbytes else None,
        )
        for shard in leaf.addressable_shards
    ]
    return (
        type(leaf), leaf.dtype, leaf.shape, leaf.weak_type, leaf.aval, str(leaf.aval),
        leaf.sharding, type(leaf.sharding), leaf.sharding.memory_kind, leaf.committed,
        str(leaf.format.layout), shards, identity,
    )


def outcome(
    call: Any, *args: Any, context: Any = contextlib.nullcontext, **kwargs: Any
) -> tuple:
    """The outcome of one call in a context: a result, or an error; and which inputs are deleted.

    The context is entered outside of what is observed: its own errors are raised.
    """
    inputs = input_leaves((args, kwargs))
    result = error = None
    with entered(context):
        try:
            result = call(*args, **kwargs)
        except Exception as raised:
            error = raised
    return describe(result, error, inputs, args[0] if args else None)


def describe(result: Any, error: Exception | None, inputs: list[Any], first: Any) -> tuple:
    """What became of a call, as plain data; and which of its inputs are deleted."""
    if error is not None:
        # How deep a recursion is where it ends, and so in what, differs from call to call.
        text = "" if type(error) is RecursionError else _without_addresses(str(error))
        found: tuple = ("raised", type(error), text)
    else:
        leaves, treedef = jax.tree_util.tree_flatten(result)
        # Only what is still alive: the memory of a donated input may be anybody's now.
        spans = input_pointers(inputs)
        found = (
            "returned", treedef, _containers(result),
            [observe_leaf(leaf, spans, inputs) for leaf in leaves],
            first is not None and result is first,
        )
    return found, [isinstance(x, jax.Array) and x.is_deleted() for x in inputs]


def observe(
    call: Any, *args: Any, context: Any = contextlib.nullcontext, **kwargs: Any
) -> tuple:
    """The outcome of one call, with the warnings on the way; for one thread at a time."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, deleted = outcome(call, *args, context=context, **kwargs)
        warned = [
            (w.category, _without_addresses(str(w.message)), w.filename, w.lineno) for w in caught
        ]
    return found, warned, deleted


def _containers(tree: Any) -> Any:
    """The containers with their types and the order of dict keys, leaves left out."""
    if isinstance(tree, dict):
        return (type(tree), [(k, _containers(v)) for k, v in tree.items()])
    if isinstance(tree, (list, tuple)):
        return (type(tree), [_containers(v) for v in tree])
    return None
