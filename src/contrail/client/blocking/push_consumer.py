"""The blocking push consumer, and the messages its handlers get."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar, Unpack

from contrail.client.background import BackgroundLoop, background_loop
from contrail.client.blocking.client import BlockingClient
from contrail.client.consumed_message import ConsumedMessage as AsyncConsumedMessage
from contrail.client.hooks import ConsumeHook
from contrail.client.message import MessageQueue, SendReceipt
from contrail.client.message_stream import MessageStream
from contrail.client.options import PushOptions
from contrail.client.push_consumer import PushConsumer as AsyncPushConsumer
from contrail.client.subscriptions import Sql92
from contrail.model.topic import TRACE_TOPIC

F = TypeVar("F", bound=Callable[..., Any])


class ConsumedMessage(AsyncConsumedMessage):
    """A message for a handler. The first of ``ack``, ``later`` and ``dead_letter`` counts.

    A handler that calls none acknowledges by returning and asks for a retry by raising.
    """

    __slots__ = ()

    def ack(self) -> None:  # type: ignore[override]
        """Acknowledge: the message does not come again. Does nothing on a settled message."""
        background_loop().run(super().ack)

    def later(self, delay: int | float | timedelta | None = None) -> None:  # type: ignore[override]
        """Let the message come again: an ``int`` is a delay level (1 to 18), a ``float`` seconds.

        Raises:
            ConfigError: no such delay.
        """
        background_loop().run(super().later, delay)

    def dead_letter(self) -> None:  # type: ignore[override]
        """Give the message up: it goes to the group's dead-letter topic."""
        background_loop().run(super().dead_letter)

    def reply(self, body: bytes) -> SendReceipt:  # type: ignore[override]
        """Answer a request-reply call.

        Raises:
            ClientError: the message is no request, or the answer could not be sent.
        """
        return background_loop().run(super().reply, body)


def _blocking(message: AsyncConsumedMessage) -> ConsumedMessage:
    """The same object, with methods that block the caller."""
    message.__class__ = ConsumedMessage
    assert isinstance(message, ConsumedMessage)
    return message


class PushConsumer(BlockingClient[AsyncPushConsumer]):
    """Consumes for a group. Use it in ``with``, or ``start`` and ``close``.

    A handler, ``@consumer.on_message``, runs in a pool of ``consume_thread_max`` threads; it
    acknowledges by returning and asks for a retry by raising. Without one, loop:
    ``for message in consumer``; asking for the next message acknowledges the one before, and so
    does leaving the ``with`` block. An exception that leaves the block sends it back, and so does
    beginning another loop.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        telemetry: bool | None = None,
        hooks: Sequence[ConsumeHook] = (),
        **options: Unpack[PushOptions],
    ) -> None:
        super().__init__(
            AsyncPushConsumer(
                group,
                namesrv,
                trace=trace,
                trace_topic=trace_topic,
                telemetry=telemetry,
                hooks=hooks,
                **options,
            )
        )

    @property
    def group(self) -> str:
        return self._twin.group

    @property
    def client_id(self) -> str:
        """The client id that brokers know; set by ``start``."""
        return self._twin.client_id

    def __enter__(self) -> PushConsumer:
        self._background.open_clients.add(self._twin)
        self._run(self._twin.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._background.is_gone:
            self._run(self._twin._leave, threading.current_thread(), error)
            self._background.open_clients.discard(self._twin)

    def close(self) -> None:
        """Stop pulling, let handlers finish, keep the progress, and leave the group.

        Handlers and the bodies of other threads' loops have
        ``await_termination_ms_when_shutdown``. A message that a loop still has in hand comes again,
        unless it was acknowledged. In a child of a fork it does nothing: the consumer is its
        parent's.
        """
        if not self._background.is_gone:
            self._run(self._twin._close_by, threading.current_thread())
            self._background.open_clients.discard(self._twin)

    def run(self) -> None:
        """Consume until another thread calls ``close``, or this call is interrupted."""
        self.start()
        try:
            self._run(self._twin.run)
        finally:
            self.close()

    # Subscriptions and handlers.

    def subscribe(self, topic: str, expression: str | Sql92 | None = "*") -> None:
        """Consume a topic: all of it, by tags (``"paid || refunded"``) or by ``Sql92``.

        A topic without a route is no error: it is consumed once it is created.

        Raises:
            ConfigError: the expression is invalid.
            BrokerRefused: a broker cannot answer the ``Sql92`` expression.
        """
        self._run(self._twin.subscribe, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; messages in handlers are finished."""
        self._run(self._twin.unsubscribe, topic)

    def on_message(self, function: F) -> F:
        """Handle messages one by one: ``def`` in threads, ``async def`` on the client's loop."""
        self._handle_with(self._twin.on_message, function, takes_list=False)
        return function

    def on_messages(self, function: F) -> F:
        """Handle messages in lists of up to ``consume_message_batch_max_size``."""
        self._handle_with(self._twin.on_messages, function, takes_list=True)
        return function

    def _handle_with(
        self, register: Callable[..., Any], function: Callable[..., Any], *, takes_list: bool
    ) -> None:
        self._on_loop(register, _with_blocking_messages(function, takes_list=takes_list))
        if not inspect.iscoroutinefunction(function):
            self._background.thread_pool_clients.add(self._twin)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues, or all of them; messages already pulled are still handled."""
        self._on_loop(self._twin.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues, or with all."""
        self._on_loop(self._twin.resume, *queues)

    def is_paused(self, queue: MessageQueue) -> bool:
        return bool(self._on_loop(self._twin.is_paused, queue))

    def assigned_queues(self) -> list[MessageQueue]:
        """The queues that this member has now."""
        queues: list[MessageQueue] = self._on_loop(self._twin.assigned_queues)
        return queues

    def _on_loop(self, function: Callable[..., Any], *given: Any) -> Any:
        async def call() -> Any:
            return function(*given)

        return self._run(call)

    # The loop.

    def __iter__(self) -> Iterator[ConsumedMessage]:
        """Messages, one by one.

        Raises:
            ClientError: a handler gets the messages, or no topic is subscribed.
        """
        stream = self._on_loop(self._twin._begin_loop, threading.current_thread())
        return _Messages(stream, self._background)


class _Messages(Iterator[ConsumedMessage]):
    """The loop of a thread."""

    def __init__(self, stream: MessageStream, background: BackgroundLoop) -> None:
        self._stream = stream
        self._background = background

    def __iter__(self) -> _Messages:
        self._stream.begin_again()
        return self

    def __next__(self) -> ConsumedMessage:
        try:
            return _blocking(self._background.run(self._stream.__anext__))
        except StopAsyncIteration:
            raise StopIteration from None
        except BaseException as error:
            # Interrupted: the program has not seen a message that came at that moment.
            if not self._background.is_gone:
                self._background.run(self._stream.finish, error)
            raise


def _with_blocking_messages(function: Callable[..., Any], *, takes_list: bool) -> Any:
    """A plain function sees messages whose methods wait; a coroutine function awaits them."""
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def handle(given: Any) -> Any:
        return function([*map(_blocking, given)] if takes_list else _blocking(given))

    return handle
