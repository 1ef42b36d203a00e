cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _QUEUE_DIGITS_MAX
cdef bytes _REAL_TOPIC
cdef bytes _REAL_QUEUE_ID

@cython.locals(
    view="const unsigned char*", size=Py_ssize_t, extra=Py_ssize_t, text_at=Py_ssize_t,
    topic=bytes, queue_id=cython.longlong, at=Py_ssize_t, name_at=Py_ssize_t,
    name_end=Py_ssize_t)
cpdef tuple delivered_draft(bytes record)

cdef bint _is_ascii(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(value=cython.longlong, digit=cython.int)
cdef long long _digits(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept
