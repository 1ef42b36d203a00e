"""Selecting rows, merging ranges and matching records, by hand."""

from __future__ import annotations

import struct

import pytest

from contrail.kernels.queue_select import coalesce, match_records, select_rows
from contrail.model.message import MessageDraft
from tests.unit.kernels.material import log_of, record_positions

TAG_A = 2598919
TAG_B = 2598920
ROWS = b"".join(
    struct.pack(">qiq", 1000 + 100 * index, 100, TAG_A if index % 2 == 0 else TAG_B)
    for index in range(6)
)


def test_without_a_filter_rows_are_taken_up_to_the_count() -> None:
    assert select_rows(ROWS, 0, len(ROWS), 2, 10**6, None) == ([1000, 100, 0, 1100, 100, 1], 2, 200)


def test_rows_of_other_tags_are_walked_but_not_taken() -> None:
    found = select_rows(ROWS, 20, len(ROWS), 2, 10**6, frozenset({TAG_A}))
    assert found == ([1200, 100, 1, 1400, 100, 3], 4, 200)


def test_a_tag_that_falls_into_the_same_sieve_place_is_still_another_tag() -> None:
    assert select_rows(ROWS, 0, len(ROWS), 9, 10**6, frozenset({TAG_A + 1024})) == ([], 6, 0)


def test_only_the_low_32_bits_of_a_tags_code_count() -> None:
    row = struct.pack(">qiq", 5, 6, (7 << 32) + 2**31 + 1)
    assert select_rows(row, 0, 20, 1, 100, frozenset({-(2**31) + 1})) == ([5, 6, 0], 1, 6)


@pytest.mark.parametrize(("bytes_max", "taken"), [(0, 1), (100, 1), (199, 1), (200, 2)])
def test_rows_are_taken_up_to_the_bytes_and_the_first_always(bytes_max: int, taken: int) -> None:
    selected, walked, total_bytes = select_rows(ROWS, 0, len(ROWS), 32, bytes_max, None)
    assert (len(selected) // 3, walked, total_bytes) == (taken, taken, 100 * taken)


def test_part_of_a_row_is_left_alone() -> None:
    assert select_rows(ROWS, 0, 39, 32, 10**6, None)[1] == 1


@pytest.mark.parametrize(("start", "end"), [(-20, 20), (0, 121), (40, 20)])
def test_a_range_outside_the_rows_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="outside the 120 bytes of rows"):
        select_rows(ROWS, start, end, 1, 1, None)


def test_records_that_touch_become_one_range_within_a_segment() -> None:
    selected = [1000, 100, 0, 1100, 50, 1, 1200, 10, 2, 1210, 838, 3, 2048, 7, 4]
    assert coalesce(selected, 2048) == [1000, 150, 1200, 848, 2048, 7]
    assert coalesce([], 2048) == []


def test_a_segment_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot have 0 bytes"):
        coalesce([1, 2, 3], 0)


MESSAGES = [MessageDraft(topic=b"TopicTest", queue_id=1, body=b"b" * size) for size in (5, 0, 9)]
LOG = log_of(MESSAGES, queue_offsets=[7, 8, 9], base_offset=4096)
PLACES = [number for place in record_positions(LOG) for number in place]


def match(**changes: object) -> int:
    arguments = {
        "buffer": LOG,
        "position_and_sizes": PLACES,
        "base_offset": 4096,
        "queue_id": 1,
        "topic": b"TopicTest",
        "queue_offsets": [7, 8, 9],
        **changes,
    }
    return match_records(**arguments)  # type: ignore[arg-type]


def test_records_that_are_what_the_queue_says_match() -> None:
    assert match() == -1
    assert match(position_and_sizes=[], queue_offsets=[]) == -1


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"queue_id": 2}, 0),
        ({"topic": b"TopicTesT"}, 0),
        ({"topic": b"TopicTes"}, 0),
        ({"base_offset": 4097}, 0),
        ({"queue_offsets": [7, 8, 10]}, 2),
        ({"position_and_sizes": [*PLACES[:3], PLACES[3] - 1, *PLACES[4:]]}, 1),
        ({"position_and_sizes": [*PLACES[:4], len(LOG), PLACES[5]]}, 2),
        ({"position_and_sizes": [*PLACES[:4], -1, PLACES[5]]}, 2),
        ({"position_and_sizes": [*PLACES[:5], 2**40]}, 2),
        ({"buffer": LOG[:-1]}, 2),
        ({"buffer": b""}, 0),
    ],
)
def test_the_first_record_that_does_not_match_is_named(
    changes: dict[str, object], first: int
) -> None:
    assert match(**changes) == first


def test_each_record_needs_its_queue_offset() -> None:
    with pytest.raises(ValueError, match="6 positions and sizes need half as many"):
        match(queue_offsets=[7, 8])
