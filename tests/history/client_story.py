"""A test of clients: its producers and consumers, the waits for them, and the verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from contrail.aio import Admin, MessageQueue
from contrail.errors import ClientError
from contrail.testing import LocalCluster, eventually_async
from tests.history.client_crew import Roster
from tests.history.client_judging import Seen, judge
from tests.history.client_rules import Cause, Queue
from tests.history.client_senders import SendNotes, Timeline
from tests.history.events import Event, write_history
from tests.history.violations import Bounds, Violation

PATIENCE_S = 120.0
QUEUE_COUNT = 4
_LOOK_S = 0.05
_BROKER_STEP = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The consumer groups of a test."""

    # By group: its kind and its topics; by member: its group.
    kinds: Mapping[str, str]
    topics: Mapping[str, tuple[str, ...]]
    posts: Mapping[str, str]

    def all_topics(self) -> list[str]:
        return sorted({topic for topics in self.topics.values() for topic in topics})

    def groups_in_order(self) -> frozenset[str]:
        return frozenset(group for group, kind in self.kinds.items() if kind in _IN_ORDER)


_IN_ORDER = ("orderly", "pull")


class ClientStory:
    """The part that all campaigns of clients share."""

    def __init__(
        self, folder: Path, seed: int, cluster: LocalCluster, plan: Plan, roster: Roster[Any]
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.chance = random.Random(seed)
        self.cluster = cluster
        self._roster = roster
        self.timeline = Timeline()
        self.notes = SendNotes(self.timeline, self.number_of, seed)
        self._history_path = folder / "history.jsonl"
        self._ends: dict[Queue, int] = {}
        self._began_s = time.monotonic()
        self.bounds = Bounds()

    # Told by each campaign.

    def causes(self) -> Iterable[Cause]:
        """Why messages may have come again, apart from queues that went to other members."""
        return ()

    def more(self) -> Iterable[Violation]:
        """Broken promises that the checker does not know."""
        return ()

    def summary(self) -> str:
        """The faults of the cluster, in words."""
        return ""

    # Queues and members.

    def number_of(self, queue: Queue) -> int:
        """One number for a queue of any broker: the checker's queue id."""
        names = [broker.name for broker in self.cluster.brokers]
        return names.index(queue.broker_name) * _BROKER_STEP + queue.queue_id

    def queues_of(self, group: str) -> frozenset[Queue]:
        return frozenset(
            Queue(topic, broker.name, queue_id)
            for topic in self.plan.topics[group]
            for broker in self.cluster.brokers
            for queue_id in range(QUEUE_COUNT)
        )

    # Waiting.

    async def until_shared(self) -> None:
        """Every queue has one owner in its group."""
        for group in self.plan.kinds:
            await self._until(partial(self._is_shared, group), f"{group} share all queues")

    def _is_shared(self, group: str) -> bool:
        # Retry topics are shared, too, and not looked at.
        queues, members = self.queues_of(group), self._roster.up(group)
        owners = self._roster.owners(group)
        is_whole = all(len(owners.get(queue, ())) == 1 for queue in queues)
        return is_whole and all(member.queues & queues for member in members)

    async def until_read(self) -> None:
        """Every group has got all stored messages."""
        self._ends = {}
        # Brokers register with restarted NameServers within ten seconds.
        await self._until(self._knows_ends, "all queues have routes", self._ask_ends)
        for group in self.plan.kinds:
            await self._until(partial(self._has_read_all, group), f"{group} read everything")

    def _knows_ends(self) -> bool:
        return all(
            queue in self._ends for group in self.plan.kinds for queue in self.queues_of(group)
        )

    async def _ask_ends(self) -> None:
        async with Admin(self.cluster.namesrv) as admin:
            try:
                stats = [
                    one
                    for topic in self.plan.all_topics()
                    for one in (await admin.topic_stats(topic)).queues
                ]
            except ClientError as error:
                self.say(f"no stats yet: {error}")
                return
        self._ends = {_plain_queue(one.queue): one.queue_offset_max for one in stats}

    def _has_read_all(self, group: str) -> bool:
        seen = self._roster.seen
        return all(len(seen[group, queue]) >= self._ends[queue] for queue in self.queues_of(group))

    async def _until(
        self,
        is_so: Callable[[], bool],
        what: str,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        async def came() -> bool:
            if is_so():
                return True
            await (look or self._read_notes)()
            return is_so()

        await eventually_async(
            came, lambda: f"{self._label()}: {what}", timeout_s=PATIENCE_S, pause_s=_LOOK_S
        )
        self.say(what)

    async def _read_notes(self) -> None:
        await asyncio.to_thread(self._roster.read_on)

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s: {what}")

    # The verdict.

    def judge(self) -> Counter[str]:
        """Fail if a promise was broken; how many messages came again, by cause."""
        verdict = judge(self._seen(), self.bounds)
        self.timeline.events = [(0, event) for event in verdict.history]
        counts = Counter(type(event).__name__ for event in verdict.history)
        self.say(f"{self.summary()}, told {dict(self.notes.outcomes)}")
        self.say(f"history {dict(counts)}, came again {dict(verdict.repeats)}")
        found = [*self.notes.misled(self._roster.deliveries()), *verdict.violations, *self.more()]
        listed = "\n".join(str(each) for each in found[:20])
        assert not found, f"{self._label()}: {len(found)} violations\n{listed}"
        return verdict.repeats

    def _seen(self) -> Seen:
        return Seen(
            events=self.timeline.events,
            deliveries=self._roster.deliveries(),
            causes=[*self._roster.move_causes(self.plan.kinds), *self.causes()],
            ends=self._ends,
            queues={group: self.queues_of(group) for group in self.plan.kinds},
            groups_in_order=self.plan.groups_in_order(),
            number_of=self.number_of,
        )

    def _label(self) -> str:
        events: list[Event] = [event for _, event in self.timeline.events]
        write_history(self._history_path, events)
        return f"CONTRAIL_SEED={self.seed} {self.summary()}, history in {self._history_path}"


def _plain_queue(queue: MessageQueue) -> Queue:
    return Queue(queue.topic, queue.broker_name, queue.queue_id)
