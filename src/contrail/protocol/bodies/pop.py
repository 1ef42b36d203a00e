"""Bodies about pop: batches of acknowledgements, questions about assignments and their answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import NamedTuple

from contrail.model.fastjson import FastJsonError, Fields
from contrail.protocol.json_style import MessageQueue, body_errors, decode_body, encode_body

_BITS_BYTES_MAX = 4096


class BatchAck(NamedTuple):
    """Messages of one checkpoint that a consumer acknowledges."""

    group: str
    # The topic itself; ``retry_flag`` tells of its retry topics.
    topic: str
    retry_flag: str
    start_offset: int
    queue_id: int
    revive_queue: int
    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]


class BatchAcks(NamedTuple):
    """The body of BATCH_ACK_MESSAGE."""

    broker_name: str
    acks: list[BatchAck]


def decode_batch_acks(body: bytes) -> BatchAcks:
    """Short names and long ones are taken.

    Raises:
        RequestRejected: the body is no batch of acknowledgements.
    """
    what = "a batch of acknowledgements"
    fields = decode_body(body, what)
    with body_errors(what):
        acks = [_batch_ack(Fields(one, "an acknowledgement")) for one in fields.array("acks")]
        return BatchAcks(fields.text("brokerName", ""), acks)


def _batch_ack(fields: Fields) -> BatchAck:
    def text(short: str, name: str) -> str:
        return fields.text(short, "") or fields.text(name, "")

    def number(short: str, name: str) -> int:
        return fields.integer(short, fields.integer(name, 0))

    start_offset = number("so", "startOffset")
    return BatchAck(
        group=text("c", "consumerGroup"),
        topic=text("t", "topic"),
        retry_flag=text("r", "retry"),
        start_offset=start_offset,
        queue_id=number("q", "queueId"),
        revive_queue=number("rq", "reviveQueueId"),
        pop_time_ms=number("pt", "popTime"),
        invisible_ms=number("it", "invisibleTime"),
        offsets=tuple(start_offset + bit for bit in _bits(text("b", "bitSet"))),
    )


def _bits(text: str) -> list[int]:
    """The places of the set bits, the lowest bit of the first byte first."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FastJsonError(f"a bit set is no base64: {error}") from error
    if len(data) > _BITS_BYTES_MAX:
        raise FastJsonError(f"a bit set of {len(data)} bytes")
    return [
        8 * index + bit for index, byte in enumerate(data) for bit in range(8) if byte >> bit & 1
    ]


def encode_batch_acks(batch: BatchAcks) -> bytes:
    """The body of BATCH_ACK_MESSAGE, with short names."""
    return encode_body(
        {"acks": [_batch_ack_fields(one) for one in batch.acks], "brokerName": batch.broker_name}
    )


def _batch_ack_fields(ack: BatchAck) -> dict[str, object]:
    bits = bytearray()
    for offset in ack.offsets:
        index, bit = divmod(offset - ack.start_offset, 8)
        bits.extend(bytes(index + 1 - len(bits)))
        bits[index] |= 1 << bit
    return {
        "b": base64.b64encode(bits).decode(),
        "c": ack.group,
        "it": ack.invisible_ms,
        "pt": ack.pop_time_ms,
        "q": ack.queue_id,
        "r": ack.retry_flag,
        "rq": ack.revive_queue,
        "so": ack.start_offset,
        "t": ack.topic,
    }


class AssignmentQuestion(NamedTuple):
    """The body of QUERY_ASSIGNMENT."""

    topic: str
    group: str
    client_id: str
    strategy: str
    broadcasts: bool


def decode_assignment_question(body: bytes) -> AssignmentQuestion:
    """Raises ``RequestRejected`` for a body that is none."""
    what = "a question for an assignment"
    fields = decode_body(body, what)
    with body_errors(what):
        model = fields.text("messageModel", "CLUSTERING")
        if model not in ("CLUSTERING", "BROADCASTING"):
            raise FastJsonError(f"messageModel {model!r} is unknown")
        return AssignmentQuestion(
            topic=fields.text("topic", ""),
            group=fields.text("consumerGroup", ""),
            client_id=fields.text("clientId", ""),
            strategy=fields.text("strategyName", ""),
            broadcasts=model == "BROADCASTING",
        )


def encode_assignment_question(question: AssignmentQuestion) -> bytes:
    """The body of QUERY_ASSIGNMENT."""
    return encode_body(
        {
            "clientId": question.client_id,
            "consumerGroup": question.group,
            "messageModel": "BROADCASTING" if question.broadcasts else "CLUSTERING",
            "strategyName": question.strategy,
            "topic": question.topic,
        }
    )


def encode_assignments(queues: Iterable[MessageQueue] | None, mode: str) -> bytes:
    """The answer to QUERY_ASSIGNMENT; without queues (None) a client keeps those that it has."""
    if queues is None:
        return encode_body({})
    return encode_body(
        {
            "messageQueueAssignments": [
                {"messageQueue": queue.to_fields(), "mode": mode} for queue in queues
            ]
        }
    )
