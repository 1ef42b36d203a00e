cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_crc as stretch_crc
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _PAIR_COUNT_MAX
cdef Py_ssize_t _SCRATCH_NUMBERS
cdef Py_ssize_t _SIZE_AT
cdef Py_ssize_t _COUNT_AT
cdef Py_ssize_t _MARKS_AT
cdef Py_ssize_t _MARK_BLOCK_BYTES

cpdef tuple walk_records(
    bytes buffer, Py_ssize_t start, Py_ssize_t end, long long base_offset, object positions)

cpdef tuple measure_records(
    bytes buffer, object positions, bytes fields, object numbers, object spans)

cpdef int copy_spans(bytes buffer, object starts, object offsets, bytearray target) except -1

@cython.locals(name_count=Py_ssize_t)
cpdef object find_properties(
    bytes buffer, object starts, object sizes, bytes names, object values)

@cython.locals(room=Py_ssize_t)
cpdef tuple list_properties(
    bytes buffer, object starts, object sizes, object row_offsets, object name_offsets,
    bytearray names, object value_offsets, bytearray values)

cpdef Py_ssize_t check_bodies(bytes buffer, object positions) except -2

@cython.locals(
    position=Py_ssize_t, count=Py_ssize_t, count_max=Py_ssize_t, reason=cython.int,
    physical_offset=cython.longlong)
cdef tuple _walk(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t end, long long base_offset,
    long long[::1] positions)

@cython.locals(
    view="const unsigned char*", end=Py_ssize_t, wanted="const unsigned char*",
    field_bytes=Py_ssize_t, count=Py_ssize_t, wants_spans=bint, flags=cython.longlong,
    row=Py_ssize_t, position=cython.longlong, reason=cython.int, low_flags=cython.int,
    born_extra=Py_ssize_t, both_extra=Py_ssize_t, target=Py_ssize_t, at=Py_ssize_t,
    place=Py_ssize_t, limit=Py_ssize_t, body_at=Py_ssize_t, topic_at=Py_ssize_t,
    properties_at=Py_ssize_t)
cdef tuple _measure(
    bytes buffer, const long long[::1] positions, bytes fields, long long[::1] numbers,
    long long[::1] spans)

@cython.locals(
    seen=cython.int, row=Py_ssize_t, start=cython.longlong, at=Py_ssize_t, length=Py_ssize_t)
cdef int _copy_all(
    const unsigned char* view, Py_ssize_t limit, const long long[::1] starts,
    const int[::1] offsets, unsigned char* target, Py_ssize_t target_bytes) except -1

@cython.locals(seen=cython.uchar, index=Py_ssize_t, byte=cython.uchar)
cdef int _copy(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t length, unsigned char* target,
    Py_ssize_t at) noexcept

@cython.locals(
    view="const unsigned char*", wanted="const unsigned char*", count=Py_ssize_t,
    row=Py_ssize_t, number=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, start=Py_ssize_t,
    separator=Py_ssize_t, found=Py_ssize_t)
cdef int _find(
    bytes buffer, const long long[::1] starts, const long long[::1] sizes, bytes names,
    Py_ssize_t name_count, long long[::1] values, long long[::1] scratch) except -1

@cython.locals(
    view="const unsigned char*", name_bytes=Py_ssize_t, value_bytes=Py_ssize_t, seen=cython.int,
    pair_count=Py_ssize_t, row=Py_ssize_t, found=Py_ssize_t, index=Py_ssize_t, at=Py_ssize_t,
    start=Py_ssize_t)
cdef tuple _list(
    bytes buffer, const long long[::1] starts, const long long[::1] sizes, int[::1] row_offsets,
    int[::1] name_offsets, unsigned char* names, int[::1] value_offsets, unsigned char* values,
    long long[::1] scratch)

@cython.locals(
    count=Py_ssize_t, odd_count=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, start=Py_ssize_t,
    separator=Py_ssize_t)
cdef Py_ssize_t _pairs_of(
    const unsigned char* view, Py_ssize_t base, Py_ssize_t size,
    long long[::1] scratch) except? -1

@cython.locals(at=Py_ssize_t, value_at=Py_ssize_t, value_end=Py_ssize_t)
cdef bint _is_alike(
    const unsigned char* view, Py_ssize_t base, Py_ssize_t size,
    long long[::1] scratch) except -1

@cython.locals(
    total=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, count=cython.uchar, index=Py_ssize_t,
    byte=cython.uchar)
cdef Py_ssize_t _mark_count(const unsigned char* view, Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(start=Py_ssize_t, length=Py_ssize_t, later=Py_ssize_t)
cdef bint _is_repeated(
    const unsigned char* view, Py_ssize_t base, long long[::1] scratch, Py_ssize_t index,
    Py_ssize_t count) except -1

cdef Py_ssize_t _name_end(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

cdef Py_ssize_t _pair_end(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(at=Py_ssize_t, number=Py_ssize_t, wanted_bytes=Py_ssize_t)
cdef Py_ssize_t _number_of(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t length, const unsigned char* names,
    Py_ssize_t name_count) noexcept

@cython.locals(index=Py_ssize_t)
cdef bint _is_same(
    const unsigned char* view, Py_ssize_t start, const unsigned char* other,
    Py_ssize_t other_start, Py_ssize_t length) noexcept

@cython.locals(at=Py_ssize_t, count=Py_ssize_t)
cdef Py_ssize_t _name_count(const unsigned char* names, Py_ssize_t limit) except -1

@cython.locals(total=Py_ssize_t, row=Py_ssize_t, start=cython.longlong, size=cython.longlong)
cdef Py_ssize_t _check_spans(
    Py_ssize_t limit, const long long[::1] starts, const long long[::1] sizes) except -1

@cython.locals(
    row=Py_ssize_t, position=cython.longlong, body_at=Py_ssize_t, body_end=Py_ssize_t,
    crc=cython.longlong)
cdef Py_ssize_t _check_bodies(
    const unsigned char* view, const long long[::1] positions, Py_ssize_t limit) except -2
