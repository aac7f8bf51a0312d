"""Where arrays cannot be compared by their words, compiled calls are JAX's own from the start.

To ask each array's attributes would take several times as long as the call. What wins without the
words stays fast: `device_put`, `jnp.asarray`, indexing, making arrays.
"""

from __future__ import annotations

import json

import pytest
from child import run_code

PROGRAM = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax import lax
    import jaxmarshal
    from jaxmarshal.compat import dispatch_v0_3
    from jaxmarshal.selfcheck.observe import outcome

    {before}
    x = jax.device_put(np.arange(8, dtype=np.float32))
    data = np.arange(4, dtype=np.float32)

    def function(tree, y):
        return {{"sum": sum(jax.tree.leaves(tree)) + y}}

    explained = []

    def once():
        wide = [x] * 30
        jitted = jax.jit(lambda tree, y: function(tree, y))
        compiled = jitted.lower(wide, x).compile()
        mesh_executable = compiled._executable
        # The same objects call after call, as programs have them.
        calls = {{
            "jit": lambda: jitted(wide, x),
            "compiled_call": lambda: compiled(wide, x),
            "mesh_executable_call": lambda: mesh_executable.call(*wide, x),
            "execute_replicated_call": lambda: mesh_executable.unsafe_call(*wide, x),
            "bind": lambda: lax.add(x, x),
            "device_put": lambda: jax.device_put([data, 1.5, x], jax.devices()[-1]),
            "asarray": lambda: jnp.asarray(data),
            "getitem": lambda: x[2],
            "zeros": lambda: jnp.zeros(5),
        }}
        found = {{}}
        for name, call in calls.items():
            jaxmarshal.reset_stats()
            seen = [outcome(lambda _: call(), None) for _ in range(6)]
            entry = jaxmarshal.stats()[name]
            found[name] = (seen, entry["hits"], entry["misses_by_reason"])
        explained.append(jaxmarshal.explain(compiled, wide, x).reason)
        return found

    plain = once()
    with jaxmarshal.installed():
        ours = once()
    different = [name for name in plain if plain[name][0] != ours[name][0]]
    print(json.dumps([different, {{name: ours[name][1:] for name in ours}}, explained]))
"""

#: Ways to be without words: the switch; a JAX whose words are not found; a buffer that is not.
CAUSES = {
    "switch": ("", {"JAXMARSHAL_OBJECT_LAYOUT": "off"}),
    "unknown JAX": (
        "from jaxmarshal._core.values import layout_samples\n    "
        "def fail(devices): raise RuntimeError('no samples')\n    "
        "layout_samples.different = fail",
        {},
    ),
    "unknown backend": (
        "from jaxmarshal._core.values import layout_samples\n    "
        "def fail(device): raise RuntimeError('no samples')\n    "
        "layout_samples.by_data_layout = fail",
        {},
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_compiled_calls_step_aside(cause):
    """Each call of compiled code misses for `object_layout`; the others hit from the second on."""
    before, environment = CAUSES[cause]
    variables = {"JAXMARSHAL_OBJECT_LAYOUT": None, **environment}
    done = run_code(PROGRAM.format(before=before), **variables)
    different, counts, explained = json.loads(done.stdout.splitlines()[-1])
    assert different == []
    assert explained[-1] == "object_layout"
    found = {name: (hits, set(reasons)) for name, (hits, reasons) in counts.items()}
    for name in ("jit", "compiled_call", "mesh_executable_call", "execute_replicated_call", "bind"):
        hits, reasons = found[name]
        assert hits == 0, (name, counts)
        assert reasons <= {"object_layout", "not_recorded"}, (name, counts)
    for name in ("compiled_call", "mesh_executable_call", "execute_replicated_call"):
        assert "object_layout" in found[name][1], (name, counts)
    for name in ("device_put", "asarray", "getitem", "zeros"):
        assert found[name][0] >= 2, (name, counts)
