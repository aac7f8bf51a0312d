"""Why a call went to JAX itself, in words a user can act on.

The order is that of the C enum `Reason` in `_reports/counting.pxd`. `docs/reasons.md` is made of
this list, by
`python -c "from jaxmarshal.reasons import page; print(page(), end='')" > docs/reasons.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Reason(NamedTuple):
    """One reason.

    Attributes:
      name: the key in `stats()`.
      meaning: what it says about the call.
      advice: what the user can do about it; empty for a hit.
      example: a call that has it; empty for a hit. `compiled` was compiled ahead of time.
      ordinary: do such misses belong to ordinary programs? Then the log has them at DEBUG.
    """

    name: str
    meaning: str
    advice: str
    example: str = ""
    ordinary: bool = False


#: How advice begins where the first calls of a kind miss.
_FIRST = "Nothing for the first calls of a kind: jaxmarshal records them, and later ones are fast."

REASONS: tuple[Reason, ...] = (
    Reason("hit", "The call took the fast path.", ""),
    Reason(
        "unsupported",
        "The entry point is not accelerated with the installed JAX.",
        "See `python -m jaxmarshal doctor` for the missing piece.",
        "any call, with a JAX outside the supported range",
    ),
    Reason(
        "not_recorded",
        "jaxmarshal has not recorded such a call yet: this function, with these kinds, dtypes, "
        "shapes and targets of arguments, under this configuration of JAX.",
        f"{_FIRST} Where call after call misses, pad to a few shapes, pass numbers that change as "
        "arrays, and use numeric dtypes in native byte order.",
        "`device_put(np.zeros(3))`, the first time",
        ordinary=True,
    ),
    Reason(
        "options",
        "The call has an option or an argument that only JAX handles, such as src= "
        "or donate=True.",
        "Leave it out where you do not need it.",
        "`device_put(x, donate=True)`",
    ),
    Reason(
        "trace",
        "A JAX trace is in progress (jit, grad, vmap, ...).",
        "Nothing: inside a trace there is nothing to marshal.",
        "`jax.jit(lambda x: device_put(x))(1.0)`",
        ordinary=True,
    ),
    Reason(
        "context",
        "Several processes take part, and the call places data on devices of others, runs single "
        "operations, or gives host data to a compiled function; or names of mapped axes are bound "
        "outside of a trace, or a mesh has manual axes.",
        "With several processes, make global arrays by jax.make_array_from_process_local_data, and "
        "pass arrays that are in place to compiled functions (see docs/distributed.md); else "
        "nothing.",
        "`device_put(x, sharding)` with devices of several processes",
    ),
    Reason(
        "guard",
        "A transfer guard is set, and the call would transfer data.",
        "Remove jax.transfer_guard or set it to 'allow' where the program runs for real.",
        "`device_put(np.zeros(3))` under `jax.transfer_guard('disallow')`",
    ),
    Reason(
        "profiler",
        "A profile is being taken; JAX adds its annotations to it.",
        "Nothing: without the profiler the call is fast again.",
        "`device_put(x)` between `jax.profiler.start_trace(folder)` and `stop_trace()`",
    ),
    Reason(
        "hook",
        "A post-hook is set, for instance by jax.debug_nans, which looks at all results.",
        "Turn debug_nans and debug_infs off where speed matters.",
        "`compiled(x)` under `jax.debug_nans(True)`",
    ),
    Reason(
        "listener",
        "Something listens to JAX's internal test events.",
        "Nothing: only JAX's own tests do that.",
        "`device_put(x)` in JAX's test suite",
    ),
    Reason(
        "target",
        "The target is neither None nor a Device, SingleDeviceSharding or NamedSharding, nor a "
        "PartitionSpec while a mesh is set, nor a Format or memory space; or it is a Device, and "
        "an array lies on another platform, in other memory or by another kind of sharding.",
        "Pass a sharding as the target, for example NamedSharding(mesh, spec).",
        "`device_put(h, Format(None, sharding))` of numpy data",
    ),
    Reason(
        "tree",
        "Only JAX handles this tree of arguments or targets, or the function was compiled for "
        "another one.",
        "If targets are a tree, let both be builtin containers of the same structure, with str or "
        "int keys; pass a compiled function the structure it was lowered with.",
        "`device_put([x, y], [device])`",
    ),
    Reason(
        "unknown_type",
        "JAX does not know an argument's exact type as an array or scalar; a subclass of one "
        "counts as unknown.",
        "Convert it to numpy.ndarray, jax.Array or a Python scalar.",
        "`device_put(np.ma.masked_array([1.0]))`",
    ),
    Reason(
        "tracer",
        "An argument is a tracer, and no trace is in progress: it leaked out of one.",
        "Return the value from the traced function instead of storing it elsewhere.",
        "`device_put(x)`, where a function under `jax.jit` has stored `x` outside of itself",
    ),
    Reason(
        "ref",
        "An argument is a mutable array reference.",
        "Pass its value, ref[...], where the function does not write to it.",
        "`device_put(jax.new_ref(x))`",
    ),
    Reason(
        "key_array",
        "device_put passes PRNG keys to JAX. Compiled functions take them fast.",
        "Nothing for a few keys. Pass them to compiled functions without a device_put, and set "
        "jax.debug_key_reuse only while you look for a mistake.",
        "`device_put(jax.random.key(0))`",
    ),
    Reason(
        "token",
        "An argument is a token, which orders side effects.",
        "Nothing: tokens belong to JAX.",
        "`device_put(token)`, in code that handles JAX's tokens itself",
    ),
    Reason(
        "literal",
        "An argument is a constant of JAX's own, as in a jaxpr.",
        "Nothing where JAX's own code passes it; else convert it: numpy.asarray(x).",
        "`device_put(literal.val)`, with a literal that was found in a jaxpr",
    ),
    Reason(
        "executable",
        "The executable has effects, callbacks, mutable references, a custom data layout, or "
        "constants of its own that it does not use.",
        "Leave jax.debug.print and callbacks out where speed matters; else nothing.",
        "`compiled(x)`, where the function calls `jax.debug.print`",
    ),
    Reason(
        "aval",
        "An argument's shape, dtype or weak type, or a key's implementation, is not the recorded "
        "one.",
        "Pass the same kind of argument each time; jnp.asarray(x, dtype) removes weak types.",
        "`compiled(jnp.ones(4))`, where it was called with `jnp.ones(3)`",
    ),
    Reason(
        "sharding",
        "An argument's sharding is not the recorded one, or not where the executable wants it.",
        "Place the argument first: jax.device_put(x, sharding).",
        "`compiled(jax.device_put(x, jax.devices()[1]))`",
    ),
    Reason(
        "committed",
        "An argument is committed where it was not when the plan was recorded, or the reverse.",
        "Nothing for the first such call. Place all arguments in the same way, with or without an "
        "explicit target.",
        "`compiled(jax.device_put(x, jax.devices()[0]))`, where it was called with `jnp.ones(3)`",
    ),
    Reason(
        "layout",
        "An argument's data are not in the default layout, or nothing tells whether they are.",
        "jnp.copy(x) gives an array in the default layout.",
        "`compiled(jax.dlpack.from_dlpack(a.T))`",
    ),
    Reason(
        "deleted",
        "An array was deleted or donated.",
        "Do not use an array after you donate it.",
        "`x.delete(); device_put(x)`",
    ),
    Reason(
        "dtype",
        "Only JAX handles the dtype of an array.",
        "Use a numeric dtype.",
        "`device_put(x)`, where `x` is a `jax.Array` of strings",
    ),
    Reason(
        "value",
        "Converting the value to JAX's dtype may warn or fail, the array has more than 16384 "
        "64-bit elements, or JAX's cache of converted arrays has another one for it.",
        "Convert to the 32-bit dtype first: x.astype(numpy.float32).",
        "`device_put(1e300)`",
    ),
    Reason(
        "host_leaves",
        "jaxlib transfers numpy arguments faster than jaxmarshal can; in a call of a jitted "
        "function those of more than 32 KiB, donated ones, and others while nothing says that an "
        "earlier call has read its own.",
        "Nothing; or place what you pass more than once with jax.device_put.",
        "`compiled(np.ones(3))`, with fewer than 80 arrays beside it",
    ),
    Reason(
        "no_backend",
        "No backend is initialised yet, and JAX does that.",
        "Nothing: it is the first call of the program.",
        "`device_put(x)`, as the first use of JAX",
        ordinary=True,
    ),
    Reason(
        "replaced",
        "Something replaced a function, method or table of JAX that the fast path skips, as "
        "`mock.patch` does.",
        "Nothing while you mean it: JAX calls the replacement. Put the original back afterwards.",
        "`lax.neg(x)`, with `jax._src.core.EvalTrace.process_primitive` replaced",
    ),
    Reason(
        "object_layout",
        "jaxmarshal cannot read the words of the arguments from the arrays: "
        "JAXMARSHAL_OBJECT_LAYOUT is off, or calibration did not find them, or not on this "
        "backend. To ask each array's attributes would take longer than the call.",
        "See `python -m jaxmarshal doctor` for which word is missing and why.",
        "`compiled(x)` with JAXMARSHAL_OBJECT_LAYOUT=off",
    ),
)

#: The entry points that programs call, and how they write such a call.
PUBLIC: dict[str, str] = {
    "jit": "jitted functions",
    "filter_jit": "jaxmarshal.filter_jit",
    "equinox_filter_jit": "equinox.filter_jit",
    "compiled_call": "compiled ahead of time",
    "device_put": "jax.device_put",
    "make_array_from_process_local_data": "jax.make_array_from_process_local_data",
    "asarray": "jnp.asarray",
    "array": "jnp.array",
    "zeros": "jnp.zeros",
    "ones": "jnp.ones",
    "full": "jnp.full",
    "getitem": "x[...]",
    "functions": "functions of jax.numpy, jax.nn, jax.lax and jax.random",
    "bind": "single operations",
    "nnx_jit": "nnx.jit",
}

#: By entry point, "" for all others: the reasons of calls that are made while JAX traces. What an
#: operation is given then is a tracer, of whatever type.
TRACING: dict[str, tuple[str, ...]] = {
    "": ("trace", "tracer"),
    "bind": ("trace", "tracer", "unknown_type"),
}

_BY_NAME = {reason.name: reason for reason in REASONS}

#: Where a reason means something else at one entry point: (its name, the reason) -> the reason.
_SPECIAL: dict[tuple[str, str], Reason] = {
    ("jit", "literal"): _BY_NAME["literal"]._replace(
        meaning="JAX's own code, such as that of jnp.zeros or grad, passes a number to a jitted "
        "function.",
        advice="Nothing: a step of the program that is jitted as a whole makes no such calls.",
        ordinary=True,
    ),
    ("nnx_jit", "not_recorded"): _BY_NAME["not_recorded"]._replace(
        meaning="Nothing was recorded yet for such modules: their classes, attributes, variables "
        "and what they share; or the function changes more of them than values.",
        advice=f"{_FIRST} Where call after call misses, create variables and set static "
        "attributes outside of the function.",
    ),
    ("nnx_jit", "options"): _BY_NAME["options"]._replace(
        meaning="The function was made with in_shardings=, or is called through cached_partial.",
        advice="Leave cached_partial out: nnx.jit alone is faster with jaxmarshal.",
    ),
    ("getitem", "options"): _BY_NAME["options"]._replace(
        meaning="The index holds something else than Python integers, slices, `...`, None and "
        "jax.Arrays.",
        advice="Index with these where you can, or move the line into a jitted function.",
    ),
    ("functions", "options"): _BY_NAME["options"]._replace(
        meaning="An argument is something else than an array, a key, a plain value or a dtype, or "
        "a list or tuple of those: a function, a sharding, a long list, and for most functions a "
        "numpy array.",
        advice="Nothing for a few of them; else move the lines into a jitted function.",
        ordinary=True,
    ),
    ("functions", "literal"): _BY_NAME["literal"]._replace(ordinary=True),
    ("asarray", "options"): _BY_NAME["options"]._replace(
        meaning="jnp.asarray got a sharding, a long list, or an object of another type.",
        advice="Place the array with jax.device_put(x, sharding); make long lists numpy arrays.",
    ),
    ("array", "options"): _BY_NAME["options"]._replace(
        meaning="jnp.array got a sharding, a long list, or an object of another type.",
        advice="Place the array with jax.device_put(x, sharding); make long lists numpy arrays.",
    ),
    ("bind", "options"): _BY_NAME["options"]._replace(
        meaning="The operation has parameters, such as those of jit and grad, that only JAX "
        "handles.",
        advice="Nothing for a few of them; else move the lines into a jitted function.",
        ordinary=True,
    ),
    ("bind", "unknown_type"): _BY_NAME["unknown_type"]._replace(
        meaning="An operation got a tracer, because JAX was tracing, or an argument whose exact "
        "type is not known to JAX.",
        advice="Nothing while JAX traces; else convert it to numpy.ndarray or jax.Array.",
        ordinary=True,
    ),
}


#: Where Python numbers are part of what is recorded: what to do where they change in each call.
_NUMBERS: dict[str, str] = {
    "getitem": "index with an array, x[jnp.asarray(i)], or use jnp.take or jax.lax.dynamic_slice "
    "with one; use jnp.where in place of a boolean mask, whose elements decide about a shape; or "
    "jit the function around the line.",
    "functions": "pass the number that changes as an array, jnp.asarray(i), or jit the function "
    "around the line.",
    "asarray": "make a numpy array of the list first: jnp.asarray(np.array(values, np.float32)).",
    "array": "make a numpy array of the list first: jnp.array(np.array(values, np.float32)).",
    **dict.fromkeys(("zeros", "ones", "full"), "use a few shapes and values, again and again."),
}

#: And where they are not.
_SHARED = {"getitem": " Rows, x[i, j] or x[i:i + 8], are recorded once for all of them."}

for _entry, _advice in _NUMBERS.items():
    _SPECIAL[_entry, "not_recorded"] = _BY_NAME["not_recorded"]._replace(
        meaning="jaxmarshal has not recorded a call with these shapes, dtypes and Python numbers "
        "yet. The value of a number decides: each new value is recorded anew."
        + _SHARED.get(_entry, ""),
        advice=f"{_FIRST} Where call after call misses, {_advice}",
    )

#: Entry points that compile, and record, a call of another kind than before.
_COMPILING = ("jit", "filter_jit", "equinox_filter_jit", "nnx_jit")

for _entry in _COMPILING:
    for _name, _kind, _advice in (
        ("aval", "shape or dtype", "pad to a few shapes; jnp.asarray(x, dtype) removes weak types"),
        ("sharding", "sharding", "place the argument first: jax.device_put(x, sharding)"),
        ("committed", "placement", "place all arguments in the same way"),
    ):
        _SPECIAL[_entry, _name] = _BY_NAME[_name]._replace(
            advice=f"Nothing for a new {_kind}: the call will be recorded, and is fast from the "
            f"call after. Where call after call misses, {_advice}.",
        )

#: So many misses, and no hit among them, are no first calls.
MANY = 16


def reason_for(
    entry_point: str, name: str, hits: int = 0, misses: int = 0, one_function: bool = False
) -> Reason:
    """The reason with this name, in the words that fit the entry point.

    Args:
      entry_point: its name in `stats()`.
      name: the name of the reason.
      hits: how many of these calls hit so far, and
      misses: how many had this reason. With many misses and no hit the advice is not to wait. Of
        entry points that compile it is all the same: so many functions have first calls; but not
      one_function: where these are the calls of a single function.
    """
    reason = _SPECIAL.get((entry_point, name), _BY_NAME[name])
    many_functions = entry_point in (*_COMPILING, "compiled_call") and not one_function
    if hits or misses < MANY or many_functions or _FIRST not in reason.advice:
        return reason
    advice = reason.advice.removeprefix(f"{_FIRST} Where call after call misses, ")
    return reason._replace(
        meaning=f"{misses} such calls missed so far, and none hit. It seems that they "
        "differ in a number or a shape, and each new value or shape is recorded anew.",
        advice=advice[0].upper() + advice[1:],
    )


def advice_for(found: Iterable[tuple[str, Reason]]) -> list[tuple[str, str]]:
    """What reasons mean and what to do, each text once: (of what, text).

    Args:
      found: pairs of what is called and why it was not fast. Of what is told where the same
        reason means several things.
    """
    texts: dict[tuple[str, str], dict[str, None]] = {}
    for call, reason in found:
        text = f"{reason.meaning} What to do: {reason.advice}"
        texts.setdefault((reason.name, text), {})[call] = None
    names = [name for name, _ in texts]
    return [
        (f"{name}, {', '.join(calls)}" if names.count(name) > 1 else name, text)
        for (name, text), calls in texts.items()
    ]


_PAGE = """\
# Why a call went to JAX itself

JAX makes every call that jaxmarshal does not recognise. The result is the same;
the call is only not faster. There are four ways to find out why:

- `jaxmarshal.report()` shows the most frequent reasons;
- `jaxmarshal.stats()` counts all of them by the names below;
- `jaxmarshal.explain(f, *args)` says which one a call would have, and for which argument;
- the logger `jaxmarshal` writes one line on the first miss of each kind: at INFO, or at DEBUG where
  nobody has to act on it. That is so for ordinary misses (marked *), while JAX traces, and inside
  of JAX. Of a jitted function the line has the name and the place.

<!-- Made from reasons.py, whose docstring says how; do not edit. -->
"""


def page() -> str:
    """The text of `docs/reasons.md`."""
    parts = [_PAGE]
    for reason in REASONS[1:]:
        mark = " *" if reason.ordinary else ""
        parts.append(
            f"## `{reason.name}`{mark}\n\n{reason.meaning}\n\n"
            f"- What to do: {reason.advice}\n- Example: {reason.example}\n"
        )
    return "\n".join(parts)
