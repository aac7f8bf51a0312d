"""Host scalars and arrays that must be converted before they go to the device."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

# The bits of a float: what is told apart by them is any NaN too, and zeros of both signs.
cdef inline uint64_t bits_of(double value) noexcept nogil:
    cdef uint64_t bits
    memcpy(&bits, &value, sizeof(bits))
    return bits

# Would converting this float64 or complex128 array (or 0-d array) to the 32-bit dtype be silent:
# no overflow, underflow or invalid operation on any element? False also where the array is larger
# than is worth scanning. Borrows; needs the GIL; cannot fail.
cdef bint narrows_silently(object array) noexcept

# A new 0-d array of dtype number `typenum` holding the Python scalar `obj` (bool, int, float or
# complex, as `kind` says), or None where the conversion would raise or warn.
cdef object scalar_array(object obj, int kind, int typenum)
