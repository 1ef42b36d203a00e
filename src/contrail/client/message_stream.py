"""``async for message in consumer``: the loop's body is the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from contrail.client.consumed_message import ConsumedMessage
from contrail.client.consuming import Batch, Bell, Supply, Watch

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
        self._in_hand: Batch = []
        self._begun: tuple[int, list[object]] = (0, [])
        self._task: asyncio.Task[object] | None = None
        self._turn_count = 0

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> ConsumedMessage:
        if self._in_hand:
            await self.finish()
        self._turn_count += 1
        if self._turn_count >= _TURNS_MAX:
            self._turn_count = 0
            await asyncio.sleep(0)
        while not self._is_over():
            batch = self._supply.take(1)
            if batch:
                return self._hand_out(batch)
            await self._bell.wait()
        raise StopAsyncIteration

    def _hand_out(self, batch: Batch) -> ConsumedMessage:
        if self._supply.has_more:
            self._bell.ring()
        self._in_hand = batch
        self._task = asyncio.current_task()
        self._begun = self._watch.begin(batch)
        return batch[0]

    async def finish(self, error: BaseException | None = None) -> None:
        """The message in hand is done, or with an error is to come again."""
        batch, self._in_hand = self._in_hand, []
        if not batch:
            return
        self._watch.end(batch, self._begun, is_content=error is None, error=error)
        if error is not None or not self._supply.succeeded(batch):
            await self._supply.failed(batch)

    @property
    def is_in_other_hands(self) -> bool:
        """Whether another task than this one works on a message."""
        task = self._task
        return (
            bool(self._in_hand)
            and task is not None
            and task is not asyncio.current_task()
            and not task.done()
        )
