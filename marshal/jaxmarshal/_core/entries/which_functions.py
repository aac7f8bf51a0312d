"""Which public functions are replayed outside of `jit`.

They take several steps, or one behind much Python.

Functions that JAX has jitted itself are one step already, and not in here. Neither are those that
always look at an array's elements (`nonzero`, `unique`), or which make no arrays (`shape`): they
would never be replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from jaxmarshal._core.context import bypassed
from jaxmarshal._core.entries import device_get, key_iteration, public_functions, scalar_reads
from jaxmarshal._jax import private

_NUMPY = [
    "arange", "argmax", "argmin", "argwhere", "array_equal", "array_equiv", "array_split",
    "astype", "average", "bartlett", "bincount", "blackman", "broadcast_arrays", "broadcast_to",
    "choose", "column_stack", "compress", "concat", "concatenate", "copy", "cumulative_prod",
    "cumulative_sum", "degrees", "delete", "diag", "diag_indices", "diag_indices_from",
    "diagflat", "divide", "dsplit", "dstack", "einsum", "empty", "empty_like", "expand_dims",
    "eye", "fill_diagonal", "flatnonzero", "flip", "fliplr", "flipud", "full_like", "geomspace",
    "hamming", "hanning", "hsplit", "hstack", "identity", "indices", "insert", "interp",
    "isin", "isneginf", "isposinf", "ix_", "kaiser", "linspace", "logspace",
    "matrix_transpose", "meshgrid", "mod", "moveaxis", "nonzero", "ones_like", "pad",
    "permute_dims", "polymul", "pow", "power", "ptp", "radians", "repeat", "reshape", "roll",
    "select", "setdiff1d", "split", "squeeze", "stack", "std", "tensordot", "tile", "transpose",
    "tri", "tril_indices", "tril_indices_from", "triu_indices", "triu_indices_from", "union1d",
    "unique", "unravel_index", "var", "vecdot", "vsplit", "vstack", "where", "zeros_like",
]  # fmt: skip

_LINALG = [
    "cross", "diagonal", "lstsq", "matmul", "matrix_norm", "matrix_transpose", "multi_dot",
    "outer", "pinv", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

_FFT = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_NN = ["dot_product_attention", "gelu", "logsumexp", "one_hot", "softmax"]

_LAX = [
    "abs", "acos", "acosh", "add", "approx_max_k", "approx_min_k", "argmax", "argmin", "asin",
    "asinh", "atan", "atan2", "atanh", "batch_matmul", "bessel_i0e", "bessel_i1e", "betainc",
    "bitcast_convert_type", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
    "broadcast", "broadcast_in_dim", "broadcasted_iota", "cbrt", "ceil", "clamp", "clz",
    "collapse", "complex", "concatenate", "conj", "conv", "conv_general_dilated",
    "conv_general_dilated_patches", "conv_transpose", "conv_with_general_padding",
    "convert_element_type", "cos", "cosh", "cumlogsumexp", "cummax", "cummin", "cumprod",
    "cumsum", "digamma", "div", "dot", "dot_general", "dynamic_index_in_dim", "dynamic_slice",
    "dynamic_slice_in_dim", "dynamic_update_slice", "dynamic_update_slice_in_dim", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expand_dims", "expm1", "floor", "full", "full_like",
    "ge", "gt", "igamma", "igammac", "imag", "index_in_dim", "index_take", "integer_pow",
    "iota", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul",
    "mulhi", "ne", "neg", "nextafter", "optimization_barrier", "pad", "polygamma",
    "population_count", "pow", "ragged_dot", "real", "reciprocal", "reduce_and", "reduce_max",
    "reduce_min", "reduce_or", "reduce_precision", "reduce_prod", "reduce_sum", "reduce_xor",
    "rem", "reshape", "rev", "round", "rsqrt", "select", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "slice",
    "slice_in_dim", "sort", "sort_key_val", "split", "sqrt", "square", "squeeze", "stack",
    "stop_gradient", "sub", "tan", "tanh", "tile", "top_k", "transpose", "unstack", "zeta",
]  # fmt: skip

_RANDOM = [
    "ball", "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare",
    "choice", "clone", "dirichlet", "double_sided_maxwell", "exponential", "f", "fold_in",
    "gamma", "generalized_normal", "geometric", "gumbel", "key", "key_data", "laplace",
    "loggamma", "logistic", "lognormal", "maxwell", "multinomial", "multivariate_normal",
    "normal", "orthogonal", "pareto", "permutation", "poisson", "PRNGKey", "rademacher",
    "randint", "rayleigh", "split", "t", "triangular", "truncated_normal", "uniform", "wald",
    "weibull_min", "wrap_key_data",
]  # fmt: skip

_OPS = ["segment_max", "segment_min", "segment_prod", "segment_sum"]

_MODULES = (
    ("jax.numpy", _NUMPY),
    ("jax.numpy.linalg", _LINALG),
    ("jax.numpy.fft", _FFT),
    ("jax.nn", _NN),
    ("jax.lax", _LAX),
    ("jax.random", _RANDOM),
    ("jax.ops", _OPS),
)

#: Modules that JAX imports when a program asks for them. All of their functions are replayed, and
#: those of the modules in them.
LATE_MODULES = (
    "jax.scipy.fft", "jax.scipy.signal", "jax.scipy.special", "jax.scipy.stats",
)  # fmt: skip

#: Where these keep what their functions consist of.
_LATE_HOMES = ("jax.scipy.", "jax._src.scipy.", "jax._src.third_party.scipy.")

#: Functions that take functions. JAX traces each of these once for each kind of arguments, and
#: knows it by its identity afterwards.
_WITH_FUNCTIONS = frozenset((
    "cond", "fori_loop", "reduce", "reduce_window", "scan", "switch", "while_loop",
))  # fmt: skip

#: Functions that decide by no more than dtype and shape of numpy arrays, their first argument or
#: its items.
_WITH_HOST = frozenset((
    "column_stack", "concatenate", "dstack", "empty_like", "full_like", "hstack", "ones_like",
    "stack", "vstack", "zeros_like",
))  # fmt: skip

#: Functions with a derivative of their own: objects of one class, called through its `__call__`.
_WITH_DERIVATIVES = (("jax.nn", ["relu", "relu6"]),)

#: Functions that make an array of a number before they look at it, so that any number takes the
#: same steps.
_NUMBERS = {
    "fold_in": public_functions.Number(1, "data", np.uint32),
    "key": public_functions.Number(0, "seed", np.int64),
    "PRNGKey": public_functions.Number(0, "seed", np.int64),
}

#: By a name that a program registered, `optimize` calls a function of the program's.
_LEFT_WITH = {"einsum": "optimize"}

#: The second argument of an operator where calls without a number are not replayed.
_NUMBER = public_functions.Number(1, "other", None, only=True)

#: Methods of `x.at[...]`.
_UPDATES = (
    "add", "apply", "divide", "get", "max", "min", "mul", "multiply", "power", "set", "subtract",
)

#: Methods of arrays that are functions of Python, beside `__getitem__`.
_METHODS = (
    "argmax", "argmin", "astype", "clip", "copy", "ptp", "repeat", "reshape", "squeeze", "std",
    "swapaxes", "trace", "transpose", "var",
)

#: Methods of arrays of keys. They share some with arrays.
_KEY_METHODS = ("__getitem__", "reshape", "squeeze", "swapaxes", "transpose")

#: Operators of arrays; and those that take little more than one dispatch without a number.
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "pow", "rpow", "and", "rand", "or", "ror", "xor",
    "rxor",
)
_NUMBER_OPERATORS = (
    "truediv", "rtruediv", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge",
)

#: Those that decide by the elements of what is no array: by a small integer as exponent.
_BY_VALUE = ("__pow__", "__rpow__")

#: How programs write them.
_SYMBOLS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//",
    "__mod__": "%", "__pow__": "**", "__and__": "&", "__or__": "|", "__xor__": "^",
    "__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=",
}  # fmt: skip

#: The same for methods that are no operators.
_OTHER_SYMBOLS = {
    "__bool__": "bool(x)", "__float__": "float(x)", "__format__": "format(x)",
    "__getitem__": "keys[...]", "__index__": "operator.index(x)", "__int__": "int(x)",
    "__iter__": "iter(keys)",
}  # fmt: skip

#: The same of numpy's kind of functions. Those that operators lead to are not among them: a call of
#: an operator that is new would be looked at twice.
_NUMBER_UFUNCS = ("maximum", "minimum")


#: How programs write the modules, where that is not the module's name.
_SHORT = {"jax.numpy": "jnp", "jax.numpy.linalg": "jnp.linalg", "jax.numpy.fft": "jnp.fft"}


#: By id of a function or object that was found: how programs write it.
_names: dict[int, str] = {}


def _has_number(args: tuple[Any, ...]) -> bool:
    """Is the second of an operator's arguments a plain number?"""
    return len(args) > 1 and type(args[1]) in (int, float)


def is_replayed(operator: str, args: tuple[Any, ...]) -> bool:
    """Is an operator of an array replayed for these arguments? `operator` is such as `radd`."""
    if operator in _NUMBER_OPERATORS:
        return _has_number(args)
    return operator in (*_OPERATORS, "getitem")


def is_left(ufunc: Any, args: tuple[Any, ...]) -> bool:
    """Is it a call of one of numpy's kind of functions that is JAX's own one dispatch?"""
    return type(ufunc) is private.ufunc and not _has_number(args)


def _found(modules: tuple[tuple[str, list[str]], ...]) -> Iterator[Any]:
    """What the installed JAX has of these names, each object once."""
    seen = set()
    for module, names in modules:
        for name in names:
            found = private.lookup_quietly(module, name)
            if found is not None and id(found) not in seen:
                seen.add(id(found))
                _names.setdefault(id(found), f"{_SHORT.get(module, module)}.{name}")
                yield found


def _number_of(function: FunctionType) -> public_functions.Number | None:
    is_of_random = public_functions.is_of_random(function)
    return _NUMBERS.get(function.__name__) if is_of_random else None


def functions() -> list[tuple[Any, Any]]:
    """Pairs of a function of the reference and its replacement."""
    if not private.HAVE_REPLAY:
        return []
    return [
        (function, public_functions.make_row(
            "functions", function, _number_of(function), _LEFT_WITH.get(function.__name__),
            _names[id(function)], function.__name__ in _WITH_FUNCTIONS,
            public_functions.HOST_OR_ITEMS if function.__name__ in _WITH_HOST else 0,
        ))
        for function in _found((*_MODULES, ("jax.lax", sorted(_WITH_FUNCTIONS))))
        if type(function) is FunctionType
    ] + [
        (function, device_get.make_getter("functions", function, _names[id(function)]))
        for function in _found((("jax", ["device_get"]),) if private.HAVE_FETCHES else ())
        if type(function) is FunctionType
    ]


def methods() -> list[tuple[type, str, Any, Any]]:
    """A class, the name of its method, the reference's method and its replacement."""
    if not private.HAVE_REPLAY:
        return []
    array = private.ArrayImpl
    places: list[tuple[type, str, Any]]
    places = [(private.IndexUpdateRef, name, None) for name in _UPDATES]
    places += [(array, name, None) for name in _METHODS]
    places += [(array, f"__{name}__", None) for name in _OPERATORS]
    operators = {f"__{name}__" for name in _OPERATORS}.difference(_BY_VALUE)
    places += [(array, f"__{name}__", _NUMBER) for name in _NUMBER_OPERATORS]
    places += [(private.PRNGKeyArray, name, None) for name in _KEY_METHODS]
    found = []
    made: dict[FunctionType, Any] = {}    # what two classes share is made once
    for cls, name, number in places:
        method = vars(cls).get(name)
        if type(method) is not FunctionType:
            continue
        if method not in made:
            made[method] = public_functions.make_row(
                "functions", method, number, written=name_of(method, cls, name),
                host=public_functions.HOST_AS_OPERAND if name in operators else 0,
                with_index=cls is private.IndexUpdateRef or name == "__getitem__",
                with_value=cls is private.IndexUpdateRef and name not in ("apply", "get"),
            )
        found.append((cls, name, method, made[method]))
    return [*found, *_calls_of_objects(), *_iteration(), *_scalar_reads()]


def _late_names(module: str) -> Iterator[tuple[str, list[str]]]:
    """The public names of a module that has been imported, and of the modules in it."""
    namespace = vars(sys.modules[module])
    yield module, [name for name in namespace if not name.startswith("_")]
    for found in list(namespace.values()):
        if isinstance(found, ModuleType) and found.__name__.startswith(f"{module}."):
            yield from _late_names(found.__name__)


def late_functions(module: str) -> list[tuple[Any, Any]]:
    """As `functions`, for one of `LATE_MODULES` that has been imported.

    Calls of its functions that are objects with a derivative of their own are replayed from now on:
    they share the method that `methods` replaces. Needs `HAVE_REPLAY`.
    """
    bypassed.watch_late([
        found
        for name, found in list(sys.modules.items())
        if name.startswith(_LATE_HOMES) and isinstance(found, ModuleType)
    ])
    pairs = []
    for function in _found(tuple(_late_names(module))):
        if not getattr(function, "__module__", "").startswith(_LATE_HOMES):
            continue
        written = _names[id(function)]
        if type(function) is FunctionType:
            row = public_functions.make_row("functions", function, written=written, late=True)
            pairs.append((function, row))
        elif type(function) is private.custom_jvp:
            public_functions.add_object(
                "functions", private.custom_jvp_call, function, None, written, late=True
            )
    return pairs


def _hand_out(take_apart: Callable[[Any], tuple[Any, ...]], keys: Any) -> Iterator[Any]:
    return (key for apart in (take_apart,) for key in apart(keys))


def _iteration() -> Iterator[tuple[type, str, Any, Any]]:
    """The method by which programs go through arrays of keys."""
    cls = private.PRNGKeyArray
    method = vars(cls).get("__iter__")
    if type(method) is FunctionType:
        written = name_of(method, cls, "__iter__")
        yield cls, "__iter__", method, key_iteration.make_iteration(
            "functions", method, _hand_out, written
        )


def _scalar_reads() -> Iterator[tuple[type, str, Any, Any]]:
    """The methods that make a Python scalar, or a text, of an array."""
    cls = private.ArrayImpl
    for name in scalar_reads.CONVERSIONS if private.HAVE_SCALAR_READS else ():
        method = vars(cls).get(name)
        if type(method) is FunctionType:
            written = name_of(method, cls, name)
            yield cls, name, method, scalar_reads.make_reader("functions", name, method, written)


def _calls_of_objects() -> Iterator[tuple[type, str, Any, Any]]:
    """The methods by which functions that are objects of a class are called."""
    derivatives = [(function, None) for function in _found(_WITH_DERIVATIVES)]
    ufuncs = [(function, _NUMBER) for function in _found((("jax.numpy", list(_NUMBER_UFUNCS)),))]
    for cls, reference, listed in (
        (private.custom_jvp, private.custom_jvp_call, derivatives),
        (private.ufunc, private.ufunc_call, ufuncs),
    ):
        chosen = [
            (function, number, _names[id(function)])
            for function, number in listed
            if type(function) is cls
        ]
        call = public_functions.make_object_call("functions", reference, chosen)
        yield cls, "__call__", reference, call


def name_of(original: Any, holder: type | None, attribute: str) -> str:
    """How programs write a function or method that is replayed.

    Empty for the methods by which objects are called: of these, `name_of_object` knows the name.
    """
    if holder is None:
        return _names.get(id(original), "")
    if attribute == "__call__":
        return ""
    if attribute in _SYMBOLS:
        return f"x {_SYMBOLS[attribute]} y"
    if attribute.replace("__r", "__", 1) in _SYMBOLS:
        return f"y {_SYMBOLS[attribute.replace('__r', '__', 1)]} x"
    if attribute in _OTHER_SYMBOLS:
        return _OTHER_SYMBOLS[attribute]
    return f"x.at[...].{attribute}" if holder is private.IndexUpdateRef else f"x.{attribute}"


def name_of_object(function: Any) -> str:
    """How programs write a function that is an object of JAX's; empty where nobody knows."""
    return _names.get(id(function)) or str(getattr(function, "__name__", ""))
