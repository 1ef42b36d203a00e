"""Gives popped messages to a function: renews while it works, acknowledges when it returns."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from contrail.client.popping import PoppedMessage
from contrail.client.state.retry_delays import FIRST_RETRY_LEVEL, LEVEL_MAX, delay_ms
from contrail.errors import ClientError

_log = logging.getLogger(__name__)

_WAIT_MS = 15_000
_AGAIN_S = 1.0
_CLOSE_S = 10.0
# Renewed when this part of the invisible time is over.
_RENEW_PART = 2

MessageHandler = Callable[[PoppedMessage], Any]
"""``def``, which is called in a thread, or ``async def``. Its result does not matter."""


class Source(Protocol):
    """The consumer, as far as handling needs it."""

    async def receive(self, count_max: int | None, timeout_ms: int) -> list[PoppedMessage]: ...
    async def ack(self, *messages: PoppedMessage) -> None: ...
    async def extend(self, message: PoppedMessage, invisible_ms: int) -> None: ...


class PopHandling:
    """Handles messages of one consumer, a bounded number at once."""

    def __init__(self, source: Source, handler: MessageHandler, concurrency: int) -> None:
        self._source = source
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._concurrency = concurrency
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Receive and handle until cancelled; then handlers have ten seconds to finish."""
        try:
            while True:
                while len(self._tasks) >= self._concurrency:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._receive(self._concurrency - len(self._tasks))
        finally:
            if self._tasks:
                _, late = await asyncio.wait(set(self._tasks), timeout=_CLOSE_S)
                for task in late:
                    _log.warning("a handler did not end in time: its message comes again")
                    task.cancel()

    async def _receive(self, count_max: int) -> None:
        try:
            found = await self._source.receive(count_max, _WAIT_MS)
        except ClientError as error:
            _log.warning("messages could not be received, tried again: %s", error)
            await asyncio.sleep(_AGAIN_S)
            return
        for message in found:
            task = asyncio.get_running_loop().create_task(self._handle(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, message: PoppedMessage) -> None:
        renewing = asyncio.get_running_loop().create_task(self._renew_forever(message))
        problem: Exception | None = None
        try:
            await self._call(message)
        except Exception as error:
            _log.warning(
                "the handler failed: %s, handed out for the %d. time",
                message,
                message.attempt,
                exc_info=error,
            )
            problem = error
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self._settle(message, is_done=problem is None)

    def _call(self, message: PoppedMessage) -> Awaitable[Any]:
        if self._is_async:
            called: Awaitable[Any] = self._handler(message)
            return called
        return asyncio.to_thread(self._handler, message)

    async def _settle(self, message: PoppedMessage, *, is_done: bool) -> None:
        level = min(FIRST_RETRY_LEVEL + message.reconsume_times, LEVEL_MAX)
        try:
            if is_done:
                await self._source.ack(message)
            else:
                await self._source.extend(message, delay_ms(level))
        except ClientError as error:
            _log.warning("%s may come again: %s", message, error)

    async def _renew_forever(self, message: PoppedMessage) -> None:
        invisible_ms = message.receipt.invisible_ms
        while True:
            await asyncio.sleep(invisible_ms / 1000 / _RENEW_PART)
            try:
                await self._source.extend(message, invisible_ms)
            except ClientError as error:
                _log.warning("%s may come again while it is handled: %s", message, error)
