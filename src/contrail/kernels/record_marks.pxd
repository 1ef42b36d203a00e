cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _PREPARED_BEFORE_BODY

cpdef tuple marked_records(object buffer, Py_ssize_t start, Py_ssize_t end)

@cython.locals(
    view="const unsigned char*", position=Py_ssize_t, at=Py_ssize_t, reason=cython.int,
    prepared=cython.longlong, flags=cython.int, found=list)
cdef tuple _marked(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end)
