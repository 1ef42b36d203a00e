cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _SIEVE_BYTES
cdef long long _ENOUGH
cdef Py_ssize_t _AHEAD_BYTES

@cython.locals(sieve=bytearray)
cpdef tuple select_rows(
    object rows, Py_ssize_t start, Py_ssize_t end, long long count_max, long long bytes_max,
    object tag_codes)

@cython.locals(
    ranges=list, range_start=cython.longlong, range_bytes=cython.longlong,
    physical_offset=cython.longlong, size=cython.longlong, at=Py_ssize_t)
cpdef list coalesce(list selected, long long segment_bytes)

cpdef Py_ssize_t match_records(
    object buffer, list position_and_sizes, long long base_offset, long long queue_id, bytes topic,
    list queue_offsets) except? -1

@cython.locals(
    selected=list, count=cython.longlong, total_bytes=cython.longlong, row_index=Py_ssize_t,
    at=Py_ssize_t, size=cython.longlong, view="const unsigned char*", tag_code=cython.longlong)
cdef tuple _select(
    const unsigned char[::1] rows, Py_ssize_t start, Py_ssize_t end, long long count_max,
    long long bytes_max, object tag_codes, bytearray sieve)

@cython.locals(
    view="const unsigned char*", view_bytes=Py_ssize_t, index=Py_ssize_t,
    position=cython.longlong, size=cython.longlong)
cdef Py_ssize_t _match(
    const unsigned char[::1] buffer, list position_and_sizes, long long base_offset,
    long long queue_id, bytes topic, list queue_offsets) except? -1

cdef tuple _cut(long long count, long long start, long long total_bytes)

@cython.locals(
    row_view="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, count=cython.longlong,
    total_bytes=cython.longlong, start=cython.longlong, physical_offset=cython.longlong,
    size=cython.longlong, position=cython.longlong, bare="const unsigned char*",
    topic_at=Py_ssize_t, topic_end=Py_ssize_t, buffer_bytes=Py_ssize_t, ahead=Py_ssize_t)
cpdef tuple match_run(
    const unsigned char[::1] buffer, bytes rows, Py_ssize_t first_row_at, long long count_max,
    long long bytes_max, long long base_offset, long long physical_start, long long physical_end,
    long long queue_id, bytes topic, long long queue_offset)

@cython.locals(
    row_view="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, count=cython.longlong,
    total_bytes=cython.longlong, reached=cython.longlong, physical_offset=cython.longlong,
    size=cython.longlong, position=cython.longlong, bare="const unsigned char*",
    buffer_bytes=Py_ssize_t, gathered=bytearray, target="unsigned char*", to=Py_ssize_t)
cpdef tuple gather_run(
    const unsigned char[::1] buffer, bytes rows, Py_ssize_t first_row_at, long long count_max,
    long long bytes_max, long long base_offset, long long physical_start, long long physical_end,
    long long queue_id, bytes topic, long long queue_offset)
