"""Our consumers and Apache's Java consumers in one group, and messages of one for the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from contrail.aio import Compression, Message, MessageQueue, Producer, PushConsumer
from contrail.client.compression import COMPRESSED_FLAG
from contrail.client.state.allocation import sorted_client_ids, strategy_named
from contrail.testing import eventually_async
from tests.interop.clients.driver import Event
from tests.interop.scenarios.clusters import RunningCluster
from tests.interop.scenarios.java_members import JavaMembers
from tests.interop.scenarios.scene import Inbox, Scene, scenario

# Ours and the original's newest: 4.9's brokers do not change the sharing of queues.
ours_and_newest = pytest.mark.parametrize(
    "cluster", ["contrail", "apache-5"], indirect=True, scope="module"
)
JAVA = ["java5", "java4"]
QUEUES_PER_BROKER = 4
ROUND = 16

LONG_BODY = "压缩的正文, compressed. ".encode() * 500
ODD_PROPERTIES = {
    "城市": "上海 and 😀",
    "binary-like": "\x01\x03\x1b\x7f\x80\xff",
    "quotes": "\"'\\{}[]",
}

Java = Mapping[str, JavaMembers]


@pytest.fixture(scope="module")
def java(cluster: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """One process per version of the Java client."""
    homes: Path = tmp_path_factory.mktemp("members")
    members: dict[str, JavaMembers] = {}
    with ExitStack() as stack:
        # Both start at the same time.
        for client in JAVA:
            members[client] = JavaMembers(client, cluster.namesrv, homes / client)
            stack.push(members[client])
        for one in members.values():
            one.wait_ready()
        yield members


class MixedGroup:
    """The members of a group, and the messages they have consumed together."""

    def __init__(self, scene: Scene, java: Java, strategy: str) -> None:
        self._scene = scene
        self._java = java
        self._strategy = strategy
        self._ours: dict[str, PushConsumer] = {}
        # By name: the client that runs it, and its client id.
        self._theirs: dict[str, tuple[JavaMembers, str]] = {}
        self._leavers: list[tuple[str, JavaMembers]] = []
        self._inbox = Inbox()
        self._sent: list[str] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> MixedGroup:
        self._queues = await self._scene.make_topic(queues=QUEUES_PER_BROKER)
        self._producer: Producer = await self._stack.enter_async_context(self._scene.producer())
        self._admin = await self._stack.enter_async_context(self._scene.admin())
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._theirs):
            await self.leave(name)
        for consumer in self._ours.values():
            await consumer.close()
        await self._stack.aclose()

    async def join(self, name: str) -> None:
        """Names of Java's members begin with their client's."""
        client = name.partition("-")[0]
        topic, group = self._scene.topic, self._scene.group
        if client in JAVA:
            process = self._java[client]
            client_id = await asyncio.to_thread(
                process.join, f"{topic}-{name}", group, topic, self._strategy
            )
            self._theirs[name] = (process, client_id)
            return
        consumer = self._scene.consumer(name, allocate_strategy=self._strategy)
        consumer.on_message(self._inbox.take)
        await consumer.subscribe(topic)
        await consumer.start()
        self._ours[name] = consumer

    async def leave(self, name: str) -> None:
        if name in self._ours:
            await self._ours.pop(name).close()
            return
        process, _ = self._theirs.pop(name)
        self._leavers.append((name, process))
        await asyncio.to_thread(process.leave, f"{self._scene.topic}-{name}")

    async def check(self) -> None:
        """Every queue has the owner that the strategy names, and the group consumes everything."""
        wanted = self._wanted()
        assert Counter(q for share in wanted.values() for q in share) == Counter(self._queues)
        shares: dict[str, list[MessageQueue]] = {}

        async def is_shared() -> bool:
            shares.clear()
            shares.update(await self._shares())
            return shares == wanted

        await eventually_async(is_shared, lambda: f"the shares {wanted}, not {shares}")
        keys = [f"m-{len(self._sent) + number}" for number in range(ROUND)]
        for number, key in enumerate(keys):
            queue = self._queues[number % len(self._queues)]
            await self._producer.send(self._scene.message(key), queue=queue)
        self._sent += keys
        await eventually_async(
            lambda: set(self._sent) <= set(self._consumed()),
            lambda: f"all messages; missing are {set(self._sent) - set(self._consumed())}",
        )
        assert await self._shares() == wanted

    async def check_running_info(self) -> None:
        """The broker's answer about each member equals the member's own running info."""
        ids = {name: one.client_id for name, one in self._ours.items()}
        ids |= {name: client_id for name, (_, client_id) in self._theirs.items()}
        shares = await self._shares()
        for name, client_id in ids.items():
            info = await self._admin.running_info(self._scene.group, client_id)
            told = sorted(queue for queue in info.queues if queue.topic == self._scene.topic)
            assert told == shares[client_id], name
        connections = await self._admin.group_connections(self._scene.group)
        assert {one.client_id for one in connections.connections} == set(ids.values())

    def _wanted(self) -> dict[str, list[MessageQueue]]:
        ids = [one.client_id for one in self._ours.values()]
        ids = sorted_client_ids([*ids, *(client_id for _, client_id in self._theirs.values())])
        strategy = strategy_named(self._strategy)
        return {
            one: sorted(strategy.allocate(self._scene.group, one, self._queues, ids)) for one in ids
        }

    async def _shares(self) -> dict[str, list[MessageQueue]]:
        topic = self._scene.topic
        shares = {
            one.client_id: [queue for queue in one.assigned_queues() if queue.topic == topic]
            for one in self._ours.values()
        }
        for name, (process, client_id) in self._theirs.items():
            shares[client_id] = await asyncio.to_thread(process.queues, f"{topic}-{name}", topic)
        return shares

    def _consumed(self) -> list[str]:
        theirs = [*self._leavers, *((name, process) for name, (process, _) in self._theirs.items())]
        keys = self._inbox.keys
        for name, process in theirs:
            keys += process.received(f"{self._scene.topic}-{name}")
        return keys


@pytest.mark.proves("client.shown.mixed-groups")
@ours_and_newest
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
@scenario
async def test_every_queue_has_one_owner_after_each_join_and_leave(
    scene: Scene, java: Java, strategy: str
) -> None:
    async with MixedGroup(scene, java, strategy) as group:
        await group.join("ours-1")
        await group.check()
        await group.join("java5")
        await group.check()
        await group.join("java4")
        await group.join("ours-2")
        await group.check()
        await group.check_running_info()
        await group.leave("ours-1")
        await group.check()
        await group.leave("java5")
        await group.check()
        await group.leave("ours-2")
        await group.check()


def odd_messages(scene: Scene, word: str) -> list[Message]:
    return [
        scene.message(f"{word}-plain", tags="已付款", properties=ODD_PROPERTIES, flag=7),
        scene.message(f"{word}-bytes", body=bytes(range(256))),
    ]


def batch_messages(scene: Scene) -> list[Message]:
    return [
        scene.message(f"batch-{number}", tags="batch", properties=ODD_PROPERTIES)
        for number in range(3)
    ]


@pytest.mark.proves("client.shown.exchanged")
@ours_and_newest
@pytest.mark.parametrize("client", JAVA)
@scenario
async def test_java_reads_our_sends(scene: Scene, java: Java, client: str) -> None:
    await scene.make_topic()
    member = java[client]
    await asyncio.to_thread(member.join, scene.topic, scene.group, scene.topic)
    # 4.9's client knows one way to compress.
    kinds = list(Compression) if client == "java5" else [Compression.ZLIB]
    sent = odd_messages(scene, "single") + batch_messages(scene)
    async with scene.producer() as producer:
        for message in odd_messages(scene, "single"):
            await producer.send(message)
        await producer.send_batch(batch_messages(scene))
    for kind in kinds:
        message = scene.message(f"compressed-{kind.name}", body=LONG_BODY)
        async with scene.producer(compression=kind) as producer:
            await producer.send(message)
        sent.append(message)
    await eventually_async(
        lambda: len(member.received(scene.topic)) >= len(sent), lambda: str(member)
    )
    received = member.received_by(scene.topic)
    await asyncio.to_thread(member.leave, scene.topic)
    assert set(received) == {message.keys[0] for message in sent}
    for message in sent:
        check_event(received[message.keys[0]], message)


def check_event(event: Event, message: Message) -> None:
    assert (event["body"], event["flag"]) == (message.body, message.flag)
    assert event.get("tag") == message.tags
    assert message.properties.items() <= event["properties"].items()


@pytest.mark.proves("client.shown.exchanged")
@ours_and_newest
@pytest.mark.parametrize("client", JAVA)
@scenario
async def test_our_consumer_reads_javas_sends(scene: Scene, java: Java, client: str) -> None:
    await scene.make_topic()
    kinds = list(Compression) if client == "java5" else [Compression.ZLIB]
    long_ones = {kind: scene.message(f"compressed-{kind.name}", body=LONG_BODY) for kind in kinds}

    def send_all() -> None:
        member = java[client]
        member.send_messages(scene.topic, odd_messages(scene, "single"))
        member.send_messages(scene.topic, batch_messages(scene), batch=True)
        for kind, message in long_ones.items():
            member.send_messages(scene.topic, [message], compression=kind.name)

    await asyncio.to_thread(send_all)
    sent = [*odd_messages(scene, "single"), *batch_messages(scene), *long_ones.values()]
    inbox = Inbox()
    async with scene.consuming(inbox.take):
        await eventually_async(
            lambda: len(inbox.keys) >= len(sent), lambda: f"all of it: {inbox.keys}"
        )
    found = {one.keys[0]: one for one in inbox.messages}
    assert set(found) == {message.keys[0] for message in sent}
    for message in sent:
        one = found[message.keys[0]]
        assert (one.body, one.flag, one.tags) == (message.body, message.flag, message.tags)
        assert message.properties.items() <= one.properties.items()
        is_compressed = bool(one.sys_flag & COMPRESSED_FLAG)
        assert is_compressed is (message.body == LONG_BODY)
