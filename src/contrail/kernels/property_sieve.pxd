cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _SLOT_COUNT
cdef Py_ssize_t _SLOT_BYTES
cdef Py_ssize_t _KEY_BYTES_MAX
cdef unsigned char _STAYS
cdef unsigned char _PASSES
cdef long long _PHYSICAL_OFFSET_MAX

cpdef tuple sift_rows(
    object buffer, bytes rows, long long count_max, long long bytes_max,
    long long scanned_bytes_max, bint is_first_free, long long base_offset, long long queue_id,
    bytes topic, long long queue_offset, tuple names, object verdicts,
    bytearray memory)

@cython.locals(
    row_view="const unsigned char*", end=Py_ssize_t, start_min=cython.longlong,
    end_max=cython.longlong, at=Py_ssize_t, physical_offset=cython.longlong,
    physical_end=cython.longlong)
cpdef tuple row_span(bytes rows)

@cython.locals(
    view="const unsigned char*", view_bytes=Py_ssize_t, selected=list,
    count=cython.longlong, taken_bytes=cython.longlong, walked_bytes=cython.longlong, walked=cython.longlong, row_view="const unsigned char*",
    end=Py_ssize_t, at=Py_ssize_t, physical_offset=cython.longlong, size=cython.longlong,
    position=cython.longlong, properties_at=Py_ssize_t, key=bytes, name_count=Py_ssize_t,
    index=Py_ssize_t, places="long long[16]", slot=Py_ssize_t, passes=cython.bint)
cdef tuple _sift(
    const unsigned char[::1] window, object data, bytes rows, long long count_max,
    long long bytes_max, long long scanned_bytes_max, bint is_first_free, long long base_offset,
    long long queue_id, bytes topic, long long queue_offset, tuple names, object verdicts,
    unsigned char[::1] memory)

@cython.locals(at=Py_ssize_t, properties_bytes=Py_ssize_t)
cdef Py_ssize_t _properties_at(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t limit, bytes topic) noexcept

@cython.locals(
    code=Py_ssize_t, index=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t _slot_of(
    const unsigned char* view, long long* places, Py_ssize_t name_count) except -1

@cython.locals(
    key_at=Py_ssize_t, key_end=Py_ssize_t, index=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t)
cdef bint _is_remembered(
    const unsigned char* view, long long* places, Py_ssize_t name_count,
    unsigned char[::1] memory, Py_ssize_t slot) except -1

@cython.locals(at=Py_ssize_t, byte=cython.uchar)
cdef void _remember(
    unsigned char[::1] memory, Py_ssize_t slot, bytes key, bint passes) except *

@cython.locals(values=list, index=Py_ssize_t)
cdef bytes _key(object data, long long* places, Py_ssize_t name_count)

cdef bytes _cut(object data, Py_ssize_t start, Py_ssize_t byte_count)

@cython.locals(
    found=cython.longlong, name_bytes=Py_ssize_t, index=Py_ssize_t, is_named=cython.bint,
    value_at=Py_ssize_t, letters="const unsigned char*")
cdef long long _find_value(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t limit, bytes name) except? -1
