"""Operators and methods of arrays outside of `jit`: warm, and then with another operand.

Each call is compared with plain JAX: result, error, and what either side has done to the operands.
"""

from __future__ import annotations

import operator
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run
from eager import together
from jax.sharding import NamedSharding, PartitionSpec
from test_functions import CONTEXTS, array, hits, same

import jaxmarshal

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def installed():
    with jaxmarshal.installed():
        yield


class Adds:
    """Takes part in operators by methods of its own."""

    def _answer(self, other):
        return ("answered", type(other).__name__)

    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rand__ = __lt__ = __eq__ = _answer
    __hash__ = None


class Converts:
    """Is made an array by JAX."""

    def __jax_array__(self):
        return jnp.full((3, 4), 2.0)


class Sub(np.ndarray):
    """A subclass of numpy's arrays."""


BINARY = {
    name: getattr(operator, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "eq", "ne",
        "lt", "le", "gt", "ge", "matmul",
    )
}  # fmt: skip
BINARY |= {"maximum": jnp.maximum, "minimum": jnp.minimum, "reversed sub": lambda x, y: y - x,
           "reversed add": lambda x, y: y + x, "reversed mul": lambda x, y: y * x,
           "reversed truediv": lambda x, y: y / x, "reversed pow": lambda x, y: y**x}  # fmt: skip

#: Those that are to be fast with two arrays, and with an array and a number.
FAST = {"add", "sub", "mul", "pow"}
FAST_WITH_NUMBERS = FAST | {
    "truediv", "floordiv", "mod", "eq", "lt", "ge", "maximum", "minimum", "reversed sub",
    "reversed add", "reversed mul", "reversed truediv",
}  # fmt: skip


#: Those that meet all other operands; the rest meet a quarter each.
ALL_OTHERS = {"add", "reversed sub", "pow", "lt", "maximum", "and_"}


def spread():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    return jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec("x")))


OTHERS = {
    "an array": lambda: array(2),
    "an array of another dtype": lambda: array(2, dtype=np.int32),
    "an array of half size": lambda: array(2).astype(jnp.bfloat16),
    "a row": lambda: array(2, (4,)),
    "another shape": lambda: array(2, (2, 3)),
    "a weak array": lambda: jnp.asarray(2.5),
    "numpy": lambda: np.ones((3, 4), np.float32),
    "numpy of 64 bits": lambda: np.ones((3, 4)),
    "a subclass of numpy": lambda: np.ones((3, 4), np.float32).view(Sub),
    "a numpy scalar": lambda: np.float32(2),
    "a numpy scalar of 64 bits": lambda: np.float64(1e300),
    "a numpy int": lambda: np.int64(2**40),
    "an int": lambda: 3,
    "a negative int": lambda: -2,
    "zero": lambda: 0,
    "the other zero": lambda: -0.0,
    "a large int": lambda: 2**31,
    "a huge int": lambda: 2**70,
    "a float": lambda: 2.5,
    "a large float": lambda: 1e300,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "a bool": lambda: True,
    "a complex": lambda: 1 + 2j,
    "a string": lambda: "x",
    "None": lambda: None,
    "a list": lambda: [1.0, 2.0],
    "a tuple": lambda: (1.0,),
    "a dict": lambda: {},
    "an object": Adds,
    "what JAX converts": Converts,
    "a typed key": lambda: jax.random.key(0),
    "committed": lambda: jax.device_put(array(2), jax.devices()[0]),
    "elsewhere": lambda: jax.device_put(array(2), jax.devices()[1]),
    "spread": spread,
    "deleted": lambda: (lambda x: (x.delete(), x)[1])(jnp.copy(array(2))),
}


@pytest.mark.parametrize("name", BINARY)
@together()
def test_other_operands(name):
    call = BINARY[name]
    x, y = array(1), array(3)
    if name in ("and_", "or_", "xor"):
        x, y = x.astype(jnp.int32), y.astype(jnp.int32)
    if name == "matmul":
        y = y.T
    for _ in range(5):
        same(call, (x, y))
    assert hits() >= 2 or name not in FAST
    before = hits()
    for _ in range(5):
        same(call, (x, 2))
    assert hits() >= before + 2 or name not in FAST_WITH_NUMBERS
    each = 1 if name in ALL_OTHERS else 4
    for make in list(OTHERS.values())[sorted(BINARY).index(name) % each :: each]:
        for _ in range(2):
            same(call, (x, make()))
            same(call, (make(), x))
    for context in CONTEXTS.values():
        for other in (y, 2, 2.5, 77):
            same(call, (x, other), context)
    same(call, (x, y))


@pytest.mark.parametrize("kind", [np.int32, np.array, np.float32, int])
@together()
def test_exponents_decide(kind):
    """A small integer is multiplied out, another one is not: the one is not taken for the other."""
    x = array(1)
    for exponent in (2, 2, 2, 2, 2, 3, 3, -1, 2, 7, 0, 200, 2):
        same(operator.pow, (x, kind(exponent)))
        same(operator.pow, (kind(exponent), x))


#: Host data as operands, by a seed, and are they handed on as they are?
HOST_DATA = {
    "numpy": (lambda s: np.random.default_rng(s).normal(size=(3, 4)).astype(np.float32), True),
    "a row": (lambda s: np.full(4, s, np.float32), True),
    "ints": (lambda s: np.full((3, 4), s), True),
    "small ints": (lambda s: np.full((3, 4), s, np.int8), True),
    "bools": (lambda s: np.arange(12).reshape(3, 4) % (s + 2) == 0, True),
    "every other": (lambda s: np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2] + s, True),
    "backwards": (lambda s: (np.arange(12, dtype=np.float32).reshape(3, 4) + s)[::-1], True),
    "by columns": (lambda s: np.asfortranarray(np.full((3, 4), s, np.float32)), True),
    "of no dimension": (lambda s: np.array(s, np.float32), True),
    "a scalar": (lambda s: np.float32(s), True),
    "an int scalar": (lambda s: np.int32(s), True),
    "64 bits": (lambda s: np.full((3, 4), 10.0 ** (80 * s % 320)), False),
    "a scalar of 64 bits": (lambda s: np.float64(s), False),
    "a bool scalar": (lambda s: np.bool_(s % 2), False),
    "the other byte order": (lambda s: np.full((3, 4), s, ">f4"), False),
    "objects": (lambda s: np.full((3, 4), s, object), False),
}


@pytest.mark.parametrize("data", HOST_DATA)
@pytest.mark.parametrize("name", ["add", "reversed sub", "mul", "xor", "pow", "eq"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.errors("xor")
def test_host_data(name, data, dtype):
    """Of operands that are no arrays of JAX's, dtype and shape decide; of exponents, the value."""
    call, x = BINARY[name], array(1, dtype=dtype)
    make, is_fast = HOST_DATA[data]
    with together():
        for i in range(6):
            same(call, (x, make(i)))
    before = hits()
    edited = make(3)
    for i in range(6):
        same(call, (x, make(i)))
        same(call, (x, edited))
        if isinstance(edited, np.ndarray):
            edited[...] = make(i)    # before the next call
    found = hits() - before
    if name == "eq":
        assert found == 0
    elif name != "xor" and name != "pow":    # floats are no operands of the one
        assert found == 12 if is_fast else found in (0, 12)
    with together():
        for other in HOST_DATA:
            same(call, (x, HOST_DATA[other][0](1)))
        for context in CONTEXTS.values():
            same(call, (x, make(1)), context)
            same(call, (jax.device_put(x, jax.devices()[1]), make(2)), context)


@pytest.mark.parametrize("name", sorted(FAST_WITH_NUMBERS))
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@together()
def test_numbers_that_change(name, dtype):
    """Numbers that are new are JAX's, of both kinds, and fast when they come a third time.

    And what no number of 32 bits can be.
    """
    call, x = BINARY[name], array(1, dtype=dtype)
    found = []
    for _ in range(3):
        before = hits()
        for i in range(20, 30):
            same(call, (x, i))
            same(call, (x, i / 7))
        found.append(hits() - before)
    assert found == [0, 0, 20]
    for value in (
        -1, -1.5, 0, 0.0, -0.0, 1e-46, 3.4e38, 3.5e38, 1e39, -1e39, float("inf"), float("nan"),
        2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63, 2**64, True, False, np.float32(3), 1j,
    ):  # fmt: skip
        for _ in range(2):
            same(call, (x, value))


def test_numbers_of_which_numpy_warns():
    """jaxlib is silent about numbers of a kind that it knows, and knows them with each array."""
    code = """
        import sys, warnings
        import jax.numpy as jnp
        import jaxmarshal
        if sys.argv[1] == "installed":
            jaxmarshal.install()
        arrays = [jnp.arange(3.0), jnp.ones((2, 3)), jnp.arange(3), jnp.ones(3, jnp.float16)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            arrays[0] - 1e300    # unknown
            for t, x in enumerate(arrays, 1):    # each number is new
                x * (t / 3), x % (t / 3), t / 3 < x, jnp.maximum(x, t / 3)
                x * 1e300, x % 1e300, 1e300 < x, jnp.maximum(x, 1e300)
                print([str(warning.message) for warning in caught])
        assert sys.argv[1] == "plain" or jaxmarshal.stats()["functions"]["misses"] > 20
    """
    plain, found = (run("-c", textwrap.dedent(code), how) for how in ("plain", "installed"))
    assert plain.returncode == found.returncode == 0, plain.stderr + found.stderr
    assert found.stdout == plain.stdout
    assert "overflow" in plain.stdout


def test_numbers_are_forgotten():
    """Numbers that came in before everything was forgotten are new ones afterwards."""
    call, x = BINARY["mul"], array(1)
    found = []
    for clear in (False, False, True, False, False):
        if clear:
            jaxmarshal.api.clear()
        before = hits()
        for i in range(8):
            same(call, (x, float(i)))
        found.append(hits() - before)
    assert found == [0, 0, 0, 0, 8]


@pytest.mark.parametrize("name", ["add", "mul", "lt", "reversed sub", "maximum"])
def test_operators_while_jax_traces(name):
    """Numbers stay numbers in what JAX traces, and constants stay constants."""
    call, x = BINARY[name], array(1)
    for i in range(6):
        call(x, float(i))
    texts = {}
    for side, context in (("fast", jaxmarshal.installed), ("plain", jaxmarshal.uninstalled)):
        with context():
            texts[side] = [
                str(jax.make_jaxpr(lambda t: (call(x, 50.5), call(t, x), call(x, t)))(x)),
                str(jax.make_jaxpr(jax.vmap(lambda t: call(x, t)))(x)),
                str(jax.make_jaxpr(lambda t: jax.jvp(lambda u: call(x, u) * 1.0, (t,), (t,)))(x)),
            ]
    assert texts["fast"] == texts["plain"]


METHODS = {
    "argmax": [(), (0,), (None, None, True)],
    "argmin": [(), (1,)],
    "clip": [(0, 2), (None, 1.0), (0.5,)],
    "ptp": [(), (0,)],
    "repeat": [(2,), (2, 0)],
    "std": [(), (0,), (None, None, None, 1)],
    "trace": [(), (1,)],
    "var": [(), (1,)],
}


@pytest.mark.parametrize("name", METHODS)
@together()
def test_methods(name):
    for args in METHODS[name]:
        def call(x, args=args):
            return getattr(x, name)(*args)

        for _ in range(4):
            same(call, (array(1),))
        before = hits()
        for x in (array(1), array(2)):
            same(call, (x,))
        assert hits() == before + 2
        for x in (array(1, dtype=np.int32), array(1, (2, 6)), array(1) > 0, spread()):
            for _ in range(3):
                same(call, (x,))
        for context in CONTEXTS.values():
            same(call, (array(1),), context)


def test_operators_are_those_of_the_class():
    """What the class shows is what it showed, and it is the reference's again afterwards."""
    plain = {}
    for context in (jaxmarshal.uninstalled, jaxmarshal.installed, jaxmarshal.uninstalled):
        with context():
            cls = type(array(1))
            found = {
                name: (getattr(cls, name).__name__, getattr(cls, name).__module__)
                for name in ("__add__", "__rmul__", "__lt__", "__pow__", "std", "clip")
            }
            assert plain.setdefault("shown", found) == found
            assert array(1).__add__("x") is NotImplemented
            assert cls.__hash__ is None or plain.setdefault("hash", cls.__hash__) is cls.__hash__
            with pytest.raises(TypeError):
                hash(array(1))
