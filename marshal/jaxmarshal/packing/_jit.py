"""A compiled function whose small numpy arguments travel in one buffer: `pack_host=True`."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from jaxmarshal.packing._host import Form, Forms, Statics
from jaxmarshal.packing._named import completed

#: Options of `jax.jit` that say something about arguments by their places, which change here.
_REFUSED = ("in_shardings", "device", "backend", "abstracted_axes")


class HostJit:
    """What `jaxmarshal.jit(f, pack_host=True)` returns.

    A call with several small numpy arrays copies them into one buffer and puts that; any other call
    is one of the same function compiled as usual. `lower`, `trace` and `eval_shape` are those of
    the latter, `clear_cache` is for both.
    """

    def __init__(
        self, function: Callable[..., Any], jit: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        for name in _REFUSED:
            if options.get(name) is not None:
                raise ValueError(f"jit: pack_host=True cannot be combined with {name}")
        functools.update_wrapper(self, function)
        self._function = function
        self._jit = jit
        self._plain = jit(function, **options)
        statics, names = completed(
            function, options.get("static_argnums"), options.get("static_argnames")
        )
        self._statics = Statics(frozenset(statics), names)
        self._donated = completed(
            function, options.get("donate_argnums"), options.get("donate_argnames")
        )
        gone = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
        self._options = {name: value for name, value in options.items() if name not in gone}
        self._runs: dict[Any, Any] = {}
        self._forms = Forms()
        self._lock = threading.Lock()
        self.lower = self._plain.lower
        self.trace = self._plain.trace
        self.eval_shape = self._plain.eval_shape

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic, statics, where = self._statics.apart(args, kwargs)
        form, words, others = self._forms.gather(dynamic)
        if words is None:
            return self._plain(*args, **kwargs)
        key = form, where
        run, donated = self._runs.get(key) or self._make(key, dynamic, len(statics))
        if not donated:
            return run(words, (), others, *statics)
        given = [x for x, mine in zip(others, donated, strict=True) if mine]
        kept = [x for x, mine in zip(others, donated, strict=True) if not mine]
        return run(words, given, kept, *statics)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def clear_cache(self) -> None:
        """Drop what was compiled."""
        with self._lock:
            self._runs.clear()
            self._forms.clear()
        self._plain.clear_cache()

    def __repr__(self) -> str:
        return f"<jit with pack_host of {self._function!r}>"

    def _make(self, key: Any, dynamic: Any, statics: int) -> Any:
        """(the compiled function, which of the leaves beside the words are donated)."""
        form, where = key
        donated = self._donated_leaves(form, where)
        how = {**self._options, "static_argnums": tuple(range(3, 3 + statics)) or None}
        if donated:
            how["donate_argnums"] = 1
        function = _from_words(self._function, form, where, self._statics, donated)
        with self._lock:
            return self._runs.setdefault(key, (self._jit(function, **how), donated))

    def _donated_leaves(self, form: Form, where: Any) -> tuple[bool, ...]:
        """Of each leaf beside the words: is it donated? Empty where none is."""
        positions, names = self._donated
        if not positions and not names:
            return ()
        by_position, by_name = form.treedef.children()
        given = [i for i in range(where[0]) if i not in self._statics.positions]
        of_leaves: list[bool] = []
        for i, child in zip(given, by_position.children(), strict=True):
            of_leaves += [i in positions] * child.num_leaves
        for name, child in zip(by_name.node_data()[1], by_name.children(), strict=True):
            of_leaves += [name in names] * child.num_leaves
        found = tuple(of_leaves[i] for i in form.others)
        return found if any(found) else ()


def _from_words(
    function: Any, form: Form, where: Any, which: Statics, donated: Sequence[bool]
) -> Callable[..., Any]:
    """The function of words, donated leaves, other leaves and static arguments."""

    @functools.wraps(function)
    def from_words(words: Any, given: Any, kept: Any, *statics: Any) -> Any:
        others = kept
        if donated:
            values, left = iter(given), iter(kept)
            others = [next(values if mine else left) for mine in donated]
        args, kwargs = which.together(form.scatter(words, others), statics, where)
        return function(*args, **kwargs)

    # The parameters of the function are not those of this one.
    del from_words.__wrapped__
    return from_words
