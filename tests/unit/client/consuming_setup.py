"""Readers, messages and send-backs that need no broker."""

from __future__ import annotations

from typing import Any, cast

from contrail.client.consumed_message import ConsumedMessage, lend
from contrail.client.message import MessageQueue
from contrail.client.queue_reader import QueueReader
from contrail.client.send_back import SendBack
from contrail.client.state.consume_figures import TopicFigures
from contrail.client.state.process_queue import ProcessQueue


class FakeReader:
    """One queue, as supplies and workers see it."""

    def __init__(self, queue_id: int = 0) -> None:
        self.queue = MessageQueue("orders", "broker-a", queue_id)
        self.process_queue: ProcessQueue[ConsumedMessage] = ProcessQueue(0)
        self.figures = TopicFigures()
        self.turn: object = None
        # Set by the supply.
        self.supply: Any = None

    async def give_back(self, message: ConsumedMessage, delay: Any) -> None:
        await self.supply.give_back(self, message, delay)

    async def bury(self, message: ConsumedMessage) -> None:
        await self.supply.bury(self, message)

    def acknowledge(self, message: ConsumedMessage) -> None:
        self.process_queue.settle(message.queue_offset)

    def pull(self, count: int) -> list[ConsumedMessage]:
        """Hold ``count`` more messages."""
        start = self.process_queue.next_queue_offset
        messages = [made(self, start + number) for number in range(count)]
        self.process_queue.pulled(messages, start + count)
        lend(messages, cast(QueueReader, self))
        return messages

    @property
    def real(self) -> QueueReader:
        return cast(QueueReader, self)

    @property
    def held(self) -> list[int]:
        return sorted(message.queue_offset for message in self.process_queue)


def made(reader: FakeReader, queue_offset: int) -> ConsumedMessage:
    return ConsumedMessage(
        "orders",
        str(queue_offset).encode(),
        reader.queue,
        queue_offset,
        f"id-{queue_offset}",
        "",
        {},
        0,
        0,
        0,
        0,
        0,
        queue_offset * 100,
        record_bytes=10,
    )


class FakeSendBack:
    """Notes messages sent back; refuses them while ``refuses`` is set."""

    def __init__(self) -> None:
        self.returned: list[tuple[int, int]] = []
        self.is_refusing = False

    async def give_back(self, message: ConsumedMessage, level: int) -> bool:
        if not self.is_refusing:
            self.returned.append((message.queue_offset, level))
        return not self.is_refusing

    async def send_anew(self, message: ConsumedMessage, level: int = 0) -> bool:
        return await self.give_back(message, level)

    @property
    def real(self) -> SendBack:
        return cast(SendBack, self)


def offsets(batch: list[Any]) -> list[int]:
    return [message.queue_offset for message in batch]
