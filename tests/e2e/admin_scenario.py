"""An operator's work with the admin client, for any cluster: each part asserts what it sees.

The same parts run against our own cluster and against Apache's of both generations. Names are
made from a word that the caller gives, so that parts do not meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pytest

from contrail.client.admin import Admin
from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    ClientError,
    ConfigError,
    OffsetIllegal,
    RouteMissing,
)
from contrail.insight.groups import with_members
from contrail.insight.lists import group_rows, topic_rows
from contrail.insight.looks import look
from contrail.model.properties import (
    KEYS,
    PGROUP,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
    encode_properties,
)
from contrail.model.record import TRANSACTION_PREPARED
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import SCHEDULE_TOPIC, Perm
from contrail.protocol.bodies.heartbeat import ConsumerData, Heartbeat, encode_heartbeat
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, Response
from contrail.protocol.json_style import MessageQueue, encode_body
from contrail.testing import eventually_async
from contrail.wire.caller import Caller
from contrail.wire.connection import Connection

CLUSTER = "DefaultCluster"
DEADLINE_S = 60.0
QUEUES = 3
PER_QUEUE = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster to operate on; ``is_old`` for brokers before 5.0."""

    namesrv: str
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a broker took."""

    queue: MessageQueue
    queue_offset: int
    unique_id: str
    offset_message_id: str
    key: str


class Peer:
    """A producer or consumer reduced to what the admin client can see of it."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.consumed: list[str] = []
        self._caller = Caller(on_request=self._arrived)
        self._numbers = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._caller.close()

    async def _call(
        self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes
    ) -> ReceivedResponse:
        limit_ms = int(DEADLINE_S * 1000)
        return await self._caller.call(address, code, fields, body, timeout_ms=limit_ms)

    async def beat(self, addresses: list[str], heartbeat: Heartbeat) -> None:
        for address in addresses:
            body = encode_heartbeat(heartbeat)
            answer = await self._call(address, RequestCode.HEART_BEAT, {}, body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def send(
        self, address: str, queue: MessageQueue, body: bytes, *, half_of: str | None = None
    ) -> Sent:
        """``half_of`` names the producer group of a message that is half of a transaction."""
        self._numbers += 1
        unique_id = f"7F000001{id(self) & 0xFFFFFFFF:08X}{self._numbers:016X}"
        key = f"order-{self._numbers}"
        properties = {KEYS: f"{key} all", TAGS: "paid", UNIQ_KEY: unique_id, "WAIT": "true"}
        if half_of is not None:
            properties |= {TRAN_MSG: "true", PGROUP: half_of}
        fields = {
            "producerGroup": "scenario_producers",
            "topic": queue.topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue.queue_id),
            "sysFlag": "0" if half_of is None else str(TRANSACTION_PREPARED),
            "bornTimestamp": str(int(time.time() * 1000)),
            "flag": "0",
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }
        answer = await self._call(address, RequestCode.SEND_MESSAGE, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        queue_offset = int(answer.fields["queueOffset"])
        return Sent(queue, queue_offset, unique_id, answer.fields["msgId"], key)

    def _arrived(self, connection: Connection, request: Request) -> None:
        if request.one_way:
            return
        connection.reply(request, Response(body=encode_body(self._answer(request))))

    def _answer(self, request: Request) -> Mapping[str, object]:
        queue = MessageQueue("T", "broker-a", 1)
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return {
                "mqTable": {queue: {"commitOffset": 7, "cachedMsgCount": 2, "droped": False}},
                "properties": {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
                "statusTable": {"T": {"consumeRT": 1.5, "consumeOKTPS": 20, "pullRT": 0}},
                "subscriptionSet": [SubscriptionData("T").to_fields()],
            }
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            self.consumed.append(request.fields["msgId"])
            return {"autoCommit": True, "consumeResult": "CR_SUCCESS", "spentTimeMills": 3}
        assert request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        return {"messageQueueTable": {queue: 9}}


async def addresses(admin: Admin) -> dict[str, str]:
    return {one.broker_name: one.address for one in await admin.brokers() if one.is_master}


async def make_traffic(admin: Admin, topic: str) -> list[Sent]:
    """A topic of three queues on each broker, with four messages in each."""
    await admin.create_topic(topic, queues=QUEUES, cluster=CLUSTER)
    by_name = await addresses(admin)
    sent = []
    async with Peer(f"{topic}@sender") as peer:
        for queue in await admin.queues(topic):
            for number in range(PER_QUEUE):
                body = f"{queue.queue_id}-{number}".encode()
                sent.append(await peer.send(by_name[queue.broker_name], queue, body))

    async def is_visible() -> bool:
        return (await admin.topic_stats(topic)).count == len(sent)

    await eventually_async(is_visible, f"{len(sent)} messages in the queues of {topic}")
    return sent


# Topics.


async def topics_are_made_changed_and_deleted(place: Place, word: str) -> None:
    topic = f"{word}_made"
    async with Admin(place.namesrv) as admin:
        names = sorted(await addresses(admin))
        assert await admin.create_topic(topic, queues=4, cluster=CLUSTER) == names
        assert topic in await admin.topics()
        assert topic in await admin.topics(cluster=CLUSTER)
        assert topic in await admin.topics(internal=False)
        assert "TBW102" not in await admin.topics(internal=False)
        assert await admin.topic_clusters(topic) == [CLUSTER]
        assert len(await admin.queues(topic)) == 4 * len(names)

        assert await admin.update_topic(topic, write_queues=2) == names
        configs = await admin.topic_config(topic)
        assert sorted(configs) == names
        for config in configs.values():
            assert (config.read_queue_count, config.write_queue_count) == (4, 2)
            assert config.perm == Perm.READ | Perm.WRITE
        assert (await admin.topic_configs(names[0]))[topic] == configs[names[0]]
        stats = await admin.topic_stats(topic)
        assert stats.count == 0
        assert [one.queue for one in stats.queues] == await admin.queues(topic)

        await admin.delete_topic(topic)
        with pytest.raises(RouteMissing, match=f"topic '{topic}' has no route: create it"):
            await admin.topic_route(topic)
        assert topic not in await admin.topics()


async def ordered_topics_have_their_queue_counts_on_the_name_servers(
    place: Place, word: str
) -> None:
    topic = f"{word}_ordered"
    async with Admin(place.namesrv) as admin:
        names = await admin.create_topic(topic, queues=2, order=True, cluster=CLUSTER)
        wanted = dict.fromkeys(names, 2)
        assert await admin.order_config(topic) == wanted
        text = ";".join(f"{name}:2" for name in names)
        assert (await admin.kv_list("ORDER_TOPIC_CONFIG"))[topic] == text
        for config in (await admin.topic_config(topic)).values():
            # Brokers before 5.0 ignore it: there only the NameServers know.
            assert config.order is not place.is_old
        await admin.update_topic(topic, queues=3)
        assert await admin.order_config(topic) == dict.fromkeys(names, 3)
        await admin.update_topic(topic, order=False)
        assert await admin.order_config(topic) == {}
        await admin.update_topic(topic, order=True, broker="broker-a")
        assert await admin.order_config(topic) == {"broker-a": 3}
        await admin.delete_topic(topic)
        assert await admin.order_config(topic) == {}


async def wrong_topics_are_refused_in_words(place: Place, word: str) -> None:
    async with Admin(place.namesrv) as admin:
        with pytest.raises(ConfigError, match="may hold only letters"):
            await admin.create_topic("not a name")
        with pytest.raises(BrokerUnknown, match="no cluster 'Nowhere'"):
            await admin.create_topic(f"{word}_x", cluster="Nowhere")
        with pytest.raises(BrokerUnknown, match=r"no broker is named 'broker-z'.*broker-a"):
            await admin.create_topic(f"{word}_x", broker="broker-z")
        with pytest.raises(RouteMissing, match="contrail topic create"):
            await admin.update_topic(f"{word}_absent", queues=3)


# Groups and offsets.


async def groups_are_made_changed_and_deleted(place: Place, word: str) -> None:
    group = f"{word}_group"
    async with Admin(place.namesrv) as admin:
        names = sorted(await addresses(admin))
        assert await admin.create_group(group, retry_count_max=3, cluster=CLUSTER) == names
        assert group in await admin.groups()
        assert "TOOLS_CONSUMER" not in await admin.groups()
        assert "TOOLS_CONSUMER" in await admin.groups(internal=True)
        assert await admin.update_group(group, consume_enable=False) == names
        for config in (await admin.group_config(group)).values():
            assert (config.retry_count_max, config.consume_enable) == (3, False)
        await admin.delete_group(group, remove_offsets=True, remove_topics=True)
        with pytest.raises(ClientError, match=f"group '{group}' does not exist"):
            await admin.group_config(group)
        with pytest.raises(ConfigError, match=r"there are.*retry_count_max"):
            await admin.create_group(group, retries=1)


async def offsets_are_read_set_cloned_and_reset(place: Place, word: str) -> None:
    topic, group, other = f"{word}_offsets", f"{word}_readers", f"{word}_others"
    async with Admin(place.namesrv) as admin:
        sent = await make_traffic(admin, topic)
        for name in (group, other):
            await admin.create_group(name, cluster=CLUSTER)
        queues = await admin.queues(topic)
        for queue in queues:
            assert await admin.queue_offset_min(queue) == 0
            assert await admin.queue_offset_max(queue) == PER_QUEUE
            await admin.commit_offset(group, queue, 1)
        assert await admin.committed_offsets(group, topic) == dict.fromkeys(queues, 1)
        assert await admin.committed(group, queues[0]) == 1

        lag = await admin.lag(group)
        assert [one.queue for one in lag.queues] == queues
        assert lag.total == (PER_QUEUE - 1) * len(queues)
        assert lag.by_topic == {topic: lag.total}
        first = lag.queues[0]
        assert (first.broker_offset, first.consumer_offset, first.lag) == (PER_QUEUE, 1, 3)
        assert first.last_timestamp_ms > 0
        assert await admin.lag(group, topic) == lag
        assert (await admin.lags())[group].total == lag.total
        assert await admin.group_topics(group) == [topic]
        assert await admin.topic_consumers(topic) == [group]
        spans = await admin.consume_time_spans(group, topic)
        assert [one.queue for one in spans] == queues

        assert await admin.clone_offsets(group, other, topic) == dict.fromkeys(queues, 1)
        await _resets(admin, group, topic, sent)
        fresh = f"{word}_fresh"
        await admin.create_group(fresh, cluster=CLUSTER)
        assert await admin.skip_to_end(fresh, topic) == dict.fromkeys(queues, PER_QUEUE)


async def _resets(admin: Admin, group: str, topic: str, sent: list[Sent]) -> None:
    """Of a group that is off line, on brokers that reset by themselves and on those that do not."""
    queues = await admin.queues(topic)
    ends = dict.fromkeys(queues, PER_QUEUE)
    assert await admin.skip_to_end(group, topic) == ends
    assert (await admin.lag(group)).total == 0
    assert await admin.reset_to_begin(group, topic) == dict.fromkeys(queues, 0)
    assert (await admin.lag(group)).total == len(sent)

    third = await admin.message_at(queues[0], 2)
    moment = third.store_timestamp_ms
    placed = await admin.reset_to_time(group, topic, moment)
    assert placed == await admin.search_offsets(topic, moment)
    assert placed[queues[0]] <= 2
    assert await admin.reset_to_offset(group, queues[1], 3) == {queues[1]: 3}
    assert await admin.committed(group, queues[1]) == 3
    assert await admin.committed(group, queues[0]) == placed[queues[0]]
    with pytest.raises(OffsetIllegal, match=r"outside queue 1 of topic.*has 0 to 4"):
        await admin.reset_to_offset(group, queues[1], 99)


# Messages.


async def messages_are_found_and_browsed(place: Place, word: str) -> None:
    topic = f"{word}_found"
    async with Admin(place.namesrv) as admin:
        sent = await make_traffic(admin, topic)
        one = sent[5]
        body = f"{one.queue.queue_id}-{one.queue_offset}".encode()
        by_place = await admin.message_by_offset_id(one.offset_message_id)
        assert (by_place.topic, by_place.queue, by_place.body) == (topic, one.queue, body)

        async def is_indexed() -> bool:
            found = [await admin.messages_by_key(topic, other.key) for other in sent]
            return all(found)

        await eventually_async(is_indexed, f"all keys of {topic} in the index")
        (by_key,) = await admin.messages_by_key(topic, one.key)
        assert (by_key.message_id, by_key.queue_offset) == (one.unique_id, one.queue_offset)
        (by_id,) = await admin.messages_by_unique_key(topic, one.unique_id)
        assert by_id.offset_message_id == one.offset_message_id
        for message_id in (one.unique_id, one.offset_message_id):
            found = await admin.message(topic, message_id)
            assert found is not None and found.body == body
        assert await admin.message(topic, "F" * 32) is None
        assert len(await admin.messages_by_key(topic, "all")) == len(sent)
        assert len(await admin.messages_by_key(topic, "all", count_max=2)) <= 2
        born = by_key.store_timestamp_ms
        assert await admin.messages_by_key(topic, one.key, end=born - 3_600_000) == []
        assert len(await admin.messages_by_key(topic, one.key, begin=born, end=born)) == 1

        browsed = [m.body async for m in admin.browse(one.queue, batch=3)]
        assert browsed == [f"{one.queue.queue_id}-{n}".encode() for n in range(PER_QUEUE)]
        part = await admin.messages_from(one.queue, 1, 2)
        assert [m.queue_offset for m in part] == [1, 2]
        assert (await admin.message_at(one.queue, 3)).queue_offset == 3
        with pytest.raises(OffsetIllegal, match="no message at offset 77: it has 0 to 3"):
            await admin.message_at(one.queue, 77)
        with pytest.raises(BrokerRefused, match="broker 'broker-"):
            await admin.message_by_offset_id(one.offset_message_id[:-8] + "7FFFFFF0")


# Members.


async def what_waits_is_listed_or_pulled(place: Place, word: str) -> None:
    """Contrail's brokers list what is their own; Apache's let everybody pull it."""
    topic = f"{word}_waits"
    async with Admin(place.namesrv) as admin, Producer(f"{word}_p", place.namesrv) as producer:
        await make_traffic(admin, topic)
        sent = await producer.send(Message(topic, b"waits", delay_level=17))
        queue = MessageQueue(SCHEDULE_TOPIC, sent.queue.broker_name, 16)

        async def is_there() -> bool:
            return await admin.queue_offset_max(queue) > await admin.queue_offset_min(queue)

        await eventually_async(is_there, f"a message in {SCHEDULE_TOPIC}")
        (found,) = [one async for one in admin.browse(queue) if one.message_id == sent.message_id]
        assert (found.body, found.properties[REAL_TOPIC]) == (b"waits", topic)
        assert await admin.search_offset(queue, found.store_timestamp_ms) <= found.queue_offset
        assert (await admin.message_at(queue, found.queue_offset)).message_id == found.message_id

        async def is_indexed() -> bool:
            return bool(await admin.messages_by_unique_key(SCHEDULE_TOPIC, sent.message_id))

        await eventually_async(is_indexed, f"the key of a message in {SCHEDULE_TOPIC}")


async def members_are_seen_and_asked(place: Place, word: str) -> None:
    topic, group = f"{word}_members", f"{word}_team"
    async with Admin(place.namesrv) as admin, Peer(f"127.0.0.1@{word}") as peer:
        sent = await make_traffic(admin, topic)
        by_name = await addresses(admin)
        assert not (await admin.group_connections(group)).is_online
        consumer = ConsumerData(group, subscriptions=(SubscriptionData(topic, sub_version=1),))
        heartbeat = Heartbeat(peer.client_id, (f"{word}_senders",), (consumer,))
        await peer.beat(list(by_name.values()), heartbeat)

        members = await admin.group_connections(group)
        (member,) = members.connections
        assert (member.client_id, member.language) == (peer.client_id, "JAVA")
        assert member.broker_names == tuple(sorted(by_name))
        assert (members.message_model, members.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert members.subscriptions[topic].sub_string == "*"
        subscription = await admin.group_subscription(group, topic)
        assert subscription is not None and subscription.topic == topic
        assert await admin.group_subscription(group, f"%RETRY%{group}") is None

        producers = {one.group: one for one in await admin.producers()}
        assert producers[f"{word}_senders"].connections[0].client_id == peer.client_id
        producer = await admin.producer_connections(f"{word}_senders", topic)
        assert [one.client_id for one in producer.connections] == [peer.client_id]
        assert (await admin.producer_connections(f"{word}_nobody", topic)).connections == ()
        await _relays(admin, peer, group, sent[0])
        await _resets_with_members(place, admin, group, topic)


async def _relays(admin: Admin, peer: Peer, group: str, sent: Sent) -> None:
    info = await admin.running_info(group, peer.client_id)
    queue = MessageQueue("T", "broker-a", 1)
    assert info.queues[queue].consumer_offset == 7
    assert info.rates["T"].consume_ms == 1.5
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    status = await admin.consumer_status(group, sent.queue.topic)
    assert status == {peer.client_id: {queue: 9}}
    message = await admin.message_by_offset_id(sent.offset_message_id)
    result = await admin.consume_directly(group, peer.client_id, message)
    assert (result.result, result.spent_ms) == ("CR_SUCCESS", 3)
    assert peer.consumed == [sent.offset_message_id]
    with pytest.raises(ClientError, match=f"'nobody' of group '{group}' is not connected"):
        await admin.running_info(group, "nobody")
    await admin.send_back(group, message, delay_level=-1)
    await eventually_async(lambda: _has_dead_letter(admin, group), f"a dead letter of {group}")


async def _resets_with_members(place: Place, admin: Admin, group: str, topic: str) -> None:
    queues = await admin.queues(topic)
    for queue in queues:
        await admin.commit_offset(group, queue, PER_QUEUE)
    if place.is_old:
        with pytest.raises(ClientError, match=r"on one queue while the group has members.*stop"):
            await admin.reset_to_offset(group, queues[0], 2)
        assert await admin.committed(group, queues[0]) == PER_QUEUE
    else:
        assert await admin.reset_to_offset(group, queues[0], 2) == {queues[0]: 2}
        assert await admin.committed(group, queues[0]) == 2
    # Members are told, or the broker does it by itself; either way it says where to.
    assert await admin.reset_to_begin(group, topic) == dict.fromkeys(queues, 0)


async def _has_dead_letter(admin: Admin, group: str) -> bool:
    topic = await admin.dead_letter_topic(group)
    return topic is not None and (await admin.topic_stats(topic)).count == 1


# Servers.


async def servers_tell_and_change_their_settings(place: Place, word: str) -> None:
    async with Admin(place.namesrv) as admin:
        info = await admin.cluster_info()
        names = sorted(info.clusters[CLUSTER])
        assert [one.broker_name for one in await admin.brokers()] == names
        runtimes = await admin.broker_runtimes()
        assert sorted(runtimes) == names
        one = await admin.broker_runtime(names[0])
        assert one.version.startswith("V")
        assert 0 <= one.disk_used_ratio < 1
        assert one.put_count_today >= 0

        assert (await admin.broker_config(names[0]))["brokerName"] == names[0]
        changed = await admin.update_broker_config({"defaultTopicQueueNums": "7"}, broker=names[0])
        assert changed == [names[0]]
        assert (await admin.broker_config(names[0]))["defaultTopicQueueNums"] == "7"
        with pytest.raises(ConfigError, match="name the broker or the cluster"):
            await admin.update_broker_config({"defaultTopicQueueNums": "7"})

        for settings in (await admin.namesrv_config()).values():
            assert settings["orderMessageEnable"] in ("true", "false")
        await admin.kv_put(word, "colour", "blue")
        assert await admin.kv_get(word, "colour") == "blue"
        assert await admin.kv_list(word) == {"colour": "blue"}
        await admin.kv_delete(word, "colour")
        assert await admin.kv_get(word, "colour") is None
        assert await admin.kv_list(f"{word}_nothing") == {}

        raw = await admin.ask_broker(names[0], RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert b"offsetTable" in raw.body
        assert await admin.clean_expired_queues() == names
        assert await admin.clean_unused_topics(broker=names[0]) == [names[0]]
        assert await admin.delete_expired_segments(cluster=CLUSTER) == names


async def a_broker_is_drained_and_filled_again(place: Place, word: str) -> None:
    topic = f"{word}_drained"
    async with Admin(place.namesrv) as admin:
        await admin.create_topic(topic, queues=2, cluster=CLUSTER)
        counts = await admin.wipe_write_perm("broker-a")
        assert sorted(counts) == sorted(admin.name_servers)
        assert all(count >= 1 for count in counts.values())
        assert await _perm(admin, topic) == Perm.READ
        await admin.add_write_perm("broker-a")
        assert await _perm(admin, topic) == Perm.READ | Perm.WRITE
        with pytest.raises(BrokerUnknown, match="no broker is named 'broker-x'"):
            await admin.wipe_write_perm("broker-x")


async def _perm(admin: Admin, topic: str) -> int:
    route = await admin.topic_route(topic)
    return next(one.perm for one in route.queues if one.broker_name == "broker-a")


async def figures_are_those_of_the_single_requests(place: Place, word: str) -> None:
    """Where brokers tell figures at all; Apache's do not."""
    topic, group = f"{word}_figures", f"{word}_figures_group"
    async with Admin(place.namesrv) as admin, Peer(f"{word}-client") as peer:
        await make_traffic(admin, topic)
        await admin.create_group(group, cluster=CLUSTER)
        for place_of, queue in enumerate(await admin.queues(topic)):
            await admin.commit_offset(group, queue, place_of % PER_QUEUE)
        data = ConsumerData(group, subscriptions=(SubscriptionData(topic),))
        by_name = await addresses(admin)
        heartbeat = Heartbeat(peer.client_id, consumers=(data,))
        await peer.beat(list(by_name.values()), heartbeat)
        figures = await admin.figures()
        assert sorted(figures) == sorted(by_name)
        lag = await admin.lag(group, topic)
        for broker, told in figures.items():
            if told is None:
                assert (await admin.broker_runtime(broker)).contrail_version is None
                continue
            at, here = told.topics.index(topic), told.groups.index(group)
            first, last = told.member_spans()[here]
            assert [told.clients[one] for one in told.members[first:last]] == [peer.client_id]
            known = [one for one in lag.queues if one.queue.broker_name == broker]
            begin, end = told.queue_spans()[at]
            assert told.queue_maxs[begin:end] == [one.broker_offset for one in known]
            pair = list(zip(told.pair_groups, told.pair_topics, strict=True)).index((here, at))
            begin, end = told.offset_spans()[pair]
            assert told.offsets[begin:end] == [one.consumer_offset for one in known]
        seen = await look(admin)
        assert seen.tables_only == {name for name, told in figures.items() if told is None}
        groups = {row.group: row for row in group_rows(seen)}
        assert groups[group].lag == lag.total == (await admin.lags())[group].total
        (row,) = await with_members(admin, [groups[group]])
        assert (row.members, row.topics, row.model) == (1, [topic], "CLUSTERING")
        assert row == groups[group] or not seen.knows_members
        topics = {one.topic: one for one in topic_rows(seen, frozenset({CLUSTER}))}
        assert (topics[topic].groups, topics[topic].lag) == (1, lag.total)
        assert topics[topic].messages in (len(by_name) * QUEUES * PER_QUEUE, None)


Part = Callable[[Place, str], Coroutine[Any, Any, None]]
PARTS: tuple[Part, ...] = (
    topics_are_made_changed_and_deleted,
    ordered_topics_have_their_queue_counts_on_the_name_servers,
    wrong_topics_are_refused_in_words,
    groups_are_made_changed_and_deleted,
    offsets_are_read_set_cloned_and_reset,
    messages_are_found_and_browsed,
    what_waits_is_listed_or_pulled,
    members_are_seen_and_asked,
    servers_tell_and_change_their_settings,
    figures_are_those_of_the_single_requests,
    a_broker_is_drained_and_filled_again,
)
