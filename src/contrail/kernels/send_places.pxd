cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_rows as send_rows

cdef Py_ssize_t SIZE_PLACES


cdef class QueuePlace:
    cdef public bytes topic
    cdef public long long queue_id
    cdef public tuple key
    cdef public bint is_lent
    cdef public long long next_offset
    cdef public long long planned_offset
    cdef public object tail
    cdef public long long key_seed
    cdef public bint is_counted
    cdef long long[9] normal
    cdef long long[9] fifo

    @cython.locals(was_counted=cython.bint)
    cpdef bint count(
        self, int kind, Py_ssize_t size_place, Py_ssize_t count,
        long long byte_count) except -1

    @cython.locals(normal=list, fifo=list, index=Py_ssize_t)
    cpdef tuple take_counts(self)


@cython.locals(known=object, queue_offset=cython.longlong)
cpdef long long plan_offsets(
    dict planned, dict next_offsets, tuple key, long long count, list new_queues) except? -1

@cython.locals(
    count=Py_ssize_t, places=list, index=Py_ssize_t, place=QueuePlace, known=object)
cpdef bint borrow_offsets(tuple chunk, dict next_offsets, list lent) except -1

@cython.locals(
    count=Py_ssize_t, table="long long*", places=list, place=QueuePlace,
    last=cython.longlong, at=Py_ssize_t, index=Py_ssize_t)
cpdef long long place_chunk(tuple chunk, long long physical_offset) except -2

@cython.locals(chunk=tuple, places=list, index=Py_ssize_t, place=QueuePlace)
cpdef object commit_places(list chunks)

@cython.locals(
    chunk=tuple, places=list, index=Py_ssize_t, place=QueuePlace, last=QueuePlace)
cpdef bint are_watched(list chunks, dict watched) except -1

@cython.locals(place=QueuePlace)
cpdef object return_lent(list lent, dict next_offsets)
