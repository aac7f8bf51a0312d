"""`dispatch_v0_3`: calls of compiled computations, on one device and on eight."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.backend import get_backend, get_compile_options
from jax.sharding import SingleDeviceSharding
from old_dispatch import Pair, compiled, counts, devices, entry, lower, put_pair, same
from support import DEBUG, JAX, column_major

import jaxmarshal
from jaxmarshal._core.entries import executables
from jaxmarshal._core.plans import plan
from jaxmarshal._core.values import live_objects
from jaxmarshal.compat import dispatch_v0_3 as dispatch


def matmul(x, y):
    return [x @ y]


def reductions(x):
    return [jnp.sum(x), jnp.max(x, axis=0), jnp.argmin(x), jnp.mean(x * 2)]


def several(x, y):
    return [x + y, x - y, (x * y).astype(jnp.bfloat16), jnp.sum(x) > 0]


def pruned(x, unused, y, _):
    return [x * y, jnp.float32(3)]


def weak(x):
    return [x * 2, jnp.sin(2.0) + x]


def nothing(x):
    x + 1
    return []


def square(n=4):
    return jax.device_put(np.arange(n * n, dtype=np.float32).reshape(n, n))


PROGRAMS = {
    "matmul": (matmul, lambda: (square(), square())),
    "reductions": (reductions, lambda: (square(),)),
    "several outputs": (several, lambda: (square(), square() + 1)),
    "pruned inputs": (pruned, lambda: (square(), jnp.zeros(3), square() + 1, 2.0)),
    "numpy arguments": (several, lambda: (np.ones((2, 3), np.float32), np.ones(3, np.float32))),
    "mixed arguments": (several, lambda: (square(2), np.ones(2, np.float32))),
    "Python numbers": (weak, lambda: (2.5,)),
    "f64 arguments": (matmul, lambda: (np.ones((2, 2)), np.ones((2, 2)))),
    "a hundred arguments": (lambda *xs: [sum(xs)], lambda: [square(2) + i for i in range(100)]),
    "matmul on another device": (
        matmul, lambda: tuple(jax.device_put(square(), devices()[3]) for _ in range(2)),
    ),
    "no result": (nothing, lambda: (square(),)),
}  # fmt: skip


@pytest.mark.parametrize("way", ["call", "unsafe_call"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, way):
    """The results of plain JAX, recorded and fast; committed to the device they are bound to."""
    function, make = PROGRAMS[name]
    args = make()
    run = getattr(compiled(function, *args), way)
    expected = jax.jit(function)(*args)
    for _ in range(3):
        found = run(*args)
        assert type(found) in (tuple, list)
        same(found, expected)
        assert [x.sharding for x in found] == [x.sharding for x in expected]
        assert [x.committed for x in found] == [x.committed for x in expected]


@pytest.mark.parametrize("way", ["call", "unsafe_call"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_call_is_fast(name, way):
    """Through a plan, with nothing but the plan."""
    function, make = PROGRAMS[name]
    args = make()
    run = getattr(compiled(function, *args), way)
    run(*args)
    jaxmarshal.reset_stats()
    for _ in range(3):
        run(*args)
    assert counts("call") == (3, 0)


def test_plans_die_with_their_computation():
    """Nothing keeps the executable, and no plan keeps an argument."""
    computation = compiled(matmul, square(), square())
    x = square()
    for _ in range(2):
        computation.call(x, x)
        computation.unsafe_call(x, x)
    before = plan.live_owners()
    references = [weakref.ref(computation), weakref.ref(computation.unsafe_call), weakref.ref(x)]
    del x
    gc.collect()
    assert references[2]() is None
    del computation
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert plan.live_owners() == before - 2


@pytest.mark.skipif(
    not DEBUG, reason="NOT TESTED: live objects are counted in a debug build only (make debug)"
)
def test_live_objects_return_to_zero():
    """After calls of every kind and failures; plans go with their computation."""
    x, host = square(), np.asarray(square())
    computation = compiled(several, x, host)
    for _ in range(3):
        computation.call(x, host)
        computation.unsafe_call(x, host)
        dispatch.device_put(host, devices()[1])
        with pytest.raises(TypeError):
            computation.call(x, "text")
        with pytest.raises(TypeError):
            dispatch.device_put(np.array([None]))
        found = live_objects.snapshot()
        assert (found["live_slots"], found["live_tables"], found["live_heap"]) == (0, 0, 0)
    assert live_objects.snapshot()["live_plans"] > 0
    del computation
    jaxmarshal.api.clear()
    gc.collect()
    assert live_objects.snapshot()["live_plans"] == 0


def test_calls_are_compared_with_what_was_compiled_for():
    """Number, shapes and dtypes, of the arguments that are used; also after a call that hit."""
    x = square()
    computation = compiled(matmul, x, x)
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            computation.call(x)
        assert str(caught.value) == "Computation compiled for 2 inputs but called with 1"
        with pytest.raises(TypeError) as caught:
            computation.call(x, x.reshape(2, 8))
        assert str(caught.value) == (
            "Computation compiled for input types:\n  float32[4,4], float32[4,4]\n"
            "called with:\n  float32[4,4], float32[2,8]"
        )
        with pytest.raises(TypeError, match=r"called with:\n  float32\[4,4\], int32\[4,4\]"):
            computation.call(x, x.astype(jnp.int32))
        computation.call(x, x)
    computation = compiled(pruned, x, 1, x, 2)
    for _ in range(2):
        same(computation.call(x, jnp.zeros(7), x, 2.5), [x * x, jnp.float32(3)])


def test_unsafe_calls_record_nothing_for_checked_ones():
    """What the runtime takes unchecked, `call` refuses all the same."""
    x = square()
    computation = compiled(matmul, x, x)
    wrong = x.reshape(2, 8)    # as many bytes
    for _ in range(3):
        computation.unsafe_call(x, wrong)
    with pytest.raises(TypeError, match="called with"):
        computation.call(x, wrong)


def test_check_arg_avals():
    """Weak types are not compared."""
    strong, weak_one = jnp.float32(1).aval, jnp.asarray(1.0).aval
    assert weak_one.weak_type
    dispatch.check_arg_avals_for_call([strong], [weak_one])
    dispatch.check_arg_avals_for_call([], [])
    with pytest.raises(TypeError, match="compiled for 1 inputs but called with 0"):
        dispatch.check_arg_avals_for_call([strong], [])
    with pytest.raises(TypeError, match=r"compiled for input types:\n  float32\[\]"):
        dispatch.check_arg_avals_for_call([strong], [jnp.int32(1).aval])


def test_arguments_elsewhere_are_copied():
    """Unlike a jitted function, a compiled computation takes arrays of other devices."""
    x = square()
    computation = compiled(matmul, x, x, device=devices()[2])
    there = jax.device_put(x, devices()[5])
    for _ in range(3):
        (found,) = computation.call(x, there)
        assert found.devices() == {devices()[2]}
        assert found.committed
        same([found], [jax.device_put(x @ x, devices()[2])])
    assert not there.is_deleted()


def test_data_that_lie_otherwise():
    """Column-major arrays give the right results, before and after a plan was recorded."""
    odd = column_major()
    plain = jax.device_put(np.asarray(odd))
    computation = compiled(lambda x: [x * 2], plain)
    for x in (odd, plain, plain, odd, odd):
        for run in (computation.call, computation.unsafe_call):
            assert np.array_equal(run(x)[0], np.asarray(odd) * 2)


def test_other_memories():
    """Results stay where the computation puts them; another memory is another type of argument.

    An unchecked call brings it to the device's own memory.
    """
    x = square()

    def function(x):
        return [jax.device_put(x * 2, jax.memory.Space.Host), x + 1]

    computation = compiled(function, x)
    pinned = jax.device_put(x, SingleDeviceSharding(devices()[0], memory_kind="pinned_host"))
    for argument in (x, x, pinned, pinned, x):
        if argument is pinned:
            with pytest.raises(TypeError, match=r"called with:\n  float32<host>"):
                computation.call(argument)
        for run in (computation.call, computation.unsafe_call)[argument is pinned :]:
            found = run(argument)
            assert [y.sharding for y in found] == [y.sharding for y in jax.jit(function)(x)]
            # Earlier ones leave it where it is.
            assert (found[0].sharding.memory_kind == "pinned_host") is (JAX >= (0, 10, 2))
            assert np.array_equal(found[0], x * 2)
            assert np.array_equal(found[1], x + 1)


def test_donated_arguments():
    """They are gone afterwards, on the first and on the fast call, and no others."""

    def update(state, gradient):
        return [state - 0.1 * gradient]

    gradient = square()
    computation = compiled(update, square(), gradient, donated=(True, False))
    for _ in range(3):
        state = square() + 0
        expected = np.asarray(state) - np.float32(0.1) * np.asarray(gradient)
        (found,) = computation.call(state, gradient)
        assert np.allclose(found, expected)
        assert state.is_deleted()
        assert not gradient.is_deleted()
        with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
            computation.call(state, gradient)


def test_donated_arguments_elsewhere():
    """What is donated is the copy."""
    computation = compiled(lambda x: [x + 1], square(), donated=(True,), device=devices()[1])
    x = square() + 0
    for _ in range(2):
        assert np.array_equal(computation.call(x)[0], x + 1)
    assert not x.is_deleted()


@pytest.mark.parametrize("context", [jax.debug_nans, jax.debug_infs])
def test_nans_and_infs(context):
    """An error with the name of the computation while it is asked for, also after fast calls."""

    def divide(x, y):
        return [x, x / y]

    zero, one = jnp.zeros(3), jnp.ones(3)
    bad = (zero, zero) if context is jax.debug_nans else (one, zero)
    word = "nan" if context is jax.debug_nans else "inf"
    computation = compiled(divide, one, one, name="division")
    for _ in range(2):
        for _ in range(3):
            computation.call(*bad)
        with context(True):
            for _ in range(2):
                computation.call(one, one)
                for run in (computation.call, computation.unsafe_call):
                    with pytest.raises(FloatingPointError) as caught:
                        run(*bad)
                    assert str(caught.value) == f"invalid value ({word}) encountered in division"


def test_calls_while_a_trace_is_going_on():
    """They run at once, on values that are known, and are no part of the trace."""
    x, odd = square(), column_major()
    host = np.asarray(x)
    computation = compiled(several, x, host)
    doubled = compiled(lambda x: [x * 2], odd)
    spread = replicated()
    expected = jax.jit(several)(x, x)
    key = jax.random.key(2)

    def traced(y):
        for _ in range(2):
            same(computation.call(x, host), expected)
            same([dispatch.apply_primitive(jax.lax.add_p, host, host)], [expected[0]])
            assert np.array_equal(dispatch.device_put(host)[0], host)
            assert np.array_equal(dispatch.device_put(x, devices()[1])[0], host)
            assert np.array_equal(doubled.call(odd)[0], np.asarray(odd) * 2)
            assert int(spread.call(host[0], 0, host[0])[1]) == 0
            assert dispatch.device_put(key)[0].dtype == np.uint32
            assert isinstance(dispatch._device_put_impl(2.5), dispatch.Buffer)
        return y + 1

    for transform in (jax.jit, jax.grad, jax.vmap):
        transform(traced)(jnp.ones(2) if transform is jax.vmap else 1.0)


def test_no_execution():
    """Nothing runs while JAX is not to run anything."""
    x = square()
    computation = compiled(matmul, x, x)
    for _ in range(2):
        computation.call(x, x)
        with jax.no_execution(), pytest.raises(RuntimeError, match="no_execution"):
            computation.call(x, x)


def test_typed_keys():
    """Values that JAX has got since go in and out."""
    key = jax.random.key(1)

    def draw(key):
        return [jax.random.normal(key, (3,)), jax.random.fold_in(key, 1)]

    computation = compiled(draw, key)
    expected = jax.jit(draw)(key)
    for _ in range(3):
        number, folded = computation.call(key)
        assert np.array_equal(number, expected[0])
        assert jnp.array_equal(folded, expected[1])
        assert folded.dtype == key.dtype
    with pytest.raises(TypeError, match="called with"):
        computation.call(jax.random.key_data(key))


def test_another_function_in_the_place_of_unsafe_call():
    """It is called, also after fast calls, and the old one is fast again when it is put back."""
    x = square()
    computation = compiled(matmul, x, x)
    original = computation.unsafe_call
    for _ in range(3):
        computation.call(x, x)
    computation.unsafe_call = lambda *args: ("mine", len(args))
    assert computation.call(x, x) == ("mine", 2)
    computation.unsafe_call = original
    jaxmarshal.reset_stats()
    same(computation.call(x, x), [x @ x])
    assert counts("call") == (1, 0)


# --- Trivial computations ------------------------------------------------------------------------


def test_literals_only():
    """Nothing is compiled; literals, constants and arguments are the results."""
    constant = jnp.arange(3)

    def give(x, _, y):
        return [2.5, y, constant, x, y]

    x, y = jnp.arange(2.0), np.arange(3, dtype=np.int32)
    computation = compiled(give, x, 1, y)
    assert computation.is_trivial()
    for _ in range(2):
        found = computation.call(x, 1, y)
        assert type(found) is list
        assert (float(found[0]), found[0].weak_type) == (2.5, True)
        assert np.array_equal(found[1], y)
        assert found[2] is constant
        assert found[3] is x
        assert not found[1].committed
    with pytest.raises(ValueError, match="A trivial compiled computation has no XLA executable"):
        computation.xla_executable()
    with pytest.raises(TypeError, match="called with"):
        computation.call(x, 1, y.astype(np.float32))


def test_trivial_on_a_device():
    """Every result is there, and bound."""
    x = jnp.arange(3.0)
    computation = compiled(lambda x: [x, 1], x, device=devices()[3])
    for found in computation.call(x):
        assert found.devices() == {devices()[3]}
        assert found.committed


# --- The functions themselves --------------------------------------------------------------------


def handlers_of(function, *args, device=None):
    avals = jax.make_jaxpr(function)(*args).out_avals
    return [dispatch.aval_to_result_handler(device, aval) for aval in avals]


def test_execute_compiled_with_handlers_of_ones_own():
    """Counts of buffers, handlers that take several, and arguments that are several."""
    executable = compiled(several, square(), square()).xla_executable()
    seen = []

    def keep(*bufs):
        seen.append([buf.shape for buf in bufs])
        return bufs

    with entry(dispatch.device_put_handlers, Pair, put_pair):
        pair = Pair(square(), np.asarray(square()))
        found = dispatch._execute_compiled("f", executable, [3, 1], [keep, keep], {1}, None, pair)
    assert seen == [[(4, 4)] * 3, [()]]
    expected = jax.jit(several)(square(), square())
    same([*found[0], *found[1]], expected)
    assert dispatch._execute_compiled(
        "f", executable, None, [lambda *bufs: len(bufs)], {0, 1}, square(), square()
    ) == (4,)
    with pytest.raises(ValueError, match="expected 2 output buffers, got 4"):
        dispatch._execute_compiled("f", executable, [2], [keep], {0, 1}, square(), square())
    with pytest.raises(ValueError, match=r"shorter|longer"):
        dispatch._execute_compiled("f", executable, [2, 2], [keep], {0, 1}, square(), square())


def test_a_users_type_is_an_argument():
    """A handler in the table is enough for unchecked calls; both ways run in turns."""
    x = square()
    computation = compiled(several, x, x)
    expected = jax.jit(several)(x, x)
    with entry(dispatch.device_put_handlers, Pair, lambda pair, device: put_pair(pair, device)[:1]):
        for _ in range(3):
            same(computation.unsafe_call(Pair(x, x), x), expected)
            same(computation.unsafe_call(x, x), expected)
    with pytest.raises(TypeError, match="No device_put handler"):
        computation.unsafe_call(Pair(x, x), x)


def test_another_handler_is_honoured_by_calls():
    """Also where a plan is at hand, for arrays and for host data."""
    x, host = square(), np.asarray(square())
    computation = compiled(several, x, host)
    for _ in range(3):
        same(computation.call(x, host), jax.jit(several)(x, host))
    original = dispatch.device_put_handlers[np.ndarray]
    with entry(
        dispatch.device_put_handlers, np.ndarray, lambda x, device: original(x * 2, device)
    ):
        same(computation.call(x, host), jax.jit(several)(x, host * 2))
    original = dispatch.device_put_handlers[dispatch.Buffer]
    with entry(
        dispatch.device_put_handlers, dispatch.Buffer, lambda x, device: original(x * 2, device)
    ):
        same(computation.call(x, host), jax.jit(several)(x * 2, host))
    same(computation.call(x, host), jax.jit(several)(x, host))


def test_numbers_go_through_the_handler_of_numpy_arrays():
    """As they become arrays first, in calls as in `device_put`."""
    computation = compiled(weak, 2.5)
    for _ in range(3):
        computation.call(2.5)
    original = dispatch.device_put_handlers[np.ndarray]
    with entry(
        dispatch.device_put_handlers, np.ndarray, lambda x, device: original(x * 2, device)
    ):
        same(computation.call(2.5), jax.jit(weak)(5.0))
    same(computation.call(2.5), jax.jit(weak)(2.5))


def test_results_of_the_users():
    """A handler in the table of results is used by computations that are compiled then."""
    x = square()
    shaped = type(x.aval)
    with entry(dispatch.result_handlers, shaped, lambda device, aval: lambda buf: ("mine", buf)):
        computation = compiled(several, x, x)
    for _ in range(3):
        found = computation.call(x, x)
        assert [word for word, _ in found] == ["mine"] * 4
        same([buf for _, buf in found], jax.jit(several)(x, x))


REPLACED = {
    "device_put": lambda seen, original: (
        lambda x, device=None: seen.append("device_put") or original(x, device)
    ),
    "_execute_compiled": lambda seen, original: (
        lambda *args: seen.append("_execute_compiled") or original(*args)
    ),
    "check_special": lambda seen, original: (
        lambda name, bufs: seen.append("check_special") or original(name, bufs)
    ),
    "check_arg_avals_for_call": lambda seen, original: (
        lambda *avals: seen.append("check_arg_avals_for_call") or original(*avals)
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_functions_in_the_place_of_ours(name, monkeypatch):
    """A script that wraps a function of the module sees every call of it, then none."""
    x = square()
    before = compiled(matmul, x, x)
    for _ in range(3):
        before.call(x, x)
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, name, REPLACED[name](seen, getattr(dispatch, name)))
        computation = compiled(matmul, x, x)
        for _ in range(3):
            same(computation.call(x, x), [x @ x])
    assert len(seen) >= 3
    assert set(seen) == {name}
    jaxmarshal.reset_stats()
    same(before.call(x, x), [x @ x])
    assert counts("call") == (1, 0)


def test_another_configuration():
    """Another configuration is another plan."""
    x = square()
    computation = compiled(matmul, x, x)
    for _ in range(2):
        computation.call(x, x)
    jaxmarshal.reset_stats()
    with jax.default_matmul_precision("highest"):
        same(computation.call(x, x), [x @ x])
    assert counts("call") == (0, 1)


def test_nothing_else_is_needed():
    """Without jaxmarshal's plans a call gives the same."""
    x = square()
    computation = compiled(several, x, x)
    same(dispatch._execute_compiled(*computation.unsafe_call.args, x, x), computation.call(x, x))
    assert executables.execute_replicated_call(computation.unsafe_call.unsafe_call, x, x)


# --- Eight devices -------------------------------------------------------------------------------

ALL_REDUCE = """
module @all_reduce attributes {mhlo.num_replicas = 8 : i32, mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>)
      -> (tensor<4xf32>, tensor<ui32>) {
    %0 = "stablehlo.all_reduce"(%arg0) <{
      replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>
    }> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.add %0, %arg1 : tensor<4xf32>
    %2 = stablehlo.replica_id : tensor<ui32>
    return %1, %2 : tensor<4xf32>, tensor<ui32>
  }
}
"""


def replicated(**changes):
    """The computation above, compiled for eight replicas."""
    aval = jnp.zeros(4).aval
    number = jnp.uint32(0).aval
    return dispatch.XlaCompiledComputation.from_xla_computation(
        **{
            "name": "all_reduce", "xla_computation": ALL_REDUCE, "nreps": 8, "device": None,
            "backend": get_backend(), "tuple_args": False, "in_avals": [aval, aval],
            "out_avals": [aval, number], "kept_var_idx": {0, 2}, **changes,
        }
    )  # fmt: skip


REPLICATED = {
    "arrays": lambda: (jnp.arange(4.0), jnp.ones(4)),
    "arrays elsewhere": lambda: [jax.device_put(x, devices()[5]) for x in REPLICATED["arrays"]()],
    "numpy": lambda: [np.asarray(x) for x in REPLICATED["arrays"]()],
    "both": lambda: (jnp.arange(4.0), np.ones(4, np.float32)),
}


@pytest.mark.parametrize("name", REPLICATED)
def test_replicated(name):
    """Every device has every argument; the results are the first one's."""
    computation = replicated()
    assert computation.xla_executable().local_devices() == devices()
    for _ in range(3):
        x, y = REPLICATED[name]()
        total, number = computation.call(x, 0, y)
        assert np.array_equal(total, np.arange(4.0) * 8 + 1)
        assert int(number) == 0
        assert total.devices() == number.devices() == {devices()[0]}
        assert not total.committed
    with pytest.raises(TypeError, match=r"called with:\n  float32\[3\], float32\[4\]"):
        computation.call(np.ones(3, np.float32), 0, np.ones(4, np.float32))


def test_replicated_with_a_users_type():
    """Its handler is called for every device."""
    seen = []

    def put(pair, device):
        seen.append(device)
        return put_pair(pair, device)

    computation = replicated(kept_var_idx={0})
    with entry(dispatch.device_put_handlers, Pair, put):
        total, _ = computation.unsafe_call(Pair(np.arange(4, dtype=np.float32), jnp.ones(4)))
    assert seen == devices()
    assert np.array_equal(total, np.arange(4.0) * 8 + 1)


@pytest.mark.parametrize(("context", "word"), [(jax.debug_nans, "nan"), (jax.debug_infs, "inf")])
def test_replicated_nans_and_infs(context, word):
    """As on one device."""
    computation = replicated()
    bad = jnp.full(4, np.nan if word == "nan" else np.inf)
    computation.call(bad, 0, jnp.ones(4))
    with context(True), pytest.raises(FloatingPointError) as caught:
        computation.call(bad, 0, jnp.ones(4))
    assert str(caught.value) == f"invalid value ({word}) encountered in all_reduce"


def test_execute_replicated_itself():
    """With one handler for all buffers, and without any buffer of a pruned argument."""
    executable = replicated().xla_executable()
    found = dispatch._execute_replicated(
        "f", executable, None, [lambda *bufs: [buf.shape for buf in bufs]], {1, 2},
        "pruned", jnp.ones(4), np.ones(4, np.float32),
    )  # fmt: skip
    assert found == ([(4,), ()],)


def test_compile_for_chosen_replicas():
    """An assignment of devices in `CompileOptions` is followed."""
    chosen = devices()[3:5]
    options = get_compile_options(
        num_replicas=2, num_partitions=1, device_assignment=np.array([[d.id] for d in chosen])
    )
    module = lower(lambda x: [x + 1], jnp.ones(3)).mhlo()
    executable = dispatch.backend_compile(get_backend(), module, options)
    assert executable.local_devices() == chosen
    (found,) = dispatch._execute_replicated("f", executable, None, [lambda x: x], {0}, jnp.ones(3))
    assert np.array_equal(found, [2, 2, 2])
    assert found.devices() == {chosen[0]}
