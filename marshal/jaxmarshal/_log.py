"""The first miss of each kind, on the logger `jaxmarshal`."""

from __future__ import annotations

import logging
import threading

from jaxmarshal.reasons import PUBLIC, REASONS, TRACING, reason_for

logger = logging.getLogger("jaxmarshal")

_busy: set[int] = set()  # threads that are logging now


def log_miss(entry_point: str, code: int) -> None:
    """Log one line about a miss: INFO, or DEBUG where nobody has to act on it.

    That is where misses for this reason are ordinary, where JAX traces, and inside of JAX, where
    the call that the program made has a line of its own.
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
        logger.log(
            level, "%s: first miss (%s). %s %s", entry_point, reason.name, reason.meaning,
            reason.advice,
        )
    finally:
        _busy.discard(thread)
