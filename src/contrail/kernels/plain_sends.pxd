cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_crc as stretch_crc

cdef long long _MAGIC_V1
cdef Py_ssize_t _HEADER_BYTES
cdef long long _CRC_MASK
cdef Py_ssize_t _ROW_NUMBERS
cdef Py_ssize_t _ONE_WAY
cdef Py_ssize_t _QUEUE_ID
cdef Py_ssize_t _SYS_FLAG
cdef Py_ssize_t _BORN_MS
cdef Py_ssize_t _FLAG
cdef Py_ssize_t _TIMES
cdef Py_ssize_t _TOPIC_BYTES
cdef Py_ssize_t _BODY_AT
cdef Py_ssize_t _BODY_END
cdef Py_ssize_t _PROPERTIES_AT
cdef Py_ssize_t _PROPERTIES_END
cdef Py_ssize_t _QUEUE_OFFSET
cdef Py_ssize_t _PHYSICAL_OFFSET
cdef Py_ssize_t _RECORD_BYTES

@cython.locals(
    count=Py_ssize_t, table="const long long[::1]", topics=list, topic=bytes, known=object,
    queue_count=cython.longlong, at=Py_ssize_t, index=Py_ssize_t, queue_id=cython.longlong,
    body_bytes=cython.longlong)
cpdef bint are_admitted(
    tuple chunk, dict queue_counts, long long plain_flags, long long body_bytes_max) except -1

@cython.locals(
    count=Py_ssize_t, table="const long long[::1]", found=Py_ssize_t, index=Py_ssize_t)
cpdef Py_ssize_t two_way_count(tuple chunk) except -1

@cython.locals(
    total=cython.longlong, chunk=tuple, out=bytearray, position=Py_ssize_t,
    last=cython.longlong, planned=dict)
cpdef tuple build_plain_run(
    list chunks, dict next_offsets, long long physical_end, long long room_bytes,
    long long store_timestamp_ms, bytes store_host)

@cython.locals(
    count=Py_ssize_t, table="long long[::1]", born_hosts=list, born_host=bytes, fixed=Py_ssize_t,
    total=cython.longlong, at=Py_ssize_t, size=cython.longlong, index=Py_ssize_t)
cdef long long _measure(tuple chunk, Py_ssize_t store_host_bytes) except -1

@cython.locals(
    count=Py_ssize_t, table="long long[::1]", topics=list, topic=bytes, key=tuple,
    last=cython.longlong, at=Py_ssize_t, index=Py_ssize_t, queue_id=cython.longlong,
    known=object, queue_offset=cython.longlong)
cdef long long _place(
    tuple chunk, dict planned, dict next_offsets, long long physical_offset) except -2

@cython.locals(
    buffer=bytes, count=Py_ssize_t, texts=bytearray, born_hosts=list, born_host=bytes,
    view="const unsigned char*", table="const long long[::1]", properties="unsigned char*",
    target="unsigned char*", host_bits=cython.longlong, at=Py_ssize_t,
    start=Py_ssize_t, body_at=Py_ssize_t, body_end=Py_ssize_t, topics=list, topic=bytes,
    topic_bytes=Py_ssize_t, text_at=Py_ssize_t, text_end=Py_ssize_t, body_crc=cython.longlong,
    index=Py_ssize_t)
cdef Py_ssize_t _lay_out(
    bytearray out, Py_ssize_t position, tuple chunk, long long store_timestamp_ms,
    bytes store_host) except -1
