cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout
cimport contrail.kernels.bare_rows as send_rows
cimport contrail.kernels.bare_crc as stretch_crc
from contrail.kernels cimport send_places
from contrail.kernels.send_places cimport QueuePlace

cdef long long _PLACES_MAX

@cython.locals(
    count=Py_ssize_t, table="long long*", topics=list, topic=bytes, by_queue=list,
    at=Py_ssize_t, index=Py_ssize_t, queue_id=cython.longlong, body_bytes=cython.longlong,
    place=QueuePlace, found=list)
cpdef bint are_admitted(
    tuple chunk, dict queue_counts, dict places, long long fast_flags,
    long long body_bytes_max) except -1

@cython.locals(by_queue=list)
cdef list _new_places(bytes topic, dict queue_counts, dict places)

@cython.locals(
    count=Py_ssize_t, table="long long*", found=Py_ssize_t, index=Py_ssize_t)
cpdef Py_ssize_t two_way_count(tuple chunk) except -1

@cython.locals(
    total=cython.longlong, chunk=tuple, out=bytearray, position=Py_ssize_t,
    last=cython.longlong)
cpdef tuple build_sends(
    list chunks, dict next_offsets, list lent, long long physical_end, long long room_bytes,
    long long store_timestamp_ms, bytes store_host)

@cython.locals(
    count=Py_ssize_t, table="long long*", born_hosts=list, born_host=bytes,
    total=cython.longlong, at=Py_ssize_t, size=cython.longlong, index=Py_ssize_t)
cdef long long _measure(tuple chunk, Py_ssize_t store_host_bytes) except -1

@cython.locals(
    buffer=bytes, count=Py_ssize_t, texts=bytearray, born_hosts=list,
    view="const unsigned char*", table="long long*", properties="unsigned char*",
    target="unsigned char*", at=Py_ssize_t, body_at=Py_ssize_t, body_end=Py_ssize_t, places=list,
    place=QueuePlace, topic=bytes, text_at=Py_ssize_t, text_end=Py_ssize_t, index=Py_ssize_t)
cdef Py_ssize_t _lay_out(
    bytearray out, Py_ssize_t position, tuple chunk, long long store_timestamp_ms,
    bytes store_host) except -1
