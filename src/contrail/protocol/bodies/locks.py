"""The bodies of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from contrail.model.fastjson import FastJsonError, Fields, JsonValue
from contrail.protocol.json_style import (
    MessageQueue,
    at_once,
    body_errors,
    client_id_of,
    decode_body,
    encode_body,
    rendered_array,
)

QUEUES_MAX = 4096
"""Bound of the queues of one request."""

_GRANTS = "contrailGrants"
_QUEUES = "mqSet"
_WHAT = "a set of queues to lock or unlock"


@dataclass(frozen=True, slots=True)
class LockRequest:
    """The queues that a client of a group wants to lock or unlock.

    ``only_this_broker`` asks a member of a replicated broker not to lock on its peers.
    """

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockBody:
    """The body of a lock request, with its queues still undecoded."""

    group: str
    client_id: str
    only_this_broker: bool
    entries: list[JsonValue]

    def queue_steps(self) -> Generator[None, None, tuple[MessageQueue, ...]]:
        """The queues, with a step for each.

        Raises:
            RequestRejected: a queue is malformed.
        """
        queues = []
        with body_errors(_WHAT):
            for entry in self.entries:
                queues.append(_queue(entry, _QUEUES))
                yield
        return tuple(queues)


def decode_lock_body(body: bytes) -> LockBody:
    """Raises ``RequestRejected`` for an absent or malformed body; its queues are not checked."""
    fields = decode_body(body, _WHAT)
    with body_errors(_WHAT):
        return LockBody(
            group=fields.text("consumerGroup", ""),
            client_id=client_id_of(fields, "clientId"),
            only_this_broker=fields.boolean("onlyThisBroker", False),
            entries=_entries(fields, _QUEUES),
        )


def decode_lock_request(body: bytes) -> LockRequest:
    """Raises ``RequestRejected`` for a body that is absent or malformed."""
    found = decode_lock_body(body)
    queues = at_once(found.queue_steps())
    return LockRequest(found.group, found.client_id, queues, found.only_this_broker)


def encode_lock_request(lock: LockRequest) -> bytes:
    return encode_body(
        {
            "clientId": lock.client_id,
            "consumerGroup": lock.group,
            "mqSet": list(lock.queues),
            "onlyThisBroker": lock.only_this_broker,
        }
    )


def locked_queues_steps(
    queues: Iterable[MessageQueue], grants: Iterable[int] | None = None
) -> Generator[None, None, bytes]:
    """The answer to a lock request: the queues that its client holds, with a step for each.

    ``grants`` is Contrail's own: a number for each queue that changes when another client locks it.
    """
    shown = yield from rendered_array(queues)
    more = {} if grants is None else {_GRANTS: list(grants)}
    return encode_body({"lockOKMQSet": shown, **more})


def decode_locked_queues(body: bytes) -> dict[MessageQueue, int]:
    """The queues with their grants, 0 if the broker sends none.

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
    return tuple(_queue(entry, name) for entry in _entries(fields, name))


def _entries(fields: Fields, name: str) -> list[JsonValue]:
    entries = fields.array(name)
    if len(entries) > QUEUES_MAX:
        raise FastJsonError(f"{name} has {len(entries)} entries, at most {QUEUES_MAX} are taken")
    return entries


def _queue(entry: JsonValue, name: str) -> MessageQueue:
    return MessageQueue.from_fields(Fields(entry, f"an entry of {name}"))
