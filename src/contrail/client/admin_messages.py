"""The admin client on messages: find them, browse them, have them consumed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from contrail.client.admin_asking import decoded, number_field
from contrail.client.admin_many_topics import ManyTopicsAdmin
from contrail.client.admin_values import (
    BrokerAddress,
    Moment,
    OpenTransaction,
    TransactionPage,
)
from contrail.client.decoding import received_messages
from contrail.client.message import ReceivedMessage
from contrail.client.pulling import SUBSCRIPTION_FLAG, SUSPEND_FLAG, Asked, PullResult, pulled
from contrail.client.queue_places import epoch_ms
from contrail.client.subscriptions import Sql92, check_subscription
from contrail.errors import (
    BrokerRefused,
    ClientError,
    MessageDamaged,
    MessageIllegal,
    OffsetIllegal,
)
from contrail.model.fastjson import Fields, loads
from contrail.model.host import unpack_host
from contrail.model.message_id import decode_offset_message_id
from contrail.model.properties import UNIQ_KEY
from contrail.model.recall_handle import RecallHandle
from contrail.model.subscription import ALL_TAGS, SQL92, SubscriptionData, parse_subscription
from contrail.protocol.bodies.running_info import ConsumedDirectly, decode_consumed_directly
from contrail.protocol.bodies.transactions import ListedTransaction, decode_transactions
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import MessageQueue, body_errors, encode_body

# The group that tools pull as: every broker lets it pull.
TOOLS_GROUP = "TOOLS_CONSUMER"
# The most that brokers return for one key.
KEY_COUNT_MAX = 64
# The most that brokers list of their own topics at once.
_PAGE_COUNT_MAX = 1_000
_LONG_MAX = (1 << 63) - 1
# The index rounds times down by up to this much.
_INDEX_STEP_MS = 1_000
_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_CLIENT_TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class _Pulled:
    """The messages of a pull, and the queue offset of the next pull."""

    messages: list[ReceivedMessage]
    next_queue_offset: int
    remark: str = ""


@dataclass(frozen=True, slots=True)
class _FoundByKey:
    """Sound messages with a key, and the brokers' remarks about damaged ones."""

    messages: list[ReceivedMessage]
    damaged: list[str]

    def told(self, kept: list[ReceivedMessage], *, allow_partial: bool) -> list[ReceivedMessage]:
        """``kept``; raises ``MessageDamaged`` with them if others are damaged."""
        if self.damaged and not (allow_partial and kept):
            raise MessageDamaged("; ".join(self.damaged), partial=kept)
        return kept


@dataclass(frozen=True, slots=True)
class TimerCounts:
    """How many timed messages wait on a broker, by their topic and by how soon they are due.

    ``by_horizon_s`` counts the messages due within that many seconds, beyond the key before; it is
    empty for Apache's brokers, which do not report it.
    """

    broker: BrokerAddress
    by_topic: Mapping[str, int]
    by_horizon_s: Mapping[int, int]


class MessageAdmin(ManyTopicsAdmin):
    """Messages and transactions."""

    # Finding.

    async def message(self, topic: str, message_id: str) -> ReceivedMessage | None:
        """The message with an id of either kind: the producer's, or the broker's offset id.

        None when no broker of the topic has it.
        """
        if await self._names_a_broker(message_id):
            return await self.message_by_offset_id(message_id)
        found = await self.messages_by_unique_key(topic, message_id)
        return found[0] if found else None

    async def _names_a_broker(self, message_id: str) -> bool:
        """Both kinds of id look the same; only one of them begins with a broker's address."""
        try:
            place = decode_offset_message_id(message_id)
        except MessageIllegal:
            return False
        address = str(unpack_host(place.store_host))
        return any(one.address == address for one in await self._every_broker(None))

    async def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message at the physical offset that an offset id names.

        Raises:
            MessageIllegal: it is no offset id.
            MessageDamaged: the message there is damaged.
            BrokerRefused: no message is there.
        """
        place = decode_offset_message_id(offset_message_id)
        broker = await self._broker_at(str(unpack_host(place.store_host)))
        what = f"message {offset_message_id}"
        fields = {"offset": str(place.physical_offset)}
        with _damage():
            answer = await self._ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, fields, what)
        messages = _messages(answer, broker)
        if not messages:
            raise ClientError(f"{what}: the answer of {broker} is empty")
        return messages[0]

    async def _broker_at(self, address: str) -> BrokerAddress:
        (broker,) = await self._masters(broker=address)
        return broker

    async def messages_by_unique_key(
        self,
        topic: str,
        message_id: str,
        *,
        begin: Moment = 0,
        end: Moment = _LONG_MAX,
        allow_partial: bool = False,
    ) -> list[ReceivedMessage]:
        """The messages that carry a producer's id, oldest first; a retried send may be there twice.

        Raises:
            MessageDamaged: some are damaged; it has the sound ones. With ``allow_partial`` only
                if none is sound.
            SomeFailed: not every broker answered.
        """
        found = await self._by_key(
            topic, message_id, KEY_COUNT_MAX, begin, end, unique=True, allow_partial=allow_partial
        )
        kept = [one for one in found.messages if one.properties.get(UNIQ_KEY) == message_id]
        return found.told(kept, allow_partial=allow_partial)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin: Moment = 0,
        end: Moment = _LONG_MAX,
        allow_partial: bool = False,
    ) -> list[ReceivedMessage]:
        """The newest messages of a topic with a key, stored within a time, oldest first.

        Brokers return 64 at most for one key; narrow the time to see others.

        Raises:
            MessageDamaged: some are damaged; it has the sound ones. With ``allow_partial`` only
                if none is sound.
            SomeFailed: not every broker answered.
        """
        found = await self._by_key(
            topic, key, count_max, begin, end, unique=False, allow_partial=allow_partial
        )
        kept = [one for one in found.messages if key in one.keys][-count_max:]
        return found.told(kept, allow_partial=allow_partial)

    async def _by_key(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin: Moment,
        end: Moment,
        *,
        unique: bool,
        allow_partial: bool,
    ) -> _FoundByKey:
        """Brokers look up a key's hash and whole seconds, so their answers are filtered here."""
        what = f"messages of topic {topic!r} with key {key!r}"
        begin_ms, end_ms = epoch_ms(begin), epoch_ms(end)
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(max(0, begin_ms - _INDEX_STEP_MS)),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": "true" if unique else "false",
        }

        async def ask(broker: BrokerAddress) -> _FoundByKey:
            try:
                with _damage():
                    answer = await self._list_system(broker, topic, {"key": key}, what)
                    if answer is None:
                        answer = await self._ask(
                            broker,
                            RequestCode.QUERY_MESSAGE,
                            fields,
                            what,
                            accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
                        )
            except MessageDamaged as damage:
                return _FoundByKey([], [str(damage)])
            damaged = [f"{broker}: {answer.remark}"] if says_damaged(answer.remark) else []
            return _FoundByKey(_messages(answer, broker), damaged)

        brokers = await self._topic_brokers(topic)
        found = await self._ask_each(
            brokers,
            ask,
            lambda answers: _FoundByKey(
                [one for part in answers.values() for one in part.messages],
                [one for part in answers.values() for one in part.damaged],
            ),
            what,
            allow_partial=allow_partial,
        )
        kept = [
            one
            for one in found.messages
            if one.topic == topic and begin_ms <= one.store_timestamp_ms <= end_ms
        ]
        kept.sort(key=lambda one: (one.store_timestamp_ms, one.queue, one.queue_offset))
        return _FoundByKey(kept, found.damaged)

    # Browsing.

    async def message_at(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
        """The message at a queue offset.

        Raises:
            MessageDamaged: the message there is damaged.
            OffsetIllegal: no message is there.
        """
        pulled = await self._pull(queue, queue_offset, 1)
        for one in pulled.messages:
            if one.queue_offset == queue_offset:
                return one
        if says_damaged(pulled.remark):
            raise MessageDamaged(
                f"message {queue_offset} of queue {queue.queue_id} of topic {queue.topic!r} on "
                f"broker {queue.broker_name!r} {pulled.remark.partition(': it ')[2]}"
            )
        low = await self.queue_offset_min(queue)
        high = await self.queue_offset_max(queue)
        raise OffsetIllegal(
            f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r} has "
            f"no message at offset {queue_offset}: it has {low} to {high - 1}"
        )

    async def messages_from(
        self, queue: MessageQueue, queue_offset: int, count_max: int = 32
    ) -> list[ReceivedMessage]:
        """Messages of a queue from a queue offset on: as many as one answer holds.

        At most ``count_max``; empty at the end of the queue, and where the messages are deleted.
        """
        return (await self._pull(queue, queue_offset, count_max)).messages

    async def browse(
        self,
        queue: MessageQueue,
        *,
        start: int | None = None,
        end: int | None = None,
        batch: int = 32,
    ) -> AsyncIterator[ReceivedMessage]:
        """The messages of a queue from ``start`` to before ``end``, without any group noticing.

        By default from the oldest message to the end of the queue at the start of browsing.

        Raises:
            ClientError: the broker does not get past an offset before the end, such as that of a
                damaged record.
        """
        position = await self.queue_offset_min(queue) if start is None else start
        limit = await self.queue_offset_max(queue) if end is None else end
        while position < limit:
            pulled = await self._pull(queue, position, min(batch, limit - position))
            for one in pulled.messages:
                if position <= one.queue_offset < limit:
                    yield one
            if pulled.next_queue_offset <= position:
                await self._require_at_end(queue, position)
                return
            position = pulled.next_queue_offset

    async def _require_at_end(self, queue: MessageQueue, position: int) -> None:
        high = await self.queue_offset_max(queue)
        if position < high:
            raise ClientError(
                f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r} "
                f"cannot be read at offset {position}, and it has messages up to {high - 1}: its "
                f"broker's log tells why; browse from {position + 1} on for those behind"
            )

    async def _pull(self, queue: MessageQueue, queue_offset: int, count_max: int) -> _Pulled:
        everything = parse_subscription(queue.topic, ALL_TAGS)
        what = f"messages of queue {queue.queue_id} of topic {queue.topic!r} from {queue_offset} on"
        broker = await self._broker_of(queue)

        async def ask(count: int) -> ReceivedResponse:
            page = {
                "queueId": str(queue.queue_id),
                "queueOffset": str(queue_offset),
                "maxMsgNums": str(min(count, _PAGE_COUNT_MAX)),
            }
            listed = await self._list_system(broker, queue.topic, page, what)
            return listed or await self._ask_for(
                broker, queue, queue_offset, count, everything, what
            )

        result = await pulled(ask, Asked(queue, queue_offset, count_max, None))
        return _Pulled(list(result.messages), result.next_queue_offset, result.remark)

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        count_max: int = 32,
        expression: str | Sql92 = ALL_TAGS,
        *,
        wait_ms: int = 0,
    ) -> PullResult:
        """Ask once for messages that pass a filter, without any group noticing.

        With ``wait_ms`` the broker waits that long for a message. See ``check_expression`` for
        SQL92.

        Raises:
            BrokerRefused: the broker does not filter, or not by this expression.
        """
        wanted = _subscription(queue.topic, expression)
        what = f"messages of queue {queue.queue_id} of topic {queue.topic!r} from {queue_offset} on"
        broker = await self._broker_of(queue)

        async def ask(count: int) -> ReceivedResponse:
            return await self._ask_for(
                broker, queue, queue_offset, count, wanted, what, wait_ms=wait_ms
            )

        return await pulled(ask, Asked(queue, queue_offset, count_max, wanted))

    async def _ask_for(
        self,
        broker: BrokerAddress,
        queue: MessageQueue,
        queue_offset: int,
        count_max: int,
        wanted: SubscriptionData,
        what: str,
        *,
        wait_ms: int = 0,
    ) -> ReceivedResponse:
        """A pull that carries its own subscription and commits no offset."""
        fields = {
            "consumerGroup": TOOLS_GROUP,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(count_max),
            "sysFlag": str(SUBSCRIPTION_FLAG | (SUSPEND_FLAG if wait_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": wanted.sub_string,
            "subVersion": str(wanted.sub_version),
            "expressionType": wanted.expression_type,
        }
        return await self._ask(
            broker,
            RequestCode.PULL_MESSAGE,
            fields,
            what,
            accepted=_PULLED,
            timeout_ms=self._timeout_ms + wait_ms,
        )

    async def check_expression(self, topic: str, expression: str | Sql92) -> None:
        """Have a topic's brokers check a filter: Apache's ignore an invalid SQL92 in a pull.

        Raises:
            BrokerRefused: a broker refuses the filter; the message says why.
            RouteMissing: no broker has the topic.
        """
        wanted = _subscription(topic, expression)
        what = f"the expression {wanted.sub_string!r} for topic {topic!r}"
        body = encode_body(
            {
                "clientId": TOOLS_GROUP,
                "group": TOOLS_GROUP,
                "namespace": "",
                "subscriptionData": wanted.to_fields(),
            }
        )

        async def ask(broker: BrokerAddress) -> ReceivedResponse:
            return await self._ask(broker, RequestCode.CHECK_CLIENT_CONFIG, {}, what, body=body)

        await self._ask_each(await self._topic_brokers(topic), ask, lambda answers: None, what)

    # Consuming again.

    async def send_back(
        self, group: str, message: ReceivedMessage, *, delay_level: int = 0
    ) -> None:
        """Have a group consume a message again, through its retry topic.

        ``delay_level`` 0 lets the broker choose by the retry count, -1 makes the message a dead
        letter.
        """
        await self._ask(
            await self._broker_at(message.store_host),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {
                "offset": str(message.physical_offset),
                "group": group,
                "delayLevel": str(delay_level),
                "originMsgId": message.message_id,
                "originTopic": message.topic,
                "unitMode": "false",
            },
            f"message {message.message_id} to be sent back to group {group!r}",
        )

    async def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumedDirectly:
        """Have one member consume a message now, outside of its queue, and return the result."""
        what = f"message {message.message_id} to be consumed by client {client_id!r} of {group!r}"
        broker = await self._broker_at(message.store_host)
        answer = await self._ask(
            broker,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            {
                "consumerGroup": group,
                "clientId": client_id,
                "msgId": message.offset_message_id,
                "topic": message.topic,
                "brokerName": broker.broker_name,
            },
            what,
            timeout_ms=max(self._timeout_ms, _CLIENT_TIMEOUT_MS),
        )
        return decoded(decode_consumed_directly, answer, what)

    # Timers.

    async def timer_counts(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, TimerCounts]:
        """How many timed messages wait, by broker name; delay levels are not counted by brokers.

        Raises:
            SomeFailed: not every broker answered.
        """
        what = "the counts of timed messages"

        async def ask(broker: BrokerAddress) -> TimerCounts:
            answer = await self._ask(broker, RequestCode.GET_TIMER_METRICS, {}, what)
            return decoded(lambda body: _timer_counts(broker, body), answer, what)

        masters = await self._masters(cluster=cluster)
        return await self._ask_each(
            masters, ask, lambda answers: answers, what, allow_partial=allow_partial
        )

    async def recall_timer(self, recall_handle: str) -> bool:
        """Have a broker drop a message that waits for its time, by its recall handle.

        A producer needs the handle that the broker gave it; operators may build one. False where
        the broker, as Apache's, recalls by ``Producer.recall`` only.

        Raises:
            MessageIllegal: the handle is invalid.
            BrokerRefused: too late, or the broker does not recall; the message says which.
        """
        handle = RecallHandle.decode(recall_handle)
        (broker,) = await self._masters(broker=handle.broker_name)
        answer = await self._ask(
            broker,
            RequestCode.RECALL_TIMER,
            {"topic": handle.topic, "recallHandle": recall_handle},
            f"the recall of message {handle.unique_key} of topic {handle.topic!r}",
            accepted=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        return answer.code == ResponseCode.SUCCESS

    # Transactions.

    async def resume_check_half(self, topic: str, offset_message_id: str) -> None:
        """Have a half message checked again that the broker gave up after too many checks.

        Raises:
            MessageIllegal: the id is no offset id.
            BrokerRefused: no half message is there.
        """
        place = decode_offset_message_id(offset_message_id)
        await self._ask(
            await self._broker_at(str(unpack_host(place.store_host))),
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            {"topic": topic, "msgId": offset_message_id},
            f"half message {offset_message_id} to be checked again",
        )

    async def transactions(
        self, broker: str, *, first: int = 0, count_max: int = 100
    ) -> TransactionPage:
        """Open transactions of a Contrail broker, oldest first; Apache's brokers list none."""
        (address,) = await self._masters(broker=broker)
        what = "the open transactions"
        fields = {"offset": str(first), "limit": str(count_max)}
        answer = await self._ask(address, RequestCode.LIST_TRANSACTIONS, fields, what)
        listed = decoded(decode_transactions, answer, what)
        return TransactionPage(
            address,
            transactions=tuple(_open_transaction(address.broker_name, one) for one in listed),
            total=number_field(answer, "total", what),
        )

    async def commit_transaction(self, broker: str, transaction_id: str) -> None:
        """Decide an open transaction of a Contrail broker: its message becomes visible."""
        await self._decide(broker, transaction_id, "commit")

    async def roll_back_transaction(self, broker: str, transaction_id: str) -> None:
        """Decide an open transaction of a Contrail broker: its message is dropped."""
        await self._decide(broker, transaction_id, "rollback")

    async def _decide(self, broker: str, transaction_id: str, fate: str) -> None:
        (address,) = await self._masters(broker=broker)
        await self._ask(
            address,
            RequestCode.DECIDE_TRANSACTION,
            {"transactionId": transaction_id, "fate": fate},
            f"{fate} of transaction {transaction_id!r}",
        )


def _messages(answer: ReceivedResponse, broker: BrokerAddress) -> list[ReceivedMessage]:
    if answer.code != ResponseCode.SUCCESS:
        return []
    return received_messages(answer.body, broker.broker_name)


def says_damaged(remark: str | None) -> bool:
    """Whether a broker's remark is about a damaged record, or about one that was replaced."""
    return remark is not None and ("is damaged" in remark or "was damaged" in remark)


@contextmanager
def _damage() -> Iterator[None]:
    """Raises ``MessageDamaged`` for a refusal that is about damage."""
    try:
        yield
    except BrokerRefused as refusal:
        if says_damaged(refusal.remark):
            raise MessageDamaged(str(refusal)) from refusal
        raise


def _subscription(topic: str, expression: str | Sql92) -> SubscriptionData:
    check_subscription(topic, expression)
    if isinstance(expression, Sql92):
        return parse_subscription(topic, expression.expression, SQL92)
    return parse_subscription(topic, expression)


def _timer_counts(broker: BrokerAddress, body: bytes) -> TimerCounts:
    """Raises ``RequestRejected`` for a body that holds no such counts."""
    with body_errors("the counts of timed messages"):
        fields = Fields(loads(body), "timer metrics")
        topics = fields.children("timingCount")
        return TimerCounts(
            broker,
            {name: one.integer("count", 0) for name, one in topics.items()},
            {int(seconds): count for seconds, count in _horizons(fields).items()},
        )


def _horizons(fields: Fields) -> dict[str, int]:
    counts = fields.integers("timingDistribution")
    return {seconds: count for seconds, count in counts.items() if seconds.isdecimal()}


def _open_transaction(broker_name: str, one: ListedTransaction) -> OpenTransaction:
    return OpenTransaction(
        broker_name=broker_name,
        transaction_id=one.transaction_id,
        topic=one.topic,
        producer_group=one.producer_group,
        message_id=one.message_id,
        born_ms=one.born_ms,
        age_ms=one.age_ms,
        check_count=one.checks,
        next_check_ms=one.next_check_ms,
    )
