"""``PopConsumer`` without ``await``. Made by scripts/make_blocking_twins.py, not by hand."""

from __future__ import annotations

from contrail.client.blocking.client import BlockingClient
from contrail.client.pop_consumer import PopConsumer as _Twin
from contrail.client.pop_handling import MessageHandler
from contrail.client.popping import PoppedMessage
from contrail.client.subscriptions import Sql92
from contrail.model.subscription import ALL_TAGS


class PopConsumerCalls(BlockingClient[_Twin]):
    """Every coroutine of ``contrail.client.pop_consumer.PopConsumer`` as a call that waits."""

    def subscribe(self, topic: str, expression: str | Sql92 = ALL_TAGS) -> None:
        """Receive messages of a topic: all, those with some tags, or those of an SQL92 filter."""
        return self._run(self._twin.subscribe, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Receive nothing more of a topic."""
        return self._run(self._twin.unsubscribe, topic)

    def receive(self, count_max: int | None = None, timeout_ms: int = 15000) -> list[PoppedMessage]:
        """Messages as soon as there are any, an empty list after ``timeout_ms``.

        Nobody else gets them for ``pop_invisible_time_ms``.

        Raises:
            ClientError: nothing is subscribed, or no broker gave an answer.
        """
        return self._run(self._twin.receive, count_max, timeout_ms)

    def ack(self, *messages: PoppedMessage) -> None:
        """The messages were handled and need not come again.

        Raises:
            ClientError: a broker did not confirm it; those messages may come again.
        """
        return self._run(self._twin.ack, *messages)

    def extend(self, message: PoppedMessage, invisible_ms: int) -> None:
        """Handling takes longer: nobody else gets the message for so long, from now on.

        Raises:
            ClientError: the broker did not confirm it; the message may come again.
        """
        return self._run(self._twin.extend, message, invisible_ms)

    def run(self, handler: MessageHandler, concurrency: int = 20) -> None:
        """Have a function handle messages, so many at once, until the consumer is closed.

        Its invisible time is renewed while a message is handled. A message is acknowledged when
        the function returns; when it raises, the message comes again later: after 10 s, 30 s, a
        minute, and so on. A function without ``async`` is called in threads.

        Raises:
            ClientError: nothing is subscribed.
        """
        return self._run(self._twin.run, handler, concurrency)

    def release(self, message: PoppedMessage) -> None:
        """Let another member try now; Contrail's brokers hand it out a second later.

        Raises:
            ClientError: the broker did not confirm it; it comes again after its invisible time.
        """
        return self._run(self._twin.release, message)
