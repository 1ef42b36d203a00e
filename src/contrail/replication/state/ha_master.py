"""Decides what a master sends to each slave, which reports it believes, and whom it turns away.

A slave goes from WAITING to TRANSFER with its first report, which is its request. Every reason to
end a link is counted by its name in ``counts``:

| reason                 | why                                                                    |
| ---------------------- | ---------------------------------------------------------------------- |
| `too_many`             | as many slaves as a master keeps are connected                         |
| `stranger`             | neither its address nor the cluster secret speaks for the slave        |
| `first_report_late`    | the slave connected and asked for nothing                              |
| `reset_needed`         | the slave's log ends before the first byte that the master still has   |
| `future_offset`        | the slave's log ends behind the master's: one of them is another log   |
| `diverged`             | the end of the slave's log differs from the master's bytes there       |
| `fake_acknowledgement` | a slave acknowledged bytes that were never sent to it                  |
| `silent`               | the slave reported nothing for ``haHousekeepingInterval``              |
| `replaced`             | the same broker connected again                                        |
| `crowded_out`          | all places were taken, and this link had proved nothing yet            |
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from contrail.replication.state.ha_limits import HaLimits


class LogRange(NamedTuple):
    """The bytes of its log that a master may send, and how long a segment is."""

    physical_min: int
    sendable_end: int
    segment_bytes: int


class Close(NamedTuple):
    """End the link to a slave."""

    number: int
    reason: str
    text: str


class Beat(NamedTuple):
    """Send a slave a heartbeat: a frame without bytes, at the place where the next will be."""

    number: int
    physical_offset: int


class Frame(NamedTuple):
    """Send a slave these bytes of the log, which lie within one segment."""

    physical_offset: int
    byte_count: int


@dataclass(slots=True)
class SlaveProgress:
    """The progress of one slave, as its master knows it."""

    number: int
    address: str
    heard_ms: int
    sent_ms: int
    is_plain: bool = True
    broker_id: int | None = None
    is_receiving: bool = False
    # The place of the next byte to send, and the end of the slave's log by its last report.
    next_offset: int = 0
    acknowledged_end: int = 0
    sent_bytes: int = 0
    # When a push was due last, by the loop's time.
    pushed_ms: int = 0
    # It lacks more than it was given by now: the next push does not wait for others.
    is_behind: bool = False

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def owes_report(self) -> bool:
        """Whether it was sent bytes that it has not acknowledged yet."""
        return self.acknowledged_end < self.next_offset

    @property
    def is_unproved(self) -> bool:
        """Whether it neither proved the secret nor, as a slave of Apache, asked for the log."""
        return self.broker_id is None and not self.is_receiving


class HaMasterState:
    """All slaves of one master, by a number that each link gets."""

    def __init__(self, limits: HaLimits) -> None:
        self._limits = limits
        self._last_number = 0
        self.slaves: dict[int, SlaveProgress] = {}
        self.counts: Counter[str] = Counter()

    def make_room(self) -> Close | None:
        """A link is coming: if all places are taken, one that has proved nothing yet must go.

        It is the oldest of the host that has most of them: a stranger that opens link after link
        takes no place of a slave, and no other host's.
        """
        if len(self.slaves) < self._limits.slave_count_max:
            return None
        unproved = [one for one in self.slaves.values() if one.is_unproved]
        if not unproved:
            return None
        counts = Counter(one.host for one in unproved)
        oldest = max(unproved, key=lambda one: (counts[one.host], -one.number))
        return self._close(oldest, "crowded_out", "other links came before it said who it is")

    def connected(self, address: str, now_ms: int) -> SlaveProgress | str:
        """A link came in: its slave, or the reason why it is refused."""
        if len(self.slaves) >= self._limits.slave_count_max:
            return self._count("too_many")
        self._last_number += 1
        slave = SlaveProgress(self._last_number, address, heard_ms=now_ms, sent_ms=now_ms)
        self.slaves[slave.number] = slave
        return slave

    def proved(self, number: int, broker_id: int) -> list[Close]:
        """A Contrail slave proved who it is; an older link of the same broker ends."""
        known = self.slaves[number]
        known.is_plain, known.broker_id = False, broker_id
        return [
            self._close(
                slave,
                "replaced",
                f"broker {broker_id} connected again, from {known.address}; if that is another "
                "broker, give it a brokerId of its own",
            )
            for slave in list(self.slaves.values())
            if slave.number != number and slave.broker_id == broker_id
        ]

    def refused(self, number: int, reason: str, text: str) -> Close:
        """End a link for a reason that was found outside: a failed handshake, a broken frame."""
        return self._close(self.slaves[number], reason, text)

    def begun(
        self, slave: SlaveProgress, physical_end: int, log: LogRange, now_ms: int
    ) -> Close | None:
        """A slave's first report, which is its request: its log ends at ``physical_end``."""
        slave.heard_ms = now_ms
        return self._begin(slave, physical_end, log)

    def reported(self, slave: SlaveProgress, physical_end: int, now_ms: int) -> Close | None:
        """The log of a slave that receives ends at ``physical_end``."""
        slave.heard_ms = now_ms
        if physical_end > slave.next_offset:
            return self._close(
                slave,
                "fake_acknowledgement",
                f"it acknowledged {physical_end}, but was sent nothing behind {slave.next_offset}",
            )
        if physical_end > slave.acknowledged_end:
            slave.acknowledged_end = physical_end
        return None

    def _begin(self, slave: SlaveProgress, physical_end: int, log: LogRange) -> Close | None:
        start = physical_end
        if slave.is_plain and physical_end == 0:
            # As Apache's master: an empty slave gets the newest segment, not the whole log.
            start = max(log.sendable_end - log.sendable_end % log.segment_bytes, log.physical_min)
        if start < log.physical_min:
            return self._close(
                slave,
                "reset_needed",
                f"its log ends at {physical_end}, the master's begins at {log.physical_min}: "
                "empty the slave's store, so that it copies the log anew",
            )
        if start > log.sendable_end:
            return self._close(
                slave,
                "future_offset",
                f"its log ends at {physical_end}, the master's at {log.sendable_end}: one of both "
                "has records that the other never had",
            )
        slave.is_receiving = True
        slave.next_offset, slave.acknowledged_end = start, physical_end
        return None

    def next_frame(
        self, slave: SlaveProgress, log: LogRange, *, body_bytes_max: int
    ) -> Frame | Close | None:
        """The next bytes for a slave; None if it has all of them."""
        start = slave.next_offset
        if not slave.is_receiving or start >= log.sendable_end:
            return None
        if start < log.physical_min:
            return self._close(
                slave, "reset_needed", f"it was to get {start}, which retention has removed"
            )
        segment_end = (start // log.segment_bytes + 1) * log.segment_bytes
        end = min(start + body_bytes_max, segment_end, log.sendable_end)
        return Frame(start, end - start)

    def pushed(self, slave: SlaveProgress, byte_count: int, now_ms: int) -> None:
        """These bytes went out to a slave."""
        slave.next_offset += byte_count
        slave.sent_bytes += byte_count
        slave.sent_ms = now_ms

    def expire(self, now_ms: int) -> list[Close | Beat]:
        """Links that were silent for too long, and heartbeats that are due."""
        effects: list[Close | Beat] = []
        for slave in list(self.slaves.values()):
            effect = self._expired(slave, now_ms)
            if effect is not None:
                effects.append(effect)
        return effects

    def _expired(self, slave: SlaveProgress, now_ms: int) -> Close | Beat | None:
        silent_ms = now_ms - slave.heard_ms
        if not slave.is_receiving:
            if silent_ms < self._limits.first_report_ms:
                return None
            text = f"it asked for nothing within {silent_ms} ms"
            return self._close(slave, "first_report_late", text)
        if silent_ms >= self._limits.housekeeping_interval_ms:
            return self._close(slave, "silent", f"it reported nothing for {silent_ms} ms")
        if now_ms - slave.sent_ms >= self._limits.heartbeat_interval_ms:
            slave.sent_ms = now_ms
            return Beat(slave.number, slave.next_offset)
        return None

    def lost(self, number: int) -> None:
        """A link ended."""
        self.slaves.pop(number, None)

    def acknowledged_ends(self) -> list[int]:
        """How far each slave that receives the log has it."""
        return [slave.acknowledged_end for slave in self.slaves.values() if slave.is_receiving]

    def _close(self, slave: SlaveProgress, reason: str, text: str) -> Close:
        del self.slaves[slave.number]
        return Close(slave.number, self._count(reason), text)

    def _count(self, reason: str) -> str:
        self.counts[reason] += 1
        return reason
