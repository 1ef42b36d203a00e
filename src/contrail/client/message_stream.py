"""``async for message in consumer``: the loop's body is the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from contrail.client.consumed_message import ConsumedMessage
from contrail.client.consuming import Begun, Bell, Supply, Watch
from contrail.clock import monotonic_ms

# A body that never waits would keep the loop from everything else.
_TURNS_MAX = 32


class MessageStream:
    """One loop over a consumer's messages; several may run side by side."""

    def __init__(
        self, supply: Supply, bell: Bell, watch: Watch, is_over: Callable[[], bool]
    ) -> None:
        self._supply = supply
        self._bell = bell
        self._watch = watch
        self._is_over = is_over
        self._in_hand: ConsumedMessage | None = None
        self._begun: Begun = (0, [])
        # Whose loop it is, and who has the message in hand; a thread asks from many tasks.
        self.owner = asyncio.current_task()
        self._task: asyncio.Task[Any] | None = None
        self._turn_count = 0

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> ConsumedMessage:
        supply = self._supply
        done = self._in_hand
        if done is not None:
            self._in_hand = None
            self._note_success(done)
            if not supply.succeeded_one(done):
                await supply.failed([done])
        self._turn_count += 1
        if self._turn_count % _TURNS_MAX == 0:
            await asyncio.sleep(0)
        while not self._is_over():
            message = supply.take_one()
            if message is not None:
                self._hand_out(message)
                return message
            await self._bell.wait()
        raise StopAsyncIteration

    def _hand_out(self, message: ConsumedMessage) -> None:
        if self._supply.has_more:
            # Another loop may stand idle.
            self._bell.ring()
        self._in_hand = message
        self._task = asyncio.current_task()
        if self._watch.hooks:
            self._begun = self._watch.begin([message])
        else:
            message.started_ms = monotonic_ms()
            self._begun = (message.started_ms, [])

    def _note_success(self, message: ConsumedMessage) -> None:
        if self._watch.hooks:
            self._watch.end([message], self._begun, is_content=True)
        else:
            counts = message.origin.figures.counts
            counts.ok_count += 1
            counts.handling_ms += monotonic_ms() - message.started_ms

    async def finish(self, error: BaseException | None = None) -> None:
        """The message in hand is done, or with an error is to come again."""
        message, self._in_hand = self._in_hand, None
        if message is None:
            return
        error = error or self._end_of_holder()
        self._watch.end([message], self._begun, is_content=error is None, error=error)
        if error is not None or not self._supply.succeeded_one(message):
            await self._supply.failed([message])

    def _end_of_holder(self) -> BaseException | None:
        """What ended the task that had the message, if it did not end by itself."""
        task = self._task
        if task is None or not task.done():
            return None
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    def is_in_other_hands(self, caller: asyncio.Task[Any] | None) -> bool:
        """Whether another task than the caller's works on a message."""
        task = self._task
        return (
            self._in_hand is not None
            and task is not None
            and task is not caller
            and not task.done()
        )

    @property
    def is_of_use(self) -> bool:
        return self._in_hand is not None or (self.owner is not None and not self.owner.done())
