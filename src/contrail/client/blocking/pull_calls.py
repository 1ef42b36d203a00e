"""``PullConsumer`` without ``await``. Made by scripts/make_blocking_twins.py, not by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from contrail.client.blocking.client import BlockingClient
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.pull_consumer import Expression
from contrail.client.pull_consumer import PullConsumer as _Twin
from contrail.client.pull_member import OnQueues
from contrail.client.pulling import PullResult
from contrail.model.subscription import ALL_TAGS


class PullConsumerCalls(BlockingClient[_Twin]):
    """Every coroutine of ``contrail.client.pull_consumer.PullConsumer`` as a call that waits."""

    def subscribe(self, topic: str, expression: Expression = ALL_TAGS) -> None:
        """Share the topic's queues with the group; excludes ``assign``."""
        return self._run(self._twin.subscribe, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues back to the group."""
        return self._run(self._twin.unsubscribe, topic)

    def assign(self, queues: Collection[MessageQueue], expression: Expression = ALL_TAGS) -> None:
        """Read exactly these queues, whichever members read them; excludes ``subscribe``.

        Raises:
            ClientError: no queue is given, or the consumer has subscribed.
            RouteMissing: a topic does not exist.
        """
        return self._run(self._twin.assign, queues, expression)

    def poll(self, timeout_ms: int = 5000, count_max: int | None = None) -> list[ReceivedMessage]:
        """Messages, as soon as there are any; an empty list after ``timeout_ms``.

        With ``auto_commit`` messages of earlier calls count as handled from now on.
        """
        return self._run(self._twin.poll, timeout_ms, count_max)

    def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        count_max: int = 32,
        expression: Expression = ALL_TAGS,
        *,
        wait: bool = False,
    ) -> PullResult:
        """Pull once from a queue offset on; with ``wait`` the broker waits for a message.

        Raises:
            OffsetIllegal: the offset is negative or the count below 1.
            ClientError: the broker refused or did not answer.
        """
        return self._run(self._twin.pull, queue, queue_offset, count_max, expression, wait=wait)

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out no messages of these queues, or of any; they keep their offsets."""
        return self._run(self._twin.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        return self._run(self._twin.resume, *queues)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on from a queue offset; messages fetched ahead are dropped.

        Raises:
            OffsetIllegal: the queue has no such offset.
            ClientError: the queue is not assigned.
        """
        return self._run(self._twin.seek, queue, queue_offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        return self._run(self._twin.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        return self._run(self._twin.seek_to_end, queue)

    def seek_to_time(self, queue: MessageQueue, when: datetime | int) -> None:
        """Go on with the first message stored then (epoch milliseconds) or later."""
        return self._run(self._twin.seek_to_time, queue, when)

    def queue_offset_min(self, queue: MessageQueue) -> int:
        """The queue offset of the oldest message that is still there."""
        return self._run(self._twin.queue_offset_min, queue)

    def queue_offset_max(self, queue: MessageQueue) -> int:
        """The queue offset the next message will get."""
        return self._run(self._twin.queue_offset_max, queue)

    def search(self, queue: MessageQueue, when: datetime | int) -> int:
        """The queue offset of the first message stored then (epoch milliseconds) or later.

        Raises:
            ConfigError: ``when`` is no time.
        """
        return self._run(self._twin.search, queue, when)

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read.

        Raises:
            RouteMissing: the topic does not exist.
        """
        return self._run(self._twin.fetch_queues, topic)

    def watch_queues(self, topic: str, on_queues: OnQueues) -> list[MessageQueue]:
        """Call ``on_queues`` when the queues of a topic change, until the consumer is closed.

        Returns the queues it has now.
        """
        return self._run(self._twin.watch_queues, topic, on_queues)

    def commit(self, consumer_offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Write the group's progress, and wait until it is written.

        The progress is the offsets behind the messages handed out, or the given offsets.

        Raises:
            ClientError: a queue is not assigned, or its broker did not take the offset, which is
                written again later all the same.
        """
        return self._run(self._twin.commit, consumer_offsets)

    def commit_async(self, consumer_offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Like ``commit``, without waiting; a failed write is tried again later."""
        return self._run(self._twin.commit_async, consumer_offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset, from which the next member would start.

        Read from the broker, or for broadcasting from the file; offsets not written yet do not
        count. None when there is none.
        """
        return self._run(self._twin.committed, queue)
