"""Mixed traffic from many connections, in a process of its own.

``python -m tests.e2e.load_traffic BROKER NAMESRV IDLE ACTIVE``: opens its connections, prints the
line ``steady``, makes traffic until its standard input ends, and prints one line of JSON: what was
done, what was stored by queue, and every error.

Rates are bounded and do not depend on how fast the broker is: with 200 active connections about
1,500 messages are sent and 3,500 handed out in a second, which leaves most of two cores free.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from itertools import cycle
from typing import Any, TypeVar

from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.runtime.event_loop import choose_event_loop, run
from tests.e2e.load_clients import (
    ONE_WAY_TOPIC,
    QUEUE_COUNT,
    QUIET_TOPIC,
    TOPIC,
    TOPICS,
    Client,
    Places,
    Tally,
    member_of,
    pull_fields,
)

HEARTBEAT_S = 30.0
OPENED_AT_ONCE = 64
IDLE_GROUP_COUNT = 50
READ_GROUP_COUNT = 4
_SLICE_S = 0.1
_END_S = 120.0

_PULLED = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            # Segments go as soon as they are full: a reader may find its place gone.
            ResponseCode.PULL_OFFSET_MOVED,
        ),
    )
)
_QUERIED = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
_MALFORMED = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    struct.pack(">II", 16, 4096) + bytes(12),
    struct.pack(">II", 4 + 20, 20) + b'{"code":34,"flag":0,',
    struct.pack(">II", 4 + 9, 2 << 24 | 9) + bytes(9),
    struct.pack(">I", 3) + bytes(8),
)

T = TypeVar("T")
Work = Coroutine[Any, Any, None]
Role = Callable[["Load", Client, int], Work]


class Load:
    """All clients of one run."""

    def __init__(self, places: Places, idle_count: int, active_count: int) -> None:
        self.places = places
        self.tally = Tally()
        self.is_over = False
        self._idle_count = idle_count
        self._active_count = active_count
        self._idle: list[tuple[Client, int]] = []
        self._active: list[Client] = []

    def client(self, name: str) -> Client:
        return Client(name, self.places, self.tally)

    async def run(self, ended: Awaitable[object]) -> None:
        await self._prepare()
        await self._open_idle()
        tasks = [asyncio.create_task(work) for work in self._works()]
        print("steady", flush=True)
        began_s = time.monotonic()
        await ended
        self.is_over = True
        self.tally.counts["seconds"] = round(time.monotonic() - began_s)
        _, late = await asyncio.wait(tasks, timeout=_END_S)
        self._judge(tasks, late)
        for client in [*self._active, *(client for client, _ in self._idle)]:
            await client.close()

    def _judge(self, tasks: list[asyncio.Task[None]], late: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task in late:
                self.tally.error(f"{task.get_coro()!r} did not end")
                task.cancel()
            elif (error := task.exception()) is not None:
                self.tally.error(f"{task.get_coro()!r}: {error!r}")

    async def _prepare(self) -> None:
        """Make the topics, so that no reader comes before them."""
        first = self.client("first")
        for topic in TOPICS:
            fields = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(QUEUE_COUNT),
                "writeQueueNums": str(QUEUE_COUNT),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            await first.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        await first.close()

    # Idle connections.

    async def _open_idle(self) -> None:
        self._idle = [(self.client(f"idle-{n}"), n) for n in range(self._idle_count)]
        for start in range(0, len(self._idle), OPENED_AT_ONCE):
            batch = self._idle[start : start + OPENED_AT_ONCE]
            await asyncio.gather(*map(self._idle_heartbeat, batch))

    async def _idle_heartbeat(self, entry: tuple[Client, int]) -> None:
        """Four of five stand for a producer, one for a consumer."""
        client, number = entry
        group = f"idle_group_{number // 5 % IDLE_GROUP_COUNT}"
        if number % 5:
            await client.heartbeat(producer=group)
        else:
            await client.heartbeat(consumer=member_of(group, QUIET_TOPIC))

    async def _keep(self, clients: Sequence[T], ask: Callable[[T], Awaitable[object]]) -> None:
        """Have each client ask once every ``HEARTBEAT_S``, spread evenly."""
        done, began_s = 0, time.monotonic()
        while clients and not self.is_over:
            await asyncio.sleep(_SLICE_S)
            due = int((time.monotonic() - began_s) / HEARTBEAT_S * len(clients))
            turns = range(done, min(due, done + len(clients)))
            await asyncio.gather(*(ask(clients[turn % len(clients)]) for turn in turns))
            done = due

    # Active connections.

    def _works(self) -> list[Work]:
        works: list[Work] = []
        for role, share in ROLES:
            count = max(1, share * self._active_count // 200)
            works += [self._act(role, number) for number in range(count)]
        works += [self._churn(number) for number in range(4)]
        works.append(self._send_malformed())
        works.append(self._keep(self._idle, self._idle_heartbeat))
        works.append(self._keep(self._active, self._tend))
        return works

    async def _refresh_route(self, client: Client) -> None:
        await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}, at_namesrv=True)

    async def _tend(self, client: Client) -> None:
        """The half-minute chores of every client."""
        await client.heartbeat(producer="load_producer")
        await self._refresh_route(client)

    async def _act(self, role: Role, number: int) -> None:
        client = self.client(f"{role.__name__.strip('_')}-{number}")
        self._active.append(client)
        await asyncio.sleep(random.random())
        await self._tend(client)
        await role(self, client, number)

    async def _send_singles(self, client: Client, number: int) -> None:
        async for _ in self._rounds(0.2):
            await client.send(TOPIC, tag=random.choice(("TagA", "TagB")))

    async def _send_batches(self, client: Client, number: int) -> None:
        async for _ in self._rounds(0.6):
            await client.send_batch()

    async def _send_one_way(self, client: Client, number: int) -> None:
        async for _ in self._rounds(0.1):
            await client.send_one_way()

    async def _read(self, client: Client, number: int) -> None:
        """One queue for one group, from its end on; half of the groups want one tag only."""
        group_number, queue_id = divmod(number, QUEUE_COUNT)
        group = f"load_group_{group_number % READ_GROUP_COUNT}"
        expression = "TagA" if group_number % 2 else "*"
        topic = ONE_WAY_TOPIC if group_number % READ_GROUP_COUNT == 0 else TOPIC
        await self._consume(client, member_of(group, topic, expression), queue_id, hold_ms=5_000)

    async def _wait_long(self, client: Client, number: int) -> None:
        """Held for long on a topic that hardly anything is sent to; some filter by SQL92."""
        queue_id = number % QUEUE_COUNT
        if number % 2:
            member = member_of("quiet_sql", QUIET_TOPIC, "TAGS = 'TagB'", "SQL92")
        else:
            member = member_of("quiet_tags", QUIET_TOPIC, "TagB || TagC")
        await self._consume(client, member, queue_id, hold_ms=15_000)

    async def _consume(
        self, client: Client, member: ConsumerData, queue_id: int, *, hold_ms: int
    ) -> None:
        topic = member.subscriptions[0].topic
        reader = Reader(client, member.group, topic, queue_id, hold_ms)
        beaten_s = -HEARTBEAT_S
        while not self.is_over:
            if time.monotonic() - beaten_s > HEARTBEAT_S / 2:
                beaten_s = time.monotonic()
                await client.heartbeat(consumer=member)
                await reader.commit()
            if not await reader.pull():
                await asyncio.sleep(0.25)

    async def _join_and_leave(self, client: Client, number: int) -> None:
        """Members that come and go: each change is told to the others of the group."""
        group = f"load_group_{number % READ_GROUP_COUNT}"
        member = member_of(group, ONE_WAY_TOPIC if number % READ_GROUP_COUNT == 0 else TOPIC)
        fields = {"clientID": client.name, "consumerGroup": group}
        async for _ in self._rounds(2.0):
            await client.heartbeat(consumer=member)
            await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
            await asyncio.sleep(0.5)
            await client.ask(RequestCode.UNREGISTER_CLIENT, fields)

    async def _query(self, client: Client, number: int) -> None:
        """By key, one of the last that were acknowledged; by time; and the ends of a queue."""
        async for _ in self._rounds(0.3):
            if self.tally.keys:
                await self._query_key(client, random.choice(self.tally.keys))
            place = {"topic": TOPIC, "queueId": str(random.randrange(QUEUE_COUNT))}
            await client.ask(RequestCode.GET_MAX_OFFSET, place)
            now_ms = time.time_ns() // 1_000_000
            by_time = {**place, "timestamp": str(now_ms - 5_000)}
            await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, by_time)

    async def _query_key(self, client: Client, key: str) -> None:
        fields = {
            "topic": TOPIC,
            "key": key,
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 62),
        }
        answer = await client.ask(RequestCode.QUERY_MESSAGE, fields, expected=_QUERIED)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.tally.counts["keys found"] += 1

    async def _look_up(self, client: Client, number: int) -> None:
        """Routes and the cluster from the NameServer; now and then a message to the quiet topic."""
        async for _ in self._rounds(0.2):
            for topic in TOPICS:
                fields = {"topic": topic}
                await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, at_namesrv=True)
            await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO, at_namesrv=True)
            if random.random() < 0.05:
                await client.send(QUIET_TOPIC, tag=random.choice(("TagA", "TagB", "TagC")))

    # Connections that come and go.

    async def _churn(self, number: int) -> None:
        """A new client each time; every other one leaves a held pull behind."""
        count = 0
        async for _ in self._rounds(0.2):
            count += 1
            client = self.client(f"churn-{number}-{count}")
            member = member_of("churn_group", QUIET_TOPIC)
            await client.heartbeat(producer="churn_producer", consumer=member)
            await self._refresh_route(client)
            if count % 2:
                await self._leave_a_pull(client)
            await client.close()
            self.tally.counts["connections opened and closed"] += 2

    async def _leave_a_pull(self, client: Client) -> None:
        place = {"topic": QUIET_TOPIC, "queueId": "0"}
        answer = await client.ask(RequestCode.GET_MAX_OFFSET, place)
        if answer is not None:
            end = int(answer.fields["offset"])
            fields = pull_fields("churn_group", QUIET_TOPIC, 0, end, hold_ms=15_000)
            await client.abandon(RequestCode.PULL_MESSAGE, fields)

    async def _send_malformed(self) -> None:
        """Bytes that are no frames: the server must close the connection."""
        addresses = cycle((self.places.broker, self.places.namesrv))
        async for _ in self._rounds(0.5):
            host, _, port = next(addresses).rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(random.choice(_MALFORMED))
            try:
                await asyncio.wait_for(reader.read(), _END_S)
            except ConnectionResetError:
                self.tally.counts["malformed frames that met a reset"] += 1
            except TimeoutError:
                self.tally.error("a connection with malformed frames stayed open")
            self.tally.counts["malformed frames"] += 1
            writer.close()

    async def _rounds(self, pause_s: float) -> AsyncIterator[None]:
        """A step every ``pause_s``, give or take, until the load is over."""
        while not self.is_over:
            yield
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))


class Reader:
    """One queue read by one group."""

    def __init__(self, client: Client, group: str, topic: str, queue_id: int, hold_ms: int) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._queue_id = queue_id
        self._hold_ms = hold_ms
        self._queue_offset: int | None = None

    def _place(self) -> dict[str, str]:
        return {"topic": self._topic, "queueId": str(self._queue_id)}

    async def commit(self) -> None:
        """Say how far this group is, and ask for it again; the first time, find the end."""
        ask = self._client.ask
        if self._queue_offset is None:
            answer = await ask(RequestCode.GET_MAX_OFFSET, self._place())
            self._queue_offset = 0 if answer is None else int(answer.fields["offset"])
        fields = {
            **self._place(),
            "consumerGroup": self._group,
            "commitOffset": str(self._queue_offset),
        }
        await ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        await ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)

    async def pull(self) -> bool:
        """Pull once; True when there is more to be had at once."""
        assert self._queue_offset is not None
        fields = pull_fields(
            self._group, self._topic, self._queue_id, self._queue_offset, hold_ms=self._hold_ms
        )
        answer = await self._client.ask(RequestCode.PULL_MESSAGE, fields, expected=_PULLED)
        if answer is None:
            return False
        self._client.tally.counts[f"pull {ResponseCode(answer.code).name}"] += 1
        self._client.tally.counts["bytes pulled"] += len(answer.body)
        self._queue_offset = int(answer.fields["nextBeginOffset"])
        return self._queue_offset < int(answer.fields["maxOffset"])


# Of 200 active connections.
ROLES: tuple[tuple[Role, int], ...] = (
    (Load._send_singles, 70),
    (Load._send_batches, 20),
    (Load._send_one_way, 20),
    (Load._read, 32),
    (Load._wait_long, 32),
    (Load._join_and_leave, 8),
    (Load._query, 8),
    (Load._look_up, 10),
)


async def main(broker: str, namesrv: str, idle_count: int, active_count: int) -> None:
    load = Load(Places(broker, namesrv), idle_count, active_count)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await load.run(ended)
    print(load.tally.report(), flush=True)


if __name__ == "__main__":
    place, other, idle, active = sys.argv[1:]
    run(main(place, other, int(idle), int(active)), choose_event_loop())
