"""Host arguments in memory that calls use one after the other (`placement/host_data.pxd`)."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import threading
import weakref

import child
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jitted import on, spread
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._core.placement import host_data
from jaxmarshal._jax import private

pytestmark = pytest.mark.skipif(
    LAYOUT_OFF or not private.HAVE_REUSE, reason="no plan is made, or no memory is shared"
)

SIZE = 32_768    # bytes; more are not copied


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed("jit"):
        yield


def hits():
    """Of `jit`, since the last time."""
    count = jaxmarshal.stats()["jit"]["hits"]
    jaxmarshal.reset_stats()
    return count


def slow(x):
    """What takes long, and only then looks at its argument: it is still read after the call."""
    k = jnp.full((300, 300), 1 / 300, jnp.float32)
    m = jax.lax.fori_loop(0, 60, lambda i, m: m @ k, k)    # stays what it is, but for rounding
    return m[0, 0] - m[0, 0] + x, m[:2, :2]


def data(i, shape=(4,)):
    return np.full(shape, i, np.float32)


def recorded(function, *arguments):
    """A jitted function with a plan for such arguments, all of whose calls are over."""
    function = jax.jit(function)
    for _ in range(3):
        jax.block_until_ready(function(*arguments))
    hits()
    return function


def test_results_keep_their_values():
    """Of an argument that is handed on, too."""
    w = jnp.full(4, 2.0)
    f = recorded(lambda w, b: (w + b, b, b.reshape(2, 2), b * 1), w, data(0))
    results = [f(w, data(i)) for i in range(50)]
    assert hits() == 50
    for i, result in enumerate(results):
        assert [np.asarray(x).ravel().tolist() for x in result] == [[i + 2] * 4] + [[i] * 4] * 3
    assert 0 < host_data.count_buffers() <= 4


def test_a_computation_that_still_reads():
    """Another call with other data does not change what it sees."""
    f = recorded(slow, data(0))
    for _ in range(5):
        results = [f(data(i)) for i in range(6)]
        assert [np.asarray(x).tolist() for x, _ in results] == [[i] * 4 for i in range(6)]
    assert hits() > 0    # at least each first one


@pytest.mark.parametrize("how", ["dropped", "deleted", "donated"])
def test_nobody_to_ask(how):
    """The result that would tell is no longer there, another one is waited for."""
    f = recorded(lambda x: slow(x)[::-1], data(0))
    use_up = jax.jit(lambda x: x * 1, donate_argnums=0)
    for _ in range(5):
        late = []
        for i in range(6):
            first, last = f(data(i))
            late.append(last)
            if how == "deleted":
                first.delete()
            elif how == "donated":
                use_up(first)
            del first
        assert [np.asarray(x).tolist() for x in late] == [[i] * 4 for i in range(6)]
    assert hits() > 0


@pytest.mark.parametrize("before", [4, 1], ids=["last", "second"])
def test_a_state_that_is_donated(before):
    """To the next call: another result than a part of the state is asked, the loss."""

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state, x):
        state, loss = [part + x for part in state], slow(x)[0]
        return (*state[:before], loss, *state[before:])

    state, losses = [jnp.zeros(4) for _ in range(4)], []
    for i in range(90):
        if i == 60:
            hits()
        state = list(train_step(state, data(i)))
        losses.append(state.pop(before))
        if i % 2:    # the state of the call before is donated by now, before anybody saw it ready
            losses[-1].block_until_ready()
    assert hits() >= 15
    assert [loss.tolist() for loss in losses] == [[i] * 4 for i in range(90)]
    assert [part.tolist() for part in state] == [[sum(range(90))] * 4] * 4


def test_an_empty_result_to_ask():
    """An array without elements is no sooner ready than the others."""
    f = recorded(lambda x: (x[:0], slow(x)[0]), data(0))
    for _ in range(5):
        results = [f(data(i)) for i in range(6)]
        assert [np.asarray(x).tolist() for _, x in results] == [[i] * 4 for i in range(6)]


def test_memory_that_was_deleted():
    """`jax.live_arrays()` has the arrays that share this memory."""
    others = set(map(id, kept := jax.live_arrays()))
    f = recorded(lambda x: x + 1, data(0))
    for i in range(5):
        for array in jax.live_arrays():
            if array.shape == (4,) and id(array) not in others:
                array.delete()
        assert f(data(i)).tolist() == [i + 1] * 4
    assert hits() == 5
    del kept


@pytest.mark.parametrize("limit", [jax.clear_caches, jaxmarshal.api.clear])
def test_memory_goes(limit):
    """With what else is recorded."""
    jax.clear_caches()
    f = recorded(lambda x: x + 1, data(0, (7, 3)))
    assert any(array.shape == (7, 3) for array in jax.live_arrays())
    limit()
    gc.collect()
    assert host_data.count_buffers() == 0
    assert not any(array.shape == (7, 3) for array in jax.live_arrays())
    assert f(data(1, (7, 3))).sum() == 42


def test_memory_is_bounded():
    """However many shapes there are."""
    for i in range(1, 400):
        recorded(lambda x: x[0] + 1, data(0, (8_192 - i,)))
    assert host_data.count_buffers() * 4 * 7_800 < 9 * 2**20


def test_arguments_and_results_are_let_go():
    """Whether their data were copied or not."""
    w = jnp.ones(4)
    f = recorded(lambda w, x: (w + x, x), w, data(0))
    x = data(1)
    results = f(w, x)
    known = [weakref.ref(x), *map(weakref.ref, results)]
    del x, results
    assert hits() == 1
    gc.collect()
    assert [reference() for reference in known] == [None] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda i: np.full(4, i, np.float64), lambda i: np.full(4, i, np.int8),
        lambda i: np.full(4, i % 2, bool), lambda i: np.full(4, i, ml_dtypes.bfloat16),
        lambda i: np.full(4, i + 1j, np.complex64), lambda i: np.float32(i), lambda i: np.int64(i),
        lambda i: i, lambda i: i / 3, lambda i: np.full((8, 2), i, np.float32)[::2, ::-1],
        lambda i: np.asfortranarray(np.arange(6.0).reshape(2, 3) + i),
        lambda i: np.full((), i, np.int32),
        lambda i: {"a": (data(i), data(-i)), "b": [i, data(i, (2,))]},
        lambda i: np.full(SIZE // 4, i, np.float32), lambda i: np.full(SIZE // 4 + 1, i, np.int32),
        lambda i: np.zeros((0, 3), np.float32), lambda i: complex(i, 1), lambda i: i % 3 == 0,
        pytest.param(lambda i: np.full(4, i % 8, ml_dtypes.int4), id="int4"),    # is packed
    ],
)  # fmt: skip
def test_as_without(make):
    """All kinds of host data, among arrays and alone, as plain JAX has them."""
    arrays = [jnp.ones(4), jnp.arange(3)]
    alone = Twins(lambda: lambda x: jax.tree.map(lambda y: (y, y.T), x))
    beside = Twins(lambda: lambda x, xs: (x, jax.tree.map(lambda y: y.sum() + xs[0], x)))
    twice = Twins(lambda: lambda x, y: (x, y))
    for i in range(12):
        alone(lambda i=i: (make(i),))
        beside(lambda i=i: (make(i), arrays))
        twice(lambda i=i: (make(i), make(i + 1)))


def test_which_are_copied():
    """Not those that are too long, empty, for other devices, or used up."""
    some = jnp.ones(4)
    for function, argument, options, expected in (
        (lambda w, x: x[0], data(1, (SIZE // 4,)), {}, 5),
        (lambda w, x: x[0], data(1, (SIZE // 4 + 1,)), {}, 0),
        (lambda w, x: x.sum(), data(1, (0,)), {}, 0),
        (lambda w, x: x + 1, data(1), {"donate_argnums": 1}, 0),
        (lambda w, x: x + 1, data(1), {"donate_argnames": "x"}, 0),
        (lambda w, x: (w + 1, x + 1), data(1), {"donate_argnums": 0}, 5),
        (lambda w, x: (w + 1, x + 1), data(1), {"donate_argnames": "w"}, 5),
    ):  # fmt: skip
        f = jax.jit(function, **options)
        for _ in range(2):
            f(some + 0, argument)
        jaxmarshal.reset_stats()
        for _ in range(5):
            jax.block_until_ready(f(jax.device_put(np.ones(4, np.float32)), argument))
        assert jit_counts()[0] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 0, "donate_argnums": 1}, {"static_argnums": 0, "donate_argnums": 2},
        {"static_argnums": 1, "donate_argnums": 2}, {"static_argnums": 2, "donate_argnums": (0, 1)},
        {"static_argnums": -3, "donate_argnums": 1}, {"static_argnums": 0, "donate_argnums": -1},
        {"static_argnames": "a", "donate_argnames": "b"}, {"donate_argnums": (0, 2)},
        {"donate_argnames": ("a", "c")}, {"donate_argnums": -1}, {"donate_argnums": 1},
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_donated_numbers_and_arrays(options):
    """What a call uses up is made anew for the next one, by whatever its place is told."""
    arrays = jnp.arange(4.0)
    named = "static_argnames" in options or "donate_argnames" in options
    for make in (
        lambda: 3, lambda: np.float32(3), lambda: data(3), lambda: (3, data(3), arrays + 1)
    ):  # fmt: skip
        for bind in (
            lambda f: f, lambda f: lambda a, b=2, c=3: f(a, b, c), lambda f: lambda *args: f(*args),
        )[: 2 if named else 3]:  # fmt: skip
            twins = Twins(
                lambda bind=bind: bind(lambda a, b, c: jax.tree.map(lambda x: x * 1, (a, b, c))),
                **options,
            )

            def arguments(make=make):
                args = [make(), make(), make()]
                numbers = options.get("static_argnums", 0 if "static_argnames" in options else None)
                if numbers is not None:
                    args[numbers] = 5
                return args

            for _ in range(12):
                twins(arguments)


def test_a_kept_number_that_was_donated():
    """`jax.live_arrays()` has the array of a number that stays the same."""
    others = set(map(id, kept := jax.live_arrays()))
    f = recorded(lambda w, x: w + x, jnp.ones(4), 3)
    use_up = jax.jit(lambda x: x * 1, donate_argnums=0)
    w = jnp.ones(4)
    for _ in range(8):
        f(w, 3)
    for array in jax.live_arrays():
        if array.shape == () and id(array) not in others and not array.is_deleted():
            with contextlib.suppress(ValueError):    # it is used up already
                use_up(array)
    for _ in range(4):
        assert f(w, 3).tolist() == [4] * 4
    del kept


def test_a_kept_number_that_is_donated_meanwhile():
    """By the garbage collector, while the call it was found for makes memory for other data."""
    done = child.run_code(
        """
        import gc
        import jax, jaxmarshal, numpy as np
        from jaxmarshal._core.placement import host_data

        jaxmarshal.install("jit")
        w, other = jax.device_put([np.ones(3, np.float32), np.ones((1, 3), np.float32)])
        f = jax.jit(lambda x, kept, y, w: (w + x + kept + y).sum())
        f(np.zeros(3, np.float32), 2.5, 7.25, other)
        for i in range(40):
            f(np.full(3, i, np.float32), 2.5, i + 0.5, w)

        class Donor:
            def __init__(self):
                self.me = self

            def __del__(self):
                for array in jax.live_arrays():
                    if array.shape == () and not array.is_deleted() and array == 2.5:
                        array.delete()
                f(np.zeros(3, np.float32), 2.5, 7.25, other)    # finds it gone, and has no plan

        gc.disable()
        wrong = 0
        for n in range(40):    # containers that the call makes until then
            f(np.full(3, n, np.float32), 2.5, n + 0.75, w)
            x = np.full(3, n, np.float32)
            host_data.drop_buffers()
            gc.collect()
            Donor()
            gc.set_threshold(gc.get_count()[0] + n)
            gc.enable()
            result = f(x, 2.5, n + 1000.25, w)
            gc.disable()
            wrong += float(result) != 3 * (1 + n + 2.5 + n + 1000.25)
        print(wrong, jaxmarshal.stats()["jit"]["hits"] > 80)
        """
    )
    assert done.stdout.split() == ["0", "True"]


def test_several_devices():
    """Each device that shares memory has memory of its own; a mesh has none."""
    twins = Twins(lambda: lambda w, x: w + x)
    places = [on(0, data(1)), on(1, data(2)), spread(data(3, (8,))), jnp.ones(4)]
    for i in range(8):
        for w in places:
            twins(lambda w=w, i=i: (w, data(i, w.shape)))


def test_threads():
    """Each call has its own data."""
    f = recorded(lambda w, x: (slow(x)[0] + w, x * 2), jnp.ones(4), data(0))
    g = recorded(lambda w, x: x + w, jnp.ones(4), data(0))
    wrong = []

    def work(number):
        w = jnp.zeros(4)
        for i in range(60):
            value = 1000 * number + i
            late, twice = f(w, data(value)) if i % 5 == 0 else (data(value), 2 * data(value))
            results = [g(w, data(value + j)) for j in range(5)]
            if [x.tolist() for x in results] != [[value + j] * 4 for j in range(5)]:
                wrong.append(value)
            if late.tolist() != [value] * 4 or twice.tolist() != [2 * value] * 4:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert hits() > 20    # where the device is not busy


def test_an_error_of_the_call(monkeypatch):
    """What was copied for it is not used again."""
    f = recorded(lambda w, x: w + x, jnp.ones(4), data(0))
    gone = jnp.ones(4)
    gone.delete()
    for i in range(3):
        with pytest.raises(Exception, match="deleted"):
            f(gone, data(i))
        assert f(jnp.ones(4), data(i)).tolist() == [i + 1] * 4


@pytest.mark.parametrize("level", ["allow", "log", "disallow"])
def test_transfer_guards(level):
    """Data that are copied are transferred."""
    twins = Twins(lambda: lambda w, x: w + x)
    w = jnp.ones(4)
    for i in range(12):
        twins(lambda i=i: (w, data(i)), context=lambda i=i: jax.transfer_guard(
            level if i % 3 == 2 else "allow"
        ))  # fmt: skip


def test_explained():
    """A question takes nothing and gives nothing."""
    w = jnp.ones(4)
    f = recorded(lambda w, x: w + x, w, data(0))
    before = host_data.count_buffers()
    for i in range(20):
        assert jaxmarshal.explain(f, w, data(i)).hit
        assert host_data.count_buffers() == before
        assert f(w, data(i)).tolist() == [i + 1] * 4
    assert hits() == 20


def test_memory_that_is_not_shared():
    """A backend that copies data elsewhere: calls with few arrays are jaxlib's."""
    done = child.run_code(
        """
        import jax, jaxlib, numpy as np
        put = jaxlib._jax.batched_device_put
        jaxlib._jax.batched_device_put = lambda aval, sharding, xs, *args: put(
            aval, sharding, [x.copy() if isinstance(x, np.ndarray) else x for x in xs], *args
        )
        import jaxmarshal
        jaxmarshal.install("jit")
        f = jax.jit(lambda x: x + 1)
        print([f(np.full(4, i, np.float32)).tolist() for i in range(20)])
        print(jaxmarshal.stats()["jit"]["misses_by_reason"])
        """
    )
    values, reasons = map(ast.literal_eval, done.stdout.splitlines())
    assert values == [[i + 1] * 4 for i in range(20)]
    assert reasons["host_leaves"] >= 10
