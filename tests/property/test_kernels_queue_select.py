"""Row selection: compiled equals pure on any bytes, and both equal a model."""

from __future__ import annotations

import itertools
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.model.message import MessageDraft
from tests.unit.kernels.material import (
    damaged_logs,
    drafts,
    i32,
    i64,
    log_of,
    outcome,
    record_positions,
    twins,
)

KERNEL, PURE = twins("queue_select")

tag_codes = st.integers(-3, 3) | i32 | st.sampled_from([1024, 2048, -1024])
tag_sets = st.none() | st.frozensets(tag_codes, max_size=4)
rows = st.lists(
    st.tuples(i64, st.integers(1, 50) | i32, st.integers(-3, 3) | tag_codes | i64), max_size=12
)
limits = st.integers(-1, 15) | st.just(10**6)


def packed(entries: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack(">qiq", *entry) for entry in entries)


def select(
    entries: list[tuple[int, int, int]],
    count_max: int,
    bytes_max: int,
    codes: frozenset[int] | None,
) -> tuple[list[int], int, int]:
    selected: list[int] = []
    total_bytes = 0
    for index, (physical_offset, size, code) in enumerate(entries):
        if selected and len(selected) // 3 >= count_max:
            return selected, index, total_bytes
        if codes is not None and (code + 2**31) % 2**32 - 2**31 not in codes:
            continue
        if selected and total_bytes + size > bytes_max:
            return selected, index, total_bytes
        selected += [physical_offset, size, index]
        total_bytes += size
    return selected, len(entries), total_bytes


@given(rows, limits, st.integers(-1, 200), tag_sets, st.integers(0, 3), st.integers(0, 19))
def test_the_rows_selected_are_those_of_the_model(
    entries: list[tuple[int, int, int]],
    count_max: int,
    bytes_max: int,
    codes: frozenset[int] | None,
    skipped: int,
    part_of_a_row: int,
) -> None:
    skipped = min(skipped, len(entries))
    data = packed(entries) + bytes(part_of_a_row)
    found = KERNEL.select_rows(data, skipped * 20, len(data), count_max, bytes_max, codes)
    assert found == select(entries[skipped:], count_max, bytes_max, codes)


@pytest.mark.proves("store.reader.kernels")
@given(
    rows.map(packed) | st.binary(max_size=100),
    st.integers(-1, 300),
    st.integers(-1, 300) | st.none(),
    limits,
    st.integers(-1, 200),
    tag_sets,
)
def test_compiled_and_pure_select_alike_from_any_bytes(
    data: bytes,
    start: int,
    end: int | None,
    count_max: int,
    bytes_max: int,
    codes: frozenset[int] | None,
) -> None:
    last = len(data) if end is None else end
    arguments = (data, start, last, count_max, bytes_max, codes)
    assert outcome(KERNEL.select_rows, *arguments) == outcome(PURE.select_rows, *arguments)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 0, 7])), max_size=12),
    st.integers(50, 200),
)
def test_coalesced_ranges_hold_exactly_the_selected_bytes_and_cross_no_segment(
    steps: list[tuple[int, int]], segment_bytes: int
) -> None:
    selected: list[int] = []
    position = 0
    for index, (size, gap) in enumerate(steps):
        position += gap
        if position % segment_bytes + size > segment_bytes:
            position += segment_bytes - position % segment_bytes
        size = min(size, segment_bytes)
        selected += [position, size, index]
        position += size
    ranges = KERNEL.coalesce(selected, segment_bytes)
    assert ranges == PURE.coalesce(selected, segment_bytes)
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    wanted = [
        byte
        for at, size in zip(selected[::3], selected[1::3], strict=True)
        for byte in range(at, at + size)
    ]
    assert [byte for at, size in pairs for byte in range(at, at + size)] == wanted
    for at, size in pairs:
        assert at // segment_bytes == (at + size - 1) // segment_bytes
    for (at, size), (next_at, _) in itertools.pairwise(pairs):
        assert at + size < next_at or next_at % segment_bytes == 0


@given(st.lists(st.integers(-(2**62), 2**62), max_size=12), st.integers(-1, 2**40))
def test_compiled_and_pure_coalesce_alike(numbers: list[int], segment_bytes: int) -> None:
    selected = numbers[: len(numbers) // 3 * 3]
    assert outcome(KERNEL.coalesce, selected, segment_bytes) == outcome(
        PURE.coalesce, selected, segment_bytes
    )


@given(st.lists(drafts, min_size=1, max_size=4), st.data())
def test_the_first_record_that_is_not_the_named_one_is_found(
    messages: list[MessageDraft], data: st.DataObject
) -> None:
    messages = [message._replace(topic=b"T", queue_id=3) for message in messages]
    log = log_of(messages, base_offset=500)
    places = [number for pair in record_positions(log) for number in pair]
    queue_offsets = list(range(len(messages)))
    assert KERNEL.match_records(log, places, 500, 3, b"T", queue_offsets) == -1
    wrong = data.draw(st.integers(0, len(messages) - 1))
    position, size = places[2 * wrong], places[2 * wrong + 1]
    damaged = bytearray(log)
    named = [*range(8), *range(12, 16), *range(20, 36), size_of_front(log, position)]
    damaged[position + data.draw(st.sampled_from(named))] ^= data.draw(st.integers(1, 255))
    assert KERNEL.match_records(damaged, places, 500, 3, b"T", queue_offsets) == wrong
    assert size > 0


def size_of_front(log: bytes, position: int) -> int:
    """How far into the record the first byte of its topic is."""
    sys_flag = log[position + 39]
    body_at = 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    return body_at + int.from_bytes(log[position + body_at - 4 : position + body_at], "big") + 1


@given(
    damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0)),
    st.lists(st.integers(-5, 400) | i64, max_size=6),
    st.integers(0, 3),
    st.sampled_from([b"T", b"TopicTest", b""]),
    st.lists(st.integers(0, 2) | i64, max_size=3),
)
def test_compiled_and_pure_match_alike_on_any_bytes(
    damaged: tuple[bytes, int],
    places: list[int],
    queue_id: int,
    topic: bytes,
    queue_offsets: list[int],
) -> None:
    log, base_offset = damaged
    arguments = (log, places, base_offset, queue_id, topic, queue_offsets)
    found = outcome(KERNEL.match_records, *arguments)
    assert found == outcome(PURE.match_records, *arguments)
    assert found[0] in ("returned", "ValueError")


def rows_of(log: bytes, base_offset: int) -> bytes:
    return packed([(base_offset + at, size, 0) for at, size in record_positions(log)])


@given(
    damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0)),
    rows.map(packed) | st.binary(max_size=100),
    st.integers(-1, 45),
    st.tuples(st.integers(0, 400), st.integers(0, 1 << 62)),
    st.integers(-1, 40),
    st.integers(-1, 5000),
    i32 | st.integers(0, 3),
    st.binary(max_size=10),
    i64,
)
def test_compiled_and_pure_match_a_run_alike_on_any_bytes(
    damaged: tuple[bytes, int],
    data: bytes,
    first_row_at: int,
    window: tuple[int, int],
    count_max: int,
    bytes_max: int,
    queue_id: int,
    topic: bytes,
    queue_offset: int,
) -> None:
    log, base_offset = damaged
    limits = (count_max, bytes_max, base_offset, *window)
    arguments = (log, data, first_row_at, *limits, queue_id, topic, queue_offset)
    assert outcome(KERNEL.match_run, *arguments) == outcome(PURE.match_run, *arguments)
    assert outcome(KERNEL.gather_run, *arguments) == outcome(PURE.gather_run, *arguments)


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 4000), st.integers(0, 5))
def test_a_run_of_one_queue_is_one_stretch_up_to_the_limits(
    message_count: int, count_max: int, bytes_max: int, queue_offset: int
) -> None:
    messages = [MessageDraft(b"orders", 3, b"x" * (50 + n)) for n in range(message_count)]
    log = log_of(messages, queue_offsets=[queue_offset + n for n in range(message_count)])
    data = rows_of(log, 0)
    for match_run in (KERNEL.match_run, PURE.match_run):
        limits = (bytes_max, 0, 0, len(log))
        count, start, byte_count = match_run(
            log, data, 0, count_max, *limits, 3, b"orders", queue_offset
        )
        assert start == 0
        assert 1 <= count <= min(count_max, message_count)
        assert byte_count <= bytes_max or count == 1
        assert log[:byte_count].count(b"orders") == count
        # A row that leads elsewhere, or another queue, topic or offset: no run.
        assert match_run(log, data, 0, 1, *limits, 2, b"orders", queue_offset) == (0, 0, 0)
        assert match_run(log, data, 0, 1, *limits, 3, b"others", queue_offset) == (0, 0, 0)
        assert match_run(log, data, 0, 1, *limits, 3, b"orders", queue_offset + 1) == (0, 0, 0)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 2000), st.integers(0, 2000))
def test_a_run_begins_at_its_row_and_touches_nothing_outside_of_its_window(
    message_count: int, first: int, physical_start: int, physical_end: int
) -> None:
    messages = [MessageDraft(b"orders", 3, b"x" * (50 + n)) for n in range(message_count)]
    log = log_of(messages, queue_offsets=list(range(message_count)))
    data, places = rows_of(log, 0), record_positions(log)
    window = (physical_start, physical_end)
    is_inside = all(
        physical_start <= at and at + size <= physical_end for at, size in places[first:]
    )
    expected = (0, 0, 0)
    if is_inside and first < message_count:
        at = places[first][0]
        expected = (message_count - first, at, len(log) - at)
    for match_run in (KERNEL.match_run, PURE.match_run):
        found = match_run(log, data, first * 20, 40, 1 << 20, 0, *window, 3, b"orders", first)
        assert found == expected


@pytest.mark.proves("apache.peers.held-pulls")
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.integers(0, 3),
    st.integers(1, 12),
    st.integers(1, 4000),
)
def test_records_of_one_queue_are_gathered_from_between_others(
    queue_ids: list[int], first: int, count_max: int, bytes_max: int
) -> None:
    counts: Counter[int] = Counter()
    messages, queue_offsets = [], []
    for number, queue_id in enumerate(queue_ids):
        messages.append(MessageDraft(b"orders", queue_id, b"x" * (50 + number)))
        queue_offsets.append(counts[queue_id])
        counts[queue_id] += 1
    log = log_of(messages, queue_offsets=queue_offsets)
    places = [
        place
        for place, queue_id in zip(record_positions(log), queue_ids, strict=True)
        if queue_id == 1
    ]
    data = packed([(at, size, 0) for at, size in places])
    wanted, total = [], 0
    for at, size in places[first:][:count_max]:
        if wanted and total + size > bytes_max:
            break
        wanted.append((at, size))
        total += size
    expected = b"".join(log[at : at + size] for at, size in wanted)
    end = sum(wanted[-1]) if wanted else 0
    for gather_run in (KERNEL.gather_run, PURE.gather_run):
        limits = (count_max, bytes_max, 0, 0, len(log))
        found = gather_run(log, data, first * 20, *limits, 1, b"orders", first)
        assert found == ((len(wanted), end, expected) if wanted else None)
        # Records that no row names, or behind the window, are not handed out.
        assert gather_run(log, data, first * 20, *limits, 2, b"orders", first) is None
        assert gather_run(log, data, first * 20, *limits, 1, b"others", first) is None
        assert gather_run(log, data, first * 20, *limits, 1, b"orders", first + 1) is None
        if wanted:
            short = (count_max, bytes_max, 0, 0, end - 1)
            assert gather_run(log, data, first * 20, *short, 1, b"orders", first) is None
            late = (count_max, bytes_max, 0, wanted[0][0] + 1, len(log))
            assert gather_run(log, data, first * 20, *late, 1, b"orders", first) is None
