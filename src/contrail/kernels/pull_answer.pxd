cimport cython
cimport contrail.kernels.bare_bytes as raw_bytes

cdef Py_ssize_t _NUMBER_BYTES_MAX
cdef Py_ssize_t _PREFIX_BYTES
cdef Py_ssize_t _FIXED_BYTES
cdef bytes _BEFORE_NEXT
cdef bytes _BEFORE_MIN
cdef bytes _BEFORE_MAX
cdef bytes _BEFORE_FLAGS
cdef bytes _BETWEEN_FLAGS
cdef bytes _BEFORE_OPAQUE
cdef bytes _END

@cython.locals(out=bytearray, view="unsigned char*", at=Py_ssize_t)
cpdef bytes found_answer(
    long long opaque, long long next_queue_offset, long long queue_offset_min,
    long long queue_offset_max, long long topic_sys_flag, long long group_sys_flag,
    long long record_bytes)
