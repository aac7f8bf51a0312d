"""Counters of live objects and of work per argument; all zero in a release build."""


def debug_build() -> bool:
    """Was this built with assertions and counters (`make debug`)?"""
    return bool(JM_DEBUG)


def snapshot() -> dict[str, int]:
    """The counters now, by name. `live_…` return to zero when no call and no plan is alive."""
    return {
        "live_slots": counters.live_slots,
        "live_tables": counters.live_tables,
        "live_heap": counters.live_heap,
        "live_plans": counters.live_plans,
        "classified": counters.classified,
        "buffers_read": counters.buffers_read,
    }
