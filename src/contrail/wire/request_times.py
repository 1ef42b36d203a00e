"""How long requests took, by request code, answer and outcome: the metric ``rpc_latency``.

A tick answers most of its requests, so one look at the clock counts for a whole run of sends.
A request that is answered later is remembered by its connection until then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, Response

BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_HELD = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
# Handlers of runs answer these codes, and time them.
_SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)


class RequestKind(NamedTuple):
    """The labels that requests are counted by."""

    code: int
    response_code: int
    is_held: bool
    is_one_way: bool


_TWO_WAY_SENT = RequestKind(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, False)
_ONE_WAY_SENT = RequestKind(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, True)


class RequestTimes:
    """Counts answered requests. ``arrived_s`` is the arrival of the requests at work now."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s`` is the clock that ``arrived_s`` is read from: one that only goes forward."""
        self.arrived_s = 0.0
        self._now_s = now_s
        self._counts: dict[RequestKind, list[float]] = {}

    def follows(self, request: Request) -> bool:
        """Whether a request that was put off will be told of again, by ``answered``."""
        return not request.flag & FLAG_ONE_WAY and request.code not in _SENDS

    def answered_sends(
        self, counts: Mapping[int, int], response_code: int, arrived_s: float
    ) -> None:
        """Sends were answered together.

        Keys of ``counts`` are twice the request code, and one more for one-way sends.
        """
        elapsed_ms = (self._now_s() - arrived_s) * 1000
        known = self._counts
        for key, count in counts.items():
            kind = _sent(key, response_code)
            row = known.get(kind) or self._row_of(kind)
            row[bisect_left(BOUNDS_MS, elapsed_ms)] += count
            row[-1] += elapsed_ms * count

    def answered_rows(self, count: int, two_way_count: int, arrived_s: float) -> None:
        """As ``answered_sends``, for rows that went well."""
        elapsed_ms = (self._now_s() - arrived_s) * 1000
        if two_way_count:
            row = self._counts.get(_TWO_WAY_SENT) or self._row_of(_TWO_WAY_SENT)
            row[bisect_left(BOUNDS_MS, elapsed_ms)] += two_way_count
            row[-1] += elapsed_ms * two_way_count
        if count > two_way_count:
            self._note(_ONE_WAY_SENT, elapsed_ms, count - two_way_count)

    def answered_pulls(self, counts: Mapping[tuple[int, int], int]) -> None:
        """Pulls of this tick were answered, by request code and response code."""
        elapsed_ms = (self._now_s() - self.arrived_s) * 1000
        for (code, response_code), count in counts.items():
            self._note(RequestKind(code, response_code, False, False), elapsed_ms, count)

    def row_of_pulls(self, code: int) -> list[float]:
        """The counters of pulls that find messages, for handlers that count often.

        The first number counts those that took no more than the first bound, the last one sums up
        their milliseconds.
        """
        kind = _pulled(code)
        return self._counts.get(kind) or self._row_of(kind)

    def note_pulls(self, code: int, elapsed_ms: float, count: int) -> None:
        """Count ``count`` pulls that found messages after ``elapsed_ms``."""
        self._note(_pulled(code), elapsed_ms, count)

    def answered(self, request: Request, response: Response, since_s: float | None) -> None:
        """A request was answered: one of this tick's, or one that was put off at ``since_s``."""
        arrived_s = self.arrived_s if since_s is None else since_s
        is_held = since_s is not None and request.code in _HELD
        is_one_way = bool(request.flag & FLAG_ONE_WAY)
        kind = RequestKind(_known(request.code), response.code, is_held, is_one_way)
        self._note(kind, (self._now_s() - arrived_s) * 1000, 1)

    def _note(self, kind: RequestKind, elapsed_ms: float, count: int) -> None:
        row = self._counts.get(kind) or self._row_of(kind)
        row[bisect_left(BOUNDS_MS, elapsed_ms)] += count
        row[-1] += elapsed_ms * count

    def _row_of(self, kind: RequestKind) -> list[float]:
        row = self._counts[kind] = [0] * (len(BOUNDS_MS) + 2)
        return row

    def rows(self) -> list[tuple[RequestKind, list[int], float]]:
        """By kind: the requests of each class of ``BOUNDS_MS``, and all their milliseconds."""
        return [
            (kind, [int(count) for count in row[:-1]], row[-1])
            for kind, row in self._counts.items()
        ]


@lru_cache(maxsize=512)
def _pulled(code: int) -> RequestKind:
    return RequestKind(code, ResponseCode.SUCCESS, False, False)


@lru_cache(maxsize=512)
def _sent(key: int, response_code: int) -> RequestKind:
    return RequestKind(key >> 1, response_code, False, bool(key & 1))


@lru_cache(maxsize=512)
def request_name(code: int) -> str:
    """A request code as metrics write it."""
    return _name(RequestCode, code)


@lru_cache(maxsize=512)
def response_name(code: int) -> str:
    """A response code as metrics write it."""
    return _name(ResponseCode, code)


def _name(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    try:
        return codes(code).name.lower()
    except ValueError:
        return "unknown"


def _known(code: int) -> int:
    """Codes that nobody knows count as one: a stranger must not fill our memory with them."""
    return code if request_name(code) != "unknown" else -1
