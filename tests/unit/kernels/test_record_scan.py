"""Each reason a scan stops for, on records made by hand."""

from __future__ import annotations

import pytest

from contrail.kernels.record_layout import (
    REASON_BAD_BODY_CRC,
    REASON_BAD_MAGIC,
    REASON_BAD_PHYSICAL_OFFSET,
    REASON_BAD_RECORD_CRC,
    REASON_BAD_SIZE,
    REASON_BLANK,
    REASON_CUT_SHORT,
    REASON_EMPTY,
    REASON_END,
)
from contrail.kernels.record_scan import check_record, scan_records
from contrail.model.message import MessageDraft
from tests.unit.kernels.material import IPV6, STORE_TIMESTAMP_MS, log_of

MESSAGE = MessageDraft(topic=b"TopicTest", queue_id=0, body=b"hello", properties=b"TAGS\x01A\x02")
LOG = log_of([MESSAGE, MESSAGE])
SIZE = len(LOG) // 2
BLANK = b"\x00\x00\x02\x00\xcb\xd4\x31\x94"


def scan(
    log: bytes, *, base_offset: int = 0, check_crc: bool = True, record_crc: int = 0
) -> tuple[int, int, int, int, int]:
    return scan_records(log, 0, len(log), base_offset, check_crc, record_crc)


def changed(log: bytes, position: int, new: bytes) -> bytes:
    return log[:position] + new + log[position + len(new) :]


def test_a_whole_log_is_walked_to_its_end() -> None:
    assert scan(LOG) == (len(LOG), REASON_END, 2, SIZE, STORE_TIMESTAMP_MS)


def test_nothing_is_found_in_nothing() -> None:
    assert scan(b"") == (0, REASON_END, 0, -1, 0)


def test_the_store_time_is_found_behind_an_ipv6_host() -> None:
    log = log_of([MESSAGE._replace(born_host=IPV6)], store_host=IPV6)
    assert scan(log) == (len(log), REASON_END, 1, 0, STORE_TIMESTAMP_MS)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (BLANK, REASON_BLANK),
        (b"\x00\x00\x00\x07\xcb\xd4\x31\x94", REASON_BAD_SIZE),
        (bytes(8), REASON_EMPTY),
        (bytes(7), REASON_CUT_SHORT),
        (b"\x00\x00\x00\x01" + bytes(4), REASON_BAD_MAGIC),
        (b"\x00\x00\x00\x5a\xda\xa3\x20\xa7" + bytes(200), REASON_BAD_SIZE),
        (b"\x00\x00\x00\x5b\xda\xa3\x20\xab" + bytes(200), REASON_BAD_SIZE),
        (b"\xff\xff\xff\xff\xda\xa3\x20\xa7" + bytes(200), REASON_BAD_SIZE),
        (LOG[:SIZE], REASON_BAD_PHYSICAL_OFFSET),
        (LOG[: SIZE - 1], REASON_CUT_SHORT),
    ],
)
def test_the_scan_stops_before_what_is_no_record(tail: bytes, reason: int) -> None:
    assert scan(LOG + tail) == (len(LOG), reason, 2, SIZE, STORE_TIMESTAMP_MS)


@pytest.mark.parametrize(
    ("position", "new", "reason"),
    [
        (4, b"\xda\xa3\x20\xab", REASON_BAD_SIZE),
        (8, b"\x00", REASON_BAD_BODY_CRC),
        (35, b"\x01", REASON_BAD_PHYSICAL_OFFSET),
        (39, b"\x10", REASON_BAD_SIZE),
        (84, b"\x80\x00\x00\x00", REASON_BAD_SIZE),
        (87, b"\x06", REASON_BAD_SIZE),
        (88, b"j", REASON_BAD_BODY_CRC),
        (93, b"\x0a", REASON_BAD_SIZE),
        (93, b"\x89", REASON_BAD_SIZE),
        (103, b"\x80", REASON_BAD_SIZE),
        (104, b"\x08", REASON_BAD_SIZE),
    ],
)
def test_a_damaged_field_is_named(position: int, new: bytes, reason: int) -> None:
    assert scan(changed(LOG, position, new)) == (0, reason, 0, -1, 0)
    assert check_record(changed(LOG, position, new), 0, len(LOG), 0, True, 0) == (reason, SIZE)


def test_the_body_is_not_looked_at_unless_asked() -> None:
    assert scan(changed(LOG, 88, b"j"), check_crc=False)[1:3] == (REASON_END, 2)


def test_a_topic_length_of_a_version_two_record_is_signed() -> None:
    # 0x8000 bytes of topic would fit this record; Java reads the length as -32768.
    size = 88 + 2 + 0x8000 + 2
    header = size.to_bytes(4, "big") + b"\xda\xa3\x20\xab" + bytes(80)
    log = header + b"\x80\x00" + b"t" * 0x8000 + b"\x00\x00"
    assert len(log) == size
    assert scan(log)[1] == REASON_BAD_SIZE


def test_records_are_expected_where_the_base_puts_them() -> None:
    log = log_of([MESSAGE], base_offset=4096)
    assert scan(log, base_offset=4096)[1] == REASON_END
    assert scan(log)[1] == REASON_BAD_PHYSICAL_OFFSET
    assert scan_records(b"junk" + log, 4, 4 + len(log), 4092, True, 0)[:3] == (4 + len(log), 0, 1)


def test_a_record_crc_is_verified_ignored_or_required() -> None:
    log = log_of([MESSAGE], record_crc=True)
    damaged = changed(log, 16, b"\x01")
    assert [scan(log, record_crc=mode)[1] for mode in (0, 1, 2)] == [0, 0, 0]
    bad = REASON_BAD_RECORD_CRC
    assert [scan(damaged, record_crc=mode)[1] for mode in (0, 1, 2)] == [0, bad, bad]
    assert [scan(LOG, record_crc=mode)[1] for mode in (0, 1, 2)] == [0, 0, bad]


def test_a_record_crc_with_a_character_for_a_digit_is_bad() -> None:
    log = log_of([MESSAGE], record_crc=True)
    assert scan(changed(log, len(log) - 5, b"x"), record_crc=1)[1] == REASON_BAD_RECORD_CRC


def test_a_crc_name_glued_to_the_value_before_it_is_no_record_crc() -> None:
    glued = MESSAGE._replace(properties=b"a\x01b__CRC32#\x010123456789\x02")
    assert scan(log_of([glued]), record_crc=1)[1] == REASON_END
    assert scan(log_of([glued]), record_crc=2)[1] == REASON_BAD_RECORD_CRC


@pytest.mark.proves("store.log.checksums")
def test_a_client_cannot_make_a_stored_record_look_damaged() -> None:
    forged = MESSAGE._replace(properties=b"a\x01b\x02__CRC32#\x010123456789\x02")
    for record_crc in (False, True):
        log = log_of([forged], record_crc=record_crc)
        assert b"0123456789" not in log
        assert scan(log, record_crc=1)[1] == REASON_END


def test_one_record_is_checked_and_measured() -> None:
    assert check_record(LOG, SIZE, len(LOG), 0, True, 0) == (REASON_END, SIZE)
    assert check_record(LOG + BLANK, len(LOG), len(LOG) + 8, 0, True, 0) == (REASON_BLANK, 0x200)
    assert check_record(LOG, 0, SIZE - 1, 0, True, 0) == (REASON_CUT_SHORT, SIZE)
    assert check_record(LOG, len(LOG), len(LOG), 0, True, 0) == (REASON_CUT_SHORT, 0)


@pytest.mark.parametrize(("start", "end"), [(-1, 8), (0, len(LOG) + 1), (9, 8)])
def test_a_range_outside_the_buffer_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="outside the buffer"):
        scan_records(LOG, start, end, 0, True, 0)
    with pytest.raises(ValueError, match="outside the buffer"):
        check_record(LOG, start, end, 0, True, 0)
