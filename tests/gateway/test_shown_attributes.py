"""What stands in for JAX's functions shows what they show, and refuses what they refuse."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import types
import typing
from unittest import mock

import jax
import numpy as np
import pytest
from support import without_jaxmarshal

import jaxmarshal
from jaxmarshal._jax import patching

# `xla_primitive_callable` is an object of jaxlib's in the newest JAX, which only JAX itself asks.
ENTRIES = {
    entry.name: entry for entry in patching.ENTRY_POINTS
    if entry.active and type(entry.original) is types.FunctionType
}  # fmt: skip

ASKED = {
    **{
        name: lambda f, name=name: getattr(f, name)
        for name in (
            "__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__defaults__",
            "__kwdefaults__", "__code__", "__closure__", "__globals__", "__builtins__",
            "__class__",
        )
    },
    **{
        f"inspect.{name}": getattr(inspect, name)
        for name in (
            "isfunction", "isroutine", "ismethod", "isbuiltin", "isclass", "isgeneratorfunction",
            "iscoroutinefunction", "signature", "getdoc", "getmodule", "getfile", "getsourcefile",
            "getsource", "getsourcelines", "getfullargspec", "unwrap", "isasyncgenfunction",
        )
    },
    "own signature": lambda f: inspect.signature(f, follow_wrapped=False),
    "type hints": lambda f: _or_error(lambda: typing.get_type_hints(f)),
    "types": lambda f: [
        isinstance(f, cls)
        for cls in (
            types.FunctionType, types.MethodType, types.BuiltinFunctionType, typing.Callable, type,
        )
    ],
    "vars": lambda f: sorted(vars(f)),
    "wrapped": lambda f: getattr(f, "__wrapped__", None),
    "repr": lambda f: re.sub("0x[0-9a-f]+", "0x", repr(f)),
    "str": lambda f: re.sub("0x[0-9a-f]+", "0x", str(f)),
    "attributes": lambda f: {
        name for name in dir(f)
        # Of the class of functions, which nothing but a function has in this Python.
        if name not in ("__getstate__", "__type_params__", "__call__", "__dir__")
    },
    "own attributes": lambda f: {
        name for name in vars(f)
        if name not in (
            "__module__", "__name__", "__qualname__", "__doc__", "__annotations__",
            "__type_params__", "__code__", "__closure__", "__globals__", "__builtins__",
            "__defaults__", "__kwdefaults__",
        )
    },
    "help": lambda f: re.sub("0x[0-9a-f]+", "0x", pydoc.render_doc(f)),
    "pickle": lambda f: pickle.dumps(f) if f.__qualname__ == f.__name__ else None,
    "copies": lambda f: [copy.copy(f) is f, copy.deepcopy(f) is f],
    "spec": lambda f: inspect.signature(mock.create_autospec(f)),
}  # fmt: skip


def _or_error(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", ENTRIES)
def test_trap_12_what_functions_show(name, asked):
    """Trap 12: whoever looks at a function of JAX sees what there is without jaxmarshal."""
    entry, ask = ENTRIES[name], ASKED[asked]
    assert entry.accelerated is not entry.original
    expected = _or_error(lambda: ask(entry.original))
    with jaxmarshal.installed():
        found = _or_error(lambda: ask(entry.accelerated))
        if asked == "pickle" and found is not None and type(found) is bytes:
            assert pickle.loads(found) is entry.accelerated
    if asked == "inspect.unwrap" and expected is entry.original:
        assert found is entry.accelerated
        return
    assert found == expected


X = np.arange(4, dtype=np.float32)

WRONG = [
    ((), {}), ((X,) * 9, {}), ((X,), {"nonsense": 1}), ((), {"nonsense": 1}), ((X, X), {"x": X}),
    ((), {"x": X}), ((X,), {"idx": 1}), ((X, None), {"device": None}), ((), {"shape": 3}),
    ((3,), {"shape": 3}), ((3, None), {"dtype": None}), ((3, 1, None, None), {}),
    ((3, 1), {"fill_value": 1}), ((), {"self": 1}), ((X,), {"shardings": []}),
    ((X,), {"dtype": None, "device": None, "more": 2}), ((), {"prim": 1}),
]  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("holder", [False, True])
def test_trap_10_wrong_calls(name, holder):
    """Trap 10: calls that fit no signature are refused in the words of JAX."""
    entry = ENTRIES[name]
    if holder and entry.holder is None:
        pytest.skip("no method")
    first = () if not holder else (_object_of(entry),)

    def found(function):
        answers = []
        for args, kwargs in WRONG:
            try:
                inspect.signature(entry.original).bind(*first, *args, **kwargs)
            except TypeError:
                answers.append(_or_error(lambda: function(*first, *args, **kwargs)))
        return answers

    expected = found(entry.original)
    assert expected
    with jaxmarshal.installed():
        assert found(entry.accelerated) == expected


def _object_of(entry):
    x = jax.device_put(X)
    compiled = jax.jit(lambda x: x + 1).lower(x).compile()
    return {
        "compiled_call": compiled, "mesh_executable_call": compiled._executable,
        "getitem": x, "bind": jax.lax.neg_p,
        "execute_replicated_call": compiled._executable.unsafe_call,
        "results_handler_call": compiled._executable.unsafe_call.out_handler,
    }[entry.name]  # fmt: skip


def test_public_functions_can_be_pickled():
    """`jaxmarshal.device_put` is found again, whether it is installed or not."""
    for _ in range(2):
        assert pickle.loads(pickle.dumps(jaxmarshal.device_put)) is jaxmarshal.device_put
        jaxmarshal.install()
    with without_jaxmarshal():
        assert inspect.isfunction(jaxmarshal.device_put)
