"""The record's layout: one statement for Python, one for C, and both are RocketMQ's."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import contrail.kernels
from contrail.kernels import record_layout
from contrail.kernels.record_layout import (
    REASON_BAD_MAGIC,
    REASON_BAD_SIZE,
    REASON_BLANK,
    REASON_CUT_SHORT,
    REASON_EMPTY,
    REASON_END,
)
from contrail.model.record import decode_record, encode_blank
from contrail.store.state import row_layout
from tests.unit.kernels.material import (
    IPV4,
    IPV6,
    STORE_TIMESTAMP_MS,
    hosts,
    i32,
    i64,
    pure_twin,
    topics,
)

LAYOUTS = [record_layout, pure_twin("record_layout")]


def numbers_in_c(name: str) -> dict[str, int]:
    """The numbers that a declaration file gives to compiled kernels."""
    text = Path(contrail.kernels.__path__[0], f"{name}.pxd").read_text("utf-8")
    found = re.findall(r"^    ([A-Z][A-Z0-9_]*) = (\S+)$", text, re.MULTILINE)
    return {constant: int(value, 0) for constant, value in found}


def numbers_in_python(module: ModuleType) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if _is_constant(name, value)}


def _is_constant(name: str, value: object) -> bool:
    return name.isupper() and not name.startswith("_") and isinstance(value, int)


def test_compiled_kernels_have_the_numbers_of_the_interpreted_ones() -> None:
    assert numbers_in_c("bare_layout") == numbers_in_python(record_layout)


def test_every_function_of_the_layout_is_there_for_compiled_kernels() -> None:
    for name in ("bytes", "layout"):
        folder = Path(contrail.kernels.__path__[0])
        python = "raw_bytes.py" if name == "bytes" else "record_layout.py"
        defined = re.findall(r"^def (\w+)\(", (folder / python).read_text("utf-8"), re.MULTILINE)
        text = (folder / f"bare_{name}.pxd").read_text("utf-8")
        declared = re.findall(r"^cdef inline [\w ]+?\*? ?(\w+)\(", text, re.MULTILINE)
        assert sorted(defined) == sorted(declared)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    hosts,
    hosts,
    topics,
    i32,
    i64,
    i64,
    st.sampled_from([0, 4, 8, 12, 0x30]) | i32,
    st.binary(max_size=40),
)
def test_the_decoder_reads_the_fields_that_the_one_writer_puts(
    layout: ModuleType,
    born_host: bytes,
    store_host: bytes,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    prepared_offset: int,
    sys_flag: int,
    body: bytes,
) -> None:
    is_long = len(topic) > layout.TOPIC_BYTES_MAX
    without = layout.bytes_without(len(born_host), len(store_host), len(topic))
    record = bytearray(without + len(body))
    body_at = layout.put_header(
        record,
        0,
        len(record),
        layout.MAGIC_V2 if is_long else layout.MAGIC_V1,
        0,
        queue_id,
        7,
        queue_offset,
        4711,
        sys_flag,
        -1,
        born_host,
        STORE_TIMESTAMP_MS,
        store_host,
        3,
        prepared_offset,
        len(body),
    )
    rest = body + len(topic).to_bytes(2 if is_long else 1, "big") + topic + b"\0\0"
    record[body_at:] = rest
    assert layout.record_reason(record, 0, len(record)) == REASON_END
    assert layout.body_at(record, 0) == body_at
    assert layout.body_end(record, 0) == body_at + len(body)
    assert layout.topic_at(record, 0) == len(record) - 2 - len(topic)
    assert layout.topic_end(record, 0, len(record), topic) == len(record) - 2
    assert layout.properties_at(record, 0, len(record)) == len(record)
    assert layout.store_time(record, 0) == STORE_TIMESTAMP_MS
    assert layout.is_placed(record, len(record), 0, len(record), 4711, queue_id, queue_offset)
    read = decode_record(bytes(record), check_body_crc=False)
    assert (read.queue_id, read.queue_offset, read.physical_offset) == (
        queue_id,
        queue_offset,
        4711,
    )
    assert (read.flag, read.reconsume_times, read.born_timestamp_ms) == (7, 3, -1)
    assert (read.born_host, read.store_host, read.body) == (born_host, store_host, body)
    assert read.prepared_transaction_offset == prepared_offset
    assert read.sys_flag & ~0x30 == sys_flag & ~0x30


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", REASON_CUT_SHORT),
        (bytes(7), REASON_CUT_SHORT),
        (bytes(8), REASON_EMPTY),
        (b"\0\0\0\x01" + bytes(4), REASON_BAD_MAGIC),
        (encode_blank(8), REASON_BLANK),
        (b"\0\0\0\x07" + encode_blank(8)[4:], REASON_BAD_SIZE),
        (b"\0\0\0\x5a\xda\xa3\x20\xa7" + bytes(83), REASON_BAD_SIZE),
        (b"\0\0\0\x5b\xda\xa3\x20\xab" + bytes(83), REASON_BAD_SIZE),
        (b"\0\0\0\x5b\xda\xa3\x20\xa7" + bytes(83), REASON_END),
        (b"\0\0\0\x5b\xda\xa3\x20\xa7" + bytes(82), REASON_CUT_SHORT),
    ],
)
def test_a_reason_says_why_bytes_are_no_record(
    layout: ModuleType, data: bytes, reason: int
) -> None:
    assert layout.record_reason(data, 0, len(data)) == reason


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_prepared_and_rolled_back_messages_take_no_queue_offset(layout: ModuleType) -> None:
    taking = [kind for kind in (0, 4, 8, 12) if layout.takes_queue_offset(kind)]
    assert taking == [layout.TRANSACTION_NONE, layout.TRANSACTION_COMMIT]


@pytest.mark.parametrize(
    ("java_hash", "code", "key_hash"),
    [
        (0, 0, 0),
        (0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF),
        (0x80000000, -0x80000000, 0),
        (0x80000001, -0x7FFFFFFF, 0x7FFFFFFF),
        (0xFFFFFFFF, -1, 1),
    ],
)
def test_hashes_have_the_signs_that_java_gives_them(
    java_hash: int, code: int, key_hash: int
) -> None:
    assert record_layout.tags_code(java_hash) == code
    assert record_layout.key_hash(java_hash) == key_hash


def test_python_takes_rows_apart_where_kernels_put_them_together() -> None:
    row = bytearray(record_layout.BATCH_ROW_BYTES)
    record_layout.put_queue_row(row, 0, 1 << 40, 300, -5)
    assert row_layout.QUEUE_ROW.unpack_from(row) == (1 << 40, 300, -5)
    assert row_layout.ROW_TARGET.unpack_from(row) == (1 << 40, 300)
    row[record_layout.ROW_BASE_AT + 7] = 9
    row[record_layout.ROW_COUNT_AT + 1] = 2
    assert row_layout.ROW_BATCH.unpack_from(row, record_layout.ROW_BASE_AT) == (9, 2)
    assert row_layout.base_offset(row) == 9
    assert row_layout.BATCH_ROW.unpack(row) == (1 << 40, 300, -5, 0, 9, 2, 0, 0)
    index_row = bytearray(record_layout.INDEX_ROW_BYTES)
    record_layout.put_index_row(index_row, 0, 7, 1 << 40, STORE_TIMESTAMP_MS)
    assert row_layout.INDEX_ROW.unpack(index_row) == (7, 1 << 40, STORE_TIMESTAMP_MS)
    assert row_layout.QUEUE_ROW.size == record_layout.QUEUE_ROW_BYTES
    assert row_layout.TIMED_ROW.size == record_layout.TIMED_ROW_BYTES


def test_hosts_are_as_long_as_their_family_says() -> None:
    assert (len(IPV4), len(IPV6)) == (record_layout.IPV4_HOST_BYTES, record_layout.IPV6_HOST_BYTES)
    assert [record_layout.is_host(size) for size in (7, 8, 20, 21)] == [False, True, True, False]
    assert [record_layout.hosts_extra(flags) for flags in (0, 0x10, 0x20, 0x30)] == [0, 12, 12, 24]
