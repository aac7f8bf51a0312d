"""What data may be put to."""

# Is it a device or a sharding of a kind for which records are kept?
cdef bint is_target(object target) noexcept

# Is it a Format or a memory space, which the reference reaches by jitted functions?
cdef bint is_reached_by_function(object target) noexcept
