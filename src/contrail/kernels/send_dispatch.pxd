cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout
cimport contrail.kernels.bare_rows as send_rows
from contrail.kernels.send_places cimport QueuePlace

cdef Py_ssize_t _ROOM_BYTES
cdef unsigned int _U32_MASK
cdef Py_ssize_t _NOTED_BYTES


cdef class RowTail:
    cdef public long long queue_offset_max
    cdef public long long physical_end
    cdef public bytearray tail
    cdef public Py_ssize_t tail_bytes_max
    cdef public bint takes_fast_rows
    cdef public bint is_dirty


@cython.locals(index_rows=bytearray, index_bytes=Py_ssize_t, run=tuple, chunk=tuple)
cpdef object put_sends(
    list stored, dict queues, dict tombstones, dict watched, dict dirty, dict grown, list full,
    bint with_index)

@cython.locals(
    count=Py_ssize_t, table="long long*", texts=bytearray, places=list,
    view="unsigned char*", place=QueuePlace, topic=bytes, seed=cython.longlong,
    queue=RowTail, at=Py_ssize_t, index=Py_ssize_t, queue_offset=cython.longlong,
    physical_offset=cython.longlong, tags_code=cython.longlong, key_hash=cython.longlong,
    row_at=Py_ssize_t, record_bytes=cython.longlong, tail="unsigned char*")
cdef Py_ssize_t _put_chunk(
    tuple chunk, long long store_timestamp_ms, dict queues, dict tombstones, dict watched,
    dict dirty, dict grown, list full, bytearray index_rows, Py_ssize_t index_bytes) except -3

@cython.locals(by_queue=dict)
cdef object _queue_at(dict queues, bytes topic, long long queue_id)

cdef int _note_growth(dict grown, dict watched, tuple key, long long queue_offset) except -1

@cython.locals(key_at=Py_ssize_t, key_hash=cython.longlong)
cdef Py_ssize_t _add_keys(
    bytearray index_rows, Py_ssize_t index_bytes, long long physical_offset,
    long long store_timestamp_ms, const unsigned char* view, bytearray texts, Py_ssize_t at,
    Py_ssize_t end, bytes topic, long long seed) except -1

@cython.locals(target="unsigned char*")
cdef Py_ssize_t _add_index_row(
    bytearray index_rows, Py_ssize_t at, long long key_hash, long long physical_offset,
    long long store_timestamp_ms) except -1

@cython.locals(value=cython.longlong)
cdef long long _seed_of(bytes topic) except -1

@cython.locals(value=cython.longlong)
cdef long long _key_hash(
    const unsigned char* view, bytearray texts, Py_ssize_t start, Py_ssize_t end, bytes topic,
    long long seed) except -1

@cython.locals(value=cython.longlong)
cdef long long _tags_code(
    const unsigned char* view, bytearray texts, Py_ssize_t start, Py_ssize_t end) except? -1
