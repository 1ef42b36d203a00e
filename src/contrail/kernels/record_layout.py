"""The bytes of a commit log record and of the rows made from it: the one place that states them.

A record, all integers big-endian and signed; each IPv6 host before a field moves it by 12:

    place  bytes   field
    0      4       totalSize, the whole record
    4      4       magic: V1 0xDAA320A7, V2 0xDAA320AB (topics over 127 bytes)
    8      4       bodyCRC: CRC-32 of the body & 0x7FFFFFFF
    12     4       queueId
    16     4       flag, the application's own
    20     8       queueOffset
    28     8       physicalOffset, the record's own place in the log
    36     4       sysFlag; 0x10 = bornHost is IPv6, 0x20 = storeHost is IPv6
    40     8       bornTimestamp, ms, the sender's clock
    48     8 | 20  bornHost: address (4 | 16), port (4)
    56     8       storeTimestamp, ms
    64     8 | 20  storeHost
    72     4       reconsumeTimes
    76     8       preparedTransactionOffset
    84     4 + n   bodyLength, body
           1 | 2   topicLength: one byte in V1, two in V2
           n       topic
           2 + n   propertiesLength, properties

With the record CRC switched on the properties end with 20 bytes more:

    9      ``__CRC32#`` and 0x01
    10     CRC-32 & 0x7FFFFFFF of the record without these 20 bytes, as decimal digits, the least
           significant first, filled up with ``0``
    1      0x02

Besides records a log has two other things:

    place  bytes   blank record: the rest of a segment, when the next record did not fit
    0      4       bytes left in the segment, this field included
    4      4       magic 0xCBD43194

    0      8       zeros: nothing was written here yet

Rows that are derived from records:

    place  bytes  consume queue row (20 bytes)
    0      8      physicalOffset
    8      4      size of the record
    12     8      tagsCode: Java hash of TAGS, 0 without; the deliver time for a delayed message
    20     8      storeTimestamp, only when asked for (28 bytes): what a queue extension needs

    place  bytes  batch consume queue row (46 bytes): the first 28 as above, then
    28     8      baseQueueOffset
    36     2      batchCount
    38     4      compactOffset, always -1
    42     4      reserved, 0

    place  bytes  index row (20 bytes), ours: read by ``index_put``
    0      4      keyHash: |Java hash of topic#key|
    4      8      physicalOffset
    12     8      storeTimestamp

A unit of a batch, as a client sends it:

    place  bytes  field
    0      4      unit size, this field included
    4      4      magic, not looked at
    8      4      body CRC, not looked at
    12     4      flag
    16     4 + n  body length, body
           2 + n  properties length, properties

Compiled kernels have all of this, inlined, from ``bare_layout.pxd``, which they cimport under this
module's name. Numbers are read and written by ``raw_bytes``.
"""

from __future__ import annotations

from contrail.kernels import raw_bytes
from contrail.kernels.raw_bytes import Source

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124
BLANK_RECORD_BYTES = 8

# Places for two IPv4 hosts.
SIZE_AT = 0
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
# The byte of sysFlag that says how long the hosts are and what transaction this is.
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
# All before the body, with two IPv6 hosts.
HEADER_BYTES_MAX = 112
# The smallest record: V1, two IPv4 hosts, and no body, topic or properties.
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
CRC_NAME = b"__CRC32#\x01"
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
# The size in a row that stands for no record: what a queue was begun or filled up with.
BLANK_ROW_SIZE = 0x7FFFFFFF

INDEX_ROW_BYTES = 20
INDEX_HASH_AT = 0
INDEX_PHYSICAL_AT = 4
INDEX_TIME_AT = 12

UNIT_BYTES_MIN = 22
UNIT_FLAG_AT = 12
UNIT_BODY_BYTES_AT = 16
UNIT_BODY_AT = 20

# Why bytes are no whole record, or why a walk over records ended.
REASON_END = 0
REASON_BLANK = 1
REASON_EMPTY = 2
REASON_BAD_MAGIC = 3
REASON_BAD_SIZE = 4
REASON_BAD_PHYSICAL_OFFSET = 5
REASON_BAD_BODY_CRC = 6
REASON_BAD_RECORD_CRC = 7
REASON_CUT_SHORT = 8

_U32_SPAN = 0x100000000


def put_header(
    target: bytearray,
    start: int,
    size: int,
    magic: int,
    body_crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body_bytes: int,
) -> int:
    """Write everything of a record that stands before its body; where the body begins.

    ``body_crc`` is the CRC-32 of the body. The lengths of the hosts decide about their bits of
    ``sys_flag``, whatever the sender said.
    """
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


def takes_queue_offset(sys_flag: int) -> bool:
    """Whether a message has a place in its queue: half and rolled-back ones have none."""
    # RocketMQ's types: none 0, prepared 4, commit 8, rollback 12.
    return not sys_flag & TRANSACTION_PREPARED


def is_host(host_bytes: int) -> bool:
    """Whether a packed host can have ``host_bytes`` bytes."""
    return host_bytes in (IPV4_HOST_BYTES, IPV6_HOST_BYTES)


def may_end_with_crc(view: Source, start: int, end: int) -> bool:
    """Whether the last pair of properties could be taken for a record's CRC.

    Only the store's own CRC may end a record, so the properties of a sender are checked again.
    """
    return end - start >= CRC_PROPERTY_BYTES and view[end - CRC_PROPERTY_BYTES] == CRC_NAME[0]


def bytes_without(born_host_bytes: int, store_host_bytes: int, topic_bytes: int) -> int:
    """The bytes of a record without those of its body and its properties."""
    length_bytes = 1 if topic_bytes <= TOPIC_BYTES_MAX else 2
    hosts_bytes = born_host_bytes + store_host_bytes
    return BODY_AT - 2 * IPV4_HOST_BYTES + hosts_bytes + length_bytes + topic_bytes + 2


def hosts_extra(flags: int) -> int:
    """By how many bytes the hosts move the body, by the record's low flags."""
    extra = IPV6_EXTRA_BYTES if flags & BORN_HOST_V6 else 0
    return extra + IPV6_EXTRA_BYTES if flags & STORE_HOST_V6 else extra


def store_time_at(view: Source, position: int) -> int:
    """Where the store timestamp of the record at ``position`` stands."""
    if view[position + LOW_FLAGS_AT] & BORN_HOST_V6:
        return position + STORE_TIME_AT + IPV6_EXTRA_BYTES
    return position + STORE_TIME_AT


def store_time(view: Source, position: int) -> int:
    """The store timestamp of the record at ``position``, ms."""
    return raw_bytes.i64(view, store_time_at(view, position))


def body_at(view: Source, position: int) -> int:
    """Where the body of the record at ``position`` begins."""
    return position + BODY_AT + hosts_extra(view[position + LOW_FLAGS_AT])


def body_end(view: Source, position: int) -> int:
    """Where the body of a whole record ends, and the length of its topic begins."""
    start = body_at(view, position)
    return start + raw_bytes.i32(view, start - 4)


def topic_length_bytes(view: Source, position: int) -> int:
    """In how many bytes a record, which has one of the two magic numbers, counts its topic's."""
    # The lowest byte of the magic number: 0xA7 or 0xAB.
    return 1 if view[position + MAGIC_AT + 3] == MAGIC_V1 & 0xFF else 2


def topic_at(view: Source, position: int) -> int:
    """Where the topic of a whole record begins; it ends two bytes before the properties."""
    return body_end(view, position) + topic_length_bytes(view, position)


def properties_at(view: Source, position: int, limit: int) -> int:
    """Where the properties of a record begin, or -1 unless its lengths add up to ``limit``.

    There are at least ``RECORD_BYTES_MIN`` bytes; no length is used before it was checked.
    """
    length_bytes = topic_length_bytes(view, position)
    start = body_at(view, position)
    left = limit - start - length_bytes - 2
    if left < 0:
        return -1
    body_bytes = raw_bytes.i32(view, start - 4)
    if body_bytes < 0 or body_bytes > left:
        return -1
    at = start + body_bytes + length_bytes
    topic_bytes = view[at - 1] if length_bytes == 1 else raw_bytes.u16(view, at - 2)
    # The lengths are signed: one byte up to 127, two up to 32,767.
    if topic_bytes > (TOPIC_BYTES_MAX if length_bytes == 1 else I16_MAX):
        return -1
    left -= body_bytes + topic_bytes
    if left < 0 or left > PROPERTIES_BYTES_MAX:
        return -1
    at += topic_bytes + 2
    return at if raw_bytes.u16(view, at - 2) == left else -1


def record_reason(view: Source, position: int, end: int) -> int:
    """Why the bytes at ``position`` are no whole record; ``REASON_END`` when they are.

    Looks at magic, size and lengths alone, and trusts none of them.
    """
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


def is_placed(
    view: Source,
    view_bytes: int,
    position: int,
    size: int,
    physical_offset: int,
    queue_id: int,
    queue_offset: int,
) -> bool:
    """Whether a record of this size and this place in log and queue begins at ``position``.

    A place outside of the view is none; the record's lengths are not looked at.
    """
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


def topic_end(view: Source, position: int, limit: int, topic: bytes) -> int:
    """Where ``topic`` ends in a record up to ``limit`` that is of it, -1 for every other record."""
    length_bytes = topic_length_bytes(view, position)
    start = body_at(view, position)
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


def put_queue_row(
    target: bytearray, at: int, physical_offset: int, record_bytes: int, tags_code: int
) -> None:
    """Write a consume queue row."""
    raw_bytes.put_i64(target, at + ROW_PHYSICAL_AT, physical_offset)
    raw_bytes.put_i32(target, at + ROW_SIZE_AT, record_bytes)
    raw_bytes.put_i64(target, at + ROW_TAGS_AT, tags_code)


def put_index_row(
    target: bytearray, at: int, key_hash: int, physical_offset: int, store_timestamp_ms: int
) -> None:
    """Write an index row."""
    raw_bytes.put_i32(target, at + INDEX_HASH_AT, key_hash)
    raw_bytes.put_i64(target, at + INDEX_PHYSICAL_AT, physical_offset)
    raw_bytes.put_i64(target, at + INDEX_TIME_AT, store_timestamp_ms)


def tags_code(java_hash: int) -> int:
    """The code of tags whose hash, as Java has it, is these 32 bits: with their sign."""
    return java_hash - _U32_SPAN if java_hash > I32_MAX else java_hash


def key_hash(java_hash: int) -> int:
    """The index's hash of ``topic#key`` whose hash in Java is these 32 bits: never negative."""
    if java_hash > I32_MAX:
        java_hash = _U32_SPAN - java_hash
    # Java's Math.abs leaves the smallest integer negative; RocketMQ then takes 0.
    return java_hash if java_hash <= I32_MAX else 0
