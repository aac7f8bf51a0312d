"""Static arguments and arguments by name: the same function is traced as often as in plain JAX."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._core.entries import jit_probe

X = np.arange(3, dtype=np.float32)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Config:
    """Equal by value."""

    width: int
    name: str = "a"


class Mutable:
    """Equal by value, which may change."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(self.value)

    def __eq__(self, other):
        return isinstance(other, Mutable) and self.value == other.value


class Plain:
    """Equal by identity."""

    value = 1


class SameHash(Mutable):
    """Another value has the same hash."""

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self.value == other.value


class Never(Mutable):
    """Not even equal to itself."""

    __hash__ = Mutable.__hash__

    def __eq__(self, other):
        return False


class Always(Mutable):
    """Equal to everything of its class, with a hash by value."""

    __hash__ = Mutable.__hash__

    def __eq__(self, other):
        return True


class Number(int):
    """A subclass of int is not int."""


class Incomparable(Mutable):
    """Raises where it is compared."""

    def __hash__(self):
        return 3

    def __eq__(self, other):
        raise ZeroDivisionError("compared")


class Ambiguous(Mutable):
    """Its comparison has no truth value."""

    def __hash__(self):
        return 3

    def __eq__(self, other):
        return np.array([True, False])


def scaled():
    """x times the number that a static argument stands for, and its type's name."""
    return lambda s, x: (x * number_of(s), {type(s).__name__: x})


def number_of(static):
    """A number that depends on what a static argument is."""
    value = getattr(static, "value", getattr(static, "width", static))
    if callable(value):
        return value(2.0)
    if isinstance(value, (str, bytes, tuple, frozenset)):
        return float(len(value))
    return 2.0 if value is None or value != value else float(value)


def f_one(x):
    return x + 1


def f_two(x):
    return x + 2


PLAIN = Plain()
#: Pairs of static arguments: equal or not, of one type or not, with one hash or not.
PAIRS = {
    "int": (3, 4),
    "equal large ints": (10**20, int("1" + "0" * 20)),
    "int, bool": (1, True),
    "int, float": (1, 1.0),
    "bool, float": (True, 1.0),
    "zeros": (0.0, -0.0),
    "nan": (float("nan"), float("nan")),
    "one nan": (np.nan, np.nan),
    "numpy scalars": (np.float32(1), np.float32(1)),
    "numpy, Python": (np.int64(1), 1),
    "subclass": (Number(3), 3),
    "equal strings": ("layer0", "layer" + str(0)),
    "strings": ("a", "ab"),
    "bytes": (b"ab", bytes([97, 98])),
    "string, bytes": ("ab", b"ab"),
    "none": (None, 0),
    "tuples": ((1, 2), (1, 2, 3)),
    "equal tuples": ((1, "a"), tuple([1, "".join("a")])),
    "tuples of 1 and True": ((1, 2), (True, 2.0)),
    "frozensets": (frozenset((1, 2)), frozenset((2, 1))),
    "enums": (Colour.RED, Colour.BLUE),
    "equal dataclasses": (Config(3), Config(3)),
    "dataclasses": (Config(3), Config(4)),
    "equal objects": (Mutable(3), Mutable(3)),
    "objects": (Mutable(3), Mutable(4)),
    "one hash": (SameHash(3), SameHash(4)),
    "never equal": (Never(3), Never(3)),
    "one that is not itself": (never := Never(3), never),
    "always equal": (Always(3), Always(3)),
    "always equal, other hashes": (Always(3), Always(4)),
    "by identity": (PLAIN, Plain()),
    "functions": (f_one, f_two),
    "lambdas": (lambda x: x * 3, lambda x: x * 4),
    "partials": (functools.partial(f_one), functools.partial(f_one)),
    "types": (int, float),
    "dtypes": (np.dtype("f4"), np.dtype("f4")),
    "builtins": (len, abs),
}


def accepting(name):
    """A program for these: some are nothing that a number can be made of."""
    if name in ("types", "dtypes", "builtins", "partials", "functions", "lambdas"):
        return lambda: lambda s, x: (x + 1, {str(s).split(" at ")[0]: x})
    return scaled


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("how", ["position", "negative", "name"])
def test_pairs(name, how):
    """One static argument after another, in turn: the same results and traces as in plain JAX."""
    options = {
        "position": {"static_argnums": 0}, "negative": {"static_argnums": -2},
        "name": {"static_argnames": "s"},
    }[how]  # fmt: skip
    a, b = PAIRS[name]
    twins = Twins(accepting(name), **options)
    x = jnp.asarray(X)
    for s in (a, a, b, b, a, b, a):
        if how == "name":
            twins(lambda: (), lambda s=s: {"s": s, "x": x})
        else:
            twins(lambda s=s: (s, x))
    hits, reasons = jit_counts()
    assert hits + sum(reasons.values()) == 7
    assert hits == 7 - twins.plain._cache_size()


@pytest.mark.parametrize("made", [Incomparable, Ambiguous])
def test_objects_that_cannot_be_compared(made):
    """The error of comparing is the reference's; an object is still what it was before."""
    x = jnp.asarray(X)
    seen = []
    for jit in (jax.jit, jaxmarshal.jit):
        function = jit(lambda s, x: x * s.value, static_argnums=0)
        first, second = made(3), made(4)
        outcomes = []
        for s in (first, first, second, first, second):
            try:
                outcomes.append(function(s, x).tolist())
            except Exception as error:
                outcomes.append((type(error), str(error)[:120]))
        seen.append(outcomes)
        jax.clear_caches()
    assert seen[0] == seen[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": (1,)},
        {"static_argnames": "n"},
        {"static_argnames": ("n", "k")},
        {"static_argnums": (1, 2), "static_argnames": ("n", "m", "k")},
        {"static_argnums": (-1,)},
        {"static_argnums": (2, 1)},
    ],
)
def test_by_position_by_name_and_by_default(options):
    """Given either way, or not at all, in every order."""

    def make():
        def function(x, n=2, m=3, *, k=4, y=0.0):
            return x * n + m, k * x + y, type(n).__name__ == "int"

        return function

    x = jnp.asarray(X)
    calls = [
        ((x,), {}), ((x, 2), {}), ((x,), {"n": 2}), ((x, 5), {}), ((x,), {"n": 5}),
        ((x, 2, 3), {}), ((x, 2), {"m": 3}), ((x,), {"m": 3, "n": 2}), ((x,), {"n": 2, "m": 3}),
        ((x,), {"k": 4}), ((x,), {"k": 5, "n": 2}), ((x,), {"n": 2, "k": 5}),
        ((x, 2), {"k": 5, "y": x}), ((x, 2), {"y": x, "k": 5}), ((), {"n": 2, "x": x}),
        ((), {"x": x, "k": 4, "m": 3, "n": 2, "y": x}),
    ]  # fmt: skip
    twins = Twins(make, **options)
    for args, kwargs in calls * 2:
        twins(lambda args=args: args, lambda kwargs=kwargs: kwargs)
    state = twins.plain.__getstate__()
    numbers, names = state["static_argnums"], state["static_argnames"]
    assert jit_probe.static_arguments(twins.fast) == (set(numbers), set(names))
    for args, kwargs in calls:
        one = Twins(make, **options)
        one(lambda args=args: args, lambda kwargs=kwargs: kwargs)
        jit_counts()
        outcome = one(lambda args=args: args, lambda kwargs=kwargs: kwargs)[0]
        hits, _ = jit_counts()
        assert hits == (outcome[0] == "returned")


def test_the_very_static_argument_is_equal_to_itself():
    """Trap 15: jaxlib compares by identity first, so that `__eq__` does not run."""
    asked = []

    class Own:
        def __hash__(self):
            return 3

        def __eq__(self, other):
            asked.append(other)
            return self is other

    x, own = jnp.asarray(X), Own()
    twins = Twins(lambda: lambda y, _: y + 1, static_argnums=1)
    twins(lambda: (x, own))
    twins(lambda: (x, own))
    asked.clear()
    for _ in range(3):
        twins(lambda: (x, own))
    assert jit_counts() == (4, {"not_recorded": 1})
    assert asked == []


def test_a_static_argument_that_changes():
    """Trap: an object whose hash or value changes between two calls; the reference traces anew."""
    x = jnp.asarray(X)
    for made in (Mutable(2), SameHash(2)):
        twins = Twins(scaled, static_argnums=0)
        for value in (2, 2, 5, 5, 2, 7, 7):
            made.value = value
            twins(lambda made=made: (made, x))
    hidden = [2]

    class Sneaky:
        """Its hash is what it stands for at the moment."""

        __eq__ = object.__eq__
        value = property(lambda self: hidden[0])

        def __hash__(self):
            return hidden[0]

    sneaky = Sneaky()
    twins = Twins(scaled, static_argnums=0)
    jit_counts()
    for value in (2, 2, 5, 5, 2, 2):
        hidden[0] = value
        twins(lambda: (sneaky, x))
    assert jit_counts() == (4, {"not_recorded": 2})


def test_a_class_that_changes():
    """What equality means is asked in every call: a class may get another one."""

    class Late:
        value = 1

    x = jnp.asarray(X)
    late = Late()
    twins = Twins(scaled, static_argnums=0)
    for _ in range(2):
        twins(lambda: (late, x))
    numbers = iter(range(100, 200))
    Late.__hash__ = lambda self: next(numbers)
    for _ in range(2):
        twins(lambda: (late, x))
    assert jit_counts() == (1, {"not_recorded": 3})


def test_unhashable():
    """The error of a static argument that cannot be hashed has the reference's text."""
    x = jnp.asarray(X)
    for options in ({"static_argnums": 0}, {"static_argnames": "s"}):
        twins = Twins(lambda: lambda s, x: x, **options)
        for good, bad in (((1, 2), [1, 2]), ((), {}), ("a", X), ("a", x), ((1,), ([],))):
            for s in (good, bad, good, bad):
                by_name = "static_argnames" in options
                found = twins(
                    lambda s=s, by_name=by_name: () if by_name else (s, x),
                    lambda s=s, by_name=by_name: {"s": s, "x": x} if by_name else {},
                )
                assert (found[0][0] == "raised") == (s is bad)

    class Unhashable:
        def __hash__(self):
            raise ZeroDivisionError("hashed")

    twins = Twins(lambda: lambda s, x: x, static_argnums=0)
    for s in (1, 1, Unhashable(), Unhashable(), 1):
        twins(lambda s=s: (s, x))


def test_tracers_and_arrays_as_static_arguments():
    """Arrays cannot be static, and tracers neither."""
    x = jnp.asarray(X)
    twins = Twins(lambda: lambda s, x: x * s, static_argnums=0)
    for s in (2, 2, x, np.float32(2), X, 2):
        twins(lambda s=s: (s, x))
    for function in (twins.plain, twins.fast):
        with pytest.raises(ValueError, match="Non-hashable static"):
            jax.jit(lambda s, f=function: f(s, x))(2.0)


# --- Arguments by name ---------------------------------------------------------------------------


def not_interned(name):
    """The same text as another object."""
    made = "".join(list(name))
    assert made is not sys.intern(name) or len(name) < 2
    return made


def test_names_in_any_order():
    """Arguments by name match whatever their order, and only if the names are the same."""
    twins = Twins(lambda: lambda **kwargs: (kwargs["alpha"] - kwargs["beta"] * 2, kwargs))
    x, y, z = jnp.asarray(X), jnp.asarray(X) + 1, jnp.asarray(X) * 3
    calls = [
        {"alpha": x, "beta": y, "gamma": z}, {"gamma": z, "beta": y, "alpha": x},
        {"beta": y, "alpha": x, "gamma": z}, {"alpha": y, "gamma": x, "beta": z},
    ]
    for kwargs in calls:
        twins(lambda: (), lambda kwargs=kwargs: kwargs)
    assert jit_counts() == (3, {"not_recorded": 1})
    for kwargs in (
        {"alpha": x, "beta": y}, {"alpha": x, "beta": y, "delta": z},
        {"alpha": x, "beta": y, "gamma": z, "delta": z}, {"alpha": [x], "beta": y, "gamma": z},
        {"beta": y, "gamma": z},
    ):  # fmt: skip
        twins(lambda: (), lambda kwargs=kwargs: kwargs)
    hits, _ = jit_counts()
    assert hits == 0
    twins(lambda: (), lambda: calls[0])
    assert jit_counts() == (1, {})


def test_names_that_are_not_interned():
    """Names are compared as text, static ones too."""
    twins = Twins(
        lambda: lambda x, **kwargs: x * kwargs["static name"] + kwargs["other name"],
        static_argnames="static name",
    )
    x = jnp.asarray(X)
    for i in (0, 0, 1, 1, 0):
        twins(
            lambda: (x,),
            lambda i=i: {not_interned("static name"): i, not_interned("other name"): x},
        )
        twins(
            lambda: (x,),
            lambda i=i: {not_interned("other name"): x, not_interned("static name"): i},
        )
    assert jit_counts() == (8, {"not_recorded": 2})


def test_static_and_dynamic_mixed():
    """Static arguments among dynamic ones, trees and arguments by name."""
    twins = Twins(
        lambda: lambda a, s, b, t, *rest, u, **kwargs: (
            a["w"] * s + b[0] * t + sum(rest) * u,
            jax.tree.map(lambda v: v + 1, kwargs),
        ),
        static_argnums=(1, 3), static_argnames=("u",),
    )  # fmt: skip
    x = jnp.asarray(X)
    for s, t, u in ((1, 2, 3), (1, 2, 3), (2, 1, 3), (1, 3, 2), (2, 1, 3), (3, 2, 1), (1, 2, 3)):
        for rest in ((), (x,), (x, x)):
            twins(
                lambda s=s, t=t, rest=rest: ({"w": x}, s, [x, None], t, *rest),
                lambda u=u: {"z": x, "u": u, "y": (x, x)},
            )
    hits, reasons = jit_counts()
    assert (hits, reasons) == (9, {"not_recorded": 12})    # of 15 signatures


def test_static_arguments_counted_from_the_end():
    """A negative number is another argument where there are more of them."""
    twins = Twins(lambda: lambda *args: sum(args), static_argnums=-1)
    x = jnp.asarray(X)
    for args in ((x, 1), (x, x, 1), (x, 2), (x, x, 2), (x, 1), (x, x, 1), (x, x, x, 1), (1,)):
        for _ in range(2):
            twins(lambda args=args: args)
    hits, _ = jit_counts()
    assert hits >= 8


@pytest.mark.parametrize("n", [2, 8])
def test_static_values_in_turn_hit(n):
    """Each of a few static values has its plan, whichever kind of equality it has."""
    x = jnp.asarray(X)
    for make in (int, str, Config, Mutable, lambda i: (i, str(i)), lambda i: [f_one, f_two][i % 2]):
        twins = Twins(lambda: lambda s, x: x + 1, static_argnums=0)
        for _ in range(3):
            for i in range(n):
                twins(lambda i=i, make=make: (make(i), x))
        hits, reasons = jit_counts()
        assert reasons == {"not_recorded": 2 if make(0) is f_one else n}
        assert hits == 3 * n - sum(reasons.values())
