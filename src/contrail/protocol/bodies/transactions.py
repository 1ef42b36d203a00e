"""The body of LIST_TRANSACTIONS: half messages that are neither committed nor rolled back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contrail.model.fastjson import FastJsonError, Fields, loads
from contrail.protocol.json_style import body_errors, encode_body


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One open transaction. ``next_check_ms`` is -1 while no producer of its group is connected."""

    transaction_id: str
    topic: str
    producer_group: str
    message_id: str
    queue_offset: int
    physical_offset: int
    born_ms: int
    age_ms: int
    checks: int
    next_check_ms: int


def encode_transactions(listed: Iterable[ListedTransaction]) -> bytes:
    """A JSON array, one object for each."""
    return encode_body([_fields(one) for one in listed])


def decode_transactions(body: bytes) -> list[ListedTransaction]:
    """Raises ``RequestRejected`` for a body that is no such array."""
    with body_errors("a list of transactions"):
        document = loads(body)
        if not isinstance(document, list):
            raise FastJsonError("it is no array")
        return [_transaction(Fields(entry, "a transaction")) for entry in document]


def _transaction(fields: Fields) -> ListedTransaction:
    return ListedTransaction(
        transaction_id=fields.text("transactionId", ""),
        topic=fields.text("topic", ""),
        producer_group=fields.text("producerGroup", ""),
        message_id=fields.text("msgId", ""),
        queue_offset=fields.integer("queueOffset", 0),
        physical_offset=fields.integer("commitLogOffset", 0),
        born_ms=fields.integer("bornTimestamp", 0),
        age_ms=fields.integer("ageMs", 0),
        checks=fields.integer("checks", 0),
        next_check_ms=fields.integer("nextCheckMs", 0),
    )


def _fields(one: ListedTransaction) -> dict[str, object]:
    return {
        "transactionId": one.transaction_id,
        "topic": one.topic,
        "producerGroup": one.producer_group,
        "msgId": one.message_id,
        "queueOffset": one.queue_offset,
        "commitLogOffset": one.physical_offset,
        "bornTimestamp": one.born_ms,
        "ageMs": one.age_ms,
        "checks": one.checks,
        "nextCheckMs": one.next_check_ms,
    }
