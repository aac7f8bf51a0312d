"""Classification of arguments by exact type."""

from __future__ import annotations

import collections
import gc
import re
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from child import run_code
from jax._src import core, literals
from support import literal

import jaxmarshal
from jaxmarshal._core.values.kinds import ArgKind, add_type, kind_of

Pair = collections.namedtuple("Pair", "left right")


class ArraySubclass(np.ndarray):
    """A subclass of ndarray."""


def subclass_of(base):
    return type(f"Sub{base.__name__}", (base,), {})


PLAIN = {
    "jax array": (lambda: jnp.zeros(3), ArgKind.ARRAY),
    "ndarray": (lambda: np.zeros(3), ArgKind.NDARRAY),
    "object ndarray": (lambda: np.array([None]), ArgKind.NDARRAY),
    "None": (lambda: None, ArgKind.NONE),
    "list": (lambda: [1], ArgKind.LIST),
    "tuple": (lambda: (1,), ArgKind.TUPLE),
    "dict": (lambda: {"a": 1}, ArgKind.DICT),
    "True": (lambda: True, ArgKind.BOOL),
    "int": (lambda: 10**30, ArgKind.INT),
    "float": (lambda: 1.5, ArgKind.FLOAT),
    "complex": (lambda: 1j, ArgKind.COMPLEX),
    "key array": (lambda: jax.random.key(0), ArgKind.KEY_ARRAY),
    "ref": (lambda: jax.new_ref(jnp.zeros(3)), ArgKind.REF),
    "token": (lambda: core.Token(jnp.zeros(0)), ArgKind.TOKEN),
    "typed ndarray": (lambda: literal(np.zeros(2)), ArgKind.LITERAL),
    "typed int": (lambda: literals.TypedInt(1, np.dtype(np.int32)), ArgKind.LITERAL),
    "typed float": (lambda: literals.TypedFloat(1.0, np.dtype(np.float32)), ArgKind.LITERAL),
    "typed complex": (
        lambda: literals.TypedComplex(1j, np.dtype(np.complex64)), ArgKind.LITERAL,
    ),
}  # fmt: skip

NP_SCALARS = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128, ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.int4,
]  # fmt: skip

NOT_KNOWN = {
    "object": object,
    "a class": lambda: np.ndarray,
    "str": lambda: "text",
    "bytes": lambda: b"bytes",
    "set": lambda: {1},
    "str scalar": lambda: np.str_("x"),
    "datetime scalar": lambda: np.datetime64("2020-01-01"),
    "ndarray subclass": lambda: np.zeros(3).view(ArraySubclass),
    "masked array": lambda: np.ma.masked_array([1.0], [True]),
    "matrix": lambda: np.zeros((1, 1)).view(np.matrix),
    "namedtuple": lambda: Pair(1, 2),
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda: collections.defaultdict(list),
    "float64 subclass": lambda: subclass_of(np.float64)(1.0),
    **{
        f"{base.__name__} subclass": lambda base=base: subclass_of(base)()
        for base in (int, float, complex, list, tuple, dict)
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_each_kind(name):
    """Every kind is recognised by the exact type of the object."""
    make, kind = PLAIN[name]
    assert kind_of(make()) is kind


@pytest.mark.parametrize("cls", NP_SCALARS, ids=lambda cls: cls.__name__)
def test_numpy_scalars(cls):
    """The scalar types of numpy and ml_dtypes that JAX takes as arrays are one kind."""
    assert kind_of(cls(1)) is ArgKind.NP_SCALAR


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_everything_else_is_other(name):
    """Subclasses are not their base class, and what JAX does not take as an array is OTHER."""
    assert kind_of(NOT_KNOWN[name]()) is ArgKind.OTHER


def test_every_kind_is_covered():
    """A kind added to the enum has to be added to the tests above."""
    tested = {kind for _, kind in PLAIN.values()}
    assert set(ArgKind) - tested == {ArgKind.NP_SCALAR, ArgKind.OTHER, ArgKind.TRACER}


TRANSFORMATIONS = {
    "jit": lambda f: jax.jit(f)(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.zeros(3)),
    "jvp": lambda f: jax.jvp(f, (1.0,), (1.0,)),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(1.0),
    "make_jaxpr": lambda f: jax.make_jaxpr(f)(1.0),
    "eval_shape": lambda f: jax.eval_shape(f, 1.0),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_tracers(name):
    """Every class of tracer is a tracer, also when it is met for the first time."""
    seen = []

    def body(x):
        seen.extend([(isinstance(x, core.Tracer), kind_of(x)), (True, kind_of(x))])
        return x * 1.0

    TRANSFORMATIONS[name](body)
    assert set(seen) == {(True, ArgKind.TRACER)}


def test_a_type_can_be_added_and_changed():
    """An added class has its kind; subclasses and other classes do not."""

    class Added:
        pass

    assert kind_of(Added()) is ArgKind.OTHER
    add_type(Added, ArgKind.TOKEN)
    assert kind_of(Added()) is ArgKind.TOKEN
    assert kind_of(subclass_of(Added)()) is ArgKind.OTHER
    assert kind_of(Added) is ArgKind.OTHER
    add_type(Added, ArgKind.REF)
    assert kind_of(Added()) is ArgKind.REF
    add_type(Added, ArgKind.OTHER)
    assert kind_of(Added()) is ArgKind.OTHER


def test_an_added_type_is_kept_alive():
    """The table is keyed by address, so a class in it must never be freed."""

    class Kept:
        pass

    add_type(Kept, ArgKind.OTHER)
    reference = weakref.ref(Kept)
    del Kept
    gc.collect()
    assert reference() is not None


def test_what_cannot_be_added():
    """Errors name the argument, and nothing is added."""
    with pytest.raises(TypeError, match="expected a class, got 3"):
        add_type(3, ArgKind.INT)
    with pytest.raises(ValueError, match="expected an ArgKind, got 17"):
        add_type(int, len(ArgKind))
    with pytest.raises(ValueError, match="expected an ArgKind, got -1"):
        add_type(int, -1)
    assert kind_of(1) is ArgKind.INT


def test_a_full_table_refuses_more():
    """The table takes 256 types; a full one says so, still works, and still knows tracers."""
    run_code(
        """
        import jax
        from jaxmarshal._core.values.kinds import ArgKind, add_type, kind_of

        added = []
        try:
            for i in range(300):
                added.append(type(f"T{i}", (), {}))
                add_type(added[-1], ArgKind.TOKEN)
        except MemoryError as error:
            assert "the type table is full" in str(error), error
        else:
            raise SystemExit("the table is never full")
        assert 150 < len(added) < 256
        assert {kind_of(cls()) for cls in added[:-1]} == {ArgKind.TOKEN}
        assert kind_of(added[-1]()) is ArgKind.OTHER and kind_of(1.0) is ArgKind.FLOAT
        jax.vmap(lambda x: print(kind_of(x).name))(jax.numpy.zeros(3))
        """
    )


def test_the_enum_is_that_of_the_header():
    """Names and numbers of `ArgKind` are those of `jm_kind` in the installed header."""
    header = Path(jaxmarshal.get_include(), "jaxmarshal", "classify.h").read_text()
    (body,) = re.findall(r"typedef enum {(.*?)} jm_kind;", header, re.DOTALL)
    names = re.findall(r"\bJM_(\w+)", body)
    assert names.pop() == "KIND_COUNT"
    assert [(kind.name, kind.value) for kind in ArgKind] == [
        (name, number) for number, name in enumerate(names)
    ]
