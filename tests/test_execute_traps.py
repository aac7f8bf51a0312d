"""The traps of compiled calls, each with a test that fails when its guard is removed."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from observe import observe
from recipes import aligned
from support import ADDRESSES_COME_BACK, without_jaxmarshal

import jaxmarshal
from jaxmarshal import _plan, _reference

P = PartitionSpec


@pytest.fixture(autouse=True)
def installed():
    """Every test here runs with jaxmarshal installed, so that calls are written as users do."""
    with jaxmarshal.installed():
        yield


def counts(entry="compiled_call"):
    """(hits, misses) of an entry point since the last call of this function."""
    found = jaxmarshal.stats()[entry]
    jaxmarshal.reset_stats()
    return found["hits"], found["misses"]


def warm(owner, *args):
    """Two calls: one that records, one that hits."""
    owner(*args)
    owner(*args)
    assert counts() == (1, 1)


def observe_reference(call, *args, **kwargs):
    """The same observation with nothing of jaxmarshal in place, also further down the call."""
    with without_jaxmarshal():
        return observe(call, *args, **kwargs)


def column_major(data):
    """The same numbers with the first axis contiguous, imported through DLPack."""
    columns = aligned(data.nbytes, 0).view(data.dtype).reshape(data.shape[::-1]).T
    columns[...] = data
    array = jax.dlpack.from_dlpack(columns)
    assert array.format.layout.major_to_minor == (1, 0)
    return array


DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def entry_points(compiled):
    """The three ways into an executable: name in the counts, call, and how to get the result."""
    executable = compiled._executable
    return {
        "compiled_call": lambda x: compiled(x),
        "mesh_executable_call": lambda x: executable.call(x)[0],
        "execute_replicated_call": lambda x: executable.unsafe_call(x)[0],
    }


@pytest.mark.parametrize("entry", ["compiled_call", "mesh_executable_call"])
@pytest.mark.parametrize("committed", [False, True])
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
    warm(compiled, _reference.device_put(np.zeros(4, np.float32)))
    for _ in range(5):
        array = _reference.device_put(np.zeros(4, np.float32))
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
    among = [DATA, *(jnp.float32(i) for i in range(40))]
    wide = jax.jit(lambda xs: xs[0] + xs[1], keep_unused=True).lower(among).compile()
    alone = jax.jit(lambda x: x + 1).lower(DATA).compile()._executable
    for entry, call, x in (
        ("compiled_call", wide, among),
        ("mesh_executable_call", lambda x: alone.call(x), DATA),
    ):
        for _ in range(3):
            call(x)
        assert counts(entry)[0] == 2
        for level in ("disallow", "allow", "log", "disallow_explicit"):
            context = functools.partial(jax.transfer_guard, level)
            found = observe(call, x, context=context)
            assert found == observe_reference(call, x, context=context)
            assert counts(entry) == ((1, 0) if level == "allow" else (0, 1))


@pytest.mark.parametrize("value", [1e300, np.float64(1e300), np.array([1e300, 1.0])])
def test_recording_does_not_warn_again(value):
    """A conversion warns as often as in JAX, also where its argument is recorded afterwards."""
    def outcomes():
        call = jax.jit(lambda x: x + 1).lower(value).compile()._executable.call
        return [observe(call, value) for _ in range(3)]

    found = outcomes()
    jaxmarshal.uninstall()
    assert found == outcomes()
    assert len(found[0][1]) == 1    # the warning


def test_recording_keeps_to_the_transfer_guard(capfd):
    """A guard that logs transfers logs those of the program and no other."""
    def logged():
        call = jax.jit(lambda x: x + 1).lower(DATA).compile()._executable.call
        with jax.transfer_guard("log_explicit"):
            for _ in range(3):
                call(DATA)
        return capfd.readouterr().err.count("host-to-device transfer")

    found = logged()
    jaxmarshal.uninstall()
    assert found == logged() == 3


def test_few_arrays_among_host_data():
    """Where jaxlib's C++ call costs less it is left to do the call, and stays right."""
    some = [jnp.float32(i) for i in range(40)]
    for host in (DATA, 1.5, np.float32(2)):
        compiled = jax.jit(lambda x, xs: [x + xs[0]]).lower(host, some[:2]).compile()
        expected = observe_reference(compiled, host, some[:2])
        for _ in range(4):
            assert observe(compiled, host, some[:2]) == expected
        assert counts() == (0, 4)
        assert jaxmarshal.explain(compiled, host, some[:2]).reason == "host_leaves"
        compiled = jax.jit(lambda x, xs: [x + xs[0]]).lower(host, some).compile()
        for _ in range(4):
            compiled(host, some)
        assert counts() == (3, 1)


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
    twin = _reference.ArrayImpl(x.aval, x.sharding, [x], committed=True, _skip_checks=True)
    assert observe(compiled, twin) == observe_reference(compiled, twin)
    assert jaxmarshal.stats()["compiled_call"]["misses_by_reason"] == {"committed": 1}


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
    assert _plan.live_owners() == 3    # the Compiled, its MeshExecutable, its ExecuteReplicated
    executable = weakref.ref(compiled._executable)
    loaded = weakref.ref(compiled._executable.unsafe_call)
    del compiled
    gc.collect()
    assert (executable(), loaded(), _plan.live_owners()) == (None, None, 0)
    compiled = jax.jit(lambda x: x + 2).lower(zeros).compile()
    warm(compiled, zeros)
    jax.clear_caches()
    assert _plan.live_owners() == 0
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


def test_changed_structures():
    """A tree of another structure is the reference's error or another plan, never a wrong match."""
    x = jnp.ones(3)
    tree = {"a": [x, (x, None)], "b": x}
    compiled = jax.jit(lambda t: t).lower(tree).compile()
    warm(compiled, tree)
    for other in (
        {"a": [x, (x, None)]},
        {"a": [x, (x, x)], "b": x},
        {"a": (x, (x, None)), "b": x},
        {"a": [x, [x, None]], "b": x},
        {"a": [x, x, None], "b": x},
        {"a": [x, (x, None)], "c": x},
        [x, x, x],
        (x, x, x),
    ):
        with pytest.raises(TypeError, match="pytree"):
            compiled(other)
    assert counts() == (0, 8)
    compiled({"b": x, "a": [x, (x, None)]})
    assert counts() == (1, 0)


def test_dicts_in_other_orders():
    """Keys are found where they were the last time, and only if they are still there."""
    leaves = [jnp.float32(i) for i in range(4)]
    first = {"d": leaves[0], "a": leaves[1], "c": leaves[2], "b": leaves[3]}
    compiled = jax.jit(lambda d: [d["a"] - d["b"], d["c"] * 10 + d["d"]]).lower(first).compile()
    warm(compiled, first)

    def answer(mapping):
        return [float(x) for x in compiled(mapping)]

    same_order = {key: leaves[1] for key in first}
    sorted_order = {key: first[key] for key in sorted(first)}
    shrunk = {"x": None, **first}
    del shrunk["x"]
    moved = dict(first)
    moved["d"] = moved.pop("d")
    copied_keys = {"".join(list(key + "x"))[:1]: value for key, value in first.items()}
    expected = [-2.0, 20.0]
    assert answer(first) == expected
    assert answer(same_order) == [0.0, 11.0]
    for mapping in (sorted_order, shrunk, moved, copied_keys, first):
        assert answer(mapping) == expected
    assert counts() == (7, 0)
    renamed = dict(first)
    renamed["e"] = renamed.pop("b")
    with pytest.raises(TypeError):
        compiled(renamed)


Pair = collections.namedtuple("Pair", "left right")


def test_trap_5_deleted_while_others_are_compared():
    """Trap 5: an argument is deleted after its buffer was read, by what runs during a comparison.

    Here that is a profile function; it could be another thread. Whether the freed buffer is read,
    the sanitizers see (`make asan`). The error is that of an array which was deleted before.
    """
    def make():
        return _reference.device_put(np.ones(4, np.float32))

    compiled = jax.jit(lambda xs: xs[0] + xs[1]).lower([make(), make()]).compile()
    compiled([make(), make()])
    array, others = make(), []
    compiled([make(), array])
    assert counts() == (1, 1)

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_name == "__eq__":
            sys.setprofile(None)
            array.delete()
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


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x,
        lambda x: [],
        lambda x: None,
        lambda x: {},
        lambda x: [x, None, (x + 1, [x + 2]), {}],
        lambda x: {"b": x, "a": [x + 1], "c": ()},
        lambda x: {2: x, 1: x + 1},
        lambda x: Pair({"k": x}, Pair(None, x + 1)),
        lambda x: collections.OrderedDict(b=x, a=[x + 1, None]),
        lambda x: collections.defaultdict(list, b=x, a=(x,)),
        lambda x: [(x,), [[x + 1]]],
        lambda x: [jax.tree_util.Partial(max, x)],
        lambda x: [x + i for i in range(300)],
    ],
)
def test_trees_of_results(build):
    """The tree of results is JAX's own: types, key order, new containers each time."""
    x = jnp.float32(1)
    compiled = jax.jit(build).lower(x).compile()
    warm(compiled, x)
    seen = []
    for _ in range(2):
        seen.append(compiled(x))
        plain = observe_reference(lambda: compiled(x))
        assert observe(lambda: seen[-1]) == plain
        reference = _reference.compiled_call(compiled, x)
        assert jax.tree.structure(seen[-1]) == jax.tree.structure(reference)
        if isinstance(reference, dict):
            assert list(seen[-1]) == list(reference)
    if isinstance(seen[0], (list, dict)):
        assert seen[0] is not seen[1]
    assert counts()[0] == 2


def test_node_that_raises_or_changes_the_tree():
    """Flatten functions of custom nodes may raise or change the tree they are in."""

    class Evil:
        action = staticmethod(lambda: None)

    def flatten(node):
        Evil.action()
        return (jnp.ones(3),), None

    jax.tree_util.register_pytree_node(Evil, flatten, lambda aux, children: Evil())
    items = [Evil(), jnp.ones(3)]
    compiled = jax.jit(lambda t: t[1] + 1).lower(items).compile()
    warm(compiled, items)

    def fail():
        raise ZeroDivisionError("flatten")

    Evil.action = staticmethod(fail)
    with pytest.raises(ZeroDivisionError, match="flatten"):
        compiled(items)
    changing = [Evil(), jnp.ones(3)]
    Evil.action = staticmethod(lambda: changing.append(2.0))
    found = observe(compiled, changing)
    del changing[2:]
    # The text says how often the list has grown, and flatten functions run again after a miss.
    assert found[0][:2] == observe_reference(compiled, changing)[0][:2]
    Evil.action = staticmethod(lambda: None)
    assert compiled([Evil(), jnp.ones(3)]).tolist() == [2, 2, 2]


def test_failing_executables():
    """An executable that fails at run time raises the reference's error; the next call works."""
    calls = []

    def callback(x):
        calls.append(1)
        if len(calls) % 2:
            raise ValueError("no")
        return np.asarray(x)

    compiled = jax.jit(lambda x: jax.pure_callback(callback, x, x)).lower(jnp.ones(3)).compile()
    for _ in range(2):
        with pytest.raises(Exception, match="no"):
            jax.block_until_ready(compiled(jnp.ones(3)))
        assert compiled(jnp.ones(3)).tolist() == [1, 1, 1]


def test_profiles_show_the_reference_names(tmp_path):
    """Trap 12: while a profile is taken the reference runs, with its annotations."""
    compiled = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile()
    warm(compiled, jnp.zeros(4))
    with jax.profiler.trace(str(tmp_path)):
        compiled(jnp.zeros(4))
    assert jaxmarshal.stats()["compiled_call"]["misses_by_reason"] == {"profiler": 1}


@pytest.mark.slow
def test_wide_calls_on_eight_devices(mesh):
    """Sharded and replicated arguments hit, and hundreds of results come back in order."""
    sharded = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    replicated = jax.device_put(np.ones(16, np.float32), NamedSharding(mesh, P()))
    function = jax.jit(lambda xs, y: [x * i + y for i, x in enumerate(xs)])
    compiled = function.lower([sharded] * 300, replicated).compile()
    warm(compiled, [sharded] * 300, replicated)
    for i, result in enumerate(compiled([sharded] * 300, replicated)):
        np.testing.assert_array_equal(result, np.arange(16) * i + 1)
    assert counts() == (1, 0)


@pytest.mark.skipif(LAYOUT_OFF, reason="the object layout is switched off")
def test_layout_is_proven_for_results():
    """Results of executables have a proven layout, so that they are fast arguments."""
    from jaxmarshal import _layout

    result = jax.jit(lambda x: x + 1)(jnp.ones((3, 4)))
    assert _layout.read(result)["default_layout_proven"]
