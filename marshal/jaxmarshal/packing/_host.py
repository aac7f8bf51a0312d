"""Numpy arrays of a call in one buffer: copied on the host, put once, taken apart on the device.

The buffer is an array of 32-bit words, in which each array begins at a word. Nothing is converted
on the device: bits are cast, and what JAX would convert (64-bit data with x64 off) is converted
by numpy before, as JAX does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: Bytes of the largest array that is packed.
LARGEST = 65536
#: Arrays of a call that there have to be: fewer are put as fast one by one.
LEAST = 5
WORD = 4

_BFLOAT16 = np.dtype(jnp.bfloat16)


class Item(NamedTuple):
    """An array of the call in the buffer.

    Attributes:
      position: among the leaves of the call.
      shape: of the array.
      dtype: on the host.
      target: on the device.
      start, words: where it lies, in words.
      padding: bytes after it, up to the next word.
    """

    position: int
    shape: tuple[int, ...]
    dtype: Any
    target: Any
    start: int
    words: int
    padding: bytes


class Form:
    """What a call looks like: its structure, and which leaves are in the buffer.

    Attributes:
      treedef: the structure of its arguments.
      items: the arrays in the buffer.
      others: positions of the leaves that are not.
      x64: was it recorded with 64-bit types?
    """

    __slots__ = ("_entries", "items", "others", "treedef", "x64")

    def __init__(self, treedef: Any, leaves: Sequence[Any], x64: bool) -> None:
        self.treedef = treedef
        self.x64 = x64
        items: list[Item] = []
        start = 0
        for i, leaf in enumerate(leaves):
            target = _target(leaf) if type(leaf) is np.ndarray else None
            if target is not None:
                size = leaf.size * target.itemsize
                padding = b"\0" * (-size % WORD)
                words = (size + len(padding)) // WORD
                items.append(Item(i, leaf.shape, leaf.dtype, target, start, words, padding))
                start += words
        self.items = tuple(items) if len(items) >= LEAST and start else ()
        taken = {item.position: item for item in self.items}
        self.others = tuple(i for i in range(len(leaves)) if i not in taken)
        self._entries = tuple(
            (spec, taken.get(i)) for i, spec in enumerate(specs_of(leaves))
        )

    def gather(self, leaves: Sequence[Any]) -> tuple[Any, list[Any]] | None:
        """(the words or None if nothing is packed, the other leaves); None if they do not fit.

        They fit where the same ones are host arrays, of the same shapes and dtypes.
        """
        parts: list[Any] = []
        others: list[Any] = []
        for leaf, (spec, item) in zip(leaves, self._entries, strict=True):
            if type(leaf) is not np.ndarray:
                if spec is not None:
                    return None
                others.append(leaf)
                continue
            if spec is None or leaf.shape != spec[0]:
                return None
            dtype = leaf.dtype
            if dtype is not spec[1] and dtype != spec[1]:
                return None
            if item is None:
                others.append(leaf)
                continue
            if dtype is not item.target:
                leaf = leaf.astype(item.target, copy=False)
            if item.target is _BFLOAT16:
                leaf = leaf.view(np.uint16)    # numpy exports no buffer of it
            parts.append(leaf)
            if item.padding:
                parts.append(item.padding)
        return (_words(parts) if parts else None), others

    def scatter(self, words: Any, others: Sequence[Any]) -> Any:
        """The arguments of the call, in an executable."""
        leaves: list[Any] = [None] * (len(self.items) + len(self.others))
        for item in self.items:
            part = lax.slice(words, (item.start,), (item.start + item.words,))
            leaves[item.position] = _as_array(part, item)
        for position, leaf in zip(self.others, others, strict=True):
            leaves[position] = leaf
        return self.treedef.unflatten(leaves)


class Forms:
    """The forms that calls have had, by structure, shapes and dtypes; the last one first."""

    __slots__ = ("_known", "_last")

    def __init__(self) -> None:
        self._known: dict[Any, Form] = {}
        self._last: Form | None = None

    def gather(self, dynamic: Any) -> tuple[Form, Any, list[Any]]:
        """The form of these arguments, their words or None, and what is not in the words."""
        leaves, treedef = jax.tree.flatten(dynamic)
        x64 = jax.config.jax_enable_x64
        form = self._last
        if form is not None and form.x64 == x64 and form.treedef == treedef:
            gathered = form.gather(leaves)
            if gathered is not None:
                return form, *gathered
        key = treedef, x64, specs_of(leaves)
        form = self._known.get(key)
        if form is None:
            form = self._known.setdefault(key, Form(treedef, leaves, x64))
        self._last = form
        gathered = form.gather(leaves)
        assert gathered is not None
        return form, *gathered

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._last = None


class Statics(NamedTuple):
    """Which arguments of a function are static: they go around the words.

    Attributes:
      positions: of arguments.
      names: of keywords.
    """

    positions: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    def apart(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
        """((args, kwargs) that are not static, those that are, what to put them together by)."""
        if not self.positions and not self.names:
            return (args, kwargs), (), (len(args), ())
        named = tuple(name for name in self.names if name in kwargs)
        statics = [x for i, x in enumerate(args) if i in self.positions]
        statics += [kwargs[name] for name in named]
        dynamic = (
            tuple(x for i, x in enumerate(args) if i not in self.positions),
            {name: x for name, x in kwargs.items() if name not in named},
        )
        return dynamic, tuple(statics), (len(args), named)

    def together(
        self, dynamic: Any, statics: Sequence[Any], where: tuple[Any, ...]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they were before `apart`."""
        count, named = where
        args, kwargs = dynamic
        values, left = iter(args), iter(statics)
        together = [next(left if i in self.positions else values) for i in range(count)]
        return together, {**kwargs, **dict(zip(named, left, strict=True))}


def specs_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """(shape, dtype) of each leaf that is a numpy array, None for others."""
    return tuple((x.shape, x.dtype) if type(x) is np.ndarray else None for x in leaves)


def _words(parts: list[Any]) -> np.ndarray:
    """The bytes of these arrays, which have to be contiguous or are copied once more."""
    try:
        joined = b"".join(parts)
    except TypeError:    # numpy exports no plain buffer of an array that is not C-contiguous
        joined = b"".join(part if type(part) is bytes else part.tobytes() for part in parts)
    return np.frombuffer(joined, np.uint32)


def _target(array: np.ndarray) -> Any:
    """The dtype that JAX gives such an array, or None for one that is left to JAX."""
    dtype = array.dtype
    if array.nbytes > LARGEST or not dtype.isnative:
        return None
    if dtype == _BFLOAT16:
        return _BFLOAT16
    if dtype.kind not in "biufc" or dtype.itemsize > 16:
        return None
    target = jax.dtypes.canonicalize_dtype(dtype)
    return target if target.itemsize in (1, 2, 4, 8, 16) else None


def _as_array(words: Any, item: Item) -> Any:
    """The array of these words: the same bits."""
    dtype, size = item.target, int(np.prod(item.shape))
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        pairs = lax.reshape(_cast(words, part, 2 * size), (size, 2))
        return lax.reshape(lax.complex(pairs[:, 0], pairs[:, 1]), item.shape)
    if dtype == np.bool_:
        return lax.reshape(_cast(words, np.dtype(np.uint8), size), item.shape) != 0
    return lax.reshape(_cast(words, dtype, size), item.shape)


def _cast(words: Any, dtype: Any, size: int) -> Any:
    """The first `size` elements of another dtype that these words are."""
    if dtype.itemsize > WORD:
        words = lax.reshape(words, (size, dtype.itemsize // WORD))
    elements = lax.bitcast_convert_type(words, dtype)
    flat = lax.reshape(elements, (elements.size,))
    return flat if flat.size == size else lax.slice(flat, (0,), (size,))
