"""Pulls waiting for an arrival or a deadline. Holds them; the caller answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from contrail.broker.state.pull_plan import PullPlan
from contrail.protocol.command import Request
from contrail.protocol.frames import PullFrame
from contrail.wire.peer import Peer

# Deadlines are rounded up to this: a pull ends at most this much later than its client asked for,
# and all pulls that end together are found by one look.
DEADLINE_GRAIN_MS = 10
LONG_PULLS_MAX = 4096
"""How many pulls with long subscriptions are held."""


@dataclass(slots=True, eq=False)
class ParkedPull:
    """One held pull. ``scanned_to`` is how far its filter has looked in vain.

    ``deadline_ms`` is by ``Clock.elapsed_ms``: a step of the wall clock neither ends nor prolongs
    a hold.

    A pull of the fast path is kept as the frame kernel took it apart: that is ``fast``, and its
    request has no fields yet.
    """

    request: Request
    peer: Peer
    plan: PullPlan
    scanned_to: int
    deadline_ms: int
    fast: PullFrame | None = None
    is_long: bool = False


class ParkedPulls:
    """Held pulls by queue, oldest first, and by deadline. Each is taken out once."""

    def __init__(self) -> None:
        # The inner dictionaries are ordered sets: a pull leaves in one step, however many wait.
        self._queues: dict[tuple[bytes, int], dict[ParkedPull, None]] = {}
        self._ending: dict[int, dict[ParkedPull, None]] = {}
        # The keys of ``_ending``, as a heap without repeats.
        self._ends_ms: list[int] = []
        # Queues that stay in ``by_queue`` without a pull: pops wait there.
        self._also_watched: set[tuple[bytes, int]] = set()
        self._per_peer: dict[Peer, int] = {}
        self._count = 0
        self._long_count = 0

    def __len__(self) -> int:
        return self._count

    def park(
        self, pull: ParkedPull, *, count_max: int, count_per_peer_max: int | None = None
    ) -> bool:
        """Hold a pull; False when there are too many already, in all or of this peer."""
        if self._count >= count_max:
            return False
        count_of_peer = self._per_peer.get(pull.peer, 0)
        if count_per_peer_max is not None and count_of_peer >= count_per_peer_max:
            return False
        if pull.is_long:
            if self._long_count >= LONG_PULLS_MAX:
                return False
            self._long_count += 1
        self._per_peer[pull.peer] = count_of_peer + 1
        key = (pull.plan.topic, pull.plan.queue_id)
        held = self._queues.get(key)
        if held is None:
            self._queues[key] = {pull: None}
        else:
            held[pull] = None
        end_ms = _end_ms(pull)
        ending = self._ending.get(end_ms)
        if ending is None:
            self._ending[end_ms] = {pull: None}
            heappush(self._ends_ms, end_ms)
        else:
            ending[pull] = None
        self._count += 1
        return True

    def take(self, pull: ParkedPull) -> bool:
        """Hold the pull no longer; False when it is not held any more: another has answered it."""
        key = (pull.plan.topic, pull.plan.queue_id)
        held = self._queues.get(key)
        if held is None or pull not in held:
            return False
        del held[pull]
        if not held and key not in self._also_watched:
            del self._queues[key]
        ending = self._ending.get(_end_ms(pull))
        if ending is not None:
            # ``expire`` may have returned the pull before it was taken.
            ending.pop(pull, None)
        self._count -= 1
        self._long_count -= pull.is_long
        count_of_peer = self._per_peer.pop(pull.peer) - 1
        if count_of_peer:
            self._per_peer[pull.peer] = count_of_peer
        return True

    def also_watch(self, queue: tuple[bytes, int]) -> None:
        """Have arrivals in a queue announced although no pull waits there."""
        self._also_watched.add(queue)
        self._queues.setdefault(queue, {})

    def watch_no_more(self, queue: tuple[bytes, int]) -> None:
        """Undo ``also_watch``."""
        self._also_watched.discard(queue)
        if queue in self._queues and not self._queues[queue]:
            del self._queues[queue]

    def count_of(self, peer: Peer) -> int:
        """How many of a peer's are held."""
        return self._per_peer.get(peer, 0)

    @property
    def by_queue(self) -> dict[tuple[bytes, int], dict[ParkedPull, None]]:
        """By topic and queue id, live: the source of arrivals looks here whether any pull waits."""
        return self._queues

    def waiting_at(self, topic: bytes, queue_id: int) -> Collection[ParkedPull]:
        """The pulls of one queue, oldest first; live."""
        return self._queues.get((topic, queue_id), ())

    @property
    def next_end_ms(self) -> int | None:
        """When the time of the first held pull is over; None when none is held."""
        while self._ends_ms and not self._ending[self._ends_ms[0]]:
            del self._ending[heappop(self._ends_ms)]
        return self._ends_ms[0] if self._ends_ms else None

    def expire(self, elapsed_ms: int) -> list[ParkedPull]:
        """The pulls whose time is over, each returned once; they are held until they are taken."""
        overdue: list[ParkedPull] = []
        while (end_ms := self.next_end_ms) is not None and end_ms <= elapsed_ms:
            overdue += self._ending.pop(heappop(self._ends_ms))
        return overdue

    def __iter__(self) -> Iterator[ParkedPull]:
        for held in list(self._queues.values()):
            yield from list(held)


def _end_ms(pull: ParkedPull) -> int:
    return -(-pull.deadline_ms // DEADLINE_GRAIN_MS) * DEADLINE_GRAIN_MS
