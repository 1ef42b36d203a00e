"""How far a leader has got with one other member.

While the logs' last agreement is unknown the leader *probes*: one message at a time, until the
follower agrees. Then it *streams*: batches follow each other without waiting, up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """The positions of one member's log, as the leader knows them."""

    next_end: int
    """Where the next batch begins."""
    matched_end: int = 0
    """Up to here the follower's log agrees and is on its disk."""
    is_streaming: bool = False
    is_awaited: bool = False
    """A probe is under way."""
    answered_sent_ms: int | None = None
    """When the newest beat that was answered had been sent."""
    is_copying: bool = False
    """It has not yet again what it acknowledged before its folder was emptied: its copy does not
    count for commit."""

    def in_flight_bytes(self) -> int:
        return self.next_end - self.matched_end

    def may_send(self, in_flight_bytes_max: int) -> bool:
        if self.is_streaming:
            return self.in_flight_bytes() < in_flight_bytes_max
        return not self.is_awaited

    def sent(self, batch_end: int) -> None:
        if self.is_streaming:
            self.next_end = batch_end
        else:
            self.is_awaited = True

    def answered(self, sent_ms: int) -> None:
        """A beat sent at ``sent_ms`` was answered; answers may come out of order."""
        if self.answered_sent_ms is None or sent_ms > self.answered_sent_ms:
            self.answered_sent_ms = sent_ms

    def matched(self, matched_end: int) -> None:
        self.matched_end = max(self.matched_end, matched_end)
        self.next_end = max(self.next_end, self.matched_end)
        self.is_streaming, self.is_awaited = True, False

    def disagreed(self, common_end: int) -> None:
        """The logs may agree at ``common_end``, not behind it."""
        self.next_end = max(self.matched_end, common_end)
        self.is_streaming, self.is_awaited = False, False

    def connected(self) -> None:
        """A new link: what the member has is asked for anew, for it may have been emptied."""
        self.disconnected()
        self.matched_end = 0

    def disconnected(self) -> None:
        self.next_end = self.matched_end or self.next_end
        self.is_streaming, self.is_awaited = False, False
