cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_rows as send_rows

from contrail.kernels.send_places cimport QueuePlace


@cython.locals(
    rows=dict, row=list, kind=int, found=int, count=Py_ssize_t, byte_count=cython.longlong,
    small_count=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, draft=object,
    start=cython.longlong, stop=cython.longlong, size=cython.longlong,
    prepared=cython.longlong, flags=cython.longlong)
cpdef dict tally_run(
    list drafts, list physical_offsets, long long physical_end, bytes fifo_mark,
    bytes fifo_skips)

@cython.locals(
    total=Py_ssize_t, chunk=tuple, count=Py_ssize_t, table="long long*", places=list,
    place=QueuePlace, kind=int, size_place=Py_ssize_t, alike=Py_ssize_t,
    byte_count=cython.longlong, at=Py_ssize_t, index=Py_ssize_t, found=int,
    size=cython.longlong, found_place=Py_ssize_t)
cpdef Py_ssize_t tally_rows(list chunks, list counted) except -1

@cython.locals(
    last=Py_ssize_t, place=Py_ssize_t, end=Py_ssize_t, skip=Py_ssize_t)
cdef bint _holds(bytes data, bytes mark, bytes skips) except -1

cdef Py_ssize_t _size_place(long long size) except -1
