"""Answers that are held until their messages are as safe as producers were promised.

Answers of one run are held with the log position that ``MessageStore.acknowledged_end`` must reach
first; one move of that position releases every answer below it. A ``HoldReason`` names the cause
of the wait, its longest time, and the code of the answer when that time is over. Time is
``Clock.elapsed_ms``, which nobody sets: a step of the wall clock is no late flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from contrail.clock import Clock
from contrail.protocol.codes import ResponseCode
from contrail.protocol.failover_fields import IN_DOUBT_FIELD
from contrail.wire.connection import Connection
from contrail.wire.peer import Peer

IN_DOUBT_CODE = ResponseCode.SYSTEM_ERROR
"""The code of an answer in doubt; 14 would tell a client that nothing was stored."""

EXPIRE_INTERVAL_MS = 100
"""How often ``Acknowledgements.expire`` is to be called."""

Release = Callable[[ResponseCode], None]
"""Sends the answers: SUCCESS, the code of a ``HoldReason``, SLAVE_NOT_AVAILABLE without a slave, or
SERVICE_NOT_AVAILABLE after a failed sync.

``IN_DOUBT_CODE`` says that a message of a failover group is in doubt: another leader may commit it.
"""


class HoldReason(Enum):
    """Why answers are held; the bound of RocketMQ's defaults, and the code when it passes."""

    DISK = (5_000, ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE = (3_000, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    GROUP = (3_000, IN_DOUBT_CODE)

    def __init__(self, timeout_ms: int, code: ResponseCode) -> None:
        self.timeout_ms = timeout_ms
        self.code = code


class Held(NamedTuple):
    """Answers of one run, and the position that must be reached first."""

    physical_end: int
    since_ms: int
    deadline_ms: int
    reason: HoldReason
    release: Release


class Acknowledgements:
    """Held answers in the order of their log positions."""

    def __init__(
        self,
        clock: Clock,
        *,
        waits: bool,
        disk_timeout_ms: int,
        slave_timeout_ms: int = HoldReason.SLAVE.timeout_ms,
        reason: HoldReason = HoldReason.DISK,
    ) -> None:
        """``waits`` says whether answers are held at all; it may change while the broker runs.

        ``reason`` is why they are held where no other is given.
        """
        self._clock = clock
        self.waits = waits
        # In a group an answer before the commit would promise what another leader may cut off.
        self.waits_for_all = reason is HoldReason.GROUP
        self._reason = reason
        self._timeouts_ms = {reason: reason.timeout_ms for reason in HoldReason}
        self._timeouts_ms[HoldReason.DISK] = disk_timeout_ms
        self._timeouts_ms[HoldReason.SLAVE] = slave_timeout_ms
        # Called after each hold: a broker that waits for slaves may have none.
        self.on_held: Callable[[], None] = lambda: None
        self._held: deque[Held] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self,
        physical_end: int,
        counts: Sequence[tuple[Peer, int]],
        release: Release,
        reason: HoldReason | None = None,
    ) -> None:
        """Have ``release`` answer once the log is acknowledged up to ``physical_end``.

        Until then each peer of ``counts`` has as many more requests in flight.
        """
        for peer, count in counts:
            count_in_flight(peer, count)

        def answer(code: ResponseCode) -> None:
            for peer, count in counts:
                count_in_flight(peer, -count)
            release(code)

        reason = reason or self._reason
        now_ms = self._clock.elapsed_ms()
        deadline_ms = now_ms + self._timeouts_ms[reason]
        self._held.append(Held(physical_end, now_ms, deadline_ms, reason, answer))
        self.on_held()

    def when_safe(self, peer: Peer, physical_end: int, release: Release) -> None:
        """Have ``release`` answer one request of ``peer``: now, or once it is as safe as promised.

        A request is held by itself; see ``hold`` for those of a run.
        """
        if self.waits:
            self.hold(physical_end, [(peer, 1)], release)
        else:
            release(ResponseCode.SUCCESS)

    def oldest_age_ms(self) -> int:
        """How long the first of the held answers has been waiting for the disk."""
        if not self._held or self._held[0].reason is not HoldReason.DISK:
            return 0
        return self._clock.elapsed_ms() - self._held[0].since_ms

    def lets_go(self, acknowledged_end: int) -> bool:
        """Whether ``reached`` would release an answer."""
        return bool(self._held) and self._held[0].physical_end <= acknowledged_end

    def reached(self, acknowledged_end: int) -> None:
        """Release the answers of everything up to this position."""
        while self._held and self._held[0].physical_end <= acknowledged_end:
            self._held.popleft().release(ResponseCode.SUCCESS)

    def unreplicated(self, kept_end: int) -> None:
        """No slave is there to wait for: answer accordingly for messages that the disk has."""
        while self._held and self._held[0].physical_end <= kept_end:
            self._held.popleft().release(ResponseCode.SLAVE_NOT_AVAILABLE)

    def expire(self) -> None:
        """Release answers whose time is over: their messages are stored, but perhaps not safe."""
        now_ms = self._clock.elapsed_ms()
        overdue = [held for held in self._held if now_ms > held.deadline_ms]
        if overdue:
            self._held = deque(held for held in self._held if now_ms <= held.deadline_ms)
        for held in overdue:
            held.release(held.reason.code)

    def give_up(self) -> None:
        """The broker stops, or leads no more: what is held is stored, and waits no longer."""
        while self._held:
            held = self._held.popleft()
            held.release(held.reason.code)

    def fail(self) -> None:
        """A sync failed: nothing will be durable any more, and no producer is told otherwise.

        Other members of a group may have the message and commit it: there it is in doubt.
        """
        while self._held:
            held = self._held.popleft()
            is_in_doubt = held.reason is HoldReason.GROUP
            held.release(held.reason.code if is_in_doubt else ResponseCode.SERVICE_NOT_AVAILABLE)


class FlushNews:
    """Whether more of the log is durable than sends were told; noted by the flusher's thread."""

    __slots__ = ("is_noted",)

    def __init__(self) -> None:
        self.is_noted = False


def count_in_flight(peer: Peer, change: int) -> None:
    """Count a connection's held requests up or down: a connection has a bounded number."""
    if isinstance(peer, Connection):
        peer.in_flight_count += change


def doubt_fields(code: int) -> dict[str, str]:
    """The field that says "in doubt", if a held answer was released with this code."""
    return {IN_DOUBT_FIELD: "true"} if code == IN_DOUBT_CODE else {}
