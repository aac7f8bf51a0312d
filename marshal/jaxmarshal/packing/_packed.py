"""What stands for a tree whose small leaves are packed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey, SequenceKey, keystr

from jaxmarshal._core.entries.carried import Carried, carried_of
from jaxmarshal.packing import _move
from jaxmarshal.packing._forms import parts_in, piece_of
from jaxmarshal.packing._groups import LEAST, THRESHOLD, is_key
from jaxmarshal.packing._plan import Plan, Slot, plan_for

_ARRAYS = (jax.Array, np.ndarray)


class Packed(Carried):
    """A tree whose small leaves are in a few flat buffers; made by `jaxmarshal.pack`.

    It is a pytree itself: its children are the buffers and the leaves that were left alone, so it
    goes through `jit`, `grad`, `vmap`, `scan`, `device_put` and `jax.tree.map` as any tree does.
    Functions that are mapped over it see buffers: right for what is elementwise, wrong for what
    looks at a leaf as a whole.

    `packed["params"]["w"]` and `packed.params` read a part of the tree: a leaf, or what stands for
    a subtree and has `unpack()` too. Names that Packed has itself are reached by `unpack()` only.
    """

    __slots__ = ()

    _children: tuple[Any, ...] | None    # None once they were donated
    _plan: Plan

    def __init__(self) -> None:
        raise TypeError("Packed is made by jaxmarshal.pack(tree)")

    def unpack(self) -> Any:
        """The tree, with leaves of the same bits, dtypes, shapes, weak types and placement.

        Buffers that a transformation has given further axes give leaves that have them too.

        Raises:
          ValueError: where a buffer no longer has the elements that its leaves need.
          RuntimeError: where the buffers were donated.
        """
        plan, count = self._plan, len(self._plan.groups)
        children = _checked(self)
        parts = _move.separated(children[:count], plan.pieces)
        return plan.treedef.unflatten(plan.leaves(parts, children[count:]))

    def like(self, tree: Any) -> Packed:
        """Pack a tree of the same structure and shapes in the same way, whatever its size.

        In a function that takes and returns a `Packed`, such as the body of a `scan`, its result
        has then the structure of its argument. Dtypes may differ, but are one in each buffer. Numpy
        arrays, such as a checkpoint gives back, become a buffer where the one of this Packed is.

        Raises:
          TypeError: where the structure differs.
          ValueError: where the shape of a leaf or the dtypes of a buffer's leaves differ.
        """
        plan = self._plan
        leaves, treedef = jax.tree.flatten(tree)
        if treedef != plan.treedef:
            raise TypeError(f"like: expected a tree {plan.treedef}, not {treedef}")
        groups = [[leaves[i] for i in group] for group in plan.groups]
        for group, pieces in zip(groups, plan.pieces, strict=True):
            for leaf, piece in zip(group, pieces, strict=True):
                if not isinstance(leaf, _ARRAYS) or piece_of(leaf)[:2] != piece[:2]:
                    raise ValueError(f"like: expected an array of {piece.shape}, not {leaf!r}")
            if len({leaf.dtype for leaf in group if not is_key(leaf)}) > 1:
                raise ValueError("like: leaves that share a buffer have several dtypes")
        buffers = _move.rejoined(self._children or (), groups, parts_in(plan.pieces))
        return packed_of(plan.children(leaves, buffers), plan)

    def __getitem__(self, key: Any) -> Any:
        return _look(self, self._plan.slots()[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"Packed has no attribute {name!r}")
        return _attribute(self, self._plan.slots(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._plan, children_of(self))

    def __repr__(self) -> str:
        count, children = len(self._plan.groups), self._children
        leaves = f"{self._plan.treedef.num_leaves} leaves"
        if children is None:
            return f"Packed({leaves}: consumed)"
        size = sum(int(getattr(child, "nbytes", 0)) for child in children)
        counts = (f"{count} buffers", f"{len(children) - count} arrays")
        return f"Packed({leaves}, {_bytes(size)}: {counts[0]} + {counts[1]})"


def packed_of(children: tuple[Any, ...], plan: Plan, key: Any = None) -> Packed:
    """A `Packed` of these children."""
    packed: Packed = carried_of(Packed, children, plan, key)
    return packed


def children_of(packed: Packed) -> tuple[Any, ...]:
    children = packed._children
    if children is None:
        raise RuntimeError(
            "this Packed was donated to a call of a carry, and its arrays are gone: go on with "
            "the one that the call returned, or make the carry with donate=False"
        )
    return children


def _checked(packed: Packed) -> tuple[Any, ...]:
    """The children, if the buffers are as long as their pieces."""
    children = children_of(packed)
    for buffer, pieces in zip(children, packed._plan.pieces, strict=False):
        needed = sum(piece.size for piece in pieces)
        shape = getattr(buffer, "shape", ())
        parts = pieces[0].parts
        if not shape or shape[-1] != needed or (parts > 1 and shape[-2:-1] != (parts,)):
            raise ValueError(
                f"a buffer of a Packed has the shape {shape}, and its leaves need (..., {needed}): "
                "what is mapped over a Packed has to be elementwise"
            )
    return children


def _bytes(size: int) -> str:
    """1234567 → '1.2 MB'."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


# --- As a pytree ----------------------------------------------------------------------------------


def _flatten(packed: Packed) -> tuple[tuple[Any, ...], Plan]:
    return children_of(packed), packed._plan


def _flatten_with_keys(packed: Packed) -> tuple[list[tuple[Any, Any]], Plan]:
    plan = packed._plan
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(plan.slots())[0]]
    keys: list[Any] = [SequenceKey(i) for i in range(len(plan.groups))]
    keys += [GetAttrKey(keystr(paths[i])) for i in plan.loose]
    return list(zip(keys, children_of(packed), strict=True)), plan


def _unflatten(plan: Plan, children: Any) -> Packed:
    _flax_if_imported()
    return packed_of(tuple(children), plan)


def _restore(plan: Plan, children: Any) -> Packed:
    _flax_if_imported()
    return packed_of(children, plan)


_registered: list[Any] = []    # the module of flax that knows Packed


def _flax_if_imported() -> None:
    """Let flax serialize a Packed as the tree that it stands for, once a program has flax."""
    serialization = sys.modules.get("flax.serialization")
    if serialization is None or serialization in _registered:
        return
    register = getattr(serialization, "register_serialization_state", None)
    if register is None:    # it is being imported
        return
    _registered[:] = [serialization]

    def to_state(packed: Packed) -> Any:
        return serialization.to_state_dict(packed.unpack())

    def from_state(packed: Packed, state: Any) -> Packed:
        return packed.like(serialization.from_state_dict(packed.unpack(), state))

    register(Packed, to_state, from_state, override=True)


jax.tree_util.register_pytree_with_keys(Packed, _flatten_with_keys, _unflatten, _flatten)


def pack(tree: Any, *, threshold: int = THRESHOLD, least: int = LEAST) -> Packed:
    """Put the small leaves of a tree into one flat buffer for each kind of them.

    A kind is a dtype, weak type, and placement: one device, copies on several, or parts along the
    first axis, committed or not, in the default memory. Typed PRNG keys are packed by their words.
    Loose, the objects they are, stay: large leaves, arrays spread otherwise or with a data layout
    of their own, host data (numpy arrays, Python numbers), and kinds of which there are few. Leaves
    that are no data, such as functions, become part of the structure. A leaf that occurs twice is
    packed twice.

    Args:
      tree: any pytree. A `Packed` is returned as it is.
      threshold: bytes of the largest leaf that is packed.
      least: leaves of a kind that there have to be; fewer are left alone.

    Returns:
      A `Packed`. It shares the arrays that were left alone with the tree; the tree stays valid.
    """
    _flax_if_imported()
    if type(tree) is Packed:
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    plan = plan_for(treedef, leaves, threshold, least)
    arrays = [[leaves[i] for i in group] for group in plan.groups]
    buffers = _move.joined(arrays, parts_in(plan.pieces)) if arrays else ()
    return packed_of(plan.children(leaves, buffers), plan)


# --- Reading a part -------------------------------------------------------------------------------


class Part:
    """A subtree of a `Packed`: read on by index or attribute, or unpacked."""

    __slots__ = ("_packed", "_slots")

    def __init__(self, packed: Packed, slots: Any) -> None:
        self._packed = packed
        self._slots = slots

    def unpack(self) -> Any:
        """The subtree. Nothing else is unpacked."""
        return jax.tree.map(lambda slot: _leaf(self._packed, slot), self._slots)

    def __getitem__(self, key: Any) -> Any:
        return _look(self._packed, self._slots[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a part of a Packed has no attribute {name!r}")
        return _attribute(self._packed, self._slots, name)

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._slots, Mapping):
            return iter(self._slots)
        return (_look(self._packed, node) for node in self._slots)

    def __repr__(self) -> str:
        return f"<{len(jax.tree.leaves(self._slots))} leaves of {self._packed!r}>"


def _leaf(packed: Packed, slot: Any) -> Any:
    """The leaf that a slot stands for."""
    if type(slot) is not Slot:
        return slot
    child, start, piece = packed._plan.where(slot.position)
    found = _checked(packed)[child]
    return found if piece is None else _move.cut(found, start, piece)


def _look(packed: Packed, node: Any) -> Any:
    """What is at a place of the tree: a leaf, a part, or an object without leaves."""
    if type(node) is Slot:
        return _leaf(packed, node)
    has_leaves = any(type(leaf) is Slot for leaf in jax.tree.leaves(node))
    return Part(packed, node) if has_leaves else node


def _attribute(packed: Packed, node: Any, name: str) -> Any:
    found = getattr(node, name)
    if getattr(found, "__self__", None) is node:
        raise AttributeError(f"{name!r} is a method of the packed tree: call it on unpack()")
    return _look(packed, found)
