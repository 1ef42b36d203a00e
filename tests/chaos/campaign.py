"""Eight producers and eight consumers of a failover group, whose members suffer fault after fault.

Everything that was sent and received is judged at the end by the history checker, and the members'
logs must be equal.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from contrail.aio import Admin, MessageQueue
from contrail.errors import CallFailed
from contrail.testing import eventually_async
from tests.chaos.faults import ALL, Fault
from tests.chaos.group import ChaosGroup, ChaosMember
from tests.chaos.producers import DELAYED, TOPICS, Producers
from tests.chaos.readers import Readers
from tests.chaos.watch import Watch
from tests.history.client_judging import Seen
from tests.history.client_member import is_given_back
from tests.history.client_rules import Cause, Delivery, Queue, failover_cause, judge_repeats
from tests.history.client_senders import ORDERED, PLAIN
from tests.history.client_story import QUEUE_COUNT, ClientStory, Plan
from tests.history.events import Ended, Outcome, Partitioned, SendInvoked
from tests.history.rules_delivery import RETRY_PREFIX
from tests.history.violations import Bounds, Rule, Violation

RETURNERS = "returners"
PLAN = Plan(
    kinds={
        "sharers": "concurrent",
        RETURNERS: "returning",
        "waiters": "concurrent",
        "keepers": "orderly",
        "pullers": "pull",
    },
    topics={
        "sharers": (PLAIN,),
        RETURNERS: (PLAIN,),
        "waiters": (DELAYED,),
        "keepers": (ORDERED,),
        "pullers": (PLAIN, ORDERED),
    },
    posts={
        "s1": "sharers",
        "s2": "sharers",
        "r1": RETURNERS,
        "r2": RETURNERS,
        "k1": "keepers",
        "k2": "keepers",
        "w1": "waiters",
        "p1": "pullers",
    },
)
_MS = 1_000_000
# Handled messages whose offset had not been written when the leader was lost: the interval of the
# consumer, and what a busy machine adds.
_IN_FLIGHT_MS = 3_000
# Consumers that lost a queue with the leader's registration take it anew from the stored offset.
_RETAKEN_MS = 8_000
_SETTLE_S = 30.0
# The longest delay, an outage and a busy machine.
_LATE_MS = 60_000
_NEVER_MS = 1 << 60


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault and the time from its begin to the next send that was begun behind it."""

    fault: str
    at_leader: bool
    next_ok_ms: int


@dataclass(slots=True)
class ChaosFigures:
    """The figures of one campaign or of many."""

    seed: int = 0
    faults: int = 0
    failovers: int = 0
    acknowledged: int = 0
    unknown: int = 0
    failed: int = 0
    received: int = 0
    violations: int = 0
    repeats: dict[str, int] = field(default_factory=dict)
    struck: list[dict[str, object]] = field(default_factory=list)

    def keep(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class ChaosCampaign(ClientStory):
    """The story of one group."""

    def __init__(self, group: ChaosGroup, seed: int, *, rest_s: float = 0.06) -> None:
        namesrv = group.cluster.namesrv
        self.readers = Readers(group.folder, namesrv, seed)
        super().__init__(group.folder, seed, group.cluster, PLAN, self.readers)
        self.group = group
        self.producers = Producers(self.notes, namesrv, self.chance, rest_s=rest_s)
        self.watch = Watch(group.members, self.timeline)
        self.counts: Counter[str] = Counter()
        # Store times are those of servers whose clocks are moved: lateness is judged here.
        self.bounds = Bounds(late_ms_max=_NEVER_MS)
        self._late: list[Violation] = []
        # A fault, whether it hit the leader, and when.
        self._begun: list[tuple[Fault, bool, int]] = []

    # The beginning and the end.

    async def begin(self) -> None:
        await self.watch.start()
        for topic in TOPICS:
            await asyncio.to_thread(self.group.make_topic, topic, queues=QUEUE_COUNT)
        await asyncio.to_thread(self.readers.start_all, PLAN)
        await self.until_shared()
        await self.producers.start()
        self.producers.begin()

    async def end(self) -> None:
        """Stop sending, read everything, close all, and require equal logs."""
        await self.producers.stop()
        await self.producers.close()
        await self._until_equal()
        await self._until_delivered()
        await self.until_read()
        await asyncio.to_thread(self.readers.close_all)
        await self.watch.close()
        self._late = list(self._late_ones())

    async def _ask_ends(self) -> None:
        """Asked as by any client: administration from other hosts is refused."""
        async with Admin(self.cluster.namesrv) as admin:
            for queue in {one for group in PLAN.kinds for one in self.queues_of(group)}:
                wanted = MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
                self._ends[queue] = await admin.queue_offset_max(wanted)

    async def give_up(self) -> None:
        """Leave no task and no process behind a failure."""
        with suppress(Exception):
            await self.watch.close()
        with suppress(Exception):
            await self.producers.close()
        self.readers.end()

    async def _until_equal(self) -> None:
        """Wait until all members have the same log, byte by byte."""

        async def are_equal() -> bool:
            return await self._are_level() and not await asyncio.to_thread(self._differences)

        await eventually_async(
            are_equal, lambda: f"{self._label()}: logs differ: {self._differences()}", pause_s=0.2
        )
        self.say("all members have the same log")

    async def _are_level(self) -> bool:
        try:
            found = [await self.watch.status(one, 3_000) for one in self.group.members]
        except CallFailed:
            return False
        ends = {(one.physical_end, one.acknowledged_end) for one in found if one is not None}
        return None not in found and len(ends) == 1 and len(set(*ends)) == 1

    async def _until_delivered(self) -> None:
        """Delayed and returned messages come a little later; the checker tells of missing ones."""

        async def have_come() -> bool:
            await self._read_notes()
            return not self._undelivered() and not self._not_come_again()

        with suppress(AssertionError):
            await eventually_async(have_come, "all have come", timeout_s=_SETTLE_S, pause_s=0.2)

    def _undelivered(self) -> set[str]:
        came = {one.key for one in self.readers.deliveries() if one.queue.topic == DELAYED}
        sent = {key for key, places in self.notes.told.items() if places[0][0].topic == DELAYED}
        return sent - came

    # Faults.

    async def strike(self, fault: Fault, *, at_leader: bool, for_s: float) -> None:
        """One fault from its begin to its end."""
        await eventually_async(
            lambda: self.watch.leader is not None, "a member leads", timeout_s=60.0
        )
        leader = self.watch.leader
        assert leader is not None
        member = leader if at_leader else self.chance.choice(self.group.others(leader))
        self.counts[fault.name] += 1
        self.say(f"{fault.name} at {member.name}{', which leads' if at_leader else ''}")
        begun_ns, now_ms = self.timeline.now()
        if fault.isolates:
            sides = ((member.name,), tuple(one.name for one in self.group.others(member)))
            self.timeline.events.append((begun_ns, Partitioned(now_ms, sides)))
        await asyncio.to_thread(fault.begin, self.group, member, self.chance)
        # A send that is begun while a cable is being cut may still be answered.
        self._begun.append((fault, at_leader, self.timeline.now()[0]))
        if at_leader and fault.deposes:
            self.watch.lost()
        await asyncio.sleep(for_s)
        await asyncio.to_thread(fault.end, self.group, member)
        if fault.isolates:
            ended_ns, now_ms = self.timeline.now()
            self.timeline.events.append((ended_ns, Partitioned(now_ms)))
        await asyncio.to_thread(self._require_running, fault, member)

    def _require_running(self, fault: Fault, struck: ChaosMember) -> None:
        for member in self.group.members:
            assert member.broker.is_running, (
                f"{self._label()}: {member.name} has ended by itself after {fault.name} at "
                f"{struck.name}: see {member.broker.folder}/process.log"
            )

    async def strike_for(self, count: int, *, gap_s: tuple[float, float]) -> None:
        """A number of faults, every kind in turn; ``gap_s`` lies between two begins."""
        kinds: list[Fault] = []
        while self.counts.total() < count:
            kinds = kinds or self.chance.sample(ALL, len(ALL))
            # Most faults hit the leader: the others cost nobody anything.
            await self.strike_one(kinds.pop(), gap_s=gap_s)

    async def strike_until(self, failovers: int, *, gap_s: tuple[float, float]) -> None:
        """Faults until the leader has changed this often."""
        kinds: list[Fault] = []
        while len(self.watch.changes) < failovers:
            kinds = kinds or self.chance.sample(ALL, len(ALL))
            await self.strike_one(kinds.pop(), gap_s=gap_s)

    async def strike_one(self, fault: Fault, *, gap_s: tuple[float, float]) -> None:
        gap = self.chance.uniform(*gap_s)
        at_leader = self.chance.random() < 0.8
        began_s = asyncio.get_running_loop().time()
        await self.strike(fault, at_leader=at_leader, for_s=self.chance.uniform(0.4, 0.8) * gap)
        rest_s = gap - (asyncio.get_running_loop().time() - began_s)
        await asyncio.sleep(max(0.0, rest_s))

    # The verdict.

    def summary(self) -> str:
        return f"{self.counts.total()} faults {dict(self.counts)}, {self.failovers} failovers"

    @property
    def failovers(self) -> int:
        return len(self.watch.changes)

    def causes(self) -> Iterator[Cause]:
        for lost_ns, led_ns in self.watch.changes:
            for group in PLAN.kinds:
                queues = self.queues_of(group) | {_retry_queue(group, self._broker_name)}
                yield failover_cause(
                    group,
                    queues,
                    lost_ns,
                    led_ns + _RETAKEN_MS * _MS,
                    in_flight_ns=_IN_FLIGHT_MS * _MS,
                )

    @property
    def _broker_name(self) -> str:
        return self.cluster.brokers[0].name

    def _seen(self) -> Seen:
        """Copies in retry topics are judged by ``more``: the client sends them back unseen."""
        seen = super()._seen()
        return replace(seen, deliveries=[one for one in seen.deliveries if not _is_retry(one)])

    def more(self) -> Iterator[Violation]:
        """RETRY_LOST: a message that a handler gave back has not come again."""
        for key in self._not_come_again():
            yield Violation(Rule.RETRY_LOST, (key,), "a handler failed, and it did not come again")
        yield from self._late
        retries = [one for one in self.readers.deliveries() if _is_retry(one)]
        yield from judge_repeats(retries, list(self.causes())).violations

    def _late_ones(self) -> Iterator[Violation]:
        """LATE: a delayed message came long after its acknowledgement and its delay."""
        asked = {
            event.op: event for _, event in self.timeline.events if isinstance(event, SendInvoked)
        }
        stored_ns: dict[str, int] = {}
        for at_ns, event in self.timeline.events:
            if isinstance(event, Ended) and event.outcome is Outcome.OK:
                stored_ns.setdefault(asked[event.op].key, at_ns)
        for one in self.readers.deliveries():
            if one.queue.topic == DELAYED and one.key in stored_ns:
                waited_ms = (one.at_ns - stored_ns[one.key]) // _MS
                if waited_ms > _LATE_MS:
                    yield Violation(Rule.LATE, (one.key,), f"it came after {waited_ms} ms")

    def _not_come_again(self) -> set[str]:
        given_back: set[str] = set()
        handled: set[str] = set()
        for one in self.readers.deliveries():
            if one.group == RETURNERS:
                is_failed = is_given_back(one.body, one.reconsume_times)
                (given_back if is_failed else handled).add(one.key)
        return given_back - handled

    def _differences(self) -> list[str]:
        """The files of the log that differ from those of the first member."""
        logs = [_log_files(one.broker.folder / "store") for one in self.group.members]
        return [
            f"{member.name}/{name}"
            for member, log in zip(self.group.members, logs, strict=True)
            for name in sorted(log.keys() | logs[0].keys())
            if log.get(name) != logs[0].get(name)
        ]

    def figures(self, repeats: Counter[str], struck: Sequence[Struck]) -> ChaosFigures:
        events = [event for _, event in self.timeline.events]
        outcomes = Counter(one.outcome for one in events if isinstance(one, Ended))
        return ChaosFigures(
            seed=self.seed,
            faults=self.counts.total(),
            failovers=self.failovers,
            acknowledged=sum(map(len, self.notes.told.values())),
            unknown=outcomes[Outcome.UNKNOWN],
            failed=outcomes[Outcome.FAILED],
            received=len(self.readers.deliveries()),
            repeats=dict(repeats),
            struck=[asdict(one) for one in struck],
        )

    def struck(self) -> list[Struck]:
        """Each fault, with the time until a send that was begun after it was answered OK.

        It must be asked before the verdict, which drops the times of events.
        """
        begun: dict[int, int] = {}
        ok: list[tuple[int, int]] = []
        for at_ns, event in self.timeline.events:
            if isinstance(event, SendInvoked):
                begun[event.op] = at_ns
            elif isinstance(event, Ended) and event.outcome is Outcome.OK and event.op in begun:
                ok.append((begun[event.op], at_ns))
        ok.sort()
        starts = [start for start, _ in ok]
        found = []
        for fault, at_leader, at_ns in self._begun:
            later = ok[bisect.bisect_right(starts, at_ns) :]
            next_ns = min((end for _, end in later[:500]), default=0)
            if next_ns:
                found.append(Struck(fault.name, at_leader, (next_ns - at_ns) // _MS))
        return found


def tell_times(struck: Sequence[Struck]) -> str:
    """The times to the next acknowledged send, by the fault at the leader."""
    by_fault: dict[str, list[int]] = defaultdict(list)
    for one in struck:
        if one.at_leader:
            by_fault[one.fault].append(one.next_ok_ms)
    lines = (
        f"{name}: {len(times)}, p50 {statistics.median(times):.0f} ms, max {max(times)} ms"
        for name, times in sorted(by_fault.items())
    )
    return "\n".join(lines)


def _is_retry(delivery: Delivery) -> bool:
    return delivery.queue.topic.startswith(RETRY_PREFIX)


def _retry_queue(group: str, broker_name: str) -> Queue:
    return Queue(RETRY_PREFIX + group, broker_name, 0)


def _log_files(store: Path) -> dict[str, bytes]:
    """The commit log; zeros that were written ahead do not count."""
    files = {one.name: one.read_bytes().rstrip(b"\0") for one in (store / "commitlog").iterdir()}
    return {name: data for name, data in files.items() if data}
