"""Record scanning: compiled equals pure on any bytes, and no damage goes unnoticed."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.kernels.record_layout import REASON_BLANK, REASON_CUT_SHORT, REASON_EMPTY, REASON_END
from contrail.model.message import MessageDraft
from contrail.model.record import decode_record
from tests.unit.kernels.material import (
    damaged_logs,
    drafts,
    log_of,
    outcome,
    record_positions,
    twins,
)

KERNEL, PURE = twins("record_scan")

texts = st.sampled_from([b"", b"KEYS", b"TIMER_OUT_MS"])
any_logs = damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0))
crc_choices = st.tuples(st.booleans(), st.integers(0, 2))


@pytest.mark.proves("store.reader.kernels")
@given(any_logs, crc_choices, st.data())
def test_compiled_and_pure_stop_at_the_same_byte_for_the_same_reason(
    damaged: tuple[bytes, int], crc_choice: tuple[bool, int], data: st.DataObject
) -> None:
    log, base_offset = damaged
    end = data.draw(st.just(len(log)) | st.integers(-2, len(log) + 2))
    start = data.draw(st.just(0) | st.integers(-2, len(log) + 2))
    arguments = (log, start, end, base_offset, *crc_choice)
    assert outcome(KERNEL.scan_records, *arguments) == outcome(PURE.scan_records, *arguments)
    assert outcome(KERNEL.check_record, *arguments) == outcome(PURE.check_record, *arguments)
    wanted = (log, start, end, base_offset, [b"T", b"%RETRY%g"], data.draw(texts))
    assert outcome(KERNEL.marked_records, *wanted) == outcome(PURE.marked_records, *wanted)


@given(st.lists(drafts, max_size=6), texts)
def test_the_records_of_kinds_are_picked_and_no_others(
    messages: list[MessageDraft], text: bytes
) -> None:
    log = log_of(messages)
    places = [at for at, _ in record_positions(log)]
    expected = [
        at
        for at in places
        for record in [decode_record(log, at)]
        if record.prepared_transaction_offset
        or record.sys_flag & 0xC == 0x8
        or record.topic == "T"
        or (text and text in record.raw_properties)
    ]
    found = KERNEL.marked_records(log, 0, len(log), 0, [b"T"], text)
    assert found == (len(log), REASON_END, expected)


@given(any_logs, crc_choices)
def test_a_scan_is_the_records_checked_one_by_one(
    damaged: tuple[bytes, int], crc_choice: tuple[bool, int]
) -> None:
    log, base_offset = damaged
    position = 0
    count = 0
    last = -1
    reason = REASON_END
    while position < len(log):
        reason, size = KERNEL.check_record(log, position, len(log), base_offset, *crc_choice)
        if reason != REASON_END:
            break
        last = position
        count += 1
        position += size
    found = KERNEL.scan_records(log, 0, len(log), base_offset, *crc_choice)
    assert found[:4] == (position, reason, count, last)


@given(st.lists(drafts, min_size=1, max_size=3), st.data())
def test_a_log_cut_anywhere_ends_at_the_last_whole_record(
    messages: list[MessageDraft], data: st.DataObject
) -> None:
    log = log_of(messages)
    cut = data.draw(st.integers(0, len(log)))
    whole_end = max(
        (at + size for at, size in record_positions(log) if at + size <= cut), default=0
    )
    position, reason, *_ = KERNEL.scan_records(log, 0, cut, 0, True, 0)
    assert position == whole_end
    assert reason == (REASON_END if cut == whole_end else REASON_CUT_SHORT)


@given(st.lists(drafts, min_size=1, max_size=2), st.data())
def test_one_flipped_bit_anywhere_in_a_record_with_a_crc_is_found(
    messages: list[MessageDraft], data: st.DataObject
) -> None:
    log = bytearray(log_of(messages, record_crc=True))
    bit = data.draw(st.integers(0, len(log) * 8 - 1))
    log[bit // 8] ^= 1 << bit % 8
    start = max(
        at for at, _ in record_positions(log_of(messages, record_crc=True)) if at <= bit // 8
    )
    position, reason, *_ = KERNEL.scan_records(log, 0, len(log), 0, True, 2)
    assert (position, reason != REASON_END) == (start, True)


@given(st.lists(drafts, max_size=2), st.sampled_from([bytes, bytearray, memoryview, "mmap"]))
def test_every_kind_of_buffer_is_scanned_alike(messages: list[MessageDraft], kind: object) -> None:
    ends = {REASON_EMPTY: bytes(8), REASON_BLANK: b"\x00\x00\x00\x08\xcb\xd4\x31\x94"}
    for reason, ending in ends.items():
        log = log_of(messages) + ending
        buffer: object = kind(log) if callable(kind) else mapped(log)
        found = KERNEL.scan_records(buffer, 0, len(log), 0, True, 0)
        assert found[:3] == (len(log) - 8, reason, len(messages))


def mapped(log: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(log))
    memory[:] = log
    return memory


@given(any_logs, st.integers(0, 2), st.lists(st.integers(-5, 400), max_size=6))
def test_whole_records_are_counted_up_to_the_first_that_is_not(
    damaged: tuple[bytes, int], record_crc: int, numbers: list[int]
) -> None:
    log, base_offset = damaged
    position, places = 0, []
    while position < len(log):
        reason, size = KERNEL.check_record(log, position, len(log), base_offset, True, record_crc)
        if reason != REASON_END:
            break
        places += [position, size]
        position += size
    assert KERNEL.count_whole(log, places, base_offset, record_crc) == len(places) // 2
    for flat in ([*places, position, 91], places + numbers, numbers):
        arguments = (log, flat, base_offset, record_crc)
        assert outcome(KERNEL.count_whole, *arguments) == outcome(PURE.count_whole, *arguments)
