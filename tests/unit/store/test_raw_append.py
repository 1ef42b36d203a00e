"""How much of a master's bytes a slave's log takes."""

from __future__ import annotations

import pytest

from contrail.errors import RawBytesRefused
from contrail.kernels.record_build import build_run
from contrail.model.message import LOOPBACK_HOST, MessageDraft
from contrail.model.record import encode_blank
from contrail.store.state.raw_append import RawPlan, plan_raw

SEGMENT = 4096


def records(physical_offset: int, *body_sizes: int) -> bytes:
    """Whole records that stand at ``physical_offset``, one for each body."""
    drafts = [MessageDraft(b"orders", 0, b"b" * size, b"") for size in body_sizes]
    numbers = list(range(len(drafts)))
    return b"".join(build_run(drafts, numbers, physical_offset, 77, LOOPBACK_HOST, False))


def blank(physical_offset: int) -> bytes:
    rest = SEGMENT - physical_offset % SEGMENT
    return encode_blank(rest).ljust(rest, b"\0")


def plan(data: bytes, physical_offset: int = 0, record_bytes_max: int = 3_000) -> RawPlan:
    return plan_raw(data, physical_offset, segment_bytes=SEGMENT, record_bytes_max=record_bytes_max)


def refused(data: bytes, physical_offset: int = 0, **limits: int) -> str:
    with pytest.raises(RawBytesRefused) as refusal:
        plan(data, physical_offset, **limits)
    return refusal.value.reason


def test_whole_records_are_taken_and_the_rest_left() -> None:
    whole = records(100, 10, 20)
    found = plan(whole + records(100 + len(whole), 30)[:-1], 100)
    assert found.pieces == [(0, len(whole), len(whole), 100)]
    assert found.physical_end == 100 + len(whole) and found.byte_count == len(whole)
    assert found.last_record_offset == 100 + len(records(100, 10))
    assert found.last_store_timestamp_ms == 77


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 50])
def test_bytes_before_the_end_of_the_first_record_are_left(cut: int) -> None:
    found = plan(records(0, 10)[:cut])
    assert found.pieces == [] and found.byte_count == 0 and found.physical_end == 0


def test_a_blank_end_is_taken_whole_and_the_log_goes_on_behind() -> None:
    first = records(0, 3_000 - 200)
    filler = blank(len(first))
    second = records(SEGMENT, 10)
    found = plan(first + filler + second)
    assert found.pieces == [
        (0, len(first), SEGMENT, 0),
        (SEGMENT, SEGMENT + len(second), SEGMENT + len(second), SEGMENT),
    ]
    assert found.physical_end == SEGMENT + len(second)
    assert plan(first + filler).physical_end == SEGMENT
    assert plan(first + filler[:-1]).physical_end == len(first)


def test_a_blank_of_another_segment_size_is_refused() -> None:
    first = records(0, 10)
    assert refused(first + encode_blank(999).ljust(999, b"\0")) == "segment_end"


@pytest.mark.parametrize("at", [4, 35, 120], ids=["magic", "physical offset", "body"])
def test_a_changed_byte_refuses_the_sound_record_before_it_as_well(at: int) -> None:
    good = records(0, 10)
    bad = bytearray(records(len(good), 200))
    bad[at] ^= 1
    assert refused(good + bad) == "record"


def test_bytes_of_another_place_are_refused() -> None:
    assert refused(records(0, 10), 100) == "record"


def test_zeros_are_no_records() -> None:
    assert refused(bytes(100)) == "record"


def test_a_record_that_could_never_become_whole_is_refused_by_its_size() -> None:
    large = records(0, 2_000)
    assert refused(large[:20], record_bytes_max=1_000) == "record_size"
    near_the_end = SEGMENT - 1_000
    assert refused(records(near_the_end, 2_000)[:20], near_the_end) == "record_size"


def test_a_record_that_leaves_no_room_for_a_blank_is_refused() -> None:
    size = len(records(0, 10))
    assert refused(records(SEGMENT - size - 4, 10), SEGMENT - size - 4) == "segment_end"
    assert plan(records(SEGMENT - size - 8, 10), SEGMENT - size - 8).byte_count == size
