"""The oracle of the differential tests, which is also that of `doctor --check`."""

from jaxmarshal.selfcheck.observe import input_leaves, input_pointers, observe, observe_leaf

__all__ = ["input_leaves", "input_pointers", "observe", "observe_leaf"]
