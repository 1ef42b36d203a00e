"""Where a group starts to read a queue: at its stored offset, else by ``consume_from_where``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.offset_stores import OffsetStore
from contrail.client.queue_places import epoch_ms, queue_offset_at, queue_offset_max
from contrail.errors import ConfigError
from contrail.model.shown import shown
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere

_TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
_TIMESTAMP_AGO_MS = 30 * 60 * 1000

_SHORT_NAMES = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "timestamp": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}


class StartPlaces:
    """Where one consumer starts to read its queues.

    A queue that appears while the consumer runs starts at its beginning, whatever
    ``consume_from_where`` says: its messages are newer than the consumer.
    """

    def __init__(
        self,
        instance: ClientInstance,
        offsets: OffsetStore,
        consume_from_where: ConsumeFromWhere,
        consume_timestamp_ms: int,
    ) -> None:
        self._instance = instance
        self._offsets = offsets
        self._from_where = consume_from_where
        self._timestamp_ms = consume_timestamp_ms
        # The queues that each topic had when the consumer subscribed to it.
        self._there: dict[str, frozenset[MessageQueue]] = {}

    def note(self, topics: Iterable[str]) -> None:
        """Note the queues of newly subscribed topics; those of earlier topics are kept."""
        for topic in topics:
            route = self._instance.routes.routes.get(topic)
            is_real = route is not None and not route.is_template
            queues = route.read_queues if route is not None and is_real else ()
            self._there.setdefault(topic, frozenset(queues))

    async def of(self, queue: MessageQueue) -> int:
        """See ``start_place``."""
        there = self._there.get(queue.topic)
        is_new = there is not None and queue not in there
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        return await start_place(
            self._instance,
            self._offsets,
            queue,
            first if is_new else self._from_where,
            self._timestamp_ms,
        )


async def start_place(
    instance: ClientInstance,
    offsets: OffsetStore,
    queue: MessageQueue,
    consume_from_where: ConsumeFromWhere,
    consume_timestamp_ms: int,
) -> int:
    """The queue offset of the first message to read.

    Raises:
        ClientError: the stored or the start offset could not be read. Try again: any other start
            would lose messages, or repeat them all.
    """
    stored = await offsets.read(queue)
    if stored is not None:
        return stored
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        # If that message is deleted, the answer to the first pull has the next offset.
        return 0
    if consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        if not is_retry:
            return await queue_offset_at(instance, queue, consume_timestamp_ms)
        return await queue_offset_max(instance, queue)
    # Messages sent back before this member's first read must not be skipped.
    return 0 if is_retry else await queue_offset_max(instance, queue)


def parse_consume_from_where(given: str | ConsumeFromWhere) -> ConsumeFromWhere:
    """``first``, ``last``, ``timestamp``, or RocketMQ's own names.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(given, ConsumeFromWhere):
        return given
    try:
        return _SHORT_NAMES.get(given) or ConsumeFromWhere(given)
    except ValueError as error:
        raise ConfigError(
            f"consume_from_where={shown(given)} is unknown: use first, last, timestamp or "
            "CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_TIMESTAMP"
        ) from error


def parse_consume_timestamp(given: str | datetime | int | None, *, now_ms: int) -> int:
    """Epoch milliseconds of ``yyyyMMddHHmmss`` in local time, a datetime or such a number.

    None is half an hour ago.

    Raises:
        ConfigError: it is no such time.
    """
    if given is None:
        return now_ms - _TIMESTAMP_AGO_MS
    return epoch_ms(_parse_text(given) if isinstance(given, str) else given)


def _parse_text(given: str) -> datetime:
    try:
        if len(given) != len("yyyyMMddHHmmss") or not given.isdecimal():
            raise ValueError("it has not 14 digits")
        return datetime.strptime(given, _TIMESTAMP_FORMAT)
    except ValueError as error:
        raise ConfigError(
            f"consume_timestamp={shown(given)} is no time, write yyyyMMddHHmmss "
            f"such as 20240229120000: {error}"
        ) from error
