"""Plans for live modules, made of what the plans of a jitted function know.

A plan of the function that nnx jits has, for each module among the arguments, the description that
nnx made of it (a `GraphDef`), and for the results the description of what nnx is to merge into
the live objects. Both are read here, side by side. Where what is merged is what was there before,
apart from the values, a plan can do it without nnx; anything else is refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, GetSetDescriptorType
from typing import Any

import jax
from flax.nnx import graphlib, pytreelib, statelib, variablelib
from flax.typing import HashableMapping

from jaxmarshal._core.entries import nnx_jit
from jaxmarshal._core.entries.nnx_jit import Kind, Part, Write
from jaxmarshal._jax import private

_KINDS = {
    list: Kind.LIST,
    tuple: Kind.TUPLE,
    dict: Kind.DICT,
    statelib.State: Kind.STATE,
    type(None): Kind.NOTHING,
}

#: What nnx does with variables; a type that does any of it in another way is refused.
_OF_VARIABLES = (
    "__getattribute__", "__setattr__", "_can_update", "_check_can_update", "_raw_value",
    "_trace_state", "_var_metadata", "get_metadata", "get_raw_value", "hijax", "ref",
    "set_raw_value", "var_type",
)
_PLAIN = (str, int, bool, float, bytes, type(None))


class Refused(Exception):
    """Only nnx can make such calls."""


def _check(condition: bool) -> None:
    if not condition:
        raise Refused


def _is_ordinary_variable(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, variablelib.Variable) and all(
        inspect.getattr_static(cls, name) is inspect.getattr_static(variablelib.Variable, name)
        for name in _OF_VARIABLES
    )


def _reads_attributes_plainly(cls: type) -> bool:
    """Is reading an attribute Python's own way, or one of flax's, which add a message at most?"""
    found = inspect.getattr_static(cls, "__getattribute__")
    if found is object.__getattribute__:
        return True
    return type(found) is FunctionType and found.__module__.startswith("flax.nnx.")


def _is_ordinary_node(cls: Any) -> bool:
    """Does nnx take objects of this class apart, and fill them, by their attributes alone?"""
    implementation = graphlib.GRAPH_REGISTRY.get(cls)
    own = vars(pytreelib.Pytree)
    return (
        type(implementation) is graphlib.GraphNodeImpl
        and implementation.flatten is own["_graph_node_flatten"]
        and implementation.clear is own["_graph_node_clear"]
        and implementation.init is own["_graph_node_init"]
        and type(inspect.getattr_static(cls, "__dict__", None)) is GetSetDescriptorType
        and _reads_attributes_plainly(cls)
    )


def _is_set_by_class(cls: type, name: str) -> bool:
    """Does setting this attribute call something of the class's?"""
    return hasattr(type(inspect.getattr_static(cls, name, None)), "__set__")


def is_plain_namedtuple(cls: Any) -> bool:
    """Is it a namedtuple without a constructor of its own, and no registered node?"""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and hasattr(cls, "_fields")
        and cls.__bases__[0] is tuple
        and "__init__" not in vars(cls)
        and type(vars(cls).get("__new__")) is staticmethod
        and cls not in graphlib.JAX_PYTREE_REGISTRY
    )


def _one(leaf: Any) -> int:
    """The number of a leaf that is one result."""
    _check(type(leaf) is int)
    return int(leaf)


def _part_of(leaf: Any) -> Part:
    """The value of a new variable: a result, or a tuple of results, as `Module.sow` makes it."""
    if type(leaf) is tuple:
        return Part(Kind.TUPLE, parts=tuple(map(_part_of, leaf)))
    return Part(Kind.LEAF, leaf=leaf)


class Reader:
    """Reads a description.

    Attributes:
      numbers: of nodes by the index that descriptions know them by; shared by the descriptions of
        all arguments, or of all results.
      is_result: whether modules have to be those of arguments.
      known: of a result, how many nodes and variables the arguments have.
    """

    def __init__(self, graphdef: Any, leaves: Iterator[Any], numbers: dict[int, int],
                 is_result: bool, known: int = 0) -> None:
        self.nodes = iter(graphdef.nodes)
        self.attributes = iter(graphdef.attributes)
        self.leaves = leaves
        self.numbers = numbers
        self.is_result = is_result
        self.known = known

    def read(self) -> Part:
        """The graph as a part."""
        part = self._node(next(self.nodes))
        _check(next(self.nodes, None) is None and next(self.attributes, None) is None)
        return part

    def _number(self, node: Any) -> int:
        """The number of a node that is met for the first time."""
        if self.is_result:
            number = node.outer_index
            _check(number is not None)    # else it is new
        else:
            number = len(self.numbers)
            _check(node.index == number and node.outer_index is None)
        _check(node.index not in self.numbers)
        self.numbers[node.index] = number
        return int(number)

    def _new_number(self, node: Any) -> int:
        """The number of a variable that the function has made."""
        number = self.known + sum(number >= self.known for number in self.numbers.values())
        _check(node.index not in self.numbers)
        self.numbers[node.index] = number
        return number

    def _node(self, node: Any) -> Part:
        if type(node) is graphlib.NodeRef:
            _check(node.index in self.numbers)
            return Part(Kind.SAME, number=self.numbers[node.index])
        if type(node) is graphlib.VariableDef:
            return self._variable(node)
        _check(type(node) is graphlib.NodeDef)
        if node.type is graphlib.GenericPytree:
            return self._generic(node)
        if node.type in _KINDS:
            keys, parts = self._children(node)
            if node.type not in (dict, statelib.State):
                keys = ()
            _check(all(type(key) in (str, int) for key in keys))
            cls = statelib.State if node.type is statelib.State else None
            return Part(_KINDS[node.type], cls, -1, keys, parts)
        _check(_is_ordinary_node(node.type))
        number = self._number(node)
        keys, parts = self._children(node)
        _check(all(type(key) in (str, int) for key in keys))
        keys = tuple(sys.intern(str(key)) for key in keys)
        _check(not any(_is_set_by_class(node.type, key) for key in keys))
        return Part(Kind.NODE, node.type, number, keys, parts)

    def _variable(self, node: Any) -> Part:
        metadata = node.metadata._mapping
        _check(node.array_refdef is None and _is_ordinary_variable(node.type))
        _check(metadata.get("hijax") is False and metadata.get("ref") is False)
        _check(all(type(name) is str for name in metadata))
        items = tuple(item for pair in metadata.items() for item in pair)
        leaf = next(self.leaves)
        if self.is_result and node.outer_index is None:
            number, value = self._new_number(node), (_part_of(leaf),)
            return Part(Kind.NEW, node.type, number, parts=value, value=items)
        return Part(
            Kind.VARIABLE, node.type, self._number(node), leaf=_one(leaf), value=items
        )

    def _generic(self, node: Any) -> Part:
        """What JAX's registry takes apart."""
        cls, data = node.metadata.treedef.node_data()
        keys, parts = self._children(node)
        if cls is pytreelib.PytreeState:
            _check(not parts and all(flag in (True, False) for flag in data))
            return Part(Kind.STATUS, cls, value=data)
        _check(is_plain_namedtuple(cls) and len(parts) == len(cls._fields))
        places = tuple(node.metadata.key_index[key] for key in keys)
        return Part(Kind.NAMED, cls, -1, places, parts)

    def _children(self, node: Any) -> tuple[tuple[Any, ...], tuple[Part, ...]]:
        keys, parts = [], []
        for _ in range(node.num_attributes):
            key, attribute = next(self.attributes)
            keys.append(key)
            if type(attribute) is graphlib.Static:
                parts.append(Part(Kind.STATIC, value=attribute.value))
            elif type(attribute) is graphlib.LeafAttr:
                parts.append(Part(Kind.LEAF, leaf=_one(next(self.leaves))))
            else:
                _check(type(attribute) is graphlib.NodeAttr)
                parts.append(self._node(next(self.nodes)))
        return tuple(keys), tuple(parts)


def _are_equal_mappings(one: Any, other: Any) -> bool:
    """Are both what nnx keeps of a module's attributes, with equal items of the same types?"""
    if type(one) is not HashableMapping or type(other) is not HashableMapping:
        return False
    plain = all(type(name) is str and _is_plain(value) for name, value in one.items())
    return plain and {name: (type(value), value) for name, value in one.items()} == {
        name: (type(value), value) for name, value in other.items()
    }


def _compare(before: Part, after: Part, writes: list[Write]) -> None:
    """Is what is merged what was there? Adds what else nnx writes."""
    _check(before.kind == after.kind and before.cls is after.cls and before.keys == after.keys)
    _check(before.number == after.number and len(before.parts) == len(after.parts))
    if before.kind == Kind.STATIC:
        _check(before.value is after.value or _are_equal_mappings(before.value, after.value))
    elif before.kind == Kind.STATUS:
        _check(before.value == after.value)
    elif before.kind == Kind.VARIABLE:
        writes.append(Write(after.number, None, after))
    for i, (old, new) in enumerate(zip(before.parts, after.parts, strict=True)):
        _compare(old, new, writes)
        made_anew = old.value is not new.value if new.kind == Kind.STATIC else (
            new.kind not in (Kind.NODE, Kind.VARIABLE, Kind.SAME, Kind.NOTHING)
        )
        if before.kind == Kind.NODE and made_anew:
            writes.append(Write(after.number, after.keys[i], new))


def _only_holds(part: Part) -> bool:
    """Is there nothing in a part of a result that nnx would write to?"""
    return part.kind not in (Kind.NODE, Kind.VARIABLE) and all(map(_only_holds, part.parts))


def _is_made_by_flax(treedef: Any) -> bool:
    """Are all nodes of a tree builtin containers, namedtuples and `nnx.State`?"""
    node = treedef.node_data()
    known = node is None or node[0] in _KINDS or is_plain_namedtuple(node[0])
    return known and all(map(_is_made_by_flax, treedef.children()))


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _is_static_as_it_is(value: Any) -> bool:
    """Does nnx hand on such a static argument unchanged, or a tuple as an equal one?"""
    cls = type(value)
    if isinstance(value, tuple):
        return _is_plain(value)
    return not (
        isinstance(value, variablelib.Variable)
        or cls in graphlib.GRAPH_REGISTRY
        or (cls in graphlib.JAX_PYTREE_REGISTRY and value is not None)
    )


def maker(node_states: type) -> Callable[[Any], Any]:
    """Makes plans for live arguments; `node_states` is nnx's class of split arguments."""

    def is_split(obj: Any) -> bool:
        return type(obj) is node_states

    def number_of(leaf: Any) -> Any:
        """The number of a leaf, or a tuple of numbers."""
        if type(leaf) is tuple:
            return tuple(map(number_of, leaf))
        if type(leaf) is private.PRNGKeyArray:
            return int(leaf._base_array.number)
        _check(type(leaf) is int)
        return int(leaf)

    def leaves_of(split: Any) -> list[Any]:
        _check(is_split(split) and split.metadata is None and len(split.states) == 1)
        (leaves,) = split.states
        _check(type(leaves) is list)
        return [number_of(leaf) for leaf in leaves]

    def read(split: Any, numbers: dict[int, int], is_result: bool, known: int = 0) -> Part:
        leaves = iter(leaves_of(split))
        part = Reader(split._graphdef, leaves, numbers, is_result, known).read()
        _check(next(leaves, None) is None)
        return part

    def source_of(leaf: Any, numbers: dict[int, int], known: int) -> int | Part:
        if not is_split(leaf):
            return number_of(leaf)
        part = read(leaf, numbers, True, known)
        _check(_only_holds(part))
        return -1 - part.number if part.kind == Kind.SAME and part.number < known else part

    def make(inner: Any) -> Any:
        _check(all(map(_is_static_as_it_is, nnx_jit.static_values(inner))))
        _check(all(map(is_plain_namedtuple, nnx_jit.named_types(inner))))
        numbers: dict[int, int] = {}
        before = []
        for treedef in nnx_jit.descriptions(inner):
            split = treedef.unflatten(range(treedef.num_leaves))
            _check(is_split(split))
            before.append(read(split, numbers, False))
        known = len(numbers)
        args, kwargs, out = nnx_jit.numbered_results(inner)
        updated = jax.tree.leaves((args, kwargs), is_leaf=is_split)
        _check(len(updated) == len(before))
        numbers = {}
        first = 0
        writes: list[Write] = []
        for part, split in zip(before, updated, strict=True):
            leaves = leaves_of(split)
            _check(leaves == list(range(first, first + len(leaves))))
            first += len(leaves)
            _compare(part, read(split, numbers, True, known), writes)
        found, returned = jax.tree.flatten(out, is_leaf=is_split)
        sources = tuple(source_of(leaf, numbers, known) for leaf in found)
        plain = sources == tuple(range(first, first + len(sources)))
        keys = [
            (leaf._base_array.number, leaf._base_array.impl)
            for leaf in jax.tree.leaves((args, kwargs, out))
            if type(leaf) is private.PRNGKeyArray
        ]
        return nnx_jit.make_graph_plan(
            inner, before, writes, keys, returned, _is_made_by_flax(returned), first,
            None if plain else sources,
        )

    def make_or_refuse(inner: Any) -> Any:
        try:
            return make(inner)
        except Refused:
            return None

    return make_or_refuse
