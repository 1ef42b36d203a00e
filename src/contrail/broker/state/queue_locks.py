"""Which client of a group consumes a queue in order, until it stops saying so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contrail.broker.state.shares import THIS_HOST, Shares
from contrail.protocol.json_style import MessageQueue

EXPIRED_AFTER_MS = 60_000


LOCKS_MAX = 100_000
"""How many locks there may be at all."""
LOCKS_PER_ADDRESS_MAX = LOCKS_MAX // 4
"""How many of them one address may hold; this host may hold all."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    refreshed_ms: int
    # The address that it counts for.
    owner: str

    def expired(self, now_ms: int) -> bool:
        return now_ms - self.refreshed_ms > EXPIRED_AFTER_MS


class QueueLocks:
    """Locks by group and queue."""

    def __init__(
        self, *, count_max: int = LOCKS_MAX, count_per_address_max: int = LOCKS_PER_ADDRESS_MAX
    ) -> None:
        self.shares = Shares(count_max, count_per_address_max)
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self,
        group: str,
        queues: Iterable[MessageQueue],
        client_id: str,
        now_ms: int,
        *,
        owner: str = THIS_HOST,
    ) -> list[MessageQueue]:
        """Lock or refresh queues; returns those the client holds now.

        A lock is granted if it is free, the client's own, or older than a minute, as long as
        ``owner``, the client's address, may hold another one.
        """
        locks = self._groups.setdefault(group, {})
        held = [queue for queue in queues if self._take(locks, queue, client_id, now_ms, owner)]
        if not locks:
            del self._groups[group]
        return held

    def unlock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[MessageQueue]:
        """Release the client's own locks; returns the queues that were released."""
        locks = self._groups.get(group, {})
        released = [q for q in queues if q in locks and locks[q].client_id == client_id]
        for queue in released:
            self._drop(locks, queue)
        if not locks:
            self._groups.pop(group, None)
        return released

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that holds a queue's lock, if it is still valid."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or lock.expired(now_ms) else lock.client_id

    def has_unexpired(self, group: str, now_ms: int) -> bool:
        """Whether anybody consumes a queue of the group in order."""
        return any(not lock.expired(now_ms) for lock in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> int:
        """Forget the locks that nobody refreshes; returns how many."""
        count = 0
        for group in list(self._groups):
            locks = self._groups[group]
            overdue = [queue for queue, lock in locks.items() if lock.expired(now_ms)]
            for queue in overdue:
                self._drop(locks, queue)
            if not locks:
                del self._groups[group]
            count += len(overdue)
        return count

    def _take(
        self,
        locks: dict[MessageQueue, _Lock],
        queue: MessageQueue,
        client_id: str,
        now_ms: int,
        owner: str,
    ) -> bool:
        lock = locks.get(queue)
        if lock is not None and lock.client_id == client_id:
            lock.refreshed_ms = now_ms
            return True
        if lock is not None:
            if not lock.expired(now_ms):
                return False
            self._drop(locks, queue)
        if self.shares.room(owner) <= 0:
            return False
        locks[queue] = _Lock(client_id, now_ms, owner)
        self.shares.add(owner)
        return True

    def _drop(self, locks: dict[MessageQueue, _Lock], queue: MessageQueue) -> None:
        """Forget a lock that may have been forgotten already, when it is asked for twice."""
        lock = locks.pop(queue, None)
        if lock is not None:
            self.shares.remove(lock.owner)
