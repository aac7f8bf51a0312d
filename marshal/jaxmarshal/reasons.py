"""Why a call went to the reference, in words a user can act on.

The order is that of the C enum `Reason` in `_stats.pxd`. `docs/reasons.md` is made from this list:
`python -c "from jaxmarshal.reasons import page; print(page(), end='')" > docs/reasons.md`.
"""

from __future__ import annotations

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
        "Nothing was recorded yet for such a call: its function, the kinds, dtypes, shapes and "
        "targets of its arguments, and JAX's configuration.",
        "Nothing: the next such call is fast. Where call after call misses, pad to a few shapes, "
        "and use numeric dtypes in native byte order.",
        "`device_put(np.zeros(3))`, the first time",
        ordinary=True,
    ),
    Reason(
        "options",
        "The call has an option or an argument that only the reference handles: src=, donate=, "
        "may_alias=False; dtype= of jnp.asarray, and what is no host data there.",
        "Leave them out where they are not needed.",
        "`device_put(x, may_alias=False)`",
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
        "Several processes take part, and the call is not one of a compiled function with arrays "
        "only; or names of mapped axes are bound outside of a trace.",
        "Where several processes take part, pass arrays that are in place to functions compiled "
        "ahead of time (see docs/distributed.md); else nothing.",
        "`device_put(x)` after `jax.distributed.initialize()`",
    ),
    Reason(
        "guard",
        "A transfer guard is set, and the call would transfer data.",
        "Remove jax.transfer_guard or set it to 'allow' where the program runs for real.",
        "`device_put(np.zeros(3))` under `jax.transfer_guard('disallow')`",
    ),
    Reason(
        "profiler",
        "A profile is being taken; the reference adds its annotations to it.",
        "Nothing: without the profiler the call is fast again.",
        "`device_put(x)` between `jax.profiler.start_trace(folder)` and `stop_trace()`",
    ),
    Reason(
        "hook",
        "A post-hook is set, for instance by jax.debug_nans, which looks at all results.",
        "Switch debug_nans and debug_infs off where speed matters.",
        "`compiled(x)` under `jax.debug_nans(True)`",
    ),
    Reason(
        "listener",
        "JAX's internal test events are being listened to.",
        "Nothing: only JAX's own tests do that.",
        "`device_put(x)` in JAX's test suite",
    ),
    Reason(
        "target",
        "The target is not None, a Device, a SingleDeviceSharding or a NamedSharding; or it is a "
        "Device, and an array lies on several devices, on another platform or in other memory.",
        "Pass a sharding as the target, for example NamedSharding(mesh, spec) instead of a "
        "PartitionSpec.",
        "`device_put(x, PartitionSpec('x'))` under a mesh",
    ),
    Reason(
        "tree",
        "The tree of arguments, or of targets, is one that only the reference handles, or not the "
        "one the function was compiled for.",
        "Where targets are a tree, let both be builtin containers of the same structure, with str "
        "or int keys; pass a compiled function the structure it was lowered with.",
        "`device_put([x, y], [device])`",
    ),
    Reason(
        "unknown_type",
        "An argument's exact type is not known to JAX as an array or scalar; subclasses are not.",
        "Convert it to numpy.ndarray, jax.Array or a Python scalar.",
        "`device_put(np.ma.masked_array([1.0]))`",
    ),
    Reason(
        "tracer",
        "An argument is a tracer, and no trace is in progress: it has leaked out of one.",
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
        "An argument is a typed PRNG key array: device_put and shard_args leave those to the "
        "reference, compiled functions only under jax.debug_key_reuse.",
        "Nothing for a few keys. Keys need no device_put to be passed to a compiled function.",
        "`device_put(jax.random.key(0))`",
    ),
    Reason(
        "token",
        "An argument is a token, which orders side effects.",
        "Nothing: tokens belong to the reference.",
        "`device_put(token)`, in code that handles JAX's tokens itself",
    ),
    Reason(
        "literal",
        "An argument is a literal, as they stand in jaxprs.",
        "Convert it: numpy.asarray(x).",
        "`device_put(literal.val)`, with a literal that was found in a jaxpr",
    ),
    Reason(
        "executable",
        "The executable has effects, callbacks, mutable references, constants of its own that "
        "it does not use, or a custom data layout.",
        "Leave jax.debug.print and callbacks out where speed matters; else nothing.",
        "`compiled(x)`, where the function calls `jax.debug.print`",
    ),
    Reason(
        "aval",
        "An argument's shape, dtype or weak type is not the recorded one, or a key's "
        "implementation is not.",
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
        "An argument's data are not in the default layout, or it cannot be told.",
        "jnp.copy(x) gives an array in the default layout.",
        "`compiled(jax.dlpack.from_dlpack(a.T))`",
    ),
    Reason(
        "deleted",
        "An array was deleted or donated.",
        "Do not use an array after it was donated.",
        "`x.delete(); device_put(x)`",
    ),
    Reason(
        "dtype",
        "An array's dtype is one that only the reference handles.",
        "Use a numeric dtype.",
        "`device_put(x)`, where `x` is a `jax.Array` of strings",
    ),
    Reason(
        "value",
        "Converting the value to JAX's dtype may warn or fail, or the array has more than 16384 "
        "64-bit elements.",
        "Convert to the 32-bit dtype first: x.astype(numpy.float32).",
        "`device_put(1e300)`",
    ),
    Reason(
        "host_leaves",
        "Too many arguments of a compiled call are host data, which jaxlib's own C++ call places "
        "at less cost than any call from outside.",
        "Nothing; or place with jax.device_put what is passed more than once.",
        "`compiled(np.ones(3))`, with fewer than 20 arrays beside it",
    ),
    Reason(
        "no_backend",
        "No backend is initialised yet: the reference does that.",
        "Nothing: it is the first call of the program.",
        "`device_put(x)`, as the first use of JAX",
        ordinary=True,
    ),
)

_PAGE = """\
# Why a call went to JAX itself

Whatever jaxmarshal does not recognise is performed by JAX, the *reference*: results are the same,
the call is only not faster. `jaxmarshal.stats()` counts such misses by the names below,
`jaxmarshal.explain(f, *args)` says which one a call would have, and for which argument, and the
logger `jaxmarshal` has one line on the first miss of each kind: at INFO, or at DEBUG where such
misses are ordinary (marked *).

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
