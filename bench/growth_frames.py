"""The requests of the growth suite: to any topic and queue, timed, committing, held."""

from __future__ import annotations

import re
import time

from bench.wire_frames import (
    BATCH_MESSAGES,
    BODY_BYTES,
    BROKER_NAME,
    NUMBER,
    PULL_MESSAGES,
    TOPIC,
    sample_body,
)
from contrail.model.batch import BatchUnit, encode_batch
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, encode_request

GROUP = "bench_consumer"
_OWN_SUBSCRIPTION = 0x4
_MAY_WAIT = 0x2
_COMMITS = 0x1
_HOLD_MS = 120_000
_HOT_KEY = "hot"
_OFFSET = re.compile(rb'"offset":"([0-9]+)"')


def send(
    topic: str = TOPIC, queue_id: int = 0, *, body_bytes: int = BODY_BYTES, properties: str = ""
) -> bytes:
    """One message as a Java producer sends it."""
    fields = _send_fields(topic, queue_id, _unique_key(0) + properties)
    return _request(RequestCode.SEND_MESSAGE_V2, fields, sample_body(body_bytes))


def timed_send(topic: str) -> bytes:
    """One message whose delay is the request's own number: over a day, each a millisecond more."""
    return send(topic, body_bytes=100, properties=f"TIMER_DELAY_MS\x01{NUMBER.decode()}\x02")


def batch(body_bytes: int) -> bytes:
    """32 messages in one request."""
    numbers = range(1, BATCH_MESSAGES + 1)
    units = [BatchUnit(sample_body(body_bytes), _unique_key(number).encode()) for number in numbers]
    fields = {**_send_fields(TOPIC, 0, _unique_key(0)), "m": "true"}
    return _request(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(units))


def pull(queue_offset: int, *, commits: bool = False) -> bytes:
    """A pull of 32 messages of queue 0 from an offset on; a committing pull also commits it."""
    sys_flag = _OWN_SUBSCRIPTION | (_COMMITS if commits else 0)
    return _request(RequestCode.PULL_MESSAGE, _pull_fields(TOPIC, 0, queue_offset, sys_flag))


def held_pull(topic: str, queue_id: int, offset: int, opaque: int) -> bytes:
    """A pull at the end of a queue, to be held as long as a broker holds any."""
    fields = _pull_fields(topic, queue_id, offset, _OWN_SUBSCRIPTION | _MAY_WAIT)
    return encode_request(Request(RequestCode.PULL_MESSAGE, opaque, fields))


def refused_pull() -> bytes:
    """A pull of a topic that does not exist."""
    return _request(RequestCode.PULL_MESSAGE, _pull_fields("NoSuchTopic", 0, 0, _OWN_SUBSCRIPTION))


def keyed_send() -> bytes:
    """One message with the key that ``costly_query`` asks for."""
    return send(properties=f"KEYS\x01{_HOT_KEY}\x02")


def costly_query() -> bytes:
    """Asks for the newest 64 messages of a key: some two milliseconds of work."""
    fields = {
        "topic": TOPIC,
        "key": _HOT_KEY,
        "maxNum": "64",
        "beginTimestamp": "0",
        "endTimestamp": str(2**62),
    }
    return _request(RequestCode.QUERY_MESSAGE, fields)


def all_lags() -> bytes:
    """Asks how far all groups are behind."""
    return _request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})


def figures() -> bytes:
    """Asks for the figures of all topics and groups."""
    return _request(RequestCode.LIST_FIGURES, {})


def queue_end(topic: str = TOPIC) -> bytes:
    """Asks where queue 0 ends."""
    return _request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})


def told_queue_end(answer: bytes) -> int:
    """The next queue offset, from the answer to ``queue_end``."""
    found = _OFFSET.search(answer)
    assert found is not None, answer
    return int(found[1])


def timer_counts() -> bytes:
    """Asks how many timed messages wait, by topic."""
    return _request(RequestCode.GET_TIMER_METRICS, {})


def _request(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    return encode_request(Request(code, int(NUMBER), fields, body))


def _send_fields(topic: str, queue_id: int, properties: str) -> dict[str, str]:
    return {
        "a": "bench_producer",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": BROKER_NAME,
    }


def _unique_key(number: int) -> str:
    unique_key = f"7F0000010A2B18B4AAC20{number:02X}" + NUMBER.decode()
    return f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def _pull_fields(topic: str, queue_id: int, queue_offset: int, sys_flag: int) -> dict[str, str]:
    return {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(PULL_MESSAGES),
        "sysFlag": str(sys_flag),
        "commitOffset": str(queue_offset if sys_flag & _COMMITS else 0),
        "suspendTimeoutMillis": str(_HOLD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "bname": BROKER_NAME,
    }
