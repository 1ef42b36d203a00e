"""Epochs of a replicated log: which leader wrote which byte."""

from __future__ import annotations

import pytest

from contrail.replication.state.epochs import NO_EPOCH, EpochStart, EpochTable


def _table() -> EpochTable:
    return EpochTable([EpochStart(2, 100), EpochStart(5, 300)])


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (99, 0), (100, 2), (299, 2), (300, 5)])
def test_a_byte_has_the_epoch_of_the_last_marker_at_or_before_it(offset: int, epoch: int) -> None:
    assert _table().epoch_of_byte(offset) == epoch


@pytest.mark.parametrize(("end", "epoch"), [(0, 0), (100, 0), (101, 2), (300, 2), (301, 5)])
def test_an_end_has_the_epoch_of_the_byte_before_it(end: int, epoch: int) -> None:
    assert _table().epoch_of_end(end) == epoch


def test_an_epoch_ends_where_the_next_begins_and_the_last_at_the_end_of_the_log() -> None:
    table = _table()
    assert [table.stretch_end(offset, 400) for offset in (0, 100, 350)] == [100, 300, 400]


@pytest.mark.parametrize(
    ("epoch", "found"), [(0, (0, 100)), (1, (0, 100)), (2, (2, 300)), (4, (2, 300)), (9, (5, 400))]
)
def test_the_largest_epoch_not_above_another_is_found_with_its_end(
    epoch: int, found: tuple[int, int]
) -> None:
    assert _table().end_at_most(epoch, 400) == found


def test_a_cut_forgets_epochs_that_begin_at_it_or_behind() -> None:
    table = _table()
    table.cut(300)
    assert table.last_epoch == 2
    table.cut(100)
    assert table.last_epoch == NO_EPOCH


def test_epochs_rise_with_their_starts() -> None:
    with pytest.raises(AssertionError):
        EpochTable([EpochStart(2, 100), EpochStart(2, 200)])
    with pytest.raises(AssertionError):
        EpochTable([EpochStart(2, 100), EpochStart(3, 100)])


def test_the_start_of_an_epoch_is_its_first_byte() -> None:
    assert [_table().start_of(epoch) for epoch in (0, 2, 5)] == [0, 100, 300]


def test_an_epoch_begins_within_a_stretch_that_has_its_first_byte() -> None:
    table = EpochTable([EpochStart(1, 0), EpochStart(2, 100), EpochStart(4, 300)])
    assert table.begins_within(100, 101)
    assert table.begins_within(50, 301)
    assert not table.begins_within(101, 300)
    assert not table.begins_within(301, 900)
    assert not EpochTable().begins_within(0, 100)
