"""Reads the messages of a pop: of the topic's queues and of the group's retry topic.

Nothing is changed here, so a read that meets messages which are on the disk only is carried out
again from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from contrail.broker.services.pop_admission import LookPlan, PopPlan
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import UNKNOWN, ConsumerOffsets
from contrail.broker.state.pop_offsets import PopOffsets
from contrail.broker.state.pop_records import COUNT_MAX
from contrail.broker.state.pop_waiting import Source
from contrail.broker.state.pull_plan import PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.model.record import QUEUE_OFFSET_POSITION
from contrail.model.topic import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2
from contrail.store import GetResult, GetStatus, MessageStore

_OFFSET = Struct(">q")
_MOVED = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
    }
)
# The reader goes on behind messages that it cannot or need not hand out.
_PASSED_OVER = frozenset(
    {
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.MESSAGE_DAMAGED,
        GetStatus.MESSAGE_REPLACED,
    }
)


class Taken(NamedTuple):
    """The messages that a pop takes from one queue, or the stretch that it passes over."""

    topic: str
    queue_id: int
    # Where the read began.
    start: int
    # Whether the group's offset is not known yet, was illegal, or is moved by an operator.
    is_new_start: bool
    is_reset: bool
    result: GetResult

    @property
    def records(self) -> list[memoryview]:
        return self.result.records

    @property
    def offsets(self) -> tuple[int, ...]:
        at = QUEUE_OFFSET_POSITION
        return tuple([_OFFSET.unpack_from(one, at)[0] for one in self.records])


@dataclass(slots=True)
class Read:
    """Everything one pop reads."""

    taken: list[Taken] = field(default_factory=list)
    message_count: int = 0
    # How many messages are left in the queues that were looked at.
    rest_count: int = 0


class PopReads:
    """Where pops begin, in which order they look at queues, and what they find."""

    def __init__(
        self,
        settings: RuntimeSettings,
        topics: Topics,
        offsets: ConsumerOffsets,
        next_offsets: PopOffsets,
        store: MessageStore,
        *,
        read: Callable[[PullPlan], GetResult],
        is_blocked: Callable[[PopPlan, int, int], bool],
    ) -> None:
        """``read`` finds the messages of one queue.

        ``is_blocked`` tells for a queue and the group's offset whether pops in order wait.
        """
        self._settings = settings
        self._topics = topics
        self._offsets = offsets
        self._next_offsets = next_offsets
        self._store = store
        self._read = read
        self._is_blocked = is_blocked

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """The retry topics that the group's pops read."""
        config = self._settings.config
        if not config.pop_retry_v2:
            return [pop_retry_topic(topic, group)]
        older = [pop_retry_topic(topic, group)] if config.pop_reads_retry_v1 else []
        return [pop_retry_topic_v2(topic, group), *older]

    def sources(self, plan: PopPlan | LookPlan, *, with_retries: bool) -> list[Source]:
        """The queues whose arrivals wake a request that waits."""
        found = [(plan.topic.encode(), queue_id) for queue_id in plan.queue_ids]
        if not with_retries:
            return found
        retries = self.retry_topics(plan.topic, plan.group)
        return found + [(retry.encode(), 0) for retry in retries]

    def collect(self, plan: PopPlan, chance: int) -> Read:
        """Find a pop's messages; ``chance`` is a number below 100."""
        found = Read()
        for topic, queue_id in self._order(plan, chance):
            self._look(plan, topic, queue_id, found)
        return found

    def _order(self, plan: PopPlan, chance: int) -> Iterator[tuple[str, int]]:
        """The queues in the order they are read; a fifth of the pops looks at retries first.

        One answer can name one retry topic only, so of two spellings chance picks one.
        """
        if plan.in_order:
            yield from self._of_topic(plan, chance)
            return
        spellings = self.retry_topics(plan.topic, plan.group)
        retry = spellings[-1] if chance % 2 == 0 else spellings[0]
        is_retry_first = chance < self._settings.config.pop_retry_probability
        if is_retry_first:
            yield from self.queues_of(retry, chance)
        yield from self._of_topic(plan, chance)
        if not is_retry_first:
            yield from self.queues_of(retry, chance)

    def _of_topic(self, plan: PopPlan, chance: int) -> Iterator[tuple[str, int]]:
        count = len(plan.queue_ids)
        for distance in range(count):
            yield plan.topic, plan.queue_ids[(chance - distance) % count]

    def queues_of(self, topic: str, chance: int) -> Iterator[tuple[str, int]]:
        """The queues of a retry topic, which may not be there yet."""
        config = self._topics.table.get(topic)
        count = 0 if config is None else config.read_queue_count
        for distance in range(count):
            yield topic, (chance - distance) % count

    def _look(self, plan: PopPlan, topic: str, queue_id: int, found: Read) -> None:
        start, is_new, is_reset = self._start(plan, topic, queue_id)
        if plan.in_order and not is_reset and self._is_blocked(plan, queue_id, start):
            # Its messages count as none that rest: nobody gets them before it is free.
            return
        room = min(plan.count_max, COUNT_MAX) - found.message_count
        if room <= 0:
            end = self._store.queue_offset_max(topic.encode(), queue_id)
            found.rest_count += max(0, end - start)
            return
        is_known = not is_new and not is_reset
        if is_known and start == self._store.queue_offset_max(topic.encode(), queue_id):
            # Nothing is there, as in most queues that a waiting group looks at.
            return
        result = self._get(plan, topic, queue_id, start, room)
        if result.status in _MOVED:
            start, is_new = result.next_queue_offset, True
            result = self._get(plan, topic, queue_id, start, room)
        if result.ranges or result.status in _PASSED_OVER or is_new or is_reset:
            found.taken.append(Taken(topic, queue_id, start, is_new, is_reset, result))
        found.message_count += result.message_count
        found.rest_count += max(0, result.queue_offset_max - max(start, result.next_queue_offset))

    def _get(
        self, plan: PopPlan, topic: str, queue_id: int, start: int, count_max: int
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
                tag_codes=plan.tag_codes,
                property_filter=plan.property_filter,
                topic_sys_flag=0,
                group_sys_flag=0,
            )
        )

    # Where to begin.

    def _start(self, plan: PopPlan, topic: str, queue_id: int) -> tuple[int, bool, bool]:
        """The offset, whether it is to be committed as the first one, and whether it is a reset."""
        reset = self._offsets.peek_reset(plan.group, topic, queue_id)
        if reset is not None:
            return reset, False, True
        start = self.next_offset(plan.group, topic, queue_id)
        if start != UNKNOWN:
            return start, False, False
        return self._first_start(plan, topic, queue_id), True, False

    def next_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Where the group's next pop of a queue begins; -1 if it never popped there."""
        committed = self._offsets.query(group, topic, queue_id)
        ahead = self._next_offsets.next_of((group, topic, queue_id))
        return committed if ahead is None else max(committed, ahead)

    def _first_start(self, plan: PopPlan, topic: str, queue_id: int) -> int:
        name = topic.encode()
        low = self._store.queue_offset_min(name, queue_id)
        if plan.from_first or topic.startswith(RETRY_PREFIX):
            return low
        if (
            self._settings.config.pop_starts_in_memory
            and low <= 0
            and self._store.is_near(name, queue_id, 0)
        ):
            return 0
        # The last message is handed out.
        return max(self._store.queue_offset_max(name, queue_id) - 1, 0)
