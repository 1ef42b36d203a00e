cimport cython
cimport contrail.kernels.bare_bytes as raw_bytes

cdef Py_ssize_t _PIECE_COUNT
cdef Py_ssize_t _NUMBERS_BYTES_MAX
cdef Py_ssize_t _PREFIX_BYTES

@cython.locals(
    out=bytearray, view="unsigned char*", at=Py_ssize_t, size=Py_ssize_t, before_next=bytes,
    before_min=bytes, before_max=bytes, before_opaque=bytes, end=bytes)
cpdef bytes fill_answer(
    tuple pieces, long long next_queue_offset, long long queue_offset_min,
    long long queue_offset_max, long long opaque, long long record_bytes)
