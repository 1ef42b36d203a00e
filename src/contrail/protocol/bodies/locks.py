"""The bodies of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contrail.model.fastjson import FastJsonError, Fields
from contrail.protocol.json_style import (
    MessageQueue,
    body_errors,
    client_id_of,
    decode_body,
    encode_body,
)

QUEUES_MAX = 4096
"""Most queues of one request."""

_GRANTS = "contrailGrants"


@dataclass(frozen=True, slots=True)
class LockRequest:
    """Which queues a client of a group wants to lock or unlock.

    ``only_this_broker`` asks a member of a replicated broker to leave its peers alone.
    """

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False


def decode_lock_request(body: bytes) -> LockRequest:
    """Raises ``RequestRejected`` for a body that is absent or malformed."""
    what = "a set of queues to lock or unlock"
    fields = decode_body(body, what)
    with body_errors(what):
        return LockRequest(
            group=fields.text("consumerGroup", ""),
            client_id=client_id_of(fields, "clientId"),
            queues=_queues(fields, "mqSet"),
            only_this_broker=fields.boolean("onlyThisBroker", False),
        )


def encode_lock_request(lock: LockRequest) -> bytes:
    return encode_body(
        {
            "clientId": lock.client_id,
            "consumerGroup": lock.group,
            "mqSet": list(lock.queues),
            "onlyThisBroker": lock.only_this_broker,
        }
    )


def encode_locked_queues(
    queues: Iterable[MessageQueue], grants: Iterable[int] | None = None
) -> bytes:
    """The answer to a lock request: the queues that its client holds now.

    ``grants`` is Contrail's own: a number for each queue, the same as long as nobody else had it.
    """
    more = {} if grants is None else {_GRANTS: list(grants)}
    return encode_body({"lockOKMQSet": list(queues), **more})


def decode_locked_queues(body: bytes) -> dict[MessageQueue, int]:
    """The queues with their grants, 0 where the broker tells none.

    Raises:
        RequestRejected: the body is absent or malformed.
    """
    what = "a set of locked queues"
    fields = decode_body(body, what)
    with body_errors(what):
        queues = _queues(fields, "lockOKMQSet")
        grants = fields.array(_GRANTS)
        if len(grants) != len(queues):
            return dict.fromkeys(queues, 0)
        numbers = [number if isinstance(number, int) else 0 for number in grants]
        return dict(zip(queues, numbers, strict=True))


def _queues(fields: Fields, name: str) -> tuple[MessageQueue, ...]:
    entries = fields.array(name)
    if len(entries) > QUEUES_MAX:
        raise FastJsonError(f"{name} has {len(entries)} entries, at most {QUEUES_MAX} are taken")
    return tuple(
        MessageQueue.from_fields(Fields(entry, f"an entry of {name}")) for entry in entries
    )
