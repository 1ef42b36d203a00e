"""Recall: take back a timer message before it is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.client.message import SendReceipt
from contrail.client.refusals import code_name
from contrail.client.trace import DEFAULT_REGION, ProducerTrace
from contrail.errors import BrokerRefused, BrokerUnknown, MessageIllegal, MessageInvalid
from contrail.model.properties import MSG_REGION
from contrail.model.recall_handle import RecallHandle
from contrail.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from contrail.client.instance import ClientInstance

_UNSUPPORTED_PREFIXES = ("%RETRY%", "%DLQ%")


async def recall(
    instance: ClientInstance,
    group: str,
    receipt_or_topic: SendReceipt | str,
    handle: str | None = None,
    *,
    timeout_ms: int | None = None,
    trace: ProducerTrace | None = None,
) -> str:
    """Have a broker drop a timer message before its time; returns the message's id.

    Success means that the recall is stored: an unknown message is not reported.

    Raises:
        MessageInvalid: the handle is missing, invalid, or of another topic.
        BrokerUnknown: the broker of the handle is in no route of the topic.
        BrokerRefused: too late, or the broker does not recall; the message says which.
    """
    topic, text = _given(receipt_or_topic, handle)
    place = _decoded(topic, text)
    address = await _master(instance, place)
    fields = {
        "producerGroup": group,
        "topic": topic,
        "recallHandle": text,
        "bname": place.broker_name,
    }
    try:
        answer = await instance.ask(
            address,
            RequestCode.RECALL_MESSAGE,
            fields,
            what=f"the recall of message {place.unique_key} of topic {topic!r}",
            timeout_ms=timeout_ms,
        )
    except BrokerRefused as refusal:
        if trace is not None:
            trace.recalled(topic, place.unique_key, success=False)
        raise _explained(refusal, place) from refusal
    if trace is not None:
        region = answer.fields.get(MSG_REGION, DEFAULT_REGION)
        trace.recalled(topic, place.unique_key, success=True, region=region)
    return answer.fields.get("msgId") or place.unique_key


def _given(receipt_or_topic: SendReceipt | str, handle: str | None) -> tuple[str, str]:
    """The topic and the handle, from a receipt or from both arguments."""
    if isinstance(receipt_or_topic, str):
        topic, text = receipt_or_topic, handle
    else:
        topic, text = receipt_or_topic.queue.topic, handle or receipt_or_topic.recall_handle
    if not text:
        raise MessageInvalid(
            f"there is no recall handle for topic {topic!r}: brokers give one, from 5.3.2 on, for "
            "messages with deliver_at or delay, and none for delay levels and batches"
        )
    if topic.startswith(_UNSUPPORTED_PREFIXES):
        raise MessageInvalid(f"messages of topic {topic!r} cannot be recalled: it is a system's")
    return topic, text


def _decoded(topic: str, text: str) -> RecallHandle:
    try:
        place = RecallHandle.decode(text)
    except MessageIllegal as error:
        raise MessageInvalid(str(error)) from error
    if place.topic != topic:
        raise MessageInvalid(f"the recall handle is for topic {place.topic!r}, not {topic!r}")
    return place


async def _master(instance: ClientInstance, place: RecallHandle) -> str:
    if instance.routes.master_of(place.broker_name) is None:
        await instance.refresh_route(place.topic)
    try:
        return instance.master_of(place.broker_name)
    except BrokerUnknown as error:
        raise BrokerUnknown(
            f"broker {place.broker_name!r} holds message {place.unique_key} of topic "
            f"{place.topic!r} and has no master in the route: start it, then recall again"
        ) from error


def _explained(refusal: BrokerRefused, place: RecallHandle) -> BrokerRefused:
    """The refusal with its cause and its fix, if known."""
    if refusal.code == ResponseCode.NO_PERMISSION:
        reason = "recall is switched off there: set recallMessageEnable=true on that broker"
    elif refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        reason = "it is too old to recall messages: RocketMQ does so from 5.3.2 on"
    elif refusal.code == ResponseCode.ILLEGAL_OPERATION:
        # Topic and broker fit, so the cause is the time by the broker's clock, or a forged handle.
        reason = (
            "too late, it is due or delivered (or due later than timerMaxDelaySec allows), or the "
            "broker has not given the handle"
        )
    else:
        return refusal
    return BrokerRefused(
        f"broker {place.broker_name!r} did not recall message {place.unique_key} of topic "
        f"{place.topic!r}: {reason} ({code_name(refusal.code)}: {refusal.remark})",
        code=refusal.code,
        remark=refusal.remark,
    )
