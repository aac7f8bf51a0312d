"""The first miss of each kind, on the logger `jaxmarshal`."""

from __future__ import annotations

import logging
import threading

from jaxmarshal.reasons import REASONS

logger = logging.getLogger("jaxmarshal")

_busy: set[int] = set()  # threads that are logging now


def log_miss(entry_point: str, code: int) -> None:
    """Log one line about a miss: INFO, or DEBUG where misses for this reason are ordinary.

    A handler may itself make calls that miss: those are counted, but not logged, so that it does
    not call itself.
    """
    reason = REASONS[code]
    level = logging.DEBUG if reason.ordinary else logging.INFO
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
