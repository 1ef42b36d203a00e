"""Brokers' locks on queues: of a group's members only the holder may handle an ordered queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import NamedTuple

from contrail.client.instance import GOES_ON_MS, ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.state.process_queue import LOCK_EXPIRES_MS
from contrail.errors import ClientError, RequestRejected
from contrail.protocol.bodies.locks import (
    LockRequest,
    decode_locked_queues,
    encode_lock_request,
)
from contrail.protocol.codes import RequestCode

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 1_000

Held = dict[MessageQueue, int | None]
"""The grant of a held lock, 0 if the broker sends no grant; None if the lock is not held.

Queues whose broker did not answer are left out.
"""


class Lease(NamedTuple):
    """How long a lock is valid after its request, and when it is requested again."""

    lasts_ms: int
    renew_ms: int


# Handlers start a little less long than announced, so that a handler that just began can end.
SHORT_LEASE = Lease(GOES_ON_MS - 500, 1_500)
LONG_LEASE = Lease(LOCK_EXPIRES_MS, 19_000)


class QueueLocks:
    """Requests locks and releases them."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    def lease(self, broker_name: str) -> Lease:
        """The lease: short, unless the broker is known to keep locks of disconnected clients."""
        address = self._instance.routes.master_of(broker_name)
        return LONG_LEASE if address in self._instance.plain_brokers else SHORT_LEASE

    async def lock(self, queues: Collection[MessageQueue]) -> Held:
        """Take or renew locks."""
        answers = await asyncio.gather(
            *(self._lock_at(name, own) for name, own in _by_broker(queues).items())
        )
        return {queue: held for answer in answers for queue, held in answer.items()}

    async def _lock_at(self, broker_name: str, queues: tuple[MessageQueue, ...]) -> Held:
        try:
            answer = await self._instance.ask_master(
                broker_name,
                queues[0].topic,
                RequestCode.LOCK_BATCH_MQ,
                {"bname": broker_name},
                self._body(queues),
                what=f"locks for group {self._group!r}",
                timeout_ms=_TIMEOUT_MS,
            )
            held = decode_locked_queues(answer.body)
        except (ClientError, RequestRejected) as error:
            _log.warning("queues of %s were not locked: %s", broker_name, error)
            return {}
        return {queue: held.get(queue) for queue in queues}

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release locks; a broker that does not get the request lets them expire."""
        for name, own in _by_broker(queues).items():
            try:
                await self._instance.ask_master(
                    name,
                    own[0].topic,
                    RequestCode.UNLOCK_BATCH_MQ,
                    {"bname": name},
                    self._body(own),
                    what=f"to unlock queues of group {self._group!r}",
                    timeout_ms=_TIMEOUT_MS,
                )
            except ClientError as error:
                _log.warning("queues of %s stay locked until that expires: %s", name, error)

    def _body(self, queues: tuple[MessageQueue, ...]) -> bytes:
        return encode_lock_request(LockRequest(self._group, self._instance.client_id, queues))


def _by_broker(queues: Collection[MessageQueue]) -> dict[str, tuple[MessageQueue, ...]]:
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return {name: tuple(own) for name, own in by_broker.items()}
