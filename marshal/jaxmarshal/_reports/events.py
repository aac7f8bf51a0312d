"""The counts as events of `jax.monitoring`, where programs that export metrics look for them.

Calls are counted in C and published when asked, so that counting costs a call nothing.
"""

from __future__ import annotations

import atexit
import os

import jax.monitoring

from jaxmarshal._reports import counting
from jaxmarshal.reasons import REASONS


def publish() -> None:
    """Record with `jax.monitoring` how many calls hit and missed since the last `publish()`.

    For each count that grew, `jax.monitoring.record_scalar` is called with the event
    `/jaxmarshal/hits` or `/jaxmarshal/misses/<reason>`, the number of calls, and the name of the
    entry point as `entry_point`. `reset_stats()` loses no unpublished counts. With
    `JAXMARSHAL_EVENTS=1` in the environment this also runs at exit. It raises what a listener
    raises; counts not yet published then stay for the next time.
    """
    for name in counting.snapshot():
        for code, reason in enumerate(REASONS):
            calls = counting.take(name, code)
            if calls:
                event = f"misses/{reason.name}" if code else "hits"
                jax.monitoring.record_scalar(f"/jaxmarshal/{event}", calls, entry_point=name)


if os.environ.get("JAXMARSHAL_EVENTS", "").lower() in ("1", "on", "true"):
    atexit.register(publish)
