"""Asks brokers for queue offsets: the minimum, the maximum, and the offset of a time."""

from __future__ import annotations

from datetime import datetime

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.state.routes import MASTER_ID
from contrail.errors import BrokerUnknown, ConfigError
from contrail.model.shown import shown
from contrail.protocol.codes import RequestCode


def queue_fields(queue: MessageQueue) -> dict[str, str]:
    """A queue as requests name it; newer brokers want their own name too."""
    return {
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "bname": queue.broker_name,
    }


def epoch_ms(moment: datetime | int) -> int:
    """A time as users write it; a ``datetime`` without a zone is local.

    Raises:
        ConfigError: it is no time.
    """
    if isinstance(moment, int):
        return moment
    if not isinstance(moment, datetime):
        raise ConfigError(
            f"{shown(moment)} is no time: give a datetime, or epoch milliseconds as a whole number"
        )
    return int(moment.timestamp() * 1000)


async def master_for(instance: ClientInstance, queue: MessageQueue) -> str:
    """The address of a queue's master, for which the route is asked once more if need be.

    Raises:
        BrokerUnknown: the route names no such master.
        RouteMissing: the topic has no route.
    """
    try:
        return instance.master_of(queue.broker_name)
    except BrokerUnknown:
        await instance.refresh_route(queue.topic)
        return instance.master_of(queue.broker_name)


async def reader_for(instance: ClientInstance, queue: MessageQueue) -> str:
    """The address to ask about a queue: its master's, or a slave's while no master is there.

    Raises:
        BrokerUnknown: the route names no broker of that name.
        RouteMissing: the topic has no route.
    """
    try:
        return await master_for(instance, queue)
    except BrokerUnknown:
        address = instance.routes.address_of(queue.broker_name, MASTER_ID)
        if address is None:
            raise
        return address


async def queue_offset_max(instance: ClientInstance, queue: MessageQueue) -> int:
    """The offset the next message will get.

    Raises:
        ClientError: the broker refused or did not answer.
    """
    return await _ask(instance, queue, RequestCode.GET_MAX_OFFSET, "the end of")


async def queue_offset_min(instance: ClientInstance, queue: MessageQueue) -> int:
    """The offset of the oldest message that is still there.

    Raises:
        ClientError: the broker refused or did not answer.
    """
    # Brokers answer -1 for a queue of batches that was never written.
    return max(0, await _ask(instance, queue, RequestCode.GET_MIN_OFFSET, "the beginning of"))


async def queue_offset_at(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset of the first message that was stored at that time or after.

    Raises:
        ClientError: the broker refused or did not answer.
    """
    return await _ask(
        instance,
        queue,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        f"the message of time {timestamp_ms} in",
        {"timestamp": str(timestamp_ms)},
    )


async def _ask(
    instance: ClientInstance,
    queue: MessageQueue,
    code: RequestCode,
    what: str,
    more: dict[str, str] | None = None,
) -> int:
    address = await reader_for(instance, queue)
    fields = {**queue_fields(queue), **(more or {})}
    answer = await instance.ask(address, code, fields, what=f"{what} {queue}")
    return int(answer.fields["offset"])
