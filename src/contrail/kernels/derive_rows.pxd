cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef bytes _ROOM
cdef long long _U32_MASK
cdef long long _QUEUE_OFFSET_MAX
cdef bytes _SCHEDULE_TOPIC
cdef long long _REPLACED_MARK
cdef Py_ssize_t _PLACE_BYTES


cdef class _Record:
    cdef const unsigned char[::1] view
    cdef const unsigned char* data
    cdef Py_ssize_t position
    cdef Py_ssize_t limit
    cdef int transaction
    cdef long long queue_id
    cdef long long queue_offset
    cdef long long message_count
    cdef bint is_replaced
    cdef long long replaced_count
    cdef long long tags_code
    cdef long long store_timestamp_ms
    cdef Py_ssize_t topic_at
    cdef Py_ssize_t topic_end
    cdef Py_ssize_t unique_key_at
    cdef Py_ssize_t unique_key_end
    cdef Py_ssize_t keys_at
    cdef Py_ssize_t keys_end
    cdef Py_ssize_t tags_at
    cdef Py_ssize_t tags_end
    cdef Py_ssize_t delay_at
    cdef Py_ssize_t delay_end
    cdef Py_ssize_t inner_count_at
    cdef Py_ssize_t inner_count_end
    cdef Py_ssize_t inner_base_at
    cdef Py_ssize_t inner_base_end


cdef class _QueueRuns:
    cdef list finished
    cdef long long first_queue_offset
    cdef long long count
    cdef bytearray rows
    cdef Py_ssize_t row_bytes
    cdef long long physical_end
    cdef long long store_timestamp_ms


@cython.locals(
    record=_Record, topics=dict, index_rows=bytearray, plain_row=bytearray, batch_row=bytearray,
    row=bytearray, topic=bytes, topic_seed=cython.longlong, topic_queues=dict,
    index_bytes=Py_ssize_t, record_count=Py_ssize_t, position=Py_ssize_t)
cpdef tuple derive_rows(
    object buffer, Py_ssize_t start, Py_ssize_t end, long long base_offset, list delay_table,
    frozenset batch_topics, bint with_times, bint with_index)

@cython.locals(data="const unsigned char*", properties_at=Py_ssize_t)
cdef int _read_record(_Record record, Py_ssize_t position, Py_ssize_t end) except -1

@cython.locals(header_at=Py_ssize_t, body_bytes=Py_ssize_t, topic_bytes=Py_ssize_t)
cdef bint _read_replaced(_Record record, Py_ssize_t body_at) noexcept

@cython.locals(
    data="const unsigned char*", name_at=Py_ssize_t, name_end=Py_ssize_t, value_end=Py_ssize_t)
cdef int _find_properties(_Record record, Py_ssize_t start, Py_ssize_t end) except -1

@cython.locals(length=Py_ssize_t)
cdef int _note_property(
    _Record record, Py_ssize_t name_at, Py_ssize_t name_end, Py_ssize_t value_end) except -1

@cython.locals(level=cython.longlong, value=cython.longlong)
cdef long long _tags_code(_Record record, bytes topic, list delay_table) except? -1

@cython.locals(target="unsigned char*", record_bytes=Py_ssize_t)
cdef int _fill_row(
    bytearray row, _Record record, long long base_offset, long long tags_code) except -1

@cython.locals(base=cython.longlong, count=cython.longlong)
cdef int _take_inner_batch(_Record record) except -1

@cython.locals(runs=dict, queue=_QueueRuns)
cdef dict _runs_of(dict topic_queues)

cdef int _finish(_QueueRuns queue) except -1

@cython.locals(queue=_QueueRuns, target="unsigned char*")
cdef int _add_row(dict topic_queues, _Record record, long long base_offset, bytearray row) except -1

cdef bint _follows(long long queue_offset, long long first_queue_offset, long long count) noexcept

@cython.locals(
    physical_offset=cython.longlong, key_hash=cython.longlong, at=Py_ssize_t, key_at=Py_ssize_t)
cdef Py_ssize_t _add_keys(
    bytearray index_rows, Py_ssize_t index_bytes, _Record record, long long base_offset,
    bytes topic, long long topic_seed) except -1

@cython.locals(target="unsigned char*")
cdef Py_ssize_t _add_index_row(
    bytearray index_rows, Py_ssize_t at, _Record record, long long key_hash,
    long long physical_offset) except -1

@cython.locals(value=cython.longlong)
cdef long long _key_hash(
    _Record record, Py_ssize_t start, Py_ssize_t end, bytes topic, long long topic_seed) except -1

@cython.locals(at=Py_ssize_t, value=cython.longlong, digit=cython.int)
cdef long long _number(
    _Record record, Py_ssize_t start, Py_ssize_t end, long long number_max) except? -1

cdef bytes _cut(_Record record, Py_ssize_t start, Py_ssize_t end)
