"""Questions about jaxprs, and the rewriting of one just before it is lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jax.extend import core

from jaxmarshal._jax import private_v0_3

#: Applied to every jaxpr before it is lowered, unless None. Assign to
#: `dispatch_v0_3.outfeed_rewriter`.
outfeed_rewriter: Callable[[Any], Any] | None = None


def jaxpr_literals(jaxpr: Any) -> Iterator[Any]:
    """The values of the literals that the equations of a jaxpr take, sub-jaxprs included."""
    for eqn in jaxpr.eqns:
        yield from (v.val for v in eqn.invars if type(v) is core.Literal)
    for inner in private_v0_3.subjaxprs(jaxpr):
        yield from jaxpr_literals(inner)


def jaxpr_has_pmap(jaxpr: Any) -> bool:
    """Is there an equation with "xla_pmap" in its primitive's name, at any depth?"""
    return any("xla_pmap" in eqn.primitive.name for eqn in jaxpr.eqns) or any(
        jaxpr_has_pmap(inner) for inner in private_v0_3.subjaxprs(jaxpr)
    )


def jaxpr_replicas(jaxpr: Any) -> int:
    """How many replicas a jaxpr needs: the most that one of its equations does, at least 1."""
    if isinstance(jaxpr, core.ClosedJaxpr):
        jaxpr = jaxpr.jaxpr
    return max(map(eqn_replicas, jaxpr.eqns), default=1)


def eqn_replicas(eqn: Any) -> int:
    """How many replicas an equation needs.

    For one that has a `call_jaxpr`, `axis_size` (1 without) times what that jaxpr needs; for
    another with jaxprs among its parameters, the most that one of them needs.
    """
    inner = eqn.params.get("call_jaxpr")
    if inner:
        return eqn.params.get("axis_size", 1) * jaxpr_replicas(inner)
    return initial_style_primitive_replicas(eqn.params)


def initial_style_primitive_replicas(params: dict[str, Any]) -> int:
    """The most replicas that a jaxpr among an equation's parameters needs, at least 1."""
    return max(map(jaxpr_replicas, private_v0_3.jaxprs_in_params(params)), default=1)


def apply_outfeed_rewriter(jaxpr: Any) -> Any:
    """What `outfeed_rewriter` makes of a jaxpr; without one, the jaxpr itself."""
    return jaxpr if outfeed_rewriter is None else outfeed_rewriter(jaxpr)


def _prune_unused_inputs(jaxpr: Any) -> tuple[Any, set[int], set[int]]:
    """Leave out the inputs that neither an equation nor an output uses.

    Equations stay, also those whose results nobody uses.

    Returns:
      The jaxpr, and the indices of the constants and of the arguments that it keeps.
    """
    used = {v for v in jaxpr.outvars if isinstance(v, core.Var)}
    used.update(v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, core.Var))
    constants = [i for i, v in enumerate(jaxpr.constvars) if v in used]
    arguments = [i for i, v in enumerate(jaxpr.invars) if v in used]
    changes: dict[str, Any] = {
        "constvars": [jaxpr.constvars[i] for i in constants],
        "invars": [jaxpr.invars[i] for i in arguments],
    }
    values = getattr(jaxpr, "consts", None)    # a jaxpr that holds its constants keeps them
    if values:
        changes["consts"] = [values[i] for i in constants]
    return jaxpr.replace(**changes), set(constants), set(arguments)
