cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_crc as stretch_crc
cimport contrail.kernels.bare_layout as record_layout
from contrail.kernels cimport send_places

cdef long long _FEATURE_NO_UNIQUE_KEY
cdef int _PLAIN
cdef int _FIFO
cdef int _DELAYED
cdef bytes _DELAY_NAME
cdef bytes _FIFO_MARK

@cython.locals(
    index=Py_ssize_t, end=Py_ssize_t, item=tuple, features=cython.longlong, draft=tuple,
    queue_count=object, queue_id=cython.longlong, count=cython.longlong, flags=cython.longlong)
cpdef Py_ssize_t count_batches(
    list items, Py_ssize_t first, dict queue_counts, long long plain_flags) except -1

@cython.locals(
    sizes=list, kinds=list, total=cython.longlong, draft=tuple, size=cython.longlong,
    out=bytearray, places=list, planned=dict, position=Py_ssize_t, index=Py_ssize_t, key=tuple,
    count=Py_ssize_t, queue_offset=cython.longlong, physical_offsets=list)
cpdef tuple build_batches(
    list drafts, dict next_offsets, long long physical_end, long long room_bytes,
    long long store_timestamp_ms, bytes store_host, long long body_bytes_max,
    Py_ssize_t count_max)

@cython.locals(
    topic=bytes, queue_id=cython.longlong, body=bytes, sys_flag=cython.longlong,
    born_host=bytes, times=cython.longlong, without=cython.longlong, view="const unsigned char*",
    end=Py_ssize_t, found=bytearray, count=Py_ssize_t, total=cython.longlong,
    bodies=cython.longlong, at=Py_ssize_t, size=cython.longlong, body_bytes=cython.longlong,
    text_at=Py_ssize_t, text_bytes=Py_ssize_t, kind=cython.int)
cdef long long _measure(
    tuple draft, Py_ssize_t store_host_bytes, long long body_bytes_max, Py_ssize_t count_max,
    list kinds) except -2

cdef int _kind_of(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(
    topic=bytes, queue_id=cython.longlong, body=bytes, sys_flag=cython.longlong,
    born=cython.longlong, born_host=bytes, times=cython.longlong, view="const unsigned char*",
    target="unsigned char*", end=Py_ssize_t, at=Py_ssize_t, start=Py_ssize_t,
    body_at=Py_ssize_t, body_end=Py_ssize_t, unit_end=Py_ssize_t, without=cython.longlong)
cdef int _lay_out(
    bytearray out, Py_ssize_t position, tuple draft, long long queue_offset,
    long long physical_base, long long store_timestamp_ms, bytes store_host,
    list physical_offsets) except -1
