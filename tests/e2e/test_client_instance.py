"""One client per process and cluster: sharing, refusals, and failing servers."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contrail.aio import Admin, Message, Producer, PullConsumer, PushConsumer
from contrail.client import instances
from contrail.client.instance import ClientInstance, reconnect_delay_s
from contrail.client.settings import ClientSettings
from contrail.errors import CallFailed, ClientError, GroupTaken, NameServerUnreachable
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually, eventually_async
from tests.e2e.asking import Asker, route

PATIENCE_S = 60.0
FRESH_TOPICS = 40
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"shared-{next(_numbers)}"
    Asker(cluster, 0).make_topic(name, read=4, write=4)
    eventually(lambda: route(cluster, name), "the NameServer knows the topic")
    return name


def sockets_to(address: str) -> int:
    """How many connections of this process lead to a local port, as the kernel lists them."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    own = {_link(entry) for entry in Path("/proc/self/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return sum(
        row[2].endswith(port) and row[3] == established and f"socket:[{row[9]}]" in own
        for row in rows
    )


def _link(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except FileNotFoundError:
        return ""


async def shared_instance(namesrv: str, **options: Any) -> ClientInstance:
    """The instance that clients with these options are on; not counted as a user."""
    instance = instances.join(ClientSettings.of(namesrv, **options))
    instance.user_count -= 1
    return instance


# Sharing.


@pytest.mark.proves("client.shared.one-instance")
def test_all_clients_share_one_connection_per_server_and_one_client_id(
    cluster: LocalCluster, topic: str
) -> None:
    broker = cluster.brokers[0].address

    async def main() -> None:
        before = sockets_to(broker), sockets_to(cluster.namesrv)
        received: list[bytes] = []
        async with (
            Producer("first", cluster.namesrv) as first,
            Producer("second", cluster.namesrv) as second,
            PushConsumer("readers", cluster.namesrv, consume_from_where="first") as reader,
            PushConsumer("ordered", cluster.namesrv, orderly=True) as ordered,
            PullConsumer("pullers", cluster.namesrv) as puller,
            Admin(cluster.namesrv) as admin,
        ):

            @reader.on_message
            async def handle(message: Any) -> None:
                received.append(message.body)

            @ordered.on_message
            async def look(message: Any) -> None: ...

            for consumer in (reader, ordered, puller):
                await consumer.subscribe(topic)
            await first.send(Message(topic, b"1"))
            await second.send(Message(topic, b"2"))
            await puller.poll(timeout_ms=100)
            await admin.cluster_info()
            await eventually_async(lambda: sorted(received) == [b"1", b"2"], "both are read")
            ids = {client.client_id for client in (first, second, reader, ordered, puller)}
            assert len(ids) == 1
            assert re.fullmatch(rf"[\d.]+@{os.getpid()}#\d+", ids.pop())
            assert sockets_to(broker) == before[0] + 1
            assert sockets_to(cluster.namesrv) == before[1] + 1
        assert (sockets_to(broker), sockets_to(cluster.namesrv)) == before

    asyncio.run(main())


@pytest.mark.proves("client.shared.one-instance")
def test_one_heartbeat_names_all_groups(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"heartbeat_broker_interval_ms": 200}

    async def main() -> None:
        bodies: list[bytes] = []
        async with (
            Producer("first", cluster.namesrv, **options) as producer,
            Producer("second", cluster.namesrv, **options),
            PullConsumer("pullers", cluster.namesrv, **options) as puller,
        ):
            await puller.subscribe(topic)
            await producer.send(Message(topic, b"x"))
            await puller.poll(timeout_ms=100)
            caller = (await shared_instance(cluster.namesrv, **options)).caller
            whole_call = caller.call

            async def call(address: str, code: int, *given: Any, **named: Any) -> Any:
                if code == RequestCode.HEART_BEAT:
                    bodies.append(given[1])
                return await whole_call(address, code, *given, **named)

            monkeypatch.setattr(caller, "call", call)
            began_s = time.monotonic()
            await eventually_async(lambda: len(bodies) >= 3, "three rounds")
            # Five groups' own heartbeats would have needed a third of that.
            assert time.monotonic() - began_s >= 2 * 0.2
        assert all(group in body for body in bodies for group in (b"first", b"second", b"pullers"))

    asyncio.run(main())


@pytest.mark.proves("client.shared.second-of-a-group")
def test_a_second_client_of_the_same_group_is_refused_by_name_unless_it_has_its_own_instance(
    cluster: LocalCluster, topic: str
) -> None:
    async def main() -> None:
        namesrv = cluster.namesrv
        async with Producer("orders", namesrv) as first, PullConsumer("billing", namesrv):
            for kind, client in (
                ("producer", Producer("orders", namesrv)),
                ("consumer", PullConsumer("billing", namesrv)),
            ):
                with pytest.raises(GroupTaken, match=f"already has a {kind} of group .*instance_n"):
                    await client.start()
            push = PushConsumer("billing", namesrv)
            push.on_message(_ignore)
            await push.subscribe(topic)
            with pytest.raises(GroupTaken, match="already has a consumer of group 'billing'"):
                await push.start()
            async with Producer("orders", namesrv, instance_name="other") as other:
                await other.send(Message(topic, b"from the other"))
                assert other.client_id.endswith("@other")
            # The refused clients have freed nothing of the others.
            await first.send(Message(topic, b"from the first"))

    asyncio.run(main())


async def _ignore(message: Any) -> None: ...


def test_a_group_that_was_closed_can_be_opened_again(cluster: LocalCluster, topic: str) -> None:
    async def main() -> None:
        producer = Producer("again", cluster.namesrv)
        ids = set()
        for _ in range(3):
            async with producer:
                ids.add(producer.client_id)
                assert (await producer.send(Message(topic, b"x"))).status.name == "SEND_OK"
        async with Producer("again", cluster.namesrv) as another:
            await another.send(Message(topic, b"x"))
        assert len(ids) == 3

    asyncio.run(main())


def test_closing_frees_tasks_sockets_files_and_threads(cluster: LocalCluster, topic: str) -> None:
    async def once() -> None:
        async with (
            Producer("leaving", cluster.namesrv) as producer,
            PushConsumer("leaving", cluster.namesrv, consume_from_where="first") as consumer,
            PullConsumer("leaving-too", cluster.namesrv) as puller,
        ):
            seen = asyncio.Event()

            @consumer.on_message
            def handle(message: Any) -> None:
                loop.call_soon_threadsafe(seen.set)

            loop = asyncio.get_running_loop()
            await consumer.subscribe(topic)
            await puller.subscribe(topic)
            await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(20)))
            await asyncio.wait_for(seen.wait(), PATIENCE_S)

    async def main() -> None:
        before = figures()

        def is_no_more_than_before() -> bool:
            return all(now <= then for now, then in zip(figures(), before, strict=True))

        for _ in range(2):
            await once()
            # Threads of a pool end some time after their shutdown.
            await eventually_async(is_no_more_than_before, "everything is let go of")
        assert instances._by_loop == {}

    def figures() -> tuple[int, int, int]:
        return (
            len(asyncio.all_tasks()),
            sockets_to(cluster.brokers[0].address),
            sum(thread.startswith("contrail") for thread in _thread_names()),
        )

    asyncio.run(main())


def _thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_brokers_get_a_heartbeat_at_once_for_a_group_that_joins_later(
    cluster: LocalCluster, topic: str
) -> None:
    # The next periodic heartbeat is far off.
    options = {"heartbeat_broker_interval_ms": 3_600_000}

    async def main() -> None:
        async with Producer("early", cluster.namesrv, **options) as early:
            await early.send(Message(topic, b"x"))
            async with (
                Producer("late", cluster.namesrv, **options),
                Admin(cluster.namesrv) as admin,
            ):

                async def is_known() -> bool:
                    return "late" in await _producer_groups(admin)

                await eventually_async(is_known, "the broker knows the second group")

            async def is_gone() -> bool:
                async with Admin(cluster.namesrv) as admin:
                    return "late" not in await _producer_groups(admin)

            await eventually_async(is_gone, "the broker knows that it left")

    asyncio.run(main())


async def _producer_groups(admin: Admin) -> set[str]:
    return {group.group for group in await admin.producers()}


# NameServers.


@pytest.mark.proves("client.shared.nameservers")
def test_the_first_nameserver_asked_is_random_and_failures_go_round(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [f"10.0.0.{number}:9876" for number in range(4)]
    alive = addresses[2]

    async def main() -> None:
        asked: list[str] = []

        async def call(address: str, *_: Any, **__: Any) -> str:
            asked.append(address)
            await asyncio.sleep(0)
            if address != alive:
                raise CallFailed(f"{address} cannot be reached")
            return "answer"

        firsts = set()
        for _ in range(64):
            instance = ClientInstance(ClientSettings.of(addresses))
            monkeypatch.setattr(instance.caller, "call", call)
            asked.clear()
            # Many at once: a failing call must not lead another past the NameServer that is alive.
            answers = await asyncio.gather(
                *(instance.name_servers.call(RequestCode.GET_BROKER_CLUSTER_INFO) for _ in "12345")
            )
            assert answers == ["answer"] * 5
            firsts.add(asked[0])
            asked.clear()
            await instance.name_servers.call(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert asked == [alive]
            await instance.close()
        assert firsts == set(addresses)

    asyncio.run(main())


def test_without_a_nameserver_the_error_has_each_ones_failure() -> None:
    async def main() -> None:
        async with Producer("orders", "127.0.0.1:1;127.0.0.1:2") as producer:
            with pytest.raises(NameServerUnreachable) as caught:
                await producer.send(Message("orders", b"x"))
        for part in ("127.0.0.1:1", "127.0.0.1:2", "contrail namesrv", "namesrv="):
            assert part in str(caught.value)

    asyncio.run(main())


@pytest.mark.proves("client.shared.nameservers")
def test_killing_all_nameservers_but_one_costs_no_send() -> None:
    often = {"registerNameServerPeriod": "10000"}
    with LocalCluster(nameservers=3, in_children=True, properties=often) as cluster:
        for number in range(FRESH_TOPICS):
            Asker(cluster, 0).make_topic(f"fresh-{number}", read=2, write=2)
        for at in range(3):
            eventually(
                lambda at=at: route(cluster, f"fresh-{FRESH_TOPICS - 1}", at),
                "each NameServer knows the last of them",
            )
        asyncio.run(_send_through_failing_nameservers(cluster))


async def _send_through_failing_nameservers(cluster: LocalCluster) -> None:
    sent, stop = 0, asyncio.Event()

    async def keep_sending(number: int) -> None:
        nonlocal sent
        async with Producer(
            f"through-{number}", cluster.namesrv, poll_name_server_interval_ms=100
        ) as producer:
            while not stop.is_set():
                # Another topic, now and then: its route is requested at the worst moments.
                topic = f"fresh-{sent // 40 % FRESH_TOPICS}"
                receipt = await producer.send(Message(topic, b"x"), timeout_ms=60_000)
                assert receipt.status.name == "SEND_OK"
                sent += 1
                await asyncio.sleep(0.002)

    async def more() -> None:
        goal = sent + 150
        await eventually_async(lambda: sent >= goal or sending.done(), "sends go on")
        if sending.done():
            await sending

    sending = asyncio.gather(*(keep_sending(number) for number in range(4)))
    await more()
    first, second, survivor = cluster.nameservers
    for server in (first, second):
        server.kill()
        await more()
    for server in (first, second):
        await asyncio.to_thread(server.start)
        # It has no broker yet.
        await more()
    await asyncio.to_thread(cluster.wait_for_routes, cluster.brokers[0])
    survivor.kill()
    await more()
    stop.set()
    await sending


# Routes and brokers.


@pytest.mark.proves("client.shared.reconnects")
def test_reconnecting_waits_longer_each_time_and_differs_between_clients() -> None:
    for failure_count in range(40):
        shortest, longest = (reconnect_delay_s(failure_count, at) for at in (0.0, 0.999))
        assert longest > 2 * shortest
        assert 0.1 <= shortest <= longest < 15.0
    assert reconnect_delay_s(3, 0.5) > reconnect_delay_s(0, 0.5)


@pytest.mark.proves("client.shared.routes")
def test_routes_are_refreshed_periodically(cluster: LocalCluster, topic: str) -> None:
    async def main() -> None:
        async with Producer(
            "orders", cluster.namesrv, poll_name_server_interval_ms=100
        ) as producer:
            assert len(await producer.publish_queues(topic)) == 4
            await asyncio.to_thread(Asker(cluster, 0).make_topic, topic, read=8, write=8)

            async def sees_all() -> bool:
                return len(await producer.publish_queues(topic)) == 8

            await eventually_async(sees_all, "the new queues are seen")

    asyncio.run(main())


@pytest.mark.proves("client.shared.routes")
def test_a_failed_send_refreshes_the_route_at_once() -> None:
    with LocalCluster(brokers=2) as cluster:
        for number in range(2):
            Asker(cluster, number).make_topic("orders", read=1, write=1)
        eventually(
            lambda: len(getattr(route(cluster, "orders"), "brokers", ())) == 2, "both are known"
        )
        asyncio.run(_send_while_a_broker_leaves(cluster))


async def _send_while_a_broker_leaves(cluster: LocalCluster) -> None:
    # The interval is an hour: only the failure can have caused the request.
    async with Producer(
        "orders", cluster.namesrv, poll_name_server_interval_ms=3_600_000
    ) as producer:
        for _ in range(4):
            await producer.send(Message("orders", b"x"))
        await asyncio.to_thread(cluster.brokers[0].stop)

        async def one_is_left() -> bool:
            receipt = await producer.send(Message("orders", b"x"), timeout_ms=60_000)
            assert receipt.queue.broker_name == "broker-b"
            return len(await producer.publish_queues("orders")) == 1

        await eventually_async(one_is_left, "the route without the broker is known")


@pytest.mark.proves("client.shared.reconnects")
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_consuming_goes_on_within_seconds_of_a_brokers_restart(how: str) -> None:
    with LocalCluster(in_children=True) as cluster:
        Asker(cluster, 0).make_topic("orders", read=4, write=4)
        eventually(lambda: route(cluster, "orders"), "the NameServer knows the topic")
        asyncio.run(_restart_under_consumers(cluster, how))


async def _restart_under_consumers(cluster: LocalCluster, how: str) -> None:
    # Long intervals: only notifications and errors move things. From the first message on: there is
    # no sign that a push consumer has asked for the end of a queue.
    options: dict[str, Any] = {
        "heartbeat_broker_interval_ms": 3_600_000,
        "rebalance_interval_ms": 3_600_000,
        "consume_from_where": "first",
    }
    received: set[bytes] = set()
    broker = cluster.brokers[0]
    async with (
        Producer("orders", cluster.namesrv, heartbeat_broker_interval_ms=3_600_000) as producer,
        PushConsumer("billing", cluster.namesrv, **options) as push,
        PushConsumer("ordered", cluster.namesrv, orderly=True, **options) as ordered,
        PullConsumer("pulling", cluster.namesrv, **options) as pull,
    ):
        push.on_message(_keeping(received, b"push "))
        ordered.on_message(_keeping(received, b"ordered "))
        for consumer in (push, ordered, pull):
            await consumer.subscribe("orders")
        polling = asyncio.create_task(_keep_polling(pull, received))
        await eventually_async(
            lambda: len(pull.assignment()) == 4, "the pull consumer has its queues"
        )
        await producer.send(Message("orders", b"before"))
        await eventually_async(lambda: len(received) == 3, "all have the first message")
        await asyncio.to_thread(broker.stop if how == "stopped" else broker.kill)
        with pytest.raises(ClientError):
            await producer.send(Message("orders", b"lost"), timeout_ms=1_000)
        await asyncio.to_thread(broker.start)
        back_s = time.monotonic()
        await _send_at_last(producer, b"after")
        await eventually_async(lambda: len(received) == 6, "all have the second message")
        # The longest pause between two tries is 15 s; a lock of a dead session does not outlive it.
        # The rest is for a machine that stalls.
        assert time.monotonic() - back_s < 45
        polling.cancel()


def _keeping(received: set[bytes], name: bytes) -> Callable[[Any], Awaitable[None]]:
    async def handle(message: Any) -> None:
        if message.body != b"lost":
            received.add(name + message.body)

    return handle


async def _keep_polling(consumer: PullConsumer, received: set[bytes]) -> None:
    while True:
        for message in await consumer.poll(timeout_ms=500):
            if message.body != b"lost":
                received.add(b"pull " + message.body)


async def _send_at_last(producer: Producer, body: bytes) -> None:
    async def is_sent() -> bool:
        try:
            return (await producer.send(Message("orders", body))).status.name == "SEND_OK"
        except ClientError:
            return False

    await eventually_async(is_sent, "the broker takes messages again")
