"""A step from `Packed` to `Packed`: one executable that unpacks, computes and packs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxmarshal import api
from jaxmarshal._core.entries.carried import CarryCall, called_directly
from jaxmarshal._core.values import array_words
from jaxmarshal.packing import _forms
from jaxmarshal.packing._agree import agreed
from jaxmarshal.packing._groups import HOST_TYPES, LEAST, THRESHOLD, flat_sharding
from jaxmarshal.packing._host import Form, Forms, Statics
from jaxmarshal.packing._named import completed, positional
from jaxmarshal.packing._packed import Packed, children_of, pack
from jaxmarshal.packing._plan import Plan

_Tracer = jax.core.Tracer


class _Options(NamedTuple):
    donate: bool
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    threshold: int
    least: int
    pack_host: bool


def carry(
    step: Callable[..., Any] | None = None,
    *,
    donate: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    pack_host: bool = False,
    threshold: int = THRESHOLD,
    least: int = LEAST,
) -> Any:
    """Compile a step whose carry travels packed: for loops that feed a state back.

    `step(carry, *args, **kwargs)` returns the next carry, or a pair of it and something else. What
    `carry` returns takes a `Packed`, or a tree that is packed first, as its first argument, and
    gives back a `Packed` in the place of the carry. One executable unpacks, computes and packs;
    there is one for each structure and signature, as with `jax.jit`. It works as a decorator, with
    and without options.

    The step computes what it says, but XLA may fuse it otherwise than without packing: results of
    floating-point operations can differ in the last bits, as they do between versions of XLA.

    Args:
      step: the function; its carry has to keep structure, shapes, dtypes and weak types.
      donate: let the results take the place of the carry's arrays. The `Packed` that was passed
        is consumed, and so are the large arrays of a tree that was passed.
      static_argnums: positions of static arguments, the carry being 0.
      static_argnames: names of static arguments.
      pack_host: copy small numpy arrays among the other arguments into one buffer, which is put
        once. The same bits, fewer transfers.
      threshold: bytes of the largest leaf that is packed where a tree is passed.
      least: leaves of a kind that there have to be; see `jaxmarshal.pack`.

    Returns:
      A function; its `lower(carry, *args, **kwargs)` is that of `jax.jit`, and `clear_cache()`
      drops what was compiled.

    Raises:
      TypeError: when called, if the carry that the step returns differs from the one it was given;
        the message names the leaf.
      RuntimeError: when called with a consumed carry.
    """
    if step is None:
        return functools.partial(
            carry, donate=donate, static_argnums=static_argnums, static_argnames=static_argnames,
            pack_host=pack_host, threshold=threshold, least=least,
        )  # fmt: skip
    if not callable(step):
        raise TypeError(f"carry: expected a function, not {step!r}")
    positions, names = _static(step, static_argnums, static_argnames)
    return Carry(step, _Options(donate, positions, names, threshold, least, pack_host))


def _static(step: Any, argnums: Any, argnames: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of static arguments, none of which is the carry."""
    positions, names = completed(step, argnums, argnames)
    first = next(iter(positional(step)), None)
    if 0 in positions or first in names:
        raise ValueError(f"carry: the carry itself, argument 0 ({first}), cannot be static")
    return positions, names


class Carry(CarryCall):
    """What `carry` returns: a function from `Packed` to `Packed`.

    A call like one before is made by `CarryCall` alone.
    """

    def __init__(self, step: Callable[..., Any], options: _Options) -> None:
        super().__init__(Packed, options.donate, not options.pack_host, _explain_deleted)
        functools.update_wrapper(self, step)
        self._step = step
        self._options = options
        self._forms = Forms()
        self._statics = Statics(
            frozenset(i - 1 for i in options.static_argnums), options.static_argnames
        )
        self._lock = threading.Lock()

    def _any_call(self, state: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make the first call of a kind, or one with a tree or with host data to be packed."""
        packed = state if type(state) is Packed else self._packed(state)
        children = children_of(packed)
        key = packed._key or _key_of(packed)
        run, given = self._run_for(key, args, kwargs)
        try:
            result = run(children, *args, **kwargs) if given is None else run(children, *given)
        except (RuntimeError, ValueError) as error:
            _explain_deleted(children, error)
            raise
        return self._next(packed, result)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is not None:
            raise TypeError("carry: methods are not supported; make the carry of a function")
        return self

    def lower(self, state: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Lower the executable for these arguments, as `jax.jit(f).lower` does."""
        packed = state if type(state) is Packed else self._packed(state)
        run, given = self._run_for(packed._key or _key_of(packed), args, kwargs)
        if given is None:
            return run.lower(children_of(packed), *args, **kwargs)
        return run.lower(children_of(packed), *given)

    def clear_cache(self) -> None:
        """Drop what was compiled."""
        with self._lock:
            self._forget_runs()
            self._forms.clear()

    def __repr__(self) -> str:
        return f"<carry of {self._step!r}>"

    def _packed(self, tree: Any) -> Packed:
        """Pack a tree that was passed; host data become arrays first, as in any call."""
        tree = jax.tree.map(lambda x: jnp.array(x) if isinstance(x, HOST_TYPES) else x, tree)
        return pack(tree, threshold=self._options.threshold, least=self._options.least)

    # --- Compiling --------------------------------------------------------------------------------

    def _run_for(self, key: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """(the compiled function, its arguments after the children or None for the call's own)."""
        if self._options.pack_host:
            dynamic, statics, where = self._statics.apart(args, kwargs)
            form, words, others = self._forms.gather(dynamic)
            if words is not None:
                run = self._runs.get((key, form, where))
                run = run or self._make(key, form, where, len(statics))
                return run, (words, others, *statics)
        return self._runs.get(key) or self._make(key), None

    def _make(
        self, key: Any, form: Form | None = None, where: Any = None, statics: int = 0
    ) -> Any:
        """The compiled function for a plan, a placement and a form of host data."""
        plan, pinned = (key, ()) if type(key) is Plan else key
        options = self._options
        how: dict[str, Any] = {}
        if form is None:
            function = _packing_step(self._step, plan, bool(pinned))
            how["static_argnums"] = options.static_argnums or None
            how["static_argnames"] = options.static_argnames or None
        else:
            function = _host_step(self._step, plan, form, where, self._statics, bool(pinned))
            how["static_argnums"] = tuple(range(3, 3 + statics)) or None
        if options.donate:
            how["donate_argnums"] = 0
        if pinned:
            how["out_shardings"] = ((*pinned, *(None,) * len(plan.loose)), None)
        run = _jit()(function, **how)
        with self._lock:
            return self._runs.setdefault(key if form is None else (key, form, where), run)


def _jit() -> Callable[..., Any]:
    """What compiles a step: plain `jax.jit` where plans are certain not to be made."""
    words = array_words.describe()
    return jax.jit if words["calibrated"] and not words["vouched_for"] else api.jit


def _packing_step(step: Any, plan: Plan, always_pair: bool) -> Callable[..., Any]:
    """The function that is compiled: children of a `Packed` in, and out.

    It returns the children alone, or a pair of them and what else the step returned; with
    `always_pair`, for which `out_shardings` can be written, a pair of them and a tuple of that.
    """

    @functools.wraps(step)
    def packing_step(children: Any, *args: Any, **kwargs: Any) -> Any:
        count = len(plan.groups)
        buffers = children[:count]
        given = plan.leaves(_forms.read(buffers, plan.pieces), children[count:])
        out = step(plan.treedef.unflatten(given), *args, **kwargs)
        leaves, rest = agreed(plan, given, out)
        groups = [[leaves[i] for i in group] for group in plan.groups]
        buffers = _forms.write(groups, plan.pieces)
        after = plan.children(leaves, buffers)
        if always_pair:
            return after, rest
        return (after, *rest) if rest else after

    return packing_step


def _host_step(
    step: Any, plan: Plan, form: Form, where: Any, which: Statics, always_pair: bool
) -> Callable[..., Any]:
    """The same, with the other arguments made of words, other leaves and static arguments."""
    inner = _packing_step(step, plan, always_pair)

    def packing_step(children: Any, words: Any, others: Any, *statics: Any) -> Any:
        args, kwargs = which.together(form.scatter(words, others), statics, where)
        return inner(children, *args, **kwargs)

    packing_step.__name__ = packing_step.__qualname__ = getattr(step, "__name__", "packing_step")
    return packing_step


def _key_of(packed: Packed) -> Any:
    """What an executable is found by: the plan, and with it where each buffer has to be afterwards.

    The latter only where XLA could choose, which on one device it cannot.
    """
    places = []
    for buffer in children_of(packed)[: len(packed._plan.groups)]:
        known = isinstance(buffer, jax.Array) and not isinstance(buffer, _Tracer)
        sharding = flat_sharding(buffer.sharding) if known else None
        places.append(None if isinstance(sharding, SingleDeviceSharding) else sharding)
    pinned = any(place is not None for place in places)
    key = packed._key = (packed._plan, tuple(places)) if pinned else packed._plan
    return key


def _explain_deleted(children: Any, error: Exception) -> None:
    """Say what has happened where an array of a carry is gone."""
    for child in children:
        known = isinstance(child, jax.Array) and not isinstance(child, _Tracer)
        if known and child.is_deleted():
            raise RuntimeError(
                "an array of this carry was deleted or donated: go on with the Packed that the "
                "last call returned, or make the carry with donate=False"
            ) from error


called_directly(Carry)
