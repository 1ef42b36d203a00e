"""The producers of a chaos campaign: each sends in its own way until it is told to stop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Sequence

import contrail
from contrail.aio import HashSelector, Message, Producer, SendReceipt
from contrail.errors import ClientError
from tests.history.client_senders import ORDERED, PLAIN, SendNotes

DELAYED = "delayed"
TOPICS = (PLAIN, ORDERED, DELAYED)
# An election and what the machine's other work adds; a send that takes longer is told as unknown.
SEND_TIMEOUT_MS = 20_000
_DELAY_LEVELS = (1, 2, 3)
_CUSTOMERS = tuple(f"customer-{number}" for number in range(4))
_AGAIN_S = 0.1
_Way = Callable[["Producers", Producer], Awaitable[None]]


class Producers:
    """Eight producers; ``rest_s`` is the pause behind each message."""

    def __init__(
        self, notes: SendNotes, namesrv: str, chance: random.Random, *, rest_s: float
    ) -> None:
        self._notes = notes
        self._chance = chance
        self._rest_s = rest_s
        self._producers = [
            Producer(
                f"producers-{number}",
                namesrv,
                hooks=[notes],
                poll_name_server_interval_ms=3_000,
                send_timeout_ms=SEND_TIMEOUT_MS,
            )
            for number in range(len(_WAYS))
        ]
        self._blocking = contrail.Producer(
            "blocking-producers", namesrv, hooks=[notes], send_timeout_ms=SEND_TIMEOUT_MS
        )
        self._is_over = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for producer in self._producers:
            await producer.start()
        await asyncio.to_thread(self._blocking.start)

    async def close(self) -> None:
        await self.stop()
        for producer in self._producers:
            await producer.close()
        await asyncio.to_thread(self._blocking.close)

    def begin(self) -> None:
        """Send until ``stop``."""
        self._is_over.clear()
        works = [way(self, one) for way, one in zip(_WAYS, self._producers, strict=True)]
        works.append(asyncio.to_thread(self._from_a_thread, self._chance.randrange(1 << 30)))
        self._tasks = [asyncio.ensure_future(work) for work in works]

    async def stop(self) -> None:
        self._is_over.set()
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    # The ways to send.

    async def one_by_one(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            message = self._notes.new_message(self._chance, PLAIN)
            await self._heard([message], producer.send(message))
            await asyncio.sleep(self._rest_s)

    async def at_once(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            messages = self._some(2, 8)
            await asyncio.gather(*(self._heard([one], producer.send(one)) for one in messages))
            await asyncio.sleep(self._rest_s * len(messages))

    async def by_futures(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            messages = self._some(2, 6)
            for message, future in [(one, producer.send_async(one)) for one in messages]:
                await self._heard([message], future)
            await asyncio.sleep(self._rest_s * len(messages))

    async def in_batches(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            messages = self._some(2, 10)
            await self._heard(messages, producer.send_batch(messages))
            await asyncio.sleep(self._rest_s * len(messages))

    async def to_one_queue(self, producer: Producer) -> None:
        queues = await producer.publish_queues(PLAIN)
        while not self._is_over.is_set():
            message = self._notes.new_message(self._chance, PLAIN)
            await self._heard([message], producer.send(message, queue=self._chance.choice(queues)))
            await asyncio.sleep(self._rest_s)

    async def delayed(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            level = self._chance.choice(_DELAY_LEVELS)
            message = self._notes.new_message(self._chance, DELAYED, delay_level=level)
            await self._heard([message], producer.send(message))
            await asyncio.sleep(self._rest_s)

    async def in_order(self, producer: Producer) -> None:
        await asyncio.gather(*(self._for_customer(producer, one) for one in _CUSTOMERS))

    async def _for_customer(self, producer: Producer, customer: str) -> None:
        """The next message of a customer is sent once the one before is stored."""
        choose = HashSelector()
        queues = await producer.publish_queues(ORDERED)
        while not self._is_over.is_set():
            message = self._notes.new_message(self._chance, ORDERED, customer)
            queue = choose(queues, message, customer)
            while not await self._heard([message], producer.send(message, queue=queue)):
                pass
            await asyncio.sleep(self._rest_s * len(_CUSTOMERS))

    def _from_a_thread(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._is_over.wait(self._rest_s):
            message = self._notes.new_message(chance, PLAIN)
            try:
                self._notes.heard([message], self._blocking.send(message))
            except ClientError as error:
                self._notes.heard_no([message], error)

    # Small parts.

    def _some(self, least: int, most: int) -> list[Message]:
        count = self._chance.randint(least, most)
        return [self._notes.new_message(self._chance, PLAIN) for _ in range(count)]

    async def _heard(self, messages: Sequence[Message], answer: Awaitable[SendReceipt]) -> bool:
        """Whether the messages are stored for certain."""
        try:
            self._notes.heard(messages, await answer)
        except ClientError as error:
            self._notes.heard_no(messages, error)
            await asyncio.sleep(_AGAIN_S)
            return False
        return True


_WAYS: tuple[_Way, ...] = (
    Producers.one_by_one,
    Producers.at_once,
    Producers.by_futures,
    Producers.in_batches,
    Producers.to_one_queue,
    Producers.delayed,
    Producers.in_order,
)
"""With the one that blocks: eight producers."""
