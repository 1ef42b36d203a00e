"""Decides the outcome of a send: every check of the original, in its order.

``fast_topics`` is the shortcut: topics whose messages need no check but the queue id. It is
emptied whenever topics or settings change.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from contrail.broker.services.groups import Groups
from contrail.broker.services.topics import Topics, check_name
from contrail.broker.services.unique_ids import UniqueIds
from contrail.broker.state.half_messages import as_half, is_half
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.recall_seal import RecallSeal
from contrail.broker.state.retry_policy import is_given_up, reconsume_count_max
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.send_memory import Claim, SendMemory
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    CLUSTER,
    DELAY,
    INNER_NUM,
    MSG_REGION,
    POP_CK,
    RECALL_NONCE,
    TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRACE_ON,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)
from contrail.model.recall_handle import RecallHandle
from contrail.model.record import (
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_NEED_UNWRAP,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from contrail.model.topic import (
    RETRY_PREFIX,
    TIMER_TOPIC,
    Perm,
    QueueType,
    TopicConfig,
)
from contrail.protocol.codes import ResponseCode
from contrail.protocol.frames import SendRequest

if TYPE_CHECKING:
    from contrail.kernels.send_records import Places

# The flags of compressed bodies; a send with any other is checked: transactions, inner batches.
FAST_FLAGS = 0x701
_UNIT_FLAG, _UNIT_SUB_FLAG = 1, 2
_TIMER_TOPIC = TIMER_TOPIC.encode()
# Properties that the broker itself writes into messages that wait; a client's would be believed.
_BROKER_OWNED = (
    POP_CK,
    TIMER_ROLL_TIMES,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    RECALL_NONCE,
    TRANSACTION_CHECK_TIMES,
    TRAN_PREPARED_QUEUE_OFFSET,
)
_NO_MEMORIES: Mapping[str, SendMemory] = MappingProxyType({})


class Admitted(NamedTuple):
    """A send that may be stored: the draft to append, and how to answer."""

    draft: MessageDraft
    unique_key: str
    # Whether the producer wants the message to be safe before it is answered.
    waits: bool
    # The queue that the producer asked for; the message may wait in another one.
    queue_id: int
    # None for one message; otherwise the batch is split, or kept whole in a BatchCQ topic.
    batch: QueueType | None = None
    # The handle by which a producer recalls a pending timer.
    recall_handle: str | None = None
    # Of a topic that de-duplicates, unless the producer gave no key.
    claim: Claim | None = None


class SendAdmission:
    """The broker's rules for producers."""

    def __init__(
        self,
        settings: RuntimeSettings,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        unique_ids: UniqueIds,
        clock: Clock,
        *,
        level_max: int,
        timers: TimerRules,
        seal: RecallSeal,
        memories: Mapping[str, SendMemory] = _NO_MEMORIES,
        remembers: bool = True,
        takes_plain_only: bool = False,
    ) -> None:
        """``remembers`` tells whether messages of a topic may pass unchecked after the first.

        With ``takes_plain_only``, as a failover group does, whole batches are refused.
        """
        self._takes_plain_only = takes_plain_only
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._unique_ids = unique_ids
        self._clock = clock
        self._level_max = level_max
        self._timers = timers
        self._seal = seal
        self._memories = memories
        self._remembers = remembers
        # Topic -> queue count, for topics whose fast sends may be stored as they are.
        self.fast_topics: dict[bytes, int] = {}
        # Places of the queues of these topics, for the kernel that admits sends as rows.
        self.fast_places: Places = {}
        # The same for topics that de-duplicate: their messages are stored the general way.
        self._claiming_topics: dict[bytes, int] = {}
        # The same for topics whose fast batches may be split and stored as they are.
        self.split_topics: dict[bytes, int] = {}
        self._broker_properties = self._properties_now()
        # The bytes that the frame kernel appends, until the connections get others.
        self.property_suffix = encode_properties(self._broker_properties)
        self._is_suffix_true = True
        settings.watch(self._forget)
        topics.table.watch(self._forget)

    def _forget(self) -> None:
        """Topics or settings have changed: forget every verdict."""
        self.fast_topics = {}
        self.fast_places = {}
        self._claiming_topics = {}
        self.split_topics = {}
        self._broker_properties = self._properties_now()
        suffix = encode_properties(self._broker_properties)
        self._is_suffix_true = suffix == self.property_suffix

    def _properties_now(self) -> dict[str, str]:
        """The properties that the broker writes into every message, by its settings."""
        config = self._settings.config
        return {
            MSG_REGION: config.region,
            TRACE_ON: "true" if config.trace_on else "false",
            CLUSTER: config.cluster_name,
        }

    def admit(self, send: SendRequest, client: str, *, is_unit: bool = False) -> Admitted:
        """The admission of a send.

        Raises:
            RequestRejected: it may not be stored; code and remark say why.
        """
        self._check_time()
        config = self._known_topic(send.draft) or self._checked_topic(send, client, is_unit)
        queue_id = send.draft.queue_id
        if queue_id < 0:
            queue_id = random.randrange(config.write_queue_count or 1)
        properties = decode_properties(send.draft.properties)
        if not send.is_batch:
            config, queue_id = self._retry_or_dead(config, queue_id, send, properties, client)
        draft = send.draft
        topic, sys_flag = config.topic.encode(), _stored_flags(draft.sys_flag, config)
        if (topic, queue_id, sys_flag) != (draft.topic, draft.queue_id, draft.sys_flag):
            draft = draft._replace(topic=topic, queue_id=queue_id, sys_flag=sys_flag)
        if send.is_batch:
            return self._admit_batch(draft, config, properties)
        return self._admit_one(draft, config, properties)

    def _check_time(self) -> None:
        begins_ms = self._settings.config.accept_sends_after_ms
        if self._clock.now_ms() < begins_ms:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"this broker takes messages from {begins_ms} on"
            )

    def _known_topic(self, draft: MessageDraft) -> TopicConfig | None:
        """The topic of a message, if all facts of ``_checked_topic`` were checked before."""
        queue_count = self.fast_topics.get(draft.topic)
        if queue_count is None:
            queue_count = self._claiming_topics.get(draft.topic)
        if queue_count is None or draft.queue_id >= queue_count:
            return None
        return self._topics.table.get(draft.topic.decode())

    def _checked_topic(self, send: SendRequest, client: str, is_unit: bool) -> TopicConfig:
        topic = send.draft.topic.decode("utf-8", "replace")
        self._require_writable_broker()
        check_name(topic)
        self._topics.names.require_writable(topic, client)
        found = self._topics.ensure_for_send(
            topic,
            default_topic=send.default_topic.decode("utf-8", "replace"),
            queue_count=send.default_queue_count,
            client=client,
            now_ms=self._clock.now_ms(),
            sys_flag=_unit_flag(topic) if is_unit else 0,
        )
        queue_count = max(found.read_queue_count, found.write_queue_count)
        if send.draft.queue_id >= queue_count:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"queue {send.draft.queue_id} of topic {topic!r} does not exist: "
                f"it has {queue_count}",
            )
        if not found.writable:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"topic {topic!r} takes no messages: its perm {found.perm} has no write bit; set "
                "it with updateTopicPerm",
            )
        self._remember(found, queue_count)
        return found

    def _require_writable_broker(self) -> None:
        config = self._settings.config
        if not config.permission & Perm.WRITE:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {config.broker_name!r} takes no messages now (brokerPermission)",
            )

    def _remember(self, config: TopicConfig, queue_count: int) -> None:
        """Let fast sends to this topic pass without a check from now on."""
        is_fast = (
            self._remembers
            and not config.topic.startswith(RETRY_PREFIX)
            # Whether a closed topic may be written to depends on the peer: looked at each time.
            and not self._topics.names.is_closed(config.topic)
            and config.filter_type == "SINGLE_TAG"
            # A setting that is written into every message has changed: the general way writes it.
            and self._is_suffix_true
        )
        if not is_fast:
            return
        claims = config.topic in self._memories
        topics = self._claiming_topics if claims else self.fast_topics
        topics[config.topic.encode()] = queue_count

    def _retry_or_dead(
        self,
        config: TopicConfig,
        queue_id: int,
        send: SendRequest,
        properties: dict[str, str],
        client: str,
    ) -> tuple[TopicConfig, int]:
        """A message that failed too often, or of an orderly group, goes to the dead letters."""
        if not config.topic.startswith(RETRY_PREFIX):
            return config, queue_id
        group = config.topic.removeprefix(RETRY_PREFIX)
        now_ms = self._clock.now_ms()
        found = self._groups.require(group, now_ms, client=client)
        requested = send.reconsume_max if send.reconsume_max >= 0 else None
        count_max = reconsume_count_max(found, requested=requested, version=send.version)
        is_ordered = self._locks.has_unexpired(group, now_ms)
        # The consumer has counted this retry already.
        if not is_given_up(send.draft.reconsume_times, count_max) and not is_ordered:
            return config, queue_id
        properties[DELAY] = "-1"
        return self._topics.ensure_dlq_topic(group, now_ms), 0

    def _admit_one(
        self, draft: MessageDraft, config: TopicConfig, properties: dict[str, str]
    ) -> Admitted:
        _check_inner(draft, config, properties)
        sent_key = properties.get(UNIQ_KEY, "")
        key = sent_key or self._unique_ids.next()
        if draft.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            # A retry of a committed message, or a client that lies: only the broker commits.
            draft = draft._replace(sys_flag=draft.sys_flag & ~TRANSACTION_MASK)
        for name in _BROKER_OWNED:
            properties.pop(name, None)
        properties[UNIQ_KEY] = key
        properties |= self._broker_properties
        placed = self._placed(draft, properties)
        recall_handle = None
        if placed.topic == _TIMER_TOPIC and draft.topic != _TIMER_TOPIC:
            _refuse_deletion(properties)
            recall_handle = self._recall_handle(config.topic, key, properties)
        return Admitted(
            placed.with_properties(_encoded(properties)),
            key,
            waits=properties.get(WAIT, "true").lower() == "true",
            queue_id=draft.queue_id,
            recall_handle=recall_handle,
            claim=self._claim(config.topic, sent_key) if sent_key else None,
        )

    def _claim(self, topic: str, key: str) -> Claim | None:
        memory = self._memories.get(topic)
        if memory is None:
            return None
        return Claim(topic, memory, key.encode("utf-8", "replace"))

    def _placed(self, draft: MessageDraft, properties: dict[str, str]) -> MessageDraft:
        """Where the message is stored first: half, delayed and timed ones wait elsewhere."""
        if is_half(draft, properties):
            if self._settings.config.transactions_rejected:
                raise RequestRejected(
                    ResponseCode.NO_PERMISSION,
                    f"broker {self._settings.config.broker_name!r} takes no transactional "
                    "messages (rejectTransactionMessage)",
                )
            return as_half(draft, properties)
        return self._waiting(draft, properties)

    def _waiting(self, draft: MessageDraft, properties: dict[str, str]) -> MessageDraft:
        return place(
            draft,
            properties,
            level_max=self._level_max,
            timers=self._timers,
            now_ms=self._clock.now_ms(),
        )

    def _recall_handle(self, topic: str, key: str, properties: dict[str, str]) -> str | None:
        """The recall handle of this timer; ``properties`` get the nonce by which it is known."""
        if topic.startswith(RETRY_PREFIX):
            return None
        broker_name = self._settings.config.broker_name
        handle = RecallHandle(topic, broker_name, int(properties[TIMER_OUT_MS]) + 1, key)
        sealed = self._seal.sealed(handle)
        properties[RECALL_NONCE] = sealed.nonce
        return sealed.encode()

    def _admit_batch(
        self, draft: MessageDraft, config: TopicConfig, properties: dict[str, str]
    ) -> Admitted:
        if len(config.topic) > 127 or config.topic.startswith(RETRY_PREFIX):
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, f"batches are not taken for topic {config.topic!r}"
            )
        # Each message that a batch is split into has its flags; the broker itself marks whole ones.
        _check_inner(draft, config, properties)
        key = properties.get(UNIQ_KEY, "")
        kept_whole = config.attributes.get("queue.type") == QueueType.BATCH.value
        if kept_whole and self._takes_plain_only:
            raise _not_in_groups(f"whole batches, as those of topic {config.topic!r}")
        waits = properties.get(WAIT, "true").lower() == "true"
        self._require_at_once(draft, dict(properties))
        properties.pop(POP_CK, None)
        properties |= self._broker_properties
        draft = draft.with_properties(_encoded(properties))
        batch = QueueType.BATCH if kept_whole else QueueType.SIMPLE
        if not kept_whole and draft.topic in self.fast_topics:
            self.split_topics[draft.topic] = self.fast_topics[draft.topic]
        # A batch that is kept whole has one key, a batch that is split one in each message.
        claim = self._claim(config.topic, key) if key or not kept_whole else None
        return Admitted(draft, key, waits, draft.queue_id, batch, claim=claim)

    def _require_at_once(self, draft: MessageDraft, properties: dict[str, str]) -> None:
        if self._waiting(draft, properties) is not draft:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be delayed; send its messages singly"
            )


def _not_in_groups(what: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.MESSAGE_ILLEGAL,
        f"this failover group does not take {what} yet: send to a broker outside of groups",
    )


def _stored_flags(sys_flag: int, config: TopicConfig) -> int:
    return sys_flag | SYS_FLAG_MULTI_TAGS if config.filter_type == "MULTI_TAG" else sys_flag


def _unit_flag(topic: str) -> int:
    return _UNIT_SUB_FLAG if topic.startswith(RETRY_PREFIX) else _UNIT_FLAG


def _check_inner(draft: MessageDraft, config: TopicConfig, properties: dict[str, str]) -> None:
    """Marks that only whole batches carry, and a bit that would hide the message for ever."""
    if draft.sys_flag & (SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP) or INNER_NUM in properties:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a message to {config.topic!r} carries the marks of an inner batch, which the broker "
            "writes; send it without them, or several as a batch",
        )
    if TRAN_MSG in properties:
        return
    if draft.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_MASK):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag says half message but the property TRAN_MSG is missing; send both or none",
        )


def _refuse_deletion(properties: dict[str, str]) -> None:
    """Only the broker writes a timer that deletes another one, for a recall."""
    if TIMER_DEL_UNIQKEY in properties:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the property {TIMER_DEL_UNIQKEY} is not taken from a producer: recall the message "
            "with the handle that its send was answered with",
        )


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except MessageIllegal as error:
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
