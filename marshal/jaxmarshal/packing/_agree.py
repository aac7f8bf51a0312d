"""A carry keeps its types: what a step returns has to be what it was given, leaf by leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef, keystr

from jaxmarshal.packing._plan import Plan, same_static

#: How many leaves an error names.
MOST = 5


def agreed(plan: Plan, given: Sequence[Any], out: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Take apart what a step returned: a carry, or a pair of a carry and something else.

    A finite structure is never the first part of a pair of that same structure, so that a carry
    alone and a pair cannot be mistaken for each other.

    Args:
      plan: of the carry.
      given: the leaves that the step was given.
      out: what it returned.

    Returns:
      The leaves of the carry, and a tuple with the other part if there is one.

    Raises:
      TypeError: where structure, shape, dtype or weak type of the carry has changed.
    """
    leaves, treedef = jax.tree.flatten(out)
    rest: tuple[Any, ...] = ()
    if treedef != plan.treedef:
        if not (type(out) is tuple and len(out) == 2):
            raise TypeError(_other_structure(plan.treedef, treedef))
        leaves, treedef = jax.tree.flatten(out[0])
        rest = (out[1],)
        if treedef != plan.treedef:
            raise TypeError(_other_structure(plan.treedef, treedef))
    return _same_types(plan, given, leaves), rest


def _same_types(plan: Plan, given: Sequence[Any], returned: list[Any]) -> list[Any]:
    wrong = []
    arrays: list[Any] = []
    for i, (before, after) in enumerate(zip(given, returned, strict=True)):
        if i in plan.static:
            if not same_static(before, after):
                wrong.append((i, repr(before), repr(after)))
            arrays.append(after)
            continue
        arrays.append(after if isinstance(after, jax.Array) else jnp.asarray(after))
        old, new = jax.typeof(before), jax.typeof(arrays[-1])
        if (old.shape, old.dtype, old.weak_type) != (new.shape, new.dtype, new.weak_type):
            wrong.append((i, _type(old), _type(new)))
    if wrong:
        raise TypeError(_other_types(plan.treedef, wrong))
    return arrays


def _type(aval: Any) -> str:
    shape = ",".join(map(str, aval.shape))
    return f"{aval.dtype.name}[{shape}]{' (weakly typed)' if aval.weak_type else ''}"


def _paths(treedef: PyTreeDef) -> list[str]:
    """Where each leaf is, as it is written."""
    tree = treedef.unflatten([object() for _ in range(treedef.num_leaves)])
    return [f"carry{keystr(path)}" for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _other_types(treedef: PyTreeDef, wrong: list[tuple[int, str, str]]) -> str:
    paths = _paths(treedef)
    lines = [
        f"  {paths[i]} was {before} and became {after}" for i, before, after in wrong[:MOST]
    ]
    if len(wrong) > MOST:
        lines.append(f"  and {len(wrong) - MOST} more")
    if any("weakly" in before + after for _, before, after in wrong):
        lines.append(
            "What is made of Python numbers is weakly typed; to give each leaf a type of its own: "
            "jax.tree.map(lambda x: jnp.asarray(x, x.dtype), tree)"
        )
    return "a step has to return a carry of the types that it was given, but\n" + "\n".join(lines)


def _other_structure(given: PyTreeDef, returned: PyTreeDef) -> str:
    before, after = _paths(given), _paths(returned)
    lines = [f"  {path} was given and not returned" for path in before if path not in after]
    lines += [f"  {path} was returned and not given" for path in after if path not in before]
    if len(lines) > MOST:
        lines[MOST:] = [f"  and {len(lines) - MOST} more"]
    if not lines:
        lines = [f"  {given} was given", f"  {returned} was returned"]
    return (
        "a step has to return the carry, or a pair of the carry and something else, in the "
        "structure that it was given, but\n" + "\n".join(lines)
    )
