"""The pulls that are turned away unread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.protocol.codes import ResponseCode


def answer(*, is_choked: bool = False, waited_s: float = 0.0, fast_failure: bool = True) -> Any:
    config = SimpleNamespace(pull_wait_ms_max=5000, fast_failure=fast_failure)
    settings: Any = SimpleNamespace(config=config)
    busy = BusyPulls(settings, SimpleNamespace(waited_s=waited_s))
    peer: Any = SimpleNamespace(is_choked=is_choked)
    return busy.answer(peer)


def test_a_peer_that_reads_is_served() -> None:
    assert answer(waited_s=5.0) is None


@pytest.mark.parametrize("given", [{"is_choked": True}, {"waited_s": 5.1}])
def test_a_choked_peer_and_one_that_waited_too_long_are_told_busy(given: Any) -> None:
    assert answer(**given).code == ResponseCode.SYSTEM_BUSY


def test_without_fast_failure_a_pull_may_wait() -> None:
    assert answer(waited_s=60.0, fast_failure=False) is None
