"""Runs handlers: a bounded number concurrently, each message in exactly one of them.

A supply chooses the next messages and acts on the results: ``consuming_concurrent`` and
``consuming_orderly``. Handlers run in a fixed set of tasks, or of threads if they are plain
functions; a task per message would cost more than most handlers do.

A message that cannot be decoded is given to no handler. It counts as a message whose handler
failed: hooks and figures see it, it is retried and in the end given up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from contrail.client.consumed_message import ConsumedMessage, ConsumeResult
from contrail.client.handler_threads import Handled, HandlerThreads, enter_in_task, is_inside
from contrail.client.hooks import ConsumeHook, ConsumeOutcome
from contrail.clock import monotonic_ms
from contrail.errors import ClientError
from contrail.model.shown import shown

_log = logging.getLogger(__name__)

_FAILED_HOOK = object()
# Handlers that never wait would keep the loop from everything else.
_TURNS_MAX = 32

Batch = list[ConsumedMessage]
Begun = tuple[int, list[object]]
"""When handling began, and the values that hooks returned then."""


class Supply(Protocol):
    """The source of messages, as the workers see it."""

    def take(self, count_max: int) -> Batch:
        """The messages to handle now; empty when there are none.

        A message that cannot be decoded comes alone: it fails, and others must not fail with it.
        """
        ...

    def take_one(self) -> ConsumedMessage | None: ...

    def take_run(self, count_max: int) -> Batch:
        """Several messages that may be handled one after the other, from any queue."""
        ...

    def put_back(self, batch: Batch) -> None:
        """Take back messages that were taken and not begun."""
        ...

    def succeeded_one(self, message: ConsumedMessage) -> bool: ...

    def succeeded(self, batch: Batch) -> bool:
        """The handler succeeded; False when it retried some messages: then call ``failed`` too."""
        ...

    async def failed(self, batch: Batch) -> None: ...

    def abandoned(self, batch: Batch) -> None:
        """The handler was cut off: messages that are not settled come again."""
        ...

    @property
    def has_more(self) -> bool: ...


class Bell:
    """Wakes the workers that wait for work, one at a time."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def ring(self) -> bool:
        """Wake one worker; False when none waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False

    def ring_all(self) -> None:
        while self.ring():
            pass

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The wake-up goes on to a worker that still waits.
                self.ring()
            raise


class Handler:
    """The application's handler in the one form that workers call."""

    def __init__(self, function: Callable[..., Any], *, takes_list: bool) -> None:
        if not callable(function):
            raise ClientError(f"a handler must be callable, {shown(function)} is not")
        self.function = function
        self.takes_list = takes_list
        # An object may have an ``async def __call__``.
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )

    @property
    def is_caller(self) -> bool:
        """Whether this is called from within the handler, which cannot wait for its own end."""
        return is_inside(self)

    def arguments(self, batch: Batch) -> Batch | ConsumedMessage:
        return batch if self.takes_list else batch[0]


class HandlerRun:
    """Calls a handler, in this task or in a thread."""

    def __init__(self, handler: Handler, thread_count_max: int) -> None:
        self.handler = handler
        self.threads: HandlerThreads | None = None
        self.call: Callable[[Any], Awaitable[Any]] = handler.function
        if not handler.is_async:
            self.threads = HandlerThreads(handler.function, thread_count_max, handler)
            self.call = self.threads.call

    async def __call__(self, batch: Batch) -> bool:
        """Whether the handler succeeded; raises as the handler does.

        Raises:
            ClientError: the handler returned an unknown result.
        """
        return is_content(await self.call(self.handler.arguments(batch)))

    def close(self) -> None:
        if self.threads is not None:
            self.threads.close()


def is_content(result: object) -> bool:
    """Raises ``ClientError`` for an unknown result."""
    if result is None or result is ConsumeResult.SUCCESS:
        return True
    if result is ConsumeResult.LATER:
        return False
    raise ClientError(
        f"a handler returned {shown(result)}: return nothing, ConsumeResult.SUCCESS or "
        "ConsumeResult.LATER, or raise"
    )


class Watch:
    """Observes handling: counts, logs and calls the hooks."""

    def __init__(self, group: str, hooks: Sequence[ConsumeHook], timeout_ms: int) -> None:
        self.hooks = tuple(hooks)
        self._group = group
        self._timeout_ms = timeout_ms

    def begin(self, batch: Batch) -> Begun:
        """Begin; returns the value to hand to ``end``."""
        started_ms = monotonic_ms()
        for message in batch:
            message.started_ms = started_ms
        batch[0].origin.process_queue.last_consume_ms = started_ms
        if not self.hooks:
            return started_ms, []
        return started_ms, [self._ask_hook(hook, batch) for hook in self.hooks]

    def _ask_hook(self, hook: ConsumeHook, batch: Batch) -> object:
        try:
            return hook.before_consume(self._group, batch)
        except Exception:
            # A hook that fails must not keep a message from being handled.
            _log.exception("the hook %r failed before messages were handled", hook)
            return _FAILED_HOOK

    def end(
        self,
        batch: Batch,
        begun: Begun,
        *,
        is_content: bool,
        error: BaseException | None = None,
    ) -> None:
        started_ms, tokens = begun
        took_ms = monotonic_ms() - started_ms
        counts = batch[0].origin.figures.counts
        counts.handling_ms += took_ms
        if is_content:
            counts.ok_count += len(batch)
        else:
            counts.failed_count += len(batch)
            self._log_failure(batch[0], error)
        if tokens:
            self._tell_hooks(tokens, is_content, error, took_ms)

    def _log_failure(self, message: ConsumedMessage, error: BaseException | None) -> None:
        if message.decode_error is not None:
            _log.warning(
                "group %s: %s; its handler is not called, it was tried %d times before",
                self._group,
                message.decode_error,
                message.reconsume_times,
            )
            return
        _log.warning(
            "the handler of group %s failed: message %s of topic %r, handled %d times before",
            self._group,
            message.message_id,
            message.topic,
            message.reconsume_times,
            exc_info=error,
        )

    def _tell_hooks(
        self,
        tokens: Sequence[object],
        is_content: bool,
        error: BaseException | None,
        took_ms: int,
    ) -> None:
        outcome = ConsumeOutcome.SUCCESS if is_content else ConsumeOutcome.FAILED
        if error is not None:
            outcome = ConsumeOutcome.EXCEPTION
        elif is_content and took_ms >= self._timeout_ms:
            outcome = ConsumeOutcome.TIMED_OUT
        for hook, token in zip(self.hooks, tokens, strict=True):
            if token is _FAILED_HOOK:
                continue
            try:
                hook.after_consume(token, outcome, took_ms, error)
            except Exception:
                _log.exception("the hook %r failed after messages were handled", hook)


class Workers:
    """The tasks that handle messages."""

    def __init__(
        self,
        supply: Supply,
        bell: Bell,
        run: HandlerRun,
        watch: Watch,
        *,
        group: str,
        count_max: int,
        batch_count_max: int,
    ) -> None:
        self._supply = supply
        self._bell = bell
        self._run = run
        self._watch = watch
        self._group = group
        self._count_max = count_max
        self._batch_count_max = batch_count_max if run.handler.takes_list else 1
        self._tasks: set[asyncio.Task[None]] = set()
        # A worker was woken and has not started yet.
        self._is_calling = False
        self._is_stopping = False

    def call_one(self) -> None:
        """There is work: wake a worker, or start one."""
        if self._is_calling or self._is_stopping:
            return
        if self._bell.ring():
            self._is_calling = True
        elif len(self._tasks) < self._count_max:
            self._is_calling = True
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._work(), name=f"contrail-handler of {self._group}")
            self._tasks.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a worker of group %s failed", self._group, exc_info=task.exception())
        # This worker may have been woken for work that is still there.
        self._is_calling = False
        if self._supply.has_more:
            self.call_one()

    async def stop(self, timeout_s: float) -> None:
        """Take nothing new, and let busy workers finish; after the timeout they are cancelled."""
        self._is_stopping = True
        self._bell.ring_all()
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
            for task in late:
                _log.warning("a handler of group %s did not end in time", self._group)
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._run.close()

    async def _work(self) -> None:
        handler = self._run.handler
        self._is_calling = False
        enter_in_task(handler)
        if not handler.takes_list and not self._watch.hooks:
            if self._run.threads is None:
                await self._work_quickly()
            else:
                await self._work_in_threads(self._run.threads)
            return
        turn_count = 0
        while not self._is_stopping:
            if not await self._handle_next():
                await self._bell.wait()
                self._is_calling = False
            turn_count += 1
            if turn_count % _TURNS_MAX == 0:
                await asyncio.sleep(0)

    async def _work_quickly(self) -> None:
        """For one message at a time without hooks: the hot path, without spare calls."""
        supply, handle, turn_count = self._supply, self._run.call, 0
        ended_ms = monotonic_ms()
        while not self._is_stopping:
            message = supply.take_one()
            if message is None:
                await self._bell.wait()
                self._is_calling = False
                ended_ms = monotonic_ms()
                continue
            if not self._is_calling and supply.has_more:
                self.call_one()
            message.started_ms = started_ms = ended_ms
            try:
                if message.decode_error is not None:
                    raise message.decode_error
                result = await handle(message)
            except BaseException as error:
                await self._failed([message], (started_ms, []), error)
                result = message
            ended_ms = monotonic_ms()
            if result is None:
                counts = message.origin.figures.counts
                counts.ok_count += 1
                counts.handling_ms += ended_ms - started_ms
                if not supply.succeeded_one(message):
                    await supply.failed([message])
            elif result is not message:
                await self._judge([message], (started_ms, []), result)
            turn_count += 1
            if turn_count % _TURNS_MAX == 0:
                await asyncio.sleep(0)
                ended_ms = monotonic_ms()

    async def _work_in_threads(self, threads: HandlerThreads) -> None:
        supply = self._supply
        while not self._is_stopping:
            run = supply.take_run(threads.run_count)
            if not run:
                await self._bell.wait()
                self._is_calling = False
                continue
            if not self._is_calling and supply.has_more:
                self.call_one()
            await threads.handle(run, supply, self._conclude)

    async def _conclude(self, handled: Handled) -> None:
        message, result, error, started_ms, ended_ms = handled
        if error is not None:
            await self._failed([message], (started_ms, []), error)
        elif result is not None:
            await self._judge([message], (started_ms, []), result)
        else:
            counts = message.origin.figures.counts
            counts.ok_count += 1
            counts.handling_ms += ended_ms - started_ms
            if not self._supply.succeeded_one(message):
                await self._supply.failed([message])

    async def _handle_next(self) -> bool:
        """Whether there were messages to handle."""
        batch = self._supply.take(self._batch_count_max)
        if not batch:
            return False
        if self._supply.has_more:
            self.call_one()
        begun = self._watch.begin(batch)
        try:
            if batch[0].decode_error is not None:
                raise batch[0].decode_error
            result = await self._run.call(self._run.handler.arguments(batch))
        except BaseException as error:
            await self._failed(batch, begun, error)
        else:
            await self._judge(batch, begun, result)
        return True

    async def _judge(self, batch: Batch, begun: Begun, result: object) -> None:
        try:
            if inspect.isawaitable(result):
                # A handler without ``async`` that wraps a coroutine function.
                result = await result
            is_good = is_content(result)
        except BaseException as error:
            await self._failed(batch, begun, error)
            return
        self._watch.end(batch, begun, is_content=is_good)
        if not is_good or not self._supply.succeeded(batch):
            await self._supply.failed(batch)

    async def _failed(self, batch: Batch, begun: Begun, error: BaseException) -> None:
        """Whether the handler failed: a cancellation of its task from outside does not count.

        ``sys.exit()`` ends the program only where the program's own loop runs the handler. In a
        thread it ends the handler, which has failed.
        """
        is_cancelled = isinstance(error, asyncio.CancelledError)
        is_exit = not isinstance(error, Exception) and not is_cancelled
        if (is_cancelled and _is_cancelled_itself()) or (is_exit and self._run.threads is None):
            self._supply.abandoned(batch)
            raise error
        self._watch.end(batch, begun, is_content=False, error=error)
        await self._supply.failed(batch)


def _is_cancelled_itself() -> bool:
    """Whether this task is cancelled, not the future that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
