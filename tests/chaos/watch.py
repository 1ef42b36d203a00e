"""Watches the members of a group: their leader, and when it changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from contrail.errors import CallFailed
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode, ResponseCode
from tests.chaos.group import ChaosMember
from tests.history.client_senders import Timeline
from tests.history.events import LeaderChanged

_INTERVAL_S = 0.1
_TIMEOUT_MS = 800


class Watch:
    """Asks every member many times a second; the highest term counts."""

    def __init__(self, members: Sequence[ChaosMember], timeline: Timeline) -> None:
        self._members = members
        self._timeline = timeline
        self._tasks: list[asyncio.Task[None]] = []
        self.term = 0
        self.leader: ChaosMember | None = None
        # When the leader was lost and the next one led, in nanoseconds.
        self.changes: list[tuple[int, int]] = []
        self.lost_ns = 0
        self._seen_ns = 0

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._ask(member)) for member in self._members]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lost(self) -> None:
        """The leader was hit by a fault that it does not survive as leader."""
        self.lost_ns, _ = self._timeline.now()

    async def status(self, member: ChaosMember, timeout_ms: int = _TIMEOUT_MS) -> HaStatus | None:
        return await asyncio.to_thread(_status_of, member, timeout_ms)

    async def _ask(self, member: ChaosMember) -> None:
        while True:
            try:
                status = await self.status(member)
                if status is not None and status.role == "LEADER":
                    self._leads(member, await self._term_of(member))
            except (CallFailed, OSError):
                # It is killed, stopped or cut off.
                pass
            await asyncio.sleep(_INTERVAL_S)

    async def _term_of(self, member: ChaosMember) -> int:
        return await asyncio.to_thread(_term_of, member)

    def _leads(self, member: ChaosMember, term: int) -> None:
        now_ns, now_ms = self._timeline.now()
        if term < self.term or (term == self.term and member is self.leader):
            if term == self.term:
                self._seen_ns = now_ns
            return
        if self.leader is not None:
            lost_ns = max(self.lost_ns, self._seen_ns)
            event = LeaderChanged(lost_ns // 1_000_000, self.term, "")
            self._timeline.events.append((lost_ns, event))
            self.changes.append((lost_ns, now_ns))
        self._timeline.events.append((now_ns, LeaderChanged(now_ms, term, member.name)))
        self.term, self.leader, self._seen_ns = term, member, now_ns


def _status_of(member: ChaosMember, timeout_ms: int) -> HaStatus | None:
    broker = member.broker
    code = RequestCode.GET_BROKER_HA_STATUS
    answer = broker.caller.call(broker.address, code, timeout_ms=timeout_ms)
    return decode_ha_status(answer.body) if answer.code == ResponseCode.SUCCESS else None


def _term_of(member: ChaosMember) -> int:
    broker = member.broker
    code = RequestCode.GET_BROKER_EPOCH_CACHE
    answer = broker.caller.call(broker.address, code, timeout_ms=_TIMEOUT_MS)
    return int(json.loads(answer.body)["epochList"][-1]["epoch"])
