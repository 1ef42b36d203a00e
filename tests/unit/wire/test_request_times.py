"""Requests are counted by code, answer and time."""

from __future__ import annotations

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, Response
from contrail.wire.request_times import RequestKind, RequestTimes, request_name, response_name


class Watch:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rows(times: RequestTimes) -> dict[RequestKind, tuple[list[int], float]]:
    return {kind: (counts, total) for kind, counts, total in times.rows()}


def test_a_run_of_sends_takes_one_look_at_the_clock() -> None:
    watch = Watch()
    times = RequestTimes(watch)
    watch.now_s += 0.004
    times.answered_sends({310 * 2: 5, 310 * 2 + 1: 2}, ResponseCode.SUCCESS, 100.0)
    found = rows(times)
    counts, total_ms = found[RequestKind(310, 0, False, False)]
    assert counts == [0, 0, 5, 0, 0, 0, 0, 0, 0, 0]
    assert round(total_ms) == 20
    assert found[RequestKind(310, 0, False, True)][0][2] == 2


def test_a_request_of_this_tick_is_timed_from_its_arrival() -> None:
    watch = Watch()
    times = RequestTimes(watch)
    times.arrived_s = 100.0
    watch.now_s += 5
    times.answered(Request(RequestCode.HEART_BEAT, 1, {}), Response(), None)
    counts, _ = rows(times)[RequestKind(RequestCode.HEART_BEAT, 0, False, False)]
    assert counts == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_a_pull_that_was_put_off_was_held() -> None:
    times = RequestTimes(Watch())
    pull, heartbeat = (
        Request(RequestCode.PULL_MESSAGE, 1, {}),
        Request(RequestCode.HEART_BEAT, 2, {}),
    )
    times.answered(pull, Response(ResponseCode.PULL_NOT_FOUND), 90.0)
    times.answered(heartbeat, Response(), 90.0)
    kinds = list(rows(times))
    assert kinds[0].is_held
    assert not kinds[1].is_held


def test_one_way_requests_and_requests_answered_in_runs_are_not_followed() -> None:
    times = RequestTimes(Watch())
    assert times.follows(Request(RequestCode.PULL_MESSAGE, 1, {}))
    assert not times.follows(Request(RequestCode.PULL_MESSAGE, 1, {}, b"", FLAG_ONE_WAY))
    assert not times.follows(Request(RequestCode.SEND_MESSAGE_V2, 1, {}))


def test_a_stranger_cannot_fill_the_table_with_codes() -> None:
    times = RequestTimes(Watch())
    for code in range(1_000_000, 1_000_100):
        times.answered(Request(code, 1, {}), Response(3), None)
    (kind,) = rows(times)
    assert request_name(kind.code) == "unknown"
    assert response_name(kind.response_code) == "request_code_not_supported"


def test_pulls_of_a_tick_are_counted_together() -> None:
    times = RequestTimes(Watch())
    times.answered_pulls({})
    assert rows(times) == {}
    times.answered_pulls({(RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS): 3})
    ((kind, (counts, _)),) = rows(times).items()
    assert (request_name(kind.code), sum(counts)) == ("pull_message", 3)
