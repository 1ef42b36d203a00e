"""The five positions in the log, each by its rule."""

from __future__ import annotations

import pytest

from contrail.store.state.positions import NO_LIMIT, Positions


def _positions(*, syncs_before_ack: bool) -> Positions:
    positions = Positions(1000, syncs_before_ack=syncs_before_ack)
    positions.physical_end, positions.committed_end, positions.flushed_end = 4000, 3000, 2000
    return positions


@pytest.mark.parametrize("syncs_before_ack", [True, False])
def test_all_positions_of_a_log_that_was_just_opened_are_its_end(syncs_before_ack: bool) -> None:
    positions = Positions(1000, syncs_before_ack=syncs_before_ack)
    ends = (positions.visible_end, positions.acknowledged_end, positions.settled_end)
    assert ends == (1000, 1000, 1000)


def test_under_sync_flush_only_flushed_bytes_are_visible_acknowledged_and_settled() -> None:
    positions = _positions(syncs_before_ack=True)
    ends = (positions.visible_end, positions.acknowledged_end, positions.settled_end)
    assert ends == (2000, 2000, 2000)


def test_under_async_flush_bytes_in_the_file_are_visible_and_written_ones_acknowledged() -> None:
    positions = _positions(syncs_before_ack=False)
    ends = (positions.visible_end, positions.acknowledged_end, positions.settled_end)
    assert ends == (3000, 4000, 2000)


@pytest.mark.parametrize("syncs_before_ack", [True, False])
def test_nothing_above_the_commit_limit_is_visible_acknowledged_or_settled(
    syncs_before_ack: bool,
) -> None:
    positions = _positions(syncs_before_ack=syncs_before_ack)
    positions.commit_limit = 1500
    ends = (positions.visible_end, positions.acknowledged_end, positions.settled_end)
    assert ends == (1500, 1500, 1500)


@pytest.mark.parametrize("syncs_before_ack", [True, False])
def test_bytes_that_too_few_replicas_have_are_not_acknowledged_but_visible(
    syncs_before_ack: bool,
) -> None:
    positions = _positions(syncs_before_ack=syncs_before_ack)
    visible_end, settled_end = positions.visible_end, positions.settled_end
    positions.replicated_end = 1800
    assert positions.acknowledged_end == 1800
    assert (positions.visible_end, positions.settled_end) == (visible_end, settled_end)


def test_a_group_acknowledges_what_is_committed_before_this_members_own_sync() -> None:
    positions = Positions(1000, syncs_before_ack=True, in_group=True)
    positions.physical_end = positions.committed_end = 4000
    positions.commit_limit = 3500
    assert positions.acknowledged_end == 3500
    assert (positions.visible_end, positions.settled_end) == (1000, 1000)


def test_without_replication_no_limit_holds_anything_back() -> None:
    positions = Positions(NO_LIMIT - 1, syncs_before_ack=True)
    assert positions.acknowledged_end == NO_LIMIT - 1
