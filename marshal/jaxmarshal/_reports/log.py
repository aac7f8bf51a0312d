"""The first miss of each kind, on the logger `jaxmarshal`; of jitted functions by their names."""

from __future__ import annotations

import logging
import threading

from jaxmarshal.reasons import PUBLIC, REASONS, TRACING, reason_for

logger = logging.getLogger("jaxmarshal")

_busy: set[int] = set()  # threads that are logging now

#: Entry points that stand for functions of the program, each of which has lines of its own.
_OF_FUNCTIONS = frozenset({"jit", "filter_jit", "equinox_filter_jit", "nnx_jit"})

#: Lines about functions, which come once: (entry point, reason, function).
_known: set[tuple[str, str, str]] = set()


def _function(entry_point: str) -> str:
    """Which function of the program it is, in words, where the entry point stands for several."""
    if entry_point not in _OF_FUNCTIONS:
        return ""
    from jaxmarshal._reports import called  # needed for a line only

    return called.called()


def log_miss(entry_point: str, code: int) -> None:
    """Log one line about a miss: INFO, or DEBUG where nobody has to act on it.

    That is where misses for this reason are ordinary, where JAX traces, and inside of JAX, where
    the call that the program made has a line of its own.
    Of a jitted function it says the name and the place, and each kind once, also after a reset.
    A handler may itself make calls that miss: those are counted, but not logged, so that it does
    not call itself.
    """
    reason = reason_for(entry_point, REASONS[code].name)
    tracing = reason.name in TRACING.get(entry_point, TRACING[""])
    quiet = reason.ordinary or tracing or entry_point not in PUBLIC
    level = logging.DEBUG if quiet else logging.INFO
    thread = threading.get_ident()
    if thread in _busy or not logger.isEnabledFor(level):
        return
    _busy.add(thread)
    try:
        function = _function(entry_point)
        key = entry_point, reason.name, function
        if function and key in _known:
            return
        _known.add(key)
        logger.log(
            level, "%s: first miss (%s)%s. %s %s", entry_point, reason.name, function,
            reason.meaning, reason.advice,
        )
    finally:
        _busy.discard(thread)
