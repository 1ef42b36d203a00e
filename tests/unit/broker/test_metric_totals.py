"""The counts of timers and transactions that only metrics show."""

from __future__ import annotations

from typing import Any

import pytest

from contrail.broker.services.creation_times import CreationTimes
from contrail.broker.state.timer_metrics import TimerTotals
from contrail.broker.state.transaction_ends import TransactionEnds
from contrail.broker.state.transaction_records import Fate, Half
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from tests.fakes.peers import FakePeer


def half(topic: str, born_ms: int) -> Half:
    return Half(
        key="k",
        group="g",
        topic=topic,
        born_ms=born_ms,
        born_host=b"",
        first_queue_offset=0,
        queue_offset=0,
        physical_offset=0,
        stored_ms=born_ms,
        checks=0,
        immunity_ms=None,
        begins_unseen=False,
        since_ms=born_ms,
    )


def test_timers_count_what_came_and_the_delays_that_were_asked_for() -> None:
    totals = TimerTotals()
    totals.took_in(b"later", 59_999)
    totals.took_in(b"later", 61_000)
    totals.took_in(b"later", None)
    assert totals.enqueued == {b"later": 3}
    assert totals.delays == {b"later": [1, 1, 0, 0, 0, 0, 0, 59 + 61]}


def test_a_message_that_was_overdue_when_it_came_asked_for_no_delay() -> None:
    totals = TimerTotals()
    totals.took_in(b"later", -5000)
    assert totals.delays == {b"later": [1, 0, 0, 0, 0, 0, 0, 0]}


def test_commits_are_counted_with_their_seconds_and_rollbacks_without() -> None:
    ends = TransactionEnds()
    ends.note(half("txs", 1000), Fate.COMMITTED, 8000)
    ends.note(half("txs", 1000), Fate.ROLLED_BACK, 8000)
    ends.note(half("txs", 1000), Fate.GIVEN_UP, 8000)
    assert ends.committed == {"txs": 1}
    assert ends.rolled_back == {"txs": 1}
    assert ends.commit_times == {"txs": [0, 1, 0, 0, 0, 0, 0, 7]}


def made(request: Request, peer: Any) -> Response:
    return Response()


def refused(request: Request, peer: Any) -> Response:
    raise RequestRejected(29, "no")


def test_requests_that_make_topics_and_groups_are_timed_and_no_others() -> None:
    times = CreationTimes(lambda topic: topic == "TBW102")
    codes = (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    )
    handlers: dict[int, Any] = dict.fromkeys(codes, made) | {RequestCode.HEART_BEAT: made}
    handlers[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] = refused
    timed = times.timed(handlers)
    peer = FakePeer()
    timed[RequestCode.UPDATE_AND_CREATE_TOPIC](Request(17, 1, {"topic": "orders"}), peer)
    timed[RequestCode.UPDATE_AND_CREATE_TOPIC](Request(17, 1, {"topic": "TBW102"}), peer)
    with pytest.raises(RequestRejected):
        timed[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP](Request(200, 1, {}), peer)
    assert timed[RequestCode.HEART_BEAT] is made
    assert [key for key, _ in times.topic_rows()] == [("success", False), ("success", True)]
    assert [sum(row[:-1]) for _, row in times.topic_rows()] == [1, 1]
    assert [key for key, _ in times.group_rows()] == ["failure"]
