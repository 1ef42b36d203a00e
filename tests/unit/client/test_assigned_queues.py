"""Taking queues: a lock that is not used is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, cast

import pytest

from contrail.client import assigned_queues
from contrail.client.assigned_queues import AssignedQueues
from contrail.client.consumer_settings import ConsumerSettings
from contrail.client.message import MessageQueue
from contrail.client.queue_locks import SHORT_LEASE, Held, Lease, QueueLocks
from contrail.client.queue_reader import QueueReader
from contrail.client.state.consume_figures import TopicFigures
from contrail.errors import ClientError
from contrail.testing import eventually_async

QUEUE = MessageQueue("orders", "a", 0)
OTHERS = MessageQueue("orders", "a", 1)

Gate = Callable[[], Awaitable[None]]


async def _open() -> None:
    return None


class Places:
    """Where queues start."""

    async def of(self, queue: MessageQueue) -> int:
        return 0


class World:
    """The locks of a broker, and the other parts that queues need."""

    group = "g"

    def __init__(self, *, lock: Gate = _open) -> None:
        self.held: set[MessageQueue] = set()
        self.unlocked: list[set[MessageQueue]] = []
        self.instance = self
        self._lock = lock
        self.queues = AssignedQueues(
            cast(Any, self),
            cast(Any, self),
            cast(Any, self),
            cast(QueueLocks, self),
            places=cast(Any, Places()),
            share_again=lambda: None,
        )

    async def lock(self, queues: Collection[MessageQueue]) -> Held:
        mine = {queue for queue in queues if queue != OTHERS}
        self.held |= mine
        await self._lock()
        return {queue: 7 if queue in mine else None for queue in queues}

    def lease(self, broker_name: str) -> Lease:
        return SHORT_LEASE

    def forget(self, queue: MessageQueue) -> None:
        """There is no progress to forget."""

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        self.unlocked.append(set(queues))
        self.held -= set(queues)

    async def remove(self, queue: MessageQueue) -> None:
        """There is no progress to forget."""

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> None:
        """There is no progress to write."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)


def placing(monkeypatch: pytest.MonkeyPatch, place: Gate) -> None:
    async def of(*_: object) -> int:
        await place()
        return 0

    monkeypatch.setattr(Places, "of", of)


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_cancelled_take_of_a_queue_releases_its_lock(
    monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    async def main() -> None:
        placing(monkeypatch, _forever)
        world = World(lock=_open if is_locked else _forever)
        taking = asyncio.create_task(world.queues.take_share("orders", {QUEUE}))
        await eventually_async(lambda: world.held)
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await eventually_async(lambda: not world.held)

    asyncio.run(main())


def test_closing_releases_locks_that_are_being_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        placing(monkeypatch, _forever)
        world = World()
        taking = asyncio.create_task(world.queues.take_share("orders", {QUEUE}))
        await eventually_async(lambda: world.held)
        world.queues.stop_reading()
        await world.queues.close()
        assert not world.held
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)

    asyncio.run(main())


def test_an_unreadable_queue_is_unlocked_and_other_queues_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> None:
        raise ClientError("its place is not known")

    async def main() -> None:
        placing(monkeypatch, fail)
        world = World()
        assert not await world.queues.take_share("orders", {QUEUE, OTHERS})
        # Not before its broker has the unlock request.
        assert not await world.queues.take_share("orders", {QUEUE})
        await eventually_async(lambda: not world.held)
        assert world.unlocked == [{QUEUE}]

    asyncio.run(main())


# Locks that run out.


class Hands(World):
    """Queues being read, on a fixed clock; a handler may be at work."""

    needs_locks = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        placing(monkeypatch, _open)
        self.now_ms = 1_000
        self.grant: int | None = 7
        self.is_answering = True
        self.is_busy = False
        self.written: list[int] = []
        self.noted: dict[MessageQueue, int] = {}
        self.settings = ConsumerSettings()
        monkeypatch.setattr(assigned_queues, "monotonic_ms", lambda: self.now_ms)
        monkeypatch.setattr(QueueReader, "start", lambda reader: None)

    async def lock(self, queues: Collection[MessageQueue]) -> Held:
        return dict.fromkeys(queues, self.grant) if self.is_answering else {}

    def figures_of(self, topic: str) -> TopicFigures:
        return TopicFigures()

    def dropped(self, reader: QueueReader) -> None:
        """No handler starts."""

    async def released(self, reader: QueueReader) -> None:
        await eventually_async(lambda: not self.is_busy)

    def update(self, queue: MessageQueue, place: int, *, increase_only: bool = False) -> None:
        self.noted[queue] = place

    def forget(self, queue: MessageQueue) -> None:
        self.noted.pop(queue, None)

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> None:
        self.written += [
            place for queue, place in self.noted.items() if queues is None or queue in queues
        ]

    async def taken(self) -> QueueReader:
        assert await self.queues.take_share("orders", {QUEUE})
        reader = self.queues.readers[QUEUE]
        reader.process_queue.pulled([], 42)
        return reader

    async def renew(self) -> None:
        await self.queues.renew_locks(cast(QueueLocks, self), [QUEUE])


def hands(test: Callable[[Hands], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            await test(Hands(monkeypatch))

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@hands
async def test_progress_is_written_while_the_lock_is_valid(world: Hands) -> None:
    await world.taken()
    world.now_ms += 4_500
    await world.queues.persist()
    assert world.written == [42]


@pytest.mark.proves("client.failover.lock-end")
@hands
async def test_no_progress_is_written_once_another_member_may_have_the_lock(world: Hands) -> None:
    await world.taken()
    world.now_ms += 4_501
    await world.queues.persist()
    assert world.written == []
    world.queues.stop_reading()
    await world.queues.close()
    assert world.written == []


@hands
async def test_a_lock_that_ran_out_and_no_other_member_took_is_valid_again(world: Hands) -> None:
    reader = await world.taken()
    world.now_ms += 20_000
    await world.renew()
    assert world.queues.readers == {QUEUE: reader}
    await world.queues.persist()
    assert world.written == [42]


@hands
async def test_a_queue_that_another_member_had_is_taken_anew(world: Hands) -> None:
    for grant in (None, 8):
        reader = await world.taken()
        world.grant, world.is_busy = grant, True
        await world.renew()
        assert reader.process_queue.is_dropped
        assert QUEUE not in world.queues.readers
        world.grant = 9
        assert not await world.queues.take_share("orders", {QUEUE}), "its handler is still at work"
        world.is_busy = False
        await eventually_async(lambda: world.unlocked)
        world.unlocked.clear()
        await asyncio.sleep(0)
        assert world.written == []
    await world.taken()


@hands
async def test_the_lock_of_a_queue_being_given_up_is_kept_while_a_handler_has_its_messages(
    world: Hands,
) -> None:
    await world.taken()
    world.is_busy = True
    await world.queues.take_share("orders", set())
    world.now_ms += 4_000
    assert world.queues._due_locks(cast(QueueLocks, world)) == [QUEUE]
    await world.renew()
    world.now_ms += 4_000
    world.is_busy = False
    await eventually_async(lambda: world.unlocked)
    assert world.written == [42]


@hands
async def test_a_lock_is_valid_from_the_time_of_its_request(world: Hands) -> None:
    async def late(queues: Collection[MessageQueue]) -> Held:
        world.now_ms += 4_501
        return dict.fromkeys(queues, 7)

    world.lock = late  # type: ignore[method-assign]
    assert not await world.queues.take_share("orders", {QUEUE})
    assert QUEUE not in world.queues.readers


@hands
async def test_a_lock_stays_as_it_is_when_its_broker_does_not_answer(world: Hands) -> None:
    reader = await world.taken()
    world.is_answering = False
    await world.renew()
    assert world.queues.readers == {QUEUE: reader}
