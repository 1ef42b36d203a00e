cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes

cdef int _A_QUEUE_ID
cdef int _A_QUEUE_OFFSET
cdef int _A_COMMIT_OFFSET
cdef int _AN_OPAQUE
cdef int _MARKS_END
cdef Py_ssize_t _DIGITS_MAX
cdef Py_ssize_t _PREFIX_BYTES

@cython.locals(
    view="const unsigned char*", pattern="const unsigned char*", available=Py_ssize_t,
    at=Py_ssize_t, end=Py_ssize_t, first=Py_ssize_t, index=Py_ssize_t, mark=cython.int,
    number=cython.longlong, queue_id=cython.longlong, queue_offset=cython.longlong,
    commit_offset=cython.longlong, opaque=cython.longlong)
cpdef tuple match_pull(bytes buffer, Py_ssize_t start, bytes template)
