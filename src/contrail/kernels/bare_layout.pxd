# The layout of ``record_layout`` for compiled kernels: numbers that the compiler knows, functions
# on bare pointers. A kernel cimports this file under that name; a test holds both to the same
# numbers.
cimport contrail.kernels.bare_bytes as raw_bytes

cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BLANK = -875286124
    BLANK_RECORD_BYTES = 8

    SIZE_AT = 0
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    LOW_FLAGS_AT = 39
    BORN_TIME_AT = 40
    BORN_HOST_AT = 48
    STORE_TIME_AT = 56
    STORE_HOST_AT = 64
    TIMES_AT = 72
    PREPARED_AT = 76
    BODY_BYTES_AT = 84
    BODY_AT = 88

    IPV4_HOST_BYTES = 8
    IPV6_HOST_BYTES = 20
    IPV6_EXTRA_BYTES = 12
    HEADER_BYTES_MAX = 112
    RECORD_BYTES_MIN = 91
    TOPIC_BYTES_MAX = 127
    LONG_TOPIC_BYTES_MAX = 255
    PROPERTIES_BYTES_MAX = 32767

    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    TRANSACTION_MASK = 0xC
    TRANSACTION_NONE = 0x0
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC

    CRC_MASK = 0x7FFFFFFF
    CRC_PROPERTY_BYTES = 20

    I16_MAX = 0x7FFF
    I32_MAX = 0x7FFFFFFF

    QUEUE_ROW_BYTES = 20
    ROW_PHYSICAL_AT = 0
    ROW_SIZE_AT = 8
    ROW_TAGS_AT = 12
    ROW_TIME_AT = 20
    TIMED_ROW_BYTES = 28
    ROW_BASE_AT = 28
    ROW_COUNT_AT = 36
    ROW_COMPACT_AT = 38
    ROW_RESERVED_AT = 42
    BATCH_ROW_BYTES = 46
    BLANK_ROW_SIZE = 0x7FFFFFFF

    INDEX_ROW_BYTES = 20
    INDEX_HASH_AT = 0
    INDEX_PHYSICAL_AT = 4
    INDEX_TIME_AT = 12

    UNIT_BYTES_MIN = 22
    UNIT_FLAG_AT = 12
    UNIT_BODY_BYTES_AT = 16
    UNIT_BODY_AT = 20

    REASON_END = 0
    REASON_BLANK = 1
    REASON_EMPTY = 2
    REASON_BAD_MAGIC = 3
    REASON_BAD_SIZE = 4
    REASON_BAD_PHYSICAL_OFFSET = 5
    REASON_BAD_BODY_CRC = 6
    REASON_BAD_RECORD_CRC = 7
    REASON_CUT_SHORT = 8


cdef inline Py_ssize_t put_header(
    unsigned char* target, Py_ssize_t start, long long size, long long magic, long long body_crc,
    long long queue_id, long long flag, long long queue_offset, long long physical_offset,
    long long sys_flag, long long born_timestamp_ms, bytes born_host,
    long long store_timestamp_ms, bytes store_host, long long reconsume_times,
    long long prepared_offset, long long body_bytes
) noexcept:
    cdef Py_ssize_t at
    raw_bytes.put_i32(target, start + SIZE_AT, size)
    raw_bytes.put_i32(target, start + MAGIC_AT, magic)
    raw_bytes.put_i32(target, start + BODY_CRC_AT, body_crc & CRC_MASK)
    raw_bytes.put_i32(target, start + QUEUE_ID_AT, queue_id)
    raw_bytes.put_i32(target, start + FLAG_AT, flag)
    raw_bytes.put_i64(target, start + QUEUE_OFFSET_AT, queue_offset)
    raw_bytes.put_i64(target, start + PHYSICAL_OFFSET_AT, physical_offset)
    sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born_host) == IPV6_HOST_BYTES:
        sys_flag |= BORN_HOST_V6
    if len(store_host) == IPV6_HOST_BYTES:
        sys_flag |= STORE_HOST_V6
    raw_bytes.put_i32(target, start + SYS_FLAG_AT, sys_flag)
    raw_bytes.put_i64(target, start + BORN_TIME_AT, born_timestamp_ms)
    at = raw_bytes.put_text(target, start + BORN_HOST_AT, born_host)
    raw_bytes.put_i64(target, at, store_timestamp_ms)
    at = raw_bytes.put_text(target, at + 8, store_host)
    raw_bytes.put_i32(target, at, reconsume_times)
    raw_bytes.put_i64(target, at + 4, prepared_offset)
    raw_bytes.put_i32(target, at + 12, body_bytes)
    return at + 16


cdef inline bint takes_queue_offset(long long sys_flag) noexcept nogil:
    return not sys_flag & TRANSACTION_PREPARED


cdef inline bint is_host(Py_ssize_t host_bytes) noexcept nogil:
    return host_bytes == IPV4_HOST_BYTES or host_bytes == IPV6_HOST_BYTES


cdef inline bint may_end_with_crc(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t end
) noexcept nogil:
    return end - start >= CRC_PROPERTY_BYTES and view[end - CRC_PROPERTY_BYTES] == 95


cdef inline Py_ssize_t bytes_without(
    Py_ssize_t born_host_bytes, Py_ssize_t store_host_bytes, Py_ssize_t topic_bytes
) noexcept nogil:
    cdef Py_ssize_t length_bytes = 1 if topic_bytes <= TOPIC_BYTES_MAX else 2
    cdef Py_ssize_t hosts_bytes = born_host_bytes + store_host_bytes
    return BODY_AT - 2 * IPV4_HOST_BYTES + hosts_bytes + length_bytes + topic_bytes + 2


cdef inline Py_ssize_t hosts_extra(int flags) noexcept nogil:
    cdef Py_ssize_t extra = IPV6_EXTRA_BYTES if flags & BORN_HOST_V6 else 0
    return extra + IPV6_EXTRA_BYTES if flags & STORE_HOST_V6 else extra


cdef inline Py_ssize_t store_time_at(const unsigned char* view, Py_ssize_t position) noexcept nogil:
    if view[position + LOW_FLAGS_AT] & BORN_HOST_V6:
        return position + STORE_TIME_AT + IPV6_EXTRA_BYTES
    return position + STORE_TIME_AT


cdef inline long long store_time(const unsigned char* view, Py_ssize_t position) noexcept nogil:
    return raw_bytes.i64(view, store_time_at(view, position))


cdef inline Py_ssize_t body_at(const unsigned char* view, Py_ssize_t position) noexcept nogil:
    return position + BODY_AT + hosts_extra(view[position + LOW_FLAGS_AT])


cdef inline Py_ssize_t body_end(const unsigned char* view, Py_ssize_t position) noexcept nogil:
    cdef Py_ssize_t start = body_at(view, position)
    return start + raw_bytes.i32(view, start - 4)


cdef inline Py_ssize_t topic_length_bytes(
    const unsigned char* view, Py_ssize_t position
) noexcept nogil:
    return 1 if view[position + MAGIC_AT + 3] == MAGIC_V1 & 0xFF else 2


cdef inline Py_ssize_t topic_at(const unsigned char* view, Py_ssize_t position) noexcept nogil:
    return body_end(view, position) + topic_length_bytes(view, position)


cdef inline Py_ssize_t properties_at(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t limit
) noexcept nogil:
    cdef Py_ssize_t length_bytes = topic_length_bytes(view, position)
    cdef Py_ssize_t start = body_at(view, position)
    cdef Py_ssize_t left = limit - start - length_bytes - 2
    cdef Py_ssize_t body_bytes, at, topic_bytes
    if left < 0:
        return -1
    body_bytes = raw_bytes.i32(view, start - 4)
    if body_bytes < 0 or body_bytes > left:
        return -1
    at = start + body_bytes + length_bytes
    topic_bytes = view[at - 1] if length_bytes == 1 else raw_bytes.u16(view, at - 2)
    if topic_bytes > (TOPIC_BYTES_MAX if length_bytes == 1 else I16_MAX):
        return -1
    left -= body_bytes + topic_bytes
    if left < 0 or left > PROPERTIES_BYTES_MAX:
        return -1
    at += topic_bytes + 2
    return at if raw_bytes.u16(view, at - 2) == left else -1


cdef inline int record_reason(
    const unsigned char* view, long long position, long long end
) noexcept nogil:
    cdef long long size, magic, size_min
    if position < 0 or end - position < BLANK_RECORD_BYTES:
        return REASON_CUT_SHORT
    size = raw_bytes.i32(view, position + SIZE_AT)
    magic = raw_bytes.i32(view, position + MAGIC_AT)
    if magic == MAGIC_V1:
        size_min = RECORD_BYTES_MIN
    elif magic == MAGIC_V2:
        size_min = RECORD_BYTES_MIN + 1
    elif magic == MAGIC_BLANK:
        return REASON_BLANK if size >= BLANK_RECORD_BYTES else REASON_BAD_SIZE
    else:
        return REASON_EMPTY if magic == 0 and size == 0 else REASON_BAD_MAGIC
    if size < size_min:
        return REASON_BAD_SIZE
    if size > end - position:
        return REASON_CUT_SHORT
    if properties_at(view, position, position + size) < 0:
        return REASON_BAD_SIZE
    return REASON_END


cdef inline bint is_placed(
    const unsigned char* view, long long view_bytes, long long position, long long size,
    long long physical_offset, long long queue_id, long long queue_offset
) noexcept nogil:
    cdef long long magic
    if position < 0 or size < RECORD_BYTES_MIN or size > view_bytes - position:
        return False
    magic = raw_bytes.i32(view, position + MAGIC_AT)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    return (
        raw_bytes.i32(view, position + SIZE_AT) == size
        and raw_bytes.i64(view, position + PHYSICAL_OFFSET_AT) == physical_offset
        and raw_bytes.i32(view, position + QUEUE_ID_AT) == queue_id
        and raw_bytes.i64(view, position + QUEUE_OFFSET_AT) == queue_offset
    )


cdef inline Py_ssize_t topic_end(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t limit, bytes topic
) noexcept:
    cdef Py_ssize_t length_bytes = topic_length_bytes(view, position)
    cdef Py_ssize_t start = body_at(view, position)
    cdef Py_ssize_t body_bytes, topic_bytes, at, said_bytes
    if start > limit:
        return -1
    body_bytes = raw_bytes.i32(view, start - 4)
    topic_bytes = len(topic)
    at = start + body_bytes + length_bytes
    if body_bytes < 0 or at + topic_bytes + 2 > limit:
        return -1
    said_bytes = view[at - 1] if length_bytes == 1 else raw_bytes.u16(view, at - 2)
    if said_bytes != topic_bytes or not raw_bytes.stands(view, at, topic):
        return -1
    return at + topic_bytes


cdef inline void put_queue_row(
    unsigned char* target, Py_ssize_t at, long long physical_offset, long long record_bytes,
    long long tags_code
) noexcept nogil:
    raw_bytes.put_i64(target, at + ROW_PHYSICAL_AT, physical_offset)
    raw_bytes.put_i32(target, at + ROW_SIZE_AT, record_bytes)
    raw_bytes.put_i64(target, at + ROW_TAGS_AT, tags_code)


cdef inline void put_index_row(
    unsigned char* target, Py_ssize_t at, long long key_hash, long long physical_offset,
    long long store_timestamp_ms
) noexcept nogil:
    raw_bytes.put_i32(target, at + INDEX_HASH_AT, key_hash)
    raw_bytes.put_i64(target, at + INDEX_PHYSICAL_AT, physical_offset)
    raw_bytes.put_i64(target, at + INDEX_TIME_AT, store_timestamp_ms)


cdef inline long long tags_code(long long java_hash) noexcept nogil:
    return java_hash - (<long long> 1 << 32) if java_hash > I32_MAX else java_hash


cdef inline long long key_hash(long long java_hash) noexcept nogil:
    if java_hash > I32_MAX:
        java_hash = (<long long> 1 << 32) - java_hash
    return java_hash if java_hash <= I32_MAX else 0
