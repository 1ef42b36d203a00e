cimport cython

cdef long long _MAGIC_V1
cdef Py_ssize_t _HEADER_BYTES
cdef Py_ssize_t _TOPIC_BYTES_MAX
cdef Py_ssize_t _I16_MAX
cdef Py_ssize_t _QUEUE_DIGITS_MAX
cdef bytes _REAL_TOPIC
cdef bytes _REAL_QUEUE_ID

@cython.locals(
    view="const unsigned char*", size=Py_ssize_t, sys_flag=cython.longlong,
    born_end=Py_ssize_t, times_at=Py_ssize_t, body_at=Py_ssize_t, body_bytes=cython.longlong,
    topic_at=Py_ssize_t, topic_bytes=Py_ssize_t, text_at=Py_ssize_t, text_bytes=Py_ssize_t,
    topic=bytes, queue_id=cython.longlong, at=Py_ssize_t, name_at=Py_ssize_t,
    name_end=Py_ssize_t)
cpdef tuple delivered_draft(bytes record)

@cython.locals(byte=cython.uchar)
cdef bint _is(const unsigned char* view, Py_ssize_t at, Py_ssize_t end, bytes name) except -1

cdef bint _is_ascii(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(value=cython.longlong, digit=cython.int)
cdef long long _digits(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(value=cython.longlong)
cdef long long _i32(const unsigned char* view, Py_ssize_t at) noexcept

@cython.locals(value=cython.longlong)
cdef long long _i64(const unsigned char* view, Py_ssize_t at) noexcept
