"""Queue locks of orderly consumers: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.

A request may name thousands of queues, which are looked at in steps. Requests of one client of a
group are carried out in the order in which they came, because a lock that overtakes an unlock, or
the other way round, would leave a queue to nobody or to two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from contrail.broker.handlers.offsets import GroupSettings, TopicSettings
from contrail.broker.services.address_shares import owner_of
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.system_names import SystemNames
from contrail.clock import Clock
from contrail.protocol.bodies.locks import LockBody, decode_lock_body, locked_queues_steps
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import MessageQueue
from contrail.wire.peer import Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go


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
        in_slices: InSlices = in_one_go,
    ) -> None:
        """``in_slices`` must carry out every request separately and to its end."""
        self.handle_lock = in_slices(self._lock)
        self.handle_unlock = in_slices(self._unlock)
        self._locks = locks
        self._groups = groups
        self._topics = topics
        self._broker_name = broker_name
        self._clock = clock
        self._names = names
        # Requests under way, by group and client, in the order in which they came.
        self._lines: dict[tuple[str, str], deque[object]] = {}

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.handle_lock,
            RequestCode.UNLOCK_BATCH_MQ: self.handle_unlock,
        }

    def _lock(self, request: Request, peer: Peer) -> Steps:
        """Grant queues that exist and are free; the answer lists them, its remark the absent.

        RocketMQ grants any queue of any name, and keeps it.
        """
        body = decode_lock_body(request.body)
        return (yield from self._in_order(body, self._granted(body, peer)))

    def _unlock(self, request: Request, peer: Peer) -> Steps:
        body = decode_lock_body(request.body)
        return (yield from self._in_order(body, self._released(body)))

    def _in_order(self, body: LockBody, work: Steps) -> Steps:
        """Carry ``work`` out once the client's requests before it are done."""
        key = (body.group, body.client_id)
        line = self._lines.setdefault(key, deque())
        line.append(work)
        try:
            while line[0] is not work:
                yield
            return (yield from work)
        finally:
            line.remove(work)
            if not line:
                del self._lines[key]

    def _granted(self, body: LockBody, peer: Peer) -> Steps:
        queues = yield from self._queues(body)
        if self._groups.get(body.group) is None:
            remark = f"nothing is locked: consumer group {body.group[:255]!r} does not exist"
            return Response(remark=remark, body=(yield from locked_queues_steps([])))
        owner, client_id = owner_of(peer), body.client_id
        held: list[MessageQueue] = []
        grants: list[int] = []
        absent_count = denied_count = 0
        for queue in queues:
            if not self._is_there(queue):
                absent_count += 1
            elif self._locks.lock(
                body.group, (queue,), client_id, self._clock.elapsed_ms(), owner=owner
            ):
                held.append(queue)
                grants += self._locks.grants(body.group, (queue,), client_id) or ()
            else:
                denied_count += 1
            yield
        return Response(
            remark=self._remark(absent_count, denied_count > 0, owner),
            body=(yield from locked_queues_steps(held, grants or None)),
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

    def _released(self, body: LockBody) -> Steps:
        for queue in (yield from self._queues(body)):
            self._locks.unlock(body.group, (queue,), body.client_id)
            yield
        return Response()

    def _queues(self, body: LockBody) -> Generator[None, None, tuple[MessageQueue, ...]]:
        """The queues that are named, one step for each.

        Raises:
            RequestRejected: one is malformed, or no client's to lock; none has been looked at yet.
        """
        self._names.require_group(body.group)
        queues = yield from body.queue_steps()
        for topic in {queue.topic for queue in queues}:
            self._names.require_readable(topic)
            yield
        return queues
