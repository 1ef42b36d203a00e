"""Taking queues: a lock that is not used is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, cast

import pytest

from contrail.client import assigned_queues
from contrail.client.assigned_queues import AssignedQueues
from contrail.client.message import MessageQueue
from contrail.client.queue_locks import QueueLocks
from contrail.errors import ClientError
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere

QUEUE = MessageQueue("orders", "a", 0)
OTHERS = MessageQueue("orders", "a", 1)

Gate = Callable[[], Awaitable[None]]


async def _open() -> None:
    return None


class World:
    """The locks of a broker, and everything else that queues need."""

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
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_timestamp_ms=0,
            share_again=lambda: None,
        )

    async def lock(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, bool]:
        mine = {queue for queue in queues if queue != OTHERS}
        self.held |= mine
        await self._lock()
        return {queue: queue in mine for queue in queues}

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        self.unlocked.append(set(queues))
        self.held -= set(queues)

    async def remove(self, queue: MessageQueue) -> None:
        """There is no progress to forget."""

    async def persist(self) -> None:
        """There is none to keep."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)


def placing(monkeypatch: pytest.MonkeyPatch, place: Gate) -> None:
    async def start_place(*_: object) -> int:
        await place()
        return 0

    monkeypatch.setattr(assigned_queues, "start_place", start_place)


async def _forever() -> None:
    await asyncio.Event().wait()


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_locked", [False, True])
def test_who_is_cancelled_while_taking_a_queue_gives_its_lock_back(
    monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    async def main() -> None:
        placing(monkeypatch, _forever)
        world = World(lock=_open if is_locked else _forever)
        taking = asyncio.create_task(world.queues.take_share("orders", {QUEUE}))
        await until(lambda: world.held)
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await until(lambda: not world.held)

    asyncio.run(main())


def test_closing_gives_locks_back_that_are_just_being_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        placing(monkeypatch, _forever)
        world = World()
        taking = asyncio.create_task(world.queues.take_share("orders", {QUEUE}))
        await until(lambda: world.held)
        world.queues.stop_reading()
        await world.queues.close()
        assert not world.held
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)

    asyncio.run(main())


def test_a_queue_that_cannot_be_read_is_unlocked_and_those_of_others_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> None:
        raise ClientError("its place is not known")

    async def main() -> None:
        placing(monkeypatch, fail)
        world = World()
        assert not await world.queues.take_share("orders", {QUEUE, OTHERS})
        # Not before its broker has heard of it.
        assert not await world.queues.take_share("orders", {QUEUE})
        await until(lambda: not world.held)
        assert world.unlocked == [{QUEUE}]

    asyncio.run(main())
