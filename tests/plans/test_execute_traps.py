"""The traps of compiled calls, each with a test that fails when its guard is removed."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from executed import DATA, counts, entry_points, observe_reference, warm
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from observe import observe
from support import ADDRESSES_COME_BACK, aligned, column_major

import jaxmarshal
from jaxmarshal._core.plans import plan
from jaxmarshal._jax import private

P = PartitionSpec


@pytest.fixture(autouse=True)
def installed():
    """Every test here runs with jaxmarshal installed, so that calls are written as users do."""
    with jaxmarshal.installed():
        yield


@pytest.mark.parametrize("entry", ["compiled_call", "mesh_executable_call"])
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.errors("compiled_call", "mesh_executable_call")
def test_trap_1_column_major_argument(entry, committed):
    """Trap 1: an executable for row-major data is handed column-major data of the same aval."""
    place = [jax.devices()[0]] if committed else []
    rows = jax.device_put(DATA, *place)
    columns = jax.device_put(column_major(DATA), *place)
    compiled = jax.jit(lambda x: x * 2).lower(rows).compile()
    call = entry_points(compiled)[entry]
    call(rows)
    np.testing.assert_array_equal(call(rows), DATA * 2)
    assert counts(entry) == (1, 1)
    found = observe(call, columns)
    assert counts(entry) == (0, 1)
    assert found == observe_reference(call, columns)


@pytest.mark.parametrize("kind", ["format", "out_shardings", "auto"])
def test_trap_1_custom_layouts(kind):
    """Trap 1: arrays with explicit layouts, and executables compiled for custom ones."""
    sharding = SingleDeviceSharding(jax.devices()[0])
    columns = Format(Layout((1, 0)), sharding)
    rows = jax.device_put(DATA, sharding)
    if kind == "format":
        arrays = [rows, jax.device_put(DATA, columns)]
        function = jax.jit(lambda x: x + 1)
    elif kind == "out_shardings":
        arrays = [rows, jax.jit(lambda x: x, out_shardings=columns)(rows)]
        function = jax.jit(lambda x: x + 1, in_shardings=columns)
    else:
        arrays = [rows, jax.device_put(DATA, columns)]
        function = jax.jit(lambda x: x + 1, in_shardings=Format(Layout.AUTO, sharding))
    arrays += [DATA, jax.device_put(DATA)]    # which the reference lays out as is wanted
    compiled = function.lower(jax.ShapeDtypeStruct(DATA.shape, DATA.dtype)).compile()
    for _ in range(3):
        for array in arrays:
            found = observe(compiled, array)
            with_reference = observe_reference(compiled, array)
            assert found == with_reference
            if found[0][0] == "returned":
                np.testing.assert_array_equal(compiled(array), DATA + 1)


def test_trap_2_reused_address():
    """Trap 2: an argument is freed and another array takes its address."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    warm(compiled, jnp.zeros(4))
    addresses = set()
    for i in range(200):
        array = jax.device_put(np.full(4, i, np.float32))
        addresses.add(id(array))
        np.testing.assert_array_equal(compiled(array), np.full(4, i + 1))
        del array
    assert len(addresses) < 200 or not ADDRESSES_COME_BACK
    other = jax.device_put(np.zeros((2, 2), np.float32))
    with pytest.raises(TypeError, match="compiled with"):
        compiled(other)


def test_trap_2_arguments_are_not_kept_alive():
    """Trap 2: a plan owns no argument and no result."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    array = jnp.zeros(4)
    gone = [weakref.ref(array), weakref.ref(compiled(array)), weakref.ref(compiled(array))]
    assert counts() == (1, 1)
    del array
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_trap_3_equal_avals_are_adopted():
    """Trap 3: avals are not interned; equal ones match and are remembered."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    warm(compiled, private.device_put(np.zeros(4, np.float32)))
    for _ in range(5):
        array = private.device_put(np.zeros(4, np.float32))
        compiled(array)
    assert counts() == (5, 0)


def test_trap_3_another_aval_with_the_same_sharding_object():
    """Trap 3: dtype or shape differ and nothing else does."""
    place = SingleDeviceSharding(jax.devices()[0])
    x = jax.device_put(np.ones(6, np.float32), place)
    compiled = jax.jit(lambda x: x + 1).lower(x).compile()
    warm(compiled, x)
    for other in (np.ones(6, np.int32), np.ones((2, 3), np.float32), np.ones(3, np.float32)):
        y = jax.device_put(other, place)
        assert y.sharding is x.sharding
        for call in entry_points(compiled).values():
            call(x)
            assert observe(call, y) == observe_reference(call, y)


def test_trap_3_weak_type_is_part_of_the_aval():
    """Trap 3: an equal shape and dtype with another weak type is another aval."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.float32(1)).compile()
    warm(compiled, jnp.float32(1))
    compiled(jnp.asarray(1.0))
    assert counts() == (0, 1)


def test_trap_4_context_between_two_calls():
    """Trap 4: what was recorded in one configuration is not used in another."""
    compiled = jax.jit(jnp.log).lower(jnp.ones(3)).compile()
    good, bad = jnp.ones(3), -jnp.ones(3)
    warm(compiled, good)
    for context in (
        lambda: jax.debug_nans(True), lambda: jax.no_execution(), lambda: jax.disable_jit(),
        lambda: jax.enable_x64(True), lambda: jax.debug_infs(True),
    ):  # fmt: skip
        for array in (good, bad):
            found = observe(compiled, array, context=context)
            assert found == observe_reference(compiled, array, context=context)
    # The first call under x64 was recorded there, and the second was like it.
    assert counts() == (1, 9)
    compiled(good)
    assert counts() == (1, 0)


def test_trap_4_trace_in_progress():
    """Trap 4: inside a trace the reference decides, also about concrete arguments."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(3)).compile()
    warm(compiled, jnp.zeros(3))
    constant = jnp.ones(3)
    assert jax.jit(lambda x: x + compiled(constant))(jnp.zeros(3)).tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match="Cannot apply JAX transformations"):
        jax.jit(compiled)(constant)
    assert counts() == (0, 2)


def test_trap_4_transfer_guard():
    """Trap 4: a numpy argument is an implicit transfer, among arrays and alone."""
    data = aligned(DATA.shape, DATA.dtype, 4)    # no result shares its memory
    among = [data, *(jnp.float32(i) for i in range(40))]
    wide = jax.jit(lambda xs: xs[0] + xs[1], keep_unused=True).lower(among).compile()
    alone = jax.jit(lambda x: x + 1).lower(data).compile()._executable
    for entry, call, x in (
        ("compiled_call", wide, among),
        ("mesh_executable_call", lambda x: alone.call(x), data),
    ):
        for _ in range(3):
            call(x)
        assert counts(entry)[0] == 2
        for level in ("disallow", "allow", "log", "disallow_explicit"):
            context = functools.partial(jax.transfer_guard, level)
            found = observe(call, x, context=context)
            assert found == observe_reference(call, x, context=context)
            assert counts(entry) == ((1, 0) if level == "allow" else (0, 1))
            del found
            gc.collect()    # an error's frames keep what JAX converted, and its cache


@pytest.mark.errors
def test_trap_5_donated_arguments():
    """Trap 5: a donated argument is gone, whether it was donated here or elsewhere."""
    compiled = jax.jit(lambda x: x + 1, donate_argnums=0).lower(jnp.zeros(4)).compile()
    array = jnp.zeros(4)
    for _ in range(4):
        before = array
        array = compiled(array)
        assert before.is_deleted()
    assert counts() == (3, 1)
    gone = observe(compiled, before)
    assert gone[0][0] == "raised"
    assert gone == observe_reference(compiled, before)
    assert compiled(array).tolist() == [5] * 4


@pytest.mark.errors
def test_trap_5_deleted_argument():
    """Trap 5: a deleted argument is the reference's error, on every entry point."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    array = jnp.zeros(4)
    for entry, call in entry_points(compiled).items():
        call(array)
        jaxmarshal.reset_stats()
        call(array)
        assert counts(entry) == (1, 0)
    array.delete()
    for call in entry_points(compiled).values():
        found = observe(call, array)
        assert found[0][0] == "raised"
        assert found == observe_reference(call, array)


@pytest.mark.usefixtures("callbacks")
def test_trap_5_effects_and_callbacks():
    """Trap 5: ordered and unordered effects and host callbacks stay with the reference."""
    seen = []

    def printing(x):
        jax.debug.callback(seen.append, x.sum())
        return x + 1

    def pure(x):
        return jax.pure_callback(lambda y: np.asarray(y) * 2, x, x)

    for function in (printing, pure):
        compiled = jax.jit(function).lower(jnp.ones(3)).compile()
        results = [compiled(jnp.ones(3)).tolist() for _ in range(3)]
        assert results == [[2, 2, 2]] * 3
        assert counts() == (0, 3)
    jax.effects_barrier()
    assert [float(x) for x in seen] == [3.0] * 3


def test_trap_5_mutable_refs():
    """Trap 5: an executable that updates a closed-over reference is the reference's."""
    ref = jax.new_ref(jnp.zeros(3)) if hasattr(jax, "new_ref") else jax.array_ref(jnp.zeros(3))

    def step(x):
        ref[...] += x
        return x

    compiled = jax.jit(step).lower(jnp.ones(3)).compile()
    for call in (jax.jit(step), *entry_points(compiled).values()):
        for _ in range(3):
            call(jnp.ones(3))
    assert ref[...].tolist() == [12, 12, 12]
    assert all(jaxmarshal.stats()[name]["hits"] == 0 for name in entry_points(compiled))


def test_trap_5_pruned_and_constant_arguments():
    """Trap 5: unused arguments are pruned, large constants are passed as arguments."""
    constant = jnp.arange(4096.0)
    function = jax.jit(lambda x, unused, y: x * constant + y)
    args = (jnp.ones(4096), jnp.zeros(2), jnp.ones(4096))
    compiled = function.lower(*args).compile()
    warm(compiled, *args)
    np.testing.assert_array_equal(compiled(*args), np.arange(4096) + 1)
    with pytest.raises(TypeError, match="compiled with"):
        compiled(args[0], jnp.zeros(3), args[2])


def test_trap_5_keys_and_float0():
    """Trap 5: typed keys as arguments and results, float0 results."""
    key = jax.random.key(0)
    split = jax.jit(lambda k: jax.random.split(k)).lower(key).compile()
    expected = jax.random.key_data(jax.random.split(key)).tolist()
    for _ in range(3):
        assert jax.random.key_data(split(key)).tolist() == expected
    make = jax.jit(lambda seed: jax.random.wrap_key_data(seed))
    seed = jax.random.key_data(key)
    compiled = make.lower(seed).compile()
    for _ in range(3):
        assert jax.random.key_data(compiled(seed)).tolist() == seed.tolist()
    gradient = jax.jit(jax.grad(lambda n: n * 1.0, allow_int=True)).lower(3).compile()
    for _ in range(3):
        assert gradient(3).dtype == jax.dtypes.float0


def test_trap_5_typed_keys_hit():
    """Trap 5: typed keys, alone, batched and among arrays, go through plans."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jnp.arange(3.0)

    def draw(keys, x):
        return keys[::-1], jax.vmap(jax.random.normal)(keys) + x

    compiled = jax.jit(draw).lower(keys, x).compile()
    warm(compiled, keys, x)
    for seed in range(3):
        other = jax.random.split(jax.random.key(seed), 3)
        backwards, drawn = compiled(other, x)
        assert jax.random.key_data(backwards).tolist() == (
            jax.random.key_data(other)[::-1].tolist()
        )
        assert drawn.tolist() == jax.jit(draw)(other, x)[1].tolist()
    assert counts() == (3, 0)


def test_trap_5_other_keys():
    """Trap 5: keys of another implementation, committed, moved, deleted or checked for reuse."""
    key = jax.random.key(0)
    compiled = jax.jit(lambda k: jax.random.bits(k)).lower(key).compile()
    warm(compiled, key)
    # unsafe_rbg's keys have the shape and dtype of rbg's base arrays, threefry's have not.
    four = jax.jit(lambda k: jax.random.bits(k)).lower(jax.random.key(0, impl="rbg")).compile()
    warm(four, jax.random.key(0, impl="rbg"))
    deleted = jax.random.key(7)
    jax.random.key_data(deleted).delete()
    deleted._base_array.delete()
    for call, other in (
        (compiled, jax.random.key(0, impl="rbg")),
        (four, jax.random.key(0, impl="unsafe_rbg")),
        (compiled, jax.device_put(key, jax.devices()[0])),
        (compiled, jax.device_put(key, jax.devices()[2])),
        (compiled, jax.random.split(key)),
        (compiled, jax.random.key_data(key)),
        (compiled, deleted),
    ):
        assert observe(call, other) == observe_reference(call, other)
    counts()
    with jax.debug_key_reuse(True):
        fresh = jax.jit(lambda k: jax.random.bits(k)).lower(key).compile()
        for _ in range(3):
            assert observe(fresh, key) == observe_reference(fresh, key)
    assert counts()[0] == 0


def test_trap_6_committed_elsewhere():
    """Trap 6: arrays on other devices are moved or refused by the reference."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    warm(compiled, jnp.zeros(4))
    with jax.default_device(jax.devices()[3]):
        uncommitted = jnp.ones(4)
    committed = jax.device_put(np.ones(4, np.float32), jax.devices()[3])
    for array in (uncommitted, committed):
        found = observe(compiled, array)
        assert counts() == (0, 1)
        assert found == observe_reference(compiled, array)


def test_trap_6_not_in_place():
    """Trap 6: an argument that the reference moves first is never handed over as it is."""
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])
    executable = jax.jit(lambda x: x + 1).lower(x).compile()._executable
    with jax.default_device(jax.devices()[3]):
        elsewhere = jnp.arange(8, dtype=jnp.float32) * 2
    assert not elsewhere.committed
    spread = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()), ("x",)), P("x"))
    replicated = NamedSharding(spread.mesh, P())
    wide = jax.jit(lambda x: x * 2, in_shardings=spread).lower(np.ones(8, np.float32))
    wide = wide.compile()._executable
    for owner, argument in (
        (executable, elsewhere),
        (executable, jax.device_put(x, jax.devices()[2])),
        (executable, jax.device_put(x, spread)),
        (wide, jax.device_put(x, replicated)),
        (wide, x),
        (wide, elsewhere),
    ):
        for call in (lambda y, o=owner: o.call(y), lambda y, o=owner: o.unsafe_call(y)):
            expected = observe_reference(call, argument)
            for _ in range(4):
                assert observe(call, argument) == expected


def test_trap_6_committed_flag():
    """Trap 6: the committed flag is a word of the guard of its own."""
    x = jnp.zeros(4)
    compiled = jax.jit(lambda x: x + 1).lower(x).compile()
    warm(compiled, x)
    compiled(jax.device_put(np.zeros(4, np.float32), jax.devices()[0]))
    assert jaxmarshal.stats()["compiled_call"]["misses_by_reason"] == {"committed": 1}
    jaxmarshal.reset_stats()
    # And where all other words are the same.
    compiled = jax.jit(lambda x: x + 2).lower(x).compile()
    warm(compiled, x)
    twin = private.ArrayImpl(x.aval, x.sharding, [x], committed=True, _skip_checks=True)
    assert observe(compiled, twin) == observe_reference(compiled, twin)
    assert jaxmarshal.stats()["compiled_call"]["misses_by_reason"] == {"committed": 1}


@pytest.mark.errors
def test_trap_6_all_words_but_the_sharding():
    """Trap 6: an array elsewhere, when its other words have been adopted."""
    here, there = (jax.device_put(DATA, device) for device in jax.devices()[:2])
    compiled = jax.jit(lambda x: x + 1).lower(here).compile()
    warm(compiled, here)
    for _ in range(3):
        assert observe(compiled, there) == observe_reference(compiled, there)
    reasons = jaxmarshal.stats()["compiled_call"]["misses_by_reason"]
    assert reasons == {"sharding": 3}


def test_trap_11_plans_die():
    """Trap 11: plans die with their owner and on `jax.clear_caches()`."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    jaxmarshal.api.clear()
    warm(compiled, zeros := jnp.zeros(4))
    compiled._executable.call(zeros)
    assert plan.live_owners() == 3    # the Compiled, its MeshExecutable, its ExecuteReplicated
    executable = weakref.ref(compiled._executable)
    loaded = weakref.ref(compiled._executable.unsafe_call)
    del compiled
    gc.collect()
    assert (executable(), loaded(), plan.live_owners()) == (None, None, 0)
    compiled = jax.jit(lambda x: x + 2).lower(zeros).compile()
    warm(compiled, zeros)
    jax.clear_caches()
    assert plan.live_owners() == 0
    compiled(zeros)
    assert counts() == (0, 1)


def test_trap_11_garbage_is_collected():
    """jaxlib keeps the code of each caller until its garbage is collected; so does no plan."""
    x = jnp.arange(8.0)
    compiled = jax.jit(lambda x: x + 1).lower(x).compile()

    def caller():
        compiled(x)

    with jaxmarshal.installed("compiled_call"):
        before = sys.getrefcount(caller.__code__)
        for _ in range(5000):
            caller()
        jax.block_until_ready(compiled(x))
        assert sys.getrefcount(caller.__code__) - before < 1000


def test_trap_13_threads():
    """Trap 13: threads share a Compiled while another thread drops everything recorded."""
    compiled = jax.jit(lambda x, y: {"sum": x + y["a"]}).lower(DATA, {"a": DATA}).compile()
    stop = threading.Event()
    wrong = []

    def work(i):
        while not stop.is_set():
            x = jnp.full((3, 4), float(i)) if i % 2 else np.full((3, 4), i, np.float32)
            if compiled(x, {"a": DATA})["sum"].tolist() != (DATA + i).tolist():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        jaxmarshal.api.clear()
        jaxmarshal.uninstall()
        jaxmarshal.install()
        stop.wait(0.02)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.errors
@pytest.mark.parametrize("itself", [False, True])
def test_trap_5_deleted_while_others_are_compared(itself):
    """Trap 5: an argument is deleted after its buffer was read, by what runs during a comparison.

    Here that is a profile function; it could be another thread. Whether the freed buffer is read,
    the sanitizers see (`make asan`). The error is that of an array which was deleted before.
    """
    def make():
        return private.device_put(np.ones(4, np.float32))

    compiled = jax.jit(lambda xs: xs[0] + xs[1]).lower([make(), make()]).compile()
    compiled([make(), make()])
    array, others = make(), []
    compiled([make(), array])
    assert counts() == (1, 1)

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_name == "__eq__":
            sys.setprofile(None)
            (unlike if itself else array).delete()
            others.extend(make() for _ in range(50))

    unlike = make()    # its sharding is another object, which has to be compared
    sys.setprofile(profile)
    try:
        found = observe(compiled, [unlike, array])
    finally:
        sys.setprofile(None)
    assert others
    assert jaxmarshal.stats()["compiled_call"]["misses_by_reason"] == {"deleted": 1}
    assert found == observe_reference(compiled, [unlike, array])


def test_trap_5_deleted_while_others_are_placed():
    """Trap 5: an argument is deleted while another is placed, by what a garbage collection runs.

    It is tried at each moment at which Python collects. The result is right, or the error is that
    of an array which was deleted before.
    """
    arrays = [jax.device_put(np.float32(i)) for i in range(40)]
    host = np.arange(4.0, dtype=np.float32)

    def call(*xs):
        return sum(xs)

    compiled = jax.jit(call).lower(host, *arrays, arrays[0]).compile()
    outcomes = set()
    thresholds = gc.get_threshold()
    for moment in range(40):
        for _ in range(2):
            compiled(host, *arrays, arrays[0])
        array = jax.device_put(np.float32(100))
        left = [moment]

        def delete(phase, information, array=array, left=left):
            left[0] -= 1
            if left[0] == 0:
                array.delete()

        gc.callbacks.append(delete)
        gc.set_threshold(1)
        try:
            outcomes.add(float(compiled(host, *arrays, array)[1]))
        except (RuntimeError, ValueError) as error:
            assert "deleted" in str(error)
            outcomes.add("deleted")
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(delete)
    assert outcomes <= {881.0, "deleted"}
    assert 881.0 in outcomes


HUGE = np.full(8, 1e300)


@pytest.mark.parametrize("shown", ["always", "default", "once", "error", "ignore"])
@pytest.mark.parametrize("beside", [0, 120])
@pytest.mark.parametrize("data", [HUGE, 1e300, np.float64(1e300)], ids=["array", "float", "scalar"])
def test_trap_20_warnings_of_conversions(shown, beside, data):
    """Trap 20: data whose conversion warns do so from where they do in JAX, and as often."""
    arrays = [jnp.full(2, n, jnp.float32) for n in range(beside)]
    found = []
    jaxmarshal.uninstall()
    for place in (contextlib.nullcontext, jaxmarshal.installed):
        with place():
            x = np.ones(np.shape(data), np.float32)
            compiled = jax.jit(lambda x, others: [x + 1, *others]).lower(x, arrays).compile()
            compiled(x, arrays), compiled(x, arrays)
            for module in list(sys.modules.values()):
                getattr(module, "__warningregistry__", {}).clear()
            outcomes = []
            jaxmarshal.reset_stats()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(shown)
                for _ in range(4):
                    outcomes.append(observe(compiled, data, arrays)[0][:2])
                    outcomes.append(observe(compiled, x, arrays)[0][:2])
        found.append((
            [str(o) for o in outcomes],
            [(w.category, str(w.message), w.filename, w.lineno) for w in caught],
        ))  # fmt: skip
    assert found[0] == found[1]
    assert counts()[0] == (4 if beside else 0)    # the data that say nothing, among many arrays
