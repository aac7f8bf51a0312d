"""Leaves into buffers, and out of them, within an executable: the forms that XLA compiles fast.

XLA compiles a kernel once for all places that look the same. A slice of a buffer is fused into
what uses it, and with its start as a constant no two slices look the same: hundreds of leaves are
hundreds of kernels. So a leaf among many of one shape starts where XLA does not know: at the sum of
the start of a row of leaves and that of a place in it, which come out of a loop that never runs.

`split` is `lax.split`, whose transpose is one concatenation, so that a gradient through many leaves
costs what one through few does; `read` is for an executable that is called itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarshal.packing._groups import is_key, parts_of, spread_spec

#: Leaves of one shape from which on their starts are hidden from XLA: with fewer, one kernel of
#: all of them is what XLA makes.
MANY = 9


class Piece(NamedTuple):
    """A leaf in a buffer.

    Attributes:
      shape: of the leaf; of its words, for typed keys.
      impl: the implementation of typed keys, or None.
      spec: that of its sharding if it is spread along its first axis, or None.
      parts: over how many parts it is spread. Its buffer has a row for each of several.
    """

    shape: tuple[int, ...]
    impl: Any = None
    spec: Any = None
    parts: int = 1

    @property
    def size(self) -> int:
        """Elements of the last axis of the buffer that it takes."""
        return math.prod(self.shape) // self.parts


#: The pieces of each buffer.
Pieces = tuple[tuple[Piece, ...], ...]


#: By elements of a leaf and number of such leaves: the starts of rows of them, and those of the
#: places in a row, as scalars whose values XLA does not know.
#:
#: Kernels are alike only where their arguments differ in the same way, so that what tells a row
#: and what tells a place in it are numbers of their own, of which a kernel adds one and one.
Starts = dict[tuple[int, int], tuple[Sequence[Any], Sequence[Any]]]


def piece_of(array: Any) -> Piece:
    """Where an array is put: its shape, and what it is made of."""
    if not is_key(array):
        traced = isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array)
        spec = None if traced else spread_spec(array.sharding)
        if spec is None:
            return Piece(array.shape)
        return Piece(array.shape, spec=spec, parts=parts_of(array.sharding))
    shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), array.dtype)).shape
    return Piece((*array.shape, *shape), jax.random.key_impl(array))


def starts_for(buffers: Sequence[Any], pieces: Pieces) -> Starts:
    """The starts that `read` needs for these buffers.

    They come out of a loop of which XLA cannot know that it never runs: how often it does is the
    last bit of a number and of the next one, in both of which it is never set.
    """
    known: Starts = {}
    some = None
    for buffer, kinds in zip(buffers, pieces, strict=True):
        if not _few(buffer, kinds):
            some = buffer if some is None else some
            known.update(
                {(piece.size, n): _starts(piece.size, n) for piece, n in _runs(kinds) if n >= MANY}
            )
    if some is None:
        return known
    first = lax.stop_gradient(lax.index_in_dim(some, 0, keepdims=False))
    if jnp.issubdtype(first.dtype, jnp.complexfloating):
        first = lax.real(first)
    number = lax.convert_element_type(first, np.int32)
    never = (number & 1) & ((number + 1) & 1)
    _, unknown = lax.while_loop(
        lambda state: state[0] > 0,
        lambda state: (state[0] - 1, jax.tree.map(lambda x: x + state[0], state[1])),
        (never, list(known.values())),
    )
    return dict(zip(known, unknown, strict=True))


def _starts(size: int, count: int) -> tuple[list[Any], list[Any]]:
    side = math.isqrt(count - 1) + 1    # so many rows of so many have room for them
    rows = [jnp.int32(i * side * size) for i in range(-(-count // side))]
    return rows, [jnp.int32(i * size) for i in range(side)]


# --- Out of buffers -------------------------------------------------------------------------------


def split(buffers: Sequence[Any], pieces: Pieces) -> list[list[Any]]:
    """The leaves of each buffer."""
    return [_split_one(*pair) for pair in zip(buffers, pieces, strict=True)]


def read(buffers: Sequence[Any], pieces: Pieces, starts: Starts) -> list[list[Any]]:
    """`split`, in a form that XLA compiles in a fraction of the time."""
    return [
        _split_one(*pair) if _few(*pair) else _read_one(*pair, starts)
        for pair in zip(buffers, pieces, strict=True)
    ]


def _few(buffer: Any, pieces: tuple[Piece, ...]) -> bool:
    """Is a buffer of these pieces better split?"""
    if not isinstance(buffer, jax.Array) or buffer.ndim != 1 or not 0 < buffer.size < 2**31:
        return True
    return all(count < MANY for _, count in _runs(pieces))


def _runs(pieces: tuple[Piece, ...]) -> list[tuple[Piece, int]]:
    """Each kind of piece that lie side by side, and how many they are."""
    return [(piece, len(list(same))) for piece, same in itertools.groupby(pieces)]


def _read_one(buffer: Any, pieces: tuple[Piece, ...], starts: Starts) -> list[Any]:
    runs = _runs(pieces)
    parts = lax.split(buffer, [piece.size * count for piece, count in runs])
    leaves: list[Any] = []
    for part, (piece, count) in zip(parts, runs, strict=True):
        if count < MANY or not piece.size:
            leaves += _split_one(part, (piece,) * count)
            continue
        rows, places = starts[piece.size, count]
        sums = [row + place for row in rows for place in places][:count]
        leaves += [shaped(_at(part, start, piece.size), piece) for start in sums]
    return leaves


def _at(buffer: Any, start: Any, size: int) -> Any:
    return lax.dynamic_slice(buffer, (start,), (size,), allow_negative_indices=False)


def _split_one(buffer: Any, pieces: tuple[Piece, ...]) -> list[Any]:
    sizes = tuple(piece.size for piece in pieces)
    if isinstance(buffer, np.ndarray):    # on the host, or gradients of integers
        parts = np.split(buffer, np.cumsum(sizes)[:-1], axis=-1)
    else:
        parts = lax.split(buffer, sizes, axis=buffer.ndim - 1)
    return [shaped(part, piece) for part, piece in zip(parts, pieces, strict=True)]


def shaped(part: Any, piece: Piece) -> Any:
    """The leaf whose elements these are."""
    shape = (*batch(part, piece), *piece.shape)
    leaf = part
    if shape != part.shape:
        leaf = part.reshape(shape) if isinstance(part, np.ndarray) else lax.reshape(part, shape)
    return leaf if piece.impl is None else jax.random.wrap_key_data(leaf, impl=piece.impl)


def batch(buffer: Any, piece: Piece) -> tuple[int, ...]:
    """The axes that a transformation has put before those of a buffer."""
    return tuple(buffer.shape[: -1 if piece.parts == 1 else -2])


# --- Into buffers ---------------------------------------------------------------------------------


def join(groups: Sequence[Sequence[Any]], parts: Sequence[int]) -> tuple[Any, ...]:
    """One buffer for each group of arrays, which are spread over so many parts."""
    return tuple(
        lax.concatenate([_flat(x, count) for x in group], 0 if count == 1 else 1)
        for group, count in zip(groups, parts, strict=True)
    )


def parts_in(pieces: Pieces) -> tuple[int, ...]:
    """Over how many parts the leaves of each buffer are spread."""
    return tuple(kinds[0].parts for kinds in pieces)


def _flat(x: Any, parts: int) -> Any:
    words = jax.random.key_data(x) if is_key(x) else x
    shape = (words.size,) if parts == 1 else (parts, words.size // parts)
    return words if words.shape == shape else lax.reshape(words, shape)
