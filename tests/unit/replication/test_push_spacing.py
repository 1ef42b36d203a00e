"""When the next push to slaves is due."""

from __future__ import annotations

import pytest

from contrail.replication.state.push_spacing import BUSY_BYTES, PushSpacing


@pytest.mark.proves("replication.ground.push")
def test_a_push_that_answers_wait_for_waits_after_64_kib_within_a_millisecond() -> None:
    spacing = PushSpacing(is_awaited=True)
    spacing.pushed(BUSY_BYTES - 1, 5)
    assert spacing.wait_ms(5) == 0
    spacing.pushed(1, 5)
    assert spacing.wait_ms(5) == 1
    assert spacing.wait_ms(6) == 0


@pytest.mark.proves("replication.ground.push")
def test_a_push_that_nobody_waits_for_waits_a_little_longer() -> None:
    spacing = PushSpacing(is_awaited=False)
    spacing.pushed(BUSY_BYTES, 5)
    assert [spacing.wait_ms(now_ms) for now_ms in (5, 6, 8, 9)] == [4, 3, 1, 0]


@pytest.mark.proves("replication.ground.push")
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_sync_of_the_log_ends_the_wait(is_awaited: bool) -> None:
    spacing = PushSpacing(is_awaited=is_awaited)
    spacing.pushed(BUSY_BYTES, 5)
    spacing.synced()
    assert spacing.wait_ms(5) == 0


def test_small_pushes_never_wait() -> None:
    spacing = PushSpacing(is_awaited=True)
    for now_ms in range(5, 20):
        spacing.pushed(BUSY_BYTES - 1, now_ms)
        assert spacing.wait_ms(now_ms) == 0


def test_a_large_push_that_left_nothing_out_is_spaced_like_any_other() -> None:
    spacing = PushSpacing(is_awaited=False)
    spacing.pushed(8 * BUSY_BYTES, 5)
    assert spacing.wait_ms(5) == 4


def test_a_slave_that_is_behind_gets_its_next_share_without_a_wait() -> None:
    spacing = PushSpacing(is_awaited=False)
    spacing.pushed(BUSY_BYTES, 5, is_behind=True)
    assert spacing.wait_ms(5) == 0
    # Its last share: what is appended from now on waits again.
    spacing.pushed(1, 5)
    assert spacing.wait_ms(5) == 4


def test_a_slave_that_waited_for_the_disk_or_its_connection_goes_on_at_once() -> None:
    spacing = PushSpacing(is_awaited=True)
    spacing.pushed(BUSY_BYTES, 5)
    spacing.behind()
    assert spacing.wait_ms(5) == 0
    spacing.pushed(BUSY_BYTES, 5)
    assert spacing.wait_ms(5) == 1
