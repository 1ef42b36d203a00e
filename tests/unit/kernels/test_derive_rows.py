"""The rows of records made by hand."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.java_hash import java_hash
from contrail.model.message import MessageDraft
from tests.unit.kernels.material import STORE_TIMESTAMP_MS, log_of, record_positions

MESSAGE = MessageDraft(topic=b"TopicTest", queue_id=1, body=b"hello")
DELAYS = [0, 1000, 5000]


def derive(
    log: bytes,
    *,
    batch_topics: frozenset[bytes] = frozenset(),
    with_times: bool = False,
    with_index: bool = True,
) -> tuple[dict[bytes, Any], bytearray, int, int]:
    return derive_rows(log, 0, len(log), 0, DELAYS, batch_topics, with_times, with_index)


def tags_code(message: MessageDraft) -> int:
    queues, *_ = derive(log_of([message]))
    code: int = struct.unpack_from(">q", queues[message.topic][message.queue_id][0][2], 12)[0]
    return code


def index_rows(message: MessageDraft) -> list[tuple[int, int, int]]:
    rows = derive(log_of([message]))[1]
    return list(struct.iter_unpack(">iqq", rows))


def test_a_row_names_the_record_and_its_tag() -> None:
    log = log_of([MESSAGE._replace(properties=b"TAGS\x01TagA\x02")])
    queues, _, count, store_timestamp_ms = derive(log)
    row = struct.pack(">qiq", 0, len(log), 2598919)
    assert queues == {b"TopicTest": {1: [[0, 1, row, len(log), STORE_TIMESTAMP_MS]]}}
    assert (count, store_timestamp_ms) == (1, STORE_TIMESTAMP_MS)


def test_a_row_with_its_time_is_eight_bytes_longer() -> None:
    log = log_of([MESSAGE])
    queues, *_ = derive(log, with_times=True)
    assert queues[b"TopicTest"][1][0][2] == struct.pack(">qiqq", 0, len(log), 0, STORE_TIMESTAMP_MS)


def test_consecutive_offsets_share_a_run_and_a_jump_starts_another() -> None:
    other = MESSAGE._replace(queue_id=2)
    log = log_of([MESSAGE, other, MESSAGE, MESSAGE], queue_offsets=[5, 9, 6, 8])
    queues, _, count, _ = derive(log)
    places = record_positions(log)
    ends = [position + size for position, size in places]
    runs = queues[b"TopicTest"][1]
    assert [run[:2] + run[3:4] for run in runs] == [[5, 2, ends[2]], [8, 1, ends[3]]]
    offsets = [row[0] for row in struct.iter_unpack(">qiq", runs[0][2])]
    assert offsets == [places[0][0], places[2][0]]
    assert queues[b"TopicTest"][2][0][:2] == [9, 1]
    assert count == 4


@pytest.mark.parametrize(
    ("sys_flag", "has_row", "is_indexed"),
    [(0, True, True), (4, False, True), (8, True, True), (12, False, False)],
)
def test_half_messages_are_indexed_but_not_queued_and_rollbacks_neither(
    sys_flag: int, has_row: bool, is_indexed: bool
) -> None:
    message = MESSAGE._replace(sys_flag=sys_flag, properties=b"UNIQ_KEY\x01k\x02")
    queues, rows, count, _ = derive(log_of([message]))
    assert (bool(queues), len(rows), count) == (has_row, 20 * is_indexed, 1)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"", 0),
        (b"TAGS\x01TagA\x02", 2598919),
        (b"TAGS\x01TagA", 2598919),
        (b"TAGS\x01TagB\x02TAGS\x01TagA\x02", 2598919),
        (b"TAGS\x01TagA\x02TAGS\x01\x02", 2598919),
        (b"\x01TAGS\x01TagA\x02", 0),
        (b"TAGS\x02TagA", 0),
        (b"xTAGS\x01TagA\x02", 0),
        (b"TAGS\x01polygenelubricants\x02", -(2**31)),
        ("TAGS\x01订单\x02".encode(), 1129459),
        (b"TAGS\x01a\x01b\x02", (97 * 31 + 1) * 31 + 98),
        (b"DELAY\x012\x02TAGS\x01TagA\x02", 2598919),
    ],
)
def test_the_tags_code_is_the_hash_of_the_last_tags_pair(properties: bytes, code: int) -> None:
    assert tags_code(MESSAGE._replace(properties=properties)) == code


@pytest.mark.parametrize(
    ("level", "code"),
    [
        (b"1", STORE_TIMESTAMP_MS + 1000),
        (b"+2", STORE_TIMESTAMP_MS + 5000),
        (b"002", STORE_TIMESTAMP_MS + 5000),
        (b"99", STORE_TIMESTAMP_MS + 5000),
        (b"0", 2598919),
        (b"-1", 2598919),
        (b"+", 2598919),
        (b"two", 2598919),
        (b"2147483648", 2598919),
    ],
)
def test_a_delayed_message_carries_its_deliver_time_for_a_tags_code(
    level: bytes, code: int
) -> None:
    properties = b"DELAY\x01" + level + b"\x02TAGS\x01TagA\x02"
    message = MESSAGE._replace(topic=b"SCHEDULE_TOPIC_XXXX", properties=properties)
    assert tags_code(message) == code


def test_the_unique_key_comes_first_and_each_key_between_spaces_after_it() -> None:
    message = MESSAGE._replace(properties=b"KEYS\x01 a  b \x02UNIQ_KEY\x01u\x02")
    # "TopicTest#" hashes to 1148604930 in Java.
    hashes = [1148604930 * 31 + ord(key) for key in "uab"]
    wrapped = [abs((value + 2**31) % 2**32 - 2**31) for value in hashes]
    assert index_rows(message) == [(value, 0, STORE_TIMESTAMP_MS) for value in wrapped]


def test_a_key_whose_hash_has_no_absolute_value_is_filed_under_zero() -> None:
    key = key_of_minimum(b"t#")
    assert java_hash(b"t#" + key) == -(2**31)
    message = MESSAGE._replace(topic=b"t", properties=b"UNIQ_KEY\x01%s\x02" % key)
    assert index_rows(message) == [(0, 0, STORE_TIMESTAMP_MS)]


def key_of_minimum(prefix: bytes) -> bytes:
    """ASCII text that brings Java's hash of ``prefix`` and it to -2^31."""
    seed = 0
    for byte in prefix:
        seed = seed * 31 + byte
    letters = 9
    rest = (2**31 - seed * 31**letters) % 2**32
    while not 33 * (31**letters - 1) // 30 <= rest <= 120 * (31**letters - 1) // 30:
        rest += 2**32
    text = b""
    for place in range(letters - 1, -1, -1):
        below = 33 * (31**place - 1) // 30
        byte = min((rest - below) // 31**place, 126)
        text += bytes((byte,))
        rest -= byte * 31**place
    assert rest == 0
    return text


def test_keys_are_not_looked_for_when_the_index_is_off() -> None:
    log = log_of([MESSAGE._replace(properties=b"UNIQ_KEY\x01u\x02")])
    assert derive(log, with_index=False)[1] == b""


@pytest.mark.parametrize(
    ("properties", "base", "count"),
    [
        (b"INNER_NUM\x013\x02INNER_BASE\x0140\x02", 40, 3),
        (b"INNER_NUM\x013\x02", 7, 1),
        (b"INNER_BASE\x0140\x02", 7, 1),
        (b"INNER_NUM\x0132768\x02INNER_BASE\x0140\x02", 7, 1),
        (b"", 7, 1),
    ],
)
def test_a_batch_topic_gets_rows_with_base_and_count(
    properties: bytes, base: int, count: int
) -> None:
    log = log_of([MESSAGE._replace(properties=properties)], queue_offsets=[7])
    queues, *_ = derive(log, batch_topics=frozenset({b"TopicTest"}))
    row = struct.pack(">qiqqqhii", 0, len(log), 0, STORE_TIMESTAMP_MS, base, count, -1, 0)
    assert queues[b"TopicTest"][1] == [[base, count, row, len(log), STORE_TIMESTAMP_MS]]


def test_batches_that_follow_by_base_and_count_share_a_run() -> None:
    first = MESSAGE._replace(properties=b"INNER_NUM\x013\x02INNER_BASE\x0140\x02")
    second = MESSAGE._replace(properties=b"INNER_NUM\x012\x02INNER_BASE\x0143\x02")
    log = log_of([first, second], queue_offsets=[40, 43])
    queues, *_ = derive(log, batch_topics=frozenset({b"TopicTest"}))
    (run,) = queues[b"TopicTest"][1]
    assert (run[0], run[1], len(run[2])) == (40, 5, 92)


@pytest.mark.parametrize(
    ("position", "new"),
    [(0, b"\x7f"), (3, b"\x5a"), (4, b"\x00"), (84, b"\xff"), (86, b"\xff"), (93, b"\xff")],
)
def test_bytes_that_are_no_records_are_refused(position: int, new: bytes) -> None:
    log = bytearray(log_of([MESSAGE]))
    log[position : position + 1] = new
    with pytest.raises(ValueError, match=r"record (starts )?at byte 0|no record starts at byte 0"):
        derive(bytes(log))
