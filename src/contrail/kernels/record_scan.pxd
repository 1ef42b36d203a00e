cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_crc as stretch_crc
cimport contrail.kernels.bare_layout as record_layout

cpdef tuple scan_records(
    object buffer, Py_ssize_t start, Py_ssize_t end, long long base_offset, bint check_crc,
    int record_crc)

cpdef tuple marked_records(
    object buffer, Py_ssize_t start, Py_ssize_t end, long long base_offset, list topics,
    bytes text)

cpdef tuple check_record(
    object buffer, Py_ssize_t position, Py_ssize_t end, long long base_offset, bint check_crc,
    int record_crc)

cpdef Py_ssize_t count_whole(
    object buffer, list position_and_sizes, long long base_offset, int record_crc) except -1

@cython.locals(
    view="const unsigned char*", end=Py_ssize_t, index=Py_ssize_t, position=cython.longlong)
cdef Py_ssize_t _count_whole(
    const unsigned char[::1] data, list position_and_sizes, long long base_offset,
    int record_crc) except -1

@cython.locals(
    view="const unsigned char*", position=Py_ssize_t, last_position=Py_ssize_t,
    record_count=Py_ssize_t, store_timestamp_ms=cython.longlong, reason=cython.int)
cdef tuple _scan(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end, long long base_offset,
    bint check_crc, int record_crc)

@cython.locals(
    view="const unsigned char*", picked=list, position=Py_ssize_t, reason=cython.int)
cdef tuple _pick(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end, long long base_offset,
    list topics, bytes text)

@cython.locals(
    flags=cython.int, body_at=Py_ssize_t, limit=Py_ssize_t, topic_at=Py_ssize_t,
    properties_at=Py_ssize_t, topic=bytes)
cdef bint _is_marked(
    const unsigned char* view, Py_ssize_t position, list topics, bytes text) except -1

@cython.locals(view="const unsigned char*", reason=cython.int)
cdef tuple _check_one(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t end, long long base_offset,
    bint check_crc, int record_crc)

@cython.locals(reason=cython.int, physical_offset=cython.longlong)
cdef int _check(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t end, long long base_offset,
    bint check_crc, int record_crc) except -1

@cython.locals(
    body_at=Py_ssize_t, body_end=Py_ssize_t, crc=cython.longlong, stored=cython.longlong)
cdef bint _is_body_whole(const unsigned char* view, Py_ssize_t position) except -1

@cython.locals(
    limit=Py_ssize_t, crc_at=Py_ssize_t, stored=cython.longlong, at=Py_ssize_t,
    digit=cython.int, crc=cython.longlong)
cdef bint _is_record_whole(
    const unsigned char* view, Py_ssize_t position, int record_crc) except -1

cdef bint _has_crc(
    const unsigned char* view, Py_ssize_t properties_at, Py_ssize_t crc_at,
    Py_ssize_t limit) noexcept
