"""Where each leaf of a tree is: in which buffer, loose, or static.

A plan is what a `Packed` has besides its arrays: its auxiliary data as a pytree, which JAX compares
in every call of a compiled function. There is one plan for all trees that are packed alike, so
that being equal is being the same object, and comparing costs nothing. It lives as long as some
`Packed`, treedef or carry has it, and never owns an array that is packed.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from jaxmarshal.packing._forms import Piece, Pieces, piece_of
from jaxmarshal.packing._groups import groups_of, is_static, repeats_of


class Slot:
    """Stands for a leaf in a tree of positions."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


class Plan:
    """How trees of one structure are packed.

    Attributes:
      treedef: the structure of the tree.
      groups: positions of the leaves in each buffer.
      pieces: what each buffer is made of, in the same order.
      loose: positions of the leaves that are children themselves, after the buffers.
      static: leaves that are no data, by position. They have to be equal where trees are.
    """

    __slots__ = ("__weakref__", "_where", "groups", "loose", "pieces", "static", "treedef")

    def __init__(
        self,
        treedef: PyTreeDef,
        groups: tuple[tuple[int, ...], ...],
        pieces: Pieces,
        static: dict[int, Any],
    ) -> None:
        self.treedef = treedef
        self.groups = groups
        self.pieces = pieces
        self.static = static
        taken = {*itertools.chain.from_iterable(groups), *static}
        self.loose = tuple(i for i in range(treedef.num_leaves) if i not in taken)
        self._where: dict[int, tuple[int, int, Piece | None]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_slots, (self.slots(), self.groups, self.pieces)

    def children(self, leaves: Sequence[Any], buffers: Iterable[Any]) -> tuple[Any, ...]:
        """The buffers, and then the loose ones of the leaves."""
        return (*buffers, *(leaves[i] for i in self.loose))

    def leaves(self, parts: Iterable[Iterable[Any]], loose: Iterable[Any]) -> list[Any]:
        """All leaves in order, from those of each buffer and the loose ones."""
        leaves: list[Any] = [None] * self.treedef.num_leaves
        for position, leaf in self.static.items():
            leaves[position] = leaf
        for positions, part in zip(self.groups, parts, strict=True):
            for position, leaf in zip(positions, part, strict=True):
                leaves[position] = leaf
        for position, leaf in zip(self.loose, loose, strict=True):
            leaves[position] = leaf
        return leaves

    def slots(self) -> Any:
        """The tree with a `Slot` for each leaf that is data."""
        count = self.treedef.num_leaves
        return self.treedef.unflatten(
            [self.static[i] if i in self.static else Slot(i) for i in range(count)]
        )

    def where(self, position: int) -> tuple[int, int, Piece | None]:
        """(child, start in it, piece of it or None if it is the leaf itself)."""
        if self._where is None:
            found: dict[int, tuple[int, int, Piece | None]] = {}
            for child, (positions, pieces) in enumerate(
                zip(self.groups, self.pieces, strict=True)
            ):
                start = 0
                for where, piece in zip(positions, pieces, strict=True):
                    found[where] = child, start, piece
                    start += piece.size
            for child, where in enumerate(self.loose, len(self.groups)):
                found[where] = child, 0, None
            self._where = found
        return self._where[position]


class _Alike:
    """Finds the plan for a structure; equal to another one where their plans are the same."""

    __slots__ = ("hash", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = weakref.ref(plan)
        self.hash = hash((plan.treedef, plan.groups, plan.pieces, tuple(plan.static)))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        mine, theirs = self.plan(), other.plan() if isinstance(other, _Alike) else None
        return (
            mine is not None
            and theirs is not None
            and (mine.groups, mine.pieces) == (theirs.groups, theirs.pieces)
            and mine.static.keys() == theirs.static.keys()
            and all(same_static(mine.static[i], theirs.static[i]) for i in mine.static)
            and mine.treedef == theirs.treedef
        )


_plans: weakref.WeakValueDictionary[_Alike, Plan] = weakref.WeakValueDictionary()
_lock = threading.RLock()    # comparing may run code of users, which may pack


def same_static(a: Any, b: Any) -> bool:
    """Are two leaves that are no data the same?"""
    return a is b or (type(a) is type(b) and bool(a == b))


def plan_of(
    treedef: PyTreeDef, groups: Iterable[Iterable[int]], pieces: Pieces, static: dict[int, Any]
) -> Plan:
    """The one plan for this."""
    plan = Plan(treedef, tuple(map(tuple, groups)), pieces, static)
    with _lock:
        return _plans.setdefault(_Alike(plan), plan)


def plan_for(treedef: PyTreeDef, leaves: Sequence[Any], threshold: int, least: int) -> Plan:
    """The plan by which these leaves are packed: see `groups_of`."""
    repeats = repeats_of(treedef)
    groups = groups_of(leaves, repeats, threshold, least)
    pieces = tuple(tuple(piece_of(leaves[i], repeats[i]) for i in group) for group in groups)
    static = {i: leaf for i, leaf in enumerate(leaves) if is_static(leaf)}
    return plan_of(treedef, groups, pieces, static)


def _from_slots(slots: Any, groups: Any, pieces: Pieces) -> Plan:
    leaves, treedef = jax.tree.flatten(slots)
    static = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Slot)}
    return plan_of(treedef, groups, pieces, static)
