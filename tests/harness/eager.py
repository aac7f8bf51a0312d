"""What the tests of operations outside of `jit` share: data, hits, and comparing with plain JAX.

All of it is for tests that run with jaxmarshal installed.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
from observe import observe
from support import without_jaxmarshal

import jaxmarshal
from jaxmarshal._jax import patching

X = np.arange(1, 9, dtype=np.float32)

#: Host data of many kinds; some narrow, warn, overflow, or are none of JAX's.
HOST_DATA = [
    X, X.astype(np.float64), X.astype(np.int64), X.astype(">f4"), X.astype(bool), X[::2],
    np.zeros((0, 3), np.float32), np.float32(2), np.float64(1e300), np.int64(2**40), 1.0, 3,
    True, 1j, 2**31, 2**70, -0.0, float("nan"), [1.0, 2.0], (1, 2.5), None, "text",
    np.ma.masked_array(X, X > 3), np.matrix([[1.0]]), np.array("text"), np.array([None]),
    np.zeros(2, [("a", "f4")]), jnp.bfloat16(1.5), np.zeros(2, jax.dtypes.float0),
    np.datetime64("2020-01-01"), np.bool_(True),
]  # fmt: skip

#: All entry points but the functions that would take the steps of operations for them.
ALONE = [entry.name for entry in patching.ENTRY_POINTS if entry.name != "functions"]


def hits(entry):
    return jaxmarshal.stats()[entry]["hits"]


#: What plain JAX is to be asked at the end of `together()`: the question, the answer that is to be
#: the same, and may both be asked once more?
_later = None


def compare(ask, again=False):
    """Ask with jaxmarshal and with plain JAX.

    `again`: some warnings are given once, while JAX traces, so that both are asked once more.
    """
    found = ask()
    if _later is not None:
        _later.append((ask, found, again))
        return
    with without_jaxmarshal():
        expected = ask()
    check(ask, found, expected, again)


def check(ask, found, expected, again):
    if again and found != expected:
        compare(ask)
    else:
        assert found == expected


@contextlib.contextmanager
def together():
    """Ask plain JAX at the end, everything at once: to install and uninstall takes milliseconds.

    For arguments that nobody changes, and no context but those of the questions.
    """
    global _later
    assert _later is None
    _later = asked = []
    try:
        yield
    finally:
        _later = None
    with without_jaxmarshal():
        expected = [ask() for ask, _, _ in asked]
    for (ask, found, again), answer in zip(asked, expected, strict=True):
        check(ask, found, answer, again)


def same(call, *args, context=None, turns=5, **kwargs):
    """Several calls in a row with jaxmarshal, each compared with plain JAX."""
    context = {} if context is None else {"context": context}
    compare(lambda: [observe(call, *args, **context, **kwargs) for _ in range(turns)])


def hit_by(entry, call, *args, **kwargs):
    """`same`, and the last calls took the fast path."""
    same(call, *args, **kwargs)
    for _ in range(2):    # jaxmarshal was not there for a while, and has to see some
        call(*args, **kwargs)
    before = hits(entry)
    call(*args, **kwargs)
    assert hits(entry) > before
