cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_rows as send_rows

cdef Py_ssize_t _NUMBER_BYTES_MAX
cdef Py_ssize_t _PREFIX_BYTES
cdef Py_ssize_t _OFFSET_DIGITS
cdef Py_ssize_t _FIXED_BYTES
cdef bytes _BEFORE_ID
cdef bytes _BEFORE_QUEUE
cdef bytes _BEFORE_OFFSET
cdef bytes _BEFORE_KEY
cdef bytes _AFTER_KEY
cdef bytes _BEFORE_OPAQUE
cdef bytes _END

@cython.locals(
    table="long long*", keys="unsigned char*", size=Py_ssize_t,
    before_id=bytes, after_key=bytes, row=Py_ssize_t, out=bytearray, view="unsigned char*", at=Py_ssize_t, _=Py_ssize_t)
cpdef bytes row_answers(
    Py_ssize_t count, object rows, bytearray texts, bytes host_digits, bytes extra_fields)

@cython.locals(
    after_key=bytes, size=Py_ssize_t, out=bytearray, view="unsigned char*", at=Py_ssize_t,
    is_first=cython.bint, physical_offset=cython.longlong)
cpdef bytes batch_answer(
    long long opaque, long long queue_id, long long queue_offset, list physical_offsets,
    bytes key, bytes host_digits, bytes extra_fields)

@cython.locals(
    table="long long*", keys="unsigned char*", before_id=bytes,
    after_key=bytes, key_bytes_max=Py_ssize_t, row=Py_ssize_t, out=bytearray, view="unsigned char*",
    at=Py_ssize_t, answers=list, _=Py_ssize_t)
cpdef list row_answers_singly(
    Py_ssize_t count, object rows, bytearray texts, bytes host_digits, bytes extra_fields)

cdef Py_ssize_t _bytes_without_key(bytes before_id, bytes after_key) except -1

@cython.locals(start=Py_ssize_t)
cdef Py_ssize_t _lay_out(
    unsigned char* view, Py_ssize_t at, long long opaque, long long queue_id,
    long long queue_offset, long long physical_offset, const unsigned char* keys,
    Py_ssize_t key_at, Py_ssize_t key_end, bytes before_id, bytes after_key) except -1
