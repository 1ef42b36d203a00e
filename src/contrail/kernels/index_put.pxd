cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _ENTRY_BYTES
cdef Py_ssize_t _PAGE_SLOTS

cpdef Py_ssize_t put_rows(
    object rows, bytearray slots, Py_ssize_t slot_count, bytearray tail, list header,
    long long entry_limit, bytearray dirty) except? -1

cpdef Py_ssize_t rebuild_slots(
    object entries, Py_ssize_t entry_count, bytearray slots, Py_ssize_t slot_count) except? -1

cdef object _check_slots(Py_ssize_t slots_bytes, Py_ssize_t slot_count)

@cython.locals(
    begin_timestamp_ms=cython.longlong, end_timestamp_ms=cython.longlong,
    begin_physical_offset=cython.longlong, end_physical_offset=cython.longlong,
    slot_used=cython.longlong, index_count=cython.longlong, at=Py_ssize_t, entry_at=Py_ssize_t,
    rows_bytes=Py_ssize_t, physical_offset=cython.longlong, key_hash=cython.longlong,
    store_timestamp_ms=cython.longlong, slot=Py_ssize_t, previous=cython.longlong,
    seconds=cython.longlong, source="const unsigned char*", entries="unsigned char*",
    chains="unsigned char*", pages="unsigned char*")
cdef Py_ssize_t _put(
    const unsigned char[::1] rows, bytearray slots, Py_ssize_t slot_count, bytearray tail,
    list header, long long entry_limit, bytearray dirty) except? -1

@cython.locals(
    slot_used=Py_ssize_t, number=Py_ssize_t, slot=Py_ssize_t, source="const unsigned char*",
    chains="unsigned char*")
cdef Py_ssize_t _chain(
    const unsigned char[::1] entries, Py_ssize_t entry_count, bytearray slots,
    Py_ssize_t slot_count) except? -1

@cython.locals(seconds=cython.longlong)
cdef long long _seconds_since(long long begin_timestamp_ms, long long store_timestamp_ms) except? -1
