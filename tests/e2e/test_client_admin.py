"""The admin client against our own cluster of two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from contrail.client.admin import Admin
from contrail.client.admin_values import GroupLag
from contrail.errors import BrokerRefused, ClientClosed, ClientError, SomeFailed
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.registration import RegisterBrokerBody
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster
from contrail.testing.cluster import free_port
from contrail.wire.caller import Caller
from tests.e2e.admin_scenario import (
    CLUSTER,
    PARTS,
    Part,
    Peer,
    Place,
    addresses,
    make_traffic,
    offsets_are_read_set_cloned_and_reset,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, nameservers=2) as running:
        yield running


@pytest.mark.proves("client.programs.admin", "console.data.admin")
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_an_operator_sees_the_cluster(cluster: LocalCluster, part: Part) -> None:
    place = Place(cluster.namesrv)
    asyncio.run(part(place, f"w{PARTS.index(part)}"))


def test_offline_groups_are_reset_too_where_brokers_leave_it_to_clients() -> None:
    settings = {"useServerSideResetOffset": "false"}
    with LocalCluster(properties=settings) as cluster:
        asyncio.run(offsets_are_read_set_cloned_and_reset(Place(cluster.namesrv), "told"))


async def _register_absent(caller: Caller, name_server: str, topic: str) -> None:
    """A broker that stays registered as long as ``caller`` is open, and no client can reach."""
    fields = {
        "brokerName": "broker-b",
        "brokerAddr": f"127.0.0.1:{free_port()}",
        "clusterName": CLUSTER,
        "haServerAddr": "127.0.0.1:1",
        "brokerId": "0",
    }
    # One topic alone would count as a change of a registered broker.
    topics = {name: TopicConfig(name, 3, 3) for name in (topic, "another")}
    body = RegisterBrokerBody(topics).encode()
    answer = await caller.call(name_server, RequestCode.REGISTER_BROKER, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_brokers_that_do_not_answer_are_named_and_the_others_still_answer() -> None:
    async def run(cluster: LocalCluster, caller: Caller) -> None:
        async with Admin(cluster.namesrv) as admin:
            sent = await make_traffic(admin, "halved")
            await admin.create_group("readers")
            for queue in await admin.queues("halved"):
                await admin.commit_offset("readers", queue, 1)
            await _register_absent(caller, cluster.namesrv, "halved")
            with pytest.raises(SomeFailed, match=r"1 of 2 servers failed \(broker-b\)") as caught:
                await admin.lag("readers")
            assert list(caught.value.failures) == ["broker-b"]
            partial = caught.value.partial
            assert isinstance(partial, GroupLag)
            assert {one.queue.broker_name for one in partial.queues} == {"broker-a"}
            assert await admin.lag("readers", allow_partial=True) == partial
            # The broker that does not answer may know the group.
            assert (await admin.lag("unheard", allow_partial=True)).total == 0
            stats = await admin.topic_stats("halved", allow_partial=True)
            assert stats.count == len(sent)
            with pytest.raises(SomeFailed, match=r"group 'writers' to be set.*broker-b"):
                await admin.create_group("writers")
            assert list(await admin.group_config("writers", allow_partial=True)) == ["broker-a"]
            with pytest.raises(ClientError, match=r"broker 'broker-b'.*did not answer"):
                await admin.queue_offset_max(MessageQueue("halved", "broker-b", 0))

    async def with_caller(cluster: LocalCluster) -> None:
        caller = Caller()
        try:
            await run(cluster, caller)
        finally:
            await caller.close()

    with LocalCluster() as cluster:
        asyncio.run(with_caller(cluster))


def test_a_group_that_no_broker_knows_raises_instead_of_no_lag() -> None:
    async def run(cluster: LocalCluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            sent = await make_traffic(admin, "counted")
            for topic in (None, "counted"):
                for allow_partial in (False, True):
                    with pytest.raises(ClientError, match=r"no broker knows .*'reders'"):
                        await admin.lag("reders", topic, allow_partial=allow_partial)
            await admin.create_group("readers")
            assert (await admin.lag("readers")).total == 0
            assert (await admin.lag("readers", "counted")).total == len(sent)
            for queue in await admin.queues("counted"):
                await admin.commit_offset("readers", queue, 0)
            await admin.delete_group("readers")
            # The group's offsets are still there.
            assert (await admin.lag("readers")).total == len(sent)

    with LocalCluster() as cluster:
        asyncio.run(run(cluster))


def test_an_unreachable_name_server_is_named_when_all_must_be_changed() -> None:
    async def run(cluster: LocalCluster) -> None:
        async with Admin(cluster.namesrv, timeout_ms=2_000) as admin:
            await admin.create_topic("told", queues=1)
            cluster.nameservers[0].stop()
            away = cluster.nameservers[0].address
            with pytest.raises(SomeFailed, match=f"NameServer {away} did not answer"):
                await admin.kv_put("colours", "sky", "blue")
            assert await admin.topics(internal=False) == ["told"]
            assert await admin.kv_get("colours", "sky") == "blue"

    with LocalCluster(nameservers=2) as cluster:
        asyncio.run(run(cluster))


def test_an_operator_decides_a_transaction_without_a_connected_producer(
    cluster: LocalCluster,
) -> None:
    async def run() -> None:
        async with Admin(cluster.namesrv) as admin, Peer("127.0.0.1@half") as peer:
            await admin.create_topic("payments", queues=1, broker="broker-a")
            address = (await addresses(admin))["broker-a"]
            queue = MessageQueue("payments", "broker-a", 0)
            first = await peer.send(address, queue, b"first", half_of="payers")
            second = await peer.send(address, queue, b"second", half_of="payers")
            page = await admin.transactions("broker-a")
            assert (page.total, len(page.transactions)) == (2, 2)
            assert [one.producer_group for one in page.transactions] == ["payers", "payers"]
            assert {one.message_id for one in page.transactions} == {
                first.offset_message_id,
                second.offset_message_id,
            }
            await admin.commit_transaction("broker-a", first.unique_id)
            await admin.roll_back_transaction("broker-a", second.unique_id)
            assert (await admin.transactions("broker-a")).total == 0
            assert [one.body async for one in admin.browse(queue)] == [b"first"]
            with pytest.raises(BrokerRefused, match=r"half message .* to be checked again"):
                await admin.resume_check_half("payments", first.offset_message_id)
            with pytest.raises(BrokerRefused, match=r"broker 'broker-a'.*refused commit"):
                await admin.commit_transaction("broker-a", "nothing")

    asyncio.run(run())


def test_an_admin_must_be_started_and_not_closed(cluster: LocalCluster) -> None:
    async def run() -> None:
        admin = Admin(cluster.namesrv)
        with pytest.raises(ClientClosed, match="inside its `with` block"):
            await admin.topics()
        async with admin:
            assert "TBW102" in await admin.topics()
        with pytest.raises(ClientClosed):
            await admin.topics()

    asyncio.run(run())


def test_stats_of_a_broker_exist_once_there_was_traffic(cluster: LocalCluster) -> None:
    async def run() -> None:
        async with Admin(cluster.namesrv) as admin:
            await make_traffic(admin, "counted")
            item = await admin.broker_stats("broker-a", "TOPIC_PUT_NUMS", "counted")
            assert item.day.total >= 0
            with pytest.raises(BrokerRefused, match="stat TOPIC_PUT_NUMS of 'silent'"):
                await admin.broker_stats("broker-a", "TOPIC_PUT_NUMS", "silent")

    asyncio.run(run())
