"""Queue locks of orderly consumers: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

from __future__ import annotations

from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.system_names import SystemNames
from contrail.clock import Clock
from contrail.protocol.bodies.locks import (
    LockRequest,
    decode_lock_request,
    encode_locked_queues,
)
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Handler, Peer


class LockHandlers:
    """Lends queues to the clients of a group, one client per queue."""

    def __init__(self, *, locks: QueueLocks, clock: Clock, names: SystemNames) -> None:
        self._locks = locks
        self._clock = clock
        self._names = names

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.handle_lock,
            RequestCode.UNLOCK_BATCH_MQ: self.handle_unlock,
        }

    def handle_lock(self, request: Request, peer: Peer) -> Response:
        wanted = self._read(request)
        held = self._locks.lock(wanted.group, wanted.queues, wanted.client_id, self._clock.now_ms())
        return Response(body=encode_locked_queues(held))

    def handle_unlock(self, request: Request, peer: Peer) -> Response:
        wanted = self._read(request)
        self._locks.unlock(wanted.group, wanted.queues, wanted.client_id)
        return Response()

    def _read(self, request: Request) -> LockRequest:
        wanted = decode_lock_request(request.body)
        self._names.require_group(wanted.group)
        for topic in {queue.topic for queue in wanted.queues}:
            self._names.require_readable(topic)
        return wanted
