"""Leaves into buffers, and out of them, by executables of their own.

A buffer holds the elements of its leaves in row-major order, one leaf after the other, without
gaps. Typed keys lie in it as the words they are made of. The last axis of a buffer is the packed
one; before it is one with a row for each part of leaves that are spread over several devices, and
before that are batches that a transformation has added, and its leaves have them too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, SingleDeviceSharding

from jaxmarshal.packing._forms import (
    Piece,
    Pieces,
    batch,
    join,
    read,
    shaped,
    split,
)
from jaxmarshal.packing._groups import flat_sharding, is_key, spread_spec


class Layout:
    """Pieces that are compared and hashed as one object: what an executable is compiled for."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces


@functools.lru_cache(1024)
def layout_of(pieces: Pieces) -> Layout:
    """The one layout of these pieces."""
    return Layout(pieces)


# XLA computes with small floats as larger ones, also where it only moves them: NaNs come out with
# other bits. So it is given the bits. (Not in a step of a carry, for they have no gradient.)


@functools.lru_cache(64)
def _bits_of(dtype: Any) -> Any:
    """The dtype that has the bits of such a float, or None for other dtypes."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    return {8: np.uint8, 16: np.uint16}.get(jnp.finfo(dtype).bits)


def _as_bits(x: Any) -> Any:
    bits = None if is_key(x) or jax.typeof(x).weak_type else _bits_of(x.dtype)
    return x if bits is None else lax.bitcast_convert_type(x, bits)


def _as_before(x: Any, before: Any) -> Any:
    """The same with the dtype that another array had."""
    if is_key(x) or is_key(before) or x.dtype == before.dtype:
        return x
    return lax.bitcast_convert_type(x, before.dtype)


def _join_bits(groups: Any, parts: tuple[int, ...]) -> tuple[Any, ...]:
    buffers = join([[_as_bits(x) for x in group] for group in groups], parts)
    return tuple(_as_before(x, group[0]) for x, group in zip(buffers, groups, strict=True))


@functools.lru_cache(64)
def _joiner(sharding: Any) -> Any:
    """`join`, with the results placed so."""
    how = {} if sharding is None else {"out_shardings": sharding}
    return jax.jit(_join_bits, static_argnums=1, **how)


def _split_by(layout: Layout, buffers: Any) -> list[list[Any]]:
    bits = [_as_bits(x) for x in buffers]
    leaves = read(bits, layout.pieces, most=1)
    return [
        [_as_before(leaf, buffer) for leaf in some]
        for some, buffer in zip(leaves, buffers, strict=True)
    ]


@functools.lru_cache(64)
def _splitter(sharding: Any) -> Any:
    """`split` by a layout, with the results placed so."""
    how = {} if sharding is None else {"out_shardings": sharding}
    return jax.jit(_split_by, static_argnums=0, **how)


def _of_leaf(sharding: Any, piece: Piece) -> Any:
    """The sharding of a leaf in a buffer of this one, or None for any."""
    if piece.spec is None or not (sharding is not None and spread_spec(sharding)):
        return sharding
    return NamedSharding(sharding.mesh, piece.spec, memory_kind=sharding.memory_kind)


def _place(array: Any) -> Any:
    """(sharding, committed) that results of an executable have to have, or None for any."""
    if isinstance(array, jax.core.Tracer):
        return None
    sharding = flat_sharding(array.sharding)
    return None if sharding is None else (sharding, array.committed)


def _on(place: Any) -> tuple[Any, Any]:
    """(sharding of results or None, the context to call in) for results in that place."""
    if place is None:
        return None, contextlib.nullcontext()
    sharding, committed = place
    if committed:
        return sharding, contextlib.nullcontext()
    assert isinstance(sharding, SingleDeviceSharding)
    return None, jax.default_device(next(iter(sharding.device_set)))


def joined(groups: Sequence[Sequence[Any]], parts: Sequence[int]) -> tuple[Any, ...]:
    """The buffers of these groups: one executable for each placement, which is mostly one."""
    if any(isinstance(x, jax.core.Tracer) for group in groups for x in group):
        return join(groups, parts)
    buffers: list[Any] = [None] * len(groups)
    firsts = [group[0] for group in groups]
    for (place, _), which in _by_place(firsts, parts).items():
        sharding, context = _on(place)
        with context:
            made = _joiner(sharding)([groups[i] for i in which], tuple(parts[i] for i in which))
        for i, buffer in zip(which, made, strict=True):
            buffers[i] = buffer
    return tuple(buffers)


def rejoined(
    old: Sequence[Any], groups: Sequence[Sequence[Any]], parts: Sequence[int]
) -> tuple[Any, ...]:
    """The buffers of these groups; those of numpy arrays are put where the old ones are."""
    buffers: list[Any] = [None] * len(groups)
    for i, group in enumerate(groups):
        if not any(isinstance(x, np.ndarray) for x in group):
            continue
        known = len(old) > i and isinstance(old[i], jax.Array)
        sharding, context = _on(_place(old[i]) if known else None)
        with context:
            if all(isinstance(x, np.ndarray) for x in group):
                rows = [x.reshape(*(() if parts[i] == 1 else (parts[i],)), -1) for x in group]
                buffers[i] = jax.device_put(np.concatenate(rows, axis=-1), sharding)
            else:
                arrays = [jnp.asarray(x) for x in group]
                buffers[i] = jax.device_put(join([arrays], parts[i : i + 1])[0], sharding)
    rest = [i for i, buffer in enumerate(buffers) if buffer is None]
    made = joined([groups[i] for i in rest], [parts[i] for i in rest])
    for i, buffer in zip(rest, made, strict=True):
        buffers[i] = buffer
    return tuple(buffers)


def separated(buffers: Sequence[Any], pieces: Pieces) -> list[list[Any]]:
    """The leaves of each buffer: one executable for each placement, which is mostly one."""
    if any(not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) for x in buffers):
        return split(buffers, pieces)
    leaves: list[list[Any]] = [[] for _ in buffers]
    for (place, _), which in _by_place(buffers, [kinds[0].spec for kinds in pieces]).items():
        sharding, context = _on(place)
        layout = layout_of(tuple(pieces[i] for i in which))
        splitter = _splitter(_of_leaf(sharding, pieces[which[0]][0]))
        with context:
            parts = splitter(layout, [buffers[i] for i in which])
        for i, part in zip(which, parts, strict=True):
            leaves[i] = part
    return leaves


def _by_place(arrays: Sequence[Any], also: Sequence[Any]) -> dict[Any, list[int]]:
    """Which of them have the same place and the same of something else."""
    groups: dict[Any, list[int]] = {}
    for i, (array, other) in enumerate(zip(arrays, also, strict=True)):
        groups.setdefault((_place(array), other), []).append(i)
    return groups


@functools.partial(jax.jit, static_argnums=2)
def _cut(buffer: Any, start: Any, piece: Piece) -> Any:
    part = lax.dynamic_slice_in_dim(_as_bits(buffer), start, piece.size, axis=buffer.ndim - 1)
    return _as_before(part.reshape(*batch(buffer, piece), *piece.shape), buffer)


def cut(buffer: Any, start: int, piece: Piece) -> Any:
    """One leaf of a buffer. Leaves of one shape share an executable, wherever they lie."""
    if not isinstance(buffer, jax.Array) or isinstance(buffer, jax.core.Tracer):
        return shaped(buffer[..., start : start + piece.size], piece)
    sharding, context = _on(_place(buffer))
    sharding = _of_leaf(sharding, piece)
    with context:
        leaf = _cut(buffer, start, piece._replace(impl=None, repeat=0))
        if sharding is not None and leaf.sharding != sharding:
            leaf = jax.device_put(leaf, sharding)
    return leaf if piece.impl is None else jax.random.wrap_key_data(leaf, impl=piece.impl)
