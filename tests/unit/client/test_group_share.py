"""A group's share of queues, its progress and its start, against brokers that answer in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Any, cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.offset_stores import RemoteOffsets
from contrail.client.rebalancing import Rebalancer
from contrail.client.start_places import (
    StartPlaces,
    parse_consume_from_where,
    parse_consume_timestamp,
    start_place,
)
from contrail.client.state.allocation import strategy_named
from contrail.client.state.routes import RouteTable, TopicRoute
from contrail.errors import BrokerRefused, BrokerUnknown, ClientError, ConfigError, RouteMissing
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse

ME, TOPIC = "me", "orders"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
RETRY = "%RETRY%g"


class FakeInstance:
    """A client of brokers ``a`` and ``b`` with two queues each."""

    client_id = ME

    def __init__(self) -> None:
        self.routes = RouteTable()
        self.topics = {TOPIC, RETRY}
        self.members: dict[str, list[str] | None] = {"a:1": [ME], "b:1": [ME]}
        self.joins_with_the_next_beat = False
        self.down: set[str] = set()
        self.stored: dict[MessageQueue, int] = {}
        self.asked: list[tuple[str, RequestCode, Mapping[str, str]]] = []

    async def route(self, topic: str) -> TopicRoute:
        if topic not in self.topics:
            raise RouteMissing(f"{topic} has no route", topic=topic)
        data = TopicRouteData(
            queues=tuple(QueueData(name, 2, 2, 6) for name in "ab"),
            brokers=tuple(BrokerData(name, "c", {0: f"{name}:1"}) for name in "ab"),
        )
        self.routes.put(route := TopicRoute.of(topic, data))
        return route

    refresh_route = route

    def master_of(self, broker_name: str) -> str:
        address = self.routes.master_of(broker_name)
        if address is None:
            raise BrokerUnknown(f"no route names {broker_name}")
        return address

    async def beat(self) -> None:
        if self.joins_with_the_next_beat:
            self.members = {address: [ME, "you"] for address in self.members}

    async def ask_master(
        self,
        broker_name: str,
        topic: str,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        what: str,
        timeout_ms: int,
        reads: bool = False,
    ) -> ReceivedResponse:
        if self.routes.master_of(broker_name) is None:
            await self.route(topic)
        address = self.master_of(broker_name)
        return await self.ask(address, code, fields, what=what, timeout_ms=timeout_ms)

    async def ask(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        what: str,
        timeout_ms: int | None = None,
    ) -> ReceivedResponse:
        self.asked.append((address, code, fields))
        if address in self.down:
            raise ClientError(f"{what}: {address} is down")
        body, found = self._answer(address, code, fields)
        return ReceivedResponse(0, 1, None, {"offset": str(found)}, body, 0, "JAVA")

    def _answer(
        self, address: str, code: RequestCode, fields: Mapping[str, str]
    ) -> tuple[bytes, int]:
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            if self.members[address] is None:
                raise BrokerRefused("no consumer", code=ResponseCode.SYSTEM_ERROR, remark="none")
            return json.dumps({"consumerIdList": self.members[address]}).encode(), 0
        queue = MessageQueue(fields["topic"], address[0], int(fields["queueId"]))
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.stored[queue] = int(fields["commitOffset"])
        elif code == RequestCode.QUERY_CONSUMER_OFFSET and queue not in self.stored:
            refusal = ResponseCode.QUERY_NOT_FOUND
            raise BrokerRefused("not found", code=refusal, remark="not found")
        answers = {RequestCode.GET_MAX_OFFSET: 100, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: 42}
        return b"", answers.get(code, self.stored.get(queue, -1))

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def of(self, topic: str, *queues: str) -> set[MessageQueue]:
        return {MessageQueue(topic, text[0], int(text[1])) for text in queues}


@pytest.fixture
def instance() -> FakeInstance:
    return FakeInstance()


class Group:
    """A rebalancer, and the queues it assigned."""

    def __init__(
        self,
        instance: FakeInstance,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        accepts: bool = True,
        interval_ms: int = 3_600_000,
    ) -> None:
        self.topics = [TOPIC]
        self.failure_count = 0
        self.shares: list[tuple[str, set[MessageQueue]]] = []
        self._accepts = accepts
        self.rebalancer = Rebalancer(
            cast(ClientInstance, instance),
            group="g",
            message_model=model,
            strategy=strategy_named("AVG"),
            on_share=self._take,
            topics=self._wanted_topics,
            interval_ms=interval_ms,
        )

    def _wanted_topics(self) -> list[str]:
        if self.failure_count:
            self.failure_count -= 1
            raise ZeroDivisionError("a mistake")
        return self.topics

    async def _take(self, topic: str, share: set[MessageQueue]) -> bool:
        self.shares.append((topic, share))
        return self._accepts

    async def share(self) -> bool:
        return await self.rebalancer.run_once()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


# Shares.


def test_a_member_gets_its_part_of_the_sorted_queues(instance: FakeInstance) -> None:
    instance.members = {"a:1": ["you", ME], "b:1": [ME, "you"]}
    group = Group(instance)
    assert run(group.share())
    assert group.shares == [(TOPIC, instance.of(TOPIC, "a0", "a1"))]


def test_broadcasting_members_get_all_queues_and_ask_no_broker(instance: FakeInstance) -> None:
    group = Group(instance, model=MessageModel.BROADCASTING)
    assert run(group.share())
    assert group.shares == [(TOPIC, instance.of(TOPIC, "a0", "a1", "b0", "b1"))]
    assert instance.asked == []


def test_one_broker_that_answers_is_enough(instance: FakeInstance) -> None:
    instance.down = {"a:1"}
    group = Group(instance)
    for _ in range(10):
        assert run(group.share())
    assert {len(share) for _, share in group.shares} == {4}


def test_a_member_that_can_ask_no_broker_keeps_its_queues(instance: FakeInstance) -> None:
    instance.down = {"a:1", "b:1"}
    group = Group(instance)
    assert not run(group.share())
    assert group.shares == []


def test_a_topic_without_a_route_does_not_hold_up_the_others(instance: FakeInstance) -> None:
    group = Group(instance)
    group.topics = ["missing", TOPIC]
    assert not run(group.share())
    assert [topic for topic, _ in group.shares] == [TOPIC]
    instance.topics.add("missing")
    assert run(group.share())
    assert [topic for topic, _ in group.shares[1:]] == ["missing", TOPIC]


@pytest.mark.parametrize("known", [["you"], None])
def test_a_broker_without_this_member_gets_a_heartbeat_and_is_asked_again(
    instance: FakeInstance, known: list[str] | None
) -> None:
    instance.members = {"a:1": known, "b:1": known}
    instance.joins_with_the_next_beat = True
    group = Group(instance)
    assert run(group.share())
    assert group.shares == [(TOPIC, instance.of(TOPIC, "a0", "a1"))]


def test_a_member_that_brokers_do_not_count_gives_its_queues_up(instance: FakeInstance) -> None:
    """Other members have them already: keeping them would read them twice."""
    instance.members = {"a:1": ["you"], "b:1": ["you"]}
    group = Group(instance)
    assert run(group.share())
    assert group.shares == [(TOPIC, set())]


def test_a_topic_that_is_unsubscribed_is_given_up_once(instance: FakeInstance) -> None:
    group = Group(instance)
    run(group.share())
    group.topics = []
    assert run(group.share())
    assert run(group.share())
    assert group.shares[1:] == [(TOPIC, set())]


def test_queues_that_could_not_be_taken_are_tried_again(instance: FakeInstance) -> None:
    assert not run(Group(instance, accepts=False).share())


def test_no_queues_are_assigned_after_the_stop(instance: FakeInstance) -> None:
    group = Group(instance)
    group.rebalancer.stop()
    assert run(group.share())
    assert group.shares == []


async def until_shared(group: Group, count: int) -> None:
    async with asyncio.timeout(30):
        while len(group.shares) < count:
            await asyncio.sleep(0.001)


@pytest.mark.proves("client.consumers.rebalance")
def test_queues_are_shared_at_the_start_every_interval_and_when_asked(
    instance: FakeInstance,
) -> None:
    async def scenario() -> None:
        rare, often = Group(instance), Group(instance, interval_ms=1)
        rare.rebalancer.start()
        often.rebalancer.start()
        await until_shared(rare, 1)
        await until_shared(often, 3)
        rare.rebalancer.soon()
        await until_shared(rare, 2)
        rare.rebalancer.stop()
        often.rebalancer.stop()

    run(scenario())


def test_a_round_that_fails_is_followed_by_another(instance: FakeInstance) -> None:
    """An error of the strategy, or of the consumer, must not end the sharing for good."""

    async def scenario() -> None:
        group = Group(instance, interval_ms=1)
        group.failure_count = 2
        group.rebalancer.start()
        await until_shared(group, 1)
        assert group.failure_count == 0
        group.rebalancer.stop()

    run(scenario())


# Progress.


def test_progress_is_written_to_the_queues_own_broker_and_only_if_it_changed(
    instance: FakeInstance,
) -> None:
    async def scenario() -> None:
        offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
        [a], [b] = instance.of(TOPIC, "a1"), instance.of(TOPIC, "b0")
        assert await offsets.read(a) is None
        offsets.update(a, 5)
        offsets.update(b, 6)
        assert await offsets.persist([a]) == {}
        assert instance.stored == {a: 5}
        assert await offsets.persist() == {}
        assert instance.stored == {a: 5, b: 6}
        asked = len(instance.asked)
        assert await offsets.persist() == {}
        assert len(instance.asked) == asked
        await offsets.remove(a)
        assert offsets.known(a) is None
        assert await offsets.read(a) == 5
        assert offsets.snapshot() == {a: 5, b: 6}

    run(scenario())


def test_reading_the_stored_offset_forgets_no_offset_that_is_to_be_written(
    instance: FakeInstance,
) -> None:
    async def scenario() -> None:
        offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
        [a] = instance.of(TOPIC, "a1")
        assert await offsets.stored(a) is None
        instance.stored[a] = 3
        offsets.update(a, 5)
        assert await offsets.stored(a) == 3
        assert await offsets.persist() == {}
        assert await offsets.stored(a) == 5

    run(scenario())


@pytest.mark.proves("client.consumers.progress")
def test_progress_that_was_not_taken_is_written_the_next_time(instance: FakeInstance) -> None:
    async def scenario() -> None:
        offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
        [a], [b] = instance.of(TOPIC, "a1"), instance.of(TOPIC, "b0")
        offsets.update(a, 5)
        offsets.update(b, 6)
        instance.down = {"b:1"}
        failures = await offsets.persist()
        assert list(failures) == [b]
        assert "'g'" in str(failures[b])
        instance.down = set()
        instance.stored.clear()
        assert await offsets.persist() == {}
        assert instance.stored == {b: 6}

    run(scenario())


# Where to start.


@pytest.mark.parametrize(
    ("where", "topic", "place"),
    [
        (FIRST, TOPIC, 0),
        (LAST, TOPIC, 100),
        (TIMESTAMP, TOPIC, 42),
        (FIRST, RETRY, 0),
        (LAST, RETRY, 0),
        (TIMESTAMP, RETRY, 100),
        (ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET, TOPIC, 100),
    ],
)
def test_a_group_without_progress_starts_at_consume_from_where(
    instance: FakeInstance, where: ConsumeFromWhere, topic: str, place: int
) -> None:
    [queue] = instance.of(topic, "a0")
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    started = start_place(cast(ClientInstance, instance), offsets, queue, where, 1_700_000_000_000)
    assert run(started) == place


@pytest.mark.parametrize("where", [FIRST, LAST, TIMESTAMP])
def test_stored_progress_counts_before_consume_from_where(
    instance: FakeInstance, where: ConsumeFromWhere
) -> None:
    [queue] = instance.of(TOPIC, "a0")
    instance.stored[queue] = 7
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    assert run(start_place(cast(ClientInstance, instance), offsets, queue, where, 0)) == 7


def test_progress_that_cannot_be_read_is_no_reason_to_start_elsewhere(
    instance: FakeInstance,
) -> None:
    [queue] = instance.of(TOPIC, "a0")
    instance.down = {"a:1"}
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    with pytest.raises(ClientError, match="is down"):
        run(start_place(cast(ClientInstance, instance), offsets, queue, FIRST, 0))


def test_consume_from_where_has_short_names_and_rocketmqs_names() -> None:
    assert parse_consume_from_where("first") is FIRST
    assert parse_consume_from_where("CONSUME_FROM_TIMESTAMP") is TIMESTAMP
    assert parse_consume_from_where(LAST) is LAST
    with pytest.raises(ConfigError, match="first, last, timestamp"):
        parse_consume_from_where("begin")


@pytest.mark.proves("client.consumers.consume-from")
def test_times_are_read_in_rocketmqs_form() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15)
    wanted_ms = int(moment.timestamp() * 1000)
    for given in ("20240229123015", moment, wanted_ms):
        assert parse_consume_timestamp(given, now_ms=0) == wanted_ms
    assert parse_consume_timestamp(None, now_ms=1_800_000) == 0
    for wrong in ("20240230123015", "2024022912301", "2024022912301x"):
        with pytest.raises(ConfigError, match="yyyyMMddHHmmss"):
            parse_consume_timestamp(wrong, now_ms=0)


def test_a_broker_is_asked_not_to_answer_zero_for_a_new_group(instance: FakeInstance) -> None:
    [queue] = instance.of(TOPIC, "a0")
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    assert run(offsets.stored(queue)) is None
    ((_, code, fields),) = instance.asked
    assert (code, fields["setZeroIfNotFound"]) == (RequestCode.QUERY_CONSUMER_OFFSET, "false")


@pytest.mark.proves("client.start.consume-from-where")
@pytest.mark.parametrize(
    ("table", "stored"),
    [
        (b'{"offsetTable":{"orders@g":{0:0,1:7}}}', 0),
        (b'{"offsetTable":{"orders@g":{1:7}}}', None),
        (b'{"offsetTable":{"orders@h":{0:0}}}', None),
        (b'{"offsetTable":{}}', None),
        (b"no table", 0),
    ],
)
def test_a_zero_of_a_broker_before_5_0_counts_if_its_table_has_it(
    instance: FakeInstance, monkeypatch: pytest.MonkeyPatch, table: bytes, stored: int | None
) -> None:
    """Such a broker answers 0 for a new group too, whatever the request's flags."""
    [queue] = instance.of("orders", "a0")

    async def ask(
        address: str, code: RequestCode, fields: Mapping[str, str], **_: object
    ) -> ReceivedResponse:
        is_table = code is RequestCode.GET_ALL_CONSUMER_OFFSET
        return ReceivedResponse(
            0, 1, "", {} if is_table else {"offset": "0"}, table if is_table else b"", 401, "JAVA"
        )

    monkeypatch.setattr(instance, "ask", ask)
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    assert run(offsets.stored(queue)) == stored


def test_a_queue_that_appears_later_starts_at_its_beginning(instance: FakeInstance) -> None:
    old, new = sorted(instance.of(TOPIC, "a0", "a9"))
    run(instance.route(TOPIC))
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    places = StartPlaces(cast(ClientInstance, instance), offsets, LAST, 0)
    assert run(places.of(new)) == 100
    places.note([TOPIC])
    assert run(places.of(old)) == 100
    assert run(places.of(new)) == 0
    instance.stored[new] = 7
    assert run(places.of(new)) == 7


def test_all_queues_of_a_topic_that_appears_later_start_at_their_beginnings(
    instance: FakeInstance,
) -> None:
    offsets = RemoteOffsets(cast(ClientInstance, instance), "g")
    places = StartPlaces(cast(ClientInstance, instance), offsets, LAST, 0)
    places.note(["later"])
    instance.topics.add("later")
    [queue] = instance.of("later", "a0")
    assert run(places.of(queue)) == 0
