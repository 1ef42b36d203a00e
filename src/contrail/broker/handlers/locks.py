"""Queue locks of orderly consumers: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

from __future__ import annotations

from contrail.broker.handlers.offsets import GroupSettings, TopicSettings
from contrail.broker.services.address_shares import owner_of
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
from contrail.protocol.json_style import MessageQueue
from contrail.wire.peer import Handler, Peer


class LockHandlers:
    """Lends queues to the clients of a group, one client per queue."""

    def __init__(
        self,
        *,
        locks: QueueLocks,
        groups: GroupSettings,
        topics: TopicSettings,
        broker_name: str,
        clock: Clock,
        names: SystemNames,
    ) -> None:
        self._locks = locks
        self._groups = groups
        self._topics = topics
        self._broker_name = broker_name
        self._clock = clock
        self._names = names

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.handle_lock,
            RequestCode.UNLOCK_BATCH_MQ: self.handle_unlock,
        }

    def handle_lock(self, request: Request, peer: Peer) -> Response:
        """Grant what is there and free; the answer lists it, and its remark says what is missing.

        RocketMQ grants any queue of any name, and keeps it.
        """
        wanted = self._read(request)
        if self._groups.get(wanted.group) is None:
            remark = f"nothing is locked: consumer group {wanted.group[:255]!r} does not exist"
            return Response(remark=remark, body=encode_locked_queues([]))
        present = [queue for queue in wanted.queues if self._is_there(queue)]
        owner, now_ms = owner_of(peer), self._clock.now_ms()
        held = self._locks.lock(wanted.group, present, wanted.client_id, now_ms, owner=owner)
        return Response(
            remark=self._remark(len(wanted.queues) - len(present), len(held) < len(present), owner),
            body=encode_locked_queues(
                held, self._locks.grants(wanted.group, held, wanted.client_id)
            ),
        )

    def _is_there(self, queue: MessageQueue) -> bool:
        topic = self._topics.get(queue.topic)
        if topic is None or queue.broker_name != self._broker_name:
            return False
        return 0 <= queue.queue_id < max(topic.read_queue_count, topic.write_queue_count)

    def _remark(self, absent_count: int, some_left: bool, owner: str) -> str | None:
        shares = self._locks.shares
        if some_left and shares.room(owner) <= 0:
            return (
                f"no more queues are locked: {shares.total} are, at most {shares.total_max} in all "
                f"and {shares.share_max} of one address"
            )
        if absent_count:
            return f"{absent_count} queues are not locked: {self._broker_name!r} has none such"
        return None

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
