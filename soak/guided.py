"""Coverage-guided fuzzing of the tree walker and the argument table, with plain JAX as the oracle.

    make fuzz [ARGS="--seconds 600"]

libFuzzer, through atheris, invents bytes; they say which tree of which leaves is made, and which
of three things is done with it: it is put on a device, as one tree or as flat arguments, or a
compiled function for a tree much like it is called. Inputs that reach new places in the C code are
kept and varied. The extension modules are those of `make asan`. What is found wrong is written to
a file build/fuzz/crash-…, which `--repeat FILE` runs again.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import gc
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "build" / "fuzz"
#: Inputs that reach what no other does; the next run starts from them.
CORPUS = FOLDER / "corpus"

try:
    import atheris
except ImportError:
    print("NOT DONE: coverage-guided fuzzing; atheris has no release for this Python", flush=True)
    sys.exit()

# libFuzzer has to know of our counters before it starts. It is part of this module of atheris.
libfuzzer = ctypes.CDLL(importlib.import_module("atheris.core_with_libfuzzer").__file__)
ctypes.CDLL(None).coverage_register(
    libfuzzer.__sanitizer_cov_8bit_counters_init, libfuzzer.__sanitizer_cov_pcs_init
)
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaxmarshal  # noqa: E402
from jaxmarshal._core.values import live_objects  # noqa: E402
from jaxmarshal._jax import private  # noqa: E402
from jaxmarshal.selfcheck.observe import outcome  # noqa: E402
from jaxmarshal.selfcheck.runner import first_difference  # noqa: E402

if not live_objects.debug_build():
    sys.exit("This needs modules built with JAXMARSHAL_BUILD=asan; see `make fuzz`")

Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_pytree_node_class
class Node:
    """A custom node that may misbehave when it is taken apart."""

    #: The lists that the habits of nodes change, while one call is made.
    victims: list[Any] = []  # noqa: RUF012
    #: Has one of them done so since this was last set to false?
    interfered = False

    def __init__(self, children: list[Any], habit: str = "") -> None:
        self.children, self.habit = children, habit

    def tree_flatten(self) -> tuple[Any, str]:
        if self.habit == "raises":
            raise ValueError("not today")
        # Longer only: jaxlib itself reads past the end of a list that gets shorter meanwhile.
        for victim in Node.victims if self.habit == "extends" else ():
            Node.interfered = True
            victim.extend([np.ones(2)] * 9)
        return (iter(self.children) if self.habit == "iterator" else self.children), self.habit

    @classmethod
    def tree_unflatten(cls, habit: str, children: Any) -> Node:
        return cls(list(children), habit)


class Key:
    """A key of a dict that may refuse to be compared."""

    def __init__(self, number: int, refuses: bool) -> None:
        self.number, self.refuses = number, refuses

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number

    def __lt__(self, other: Key) -> bool:
        if self.refuses or other.refuses:
            raise RuntimeError("no order")
        return self.number < other.number

    def __repr__(self) -> str:
        return f"Key({self.number})"


# --- From bytes to arguments ---------------------------------------------------------------------
# A recipe is a function that makes an object. Each side gets objects of its own, but for arrays.
Recipe = Callable[[], Any]

DTYPES = ["f4", "f8", "i4", "i8", "u1", "?", "c8", "f2", "O", "S3", ">f4", "M8[s]"]
SHAPES: list[tuple[int, ...]] = [(), (4,), (0,), (2, 3), (3, 2)]
SCALARS: list[Any] = [0, -1, 2**31, 2**70, 1.5, float("nan"), True, 2j, np.float32(1), np.int64(-3),
                      np.bool_(1), "text", b"", object, ..., np.float64(0)]  # fmt: skip
KEYS: list[Any] = ["a", "b", "", 0, 1, -1, 2**70, 0.5, (0, "a"), None, Key(1, False), Key(2, False),
                   Key(3, True), True]  # fmt: skip
HABITS = ["", "", "raises", "extends", "iterator"]

# Each time that jaxlib fails to take a tree apart, it keeps a few levels of the recursion limit.
# Python 3.11 lets the limit be raised; later ones have a fixed one for C, so such trees are left
# out there.
if sys.version_info < (3, 12):
    sys.setrecursionlimit(2**30)
else:
    KEYS = [key for key in KEYS if isinstance(key, str)]
    HABITS.remove("raises")
ARRAYS = [
    *(jnp.full(shape, 3, jnp.float32) for shape in SHAPES),
    jnp.arange(4),
    jax.device_put(np.ones(4, np.float32), jax.devices()[1]),
    jax.device_put(np.ones((2, 3), np.float32), jax.devices()[0]),
    jnp.ones(4, jnp.int8),
    jax.random.key(0),
    jnp.float32(2),
]
GONE = jnp.zeros(4)
GONE.delete()
ARRAYS.append(GONE)


def host_array(dtype: str, shape: tuple[int, ...], order: str) -> Any:
    """A numpy array; `order` is C, F, reversed (R), unaligned (U) or read-only (L)."""
    if dtype == "O":
        return np.ones(shape, dtype)
    # Whether JAX copies depends on the address, which is therefore not left to chance.
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = np.zeros(size + 192, np.uint8)
    start = -block.ctypes.data % 64 + (order == "U")
    array = block[start : start + size].view(dtype)
    array = array.reshape(shape, order="F" if order == "F" else "C")
    array[...] = np.ones((), dtype)
    array.flags.writeable = order != "L"
    return array[::-1] if order == "R" and shape else array


def leaf(data: Any) -> Recipe:
    """An array, a numpy array or a scalar."""
    choice = data.ConsumeIntInRange(0, 3)
    if choice < 2:
        array = ARRAYS[data.ConsumeIntInRange(0, len(ARRAYS) - 1)]
        return lambda: array
    if choice == 2:
        dtype = DTYPES[data.ConsumeIntInRange(0, len(DTYPES) - 1)]
        shape = SHAPES[data.ConsumeIntInRange(0, len(SHAPES) - 1)]
        order = "CFRUL"[data.ConsumeIntInRange(0, 4)]
        return lambda: host_array(dtype, shape, order)
    scalar = SCALARS[data.ConsumeIntInRange(0, len(SCALARS) - 1)]
    return lambda: scalar


def several(data: Any, depth: int) -> Callable[[], list[Any]]:
    """Up to six trees."""
    recipes = [tree(data, depth - 1) for _ in range(data.ConsumeIntInRange(0, 6))]
    return lambda: [recipe() for recipe in recipes]


def mapping(data: Any, depth: int) -> Callable[[], list[tuple[Any, Any]]]:
    """Up to four keys with trees."""
    n = data.ConsumeIntInRange(0, 4)
    keys = [KEYS[data.ConsumeIntInRange(0, len(KEYS) - 1)] for _ in range(n)]
    recipes = [tree(data, depth - 1) for _ in range(n)]
    return lambda: [(key, recipe()) for key, recipe in zip(keys, recipes, strict=True)]


def tree(data: Any, depth: int) -> Recipe:
    """A leaf, or a container of any kind."""
    choice = data.ConsumeIntInRange(0, 12) if depth else 0
    if choice < 3:
        return leaf(data)
    if choice == 3:
        return lambda: None
    if choice == 4:
        part = several(data, depth)
        return lambda: watched(part())
    if choice == 5:
        part = several(data, depth)
        return lambda: tuple(part())
    if choice == 6:
        left, right = tree(data, depth - 1), tree(data, depth - 1)
        return lambda: Pair(left(), right())
    if choice == 7:
        part = several(data, depth)
        habit = HABITS[data.ConsumeIntInRange(0, len(HABITS) - 1)]
        return lambda: Node(part(), habit)
    items = mapping(data, depth)
    if choice == 8:
        return lambda: collections.OrderedDict(items())
    if choice == 9:
        return lambda: collections.defaultdict(list, items())
    return lambda: dict(items())


def watched(items: list[Any]) -> list[Any]:
    """The list, which nodes may change from now on."""
    Node.victims.append(items)
    return items


# --- What is done with them ----------------------------------------------------------------------
f32 = jnp.ones(4)
TEMPLATES: list[Any] = [
    [f32, f32],
    {"a": f32, "b": (f32, None)},
    Pair(f32, [jnp.ones((2, 3))]),
    Node([f32, {"a": f32}]),
    collections.OrderedDict(b=f32, a=f32),
    {1: f32, 0: [], -1: jnp.arange(4)},
    [jax.random.key(0), f32],
]
COMPILED = [jax.jit(lambda t: t).lower(template).compile() for template in TEMPLATES]


def vary(template: Any, data: Any) -> Recipe:
    """A tree much like this one: here and there it has another container or leaf, or order."""
    change = data.ConsumeIntInRange(0, 15)
    if change == 0:
        return tree(data, 2)
    if isinstance(template, dict):
        items = [(key, vary(value, data)) for key, value in template.items()]
        if change == 1:
            items = items[::-1]
        if change == 2:
            items = items[1:]
        if change == 3:
            items.append((KEYS[data.ConsumeIntInRange(0, len(KEYS) - 1)], tree(data, 1)))
        kind = collections.OrderedDict if change == 4 else type(template)
        return lambda: kind((key, recipe()) for key, recipe in items)
    if isinstance(template, Node):
        children = [vary(child, data) for child in template.children]
        habit = HABITS[change] if change < len(HABITS) else ""
        return lambda: Node([child() for child in children], habit)
    if isinstance(template, (list, tuple)):
        children = [vary(child, data) for child in template]
        if isinstance(template, Pair):
            return lambda: Pair(*[child() for child in children])
        if change == 1:
            children = children[1:]
        kind = {2: tuple, 3: list}.get(change, type(template))
        return lambda: kind(child() for child in children)
    if change < 4 and template is not None:
        return leaf(data)
    return lambda: template


def compare(what: str, plain: Any, fast: Any, *recipes: Recipe) -> None:
    """Two calls by jaxmarshal, which records and then hits, must each do what plain JAX does."""
    Node.interfered = False
    expected = made(plain, recipes)
    for _ in range(2):
        found = made(fast, recipes)
        # How often a node is taken apart is not promised, so what changes the tree then is only
        # called to see that it is survived.
        if found != expected and not Node.interfered:
            raise AssertionError(f"{what}: {first_difference(expected, found)}")


def made(call: Any, recipes: tuple[Recipe, ...]) -> tuple:
    """The outcome of a call with arguments made for it."""
    Node.victims.clear()
    return outcome(call, *[recipe() for recipe in recipes])


def put_tree(data: Any) -> None:
    device = [None, *jax.devices()][data.ConsumeIntInRange(0, 2)]
    recipe = tree(data, 4)
    compare(
        "device_put of a tree",
        lambda t: private.device_put(t, device), lambda t: jaxmarshal.device_put(t, device),
        recipe,
    )


def put_flat(data: Any) -> None:
    n = data.ConsumeIntInRange(0, 9)
    recipes = [leaf(data) for _ in range(n)]
    device = [None, *jax.devices()][data.ConsumeIntInRange(0, 2)]
    reuse = jax._src.dispatch.ArrayCopySemantics.REUSE_INPUT
    keywords = {"devices": [device] * n, "srcs": [None] * n, "copy_semantics": [reuse] * n}
    compare(
        "batched_device_put_impl",
        lambda *xs: private.batched_device_put_impl(*xs, **keywords),
        lambda *xs: jaxmarshal.dispatch.batched_device_put_impl(*xs, **keywords),
        *recipes,
    )


def call_compiled(data: Any) -> None:
    i = data.ConsumeIntInRange(0, len(COMPILED) - 1)
    run = COMPILED[i]
    recipe = vary(TEMPLATES[i], data)
    compare("a compiled function", lambda t: private.compiled_call(run, t), run, recipe)


THINGS = [put_tree, put_flat, call_compiled, call_compiled]
report: dict[str, Any] = {
    "calls": 0, "divergences": [], "python": platform.python_version(), "jax": jax.__version__,
    "end": float("inf"),
}  # fmt: skip


def expect_nothing(*names: str) -> None:
    """None of these may be left."""
    counts = live_objects.snapshot()
    left = {name: counts[name] for name in names if counts[name]}
    if left:
        raise AssertionError(f"left over: {left}")


def one_input(text: bytes) -> None:
    """What libFuzzer calls."""
    data = atheris.FuzzedDataProvider(text)
    THINGS[data.ConsumeIntInRange(0, len(THINGS) - 1)](data)
    report["calls"] += 1
    expect_nothing("live_slots", "live_tables")
    if report["calls"] % 1000 == 0:
        jax.clear_caches()    # ours with them
        gc.collect()
        expect_nothing("live_slots", "live_tables", "live_heap", "live_plans")
    if time.monotonic() > report["end"]:
        tell()
        os._exit(0)    # libFuzzer would leave by a way past Python's


def tell() -> None:
    """Print what was done, for `soak/run.py` and for people."""
    stats = jaxmarshal.stats()
    report["hits"] = {
        name: stats[name]["hits"]
        for name in ("device_put", "batched_device_put_impl", "compiled_call")
    }
    report["inputs kept"] = len(list(CORPUS.iterdir()))
    del report["end"]
    print(json.dumps(report), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the guesses; 0: another each time")
    parser.add_argument("--repeat", metavar="FILE", help="only run this input again")
    options = parser.parse_args()
    # The reference inside stays plain: only calls of compiled functions are patched.
    jaxmarshal.install(["compiled_call"])
    if options.repeat:
        one_input(Path(options.repeat).read_bytes())
        return 0
    CORPUS.mkdir(parents=True, exist_ok=True)
    report["end"] = time.monotonic() + options.seconds
    atheris.Setup(
        [sys.argv[0], "-rss_limit_mb=0", "-max_len=256", "-timeout=60", f"-seed={options.seed}",
         f"-artifact_prefix={FOLDER}/", str(CORPUS)],
        one_input,
    )  # fmt: skip
    atheris.Fuzz()    # never returns
    return 0


if __name__ == "__main__":
    sys.exit(main())
