cimport cython

cdef long long _MAGIC_V1
cdef long long _MAGIC_V2
cdef long long _MAGIC_BLANK
cdef Py_ssize_t _HEADER_BYTES
cdef long long _CRC_MASK
cdef Py_ssize_t _CRC_PROPERTY_BYTES
cdef bytes _CRC_NAME

cpdef tuple scan_records(
    object buffer, Py_ssize_t start, Py_ssize_t end, long long base_offset, bint check_crc,
    int record_crc)

cpdef tuple check_record(
    object buffer, Py_ssize_t position, Py_ssize_t end, long long base_offset, bint check_crc,
    int record_crc)

cpdef Py_ssize_t count_whole(
    object buffer, list position_and_sizes, long long base_offset, int record_crc) except -1

@cython.locals(end=Py_ssize_t, index=Py_ssize_t, position=cython.longlong)
cdef Py_ssize_t _count_whole(
    const unsigned char[::1] view, object data, list position_and_sizes, long long base_offset,
    int record_crc) except -1

@cython.locals(
    position=Py_ssize_t, last_position=Py_ssize_t, record_count=Py_ssize_t,
    store_timestamp_ms=cython.longlong, reason=cython.int, born_host_extra=Py_ssize_t)
cdef tuple _scan(
    const unsigned char[::1] view, object data, Py_ssize_t start, Py_ssize_t end,
    long long base_offset, bint check_crc, int record_crc)

@cython.locals(reason=cython.int)
cdef tuple _check_one(
    const unsigned char[::1] view, object data, Py_ssize_t position, Py_ssize_t end,
    long long base_offset, bint check_crc, int record_crc)

@cython.locals(
    size=cython.longlong, magic=cython.longlong, topic_length_bytes=Py_ssize_t,
    properties_bytes=Py_ssize_t)
cdef int _check(
    const unsigned char[::1] view, object data, Py_ssize_t position, Py_ssize_t end,
    long long base_offset, bint check_crc, int record_crc) except -1

cdef int _reason_without_magic(long long size, long long magic) except -1

@cython.locals(
    body_at=Py_ssize_t, left=Py_ssize_t, body_bytes=Py_ssize_t, topic_at=Py_ssize_t,
    topic_bytes=Py_ssize_t, properties_at=Py_ssize_t, properties_bytes=Py_ssize_t)
cdef Py_ssize_t _properties_bytes(
    const unsigned char[::1] view, Py_ssize_t position, Py_ssize_t limit,
    Py_ssize_t topic_length_bytes) except? -1

@cython.locals(sys_flag=cython.int, body_at=Py_ssize_t)
cdef Py_ssize_t _body_position(const unsigned char[::1] view, Py_ssize_t position) except? -1

@cython.locals(body_at=Py_ssize_t, body_end=Py_ssize_t, crc=cython.longlong)
cdef bint _is_body_whole(const unsigned char[::1] view, object data, Py_ssize_t position) except -1

@cython.locals(
    crc_at=Py_ssize_t, stored=cython.longlong, at=Py_ssize_t, digit=cython.int,
    crc=cython.longlong)
cdef bint _is_record_whole(
    const unsigned char[::1] view, object data, Py_ssize_t position, Py_ssize_t limit,
    Py_ssize_t properties_bytes, int record_crc) except -1

@cython.locals(at=Py_ssize_t, byte=cython.uchar)
cdef bint _has_crc(
    const unsigned char[::1] view, Py_ssize_t properties_at, Py_ssize_t crc_at,
    Py_ssize_t limit) except -1

@cython.locals(value=cython.longlong)
cdef long long _read_i32(const unsigned char[::1] view, Py_ssize_t at) except? -1

@cython.locals(value=cython.longlong)
cdef long long _read_i64(const unsigned char[::1] view, Py_ssize_t at) except? -1
