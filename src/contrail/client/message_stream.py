"""``async for message in consumer``: the loop's body is the handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from contrail.client.consumed_message import ConsumedMessage
from contrail.client.consuming import Begun, Bell, Supply, Watch
from contrail.clock import monotonic_ms
from contrail.errors import ClientError

# A body that never waits would keep the loop from everything else.
_TURNS_MAX = 32
# How often ended threads are looked for, whose message in hand must come again.
_LOOK_AFTER_THREADS_S = 1.0

Owner = asyncio.Task[Any] | threading.Thread
"""The task or thread that owns a loop."""


class MessageStream:
    """One loop over a consumer's messages; several may run side by side."""

    def __init__(
        self,
        supply: Supply,
        bell: Bell,
        watch: Watch,
        is_over: Callable[[], bool],
        *,
        owner: Owner | None,
        task_ended: Callable[[MessageStream, asyncio.Task[Any]], None],
    ) -> None:
        self._supply = supply
        self._bell = bell
        self._watch = watch
        self._is_over = is_over
        self._owner = owner
        self._task_ended = task_ended
        self._in_hand: ConsumedMessage | None = None
        # Whether the loop with the message in hand was left, and another begun.
        self._is_left = False
        self._begun: Begun = (0, [])
        # The task that asked last: the owner, one it handed the loop to, or a task for a single
        # call. A thread's calls each come in a new task.
        self._task: asyncio.Task[Any] | None = None
        self._is_of_thread = isinstance(owner, threading.Thread)
        self._turn_count = 0

    def __aiter__(self) -> MessageStream:
        self.begin_again()
        return self

    async def __anext__(self) -> ConsumedMessage:
        supply = self._supply
        done = self._in_hand
        if done is not None:
            if self._is_left:
                await self._give_up()
            else:
                self._in_hand = None
                self._note_success(done)
                if not supply.succeeded_one(done):
                    await supply.failed([done])
        self._turn_count += 1
        if self._turn_count % _TURNS_MAX == 0:
            await asyncio.sleep(0)
        while not self._is_over():
            message = supply.take_one()
            if message is None:
                await self._bell.wait()
            elif message.decode_error is None:
                self._hand_out(message)
                return message
            else:
                await self._pass_over(message)
        raise StopAsyncIteration

    async def _pass_over(self, message: ConsumedMessage) -> None:
        """A message that cannot be decoded counts as failed by the loop's body."""
        begun = self._watch.begin([message])
        self._watch.end([message], begun, is_content=False, error=message.decode_error)
        await self._supply.failed([message])

    def _hand_out(self, message: ConsumedMessage) -> None:
        if self._supply.has_more:
            # Another loop may be waiting.
            self._bell.ring()
        self._in_hand = message
        self._is_left = False
        if not self._is_of_thread:
            self._note_task(asyncio.current_task())
        if self._watch.hooks:
            self._begun = self._watch.begin([message])
        else:
            message.started_ms = monotonic_ms()
            self._begun = (message.started_ms, [])

    def _note_task(self, task: asyncio.Task[Any] | None) -> None:
        if task is not self._task:
            self._task = task
            if task is not None and task is not self._owner:
                task.add_done_callback(lambda ended: self._task_ended(self, ended))

    def _note_success(self, message: ConsumedMessage) -> None:
        if self._watch.hooks:
            self._watch.end([message], self._begun, is_content=True)
        else:
            counts = message.origin.figures.counts
            counts.ok_count += 1
            counts.handling_ms += monotonic_ms() - message.started_ms

    # The end of a loop.

    def begin_again(self) -> None:
        """The owner begins another loop: whether the last one failed cannot be seen.

        Both ``break`` and an exception that is caught around the loop lead here. A message that
        comes twice is better than one that is lost.
        """
        self._is_left = True

    async def finish(self, error: BaseException | None = None) -> None:
        """Acknowledge the message in hand, or after an error have it retried."""
        if self._in_hand is not None and self._is_left and error is None:
            await self._give_up()
        else:
            await self._end(error)

    async def give_back(self) -> None:
        """Have the message in hand retried: no task works on it any more."""
        if self._in_hand is not None:
            await self._give_up(_failure(self._task) or _failure(self._owner))

    async def _give_up(self, error: BaseException | None = None) -> None:
        """Retry the message, unless the loop's body decided about it."""
        message = self._in_hand
        if error is None and message is not None and not message.is_out_of_hand:
            error = ClientError(
                "a loop was left with this message in hand, and not acknowledged: it comes again; "
                "call ack() before leaving a loop, or later() to say so"
            )
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        message, self._in_hand = self._in_hand, None
        if message is None:
            return
        self._watch.end([message], self._begun, is_content=error is None, error=error)
        if error is not None or not self._supply.succeeded_one(message):
            await self._supply.failed([message])

    # Ownership of messages.

    def is_of(self, caller: Owner | None) -> bool:
        return caller is not None and (caller is self._owner or caller is self._task)

    def is_in_other_hands(self, caller: Owner | None) -> bool:
        """Whether a task or thread other than the caller works on a message.

        The interpreter's exit, which is no thread's call, does not wait for threads.
        """
        if self._is_of_thread and not isinstance(caller, threading.Thread):
            return False
        return self._in_hand is not None and not self.is_of(caller) and self._is_held

    def is_left_by(self, task: asyncio.Task[Any]) -> bool:
        """Whether the end of this task leaves the message in hand without an owner."""
        if self._in_hand is None:
            return False
        # A task that was made for a single call ends well, and its owner goes on.
        return (task is self._task and _failure(task) is not None) or not self._is_held

    @property
    def _is_held(self) -> bool:
        return _is_alive(self._owner) or _is_alive(self._task)


class MessageStreams:
    """The loops of one consumer: at most one for each task or thread."""

    def __init__(
        self,
        supply: Supply,
        bell: Bell,
        watch: Watch,
        is_over: Callable[[], bool],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        self._supply = supply
        self._bell = bell
        self._watch = watch
        self._is_over = is_over
        self._spawn = spawn
        self._streams: dict[Owner | None, MessageStream] = {}
        self._giving_back: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def begin(self, owner: Owner | None) -> MessageStream:
        """A loop of a task or thread."""
        stream = self._streams.get(owner)
        if stream is not None:
            stream.begin_again()
            return stream
        stream = self._streams[owner] = MessageStream(
            self._supply,
            self._bell,
            self._watch,
            self._is_over,
            owner=owner,
            task_ended=self._task_ended,
        )
        if isinstance(owner, threading.Thread):
            if self._looking is None:
                self._looking = self._spawn(self._look_after_threads(), "loops of threads")
        elif owner is not None:
            owner.add_done_callback(self._owner_ended)
        return stream

    def _owner_ended(self, owner: asyncio.Task[Any]) -> None:
        stream = self._streams.pop(owner, None)
        if stream is not None:
            self._task_ended(stream, owner)

    def _task_ended(self, stream: MessageStream, task: asyncio.Task[Any]) -> None:
        if stream.is_left_by(task):
            self._give_back(stream)

    async def _look_after_threads(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AFTER_THREADS_S)
            for owner in list(self._streams):
                if isinstance(owner, threading.Thread) and not owner.is_alive():
                    self._give_back(self._streams.pop(owner))

    def _give_back(self, stream: MessageStream) -> None:
        # After the end no decision is needed: messages that are not acknowledged come again.
        if not self._is_over():
            task = self._spawn(stream.give_back(), "give back")
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    # The end.

    async def finish(self, caller: Owner | None, error: BaseException | None) -> None:
        """Acknowledge the caller's message in hand, or after an error have it retried."""
        for stream in list(self._streams.values()):
            if stream.is_of(caller):
                await stream.finish(error)

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def wait(self, caller: Owner | None, deadline_ms: int) -> None:
        """Wait for all loops with a message in hand, except the caller's."""
        while self._giving_back or any(
            stream.is_in_other_hands(caller) for stream in self._streams.values()
        ):
            if monotonic_ms() >= deadline_ms:
                break
            await asyncio.sleep(0.01)


def _is_alive(owner: Owner | None) -> bool:
    if owner is None:
        return False
    return owner.is_alive() if isinstance(owner, threading.Thread) else not owner.done()


def _failure(owner: Owner | None) -> BaseException | None:
    """The exception that ended a task, if any."""
    if owner is None or isinstance(owner, threading.Thread) or not owner.done():
        return None
    return asyncio.CancelledError() if owner.cancelled() else owner.exception()
