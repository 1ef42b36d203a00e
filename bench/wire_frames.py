"""The requests that the load replays: one frame each, as an official client would send it.

``NUMBER`` stands where each request gets a number of its own: as the opaque, and at the end of
each unique key, so that the key index meets as many keys as messages.
"""

from __future__ import annotations

import json
import time
from struct import Struct

from contrail.model.batch import BatchUnit, encode_batch

NUMBER = b"100000000"
CONNECTION_NUMBER = b"200000000"
BODY_BYTES = 1024
BATCH_MESSAGES = 32
PULL_MESSAGES = 32
BROKER_NAME = "bench"
TOPIC = "BenchTopic"
STREAM = "bench"

_HEAD = Struct(">II")
_OPAQUE = b'"opaque":'
_SEND_MESSAGE_V2 = 310
_SEND_BATCH_MESSAGE = 320
_PULL_MESSAGE = 11
_VERSION = 479
# A pull with its own subscription that does not wait for an arrival.
_PULL_SYS_FLAG = 0x4


def send_frame(
    body_bytes: int = BODY_BYTES,
    *,
    topic: str = TOPIC,
    sys_flag: int = 0,
    tag: str = "TagA",
    properties: str = "",
) -> bytes:
    """One message to queue 0, with the properties a Java producer gives it, and more."""
    fields = _send_fields(_properties(0, tag) + properties)
    fields |= {"b": topic, "f": str(sys_flag)}
    return request_frame(_SEND_MESSAGE_V2, fields, sample_body(body_bytes))


def batch_frame(topic: str = TOPIC) -> bytes:
    """32 messages in one request."""
    units = [
        BatchUnit(sample_body(), _properties(number).encode())
        for number in range(1, BATCH_MESSAGES + 1)
    ]
    return request_frame(
        _SEND_BATCH_MESSAGE,
        {**_send_fields(_properties(0)), "b": topic, "m": "true"},
        encode_batch(units),
    )


def pull_frame(
    *,
    topic: str = TOPIC,
    queue_offset: int = 0,
    sys_flag: int = _PULL_SYS_FLAG,
    expression: str = "*",
    expression_type: str = "TAG",
) -> bytes:
    """The first 32 messages of queue 0, again and again."""
    fields = {
        "consumerGroup": "bench_consumer",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(PULL_MESSAGES),
        "sysFlag": str(sys_flag),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": expression,
        "subVersion": "0",
        "expressionType": expression_type,
        "bname": BROKER_NAME,
    }
    return request_frame(_PULL_MESSAGE, fields)


def xadd_command() -> bytes:
    """The same body appended to a Redis stream."""
    return resp_command("XADD", STREAM, "*", "body", sample_body())


def xrange_command() -> bytes:
    """The first 32 entries of that stream."""
    return resp_command("XRANGE", STREAM, "-", "+", "COUNT", str(PULL_MESSAGES))


def resp_command(*words: str | bytes) -> bytes:
    """A Redis command as its protocol frames it."""
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in raw)


def publication() -> bytes:
    """The same body published to a JetStream, which acknowledges it to the second subject."""
    body = sample_body()
    return b"PUB %b %b %d\r\n%b\r\n" % (STREAM.encode(), _inbox(NUMBER), len(body), body)


def nats_greeting() -> bytes:
    """The first bytes of a NATS connection: no acknowledgements, and its inbox for answers."""
    told = b'CONNECT {"verbose":false,"pedantic":false,"lang":"c","version":"1","protocol":1}\r\n'
    return told + b"SUB %b 1\r\n" % _inbox(b"*")


def opaque_at(frame: bytes) -> int:
    """Where the digits of the opaque begin."""
    return frame.index(_OPAQUE) + len(_OPAQUE)


def frame_bytes(head: bytes) -> int:
    """How long the frame is whose first four bytes these are."""
    return len(head) + int.from_bytes(head, "big")


def sample_body(byte_count: int = BODY_BYTES) -> bytes:
    """Bytes that do not compress to nothing and never spell ``NUMBER``."""
    return bytes(33 + (position * 31 + 7) % 14 for position in range(byte_count))


def _inbox(last: bytes) -> bytes:
    # The load puts each connection's own number in the middle: answers must reach it alone.
    return b"_INBOX.%b.%b" % (CONNECTION_NUMBER, last)


def _send_fields(properties: str) -> dict[str, str]:
    return {
        "a": "bench_producer",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": BROKER_NAME,
    }


def _properties(number: int, tag: str = "TagA") -> str:
    unique_key = f"7F0000010A2B18B4AAC20{number:02X}" + NUMBER.decode()
    pairs = (("UNIQ_KEY", unique_key), ("WAIT", "true"), ("TAGS", tag))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def request_frame(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """A request as a Java client writes it, numbered ``NUMBER``."""
    header = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": int(NUMBER),
        "serializeTypeCurrentRPC": "JSON",
        "version": _VERSION,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return _HEAD.pack(4 + len(text) + len(body), len(text)) + text + body
