"""One pop, acknowledgement or prolongation: the request, and the messages of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from contrail.client.decoding import decode_messages
from contrail.client.message import ReceivedMessage
from contrail.client.refusals import refused
from contrail.errors import CallFailed, ClientError
from contrail.model.properties import POP_CK
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.pop_info import (
    NORMAL_FLAG,
    PopTextInvalid,
    Receipt,
    read_offsets,
    read_start_offsets,
    real_topic,
    retry_flag,
)

if TYPE_CHECKING:
    from contrail.client.instance import ClientInstance

ALL_QUEUES = -1
# A broker answers a pop that waits a little before its time; the network takes some, too.
_LATE_MS_MAX = 10_000
_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})


class PoppedMessage(ReceivedMessage):
    """A message that no other member gets until ``visible_ms``, unless it is acknowledged.

    ``receipt`` names it to its broker; it is another one after ``extend``.
    """

    __slots__ = ("receipt",)

    receipt: Receipt

    @property
    def visible_ms(self) -> int:
        """When it may come again, in milliseconds by the broker's clock."""
        return self.receipt.pop_time_ms + self.receipt.invisible_ms

    @property
    def attempt(self) -> int:
        """How many times it was handed out, this one included."""
        return self.reconsume_times + 1


async def pop_once(
    instance: ClientInstance,
    *,
    group: str,
    subscription: SubscriptionData,
    broker_name: str,
    count_max: int,
    invisible_ms: int,
    wait_ms: int,
    from_first: bool,
    queue_id: int = ALL_QUEUES,
) -> list[PoppedMessage]:
    """Messages of all queues of one broker, or of one; it waits for some for ``wait_ms``.

    Raises:
        BrokerRefused: the broker answered with an error.
        ClientError: the broker did not answer, or nobody can read its answer.
    """
    topic, address = subscription.topic, instance.master_of(broker_name)
    what = f"a pop of topic {topic!r} for group {group!r}"
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "maxMsgNums": str(count_max),
        "invisibleTime": str(invisible_ms),
        "pollTime": str(wait_ms),
        "bornTime": str(instance.clock.now_ms()),
        "initMode": "0" if from_first else "1",
        "expType": subscription.expression_type,
        "exp": subscription.sub_string,
    }
    try:
        answer = await instance.call(
            address, RequestCode.POP_MESSAGE, fields, timeout_ms=wait_ms + _LATE_MS_MAX
        )
    except CallFailed as error:
        raise ClientError(f"{what}: broker {address}: {error}") from error
    if answer.code in _NOTHING:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise refused(answer, what, f"broker {address}")
    messages = decode_messages(answer.body, broker_name, PoppedMessage)
    try:
        give_receipts(messages, answer.fields, broker_name)
    except (PopTextInvalid, KeyError, ValueError, IndexError) as error:
        raise ClientError(f"{what}: the answer of broker {address} is wrong: {error}") from error
    return messages


def give_receipts(
    messages: Sequence[PoppedMessage], fields: Mapping[str, str], broker_name: str
) -> None:
    """Name each message of an answer by its own receipt, or by the answer's lists.

    Raises:
        PopTextInvalid, KeyError, ValueError, IndexError: the answer does not name all of them.
    """
    starts = read_start_offsets(fields.get("startOffsetInfo", ""))
    offsets = {key: iter(of) for key, of in read_offsets(fields.get("msgOffsetInfo", "")).items()}
    for message in messages:
        own = message.peek_property(POP_CK)
        if own is not None:
            message.receipt = Receipt.decode(own)
            continue
        key = retry_flag(message.topic), message.queue.queue_id
        message.receipt = Receipt(
            starts.get(key, message.queue_offset),
            int(fields["popTime"]),
            int(fields["invisibleTime"]),
            int(fields["reviveQid"]),
            key[0],
            broker_name,
            key[1],
            next(offsets[key], message.queue_offset) if key in offsets else message.queue_offset,
        )


async def ack_once(instance: ClientInstance, group: str, message: PoppedMessage) -> None:
    """Raises ``ClientError``, or ``BrokerRefused``, when the broker does not confirm it."""
    await _ask(instance, RequestCode.ACK_MESSAGE, group, message, {}, "the acknowledgement")


async def prolong_once(
    instance: ClientInstance, group: str, message: PoppedMessage, invisible_ms: int
) -> None:
    """Give the message another time, from now on, and a new receipt.

    Raises ``ClientError``, or ``BrokerRefused``, when the broker does not confirm it.
    """
    fields = {"invisibleTime": str(invisible_ms)}
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    answer = await _ask(instance, code, group, message, fields, "another invisible time")
    old = message.receipt
    try:
        message.receipt = Receipt(
            old.queue_offset,
            int(answer["popTime"]),
            int(answer["invisibleTime"]),
            int(answer["reviveQid"]),
            *old[4:],
        )
    except (KeyError, ValueError) as error:
        raise ClientError(
            f"another invisible time of {message}: the answer lacks {error}"
        ) from error


async def _ask(
    instance: ClientInstance,
    code: RequestCode,
    group: str,
    message: PoppedMessage,
    more: Mapping[str, str],
    what: str,
) -> Mapping[str, str]:
    receipt = message.receipt
    is_named = message.topic.startswith(RETRY_PREFIX) or receipt.retry_flag == NORMAL_FLAG
    fields = {
        "consumerGroup": group,
        "topic": message.topic
        if is_named
        else real_topic(message.topic, group, receipt.retry_flag),
        "queueId": str(receipt.queue_id),
        "offset": str(receipt.queue_offset),
        "extraInfo": receipt.encode(),
        **more,
    }
    address = instance.master_of(message.queue.broker_name)
    answer = await instance.ask(address, code, fields, what=f"{what} of {message}")
    return answer.fields
