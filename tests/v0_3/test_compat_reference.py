"""`dispatch_v0_3` on a JAX that lacks a private name: imports work, and errors say what lacks."""

from __future__ import annotations

import inspect
import re

import pytest

from jaxmarshal._jax import private as main, private_v0_3

#: Every (module, name) that this gateway asks JAX for.
LOOKUPS = re.findall(r'_lookup\(\s*"([\w.]+)",\s*"([\w.]+)"\)', inspect.getsource(private_v0_3))

#: The names without which nothing is compiled or checked, and those without which there is no HLO.
NEEDED = {"DeviceList", "ir.Module", "module_to_string", "typematch", "xla_client.Shape"}
NEEDED_FOR_HLO = {
    "xla_client.XlaComputation", "mlir.mlir_module_to_xla_computation",
    "mlir.xla_computation_to_mlir_module", "module_to_string",
}  # fmt: skip

WITHOUT = """
    import importlib, operator
    import jax, numpy as np
    import jax.extend.backend, jax.extend.core, jax.extend.linear_util, jax.api_util

    path, _, last = name.rpartition(".")
    holder = importlib.import_module(module)
    holder = operator.attrgetter(path)(holder) if path else holder
    saved = getattr(holder, last)
    delattr(holder, last)
    from jaxmarshal._jax import private
    from jaxmarshal.compat import dispatch_v0_3 as dispatch
    setattr(holder, last, saved)    # JAX itself needs it
    missing = list(private.missing)

    from old_dispatch import lower
    x = np.arange(4, dtype=np.float32)
    put = dispatch.device_put(x, jax.devices()[1])[0]
    assert np.array_equal(put, x) and put.devices() == {jax.devices()[1]}
    computation = lower(lambda x: [x * 2, x + 1], x)
    outcome = {}
    for what, call in {
        "call": lambda: [computation.compile().call(x)[0].tolist() for _ in range(3)][-1],
        "hlo": lambda: computation.hlo().name(),
        "check": lambda: dispatch.check_special("f", [put]),
        "zip": lambda: list(dispatch.zip([1], [2])),
    }.items():
        try:
            with jax.debug_nans(what == "check"):
                outcome[what] = call()
        except NotImplementedError as error:
            outcome[what] = str(error)
    result = {"missing": missing, **outcome}
"""


def test_the_installed_version_lacks_nothing():
    """On the supported versions every name is there and every capability is on."""
    assert len(LOOKUPS) == inspect.getsource(private_v0_3).count("= _lookup(") > 15
    flags = {name: value for name, value in vars(private_v0_3).items() if name.startswith("HAVE_")}
    assert set(flags) == {"HAVE_CACHE", "HAVE_COMPILE", "HAVE_HLO", "HAVE_PREPARED"}
    assert all(flags.values())
    assert not any(main.lacking[flag] for flag in flags)


@pytest.mark.parametrize(("module", "name"), LOOKUPS)
def test_without_a_name(module, name, fresh):
    """What does not need the name works; what does names it, or does without."""
    found = fresh(inspect.cleandoc(WITHOUT), module=module, name=name)
    assert found["missing"] == [f"{module}.{name}"]
    lacks = f"not with JAX {main.JAX_VERSION}: {module}.{name}"
    assert found["call"] == (lacks if name in NEEDED else [0.0, 2.0, 4.0, 6.0])
    assert found["check"] == (lacks if name in NEEDED else None)
    assert found["hlo"] == (lacks if name in NEEDED_FOR_HLO else "jit__lambda")
    assert found["zip"] == [[1, 2]]
