"""Why a call went to the reference, in words a user can act on.

The order is that of the C enum `Reason` in `_stats.pxd`.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """One reason: the key in `stats()`, what it means, and what the user can do about it."""

    name: str
    meaning: str
    advice: str


REASONS: tuple[Reason, ...] = (
    Reason("hit", "The call took the fast path.", ""),
    Reason(
        "unsupported",
        "The entry point is not accelerated with the installed JAX.",
        "See `python -m jaxmarshal doctor` for the missing piece.",
    ),
    Reason(
        "not_recorded",
        "Nothing was recorded yet for an argument of this kind, dtype, shape and target.",
        "Nothing: the next such call is fast. If every call differs, pad to a few shapes.",
    ),
    Reason(
        "options",
        "The call has options (src=, donate=, may_alias=False) that only the reference handles.",
        "Leave them out where they are not needed.",
    ),
    Reason(
        "trace",
        "A JAX trace is in progress (jit, grad, vmap, ...).",
        "Nothing: inside a trace there is nothing to marshal.",
    ),
    Reason(
        "context",
        "No backend is initialised yet, or several processes take part.",
        "Nothing for the first call; multi-process programs stay with the reference.",
    ),
    Reason(
        "guard",
        "A transfer guard is set.",
        "Remove jax.transfer_guard or set it to 'allow'.",
    ),
    Reason(
        "profiler",
        "A profile is being taken; the reference adds its annotations to it.",
        "Nothing: without the profiler the call is fast again.",
    ),
    Reason(
        "hook",
        "A post-hook is set, for instance by jax.debug_nans.",
        "Switch debug_nans and debug_infs off where speed matters.",
    ),
    Reason(
        "listener",
        "JAX's internal test events are being listened to.",
        "Only JAX's own tests do that.",
    ),
    Reason(
        "target",
        "The target is not None, a Device, a SingleDeviceSharding or a NamedSharding.",
        "Pass one of those, for example NamedSharding(mesh, spec) instead of a PartitionSpec.",
    ),
    Reason(
        "tree",
        "The tree, or the tree of targets, is one that only the reference handles.",
        "Use builtin containers with plain str or int keys, and targets of the same structure.",
    ),
    Reason(
        "unknown_type",
        "An argument's exact type is not known to JAX as an array or scalar.",
        "Convert it to numpy.ndarray, jax.Array or a Python scalar.",
    ),
    Reason("tracer", "An argument is a tracer.", "Nothing: tracers belong to the reference."),
    Reason("ref", "An argument is a mutable array reference.", "Pass its value, ref[...]."),
    Reason(
        "key_array",
        "An argument is a typed PRNG key array.",
        "Nothing, or pass jax.random.key_data(key).",
    ),
    Reason("token", "An argument is a token.", "Nothing: tokens belong to the reference."),
    Reason("literal", "An argument is a literal array of a jaxpr.", "Nothing."),
    Reason(
        "executable",
        "The executable has effects, callbacks, mutable references, constants of its own, "
        "or a custom data layout.",
        "Nothing: the reference runs it.",
    ),
    Reason(
        "aval",
        "An argument's shape, dtype or weak type is not the recorded one.",
        "Pass the same kind of argument each time; jnp.asarray(x, dtype) removes weak types.",
    ),
    Reason(
        "sharding",
        "An argument's sharding is not the one the executable was recorded with.",
        "Place the argument first: jax.device_put(x, sharding).",
    ),
    Reason(
        "committed",
        "An argument is committed where it was not when the plan was recorded, or the reverse.",
        "Place all arguments in the same way, with or without an explicit target.",
    ),
    Reason(
        "layout",
        "An argument's data are not in the default layout, or it cannot be told.",
        "jnp.copy(x) gives an array in the default layout.",
    ),
    Reason(
        "deleted",
        "An array was deleted or donated.",
        "Do not use an array after it was donated.",
    ),
    Reason(
        "dtype",
        "The dtype is one that only the reference handles.",
        "Use a numeric dtype in native byte order.",
    ),
    Reason(
        "value",
        "Converting the value to JAX's dtype may warn or fail, or the array is large.",
        "Convert to the 32-bit dtype first: x.astype(numpy.float32).",
    ),
    Reason(
        "host_leaves",
        "Too many arguments of a compiled call are host data, which jaxlib's own C++ call places "
        "at less cost than any call from outside.",
        "Nothing; or place with jax.device_put what is passed more than once.",
    ),
)
