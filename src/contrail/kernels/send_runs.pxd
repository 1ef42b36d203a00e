cimport cython

@cython.locals(
    index=Py_ssize_t, end=Py_ssize_t, item=tuple, draft=tuple, queue_count=object,
    queue_id=cython.longlong, count=cython.longlong, flags=cython.longlong)
cpdef Py_ssize_t count_plain(
    list items, Py_ssize_t first, dict queue_counts, long long plain_flags) except -1

@cython.locals(
    end=Py_ssize_t, entry=tuple, run=list, count=Py_ssize_t, first=Py_ssize_t, item=tuple)
cpdef Py_ssize_t gather_runs(
    list arrived, Py_ssize_t at, dict queue_counts, long long plain_flags,
    Py_ssize_t in_flight_count_max, list items, list drafts, list parts) except -1
