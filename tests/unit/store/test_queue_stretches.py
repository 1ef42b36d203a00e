"""The offsets that a rebuilt queue lacks, and the records around them that may be misplaced."""

from __future__ import annotations

from contrail.store.state.queue_stretches import Gap, QueueStretches


def believed(*stretches: tuple[int, int, int]) -> QueueStretches:
    """Each stretch: first offset, message count, and where its first record begins, ten apart."""
    found = QueueStretches()
    for first, count, start in stretches:
        starts = [start + 10 * number for number in range(count)]
        found.believe(first, count, starts[:3], starts, start + 10 * count)
    return found


def test_a_queue_without_holes_has_no_gap() -> None:
    assert list(believed((0, 20, 0)).gaps((0, 20), 200)) == []


def test_a_gap_between_long_stretches_includes_their_outermost_records() -> None:
    gap = next(believed((0, 10, 0), (12, 10, 130)).gaps(None, 0))
    assert gap == Gap(8, 14, 80, 141, (80, 90, 130, 140))


def test_records_that_stand_alone_between_long_stretches_belong_to_the_gap() -> None:
    gap = next(believed((0, 10, 0), (11, 1, 110), (13, 10, 140)).gaps(None, 0))
    assert gap.believed == (80, 90, 110, 140, 150)
    assert (gap.first, gap.end) == (8, 15)


def test_with_bounds_gaps_before_the_first_and_behind_the_last_stretch_are_found() -> None:
    gaps = list(believed((2, 10, 20)).gaps((0, 14), 400))
    assert [(gap.first, gap.end) for gap in gaps] == [(0, 4), (10, 14)]
    assert gaps[1].physical_end == 400


def test_a_gap_of_many_offsets_is_not_blamed_on_damaged_records() -> None:
    assert list(believed((0, 10, 0), (100, 10, 130)).gaps(None, 0)) == []


def test_too_many_stretches_are_not_judged() -> None:
    many = believed(*((at * 20, 10, at * 1000) for at in range(1001)))
    assert list(many.gaps(None, 0)) == []
