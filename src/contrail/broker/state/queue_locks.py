"""Locks of queues: one client of a group consumes a queue in order while it renews its lock.

A lock ends a time after its last renewal:

    ======================================================  =============================
    its client                                              the lock ends after
    ======================================================  =============================
    is connected and sends heartbeats for the group         60 s
    is gone                                                 30 s, or what it has announced
    ======================================================  =============================

A closed connection alone does not end a lock: Java clients close a socket after a
timeout and go on handling until 30 s after their last renewal. A client that stops sooner says so
in its heartbeats. Its announcement at the renewal of a lock counts for that lock, so no later word
ends the lock sooner than its client stops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from contrail.broker.state.shares import THIS_HOST, Shares
from contrail.protocol.json_style import MessageQueue

EXPIRED_AFTER_MS = 60_000
GONE_AFTER_MS = 30_000


class Member(Protocol):
    """A connected client of a group."""

    @property
    def goes_on_ms(self) -> int:
        """How long it handles messages without its broker; 0: it has not said."""
        ...


class Members(Protocol):
    """The clients that are connected and send heartbeats."""

    def channel_of(self, group: str, client_id: str) -> Member | None: ...
    def client_ids(self, group: str) -> set[str]: ...


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
    # How long it lasts after a renewal once its client is gone.
    goes_on_ms: int
    # A new number each time the lock goes to another client.
    grant: int

    def expired(self, now_ms: int, *, is_gone: bool) -> bool:
        lasts_ms = self.goes_on_ms if is_gone else EXPIRED_AFTER_MS
        return now_ms - self.refreshed_ms > lasts_ms


class QueueLocks:
    """Locks by group and queue; without ``members`` every holder counts as connected."""

    def __init__(
        self,
        members: Members | None = None,
        *,
        count_max: int = LOCKS_MAX,
        count_per_address_max: int = LOCKS_PER_ADDRESS_MAX,
    ) -> None:
        self._members = members
        self.shares = Shares(count_max, count_per_address_max)
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        # Groups that a client has left which may hold locks.
        self._left: set[str] = set()
        self._last_grant = 0

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

        A lock is granted if it is free, the client's own, or ended, as long as ``owner``, the
        client's address, may hold another one.
        """
        locks = self._groups.setdefault(group, {})
        member = None if self._members is None else self._members.channel_of(group, client_id)
        goes_on_ms = None if member is None else member.goes_on_ms or GONE_AFTER_MS
        held = [
            queue
            for queue in queues
            if self._take(group, locks, queue, client_id, goes_on_ms, now_ms, owner)
        ]
        if not locks:
            del self._groups[group]
        elif member is None:
            self.client_left(group)
        return held

    def _take(
        self,
        group: str,
        locks: dict[MessageQueue, _Lock],
        queue: MessageQueue,
        client_id: str,
        goes_on_ms: int | None,
        now_ms: int,
        owner: str,
    ) -> bool:
        lock = locks.get(queue)
        if lock is not None and lock.client_id == client_id:
            lock.refreshed_ms = now_ms
            # A client that has not sent its heartbeat over a new connection is the same client.
            lock.goes_on_ms = goes_on_ms or lock.goes_on_ms
            return True
        if lock is not None:
            if not self._expired(group, lock, now_ms):
                return False
            self._drop(locks, queue)
        if self.shares.room(owner) <= 0:
            return False
        self.shares.add(owner)
        # Times tell locks granted before a restart from those after it.
        self._last_grant = max(now_ms, self._last_grant + 1)
        locks[queue] = _Lock(
            client_id, now_ms, owner, goes_on_ms or GONE_AFTER_MS, self._last_grant
        )
        return True

    def grants(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[int] | None:
        """A number for each lock that its client holds: the same as long as nobody else had it.

        None for a client that announces nothing: only Contrail's own reads them.
        """
        member = None if self._members is None else self._members.channel_of(group, client_id)
        if member is None or not member.goes_on_ms:
            return None
        locks = self._groups.get(group, {})
        return [locks[queue].grant for queue in queues]

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
        return None if lock is None or self._expired(group, lock, now_ms) else lock.client_id

    def has_unexpired(self, group: str, now_ms: int) -> bool:
        """Whether anybody consumes a queue of the group in order."""
        locks = self._groups.get(group, {}).values()
        return any(not self._expired(group, lock, now_ms) for lock in locks)

    def expire(self, now_ms: int) -> int:
        """Forget the locks that nobody refreshes; returns how many."""
        return sum(self._expire_group(group, now_ms) for group in list(self._groups))

    def client_left(self, group: str) -> None:
        """A client of the group is gone; whether it holds locks shows ``end_of_gone``."""
        if group in self._groups:
            self._left.add(group)

    def end_of_gone(self, now_ms: int) -> list[str]:
        """End the locks of clients that are gone; returns the groups with queues to be had now."""
        ended = [group for group in self._left if self._expire_group(group, now_ms)]
        self._left = {group for group in self._left if self._has_gone(group)}
        return ended

    def _has_gone(self, group: str) -> bool:
        connected = self._connected(group)
        locks = self._groups.get(group, {}).values()
        return connected is not None and any(lock.client_id not in connected for lock in locks)

    def _expire_group(self, group: str, now_ms: int) -> int:
        """All locks of a group together: its members are looked up once, not for every lock."""
        locks, connected = self._groups.get(group, {}), self._connected(group)
        overdue = [
            queue
            for queue, lock in locks.items()
            if lock.expired(
                now_ms, is_gone=connected is not None and lock.client_id not in connected
            )
        ]
        for queue in overdue:
            self._drop(locks, queue)
        if not locks:
            self._groups.pop(group, None)
        return len(overdue)

    def _connected(self, group: str) -> set[str] | None:
        """The ids of the connected clients; None where everybody counts as connected."""
        return None if self._members is None else self._members.client_ids(group)

    def _expired(self, group: str, lock: _Lock, now_ms: int) -> bool:
        if self._members is None or now_ms - lock.refreshed_ms <= lock.goes_on_ms:
            return lock.expired(now_ms, is_gone=False)
        is_gone = self._members.channel_of(group, lock.client_id) is None
        return lock.expired(now_ms, is_gone=is_gone)

    def forget_all(self) -> None:
        """The locks are given by another broker from now on, which knows none of these."""
        for locks in self._groups.values():
            for queue in list(locks):
                self._drop(locks, queue)
        self._groups.clear()
        self._left.clear()

    def _drop(self, locks: dict[MessageQueue, _Lock], queue: MessageQueue) -> None:
        """Forget a lock that may have been forgotten already, when it is asked for twice."""
        lock = locks.pop(queue, None)
        if lock is not None:
            self.shares.remove(lock.owner)
