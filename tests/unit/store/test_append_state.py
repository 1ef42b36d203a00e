"""Where a run of records goes, decided without a disk."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import MessageIllegal
from contrail.kernels.send_places import QueuePlace, commit_places
from contrail.model.message import MessageDraft
from contrail.model.record import BLANK_RECORD_BYTES
from contrail.store.state.append import AppendState

SEGMENT = 4096


def draft(topic: bytes = b"orders", queue_id: int = 0, sys_flag: int = 0) -> MessageDraft:
    return MessageDraft(topic, queue_id, b"body", sys_flag=sys_flag)


def test_a_run_that_fits_goes_to_the_end_of_the_log_in_one_piece() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=100)
    plan = state.plan_append([draft(), draft()], [200, 300])
    assert plan.physical_offsets == [100, 300]
    assert plan.physical_end == 600
    assert [chunk.blank_at for chunk in plan.chunks] == [None]


@pytest.mark.proves("store.log.runs")
def test_a_plan_changes_nothing_until_it_is_committed() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    plan = state.plan_append([draft()], [200])
    assert state.physical_end == 0
    assert state.next_offset(b"orders", 0) == 0
    state.commit_append(plan.next_offsets, plan.physical_end)
    assert state.physical_end == 200
    assert state.next_offset(b"orders", 0) == 1


def test_queue_offsets_count_on_within_a_run_and_per_queue() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    state.set_next_offset(b"orders", 1, 7)
    drafts = [draft(), draft(queue_id=1), draft(), draft(queue_id=1), draft(b"other")]
    assert state.plan_append(drafts, [100] * 5).queue_offsets == [0, 7, 1, 8, 0]


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_half_and_rolled_back_records_take_no_queue_offset(sys_flag: int) -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    plan = state.plan_append([draft(), draft(sys_flag=sys_flag), draft()], [100] * 3)
    assert plan.queue_offsets == [0, 0, 1]


def test_a_record_that_would_end_within_eight_bytes_of_the_segment_rolls() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=SEGMENT - 108)
    assert state.plan_append([draft()], [100]).physical_offsets == [SEGMENT - 108]
    plan = state.plan_append([draft()], [101])
    assert plan.physical_offsets == [SEGMENT]
    assert plan.chunks[0].blank_at == SEGMENT - 108


def test_a_split_batch_goes_to_the_next_segment_as_a_whole() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=SEGMENT - 1000)
    plan = state.plan_append([draft()] * 3, [600] * 3, whole=True)
    assert plan.physical_offsets == [SEGMENT, SEGMENT + 600, SEGMENT + 1200]
    assert [(chunk.first, chunk.last) for chunk in plan.chunks] == [(0, 3)]


def test_a_record_larger_than_a_segment_is_refused_with_the_setting_to_raise() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    with pytest.raises(MessageIllegal, match="mappedFileSizeCommitLog"):
        state.plan_append([draft()], [SEGMENT])


def test_an_inner_batch_takes_as_many_offsets_as_it_has_messages() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    plan = state.plan_append([draft()], [100], weight=5)
    state.commit_append(plan.next_offsets, plan.physical_end)
    assert state.next_offset(b"orders", 0) == 5


def test_a_deleted_topic_starts_again_at_zero() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    state.set_next_offset(b"orders", 0, 9)
    state.set_next_offset(b"other", 0, 4)
    state.forget_topic(b"orders")
    assert state.next_offset(b"orders", 0) == 0
    assert state.next_offset(b"other", 0) == 4


@pytest.mark.proves("store.log.blank-record")
@given(
    sizes=st.lists(st.integers(91, SEGMENT - BLANK_RECORD_BYTES), min_size=1, max_size=40),
    start=st.integers(0, 3 * SEGMENT),
)
def test_records_never_overlap_never_cross_a_segment_and_leave_room_for_the_blank(
    sizes: list[int], start: int
) -> None:
    start -= max(0, start % SEGMENT - (SEGMENT - BLANK_RECORD_BYTES))
    state = AppendState(segment_bytes=SEGMENT, physical_end=start)
    plan = state.plan_append([draft()] * len(sizes), sizes)
    end = start
    for physical_offset, size in zip(plan.physical_offsets, sizes, strict=True):
        assert physical_offset >= end
        end = physical_offset + size
        assert physical_offset // SEGMENT == (end - 1) // SEGMENT
        assert SEGMENT - (end - 1) % SEGMENT - 1 >= BLANK_RECORD_BYTES
        if physical_offset != plan.physical_offsets[0]:
            assert physical_offset % SEGMENT == 0 or physical_offset == end - size
    assert plan.physical_end == end
    blanks = [chunk.blank_at for chunk in plan.chunks if chunk.blank_at is not None]
    assert len(blanks) == plan.physical_offsets[-1] // SEGMENT - start // SEGMENT


def lent_place(state: AppendState, next_offset: int) -> QueuePlace:
    """A place of ``send_places`` as the kernel leaves it."""
    place = QueuePlace(b"orders", 0)
    table, lent = state.unlent_offsets, state.lent
    place.next_offset = table.pop(place.key)
    place.planned_offset = next_offset
    place.is_lent = True
    lent.append(place)
    return place


def test_lent_queue_offsets_are_back_before_the_next_plan() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    state.set_next_offset(b"orders", 0, 5)
    place = lent_place(state, 8)
    assert state.next_offset(b"orders", 0) == 5, "what is only planned is not so yet"
    assert not place.is_lent
    place = lent_place(state, 8)
    commit_places([(b"", 1, array("q"), bytearray(), [b""], [place])])
    state.physical_end = 300
    plan = state.plan_append([draft(), draft()], [100] * 2)
    assert plan.queue_offsets == [8, 9]
    assert plan.new_queues == []
    state.commit_append(plan.next_offsets, plan.physical_end)
    assert state.next_offset(b"orders", 0) == 10


def test_a_topic_is_forgotten_though_its_next_offset_is_lent() -> None:
    state = AppendState(segment_bytes=SEGMENT, physical_end=0)
    state.set_next_offset(b"orders", 0, 5)
    place = lent_place(state, 5)
    state.forget_topic(b"orders")
    assert not place.is_lent
    assert state.next_offset(b"orders", 0) == 0
    assert (state.unlent_offsets, state.lent) == ({}, [])
