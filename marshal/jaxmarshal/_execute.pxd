"""Entry points of compiled executables; nothing here is shared with other modules.

`compiled_call`, `mesh_executable_call` and `execute_replicated_call` take what the methods they
stand in for take, need the GIL, raise what the reference raises, and keep no argument alive.
"""
