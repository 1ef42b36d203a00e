"""Our client under kills: producers here, consumers and servers in processes of their own.

The parts of the cluster and the consumers are killed while producers send and groups read. The
events of all processes are ordered by the machine's monotonic clock and then judged: by the
checker, and by the rules that only a client can break.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from contrail.aio import Admin
from contrail.errors import ContrailError
from contrail.testing import LocalCluster
from contrail.testing.cluster import LocalBroker
from tests.history.client_crew import KILLED_REACH_MS, Crew
from tests.history.client_rules import Cause, judge_repeats
from tests.history.client_senders import ORDERED, PLAIN, Senders
from tests.history.client_story import QUEUE_COUNT, ClientStory, Plan
from tests.history.events import BrokerKilled, BrokerStarted

# How long producers send before the first kill.
_QUIET_S = 2.0
_MS = 1_000_000
_ALL = (PLAIN, ORDERED)

PLAN = Plan(
    kinds={"sharers": "concurrent", "keepers": "orderly", "pullers": "pull"},
    topics={"sharers": (PLAIN,), "keepers": (ORDERED,), "pullers": _ALL},
    posts={"s1": "sharers", "s2": "sharers", "k1": "keepers", "k2": "keepers", "p1": "pullers"},
)
KINDS, TOPICS, POSTS = PLAN.kinds, PLAN.topics, PLAN.posts

# A restarted broker has no locks: until the holder renews a lock, any member may take it.
_UNLOCKED_MS = 25_000
# A restarted broker's queues are taken anew, from the offsets that it had stored.
_RETAKEN_MS = 8_000

_PROPERTIES = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 2_000),
    "registerNameServerPeriod": "10000",
    "flushConsumerOffsetInterval": "1000",
}


class ClientCampaign(ClientStory):
    """Two NameServers, two brokers, three groups and their producers."""

    def __init__(self, folder: Path, seed: int) -> None:
        cluster = LocalCluster(
            in_children=True, brokers=2, nameservers=2, folder=folder, properties=_PROPERTIES
        )
        self.crew = Crew(folder, cluster.namesrv, seed)
        super().__init__(folder, seed, cluster, PLAN, self.crew)
        self.senders = Senders(self.notes, cluster.namesrv, self.chance)
        self.kills: Counter[str] = Counter()
        # A broker, when it was killed, and when it was up again.
        self._outages: list[tuple[str, int, int]] = []

    def __enter__(self) -> Self:
        print(f"CONTRAIL_SEED={self.seed}")
        for server in self.cluster.nameservers:
            server.folder.mkdir(parents=True)
            # A sharding key keeps its queue while its broker is down.
            (server.folder / "namesrv.properties").write_text("orderMessageEnable=true\n")
        self.cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.crew.end()
        self.cluster.__exit__()

    # The beginning and the end.

    async def begin(self) -> None:
        """Topics, members with their shares, producers."""
        async with Admin(self.cluster.namesrv, timeout_ms=60_000) as admin:
            await admin.create_topic(PLAIN, queues=QUEUE_COUNT)
            await admin.create_topic(ORDERED, queues=QUEUE_COUNT, order=True)
        for name, group in POSTS.items():
            self.crew.start(name, KINDS[group], group, TOPICS[group])
        await self.until_shared()
        await self.senders.start()

    async def end(self) -> None:
        """Read all messages, close all members, and check that later members get none of them."""
        # A member that takes a queue anew after an outage reads again up to these offsets at most.
        await self.until_shared()
        await self._send_to_each()
        await self.until_read()
        for name in list(self.crew.posts):
            await asyncio.to_thread(self.crew.posts[name].close)
        self.say("all have closed")
        late = {f"late-{group}": group for group in KINDS}
        for name, group in late.items():
            self.crew.start(name, KINDS[group], group, TOPICS[group])
        keys = await self._send_to_each()
        await self.until_read()
        for name in late:
            await asyncio.to_thread(self.crew.posts[name].close)
            again = [one for one in self.crew.posts[name].deliveries if one.key not in keys]
            assert not again, f"{self._label()}: after a graceful close {again[:5]} came again"
        await self.senders.close()

    async def _send_to_each(self) -> set[str]:
        queues = [queue for topic in _ALL for queue in await self.senders.queues(topic)]
        return await self.senders.send_to_each(queues)

    async def send_for(self, seconds: float) -> None:
        async with self._sending():
            await asyncio.sleep(seconds)

    # Kills.

    async def kill_and_restart(self, kill_count: int) -> None:
        """Kill processes while producers send: servers one at a time, consumers beside them."""
        server_count = kill_count // 2
        async with self._sending():
            await asyncio.gather(
                self._kill_servers(server_count), self._kill_members(kill_count - server_count)
            )
        self.say(f"killed {dict(self.kills)}")

    async def _kill_servers(self, kill_count: int) -> None:
        for _ in range(kill_count):
            await self._pause(1.0)
            if self.chance.random() < 0.7:
                await self._kill_broker(self.chance.choice(self.cluster.brokers))
            else:
                server = self.chance.choice(self.cluster.nameservers)
                server.kill()
                self.kills["NameServer"] += 1
                await self._pause(1.0)
                await asyncio.to_thread(server.start)

    async def _kill_broker(self, broker: LocalBroker) -> None:
        killed_ns, now_ms = self.timeline.now()
        self.timeline.events.append((killed_ns, BrokerKilled(now_ms)))
        broker.kill()
        self.kills["broker"] += 1
        await self._pause(1.5)
        await asyncio.to_thread(self._start_patiently, broker)
        started_ns, now_ms = self.timeline.now()
        self.timeline.events.append((started_ns, BrokerStarted(now_ms)))
        self._outages.append((broker.name, killed_ns, started_ns))

    def _start_patiently(self, broker: LocalBroker) -> None:
        try:
            broker.start()
        except ContrailError as error:
            # A machine that is busy with other things may need longer than the cluster waits.
            self.say(str(error))
            self.cluster.wait_for_routes(broker)

    async def _kill_members(self, kill_count: int) -> None:
        for _ in range(kill_count):
            await self._pause(1.0)
            name = self.chance.choice(list(POSTS))
            await asyncio.to_thread(self.crew.posts[name].kill)
            self.kills["consumer"] += 1
            await self._pause(0.5)
            member = self.crew.start_again(name)
            await self._until(lambda member=member: bool(member.queues), f"{name} is back")  # type: ignore[misc]
            await self._pause(1.0)

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[None]:
        """In a task: producers send meanwhile, and a thread would outlive a failing test."""
        self.senders.begin()
        try:
            yield
        finally:
            await self.senders.stop()

    async def _pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self.chance.uniform(0, seconds_max))

    # Coming and going.

    async def come_and_go(self, leave_count: int) -> None:
        """Members leave and come back, none is killed; producers send all the time."""
        async with self._sending():
            for _ in range(leave_count):
                await self._pause(0.5)
                name = self.chance.choice([name for name in POSTS if POSTS[name] != "pullers"])
                await asyncio.to_thread(self.crew.posts[name].close)
                await self._pause(1.0)
                self.crew.start_again(name)
                await self.until_shared()

    # The verdict.

    def check_that_nothing_came_twice(self) -> None:
        """Judge a time without kills: later kills are no cause for earlier repeats."""
        repeats = judge_repeats(self.crew.deliveries(), causes=()).violations
        assert not repeats, f"{self._label()}: nobody was killed yet, {repeats[:5]}"

    def summary(self) -> str:
        return f"CONTRAIL_KILLS={self.kills.total()} of {dict(self.kills)}"

    def causes(self) -> Iterator[Cause]:
        yield from self.crew.kill_causes()
        yield from self._outage_causes()

    def _outage_causes(self) -> Iterator[Cause]:
        for name, killed_ns, started_ns in self._outages:
            for group, kind in KINDS.items():
                queues = frozenset(one for one in self.queues_of(group) if one.broker_name == name)
                after_ms = _UNLOCKED_MS if kind == "orderly" else _RETAKEN_MS
                begin_ns = killed_ns - KILLED_REACH_MS * _MS
                end_ns = started_ns + after_ms * _MS
                yield Cause("broker killed", group, queues, begin_ns, end_ns)


async def run_kills(campaign: ClientCampaign, kill_count: int) -> None:
    """Traffic without kills first, in which no message may come twice; then kills; then reading."""
    await campaign.begin()
    await campaign.send_for(_QUIET_S)
    await campaign.until_read()
    campaign.check_that_nothing_came_twice()
    await campaign.kill_and_restart(kill_count)
    await campaign.end()


async def run_comings_and_goings(campaign: ClientCampaign, leave_count: int) -> None:
    await campaign.begin()
    await campaign.come_and_go(leave_count)
    await campaign.end()
