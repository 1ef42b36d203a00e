"""Waiting pops: who is woken by which arrival, how many may wait, and until when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.state.pop_waiting import PopWaiters, Source, Waiter, WaitKey
from contrail.protocol.command import Request

PEER: Any = SimpleNamespace(is_closed=False)
ALL, ONE = WaitKey("t", "g", -1), WaitKey("t", "g", 1)
SOURCES: list[Source] = [(b"t", 0), (b"t", 1), (b"%RETRY%g_t", 0)]


def waiter(key: WaitKey, deadline_ms: int = 1000) -> Waiter:
    return Waiter(Request(200050, 1, {}), PEER, key, deadline_ms)


def park(waiters: PopWaiters, one: Waiter, sources: list[Source]) -> list[Source] | None:
    return waiters.park(one, sources, count_max=10, count_per_key_max=2)


@pytest.mark.proves("kinds.pop.waiting")
def test_an_arrival_wakes_the_oldest_of_each_kind() -> None:
    waiters = PopWaiters()
    first, second, third = waiter(ALL), waiter(ALL), waiter(ONE)
    assert park(waiters, first, SOURCES) == SOURCES
    assert park(waiters, second, SOURCES) == []
    assert park(waiters, third, SOURCES[1:]) == []
    assert waiters.woken_by((b"t", 0)) == [first]
    assert waiters.woken_by((b"t", 1)) == [first, third]
    assert waiters.woken_by((b"%RETRY%g_t", 0)) == [first, third]
    assert waiters.woken_by((b"t", 2)) == []
    assert waiters.take(first) == [] and waiters.take(first) is None
    assert waiters.woken_by((b"t", 0)) == [second]
    assert waiters.take(second) == [(b"t", 0)], "nobody waits there any more"
    assert waiters.take(third) == SOURCES[1:] and len(waiters) == 0


@pytest.mark.proves("kinds.pop.waiting")
def test_one_more_than_the_bound_waits_at_a_key() -> None:
    waiters = PopWaiters()
    assert [park(waiters, waiter(ALL), SOURCES) is not None for _ in range(4)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert waiters.count_at(ALL) == 3
    full = waiters.park(waiter(ONE), SOURCES, count_max=3, count_per_key_max=9)
    assert full is None


def test_waiters_end_at_their_time() -> None:
    waiters = PopWaiters()
    late, early = waiter(ALL, 2001), waiter(ONE, 995)
    park(waiters, late, SOURCES)
    park(waiters, early, SOURCES)
    assert waiters.next_end_ms == 1000
    assert waiters.overdue(999) == []
    assert waiters.overdue(1000) == [early]
    assert waiters.take(early) is not None
    assert waiters.next_end_ms == 2010
    assert waiters.take(late) is not None
    assert waiters.next_end_ms is None
