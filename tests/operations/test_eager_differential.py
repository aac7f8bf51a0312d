"""The public functions of `jax.numpy` and `jax.lax`, called one by one as users do: with jaxmarshal
installed each gives what plain JAX gives.

Hypothesis picks a function, arguments that its parameters' names ask for, and a configuration. Many
of the calls are wrong, and then it is the error that is compared.
"""

from __future__ import annotations

import contextlib
import inspect
from functools import partial

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from observe import observe, total_hits
from proof import Proof
from recipes import Recipe, realise
from support import THOROUGH

import jaxmarshal

# --- Functions -----------------------------------------------------------------------------------

#: What writes files, draws from a state, runs other programs, or makes what cannot be compared.
LEFT_OUT = {
    "save", "savez", "load", "fromfile", "from_dlpack", "fromregex", "printoptions",
    "set_printoptions", "get_printoptions", "array_repr", "array_str", "frompyfunc", "vectorize",
    "rng_uniform", "create_token", "after_all", "infeed", "outfeed", "fromfunction", "fromiter",
    "fori_loop", "while_loop", "scan", "associative_scan", "map", "custom_linear_solve",
    "custom_root", "switch", "cond", "apply_along_axis", "apply_over_axes", "piecewise", "reduce",
    "reduce_window", "optimization_barrier", "composite", "platform_dependent", "zeros_like_array",
    "empty_like", "empty", "stop_gradient", "select_n", "dce_sink", "linear_transpose",
}  # fmt: skip


def public_functions(module):
    """(name, function, names of required parameters, names of others) in a fixed order."""
    for name in sorted(getattr(module, "__all__", None) or dir(module)):
        function = getattr(module, name, None)
        if name.startswith("_") or name in LEFT_OUT or name.endswith("_p"):
            continue
        if not callable(function) or isinstance(function, type):
            continue
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            continue
        required = [
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        yield (
            f"{module.__name__}.{name}", required,
            [p.name for p in parameters if p.default is not p.empty and p.kind != p.VAR_KEYWORD],
        )  # fmt: skip


MODULES = (jnp, lax, jnp.linalg, jnp.fft)
FUNCTIONS = [found for module in MODULES for found in public_functions(module)]


def find(path):
    """The function as a user finds it at this moment."""
    found = jax
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def both(calls):
    """What calls give with plain JAX, and have to give with jaxmarshal.

    Plain JAX is asked twice, for some warnings are given once, while it traces. All that is called
    is called from the same line, for some errors say which one that was.
    """
    seen = []
    for side in (contextlib.nullcontext, contextlib.nullcontext, jaxmarshal.installed):
        with side():
            seen.append(calls())
    assert seen[2] == seen[1]
    return seen[1]


# --- Arguments -----------------------------------------------------------------------------------

SHAPES = [(), (3,), (2, 3), (1, 3), (2, 2), (0,), (2, 1, 3)]
DTYPES = [np.float32, np.int32, np.bool_, np.uint8, np.complex64, jnp.bfloat16, np.float16, np.int8]


def values(shape, dtype):
    """Some small numbers, of both signs where there are two."""
    return np.asarray(np.arange(np.prod(shape)).reshape(shape) % 5 - 1).astype(dtype)


def on_device(shape, dtype):
    return jax.device_put(values(shape, dtype))


def elsewhere(shape, dtype):
    return jax.device_put(values(shape, dtype), jax.devices()[3])


def deleted(shape, dtype):
    x = on_device(shape, dtype)
    x.delete()
    return x


def weak(value):
    return lax.full((), value)


dtypes = st.sampled_from(DTYPES)
#: Arrays above all: they are what the fast paths are about.
arrays = st.one_of(
    st.builds(partial(Recipe, on_device), st.sampled_from(SHAPES), dtypes),
    st.builds(partial(Recipe, on_device), st.just((2, 3)), st.just(np.float32)),
    st.builds(partial(Recipe, on_device), st.just((3,)), st.sampled_from(DTYPES[:2])),
    st.builds(partial(Recipe, values), st.sampled_from(SHAPES), st.sampled_from(
        [*DTYPES, np.float64, np.int64]
    )),
    st.builds(partial(Recipe, weak), st.sampled_from([1, 1.5, True])),
    st.sampled_from([1, -2, 0.5, True, 1j, -0.0, np.float32(3), np.int64(4), 2**40]),
)  # fmt: skip
odd = st.one_of(
    st.builds(partial(Recipe, elsewhere), st.sampled_from(SHAPES), dtypes),
    st.builds(partial(Recipe, deleted), st.sampled_from(SHAPES), dtypes),
    st.sampled_from(["text", None, [1, 2], [[1.0], [2.0, 3.0]], np.array([None]), object]),
)
sizes = st.integers(0, 3)
axes = st.sampled_from([0, 0, -1, 1, None, (0, 1), (0,), 5, True])
shapes = st.sampled_from([2, 3, (2, 3), (3,), (), (6,), (3, 2), (1, 2, 3), (-1,), "no shape"])
some_dtypes = st.sampled_from(
    [np.float32, np.int32, "int8", jnp.bfloat16, np.float64, np.int64, bool, complex, float, None]
)
booleans = st.booleans()
several = st.lists(arrays, min_size=1, max_size=3)

#: By the name of a parameter; what is not here gets an array.
BY_NAME = {
    "axis": axes, "axes": axes, "axis1": sizes, "axis2": sizes, "dimension": sizes,
    "dimensions": st.sampled_from([(0,), (1,), (0, 1), ()]), "source": sizes, "destination": sizes,
    "dim": sizes, "start_index": sizes, "limit_index": sizes, "stride": sizes, "size": sizes,
    "shape": shapes, "newshape": shapes, "new_shape": shapes, "broadcast_sizes": shapes,
    "sizes": shapes, "new_sizes": shapes, "slice_sizes": shapes, "reps": sizes,
    "start_indices": st.sampled_from([(0,), (0, 1), (1,)]),
    "limit_indices": st.sampled_from([(2,), (2, 3), (1, 1)]),
    "strides": st.sampled_from([None, (1,), (1, 2)]), "permutation": st.permutations(range(2)),
    "broadcast_dimensions": st.sampled_from([(0,), (1,), (0, 1), ()]),
    "padding_config": st.sampled_from([[(1, 0, 0)], [(0, 1, 0), (1, 1, 1)]]),
    "dimension_numbers": st.sampled_from([(((1,), (0,)), ((), ())), ((([0]), ([0])), ((), ()))]),
    "dtype": some_dtypes, "new_dtype": some_dtypes, "index_dtype": st.just(np.int32),
    "keepdims": booleans, "descending": booleans, "stable": booleans, "is_stable": booleans,
    "reverse": booleans, "endpoint": booleans, "increasing": booleans, "full_matrices": booleans,
    "assume_unique": booleans, "equal_nan": booleans, "copy": booleans, "compute_uv": booleans,
    "n": sizes, "N": sizes, "M": sizes, "k": sizes, "num": sizes, "deg": sizes, "y": arrays,
    "decimals": sizes, "bins": sizes, "repeats": sizes, "shift": sizes, "ndmin": sizes,
    "num_segments": sizes, "total_repeat_length": sizes, "ddof": sizes, "offset": sizes,
    "exponent_bits": sizes, "mantissa_bits": sizes, "operands": several, "arrays": several,
    "tup": several, "seq": several, "xs": several, "choices": several, "condlist": several,
    "choicelist": several, "indices_or_sections": sizes, "q": st.sampled_from([0.5, 1, 50]),
    "pad_width": st.sampled_from([1, (1, 0), ((0, 1), (2, 0))]), "order": st.just(None),
    "mode": st.sampled_from(["constant", "clip", "wrap", "full", "same", "nonsense"]),
    "side": st.sampled_from(["left", "right", "up"]), "indexing": st.sampled_from(["xy", "ij"]),
    "indices": st.one_of(sizes, st.builds(partial(Recipe, on_device), st.just((2,)),
                                          st.just(np.int32))),
    "subscripts": st.sampled_from(["i,i", "ij,jk", "ij->ji", "ii", "i..."]),
    "padding": st.sampled_from(["SAME", "VALID"]), "precision": st.just(None),
    "old_sharding": st.none(), "function": st.none(), "func": st.none(), "func1d": st.none(),
    "ord": st.sampled_from([None, 1, 2, np.inf, "fro"]), "norm": st.sampled_from([None, "ortho"]),
    "axis_name": st.just("i"), "device": st.none(), "out": st.none(), "key": arrays,
}  # fmt: skip
#: Parameters with a default that are given now and then.
OPTIONAL = {
    "axis", "keepdims", "dtype", "k", "num", "ddof", "decimals", "endpoint", "mode", "indexing",
    "n", "side", "reverse", "copy", "ndmin", "stable", "descending", "shape", "size", "shift",
    "y", "ord", "norm",
}  # fmt: skip


@st.composite
def calls(draw):
    """(path of a function, positional arguments, arguments by name)."""
    path, required, others = draw(st.sampled_from(FUNCTIONS))
    strange = draw(st.integers(0, 9)) == 0
    args = []
    for name in required:
        args.append(draw(odd if strange and draw(booleans) else BY_NAME.get(name, arrays)))
    if not required:
        args = draw(st.lists(arrays, max_size=3))
    given = [name for name in others if name in OPTIONAL]
    if given and draw(booleans):
        given = draw(st.lists(st.sampled_from(given), unique=True, max_size=2))
        return path, args, {name: draw(BY_NAME.get(name, arrays)) for name in given}
    return path, args, {}


CONTEXTS = {
    "plain": contextlib.nullcontext,
    "x64": partial(jax.enable_x64, True),
    "strict": partial(jax.numpy_dtype_promotion, "strict"),
    "ranks": partial(jax.numpy_rank_promotion, "raise"),
    "ranks warn": partial(jax.numpy_rank_promotion, "warn"),
    "device": lambda: jax.default_device(jax.devices()[2]),
    "debug_nans": partial(jax.debug_nans, True),
}


@pytest.fixture
def proof():
    """Agreement in each context about results too, and about calls that were fast."""
    made = Proof()
    yield made
    made.check(slow=["debug_nans"])


@pytest.mark.slow
@hypothesis.given(
    call=calls(),
    context=st.sampled_from(["plain"] * 5 + sorted(CONTEXTS)),
    again=st.sampled_from(sorted(CONTEXTS)),
)
@hypothesis.settings(max_examples=400 if THOROUGH else 80)
def test_functions(proof, call, context, again):
    """Four calls, so that the last ones are fast, one of them in another context."""
    path, args, kwargs = call

    def once(name):
        made = {}
        return observe(
            find(path), *realise(args, made), context=CONTEXTS[name], **realise(kwargs, made)
        )

    before = total_hits()
    seen = both(lambda: [once(name) for name in (context, context, context, again, context)])
    hypothesis.event(seen[0][0][0])
    proof.note(context, seen[0], total_hits() - before)


def test_there_are_functions():
    """The list is that of the public functions, not an empty one."""
    paths = {path for path, _, _ in FUNCTIONS}
    assert len(paths) > 400
    assert {"jax.numpy.add", "jax.lax.add", "jax.numpy.linalg.norm", "jax.lax.slice"} <= paths


# --- Operators of arrays -------------------------------------------------------------------------

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift",
          "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge", "divmod"]  # fmt: skip
UNARY = ["neg", "pos", "abs", "invert", "bool", "int", "float", "complex", "index", "len", "round"]


@pytest.mark.slow
@hypothesis.given(
    name=st.sampled_from([*(f"__{n}__" for n in BINARY), *(f"__r{n}__" for n in BINARY[:13])]),
    left=st.builds(partial(Recipe, on_device), st.sampled_from(SHAPES), dtypes),
    right=arrays,
    context=st.sampled_from(["plain"] * 3 + sorted(CONTEXTS)),
)
@hypothesis.settings(max_examples=250 if THOROUGH else 60)
def test_operators(proof, name, left, right, context):
    """Operators of an array and anything."""
    before = total_hits()
    proof.note(context, _same(name, [left, right], context)[0], total_hits() - before)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
@pytest.mark.errors("len", "shape1-", "shape2-")
def test_conversions(name, shape):
    """Operators of an array alone."""
    for dtype in DTYPES:
        _same(f"__{name}__", [Recipe(on_device, shape, dtype)], "plain")


def _same(name, args, context):
    def once():
        self, *others = realise(args, {})
        method = getattr(self, name)
        return observe(method, *others, context=CONTEXTS[context])

    return both(lambda: [once() for _ in range(3)])
