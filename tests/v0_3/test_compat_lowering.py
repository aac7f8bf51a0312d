"""`dispatch_v0_3`: from functions, primitives and IR to executables, and questions about jaxprs."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from jax import lax
from jax.errors import UnexpectedTracerError
from jax.extend import core
from jax.extend.backend import get_backend, get_compile_options
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from old_dispatch import compiled, devices, lower, same, wrapped

import jaxmarshal
from jaxmarshal.compat import _compile, dispatch_v0_3 as dispatch


def square(n=4):
    return jax.device_put(np.arange(n * n, dtype=np.float32).reshape(n, n))


def several(x, y):
    return [x @ y, jnp.sum(x), x.astype(jnp.int32)]


# --- Computations --------------------------------------------------------------------------------


def test_forms_of_a_computation():
    """A module's text and HLO; one compiled computation."""
    computation = lower(several, square(), square())
    assert computation.name == "several"
    assert not computation.is_trivial()
    assert "module @jit_several" in computation.mhlo()
    assert "stablehlo.dot_general" in computation.mhlo()
    hlo = computation.hlo()
    assert hlo.name() == "jit_several"
    assert "dot(" in hlo.as_hlo_text()
    assert computation.compile() is computation.compile()
    assert isinstance(computation.compile().xla_executable(), dispatch.XlaExecutable)
    assert not computation.compile().is_trivial()


def test_a_computation_of_hlo():
    """HLO is kept as it is, shown as MLIR, compiled and run."""
    source = lower(several, square(), square())
    hlo = source.hlo()
    computation = dispatch.XlaComputation("again", hlo, False, None, **source.compile_args)
    assert computation.hlo() is hlo
    assert "module @jit_several" in computation.mhlo()
    assert "dot_general" in computation.mhlo()
    for _ in range(2):
        same(computation.compile().call(square(), square()), jax.jit(several)(square(), square()))


def test_tupled_arguments():
    """HLO that takes one tuple, as long lists of arguments did."""
    source = lower(several, square(), square())
    source.compile_args["tuple_args"] = True
    hlo = source.hlo()
    (parameter,) = hlo.program_shape().parameter_shapes()
    assert parameter.is_tuple()
    computation = dispatch.XlaComputation("tuple", hlo, False, None, **source.compile_args)
    for _ in range(2):
        same(computation.compile().call(square(), square()), jax.jit(several)(square(), square()))


def test_a_trivial_computation():
    """It has neither form."""
    computation = lower(lambda x: [x, 1], square())
    assert computation.is_trivial()
    with pytest.raises(ValueError, match=r"^A trivial computation has no HLO$"):
        computation.hlo()
    with pytest.raises(ValueError, match=r"^A trivial computation has no MHLO$"):
        computation.mhlo()
    assert computation.compile().is_trivial()
    assert computation.compile() is computation.compile()


def test_what_is_pruned():
    """Arguments and constants that nothing uses; equations stay."""
    used, unused = jnp.arange(300.0), jnp.arange(400.0)

    def function(a, b, c):
        c * 2
        unused.shape  # noqa: B018
        return [a + used]

    computation = lower(function, used, square(), 3.0)
    assert computation.compile_args["kept_var_idx"] == {0, 2}
    assert [aval.shape for aval in computation.compile_args["in_avals"]] == [(300,), ()]
    same(computation.compile().call(used, 5, 3.0), [used + used])


def test_prune_unused_inputs():
    """The indices of what is kept; the jaxpr's own order."""
    constant = jnp.arange(3.0)
    closed = jax.make_jaxpr(lambda a, b, c, d: (c + constant, a))(1.0, 2.0, constant, 4.0)
    jaxpr, constants, arguments = dispatch._prune_unused_inputs(closed.jaxpr)
    assert (constants, arguments) == ({0}, {0, 2})
    assert (len(jaxpr.constvars), len(jaxpr.invars), len(jaxpr.eqns)) == (1, 2, 1)
    found = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, closed.consts))(1.0, constant)
    same(found[:1], [constant + constant])
    assert found[1] == 1.0
    nothing = jax.make_jaxpr(lambda x: ())(1.0).jaxpr
    assert dispatch._prune_unused_inputs(nothing)[1:] == (set(), set())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"device": True, "backend": "cpu"},
            r"can't specify both a device and a backend for jit, got device=.* and backend=cpu",
        ),
        ({"backend": "nonsense"}, "nonsense"),
    ],
)
def test_bad_targets(options, text):
    """The errors name what was given."""
    if "device" in options:
        options["device"] = devices()[0]
    with pytest.raises((ValueError, RuntimeError), match=text):
        lower(several, square(), square(), **options)


def test_targets():
    """A device, a backend, or where the arguments are bound."""
    bound = [jax.device_put(square(), devices()[i]) for i in (2, 3)]
    assert lower(several, square(), square()).compile_args["device"] is None
    cases = {
        2: lower(several, bound[0], square()),
        3: lower(several, *bound, device=devices()[3]),
        0: lower(several, *bound, backend="cpu"),
    }
    for i, computation in cases.items():
        assert computation.compile_args["device"] == devices()[i]
        assert computation.compile().xla_executable().local_devices() == [devices()[i]]
    with pytest.raises(ValueError, match="must be colocated on the same device") as caught:
        lower(several, *bound)
    assert str(caught.value) == (
        "primitive arguments must be colocated on the same device, "
        f"got {devices()[2]}, {devices()[3]}"
    )
    # The place of an argument that is not used does not matter.
    assert lower(lambda x, y: [x + 1], *bound).compile_args["device"] == devices()[2]


def test_the_default_device():
    """It is where computations run that nothing is bound to."""
    with jax.default_device(devices()[4]):
        computation = compiled(several, square(), square())
    assert computation.xla_executable().local_devices() == [devices()[4]]
    assert not computation.call(square(), square())[0].committed


def test_device_of_arguments():
    """None for nothing bound, one device, or an error that lists them all."""
    one, other = devices()[:2]
    assert dispatch._device_from_arg_devices([]) is None
    assert dispatch._device_from_arg_devices([None, None]) is None
    assert dispatch._device_from_arg_devices([None, one, one]) is one
    with pytest.raises(ValueError, match=f"got {re.escape(f'{one}, None, {other}')}$"):
        dispatch._device_from_arg_devices([one, None, other])


def test_device_of_a_callable():
    """One device or none for one replica, none at all for several."""
    one = devices()[1]
    assert dispatch._xla_callable_device(1, None, None, [None, one]) is one
    assert dispatch._xla_callable_device(1, None, one, [devices()[2]]) is one
    assert dispatch._xla_callable_device(1, "cpu", None, [one]) is devices()[0]
    assert dispatch._xla_callable_device(2, None, None, [one]) is None
    for device, backend in ((one, None), (None, "cpu")):
        with pytest.raises(ValueError, match=r"^can't specify device or backend for jit-of-pmap, "):
            dispatch._xla_callable_device(2, backend, device, [])


def test_arg_spec():
    """The abstract value, and the device of a committed array on one device."""
    assert dispatch.arg_spec(2.5)[0].weak_type
    assert str(dispatch.arg_spec(np.arange(3.0))[0]) == "float32[3]"
    assert dispatch.arg_spec(np.arange(3))[1] is None
    assert dispatch.arg_spec(jnp.arange(3))[1] is None
    assert dispatch.arg_spec(jax.device_put(1, devices()[3]))[1] is devices()[3]
    over_all = NamedSharding(Mesh(devices(), ("x",)), PartitionSpec("x"))
    assert dispatch.arg_spec(jax.device_put(np.arange(8), over_all))[1] is None

    class Sticky(np.float32):
        _device = "somewhere"

    assert dispatch.arg_spec(Sticky(1))[1] == "somewhere"
    with pytest.raises(TypeError):
        dispatch.arg_spec("text")


def test_tracers_of_another_trace():
    """They are found before anything is compiled."""

    def outer(x):
        return lower(lambda y: [x + y], np.ones(3000, np.float32))

    with pytest.raises(UnexpectedTracerError, match="Encountered an unexpected tracer"):
        jax.jit(outer)(jnp.ones(3000))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: jax.debug.print("{}", x) or [x + 1], "has effects: call it through jax.jit"),
        (
            lambda x: jax.debug.print("{}", x, ordered=True) or [x + 1],
            "has effects: call it through jax.jit",
        ),
        (
            lambda x: [jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), x.dtype), x)],
            "calls back into Python: call it through jax.jit",
        ),
        (
            lambda x: [jax.pmap(lambda x: x + 1)(jnp.broadcast_to(x, 8))],
            "runs on 8 devices: call it through jax.jit",
        ),
    ],
)
def test_what_the_old_api_has_no_place_for(function, text):
    """An error that says what runs it."""
    with pytest.raises(NotImplementedError, match=text):
        lower(function, jnp.float32(1))


def test_logging_of_compilation(caplog, monkeypatch):
    """Three messages where `jax_log_compiles` asks for them, none once the process ends."""
    with caplog.at_level(logging.DEBUG, "jaxmarshal.dispatch_v0_3"):
        compiled(several, square(), square())
        assert {record.levelno for record in caplog.records} == {logging.DEBUG}
        caplog.clear()
        with jax.log_compiles(True):
            compiled(several, square(), square())
            found = [r for r in caplog.records if r.name == "jaxmarshal.dispatch_v0_3"]
            assert {record.levelno for record in found} == {logging.WARNING}
            patterns = [
                r"Finished tracing \+ transforming several for jit in [\d.e-]+ sec",
                r"Compiling several \(\d+\) for args \[.*float32\[4,4\].*\]\.",
                r"Finished XLA compilation of several in [\d.e-]+ sec",
            ]
            for pattern, record in zip(patterns, found, strict=True):
                assert re.fullmatch(pattern, record.getMessage())
            compiled(lambda *xs: [sum(xs)], *range(11))
            assert any(" for 11 args." in record.getMessage() for record in caplog.records)
            caplog.clear()
            monkeypatch.setattr(dispatch, "_on_exit", True)
            compiled(several, square(), square())
    assert not [r for r in caplog.records if r.name == "jaxmarshal.dispatch_v0_3"]
    assert _compile._on_exit is True


def test_log_elapsed_time(caplog):
    """The seconds in the place of the field; nothing where the body raises."""
    with caplog.at_level(logging.DEBUG, "jaxmarshal.dispatch_v0_3"):
        with dispatch.log_elapsed_time("took {elapsed_time:.3f} s"):
            pass
        with pytest.raises(KeyError), dispatch.log_elapsed_time("never {elapsed_time}"):
            raise KeyError
    assert [re.sub(r"\d", "0", r.getMessage()) for r in caplog.records] == ["took 0.000 s"]


# --- Callables -----------------------------------------------------------------------------------


def test_xla_callable():
    """Traced and compiled once for arguments alike; the uncached one every time."""
    traced = []

    def function(x, y):
        traced.append(x.shape)
        return [x @ y]

    fun = wrapped(function)
    specs = [dispatch.arg_spec(square())] * 2
    run = dispatch._xla_callable(fun, None, None, "f", (False, False), *specs)
    assert dispatch._xla_callable(wrapped(function), None, None, "f", (False, False), *specs) is run
    assert len(traced) == 1
    same(run(square(), square()), [square() @ square()])
    dispatch._xla_callable_uncached(wrapped(function), None, None, "f", (False, False), *specs)
    assert len(traced) == 2
    jax.clear_caches()
    dispatch._xla_callable(wrapped(function), None, None, "f", (False, False), *specs)
    assert len(traced) == 3


def call_impl(function, *args, donated=None, device=None, backend=None):
    donated = (False,) * len(args) if donated is None else donated
    return dispatch._xla_call_impl(
        wrapped(function), *args, device=device, backend=backend, name="f",
        donated_invars=donated, inline=False,
    )  # fmt: skip


def test_xla_call_impl():
    """Compiles for the arguments and runs."""
    for _ in range(2):
        same(call_impl(several, square(), square()), jax.jit(several)(square(), square()))
    (found,) = call_impl(lambda x: [x + 1], square(), device=devices()[2])
    assert found.devices() == {devices()[2]}
    state = square() + 0
    call_impl(lambda x: [x + 1], state, donated=(True,))
    assert state.is_deleted()


def test_xla_call_impl_finds_the_operation(capsys):
    """With nan checks a failing function is run again, and the operation is named."""

    def function(x):
        return [jnp.log(x) + 1]

    with jax.debug_nans(True):
        call_impl(function, jnp.float32(1))
        with pytest.raises(FloatingPointError, match=r"nan.*encountered in log"):
            call_impl(function, jnp.float32(-1))
    assert "Calling the de-optimized version." in capsys.readouterr().out


def test_apply_primitive():
    """One result or several, as the primitive has."""
    x = square()
    for _ in range(2):
        same([dispatch.apply_primitive(lax.add_p, x, x)], [x + x])
        same([dispatch.apply_primitive(lax.neg_p, np.float32(2))], [-jnp.float32(2)])
        found = dispatch.apply_primitive(lax.sort_p, x, dimension=0, is_stable=True, num_keys=1)
        same(found, [jnp.sort(x, axis=0)])
    there = jax.device_put(x, devices()[3])
    assert dispatch.apply_primitive(lax.add_p, there, x).devices() == {devices()[3]}
    with jax.disable_jit():
        same([dispatch.apply_primitive(lax.mul_p, x, x)], [x * x])
    with pytest.raises(ValueError, match="must be colocated"):
        dispatch.apply_primitive(lax.add_p, there, jax.device_put(x, devices()[4]))


def test_primitive_callable():
    """Cached by primitive, arguments and parameters, until caches are cleared."""
    spec = dispatch.arg_spec(square())
    run = dispatch.xla_primitive_callable(lax.add_p, spec, spec)
    assert dispatch.xla_primitive_callable(lax.add_p, spec, spec) is run
    assert dispatch.xla_primitive_callable(lax.mul_p, spec, spec) is not run
    same([run(square(), square())], [square() * 2])
    jax.clear_caches()
    assert dispatch.xla_primitive_callable(lax.add_p, spec, spec) is not run


# --- Compiling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "module", "hlo"])
def test_backend_compile(form):
    """A module, its text, or HLO; `options` decide the device."""
    computation = lower(several, square(), square())
    source = {"text": computation.mhlo(), "module": computation._hlo, "hlo": computation.hlo()}
    options = get_compile_options(
        num_replicas=1, num_partitions=1, device_assignment=[devices()[3].id]
    )
    executable = dispatch.backend_compile(get_backend(), source[form], options)
    assert executable.local_devices() == [devices()[3]]
    found = dispatch._execute_compiled(
        "f", executable, None, [lambda *bufs: bufs], {0, 1}, square(), square()
    )
    same(found[0], jax.jit(several)(*[jax.device_put(square(), devices()[3])] * 2))


@pytest.fixture
def dump_folder(tmp_path):
    before = jax.config.values["jax_dump_ir_to"]
    folder = tmp_path / "dumps"
    dispatch.FLAGS.jax_dump_ir_to = str(folder)
    yield folder
    jax.config.update("jax_dump_ir_to", before)


@pytest.mark.parametrize("form", ["text", "module", "hlo"])
def test_dumps_can_be_compiled_again(form, dump_folder):
    """What was dumped is read back, compiled and run."""
    computation = lower(several, square(), square())
    source = {"text": computation.mhlo(), "module": computation._hlo, "hlo": computation.hlo()}
    options = get_compile_options(num_replicas=1, num_partitions=1)
    for _ in range(2):
        dispatch.compile_or_get_cached(get_backend(), source[form], options)
    first, second = sorted(dump_folder.iterdir())
    assert re.fullmatch(r"jax_ir\d+_jit_several\.mlir", first.name)
    assert first.read_text() == second.read_text()
    again = dispatch.XlaCompiledComputation.from_xla_computation(
        "again", first.read_text(), **computation.compile_args
    )
    for _ in range(2):
        same(again.call(square(), square()), jax.jit(several)(square(), square()))


def test_compiling_dumps(dump_folder):
    """Every computation that is compiled, and none that is trivial."""
    compiled(several, square(), square())
    compiled(lambda x: [x], square())
    assert len(list(dump_folder.iterdir())) == 1


def test_names_of_dumps(dump_folder):
    """Numbered, with what a file name may have; the folder is made."""
    assert dispatch._make_string_safe_for_filename("a/b<c>:\"(1) x-y_2.z\n") == "abc(1) x-y_2.z"
    number = next(dispatch._ir_dump_counter)
    dispatch._dump_ir_to_file("f/<g>", "text")
    (file,) = dump_folder.iterdir()
    assert (file.name, file.read_text()) == (f"jax_ir{number + 1}_fg.mlir", "text")


def test_flags():
    """JAX's options, to read and to set."""
    assert dispatch.FLAGS.jax_enable_x64 is False
    assert dispatch.FLAGS.jax_dump_ir_to == jax.config.values["jax_dump_ir_to"]
    with pytest.raises(AttributeError, match="no configuration option 'jax_nonsense'"):
        dispatch.FLAGS.jax_nonsense  # noqa: B018
    with pytest.raises(AttributeError):
        dispatch.FLAGS.jax_nonsense = 1


def test_the_persistent_cache(tmp_path):
    """A second process loads what the first has compiled."""
    code = f"""
        import sys
        sys.path.append({str(Path(__file__).parents[1] / "harness")!r})
        import jax, numpy as np
        jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        from old_dispatch import compiled
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        x = np.arange(4, dtype=np.float32)
        assert np.array_equal(compiled(lambda x: [x * 3], x).call(x)[0], x * 3)
        print(hits.count("/jax/compilation_cache/cache_hits"))
    """
    assert run_code(code).stdout.split() == ["0"]
    assert any(tmp_path.iterdir())
    assert run_code(code).stdout.split() == ["1"]


def test_wrapping_backend_compile(monkeypatch):
    """A profiling script sees every compilation."""
    seen = []
    original = dispatch.backend_compile

    def spy(backend, built_c, options):
        seen.append(type(options).__name__)
        return original(backend, built_c, options)

    monkeypatch.setattr(dispatch, "backend_compile", spy)
    compiled(several, square(), square())
    assert seen == ["CompileOptions"]


# --- Jaxprs --------------------------------------------------------------------------------------


def nested(x):
    def body(carry):
        return carry * 2.5 + 7.0

    return lax.cond(x > 3.0, body, lambda x: jax.jit(lambda y: y - 11.0)(x), x) * 13.0


def test_jaxpr_literals():
    """Those of every depth."""
    jaxpr = jax.make_jaxpr(nested)(1.0).jaxpr
    found = {float(value) for value in dispatch.jaxpr_literals(jaxpr)}
    assert found >= {3.0, 2.5, 7.0, 11.0, 13.0}
    assert list(dispatch.jaxpr_literals(jax.make_jaxpr(lambda x: x)(1.0).jaxpr)) == []


def call_primitive(name):
    """A primitive with a `call_jaxpr`, as `pmap` had."""
    primitive = core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *avals, call_jaxpr, **_: call_jaxpr.out_avals)
    primitive.def_impl(lambda *args, call_jaxpr, **_: core.jaxpr_as_fun(call_jaxpr)(*args))
    return primitive


def mapped(x, size, name="xla_pmap", inner=lambda x: x * 2):
    return call_primitive(name).bind(x, call_jaxpr=jax.make_jaxpr(inner)(x), axis_size=size)[0]


def test_jaxpr_has_pmap():
    """By the name of the primitive, at any depth."""
    for function, expected in (
        (nested, False),
        (lambda x: mapped(x, 2), True),
        (lambda x: mapped(x, 2, "other"), False),
        (lambda x: lax.cond(x > 0, lambda x: mapped(x, 2), lambda x: x, x), True),
        (jax.jit(lambda x: mapped(x, 2)), True),
    ):
        assert dispatch.jaxpr_has_pmap(jax.make_jaxpr(function)(1.0).jaxpr) == expected


def test_replicas():
    """Sizes multiply inwards; the most of the equations counts."""
    inner = lambda x: mapped(x, 3)  # noqa: E731
    for function, expected in (
        (lambda x: x, 1),
        (nested, 1),
        (inner, 3),
        (lambda x: mapped(x, 2, inner=inner), 6),
        (lambda x: mapped(x, 4) + mapped(x, 2), 4),
        (lambda x: lax.cond(x > 0, inner, lambda x: x, x), 3),
        (lambda x: lax.fori_loop(0, 3, lambda _, x: mapped(x, 5), x), 5),
    ):
        closed = jax.make_jaxpr(function)(1.0)
        assert dispatch.jaxpr_replicas(closed) == expected
        assert dispatch.jaxpr_replicas(closed.jaxpr) == expected
    (eqn,) = jax.make_jaxpr(inner)(1.0).jaxpr.eqns
    assert dispatch.eqn_replicas(eqn) == 3
    assert dispatch.initial_style_primitive_replicas({"jaxpr": closed, "other": 1}) == 5
    assert dispatch.initial_style_primitive_replicas({}) == 1


def test_lowering_of_replicas():
    """A warning for two, an error for more than there are devices, or with a device."""
    with pytest.raises(ValueError) as caught, pytest.warns(UserWarning, match="includes a pmap"):
        lower(lambda x: [mapped(x, 9)], 1.0, name="nine")
    assert str(caught.value) == (
        "compiling computation `nine` that requires 9 replicas, but only 8 XLA devices are "
        "available."
    )
    with pytest.raises(ValueError, match="can't specify device or backend for jit-of-pmap"):
        lower(lambda x: [mapped(x, 2)], 1.0, device=devices()[1])


def test_outfeed_rewriter(monkeypatch):
    """What is assigned is applied to every jaxpr, before it is lowered."""
    x = square()
    assert dispatch.outfeed_rewriter is None
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(x).jaxpr
    assert dispatch.apply_outfeed_rewriter(jaxpr) is jaxpr
    other = jax.make_jaxpr(lambda x: x * 10)(x).jaxpr
    monkeypatch.setattr(dispatch, "outfeed_rewriter", lambda jaxpr: other)
    assert dispatch.apply_outfeed_rewriter(jaxpr) is other
    same(compiled(lambda x: [x + 1], x).call(x), [x * 10])


# --- Importing -----------------------------------------------------------------------------------


def test_import_touches_nothing():
    """No backend, no array, nothing patched; and star imports bring the public names."""
    run_code("""
        import jax
        original = jax.device_put
        names = {}
        exec("from jaxmarshal.compat.dispatch_v0_3 import *", names)
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
        assert jax.device_put is original
        assert {"device_put", "XlaComputation", "map"} <= set(names)
        assert "_execute_compiled" not in names
    """)


def test_with_jaxmarshal_installed():
    """Both at once."""
    with jaxmarshal.installed():
        for _ in range(3):
            same(compiled(several, square(), square()).call(square(), square()),
                 jax.jit(several)(square(), square()))  # fmt: skip
