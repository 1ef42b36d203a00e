cimport cython

cdef long long _MAGIC_V1
cdef long long _MAGIC_V2
cdef Py_ssize_t _HEADER_BYTES
cdef long long _U32_MASK
cdef long long _I32_MAX
cdef long long _U32_SPAN
cdef long long _I16_MAX
cdef long long _I63_TENTH
cdef bytes _SCHEDULE_TOPIC
cdef Py_ssize_t _UNIQ_KEY
cdef Py_ssize_t _KEYS
cdef Py_ssize_t _TAGS
cdef Py_ssize_t _DELAY
cdef Py_ssize_t _INNER_NUM
cdef Py_ssize_t _INNER_BASE
cdef Py_ssize_t _PLACES

cpdef tuple derive_rows(object buffer, Py_ssize_t start, Py_ssize_t end, long long base_offset, list delay_table, frozenset batch_topics, bint with_times, bint with_index)

@cython.locals(queues=dict, topic_queues=dict, index_rows=bytearray, plain_row=bytearray, batch_row=bytearray, places="long long[::1]", plain_view="unsigned char[::1]", batch_view="unsigned char[::1]", topic=bytes, topic_seed=cython.longlong, is_batch=bint, is_scheduled=bint, record_count=Py_ssize_t, store_timestamp_ms=cython.longlong, position=Py_ssize_t, limit=Py_ssize_t, topic_at=Py_ssize_t, topic_end=Py_ssize_t, transaction=cython.int, tags_code=cython.longlong)
cdef tuple _derive(const unsigned char[::1] view, object data, Py_ssize_t start, Py_ssize_t end, long long base_offset, list delay_table, frozenset batch_topics, bint with_times, bint with_index)

@cython.locals(limit=Py_ssize_t, magic=cython.longlong, body_at=Py_ssize_t, topic_length_bytes=Py_ssize_t, body_bytes=Py_ssize_t, left=Py_ssize_t, topic_at=Py_ssize_t, topic_bytes=Py_ssize_t, at=Py_ssize_t)
cdef Py_ssize_t _record_limit(const unsigned char[::1] view, Py_ssize_t position, Py_ssize_t end) except -1

@cython.locals(sys_flag=cython.int, body_at=Py_ssize_t)
cdef Py_ssize_t _body_position(const unsigned char[::1] view, Py_ssize_t position) except? -1

@cython.locals(body_at=Py_ssize_t, topic_length_bytes=Py_ssize_t)
cdef Py_ssize_t _topic_position(const unsigned char[::1] view, Py_ssize_t position) except? -1

@cython.locals(length=Py_ssize_t)
cdef Py_ssize_t _topic_bytes(const unsigned char[::1] view, Py_ssize_t position, Py_ssize_t topic_at) except? -1

cdef long long _store_timestamp(const unsigned char[::1] view, Py_ssize_t position) except? -1

@cython.locals(place=Py_ssize_t, name_at=Py_ssize_t, separator_at=Py_ssize_t, at=Py_ssize_t)
cdef int _find_properties(const unsigned char[::1] view, Py_ssize_t start, Py_ssize_t end, long long[::1] places) except -1

@cython.locals(length=Py_ssize_t)
cdef Py_ssize_t _place_of(const unsigned char[::1] view, Py_ssize_t start, Py_ssize_t end) except? -1

@cython.locals(start=Py_ssize_t, end=Py_ssize_t, value=cython.longlong)
cdef long long _tags_code(const unsigned char[::1] view, object data, long long[::1] places) except? -1

@cython.locals(level=cython.longlong)
cdef long long _deliver_time(const unsigned char[::1] view, long long[::1] places, list delay_table, long long store_timestamp_ms, long long tags_code) except? -1

@cython.locals(queue_offset=cython.longlong, count=cython.longlong, base=cython.longlong, inner_count=cython.longlong, runs=list, run=list)
cdef int _add_queue_row(dict topic_queues, const unsigned char[::1] view, Py_ssize_t position, long long physical_offset, long long size, long long tags_code, long long store_timestamp_ms, bytearray row, unsigned char[::1] row_view, long long[::1] places) except -1

cdef bint _follows(long long queue_offset, long long first_queue_offset, long long count) noexcept

@cython.locals(at=Py_ssize_t, end=Py_ssize_t, key_at=Py_ssize_t, key_hash=cython.longlong)
cdef int _add_index_rows(bytearray index_rows, const unsigned char[::1] view, object data, bytes topic, long long topic_seed, long long physical_offset, long long store_timestamp_ms, long long[::1] places) except -1

@cython.locals(shift=cython.int)
cdef int _add_index_row(bytearray index_rows, long long key_hash, long long physical_offset, long long store_timestamp_ms) except -1

@cython.locals(value=cython.longlong)
cdef long long _key_hash(const unsigned char[::1] view, object data, Py_ssize_t start, Py_ssize_t end, bytes topic, long long topic_seed) except -1

@cython.locals(value=cython.longlong, at=Py_ssize_t, byte=cython.uchar)
cdef long long _hash_on(const unsigned char[::1] view, Py_ssize_t start, Py_ssize_t end, long long seed) except? -1

@cython.locals(at=Py_ssize_t, value=cython.longlong, digit=cython.int)
cdef long long _number(const unsigned char[::1] view, Py_ssize_t start, Py_ssize_t end) except? -1

@cython.locals(at=Py_ssize_t, byte=cython.uchar)
cdef bint _equals(const unsigned char[::1] view, Py_ssize_t start, Py_ssize_t end, bytes text) except -1

@cython.locals(value=cython.longlong)
cdef long long _read_i32(const unsigned char[::1] view, Py_ssize_t at) except? -1

@cython.locals(value=cython.longlong)
cdef long long _read_i64(const unsigned char[::1] view, Py_ssize_t at) except? -1

cdef int _put_i32(unsigned char[::1] view, Py_ssize_t at, long long value) except -1

cdef int _put_i64(unsigned char[::1] view, Py_ssize_t at, long long value) except -1
