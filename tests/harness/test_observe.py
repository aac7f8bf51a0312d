"""The harness fails where it compares nothing: two equal errors of its own are no agreement."""

from __future__ import annotations

import contextlib

import jax
import pytest
from observe import NothingCompared, entered, observe


def test_a_context_that_cannot_be_entered():
    """A misspelt name, say: on both sides it would be the same error."""
    for context in (
        lambda: jax.no_such_context(True), lambda: jax.enable_x64(True).no_such_attribute,
        lambda: 1 / 0, object,
    ):
        with pytest.raises(NothingCompared, match="cannot be entered"), entered(context):
            pass
        with pytest.raises(NothingCompared, match="cannot be entered"):
            observe(abs, -1, context=context)


def test_a_context_that_changes_nothing():
    """The call would be one of those outside of it."""
    with (
        pytest.raises(NothingCompared, match="changes nothing"),
        entered(lambda: contextlib.nullcontext()),
    ):
        pass


@pytest.mark.errors
def test_a_context_that_is_entered():
    """Errors of the call are observed, those of a context are not; it is left in any case."""
    before = jax.config.jax_enable_x64
    with entered(lambda: jax.enable_x64(True)):
        assert jax.config.jax_enable_x64 is True
    with pytest.raises(ZeroDivisionError), entered(lambda: jax.enable_x64(True)):
        1 / 0    # noqa: B018
    assert jax.config.jax_enable_x64 is before
    (outcome, *_), *_ = observe(lambda: 1 / 0, context=lambda: jax.enable_x64(True))
    assert outcome == "raised"
    with entered(contextlib.nullcontext):
        pass
