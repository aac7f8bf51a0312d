"""Entry points of compiled executables, and the one that others are made of.

`compiled_call`, `mesh_executable_call` and `execute_replicated_call` take what the methods they
stand in for take, need the GIL, raise what the reference raises, and keep no argument alive.
"""

# Call an executable with flat arguments through the plans of `owner`, which can be weakly referred
# to. Plans are made of the ExecuteReplicated that is `owner` or that its attribute `unsafe_call`
# leads to, perhaps by way of others; where that ends in None, none is made. On a miss the result is
# that of `reference(owner, *args)`, on a hit a list; either is counted under `entry`.
# Raises what the reference raises. Needs the GIL; keeps no argument alive.
cdef object call_flat(object owner, tuple args, int entry, object reference)
