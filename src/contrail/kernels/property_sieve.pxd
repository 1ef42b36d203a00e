cimport cython

cdef Py_ssize_t _ROW_BYTES
cdef long long _MAGIC_V1
cdef long long _MAGIC_V2
cdef Py_ssize_t _HEADER_BYTES
cdef long long _PHYSICAL_OFFSET_MAX
cdef long long _LENGTH_SPAN

cpdef tuple sift_rows(
    object buffer, bytes rows, long long count_max, long long bytes_max,
    long long scanned_bytes_max, bint is_first_free, long long base_offset, long long queue_id,
    bytes topic, long long queue_offset, tuple names, object verdicts)

@cython.locals(
    row_view="const unsigned char*", end=Py_ssize_t, start_min=cython.longlong,
    end_max=cython.longlong, at=Py_ssize_t, physical_offset=cython.longlong,
    physical_end=cython.longlong)
cpdef tuple row_span(bytes rows)

@cython.locals(
    selected=list, count=cython.longlong, taken_bytes=cython.longlong,
    walked_bytes=cython.longlong, walked=cython.longlong, row_view="const unsigned char*",
    end=Py_ssize_t, at=Py_ssize_t, physical_offset=cython.longlong, size=cython.longlong,
    position=cython.longlong, properties_at=Py_ssize_t, key=bytes)
cdef tuple _sift(
    const unsigned char[::1] view, object data, bytes rows, long long count_max,
    long long bytes_max, long long scanned_bytes_max, bint is_first_free, long long base_offset,
    long long queue_id, bytes topic, long long queue_offset, tuple names, object verdicts)

cdef bint _is_place(
    const unsigned char[::1] view, long long position, long long size, long long base_offset,
    long long queue_id, long long queue_offset) except -1

@cython.locals(
    magic=cython.longlong, topic_length_bytes=Py_ssize_t, sys_flag=cython.int, body_at=Py_ssize_t,
    body_bytes=Py_ssize_t, topic_bytes=Py_ssize_t, topic_at=Py_ssize_t, said_bytes=Py_ssize_t,
    at=Py_ssize_t, byte=cython.uchar, properties_bytes=Py_ssize_t)
cdef Py_ssize_t _properties_at(
    const unsigned char[::1] view, Py_ssize_t position, Py_ssize_t limit, bytes topic) except? -1

@cython.locals(found=cython.longlong, values=list, name=bytes)
cdef bytes _key(
    const unsigned char[::1] view, object data, Py_ssize_t at, Py_ssize_t limit, tuple names)

cdef bytes _cut(object data, Py_ssize_t start, Py_ssize_t byte_count)

@cython.locals(
    found=cython.longlong, name_bytes=Py_ssize_t, index=Py_ssize_t, is_named=cython.bint,
    value_at=Py_ssize_t, letters="const unsigned char*")
cdef long long _find_value(
    const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t limit, bytes name) except? -1

@cython.locals(value=cython.longlong)
cdef long long _row_i32(const unsigned char* rows, Py_ssize_t at) noexcept

@cython.locals(value=cython.longlong)
cdef long long _row_i64(const unsigned char* rows, Py_ssize_t at) noexcept

@cython.locals(value=cython.longlong)
cdef long long _read_i32(const unsigned char[::1] view, Py_ssize_t at) except? -1

@cython.locals(value=cython.longlong)
cdef long long _read_i64(const unsigned char[::1] view, Py_ssize_t at) except? -1
