"""What the tests of compiled calls share: data, counts, entry points, and the reference alone."""

from __future__ import annotations

import numpy as np
from observe import observe
from support import without_jaxmarshal

import jaxmarshal

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


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


def entry_points(compiled):
    """The three ways into an executable: name in the counts, call, and how to get the result."""
    executable = compiled._executable
    return {
        "compiled_call": lambda x: compiled(x),
        "mesh_executable_call": lambda x: executable.call(x)[0],
        "execute_replicated_call": lambda x: executable.unsafe_call(x)[0],
    }
