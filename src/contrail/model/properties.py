"""Message properties: their reserved names, and the text form they are stored and sent in.

Each pair is the name, byte 1, the value, byte 2, all UTF-8. The writer ends every pair with byte
2; the reader also accepts a last pair without it, and drops pairs whose name or value is empty:
an empty property value does not survive being stored, here as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from contrail.errors import MessageIllegal

NAME_END = b"\x01"
PAIR_END = b"\x02"

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"

RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
# Set by Contrail's client alone: why the message that was sent back could not be decoded.
UNREADABLE = "CONTRAIL_UNREADABLE"

TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"

INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"

TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
# Set by Contrail's brokers alone: tells a waiting timer message apart from others with the same
# unique key; a recall's deletion carries the nonce of the message it deletes.
RECALL_NONCE = "CONTRAIL_RECALL_NONCE"

POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
# The group that a message of a pop retry topic is for; the topic's name alone does not tell.
ORIGIN_GROUP = "ORIGIN_GROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
CONSUME_START_TIME = "CONSUME_START_TIME"

MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
TRACE_CONTEXT = "TRACE_CONTEXT"
CLUSTER = "CLUSTER"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MSG_TYPE = "MSG_TYPE"

BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
CRC32 = "__CRC32#"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
TRANSIENT_TOPIC_SYS_FLAG = TRANSIENT_PREFIX + "TOPIC_SYS_FLAG"
TRANSIENT_GROUP_SYS_FLAG = TRANSIENT_PREFIX + "GROUP_SYS_FLAG"

# Names that old clients still send; Contrail ignores these properties.
BUYER_ID = "BUYER_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
DUP_INFO = "DUP_INFO"
REDIRECT = "REDIRECT"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"

# ``__CRC32#``, byte 1, ten digits, byte 2.
CRC32_PROPERTY_BYTES = 20
KEY_SEPARATOR = " "


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The stored form of ``properties``, in their order.

    Raises:
        MessageIllegal: a name or value holds a byte that separates pairs, so that reading it back
            would give other properties.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    # One join is faster than pair by pair: producers of half and delayed messages wait meanwhile.
    if text.count("\x02") != len(properties) or "\x01" in "".join(properties):
        return b"".join(_encode_pair(name, value) for name, value in properties.items())
    return text.encode("utf-8", "replace")


def decode_properties(data: bytes) -> dict[str, str]:
    """The properties in ``data``; of a name that occurs twice the last value counts."""
    properties: dict[str, str] = {}
    for pair in data.decode("utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def read_property(data: bytes, name: str) -> str | None:
    """One property of the stored form, or None; the same value ``decode_properties`` would give."""
    wanted = name.encode()
    for pair in reversed(data.split(PAIR_END)):
        found, _, value = pair.partition(NAME_END)
        if found == wanted and value:
            return value.decode("utf-8", "replace")
    return None


def remove_property(data: bytes, name: str) -> bytes:
    """The stored form without ``name``; every other pair keeps its bytes and order."""
    start = name.encode() + NAME_END
    if start not in data:
        return data
    return PAIR_END.join(pair for pair in data.split(PAIR_END) if not pair.startswith(start))


def remove_properties(data: bytes, names: tuple[str, ...]) -> bytes:
    """As ``remove_property`` for each of ``names``, in one pass."""
    starts = _starts_of(names)
    pairs = data.split(PAIR_END)
    kept = [pair for pair in pairs if not pair.startswith(starts)]
    return data if len(kept) == len(pairs) else PAIR_END.join(kept)


@cache
def _starts_of(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(name.encode() + NAME_END for name in names)


def put_property(data: bytes, name: str, value: str) -> bytes:
    """The stored form with ``name`` set to ``value``, at the end."""
    rest = remove_property(data, name)
    if rest and not rest.endswith(PAIR_END):
        rest += PAIR_END
    return rest + _encode_pair(name, value)


def _encode_pair(name: str, value: str) -> bytes:
    if "\x01" in name or "\x02" in name or "\x02" in value:
        raise MessageIllegal(
            f"property {name!r} holds a character (1 or 2) that separates properties; remove it"
        )
    # An unpaired surrogate becomes a question mark, as in Java.
    return f"{name}\x01{value}\x02".encode("utf-8", "replace")
