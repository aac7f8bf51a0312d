"""`jaxmarshal.dispatch`: a drop-in for `jax._src.dispatch` of the installed JAX."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax._src import dispatch as reference
from jax._src.interpreters import pxla
from jax.sharding import SingleDeviceSharding
from observe import observe
from support import aligned, deleted_array, named

import jaxmarshal
from jaxmarshal import dispatch
from jaxmarshal._jax import private

ACCELERATED = {"batched_device_put_impl", "xla_primitive_callable"}

#: Entry points that live elsewhere in JAX.
MORE = {
    "batched_device_put", "compiled_call", "execute_replicated_call", "mesh_executable_call",
    "results_handler_call", "shard_args",
}  # fmt: skip

#: What every module has of its own.
OWN = {
    "__name__", "__doc__", "__file__", "__cached__", "__loader__", "__spec__", "__package__",
    "__builtins__", "__annotations__", "__annotate__", "__conditional_annotations__",
}  # fmt: skip

NAMES = sorted(set(dir(reference)) - OWN)


def test_the_names_are_those_of_the_installed_version():
    """Public and private, and the entry points that live elsewhere."""
    assert sorted(dir(dispatch)) == sorted(MORE.union(dir(reference)))
    assert not MORE.intersection(dir(reference))
    assert len(NAMES) > 50


@pytest.mark.parametrize("name", NAMES)
def test_each_name(name):
    """Every name is JAX's own object, but for those that are accelerated."""
    assert (getattr(dispatch, name) is getattr(reference, name)) == (name not in ACCELERATED)


def test_entry_points_from_elsewhere():
    """They run without `install()`, methods with their object first."""
    x = np.arange(4, dtype=np.float32)
    compiled = jax.jit(lambda x: x + 1).lower(x).compile()
    executable = compiled._executable
    for _ in range(3):
        (placed,) = dispatch.shard_args(
            [SingleDeviceSharding(jax.devices()[0])], [None],
            [private.REUSE_INPUT], [x],
        )  # fmt: skip
        results = [
            placed + 1,
            dispatch.compiled_call(compiled, placed),
            dispatch.mesh_executable_call(executable, placed)[0],
            dispatch.execute_replicated_call(executable.unsafe_call, placed)[0],
            dispatch.batched_device_put(
                placed.aval, placed.sharding, [x + 1], jax.devices()[:1]
            ),
        ]
        assert all((np.asarray(result) == x + 1).all() for result in results)


def test_results_handler():
    """One result an output; the reference's error where the numbers differ."""
    x = jax.device_put(np.arange(4, dtype=np.float32), jax.devices()[0])
    handler = pxla.global_avals_to_results_handler([x.aval, x.aval], [x.sharding] * 2, True)
    for buffers in ([x, x], (x, x), [[x], [x]], [x], [], [x] * 3, None, [x, 1]):
        assert observe(lambda b=buffers: dispatch.results_handler_call(handler, b)) == observe(
            lambda b=buffers: private.results_handler_call(handler, b)
        )


def test_values_are_live(monkeypatch):
    """What JAX changes or adds later is seen, and what it removes is gone."""
    monkeypatch.setattr(reference, "a_name_of_this_test", 1, raising=False)
    assert dispatch.a_name_of_this_test == 1
    assert "a_name_of_this_test" in dir(dispatch)
    monkeypatch.setattr(reference, "a_name_of_this_test", 2)
    assert dispatch.a_name_of_this_test == 2
    monkeypatch.delattr(reference, "a_name_of_this_test")
    assert not hasattr(dispatch, "a_name_of_this_test")


def test_star_import():
    """`from jaxmarshal.dispatch import *` binds every public name."""
    names: dict[str, object] = {}
    exec("from jaxmarshal.dispatch import *", names)
    assert {name for name in dir(reference) if not name.startswith("_")} <= set(names)
    assert names["batched_device_put_impl"] is dispatch.batched_device_put_impl
    assert names["apply_primitive"] is reference.apply_primitive


def test_import_of_one_name():
    """Accelerated, plain and private names can be imported by name."""
    names: dict[str, object] = {}
    exec(
        "from jaxmarshal.dispatch import batched_device_put_impl, _device_put_impl",
        names,
    )
    assert names["_device_put_impl"] is reference._device_put_impl


def test_what_it_does_not_have():
    """The error is the one that Python gives for any module."""
    with pytest.raises(
        AttributeError, match=r"^module 'jaxmarshal\.dispatch' has no attribute 'nonsense'$"
    ) as caught:
        dispatch.nonsense  # noqa: B018
    assert caught.value.__suppress_context__
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from jaxmarshal.dispatch import nonsense")


def test_installing_changes_nothing_here():
    """The names are the same while jaxmarshal is installed, and afterwards."""
    before = {name: getattr(dispatch, name) for name in NAMES}
    with jaxmarshal.installed():
        assert all(getattr(dispatch, name) is before[name] for name in NAMES)
        assert reference.batched_device_put_impl is dispatch.batched_device_put_impl
    assert all(getattr(dispatch, name) is before[name] for name in NAMES)


# --- batched_device_put_impl ---------------------------------------------------------------------

Semantics = reference.ArrayCopySemantics


def call(put, xs, devices, semantics=Semantics.REUSE_INPUT, srcs=None, as_type=tuple):
    """The flat entry point with one semantics for all arguments."""
    return put(
        *xs, devices=as_type(devices), srcs=as_type(srcs or [None] * len(xs)),
        copy_semantics=as_type([semantics] * len(xs)),
    )  # fmt: skip


CALLS = {
    "no argument": lambda: ([], []),
    "one ndarray": lambda: ([aligned(8)], [None]),
    "one ndarray to a device": lambda: ([aligned(8)], [jax.devices()[3]]),
    "an ndarray to many devices": lambda: ([aligned(8)], [named("x")]),
    "a scalar": lambda: ([2.5], [None]),
    "a target each": lambda: (
        [aligned(8), 1, np.float16(2), True, aligned(16)],
        [None, jax.devices()[1], None, named(), named("x")],
    ),
    "many": lambda: ([aligned(i) for i in range(40)], [None] * 40),
    "arrays that stay": lambda: ([jax.numpy.zeros(3)] * 2, [None, None]),
    "an array to its own device": lambda: (
        [jax.device_put(aligned(8), jax.devices()[2])], [SingleDeviceSharding(jax.devices()[2])],
    ),
    "an array to another device": lambda: ([jax.numpy.zeros(3)], [jax.devices()[4]]),
    "an array to many devices": lambda: ([jax.device_put(aligned(8), named())], [named("x")]),
}  # fmt: skip


@pytest.mark.parametrize("as_type", [tuple, list])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_reference(name, as_type):
    """The recording call and the fast one return what JAX does; the second is a hit."""

    def outcome(put):
        xs, devices = CALLS[name]()
        return observe(lambda xs: call(put, xs, devices, as_type=as_type), xs)

    expected = outcome(reference.batched_device_put_impl)
    assert expected[0][0] == "returned"
    for _ in range(2):
        jaxmarshal.reset_stats()
        assert outcome(dispatch.batched_device_put_impl) == expected
    counts = jaxmarshal.stats()["batched_device_put_impl"]
    assert (counts["hits"], counts["misses"]) == (1, 0)


FAILURES = {
    "a type": (lambda: (["text"], [None]), "unknown_type"),
    "a value": (lambda: ([2**70], [None]), "value"),
    "a target": (lambda: ([aligned(8)], ["cpu"]), "target"),
    "too few targets": (lambda: ([aligned(8), aligned(8)], [None]), "tree"),
    "a sharding that does not divide": (lambda: ([aligned(3)], [named("x")]), "not_recorded"),
    "a deleted array": (
        lambda: ([deleted_array()], [jax.devices()[1]]), "deleted"
    ),
}  # fmt: skip


@pytest.mark.errors
@pytest.mark.parametrize("name", FAILURES)
def test_errors_are_the_reference(name):
    """Same type, same text; the call is counted as a miss with its reason."""
    make, reason = FAILURES[name]

    def outcome(put):
        xs, devices = make()
        return observe(lambda xs: call(put, xs, devices), xs)

    # What is known of scalars and targets is recorded, so that the reason is the argument's own.
    call(dispatch.batched_device_put_impl, [1, aligned(8), jax.numpy.zeros(8)], [None] * 3)
    call(dispatch.batched_device_put_impl, [aligned(8)], [jax.devices()[1]])
    expected = outcome(reference.batched_device_put_impl)
    jaxmarshal.reset_stats()
    assert outcome(dispatch.batched_device_put_impl) == expected
    counts = jaxmarshal.stats()["batched_device_put_impl"]
    assert (counts["hits"], counts["misses_by_reason"]) == (0, {reason: 1})


@pytest.mark.parametrize("semantics", ["ALWAYS_COPY", "DONATE_INPUT"])
def test_other_semantics_are_the_reference(semantics):
    """Copies that were asked for, and donations, are not the fast path's."""

    def outcome(put):
        xs = [jax.device_put(aligned(8), jax.devices()[1])]
        return observe(
            lambda xs: call(put, xs, [jax.devices()[1]], getattr(Semantics, semantics)), xs
        )

    expected = outcome(reference.batched_device_put_impl)
    jaxmarshal.reset_stats()
    assert outcome(dispatch.batched_device_put_impl) == expected
    assert jaxmarshal.stats()["batched_device_put_impl"]["misses_by_reason"] == {"options": 1}


def test_wrong_keywords():
    """The parameters are the reference's, and all of them are needed."""
    for put in (reference.batched_device_put_impl, dispatch.batched_device_put_impl):
        with pytest.raises(TypeError):
            put(aligned(8), devices=(None,), srcs=(None,))
        with pytest.raises(TypeError):
            put(aligned(8), devices=(None,), srcs=(None,), copy_semantics=(None,), more=1)
