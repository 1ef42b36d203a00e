"""One pull: the request, the answer, and its messages that match the subscription."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from contrail.client.decoding import DecodedRun, decode_run, undecoded
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.refusals import refused
from contrail.client.state.leader_changes import may_have_moved
from contrail.client.state.routes import MASTER_ID
from contrail.errors import BrokerRefused, BrokerUnknown, CallFailed, ClientError, MessageUnreadable
from contrail.model.properties import RETRY_TOPIC, TAGS, UNREADABLE
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse

if TYPE_CHECKING:
    from contrail.client.instance import ClientInstance

# How long the broker holds a pull without messages; it answers up to five seconds late.
BROKER_SUSPEND_MS = 15_000
TIMEOUT_MS_WHEN_SUSPENDED = 30_000
TIMEOUT_MS = 10_000

COMMIT_FLAG = 0x1
SUSPEND_FLAG = 0x2
SUBSCRIPTION_FLAG = 0x4


class PullStatus(Enum):
    """The result of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS_OF_CODE: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """A broker's answer. ``messages`` passed the exact check of tags."""

    status: PullStatus
    messages: Sequence[Any]
    next_queue_offset: int
    queue_offset_min: int
    queue_offset_max: int
    suggested_broker_id: int = MASTER_ID
    # The broker's remark beside the code, such as that a record is damaged.
    remark: str = ""


async def pull_once(
    instance: ClientInstance,
    *,
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    count_max: int,
    subscription: SubscriptionData,
    commit_offset: int | None = None,
    suspend: bool = False,
    post_subscription: bool = False,
    broker_id: int = MASTER_ID,
    suspend_ms: int = BROKER_SUSPEND_MS,
    timeout_ms: int | None = None,
    code: RequestCode = RequestCode.PULL_MESSAGE,
    kind: type[ReceivedMessage] = ReceivedMessage,
) -> PullResult:
    """Ask a broker for messages of a queue from ``queue_offset`` on.

    ``post_subscription`` sends the subscription along, for clients whose heartbeats have none.
    ``broker_id`` is the last answer's suggestion; without that broker another of the same name is
    asked. ``commit_offset`` is stored by the broker before it answers. Retried messages are
    returned with their original topic.

    Raises:
        BrokerUnknown: no route names the queue's broker.
        BrokerRefused: the broker answered with an error.
        ClientError: the broker did not answer, or its answer is invalid.

    A message that cannot be decoded is there with its ``decode_error``, and keeps no other away.
    """
    address, from_master = _where_to_read(instance, queue, broker_id)
    fields = _pull_fields(
        group, queue, queue_offset, count_max, subscription, suspend_ms, post_subscription
    )
    # Progress is kept by the master only.
    commits = commit_offset is not None and from_master
    flags = SUSPEND_FLAG * suspend | SUBSCRIPTION_FLAG * post_subscription | COMMIT_FLAG * commits
    fields["sysFlag"] = str(flags)
    fields["commitOffset"] = str(commit_offset or 0)
    limit_ms = timeout_ms or (TIMEOUT_MS_WHEN_SUSPENDED if suspend else TIMEOUT_MS)

    async def ask(count: int) -> ReceivedResponse:
        fields["maxMsgNums"] = str(count)
        try:
            return await instance.call(address, code, fields, timeout_ms=limit_ms)
        except CallFailed as error:
            raise ClientError(f"pulling {_named(queue)} from {address}: {error}") from error

    result = await pulled(ask, Asked(queue, queue_offset, count_max, subscription), kind)
    is_ahead = queue_offset > result.queue_offset_max
    has_master = instance.routes.master_of(queue.broker_name) is not None
    if result.status is PullStatus.OFFSET_ILLEGAL and is_ahead and not has_master:
        # Going back to its end would read messages again.
        raise ClientError(
            f"{address} has {_named(queue)} up to {result.queue_offset_max} only: it is behind a "
            "master that is away"
        )
    return result


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of a pull; ``subscription`` is None if nothing is filtered or renamed."""

    queue: MessageQueue
    queue_offset: int
    count_max: int
    subscription: SubscriptionData | None


async def pulled(
    ask: Callable[[int], Awaitable[ReceivedResponse]],
    asked: Asked,
    kind: type[ReceivedMessage] = ReceivedMessage,
) -> PullResult:
    """Send a pull by ``ask`` and decode the answer.

    The end of a damaged first record is unknown: it is pulled alone, and is then the whole answer.

    Raises:
        BrokerRefused: the broker answered with an error.
        ClientError: the broker did not answer, or its answer is invalid.
    """
    result = read_answer(await ask(asked.count_max), asked, kind)
    if result is None:
        asked = replace(asked, count_max=1)
        result = read_answer(await ask(1), asked, kind)
    assert result is not None, "of a single record the end is known"
    return result


def follow_leader(instance: ClientInstance, broker_name: str, error: Exception) -> bool:
    """After a failed pull: whether another broker may lead its name, so that a pull is due soon."""
    if broker_name not in instance.routes.replicated or not may_have_moved(error):
        return False
    if isinstance(error, BrokerRefused):
        instance.believe_leader(broker_name, error.leader)
    return True


def _where_to_read(
    instance: ClientInstance, queue: MessageQueue, broker_id: int
) -> tuple[str, bool]:
    address = instance.routes.address_of(queue.broker_name, broker_id)
    if address is None:
        raise BrokerUnknown(
            f"no route names broker {queue.broker_name!r}, which has {_named(queue)}: check that "
            "it is up and registered with the NameServer"
        )
    return address, address == instance.routes.master_of(queue.broker_name)


def _pull_fields(
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    count_max: int,
    subscription: SubscriptionData,
    suspend_ms: int,
    post_subscription: bool,
) -> dict[str, str]:
    fields = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(count_max),
        "suspendTimeoutMillis": str(suspend_ms),
        "subVersion": str(subscription.sub_version),
        "expressionType": subscription.expression_type,
        "bname": queue.broker_name,
    }
    if post_subscription:
        fields["subscription"] = subscription.sub_string
    return fields


def read_answer(
    answer: ReceivedResponse, asked: Asked, kind: type[ReceivedMessage] = ReceivedMessage
) -> PullResult | None:
    """The result of a pull; None when a single message must be pulled again.

    Raises:
        BrokerRefused: the broker answered with an error.
        ClientError: the answer cannot be decoded.
    """
    queue = asked.queue
    status = _STATUS_OF_CODE.get(answer.code)
    if status is None:
        raise refused(answer, f"a pull of {_named(queue)}", f"broker {queue.broker_name}")
    fields = answer.fields
    try:
        messages: Sequence[ReceivedMessage] = []
        next_queue_offset = int(fields["nextBeginOffset"])
        if answer.body:
            run = decode_run(answer.body, queue.broker_name, kind, queue)
            moved_by = int(fields.get("offsetDelta") or 0)
            if moved_by:
                for message in run.messages:
                    message.queue_offset += moved_by
            if run.damage is not None:
                if not run.messages and asked.count_max > 1:
                    return None
                run, next_queue_offset = _up_to_damage(
                    run, answer.body, asked, kind, next_queue_offset
                )
            messages = _wanted_messages(run.messages, asked)
        return PullResult(
            status,
            messages,
            next_queue_offset=next_queue_offset,
            queue_offset_min=int(fields["minOffset"]),
            queue_offset_max=int(fields["maxOffset"]),
            suggested_broker_id=int(fields.get("suggestWhichBrokerId", MASTER_ID)),
            remark=answer.remark or "",
        )
    except (KeyError, ValueError) as error:
        raise ClientError(
            f"the answer of broker {queue.broker_name} to a pull of {_named(queue)} cannot be "
            f"read: {error}"
        ) from error


def _up_to_damage(
    run: DecodedRun[ReceivedMessage],
    body: bytes,
    asked: Asked,
    kind: type[ReceivedMessage],
    next_queue_offset: int,
) -> tuple[DecodedRun[ReceivedMessage], int]:
    """The messages up to a damaged record, and the offset of the next pull.

    Messages before the record are taken, and the next pull begins behind them. The record itself is
    taken when it was pulled alone. Either way the next pull begins further on.
    """
    assert run.damage is not None
    further = asked.queue_offset + 1
    if run.messages:
        behind = run.messages[-1].queue_offset + 1
        return run, max(further, min(behind, next_queue_offset))
    rest = undecoded(body[run.end :], asked.queue.broker_name, kind, asked.queue, run.damage)
    rest.queue_offset = max(asked.queue_offset, next_queue_offset - 1)
    return run._replace(messages=[rest]), max(further, next_queue_offset)


def _wanted_messages(messages: list[ReceivedMessage], asked: Asked) -> Sequence[ReceivedMessage]:
    subscription = asked.subscription
    if subscription is None:
        return messages
    if subscription.tags and not subscription.class_filter_mode:
        # Brokers compare hashes of tags, and different tags may have the same.
        tags = subscription.tags
        messages = [
            message
            for message in messages
            if message.peek_property(TAGS) in tags or _has_no_tags_left(message)
        ]
    if asked.queue.topic.startswith(RETRY_PREFIX):
        for message in messages:
            restore_topic(message)
            _restore_error(message)
    return messages


def _has_no_tags_left(message: ReceivedMessage) -> bool:
    """Whether a damaged record may have had tags that cannot be read any more."""
    error = message.decode_error
    return error is not None and error.is_record_damaged


def _restore_error(message: ReceivedMessage) -> None:
    """A message marked as undecodable stays so: after a send-back its record looks ordinary."""
    problem = message.peek_property(UNREADABLE)
    if problem and message.decode_error is None:
        message.decode_error = MessageUnreadable(problem)


def restore_topic(message: ReceivedMessage) -> None:
    """Give a retried message its original topic."""
    message.topic = message.peek_property(RETRY_TOPIC) or message.topic


def _named(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r}"
