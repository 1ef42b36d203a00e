cimport cython

cdef long _TRANSACTION_MASK
cdef long _PREPARED
cdef long _ROLLED_BACK

@cython.locals(
    queue_offsets=list, physical_offsets=list, planned=dict, new_queues=list, position=cython.longlong,
    index=Py_ssize_t, transaction=long, key=tuple, fields=tuple)
cpdef tuple place_run(
    object drafts, list sizes, dict next_offsets, long long physical_end, object weight)
