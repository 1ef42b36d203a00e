"""Row derivation: compiled equals pure on any bytes, and both equal a model made with struct."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.model.message import MessageDraft
from contrail.model.replaced_record import LostPlace, encode_replacement
from tests.unit.kernels.material import (
    IPV4,
    IPV6,
    damaged_logs,
    drafts,
    i64,
    java_text,
    log_of,
    outcome,
    record_positions,
    twins,
)

KERNEL, PURE = twins("derive_rows")

delay_tables = st.sampled_from([[], [0], [0, 1000, 5000], [0, *range(1000, 19000, 1000)]])
batch_topics = st.sampled_from([frozenset(), frozenset({b"T", b"TopicTest"})])


@dataclass
class Record:
    """One record, decoded the slow and obvious way."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    transaction: int
    store_timestamp_ms: int
    properties: dict[str, str]


def decode(log: bytes, position: int, size: int, base_offset: int) -> Record:
    magic, _, queue_id, _, queue_offset, _, sys_flag = struct.unpack_from(
        ">iiiiqqi", log, position + 4
    )
    at = position + 48 + (20 if sys_flag & 0x10 else 8)
    (store_timestamp_ms,) = struct.unpack_from(">q", log, at)
    at += 8 + (20 if sys_flag & 0x20 else 8) + 12
    (body_bytes,) = struct.unpack_from(">i", log, at)
    at += 4 + body_bytes
    length = ">b" if magic == struct.unpack(">i", b"\xda\xa3\x20\xa7")[0] else ">h"
    (topic_bytes,) = struct.unpack_from(length, log, at)
    at += struct.calcsize(length)
    topic = log[at : at + topic_bytes]
    at += topic_bytes + 2
    pairs = decode_properties(java_text(log[at : position + size]))
    return Record(
        topic,
        queue_id,
        queue_offset,
        base_offset + position,
        size,
        sys_flag & 0xC,
        store_timestamp_ms,
        pairs,
    )


def decode_properties(text: str) -> dict[str, str]:
    found = {}
    for pair in text.split("\x02"):
        name, separator, value = pair.partition("\x01")
        if name and separator and value:
            found[name] = value
    return found


def hash_of(text: str) -> int:
    encoded = text.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = 31 * value + unit
    return (value + 2**31) % 2**32 - 2**31


def number(text: str | None, number_max: int) -> int:
    """A decimal number as Java would parse it, -1 if it is no number."""
    digits = (text or "").removeprefix("+")
    if not digits or not digits.isascii() or not digits.isdigit() or int(digits) > number_max:
        return -1
    return int(digits)


def tags_code(record: Record, delay_table: list[int]) -> int:
    level = number(record.properties.get("DELAY"), 2**31 - 1)
    level = min(level, len(delay_table) - 1)
    if record.topic == b"SCHEDULE_TOPIC_XXXX" and level > 0:
        return (record.store_timestamp_ms + delay_table[level] + 2**63) % 2**64 - 2**63
    return hash_of(record.properties.get("TAGS", ""))


def model(
    log: bytes,
    base_offset: int,
    delay_table: list[int],
    batches: frozenset[bytes],
    with_times: bool,
    with_index: bool,
) -> tuple[Any, bytes, int, int]:
    queues: dict[bytes, dict[int, list[list[Any]]]] = {}
    index_rows = b""
    records = [decode(log, at, size, base_offset) for at, size in record_positions(log)]
    for record in records:
        if record.transaction in (0, 8):
            add_row(queues, record, tags_code(record, delay_table), batches, with_times)
        if with_index and record.transaction != 12:
            index_rows += index_rows_of(record)
    return queues, index_rows, len(records), records[-1].store_timestamp_ms if records else 0


def add_row(
    queues: dict[bytes, dict[int, list[list[Any]]]],
    record: Record,
    code: int,
    batches: frozenset[bytes],
    with_times: bool,
) -> None:
    first, count = record.queue_offset, 1
    row = struct.pack(">qiq", record.physical_offset, record.size, code)
    if record.topic in batches:
        base = number(record.properties.get("INNER_BASE"), 2**59)
        inner_count = number(record.properties.get("INNER_NUM"), 32767)
        if base >= 0 and inner_count > 0:
            first, count = base, inner_count
        row += struct.pack(">qqhii", record.store_timestamp_ms, first, count, -1, 0)
    elif with_times:
        row += struct.pack(">q", record.store_timestamp_ms)
    runs = queues.setdefault(record.topic, {}).setdefault(record.queue_id, [])
    end = record.physical_offset + record.size
    if runs and runs[-1][0] >= 0 and runs[-1][0] + runs[-1][1] == first:
        last = runs[-1]
        runs[-1] = [last[0], last[1] + count, last[2] + row, end, record.store_timestamp_ms]
    else:
        runs.append([first, count, row, end, record.store_timestamp_ms])


def index_rows_of(record: Record) -> bytes:
    keys = [record.properties[name] for name in ("UNIQ_KEY",) if name in record.properties]
    keys += [key for key in record.properties.get("KEYS", "").split(" ") if key]
    rows = b""
    for key in keys:
        key_hash = abs(hash_of(java_text(record.topic) + "#" + key))
        key_hash = 0 if key_hash == 2**31 else key_hash
        rows += struct.pack(">iqq", key_hash, record.physical_offset, record.store_timestamp_ms)
    return rows


few_queues = drafts.map(lambda draft: draft._replace(queue_id=draft.queue_id % 2, topic=b"T"))


@given(
    st.lists(drafts | few_queues, max_size=6),
    st.lists(st.integers(0, 4) | i64, min_size=6, max_size=6) | st.just([0, 1, 2, 3, 4, 5]),
    st.sampled_from([0, 4096, 2**50]),
    i64 | st.just(1_760_000_000_123),
    st.sampled_from([IPV4, IPV6]),
    st.tuples(delay_tables, batch_topics, st.booleans(), st.booleans()),
)
def test_the_rows_of_a_log_are_those_of_the_model(
    messages: list[MessageDraft],
    queue_offsets: list[int],
    base_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
    choices: tuple[list[int], frozenset[bytes], bool, bool],
) -> None:
    log = log_of(
        messages,
        queue_offsets=queue_offsets[: len(messages)],
        base_offset=base_offset,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
    )
    expected = model(log, base_offset, *choices)
    arguments = (log, 0, len(log), base_offset, *choices)
    assert KERNEL.derive_rows(*arguments) == expected
    assert PURE.derive_rows(*arguments) == expected


replaced_places = st.builds(
    LostPlace,
    st.sampled_from([b"T", b"TopicTest", b""]) | st.binary(max_size=40),
    st.integers(0, 3),
    st.integers(0, 5) | i64,
    st.integers(0, 2**16 - 1),
    i64,
)


@given(
    st.lists(st.tuples(replaced_places, st.integers(91, 260), st.binary(max_size=20)), max_size=4),
    st.tuples(delay_tables, batch_topics, st.booleans(), st.booleans()),
)
def test_compiled_and_pure_agree_on_records_that_replace_damaged_ones(
    lost: list[tuple[LostPlace, int, bytes]],
    choices: tuple[list[int], frozenset[bytes], bool, bool],
) -> None:
    log = b""
    for place, record_bytes, patch in lost:
        keys = {"KEYS": "a b", "UNIQ_KEY": "ID"}
        record = bytearray(
            encode_replacement(record_bytes, physical_offset=0, place=place, properties=keys)
        )
        # Both read any body alike.
        body_bytes = int.from_bytes(record[84:88], "big")
        record[88 : 88 + min(len(patch), body_bytes)] = patch[:body_bytes]
        log += record
    arguments = (log, 0, len(log), 4096, *choices)
    assert outcome(KERNEL.derive_rows, *arguments) == outcome(PURE.derive_rows, *arguments)


@pytest.mark.proves("store.reader.kernels")
@given(
    damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0)),
    st.tuples(delay_tables, batch_topics, st.booleans(), st.booleans()),
    st.data(),
)
def test_compiled_and_pure_agree_on_any_bytes_and_refuse_with_value_error_only(
    damaged: tuple[bytes, int],
    choices: tuple[list[int], frozenset[bytes], bool, bool],
    data: st.DataObject,
) -> None:
    log, base_offset = damaged
    start = data.draw(st.just(0) | st.integers(-2, len(log) + 2))
    end = data.draw(st.just(len(log)) | st.integers(-2, len(log) + 2))
    arguments = (log, start, end, base_offset, *choices)
    found = outcome(KERNEL.derive_rows, *arguments)
    assert found == outcome(PURE.derive_rows, *arguments)
    assert found[0] in ("returned", "ValueError")
