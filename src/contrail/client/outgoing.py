"""A message on its way: checked, with its id and properties, compressed where that pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from contrail.client.compression import Compression, compress
from contrail.client.message import Message
from contrail.client.reserved_names import check_property
from contrail.errors import MessageInvalid, TopicMissing, TopicNameIllegal, TopicTooLong
from contrail.model.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
)
from contrail.model.shown import shown
from contrail.model.topic import SEND_FORBIDDEN_TOPICS, check_topic_name, is_closed_topic
from contrail.protocol.codes import RequestCode

MESSAGE_BYTES_MAX = 4 << 20
COMPRESS_OVER_BYTES = 4 << 10
PROPERTIES_BYTES_MAX = 32_767
TIMER_PROPERTIES = frozenset({TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})
_SOUND_TOPICS_MAX = 10_000

# Topics that passed the check: a producer sends to few topics, many times.
_sound_topics: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRules:
    """The part of a producer's settings that concerns single messages."""

    body_bytes_max: int = MESSAGE_BYTES_MAX
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    compression: Compression = Compression.ZLIB
    compress_level: int = 5
    # A topic of traces may have a name of the system's: brokers open it by their settings.
    trace_topic: str | None = None


@dataclass(slots=True)
class Outgoing:
    """A checked message. ``properties`` may be added until it is sent."""

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    # The message id in the receipt: for a batch, the ids of all its messages.
    unique_id: str = ""
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_batch: bool = False
    code: RequestCode = RequestCode.SEND_MESSAGE_V2
    # If not the sender's.
    producer_group: str | None = None


def prepare(message: Message, *, unique_id: str, rules: OutgoingRules) -> Outgoing:
    """``message`` as it is sent.

    Raises:
        MessageInvalid: the message breaks a rule; the error names the rule and the fix.
        ClientError: the library that compresses is not installed.
    """
    topic = message.topic
    if topic not in _sound_topics:
        check_topic(topic, trace_topic=rules.trace_topic)
    body = check_body(message, rules.body_bytes_max)
    properties = build_properties(message)
    properties[UNIQ_KEY] = unique_id
    sys_flag = 0
    if len(body) >= rules.compress_over_bytes:
        packed, packed_flag = compress(body, rules.compression, rules.compress_level)
        if len(packed) < len(body):
            body, sys_flag = packed, packed_flag
    return Outgoing(topic, body, properties, message.flag, sys_flag, unique_id)


def check_topic(topic: str, *, trace_topic: str | None = None) -> None:
    """Raises ``MessageInvalid`` for a topic that no application may send to.

    Apache's brokers take messages for ``rmq_sys_`` topics, though their tools and proxies refuse
    the names; Contrail's brokers refuse them.
    """
    if not isinstance(topic, str):
        raise MessageInvalid(f"the topic is {shown(topic)}: give its name as a str")
    try:
        check_topic_name(topic)
    except (TopicMissing, TopicNameIllegal, TopicTooLong) as error:
        raise MessageInvalid(f"a message cannot be sent: {error}") from error
    if topic in SEND_FORBIDDEN_TOPICS or (is_closed_topic(topic) and topic != trace_topic):
        raise MessageInvalid(
            f"topic {shown(topic)} is the broker's own: applications may not send to it; "
            "choose another"
        )
    if topic == trace_topic:
        return
    if len(_sound_topics) >= _SOUND_TOPICS_MAX:
        _sound_topics.clear()
    _sound_topics.add(topic)


def check_body(message: Message, body_bytes_max: int) -> bytes:
    """The body, as bytes; raises ``MessageInvalid`` for a body that cannot be sent."""
    body: object = message.body
    if not isinstance(body, bytes):
        if isinstance(body, bytearray | memoryview):
            body = bytes(body)
        else:
            raise MessageInvalid(
                f"the body of a message for topic {shown(message.topic)} is a "
                f"{type(body).__name__}: give bytes, text with .encode()"
            )
    if not body:
        raise MessageInvalid(
            f"a message for topic {shown(message.topic)} has an empty body: send at least one byte"
        )
    if len(body) > body_bytes_max:
        raise MessageInvalid(
            f"a message for topic {shown(message.topic)} has {len(body)} bytes, at most "
            f"{body_bytes_max} may be sent: send it in parts, or raise max_message_size here and "
            "maxMessageSize on the broker"
        )
    return body


def build_properties(message: Message) -> dict[str, str]:
    """All properties of a message but its id.

    Raises:
        MessageInvalid: a property may not be set, or cannot be encoded.
    """
    properties = dict(message.properties)
    for name, value in properties.items():
        check_property(name, value, message.topic)
        _require_utf8(name, "the property name")
        _require_utf8(value, f"property {shown(name)}")
    if message.keys:
        properties[KEYS] = _joined_keys(message)
    if message.tags:
        properties[TAGS] = _plain(message.tags, "tags")
    if message.sharding_key:
        properties[SHARDING_KEY] = _plain(message.sharding_key, "sharding_key")
    if not message.wait_store_ok:
        properties[WAIT] = "false"
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        _put_delay(message, properties)
    if len(properties) > 4 or message.properties:
        _check_properties_size(properties, message.topic)
    return properties


def _check_properties_size(properties: Mapping[str, str], topic: str) -> None:
    size = sum(
        len(name.encode("utf-8", "replace")) + len(value.encode("utf-8", "replace")) + 2
        for name, value in properties.items()
    )
    if size > PROPERTIES_BYTES_MAX:
        raise MessageInvalid(
            f"the properties of a message for topic {shown(topic)} have {size} bytes, at most "
            f"{PROPERTIES_BYTES_MAX} may be sent: put the long ones into the body"
        )


def _joined_keys(message: Message) -> str:
    keys = (message.keys,) if isinstance(message.keys, str) else message.keys
    for key in keys:
        _plain(key, "a key")
        if KEY_SEPARATOR in key or not key:
            raise MessageInvalid(
                f"the key {shown(key)} of a message for topic {shown(message.topic)} is "
                "empty or holds a "
                "space, which separates keys: give several in a list, or replace the space"
            )
    return KEY_SEPARATOR.join(keys)


def _plain(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise MessageInvalid(f"{what} of a message is {shown(text)}: give a str")
    if "\x01" in text or "\x02" in text:
        raise MessageInvalid(f"{what} {shown(text)} holds a control character (1 or 2): remove it")
    _require_utf8(text, what)
    return text


def _require_utf8(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageInvalid(
            f"{what} {shown(text)} of a message holds half a character (a lone surrogate), which "
            "cannot be sent as UTF-8: decode the text with the encoding it has, or remove it"
        ) from error


def _put_delay(message: Message, properties: dict[str, str]) -> None:
    given = (message.delay_level != 0, message.delay is not None, message.deliver_at is not None)
    if sum(given) > 1:
        raise MessageInvalid(
            f"a message for topic {shown(message.topic)} has more than one of delay_level, "
            "delay and "
            "deliver_at: keep one"
        )
    if message.delay_level:
        if message.delay_level < 0:
            raise MessageInvalid(f"delay_level is {message.delay_level}: levels begin with 1")
        properties[DELAY] = str(message.delay_level)
    elif message.deliver_at is not None:
        properties[TIMER_DELIVER_MS] = str(_moment_ms(message.deliver_at))
    elif message.delay is not None:
        delay_ms = _span_ms(message.delay)
        if delay_ms % 1000:
            properties[TIMER_DELAY_MS] = str(delay_ms)
        else:
            properties[TIMER_DELAY_SEC] = str(delay_ms // 1000)


def _moment_ms(moment: datetime | int) -> int:
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int) or moment < 0:
        raise MessageInvalid(
            f"deliver_at is {shown(moment)}: give a datetime or epoch milliseconds"
        )
    return moment


def _span_ms(span: timedelta | float) -> int:
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
        raise MessageInvalid(f"delay is {shown(span)}: give a timedelta or seconds, not below 0")
    return round(seconds * 1000)
