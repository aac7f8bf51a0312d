"""What data may be put to."""

from jaxmarshal._jax import private

cdef object _device_type = private.Device
cdef object _single_type = private.SingleDeviceSharding
cdef object _named_type = private.NamedSharding
cdef object _format_type = private.Format
cdef object _space_type = private.MemorySpace
cdef bint _calls_functions = private.HAVE_RESHARD


cdef bint is_target(object target) noexcept:
    cdef object cls = type(target)
    return cls is _device_type or cls is _single_type or cls is _named_type


cdef bint is_reached_by_function(object target) noexcept:
    cdef object cls = type(target)
    return _calls_functions and (cls is _format_type or cls is _space_type)
