"""Requests about timed messages: calling one back, and how the timer stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from contrail.broker.services.acknowledgements import IN_DOUBT_CODE, Acknowledgements, doubt_fields
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.timers import Timers
from contrail.broker.services.topics import Topics
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.recall_seal import RecallSeal
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected, StoreError
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import (
    BORN_TIMESTAMP,
    PGROUP,
    REAL_TOPIC,
    RECALL_NONCE,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    encode_properties,
)
from contrail.model.recall_handle import RecallHandle
from contrail.model.topic import TIMER_TOPIC
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import LATER, Answer, Handler, Peer

_RECALL_TAG = "_RECALL_TAG_"
_RECALL_BODY = b"0"
_TIMER_TOPIC = TIMER_TOPIC.encode()


class TimerStore(Protocol):
    """Where messages that wait are found by their keys."""

    def query(self, topic: bytes, key: bytes) -> list[StoredMessage]: ...


class TimerHandlers:
    """Answers recalls of producers, and the requests of slaves and administrators."""

    def __init__(
        self,
        timers: Timers,
        topics: Topics,
        settings: RuntimeSettings,
        deliveries: Deliveries,
        answers: Acknowledgements,
        clock: Clock,
        *,
        rules: TimerRules,
        seal: RecallSeal,
        store: TimerStore,
    ) -> None:
        self._seal = seal
        self._store = store
        self._timers = timers
        self._topics = topics
        self._settings = settings
        self._deliveries = deliveries
        self._answers = answers
        self._clock = clock
        self._rules = rules

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.RECALL_MESSAGE: self.handle_recall,
            RequestCode.RECALL_TIMER: self.handle_operators_recall,
            RequestCode.GET_TIMER_CHECK_POINT: self.handle_check_point,
            RequestCode.GET_TIMER_METRICS: self.handle_metrics,
        }

    def handle_check_point(self, request: Request, peer: Peer) -> Response:
        return Response(body=self._timers.check_point())

    def handle_metrics(self, request: Request, peer: Peer) -> Response:
        """RocketMQ's counts by topic, and beside them those by how soon the messages are due."""
        body = json.loads(self._timers.metrics())
        horizons = self._timers.pending_by_horizon()
        body["timingDistribution"] = {str(seconds): count for seconds, count in horizons.items()}
        return Response(body=json.dumps(body, separators=(",", ":")).encode())

    # Recall.

    def handle_recall(self, request: Request, peer: Peer) -> Answer:
        """Have a pending message deleted; success says only that the deletion is stored."""
        return self._recall(request, peer, self._require_given)

    def handle_operators_recall(self, request: Request, peer: Peer) -> Answer:
        """Recall for operators: their handles carry no seal.

        A handle without a seal recalls every message with its key, a sealed handle only its own
        message.
        """
        self._topics.names.require_writable(HeaderFields(request).text("topic"), peer.address)
        return self._recall(request, peer, self._require_no_foreign_seal)

    def _recall(
        self, request: Request, peer: Peer, require: Callable[[RecallHandle], None]
    ) -> Answer:
        fields = HeaderFields(request)
        topic, handle_text = fields.text("topic"), fields.text("recallHandle")
        try:
            self._check_open(topic)
            handle = self._checked_handle(topic, handle_text)
            require(handle)
            draft = self._deletion(handle, fields.optional_text("producerGroup"), peer)
            run = self._deliveries.append([draft])
            self._timers.recall(
                handle.topic.encode(),
                handle.unique_key.encode(),
                handle.nonce.encode(),
                handle.deliver_ms - 1,
                physical_end=run.physical_end,
            )
        except RequestRejected as refusal:
            return self._answer(refusal.code, refusal.remark)
        except StoreError as error:
            return self._answer(
                ResponseCode.SYSTEM_ERROR, f"the recall could not be stored: {error}"
            )

        def release(code: ResponseCode) -> None:
            if code is ResponseCode.SERVICE_NOT_AVAILABLE:
                peer.reply(request, self._answer(code, "the recall could not be made durable"))
            elif code == IN_DOUBT_CODE:
                answer = self._answer(code, "the recall may still be committed, or not")
                answer.fields = (answer.fields or {}) | doubt_fields(code)
                peer.reply(request, answer)
            else:
                # RocketMQ reports a late flush as success here.
                peer.reply(request, self._recalled(handle))

        self._answers.when_safe(peer, run.physical_end, release)
        return LATER

    def _check_open(self, topic: str) -> None:
        config = self._settings.config
        if not config.recall_enabled:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {config.broker_name!r} recalls no messages (recallMessageEnable)",
            )
        if self._clock.now_ms() < config.accept_sends_after_ms:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"this broker takes messages from {config.accept_sends_after_ms} on",
            )
        if self._topics.table.get(topic) is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist on this broker"
            )

    def _checked_handle(self, topic: str, text: str) -> RecallHandle:
        try:
            handle = RecallHandle.decode(text)
        except MessageIllegal as illegal:
            raise _illegal(str(illegal)) from illegal
        broker_name = self._settings.config.broker_name
        if handle.topic != topic:
            raise _illegal(f"the handle is for topic {handle.topic!r}, not {topic!r}")
        if handle.broker_name != broker_name:
            raise _illegal(f"the handle is for broker {handle.broker_name!r}, not {broker_name!r}")
        left_ms = handle.deliver_ms - self._clock.now_ms()
        if not 0 < left_ms < self._rules.delay_ms_max:
            raise _illegal(
                f"the message is due in {left_ms} ms: too late to call it back, or further away "
                f"than {self._rules.delay_limit}"
            )
        return handle

    def _require_given(self, handle: RecallHandle) -> None:
        """Refuse a handle that no send was answered with.

        Handles had no seal before the folder had a key: one without a seal names a message that
        was stored before.
        """
        if self._seal.is_own(handle) or (not handle.seal and self._is_of_before(handle)):
            return
        raise _illegal(
            "this broker has not given the handle; recall with the one the send was answered with, "
            "or on the broker's host with `contrail timer recall`"
        )

    def _require_no_foreign_seal(self, handle: RecallHandle) -> None:
        """Refuse a handle whose seal says nothing here: it may name another message."""
        if handle.seal and not self._seal.is_own(handle):
            raise _illegal(
                "this broker has not sealed the handle; give its first five words alone, or recall "
                "by the message's id with `contrail timer recall`"
            )

    def _is_of_before(self, handle: RecallHandle) -> bool:
        """Whether the message was stored before there was a key to seal its handle with."""
        found = self._store.query(_TIMER_TOPIC, handle.unique_key.encode())
        return any(
            message.store_timestamp_ms < self._seal.made_ms
            and message.properties.get(REAL_TOPIC) == handle.topic
            and message.properties.get(TIMER_OUT_MS) == str(handle.deliver_ms - 1)
            and TIMER_DEL_UNIQKEY not in message.properties
            for message in found
        )

    def _deletion(self, handle: RecallHandle, group: str | None, peer: Peer) -> MessageDraft:
        """The message that deletes another one; it waits in the same slot.

        It deletes the message that carries the handle's nonce, without one all with the key.
        """
        now_ms = self._clock.now_ms()
        properties = {
            TAGS: _RECALL_TAG,
            TIMER_DEL_UNIQKEY: self._deletion_key(handle),
            UNIQ_KEY: handle.unique_key,
            TIMER_DELIVER_MS: str(handle.deliver_ms),
            BORN_TIMESTAMP: str(now_ms),
            **({PGROUP: group} if group else {}),
            **({RECALL_NONCE: handle.nonce} if handle.nonce else {}),
        }
        draft = MessageDraft(
            handle.topic.encode(),
            0,
            _RECALL_BODY,
            born_timestamp_ms=now_ms,
            born_host=peer.packed_host,
        )
        placed = place(draft, properties, level_max=0, timers=self._rules, now_ms=now_ms)
        return placed.with_properties(encode_properties(properties))

    def _deletion_key(self, handle: RecallHandle) -> str:
        if self._settings.config.deletion_names_topic:
            return f"{handle.topic}+{handle.unique_key}"
        return handle.unique_key

    def _recalled(self, handle: RecallHandle) -> Response:
        answer = self._answer(ResponseCode.SUCCESS, None)
        assert answer.fields is not None
        answer.fields["msgId"] = handle.unique_key
        return answer

    def _answer(self, code: int, remark: str | None) -> Response:
        return Response(code, remark, {"MSG_REGION": self._settings.config.region})


def _illegal(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.ILLEGAL_OPERATION, f"recall refused: {remark}")
