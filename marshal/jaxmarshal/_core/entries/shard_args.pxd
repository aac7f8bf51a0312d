"""`shard_args` and `batched_device_put` of `pxla`; nothing here is shared with other modules.

Both need the GIL, raise what the reference raises, and keep no argument alive.
"""
