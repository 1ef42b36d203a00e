"""Requests that look at what a pop would find, and take nothing: notifications and peeks.

A notification is answered as soon as there is a message; until then it waits beside the pops, and
the newest one is answered first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from contrail.broker.services.ordered_pops import OrderedPops
from contrail.broker.services.pop_admission import LookPlan, PopAdmission
from contrail.broker.services.pop_reads import PopReads
from contrail.broker.services.pop_waits import PopWaits
from contrail.broker.state.pop_records import COUNT_MAX
from contrail.broker.state.pop_waiting import WaitKey
from contrail.broker.state.pull_plan import PullPlan
from contrail.clock import Clock
from contrail.errors import ConfigError, FilterInvalid, RequestRejected
from contrail.model.subscription import parse_subscription
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.store import GetResult, GetStatus, MessageStore
from contrail.wire.peer import LATER, Answer, Handler, Peer

# A waiter's time ends this much before the client's.
_EARLY_MS = 50
# RocketMQ looks at tags only where fewer messages rest, and at so many of them.
_FILTERED_REST_MAX = 64
_FILTERED_ROW_COUNT = 32
_MOVED = frozenset({GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY})


class PopLookHandlers:
    """Serves NOTIFICATION, PEEK_MESSAGE and POLLING_INFO."""

    def __init__(
        self,
        admission: PopAdmission,
        reads: PopReads,
        ordered: OrderedPops,
        pop_waits: PopWaits,
        waits: PopWaits,
        store: MessageStore,
        clock: Clock,
        *,
        read: Callable[[PullPlan], GetResult],
        chance: Callable[[], int] = lambda: random.randrange(100),
    ) -> None:
        """``waits`` holds notifications, ``pop_waits`` the pops that POLLING_INFO counts."""
        self._admission = admission
        self._reads = reads
        self._ordered = ordered
        self._pop_waits = pop_waits
        self._waits = waits
        self._store = store
        self._clock = clock
        self._read = read
        self._chance = chance

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFICATION: self.handle_notification,
            RequestCode.PEEK_MESSAGE: self.handle_peek,
            RequestCode.POLLING_INFO: self.handle_polling_info,
        }

    # Notifications.

    def handle_notification(self, request: Request, peer: Peer) -> Answer:
        """Whether there is a message to pop, as soon as there is one."""
        fields = HeaderFields(request)
        poll_ms = fields.long("pollTime")
        born_ms = fields.long("bornTime", 0) or self._clock.now_ms()
        plan = self._admission.look(request, peer.address)
        tag_codes = _tag_codes(fields, plan.topic)
        attempt_id = fields.optional_text("attemptId") if fields.boolean("order") else None
        in_order = fields.boolean("order")
        for topic, queue_id in self._queues(plan):
            is_blocked = in_order and self._is_blocked(plan, queue_id, attempt_id)
            if not is_blocked and self._has_messages(plan, topic, queue_id, tag_codes):
                return _notified(has_message=True)
        wait_ms = born_ms + poll_ms - _EARLY_MS - self._clock.now_ms()
        if poll_ms <= 0 or wait_ms <= 0:
            return _notified(has_message=False)
        key = WaitKey(plan.topic, plan.group, plan.queue_id)
        sources = self._reads.sources(plan, with_retries=True)
        if not self._waits.park(request, peer, key, wait_ms, sources):
            return _notified(has_message=False, is_full=True)
        return LATER

    def _is_blocked(self, plan: LookPlan, queue_id: int, attempt_id: str | None) -> bool:
        queue = (plan.group, plan.topic, queue_id)
        consumer_offset = self._reads.next_offset(*queue)
        return self._ordered.batches.is_blocked(
            queue, attempt_id, consumer_offset, self._clock.now_ms()
        )

    def _queues(self, plan: LookPlan) -> Iterator[tuple[str, int]]:
        """The queues of the topic and of the group's retry topics."""
        for queue_id in plan.queue_ids:
            yield plan.topic, queue_id
        for retry in self._reads.retry_topics(plan.topic, plan.group):
            yield from self._reads.queues_of(retry, 0)

    def _has_messages(
        self, plan: LookPlan, topic: str, queue_id: int, tag_codes: frozenset[int] | None
    ) -> bool:
        start = self._start(plan, topic, queue_id)
        rest_count = self._store.queue_offset_max(topic.encode(), queue_id) - start
        if rest_count <= 0 or tag_codes is None or rest_count >= _FILTERED_REST_MAX:
            return rest_count > 0
        rows = self._store.rows(topic.encode(), queue_id, start, _FILTERED_ROW_COUNT)
        # Messages behind those that were looked at may be wanted, too.
        return rest_count > len(rows) or any(row.tags_code in tag_codes for row in rows)

    def _start(self, plan: LookPlan, topic: str, queue_id: int) -> int:
        """Where the group's next pop begins; the first message for a group that never popped."""
        start = self._reads.next_offset(plan.group, topic, queue_id)
        return start if start >= 0 else self._store.queue_offset_min(topic.encode(), queue_id)

    # Peeks.

    def handle_peek(self, request: Request, peer: Peer) -> Response:
        """The messages that the next pop would find; they stay where they are."""
        plan = self._admission.look(request, peer.address)
        count_max = min(HeaderFields(request).integer("maxMsgNums"), COUNT_MAX)
        found: list[GetResult] = []
        count = rest_count = 0
        for topic, queue_id in self._in_order_of_peeks(plan):
            start = self._start(plan, topic, queue_id)
            rest_count += self._store.queue_offset_max(topic.encode(), queue_id) - start
            if count >= count_max:
                continue
            result = self._get(plan, topic, queue_id, start, count_max - count)
            if result.status in _MOVED:
                start = result.next_queue_offset
                result = self._get(plan, topic, queue_id, start, count_max - count)
            count += result.message_count
            found.append(result)
        fields = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
        fields["restNum"] = str(rest_count)
        if not count:
            nothing = GetStatus.NO_MESSAGE_IN_QUEUE.value
            return Response(ResponseCode.PULL_NOT_FOUND, nothing, fields)
        body: list[bytes | memoryview] = [part for one in found for part in one.ranges]
        return Response(ResponseCode.SUCCESS, GetStatus.FOUND.value, fields, body)

    def _in_order_of_peeks(self, plan: LookPlan) -> Iterator[tuple[str, int]]:
        """One in five looks at retries first."""
        chance = self._chance()
        retry = self._reads.retry_topics(plan.topic, plan.group)[0]
        is_retry_first = chance % 5 == 0
        if is_retry_first:
            yield from self._reads.queues_of(retry, chance)
        count = len(plan.queue_ids)
        for distance in range(count):
            yield plan.topic, plan.queue_ids[(chance + distance) % count]
        if not is_retry_first:
            yield from self._reads.queues_of(retry, chance)

    def _get(
        self, plan: LookPlan, topic: str, queue_id: int, start: int, count_max: int
    ) -> GetResult:
        return self._read(
            PullPlan(
                group=plan.group,
                topic_name=topic,
                topic=topic.encode(),
                queue_id=queue_id,
                queue_offset=start,
                count_max=count_max,
                sys_flag=0,
                tag_codes=None,
                property_filter=None,
                topic_sys_flag=0,
                group_sys_flag=0,
            )
        )

    # Counts.

    def handle_polling_info(self, request: Request, peer: Peer) -> Response:
        """How many pops wait for just this topic, group and queue."""
        fields = HeaderFields(request)
        key = WaitKey(
            fields.text("topic"), fields.text("consumerGroup"), fields.integer("queueId", -1)
        )
        count = self._pop_waits.waiters.count_at(key)
        return Response(fields={"pollingNum": str(count)})

    def stop(self) -> None:
        """Answer every notification that waits: the broker stops."""
        for waiter in self._waits.take_all():
            waiter.peer.reply(waiter.request, _notified(has_message=False))


def _notified(*, has_message: bool, is_full: bool = False) -> Response:
    return Response(
        fields={"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}
    )


def _tag_codes(fields: HeaderFields, topic: str) -> frozenset[int] | None:
    """The tags that a notification is about; None for all messages, and for other filters.

    Raises:
        RequestRejected: they cannot be read.
    """
    text = fields.optional_text("exp")
    if not text:
        return None
    try:
        subscription = parse_subscription(topic, text, fields.optional_text("expType"))
    except (ConfigError, FilterInvalid) as error:
        raise RequestRejected(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription cannot be read: {error}"
        ) from error
    return None if subscription.takes_all or not subscription.by_tag else subscription.codes
