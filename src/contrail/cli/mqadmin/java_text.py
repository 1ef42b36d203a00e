"""Values as Apache's tool prints them: times in local time, queues, messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contrail.client.message import ReceivedMessage, SendReceipt
from contrail.client.state.allocation import queue_text
from contrail.errors import OptionInvalid
from contrail.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from contrail.model.topic import Perm, TopicConfig


def comma_time(ms: int) -> str:
    """``2026-11-16 10:00:00,123``"""
    return f"{_moment(ms):%Y-%m-%d %H:%M:%S},{ms % 1000:03d}"


def second_time(ms: int) -> str:
    """``2026-11-16 10:00:00``"""
    return f"{_moment(ms):%Y-%m-%d %H:%M:%S}"


def compact_time(ms: int) -> str:
    """``20261116100000123``"""
    return f"{_moment(ms):%Y%m%d%H%M%S}{ms % 1000:03d}"


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000)


def read_time(option: str, text: str) -> int:
    """Milliseconds since 1970, or ``yyyy-MM-dd#HH:mm:ss:SSS`` in local time.

    Raises:
        OptionInvalid: it is neither.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        seconds, _, ms = text.rpartition(":")
        return int(datetime.strptime(seconds, "%Y-%m-%d#%H:%M:%S").timestamp()) * 1000 + int(ms)
    except ValueError:
        raise OptionInvalid(
            f"{option} {text!r} is no time: write it as 2026-11-16#10:00:00:000, or in milliseconds"
        ) from None


def truth(value: bool) -> str:
    return "true" if value else "false"


def front(text: str, width: int) -> str:
    """A cell's text, cut where Apache cuts it."""
    return text[:width]


def value_text(value: object) -> str:
    """A value as Java writes it into a text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return truth(value)
    if isinstance(value, Mapping):
        return map_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(one) for one in value)}]"
    return str(value)


def map_text(values: Mapping[Any, object]) -> str:
    return f"{{{', '.join(f'{name}={value_text(value)}' for name, value in values.items())}}}"


def perm_text(perm: int) -> str:
    letters = ((Perm.READ, "R"), (Perm.WRITE, "W"), (Perm.INHERIT, "X"))
    return "".join(letter if perm & flag else "-" for flag, letter in letters)


def topic_text(config: TopicConfig) -> str:
    return (
        f"TopicConfig [topicName={config.topic}, readQueueNums={config.read_queue_count}, "
        f"writeQueueNums={config.write_queue_count}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.filter_type}, topicSysFlag={config.sys_flag}, "
        f"order={truth(config.order)}, attributes={map_text(config.attributes)}]"
    )


def group_text(config: SubscriptionGroupConfig) -> str:
    return f"SubscriptionGroupConfig{map_text(group_facts(config))}"


def group_facts(config: SubscriptionGroupConfig) -> dict[str, object]:
    """A group's settings by RocketMQ's names, the retry policy as Java writes it."""
    return config.to_fields() | {"groupRetryPolicy": _policy_text(config.retry_policy)}


def _policy_text(policy: GroupRetryPolicy) -> str:
    values: dict[str, object] = {}
    for name, value in policy.to_fields().items():
        kind = f"{name[0].upper()}{name[1:]}"
        values[name] = f"{kind}{map_text(value)}" if isinstance(value, Mapping) else value
    return f"GroupRetryPolicy{map_text(values)}"


def receipt_text(receipt: SendReceipt) -> str:
    return (
        f"SendResult [sendStatus={receipt.status.value}, msgId={receipt.message_id}, "
        f"offsetMsgId={receipt.offset_message_id}, messageQueue={queue_text(receipt.queue)}, "
        f"queueOffset={receipt.queue_offset}, recallHandle={value_text(receipt.recall_handle)}]"
    )


def message_text(message: ReceivedMessage) -> str:
    """Everything about a message on one line."""
    # Java's bytes have a sign.
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message.body)
    inner = (
        f"Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={map_text(message.properties)}, body=[{body}], transactionId='null'}}"
    )
    facts = {
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "storeSize": message.record_bytes,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": f"/{message.born_host}",
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": f"/{message.store_host}",
        "msgId": message.offset_message_id,
        "commitLogOffset": message.physical_offset,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "toString()": inner,
    }
    return f"MessageExt [{', '.join(f'{name}={value}' for name, value in facts.items())}]"
