"""Fast calls of `jaxmarshal.compat.dispatch_v0_3`; nothing here is shared with other modules.

All need the GIL and raise what the Python functions raise that they stand in front of.
"""
