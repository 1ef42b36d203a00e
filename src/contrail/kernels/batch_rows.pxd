cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout
cimport contrail.kernels.bare_rows as send_rows
from contrail.kernels cimport frame_scan
from contrail.kernels.frame_scan cimport Send

cdef object _NO_ROWS
cdef int _MAY_LACK

@cython.locals(
    topic=bytes, queue_id=cython.longlong, body=bytes, sys_flag=cython.longlong,
    born=cython.longlong, born_host=bytes, times=cython.longlong, view="const unsigned char*",
    end=Py_ssize_t, count=Py_ssize_t, text_bytes=Py_ssize_t, bodies=cython.longlong,
    at=Py_ssize_t, size=cython.longlong, body_bytes=cython.longlong, text_at=Py_ssize_t,
    properties_bytes=cython.longlong, texts=bytearray)
cpdef tuple batch_rows(tuple draft, long long body_bytes_max, Py_ssize_t count_max)

@cython.locals(
    table="long long*", target="unsigned char*", send=Send, unit_at=Py_ssize_t,
    text_at=Py_ssize_t, at=Py_ssize_t, body_at=Py_ssize_t, body_end=Py_ssize_t,
    unit_end=Py_ssize_t, text_end=Py_ssize_t, _=Py_ssize_t)
cdef bint _fill_rows(
    const unsigned char* view, object rows, bytearray texts, Py_ssize_t count,
    long long queue_id, long long sys_flag, long long born, long long times,
    Py_ssize_t topic_bytes) except -1
