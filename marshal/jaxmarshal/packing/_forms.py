"""Leaves into buffers, and out of them, within an executable: the forms that XLA compiles fast.

XLA compiles a kernel once for all places that look the same, and starts it once for each place. So
leaves of one shape are read and written in *chunks* of eight: one kernel computes what is written
to a chunk. A slice of a buffer is fused into what uses it, and with its start as a constant no two
slices look the same: so a chunk starts where XLA does not know, at the sum of the start of a row of
chunks and that of a place in it, which come out of a loop that never runs.

`split` is `lax.split`, whose transpose is one concatenation, so that a gradient through many leaves
costs what one through few does; `read` is for an executable that is called itself.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarshal._jax import private
from jaxmarshal.packing._groups import is_key, parts_of, spread_spec

#: Leaves of a chunk. XLA makes one kernel of what is concatenated from up to eight operands; from
#: nine on each operand has a kernel of its own.
CHUNK = 8
#: Leaves of one shape from which on the starts of their chunks are hidden from XLA.
MANY = CHUNK + 1
#: Up to so many chunks of a buffer start where XLA knows.
KNOWN = CHUNK if private.fuses_nested_concatenations else 2


class Piece(NamedTuple):
    """A leaf in a buffer.

    Attributes:
      shape: of the leaf; of its words, for typed keys.
      impl: the implementation of typed keys, or None.
      spec: that of its sharding if it is spread along its first axis, or None.
      parts: over how many parts it is spread. Its buffer has a row for each of several.
      repeat: which of the like parts of the tree it is in; no chunk has leaves of two.
    """

    shape: tuple[int, ...]
    impl: Any = None
    spec: Any = None
    parts: int = 1
    repeat: int = 0

    @property
    def size(self) -> int:
        """Elements of the last axis of the buffer that it takes."""
        return math.prod(self.shape) // self.parts


#: The pieces of each buffer.
Pieces = tuple[tuple[Piece, ...], ...]


class Chunk(NamedTuple):
    """Pieces that lie side by side in a buffer, and are read and written together.

    They start at the sum of the start of a row of chunks and that of their place in it.

    Attributes:
      pieces: of one kind where the start is hidden.
      row: an element of the buffer.
      place: elements after the start of the row, or None if XLA may know where the chunk starts.
    """

    pieces: tuple[Piece, ...]
    row: int
    place: int | None

    @property
    def size(self) -> int:
        """Elements of the buffer that it takes."""
        return sum(piece.size for piece in self.pieces)


class Starts(NamedTuple):
    """The starts of rows, and of places in them, as scalars whose values XLA does not know.

    Kernels are alike only where their arguments differ in the same way, so that what tells a row
    and what tells a place in it are numbers of their own, of which a kernel adds one and one.
    """

    rows: dict[int, Any]
    places: dict[int, Any]


def piece_of(array: Any, repeat: int = 0) -> Piece:
    """Where an array is put: its shape, and what it is made of."""
    if not is_key(array):
        traced = isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array)
        spec = None if traced else spread_spec(array.sharding)
        if spec is None:
            return Piece(array.shape, repeat=repeat)
        return Piece(array.shape, spec=spec, parts=parts_of(array.sharding), repeat=repeat)
    shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), array.dtype)).shape
    return Piece((*array.shape, *shape), jax.random.key_impl(array), repeat=repeat)


@functools.lru_cache(256)
def chunks_of(pieces: tuple[Piece, ...], most: int = CHUNK) -> tuple[Chunk, ...]:
    """The chunks of a buffer of these pieces, in order.

    Chunks have up to `most` leaves, or twice as many where eight of them are all there is.
    """
    chunks = _known(pieces, 0, most)
    if len(chunks) <= KNOWN:
        return tuple(chunks)
    doubled = _known(pieces, 0, 2 * most)
    if most > 1 and len(doubled) <= KNOWN == CHUNK and all(len(x.shape) < 2 for x in pieces):
        return tuple(doubled)    # of matrices no two would be multiplied by one kernel
    runs = [(piece, len(list(same))) for piece, same in itertools.groupby(pieces)]
    many = sum(-(-count // most) for piece, count in runs if _is_hidden(piece, count))
    in_a_row = math.isqrt(max(many - 1, 0)) + 1    # so many rows of so many have room for all
    chunks = []
    few: list[Piece] = []
    start = 0
    for piece, count in runs:
        if _is_hidden(piece, count):
            chunks += _known(few, start - sum(x.size for x in few), most)
            chunks += _hidden(piece, count, start, most, in_a_row)
            few = []
        else:
            few += [piece] * count
        start += count * piece.size
    return (*chunks, *_known(few, start - sum(x.size for x in few), most))


def _is_hidden(piece: Piece, count: int) -> bool:
    return count >= MANY and piece.size > 0


def _known(pieces: Sequence[Piece], start: int, most: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    for first in range(0, len(pieces), most):
        chunks.append(Chunk(tuple(pieces[first : first + most]), start, None))
        start += chunks[-1].size
    return chunks


def _hidden(piece: Piece, count: int, start: int, most: int, in_a_row: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    for n, first in enumerate(range(0, count, most)):
        place = n % in_a_row * most * piece.size
        row = start + first * piece.size - place
        chunks.append(Chunk((piece,) * min(most, count - first), row, place))
    return chunks


def _starts_for(buffers: Sequence[Any], chunks: Sequence[Sequence[Chunk]]) -> Starts:
    """The starts of these chunks of buffers.

    They come out of a loop of which XLA cannot know that it never runs: how often it does is the
    last bit of a number and of the next one, in both of which it is never set.
    """
    rows: dict[int, Any] = {}
    places: dict[int, Any] = {}
    some = None
    for buffer, some_chunks in zip(buffers, chunks, strict=True):
        for chunk in some_chunks:
            if chunk.place is not None:
                some = buffer
                rows[chunk.row] = np.int32(chunk.row)
                places[chunk.place] = np.int32(chunk.place)
    if some is None:
        return Starts(rows, places)
    first = lax.stop_gradient(lax.index_in_dim(some, 0, keepdims=False))
    if jnp.issubdtype(first.dtype, jnp.complexfloating):
        first = lax.real(first)
    number = lax.convert_element_type(first, np.int32)
    never = (number & 1) & ((number + 1) & 1)
    _, unknown = lax.while_loop(
        lambda state: state[0] > 0,
        lambda state: (state[0] - 1, jax.tree.map(lambda x: x + state[0], state[1])),
        (never, Starts(rows, places)),
    )
    return unknown


# --- Out of buffers -------------------------------------------------------------------------------


def split(buffers: Sequence[Any], pieces: Pieces) -> list[list[Any]]:
    """The leaves of each buffer."""
    return [_split_one(*pair) for pair in zip(buffers, pieces, strict=True)]


def read(buffers: Sequence[Any], pieces: Pieces, most: int = CHUNK) -> list[list[Any]]:
    """`split`, in a form that XLA compiles in a fraction of the time: in chunks of so many leaves.

    Chunks of one leaf are for leaves that are results themselves.
    """
    chunks = [
        () if _is_split(buffer) else chunks_of(kinds, most)
        for buffer, kinds in zip(buffers, pieces, strict=True)
    ]
    starts = _starts_for(buffers, chunks)
    return [
        _read_one(buffer, some, starts) if some else _split_one(buffer, kinds)
        for buffer, kinds, some in zip(buffers, pieces, chunks, strict=True)
    ]


def _is_split(buffer: Any) -> bool:
    """Is a buffer better split: one of several parts, or so large that starts have no room?"""
    if not isinstance(buffer, jax.Array) or buffer.ndim != 1:
        return True
    return not 0 < buffer.size < 2**31


def _read_one(buffer: Any, chunks: tuple[Chunk, ...], starts: Starts) -> list[Any]:
    leaves: list[Any] = []
    for chunk in chunks:
        if chunk.place is None:
            part = lax.slice(buffer, (chunk.row,), (chunk.row + chunk.size,))
        else:
            start = starts.rows[chunk.row] + starts.places[chunk.place]
            part = lax.dynamic_slice(buffer, (start,), (chunk.size,), allow_negative_indices=False)
        leaves += _split_one(part, chunk.pieces)
    return leaves


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


def write(groups: Sequence[Sequence[Any]], pieces: Pieces) -> tuple[Any, ...]:
    """`join`, in chunks: the kernel of a chunk computes all that is written to it."""
    return tuple(
        _write_one(group, kinds) if kinds[0].parts == 1 else join([group], (kinds[0].parts,))[0]
        for group, kinds in zip(groups, pieces, strict=True)
    )


def _write_one(group: Sequence[Any], pieces: tuple[Piece, ...]) -> Any:
    flat = iter([_flat(x, 1) for x in group])
    chunks = [list(itertools.islice(flat, len(chunk.pieces))) for chunk in chunks_of(pieces)]
    # XLA ends the process over some fusions of empty arrays.
    filled = [[x for x in chunk if x.size] for chunk in chunks]
    parts = [_joined_in_eights(chunk) for chunk in filled if chunk]
    return _in_turn(parts) if parts else lax.concatenate(chunks[0], 0)


def _joined_in_eights(parts: Sequence[Any]) -> Any:
    eights = [parts[i : i + CHUNK] for i in range(0, len(parts), CHUNK)]
    return _in_turn([lax.concatenate(some, 0) for some in eights])


def _in_turn(parts: Sequence[Any]) -> Any:
    """These concatenations in a row; without barriers XLA would make one of all their operands."""
    if len(parts) == 1:
        return parts[0]
    return lax.concatenate([lax.optimization_barrier(part) for part in parts], 0)


def parts_in(pieces: Pieces) -> tuple[int, ...]:
    """Over how many parts the leaves of each buffer are spread."""
    return tuple(kinds[0].parts for kinds in pieces)


def _flat(x: Any, parts: int) -> Any:
    words = jax.random.key_data(x) if is_key(x) else x
    shape = (words.size,) if parts == 1 else (parts, words.size // parts)
    return words if words.shape == shape else lax.reshape(words, shape)
