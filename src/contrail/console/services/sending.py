"""The console's producer: opened at its first message, for few people send from a console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from contrail.client.message import Message, SendReceipt
from contrail.client.producer import Producer

GROUP = "contrail-console"


class Sending:
    """Sends one message at a time for each caller."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()

    async def send(self, message: Message) -> SendReceipt:
        async with self._opening:
            if self._producer is None:
                producer = self._make()
                await producer.start()
                self._producer = producer
        return await self._producer.send(message)

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.close()
