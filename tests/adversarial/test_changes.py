"""Implementations, caches and host arrays change under warm caches of every entry point."""

from __future__ import annotations

import os

import pytest
from changes import NOT_HEARD, all_changes, clearings, edits, replacements
from entries import ENTRIES
from harness import compare, report
from jax._src import core


def check(changes, names=None, deep=True):
    chosen = [ENTRIES[name] for name in names or ENTRIES]
    differences = compare(chosen, changes, deep=deep)
    assert not differences, "\n" + report(differences)


#: One change of each kind, and those that find most; `make test` tries these.
QUICK = (
    "jax_enable_x64=True globally", "jax_debug_nans=True globally",
    "jax_debug_nans=True globally, after a context ended", "jax_debug_nans=True in another thread",
    "jax_disable_jit=True in this thread", "post_hook: global",
    "jax_transfer_guard_host_to_device=disallow globally",
    "jax_transfer_guard_device_to_device=log in this thread",
    "jax_logging_level=DEBUG globally", "slice_p.impl replaced", "stage_p.bind_with_trace replaced",
    "EvalTrace.process_primitive replaced", "shard_arg_handlers[ndarray] replaced",
    "clear_cache of a jit of it with static arguments", "clear_cache of a jit of it from before",
    "shape of a host array edited", "dtype of a host array edited",
)  # fmt: skip


def test_quick():
    """One change after the other under warm caches of all entry points."""
    known = {change.name: change for change in all_changes()}
    absent = {"stage_p.bind_with_trace replaced"} if not hasattr(core, "stage_p") else set()
    check([known[name] for name in QUICK if name not in absent], deep=False)


def test_what_is_not_heard_is_there():
    """The functions that are left out exist, and have a reason."""
    for (module, name), reason in NOT_HEARD.items():
        assert reason
        assert hasattr(module, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_nothing(name):
    """Warm calls, and the first ones, with nothing changed."""
    check([], [name])


@pytest.mark.slow
def test_warnings_once():
    """Under the filter of most programs each warning is shown once for each place it comes from."""
    differences = compare(ENTRIES.values(), [], action="default")
    differences = [d for d in differences if d.what == "warnings"]
    assert not differences, "\n" + report(differences)


@pytest.mark.slow
def test_clearings():
    """What functions close over changes, and a cache is cleared that others may share."""
    jitted = [name for name in ENTRIES if "jit" in name]
    check(clearings(), [*jitted, "bind", "zeros", "getitem"], deep=False)


#: Entries to which the same host arrays are given again and again.
OF_HOST_DATA = [
    "device_put", "make_array_from_process_local_data", "batched_device_put_impl", "shard_args",
    "jit, host data", "compiled_call", "bind", "asarray", "array", "dispatch_v0_3",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_HOST_DATA)
def test_edits(name):
    """A host array is another one although it is the same object."""
    check(edits(), [name])


#: Each entry meets one of so many replacements, its neighbour others; with
#: JAXMARSHAL_ALL_STATES=1 all.
EVERY = 1 if os.environ.get("JAXMARSHAL_ALL_STATES") else 2


@pytest.mark.slow
@pytest.mark.one_version
@pytest.mark.parametrize("name", ENTRIES)
def test_replacements(name):
    """An implementation, a handler, or a function on the way is replaced."""
    check(replacements()[list(ENTRIES).index(name) % EVERY :: EVERY], [name])
