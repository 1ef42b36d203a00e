"""Where a client pulls from next."""

from __future__ import annotations

import pytest

from contrail.broker.state.read_redirects import (
    Redirect,
    redirect_at_master,
    redirect_at_slave,
)
from contrail.model.group import SubscriptionGroupConfig
from contrail.protocol.codes import ResponseCode

FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
AGAIN, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
GROUP = SubscriptionGroupConfig("billing", broker_id=0, broker_id_when_slow=2)
CODES = (FOUND, NOT_FOUND, AGAIN, MOVED)


@pytest.mark.parametrize("code", CODES)
def test_a_master_sends_slow_readers_to_the_groups_slave_and_others_to_itself(code: int) -> None:
    for is_slow, broker_id in ((True, 2), (False, 0)):
        answer = redirect_at_master(code, is_slow=is_slow, group=GROUP, reads_enabled=True)
        assert answer == Redirect(code, broker_id)


@pytest.mark.parametrize("code", CODES)
def test_without_slave_reads_everybody_stays_at_the_master(code: int) -> None:
    answer = redirect_at_master(code, is_slow=True, group=GROUP, reads_enabled=False)
    assert answer == Redirect(code, 0)


def at_slave(code: int, *, is_slow: bool = False, master_is_alive: bool = True) -> Redirect:
    return redirect_at_slave(
        code, is_slow=is_slow, group=GROUP, own_id=1, master_is_alive=master_is_alive
    )


def test_a_slave_sends_readers_back_to_a_live_master() -> None:
    assert at_slave(FOUND) == Redirect(FOUND, 0)
    # For the same offset: this slave's ends are not the master's.
    for code in (NOT_FOUND, AGAIN, MOVED):
        assert at_slave(code) == Redirect(AGAIN, 0, stays=True)


@pytest.mark.parametrize("code", CODES)
def test_a_slow_reader_stays_at_the_slave(code: int) -> None:
    assert at_slave(code, is_slow=True) == Redirect(code, 2)


def test_without_a_master_readers_stay_and_no_offset_counts_as_moved() -> None:
    for code in (FOUND, AGAIN):
        assert at_slave(code, master_is_alive=False) == Redirect(code, 1)
    for code in (NOT_FOUND, MOVED):
        assert at_slave(code, master_is_alive=False) == Redirect(NOT_FOUND, 1, stays=True)
