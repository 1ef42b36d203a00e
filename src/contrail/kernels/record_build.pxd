cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout
from contrail.kernels cimport send_places

cdef bytes _CRC_TEMPLATE
cdef long long _I64_MAX
cdef list _BYTES

@cython.locals(
    sizes=list, fields=tuple, topic=bytes, body=bytes, properties=bytes, born_host=bytes,
    properties_bytes=Py_ssize_t)
cpdef list measure_run(
    object drafts, Py_ssize_t body_bytes_max, bint record_crc, Py_ssize_t store_host_bytes)

@cython.locals(
    parts=list, header=bytearray, index=Py_ssize_t, fields=tuple, topic=bytes, body=bytes,
    properties=bytes, born_host=bytes)
cpdef list build_run(
    object drafts, list queue_offsets, long long physical_offset, long long store_timestamp_ms,
    bytes store_host, bint record_crc)

@cython.locals(
    parts=list, queue_offsets=list, physical_offsets=list,
    planned=dict, new_queues=list, header=bytearray, topic_before=bytes, topic_text=bytes,
    properties_bytes_before=Py_ssize_t, position=cython.longlong, fields=tuple, topic=bytes,
    body=bytes, properties=bytes, born_host=bytes, properties_bytes=Py_ssize_t, size=Py_ssize_t,
    queue_offset=cython.longlong)
cpdef object build_fitting_run(
    object drafts, dict next_offsets, long long physical_end, long long room_bytes,
    long long weight, long long store_timestamp_ms, bytes store_host, Py_ssize_t body_bytes_max,
    bint record_crc)

@cython.locals(
    view="unsigned char*", header_bytes=Py_ssize_t, body_bytes=Py_ssize_t, is_long=bint,
    size=Py_ssize_t, body_crc=cython.longlong, record_crc32=cython.longlong, head=bytes)
cdef Py_ssize_t _lay_out(
    list parts, bytearray header, bytes topic_text, long long queue_id, bytes body,
    bytes properties, long long flag, long long sys_flag, long long born, bytes born_host,
    long long times, long long prepared, long long queue_offset, long long physical_offset,
    long long store_timestamp_ms, bytes store_host, bint record_crc) except -1

@cython.locals(topic_bytes=Py_ssize_t, without=Py_ssize_t)
cdef Py_ssize_t _size_of(
    bytes topic, Py_ssize_t body_bytes, Py_ssize_t properties_bytes, Py_ssize_t born_host_bytes,
    Py_ssize_t store_host_bytes, Py_ssize_t body_bytes_max) except -1

@cython.locals(numbers_fit=bint)
cdef int _check_numbers(
    object queue_id, object flag, object sys_flag, object times, object born,
    object prepared) except -1

cdef bytes _kept(bytes properties, bint record_crc)

cdef Py_ssize_t _crc_bytes(bint record_crc) noexcept

cdef bytes _topic_text(bytes topic, Py_ssize_t properties_bytes)

cdef object _check_topic(bytes topic)

cdef bint _numbers_fit(
    long long queue_id, long long flag, long long sys_flag, long long times, long long born,
    long long prepared) except? 0

cdef int _check_host(Py_ssize_t host_bytes) except -1

cdef bytes _without_crc(bytes properties)

cdef bytes _closed(bytes properties)

@cython.locals(text=bytearray, at=Py_ssize_t)
cdef bytes _crc_property(long long crc)

cdef bytes _length_prefix(Py_ssize_t topic_bytes)

cdef bytes _i16(Py_ssize_t value)
