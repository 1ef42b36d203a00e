"""The queues this consumer has: taken and given up when the group rebalances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from contrail.client.consumed_message import ConsumedMessage
from contrail.client.message import MessageQueue
from contrail.client.offset_stores import OffsetStore
from contrail.client.queue_locks import QueueLocks
from contrail.client.queue_reader import QueueReader, ReaderOwner
from contrail.client.start_places import StartPlaces
from contrail.client.state.process_queue import ProcessQueue
from contrail.clock import monotonic_ms
from contrail.errors import ClientError

_log = logging.getLogger(__name__)

# How long rebalancing waits for the handler of a queue that is given up; after that a task waits
# for it.
_RELEASE_S = 0.5
# How often locks are checked; the lease says when a lock is renewed.
_LOCKS_S = 0.5


class Supply(Protocol):
    """The supply of messages to handlers, as far as queues are added and dropped."""

    def dropped(self, reader: QueueReader) -> None: ...
    async def released(self, reader: QueueReader) -> None: ...


class AssignedQueues:
    """Readers by queue, their progress and their locks."""

    def __init__(
        self,
        owner: ReaderOwner,
        supply: Supply,
        offsets: OffsetStore,
        locks: QueueLocks | None,
        *,
        places: StartPlaces,
        share_again: Callable[[], None],
    ) -> None:
        self.readers: dict[MessageQueue, QueueReader] = {}
        self._owner = owner
        self._supply = supply
        self._offsets = offsets
        self._locks = locks
        self._places = places
        self._share_again = share_again
        # Queues being given up, while a handler has messages of them or their broker has not been
        # notified.
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        # Queues being given up whose handler is at work: their locks are kept until it is done.
        self._busy: dict[MessageQueue, QueueReader] = {}
        # Queues whose locks are requested, and that are not read yet.
        self._locking: set[MessageQueue] = set()
        self._is_closed = False

    async def take_share(self, topic: str, queues: set[MessageQueue]) -> bool:
        """Have exactly these queues of the topic; False when some cannot be taken yet."""
        if self._is_closed:
            return True
        gone = [
            queue
            for queue, reader in self.readers.items()
            if queue.topic == topic and (queue not in queues or reader.is_dead)
        ]
        await asyncio.gather(*(self._give_up(queue) for queue in gone))
        fresh = {queue for queue in queues if queue not in self.readers}
        free = fresh - self._leaving.keys()
        taken = await self._take(free)
        return taken and free == fresh

    # Taking.

    async def _take(self, queues: Collection[MessageQueue]) -> bool:
        if not queues:
            return True
        if self._locks is None:
            return all(await asyncio.gather(*map(self._take_one, queues)))
        self._locking.update(queues)
        try:
            asked_ms = monotonic_ms()
            held = await self._locks.lock(queues)
            self._locking.difference_update(queue for queue in held if held[queue] is None)
            locks = {queue: (asked_ms, grant) for queue, grant in held.items() if grant is not None}
            results = await asyncio.gather(*(self._take_one(*one) for one in locks.items()))
        finally:
            self._unlock_unused(self._locks, self._locking.intersection(queues))
        return all(results) and len(locks) == len(queues)

    def _unlock_unused(self, locks: QueueLocks, queues: set[MessageQueue]) -> None:
        """Unlock queues that are not read here after all, so that other members need not wait."""
        self._locking -= queues
        unused = queues - self.readers.keys() - self._leaving.keys()
        if unused:
            # In a task of its own: the task that took the queues may have been cancelled.
            task = self._owner.instance.spawn(self._unlock(locks, unused), "unlock unused queues")
            self._leaving.update(dict.fromkeys(unused, task))

    async def _unlock(self, locks: QueueLocks, queues: set[MessageQueue]) -> None:
        try:
            await locks.unlock(queues)
        finally:
            for queue in queues:
                del self._leaving[queue]

    async def _take_one(self, queue: MessageQueue, lock: tuple[int, int] | None = None) -> bool:
        """Read a queue; ``lock`` is the time its lock was requested, and the grant."""
        owner = self._owner
        try:
            await self._offsets.remove(queue)
            place = await self._places.of(queue)
        except ClientError as error:
            _log.warning("group %s cannot read %s yet: %s", owner.group, queue, error)
            return False
        process_queue: ProcessQueue[ConsumedMessage] = ProcessQueue(place)
        if self._locks is not None and lock is not None:
            asked_ms, grant = lock
            process_queue.lock(asked_ms, self._locks.lease(queue.broker_name).lasts_ms, grant)
            if not process_queue.holds_lock(monotonic_ms()):
                # Another member may have consumed from that offset meanwhile.
                return False
        if not self._is_closed and queue not in self.readers:
            self._add(queue, process_queue)
        return True

    def _add(self, queue: MessageQueue, process_queue: ProcessQueue[ConsumedMessage]) -> None:
        place = process_queue.next_queue_offset
        process_queue.last_pull_ms = monotonic_ms()
        reader = self.readers[queue] = QueueReader(self._owner, queue, process_queue)
        reader.start()
        _log.info("group %s reads %s from %d on", self._owner.group, queue, place)

    # Giving up.

    async def _give_up(self, queue: MessageQueue, *, place: int | None = None) -> None:
        """Let go of a queue; ``place`` is where the group resumes, if not at its offset."""
        task = self._begin_to_give_up(queue, place)
        if task is not None:
            await asyncio.wait({task}, timeout=_RELEASE_S)

    def _begin_to_give_up(
        self, queue: MessageQueue, place: int | None = None
    ) -> asyncio.Task[None] | None:
        reader = self.readers.pop(queue, None)
        if reader is None:
            return None
        _log.info("group %s gives up %s", self._owner.group, queue)
        reader.drop()
        self._supply.dropped(reader)
        self._busy[queue] = reader
        task = self._owner.instance.spawn(self._let_go(reader, place), f"give up {queue}")
        self._leaving[queue] = task
        return task

    async def _let_go(self, reader: QueueReader, place: int | None) -> None:
        queue = reader.queue
        try:
            await self._supply.released(reader)
            if place is not None or self._is_ours(reader):
                self._note(reader, place)
                await self._offsets.persist({queue})
            await self._offsets.remove(queue)
            del self._busy[queue]
            if self._locks is not None:
                await self._locks.unlock({queue})
        finally:
            self._busy.pop(queue, None)
            del self._leaving[queue]

    def _is_ours(self, reader: QueueReader) -> bool:
        """Whether no other member can have this queue now."""
        return self._locks is None or reader.process_queue.holds_lock(monotonic_ms())

    def _fence(self, reader: QueueReader) -> None:
        """Drop a queue that another member may have, or have had, without noting its progress.

        No handler of the queue starts any more. If the queue is assigned again, it is taken with a
        new lock and from the group's offset at that time.
        """
        reader.process_queue.is_locked = False
        self._offsets.forget(reader.queue)
        if self.readers.get(reader.queue) is reader:
            _log.warning(
                "group %s stops with %s: its lock is not ours any more, or was not for a while",
                self._owner.group,
                reader.queue,
            )
            self._begin_to_give_up(reader.queue)
            self._share_again()

    def _note(self, reader: QueueReader, place: int | None = None) -> None:
        progress = reader.process_queue.consumer_offset
        if place is not None:
            self._offsets.update(reader.queue, place)
        elif progress is not None:
            self._offsets.update(reader.queue, progress, increase_only=True)

    async def move(self, places: Mapping[MessageQueue, int]) -> None:
        """Move to other offsets: the queues are given up, and taken again from there."""
        moving = [queue for queue in places if queue in self.readers]
        await asyncio.gather(*(self._give_up(queue, place=places[queue]) for queue in moving))
        self._share_again()

    # Progress.

    async def persist(self) -> None:
        """Write the progress of queues that are certainly ours."""
        ours = {queue: one for queue, one in self.readers.items() if self._is_ours(one)}
        for reader in ours.values():
            self._note(reader)
        await self._offsets.persist(ours if self._locks is not None else None)

    def progress(self, topic: str) -> dict[MessageQueue, int]:
        """This member's consumer offsets of a topic."""
        places: dict[MessageQueue, int] = {}
        for queue, reader in self.readers.items():
            if queue.topic == topic:
                place = reader.process_queue.consumer_offset
                # An idle queue's first pull is answered late: until then the stored offset counts.
                place = self._offsets.known(queue) if place is None else place
                if place is not None:
                    places[queue] = place
        return places

    # Locks.

    async def renew_locks_forever(self, locks: QueueLocks) -> None:
        while True:
            await asyncio.sleep(_LOCKS_S)
            await self.renew_locks(locks, self._due_locks(locks))

    def _due_locks(self, locks: QueueLocks) -> list[MessageQueue]:
        now_ms = monotonic_ms()
        return [
            queue
            for queue, reader in [*self.readers.items(), *self._busy.items()]
            if now_ms - reader.process_queue.locked_ms >= locks.lease(queue.broker_name).renew_ms
        ]

    async def renew_locks(self, locks: QueueLocks, queues: Collection[MessageQueue]) -> None:
        """Locks of brokers that do not answer stay as they are, until they expire."""
        if not queues:
            return
        asked_ms = monotonic_ms()
        for queue, grant in (await locks.lock(queues)).items():
            reader = self.readers.get(queue) or self._busy.get(queue)
            if reader is None:
                continue
            lasts_ms = locks.lease(queue.broker_name).lasts_ms
            if grant is not None and reader.process_queue.renew(
                asked_ms=asked_ms, answered_ms=monotonic_ms(), lasts_ms=lasts_ms, grant=grant
            ):
                reader.wake()
            else:
                self._fence(reader)

    # The end.

    def stop_reading(self) -> None:
        """Pull no more; handlers finish the messages they have."""
        self._is_closed = True
        for reader in self.readers.values():
            reader.stop()

    async def close(self) -> None:
        """Write the progress, and release the queues to other members."""
        for reader in self.readers.values():
            reader.drop()
            self._supply.dropped(reader)
        if self._leaving:
            await asyncio.wait(set(self._leaving.values()), timeout=_RELEASE_S)
        await self.persist()
        if self._locks is not None:
            await self._locks.unlock(self._locking.union(self.readers))
            self._locking.clear()
        self.readers.clear()
