"""Which leaves travel together.

Leaves of one group share dtype, weak type and placement, so that a buffer of them has all three. A
leaf that is in no group is *loose*: it stays the object it is. Loose is whatever is large, what is
no `jax.Array`, and what one flat buffer on the same devices could not stand for.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding
from jax.tree_util import PyTreeDef

#: Bytes of the largest leaf that is packed, unless a call says otherwise.
THRESHOLD = 4096
#: Leaves of the smallest group: fewer are passed as fast alone.
LEAST = 4
#: Leaves of the smallest subtree that is looked for elsewhere in the tree.
LEAST_REPEATED = 9

HOST_TYPES = (bool, int, float, complex, np.ndarray, np.generic)


def is_key(x: Any) -> bool:
    """Is it an array of typed PRNG keys?"""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_static(leaf: Any) -> bool:
    """Is it something that no compiled function could take, such as a function of a layer?"""
    if isinstance(leaf, (jax.Array, *HOST_TYPES)):
        return False
    return isinstance(leaf, type) or not (hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__"))


def groups_of(
    leaves: Sequence[Any], repeats: Sequence[int], threshold: int, least: int
) -> list[list[int]]:
    """Positions of the leaves of each group; groups in the order in which they are met.

    Args:
      leaves: of a tree.
      repeats: what `repeats_of` gives for the tree.
      threshold: a leaf of more bytes is loose.
      least: so many leaves at least make a group.
    """
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    groups: dict[Hashable, list[int]] = {}
    for position, leaf in enumerate(leaves):
        key = _key(leaf, threshold, traced) if isinstance(leaf, jax.Array) else None
        if key is not None:
            groups.setdefault(key, []).append(position)
    return [
        _by_shape(group, leaves, repeats) for group in groups.values()
        if len(group) >= least and (traced or _has_shards([leaves[i] for i in group]))
    ]


def _has_shards(arrays: list[jax.Array]) -> bool:
    """Has XLA anything to spread? Of no elements at all it may make other shards."""
    return any(x.size for x in arrays) or spread_spec(arrays[0].sharding) is None


def _by_shape(group: list[int], leaves: Sequence[Any], repeats: Sequence[int]) -> list[int]:
    """The same with leaves of one shape in one repeat side by side: see `_forms`."""
    shapes: dict[Any, list[int]] = {}
    for position in group:
        leaf = leaves[position]
        shapes.setdefault((repeats[position], leaf.shape, leaf.dtype), []).append(position)
    return [position for same in shapes.values() for position in same]


def repeats_of(treedef: PyTreeDef) -> list[int]:
    """For each leaf the number of the repeated subtree that it is in, or 0.

    A training state has its parameters once, and an optimizer's moments in the same form. What a
    step computes for a leaf needs the leaf at the same place of each of them, and XLA compiles one
    kernel for many leaves if these lie alike in the buffer: so each of them begins anew.

    Forms are types of containers and their numbers of children; nothing of the user's is asked.
    A tree may be deeper than Python's stack.
    """
    nodes = [treedef]
    children: list[range] = []    # of each node, as places in `nodes`
    for node in nodes:
        below = node.children()
        children.append(range(len(nodes), len(nodes) + len(below)))
        nodes += below
    numbers: dict[Hashable, int] = {}
    forms = [0] * len(nodes)
    for i in reversed(range(len(nodes))):
        data = nodes[i].node_data()
        form = nodes[i].num_leaves, data and data[0], tuple(forms[child] for child in children[i])
        forms[i] = numbers.setdefault(form, len(numbers))
    seen = collections.Counter(forms)
    repeats: list[int] = []
    found = 0
    waiting = [0]
    while waiting:
        i = waiting.pop()
        count = nodes[i].num_leaves
        if count >= LEAST_REPEATED and seen[forms[i]] == 1:
            waiting += reversed(children[i])
            continue
        found += count >= LEAST_REPEATED
        repeats += [found if count >= LEAST_REPEATED else 0] * count
    return repeats


def _key(array: jax.Array, threshold: int, traced: bool) -> Hashable:
    """What leaves of a group have in common, or None for a loose one."""
    if array.nbytes > threshold:
        return None
    spread = not traced and spread_spec(array.sharding) is not None
    if is_key(array):
        if spread:
            return None
        dtype: Any = _key_dtype(array.dtype)
    elif array.dtype == bool or _has_bits(array.dtype):
        dtype = array.dtype
    else:
        return None
    place = _traced_place(array) if traced else _place(array)
    return None if place is None else (dtype, jax.typeof(array).weak_type, place)


@functools.lru_cache(256)
def _has_bits(dtype: Any) -> bool:
    """Is it a dtype of numbers of at least 4 bits? XLA ends the process over buffers of int2."""
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits) >= 4
    return jnp.issubdtype(dtype, jnp.number)


@functools.lru_cache(256)
def _key_dtype(dtype: Any) -> Any:
    """The dtype of the words that keys are made of."""
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).dtype


def _place(array: jax.Array) -> Hashable:
    """(sharding of a buffer beside it, committed or not, its own spec if spread), or None."""
    if array.is_deleted():
        return None
    sharding = flat_sharding(array.sharding)
    if sharding is None or not (array.committed or isinstance(sharding, SingleDeviceSharding)):
        return None
    if array.ndim > 1 and not is_key(array):
        order = array.format.layout
        if order is None or order.major_to_minor != tuple(range(array.ndim)):
            return None
    return sharding, array.committed, spread_spec(array.sharding)


@functools.lru_cache(1024)
def flat_sharding(sharding: Any) -> Any:
    """The sharding of a buffer with the same placement: one device, copies on several, or parts.

    A buffer of leaves that are spread along their first axis has one axis more, a row for each
    part: its sharding is its own.

    None where that cannot be said: data spread otherwise, other memory than the default one.
    """
    if sharding.memory_kind not in (None, _default_memory(sharding)):
        return None
    if isinstance(sharding, SingleDeviceSharding):
        return sharding
    if not isinstance(sharding, NamedSharding):
        return None
    if not any(sharding.spec):
        return NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=sharding.memory_kind)
    spec = spread_spec(sharding)
    if spec is None:
        return None
    rows = PartitionSpec(spec[0], None)
    return NamedSharding(sharding.mesh, rows, memory_kind=sharding.memory_kind)


def _default_memory(sharding: Any) -> str:
    """The kind of the default memory there.

    A device of this process is asked, for one of another process may not answer; what it says is
    the same in each of them, so that they all pack the same leaves.
    """
    here = sharding.addressable_devices
    if not here:
        here = next(iter(sharding.device_set)).client.local_devices()
    kind: str = next(iter(here)).default_memory().kind
    return kind


def spread_spec(sharding: Any) -> Any:
    """The spec of data that is spread along the first axis and no other one, else None.

    Where the axes of a mesh are part of types, reshaping would have to say what becomes of them.
    """
    if not isinstance(sharding, NamedSharding) or not sharding.spec:
        return None
    first, *others = sharding.spec
    types = getattr(sharding.mesh, "axis_types", ())
    if not first or any(others) or any(kind != AxisType.Auto for kind in types):
        return None
    return sharding.spec


def parts_of(sharding: NamedSharding) -> int:
    """Over how many parts data of this `spread_spec` are spread."""
    names = sharding.spec[0]
    names = names if isinstance(names, tuple) else (names,)
    return math.prod(sharding.mesh.shape[name] for name in names)


def _traced_place(array: Any) -> Hashable:
    """The same within a transformation, where the type is all that is known."""
    aval = jax.typeof(array)
    sharding = aval.sharding
    if any(sharding.spec):
        return None
    return (
        sharding.mesh, getattr(aval, "memory_space", None), getattr(aval, "vma", None),
        getattr(aval, "manual_axis_type", None),
    )  # fmt: skip
