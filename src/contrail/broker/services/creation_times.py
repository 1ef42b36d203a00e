"""How long administrators wait for topics and groups to be made."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import cast

from contrail.broker.state.metric_table import CREATION_BOUNDS_MS
from contrail.clock import monotonic_ms
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Answer, Handler, Peer

_TOPIC_CODES = (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
_GROUP_CODES = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
)
_Key = tuple[bool, str, bool]


class _NotedPeer:
    """A peer whose late answer is noted."""

    def __init__(self, peer: Peer, note: Callable[[Response], None]) -> None:
        self._peer = peer
        self._note = note

    def reply(self, request: Request, response: Response) -> None:
        self._note(response)
        self._peer.reply(request, response)

    def __getattr__(self, name: str) -> object:
        return getattr(self._peer, name)


class CreationTimes:
    """Counts creations by what was created, outcome, and whether it is the system's."""

    def __init__(self, is_system: Callable[[str], bool]) -> None:
        self._is_system = is_system
        self._rows: dict[_Key, list[int]] = {}

    def timed(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers; those that make something are timed."""
        timed = dict(handlers)
        for code in _TOPIC_CODES + _GROUP_CODES:
            timed[code] = self._timed(handlers[code])
        return timed

    def _timed(self, handler: Handler) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            began_ms = monotonic_ms()

            def note(response: Response | None) -> None:
                is_done = response is not None and response.code == ResponseCode.SUCCESS
                self._note(request, is_done, monotonic_ms() - began_ms)

            try:
                answer = handler(request, cast("Peer", _NotedPeer(peer, note)))
            except Exception:
                note(None)
                raise
            if isinstance(answer, Response):
                note(answer)
            return answer

        return handle

    def _note(self, request: Request, is_done: bool, elapsed_ms: int) -> None:
        is_topic = request.code in _TOPIC_CODES
        is_system = is_topic and self._is_system(request.fields.get("topic", ""))
        key = (is_topic, "success" if is_done else "failure", is_system)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [0] * (len(CREATION_BOUNDS_MS) + 2)
        row[bisect_left(CREATION_BOUNDS_MS, elapsed_ms)] += 1
        row[-1] += elapsed_ms

    def topic_rows(self) -> list[tuple[tuple[str, bool], list[int]]]:
        """By outcome, and whether the topic is the system's: counts by time, and their sum."""
        return [(key[1:], row) for key, row in self._rows.items() if key[0]]

    def group_rows(self) -> list[tuple[str, list[int]]]:
        """By outcome: counts by time, and their sum."""
        return [(key[1], row) for key, row in self._rows.items() if not key[0]]
