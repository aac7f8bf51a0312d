"""Code of the user in the middle of a call changes what the call has looked at already."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipes import Node
from twins import jit_counts

import jaxmarshal
from jaxmarshal._core.values import live_objects

#: The calls that a function had before, by how many elements: one plan, and more than are tried
#: one after the other.
SIGNATURES = [(2,), (2, 3, 4, 5, 6)]


class Acting:
    """What happens once, at one moment: while a node is taken apart, or a static is hashed."""

    def __init__(self, moment):
        self.moment = moment
        self.act = None
        acting = self

        @jax.tree_util.register_pytree_node_class
        class ActingNode(Node):
            def tree_flatten(self):
                acting.reached("flatten")
                return super().tree_flatten()

            @classmethod
            def tree_unflatten(cls, aux, children):
                acting.reached("unflatten")
                return super().tree_unflatten(aux, children)

        class ActingStatic:
            def __hash__(self):
                acting.reached("hash")
                return 5

            def __eq__(self, other):
                return type(other) is ActingStatic

        self.node, self.static = ActingNode, ActingStatic

    def reached(self, moment):
        if moment == self.moment and self.act is not None:
            act, self.act = self.act, None
            act()


def described(tree):
    """All that can be seen of a result."""
    return [
        (leaf.dtype, leaf.shape, leaf.weak_type, leaf.tolist()) for leaf in jax.tree.leaves(tree)
    ]


def run(kind, moment, signatures, change):
    """The results of calls before, during and after one in which something is changed."""
    acting, held, seen = Acting(moment), [1.0], []

    def program(last, node, first, _):
        # Zeros of the dtype that the configuration gives.
        return jax.tree.map(lambda x: x * first[0] + last[-1] + held[0], node), jnp.zeros(1)

    function = kind(program, static_argnums=3)

    def call(n):
        last = np.ones(n, np.float32)
        first, inner, one = jax.device_put([last.copy(), np.arange(n), np.float32(1)])
        more = [one] * 20    # or C++ is left to place what is on the host
        acting.arguments = first, inner, last
        try:
            seen.append(described(function(last, acting.node(inner, more), first, acting.static())))
        except Exception as error:
            seen.append((type(error).__name__, str(error).partition("(")[0]))

    for _ in range(3):
        for n in signatures:
            call(n)
    for n in sorted({signatures[0], signatures[-1]}):
        call(n)
        jit_counts()
        for _ in range(2):
            call(n)
        assert jit_counts() == (0 if kind is jax.jit else 2, {})
        acting.act = lambda: CHANGES[change](function, held, acting)
        call(n)
        assert acting.act is None
        jaxmarshal.uninstall()
        with jax.enable_x64(False):
            for _ in range(3):
                call(n)
        jax.config.update("jax_enable_x64", False)
    return seen


def set_shape(array):
    # As an assignment does, which newer versions of numpy warn of.
    array.__setstate__((1, (1, array.size), array.dtype, False, array.tobytes()))


def retell(function, held, acting):
    held[0] += 1.0
    function.clear_cache()


def retell_all(function, held, acting):
    held[0] += 1.0
    jax.clear_caches()


CHANGES = {
    "what is closed over": retell,
    "what is closed over, everywhere": retell_all,
    "x64": lambda function, held, acting: jax.config.update("jax_enable_x64", True),
    "shape of a numpy array": lambda function, held, acting: set_shape(acting.arguments[2]),
    "values of a numpy array": lambda function, held, acting: acting.arguments[2].fill(9),
    "an argument is deleted": lambda function, held, acting: acting.arguments[0].delete(),
    "a leaf of the node is deleted": lambda function, held, acting: acting.arguments[1].delete(),
    "collection": lambda function, held, acting: gc.collect(),
    "jaxmarshal is installed": lambda function, held, acting: jaxmarshal.install(),
    "jaxmarshal is uninstalled": lambda function, held, acting: jaxmarshal.uninstall(),
}


@pytest.mark.parametrize("signatures", SIGNATURES, ids=len)
@pytest.mark.parametrize("moment", ["flatten", "unflatten", "hash"])
@pytest.mark.parametrize("change", CHANGES)
def test_trap_15_in_the_middle_of_a_call(change, moment, signatures):
    """Trap 15: a call ends with what it began with, or with what it finds, as in plain JAX."""
    if moment == "hash" and ("deleted" in change or "shape" in change):
        pytest.skip("plain JAX has looked at the array, and reads what is not there any more")
    gc.collect()
    before = live_objects.snapshot()["live_plans"]
    try:
        outcomes = [run(kind, moment, signatures, change) for kind in (jax.jit, jaxmarshal.jit)]
    finally:
        jaxmarshal.uninstall()
        jax.config.update("jax_enable_x64", False)
    assert outcomes[0] == outcomes[1]
    jax.clear_caches()
    gc.collect()
    assert live_objects.snapshot()["live_plans"] <= before


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("moment", ["flatten", "unflatten"])
def test_trap_15_in_the_middle_of_a_recorded_call(moment, times):
    """Trap 15: a program traced in another configuration is not kept for that of the call."""

    def run(kind):
        acting, seen = Acting(moment), []
        function = kind(lambda node: jax.tree.map(lambda x: x + jnp.zeros(1), node))
        node = acting.node(jnp.ones(2, np.int32), [jnp.ones(2, np.float32)])

        def call():
            seen.append(described(function(node)))

        for _ in range(times):
            call()
        function.clear_cache()    # so that each moment comes
        acting.act = lambda: jax.config.update("jax_enable_x64", True)
        call()
        assert acting.act is None
        jax.config.update("jax_enable_x64", False)
        for _ in range(4):
            call()
        return seen

    try:
        assert run(jaxmarshal.jit) == run(jax.jit)
    finally:
        jax.config.update("jax_enable_x64", False)


class Deadline(Exception):
    """What a signal handler raises, in whatever runs then."""


class Once:
    """Raises an error when the program's code is run the next time, and never again."""

    def __init__(self):
        self.armed = False

    def __call__(self):
        if self.armed:
            self.armed = False
            raise Deadline("once")


@pytest.mark.parametrize("known", [1, 5])
@pytest.mark.parametrize("moment", ["flatten", "hash", "eq"])
def test_trap_10_errors_that_do_not_come_back(moment, known):
    """Trap 10: what the program's code raises once is raised, and the call before is repeated."""
    once = Once()

    @jax.tree_util.register_pytree_node_class
    class FailingNode(Node):
        def tree_flatten(self):
            if moment == "flatten":
                once()
            return super().tree_flatten()

    class FailingStatic:
        def __hash__(self):
            if moment == "hash":
                once()
            return 5

        def __eq__(self, other):
            if moment == "eq":
                once()
            return type(other) is FailingStatic

    function = jaxmarshal.jit(
        lambda node, _: jax.tree.map(lambda x: x + 1, node), static_argnums=1, donate_argnums=0
    )
    given = []

    def call(n=2):
        given[:] = jnp.ones(n), jnp.ones(1)
        return function(FailingNode(given[0], [given[1]]), FailingStatic())

    for _ in range(4):
        for n in range(2, 2 + known):
            call(n)
    hits = jit_counts()[0]
    assert hits >= known
    for _ in range(3):
        once.armed = True
        with pytest.raises((Deadline, ValueError), match="once"):
            call()
        assert not once.armed
        if moment == "flatten":    # then nothing was run, and nothing used up
            assert not any(x.is_deleted() for x in given)
        assert described(call())
        assert all(x.is_deleted() for x in given)
    assert jit_counts()[0] >= 3
    assert live_objects.snapshot()["live_slots"] == 0


@pytest.mark.parametrize("moment", ["flatten", "hash"])
def test_trap_10_errors_of_a_first_call(moment):
    """Trap 10: so is it where nothing is recorded yet."""
    once = Once()

    class Failing:
        def __hash__(self):
            once()
            return 5

        def __eq__(self, other):
            return type(other) is Failing

    @jax.tree_util.register_pytree_node_class
    class FailingNode(Node):
        def tree_flatten(self):
            once()
            return super().tree_flatten()

    traces = []

    def program(x, _):
        traces.append(1)
        return jax.tree.map(lambda x: x + 1, x)

    function = jaxmarshal.jit(program, static_argnums=1)
    args = (jnp.ones(2), Failing()) if moment == "hash" else (FailingNode(jnp.ones(2), []), 1)
    once.armed = True
    with pytest.raises((Deadline, ValueError), match="once"):
        function(*args)
    assert moment == "hash" or not traces
    for _ in range(3):
        function(*args)
    assert jit_counts()[0] >= 1


def seen_by_both(body):
    """What a body says that is given `jax.jit` and `jaxmarshal.jit`: equal, with calls that hit."""
    expected = body(jax.jit)
    jit_counts()
    assert body(jaxmarshal.jit) == expected
    assert jit_counts()[0] >= 2
    return expected


def test_trap_15_static_arguments_come_last():
    """Trap 15: jaxlib takes arguments apart, then hashes the static ones, and then compares."""

    def body(jit):
        said = []

        @jax.tree_util.register_pytree_node_class
        class Telling(Node):
            def tree_flatten(self):
                said.append("flatten")
                return super().tree_flatten()

        class Static:
            act = None

            def __hash__(self):
                said.append("hash")
                if Static.act:
                    Static.act()
                return 5

            def __eq__(self, other):
                said.append("eq")
                return type(other) is Static

        x = jnp.ones(3)
        listed = [x, x]
        function = jit(lambda static, items, node: sum(items), static_argnums=0)
        for _ in range(4):
            function(Static(), listed, Telling(x))
        said.clear()
        function(Static(), listed, Telling(x))
        events = list(said)

        def act():
            listed[0] = x * 10

        Static.act = act
        return events, function(Static(), listed, Telling(x)).tolist()

    events, values = seen_by_both(body)
    assert events == ["flatten", "hash", "eq"]
    assert values == [2.0] * 3


@pytest.mark.parametrize("others", [0, 6])
def test_trap_15_the_first_of_two_that_have_become_equal(others):
    """Trap 15: metadata that were edited fit two recorded calls; jaxlib finds the older one."""

    def body(jit):
        class Config:
            def __init__(self, scale):
                self.scale = scale

            def __eq__(self, other):
                return self.scale == other.scale

            def __hash__(self):
                return 1

        class Model:
            def __init__(self, w, config):
                self.w, self.config = w, config

        jax.tree_util.register_dataclass(Model, ["w"], ["config"])
        function = jit(lambda model: model.w * model.config.scale)
        fixed = jit(lambda config, w: w * config.scale, static_argnums=0)
        w = jnp.ones(3)
        configs = [Config(2.0), Config(3.0), *[Config(5.0 + i) for i in range(others)]]
        for _ in range(4):
            for config in configs:
                function(Model(w, config))
                fixed(config, w)
        configs[1].scale = 2.0
        again = (configs[1], Config(2.0), configs[0])
        return [
            (function(Model(w, config)).tolist(), fixed(config, w).tolist()) for config in again
        ]

    assert seen_by_both(body) == [([2.0] * 3, [2.0] * 3)] * 3


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.complex128])
def test_trap_15_host_data_edited_while_a_later_node_is_taken_apart(dtype):
    """Trap 15: what is converted is what there is once all arguments were looked at."""

    def body(jit):
        host = np.ones(4, dtype)
        edits = []

        @jax.tree_util.register_pytree_node_class
        class Editing(Node):
            def tree_flatten(self):
                if edits:
                    host[:] = edits.pop()
                return super().tree_flatten()

        x = jnp.ones(3)
        many = [x] * 20
        function = jit(lambda many, host, node: host + 1)
        for _ in range(4):
            function(many, host, Editing(x))
        edits.append(5)
        return function(many, host, Editing(x)).tolist()

    assert seen_by_both(body) == [6] * 4
