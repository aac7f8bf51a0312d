"""`jax.typeof` of arrays, which JAX asks for while it traces and derives."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from conftest import LAYOUT_OFF
from jax._src import core
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from jitted import on, spread
from observe import observe
from samples import mesh_of
from support import ADDRESSES_COME_BACK, config_updated

import jaxmarshal
from jaxmarshal._jax import private

PLACE = private.ArrayImpl


def kinds():
    """Arrays with as many types, and one whose type is that of another."""
    x = jnp.arange(6.0)
    return [
        x, x + 1, jnp.arange(6), x.astype(jnp.bfloat16), x.reshape(2, 3), jnp.asarray(1.0),
        jnp.asarray(1), on(3), spread(), jax.random.key_data(jax.random.key(0)),
    ]  # fmt: skip


def test_installing_and_uninstalling():
    """The table has JAX's own function again afterwards."""
    before = core.pytype_aval_mappings[PLACE]
    with jaxmarshal.installed():
        assert (core.pytype_aval_mappings[PLACE] is before) == LAYOUT_OFF
        with jaxmarshal.uninstalled():
            assert core.pytype_aval_mappings[PLACE] is before
    with jaxmarshal.installed(only="jit"):
        assert core.pytype_aval_mappings[PLACE] is before
    assert core.pytype_aval_mappings[PLACE] is before


@pytest.mark.parametrize("switch", ["off", "0", None])
def test_nothing_is_installed_where_no_words_are_read(switch):
    """With the object layout switched off, which is known before the first array, JAX is asked."""
    code = """
        import jax
        from jax._src import core
        import jaxmarshal
        from jaxmarshal._jax import private
        before = core.pytype_aval_mappings[private.ArrayImpl]
        jaxmarshal.install()
        print(core.pytype_aval_mappings[private.ArrayImpl] is before)
    """
    assert run_code(code, JAXMARSHAL_OBJECT_LAYOUT=switch).stdout == f"{switch is not None}\n"


def test_a_function_of_somebody_elses_stays():
    """Whoever replaced JAX's function in its table is asked, before and after."""
    def theirs(x):
        return x.aval

    before = core.pytype_aval_mappings[PLACE]
    with mock.patch.dict(core.pytype_aval_mappings, {PLACE: theirs}), jaxmarshal.installed():
        assert core.pytype_aval_mappings[PLACE] is theirs
    assert core.pytype_aval_mappings[PLACE] is before


def test_the_same_objects():
    """As in JAX, equal types are one object, and shapes, dtypes and shardings are told apart."""
    arrays = kinds()
    plain = [jax.typeof(x) for x in arrays]
    with jaxmarshal.installed():
        for _ in range(3):
            assert all(
                jax.typeof(x) is expected for x, expected in zip(arrays, plain, strict=True)
            )


def test_deleted_and_empty_arrays():
    """What JAX says of them, before and after others were asked for."""
    def deleted():
        x = jnp.arange(3.0)
        jax.typeof(x)
        x.delete()
        return jax.typeof(x)

    def empty():
        return jax.typeof(PLACE.__new__(PLACE))

    for call in (deleted, empty):
        expected = observe(call)
        with jaxmarshal.installed():
            for _ in range(3):
                assert observe(call) == expected


def test_replaced_functions_are_asked():
    """A mock of what JAX's function looks up is called, whatever is known."""
    x = jnp.arange(3.0)
    other = core.ShapedArray((7,), np.dtype(np.int32))
    with jaxmarshal.installed():
        for _ in range(3):
            before = jax.typeof(x)
        with mock.patch.object(core, "update_aval_with_sharding", lambda *args: other):
            assert jax.typeof(x) is other
        assert jax.typeof(x) is before


def test_meshes_that_the_configuration_changes():
    """The type of an array on a mesh depends on it, and is never known."""
    mesh = mesh_of(0, axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(np.arange(3.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("x")))

    def types():
        found = []
        for removed in (False, True, False):
            with config_updated("jax_remove_size_one_mesh_axis_from_type", removed):
                found.append(str(jax.typeof(x)))
        return found

    plain = types()
    assert len(set(plain)) == 2
    with jaxmarshal.installed():
        assert [types() for _ in range(3)] == [plain] * 3


@pytest.mark.skipif(not ADDRESSES_COME_BACK, reason="the sanitizer keeps freed memory")
def test_reused_addresses():
    """Types of arrays that have died say nothing of others with the same addresses."""
    with jaxmarshal.installed():
        for i in range(300):
            shape = (1 + i % 5,)
            x = jax.device_put(
                np.ones(shape, np.float32), SingleDeviceSharding(jax.devices()[i % 3])
            )
            x = jax.jit(lambda x, i=i: x + i)(x) if i % 20 == 0 else x
            assert jax.typeof(x).shape == shape
            del x


def test_gradients_outside_of_jit():
    """Where it is asked for most: the same values, and the same jaxpr."""
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    args = jnp.ones((3, 2)), jnp.arange(12.0).reshape(4, 3)

    def body():
        return jax.grad(loss)(*args), str(jax.make_jaxpr(jax.grad(loss))(*args))

    expected = observe(body)
    with jaxmarshal.installed():
        for _ in range(4):
            assert observe(body) == expected
