"""Pulls waiting for an arrival or a deadline. Holds them; the caller answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contrail.broker.state.pull_plan import PullPlan
from contrail.kernels.frame_scan import Item
from contrail.protocol.command import Request
from contrail.wire.peer import Peer


@dataclass(slots=True, eq=False)
class ParkedPull:
    """One held pull. ``scanned_to`` is how far its filter has looked in vain.

    A pull like one before is kept as the kernel took it apart: it is ``usual``, and its request has
    no fields yet.
    """

    request: Request
    peer: Peer
    plan: PullPlan
    scanned_to: int
    deadline_ms: int
    usual: Item | None = None


class ParkedPulls:
    """Held pulls by queue, oldest first."""

    def __init__(self) -> None:
        self._queues: dict[tuple[bytes, int], list[ParkedPull]] = {}
        self._per_peer: Counter[Peer] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(
        self, pull: ParkedPull, *, count_max: int, count_per_peer_max: int | None = None
    ) -> bool:
        """Hold a pull; False when there are too many already, in all or of this peer."""
        if self._count >= count_max:
            return False
        if count_per_peer_max is not None and self._per_peer[pull.peer] >= count_per_peer_max:
            return False
        self._per_peer[pull.peer] += 1
        self._queues.setdefault((pull.plan.topic, pull.plan.queue_id), []).append(pull)
        self._count += 1
        return True

    def count_of(self, peer: Peer) -> int:
        """How many of a peer's are held."""
        return self._per_peer.get(peer, 0)

    @property
    def by_queue(self) -> dict[tuple[bytes, int], list[ParkedPull]]:
        """By topic and queue id, live: who tells of arrivals looks here whether anybody waits."""
        return self._queues

    def waiting_at(self, topic: bytes, queue_id: int) -> list[ParkedPull]:
        """The pulls of one queue; the caller calls ``done`` for those it answers."""
        return self._queues.get((topic, queue_id), [])

    def done(self, answered: list[ParkedPull]) -> None:
        """Forget these."""
        # One pass over each queue: to take pulls out of a long list one by one takes seconds.
        gone = set(answered)
        for key in {(pull.plan.topic, pull.plan.queue_id) for pull in gone}:
            held = self._queues.get(key, [])
            kept = [pull for pull in held if pull not in gone]
            self._count -= len(held) - len(kept)
            self._leave(pull.peer for pull in held if pull in gone)
            if kept:
                self._queues[key] = kept
            else:
                self._queues.pop(key, None)

    def _leave(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            self._per_peer[peer] -= 1
            if not self._per_peer[peer]:
                del self._per_peer[peer]

    def drop_closed(self) -> int:
        """Forget pulls whose peer is gone; returns how many."""
        gone = [pull for pull in self if pull.peer.is_closed]
        self.done(gone)
        return len(gone)

    def __iter__(self) -> Iterator[ParkedPull]:
        for held in list(self._queues.values()):
            yield from list(held)

    def of_topic(self, topic: bytes) -> list[ParkedPull]:
        return [pull for pull in self if pull.plan.topic == topic]
