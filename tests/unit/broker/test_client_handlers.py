"""Heartbeats, goodbyes and connection lists, and the clients told that a group changed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from contrail.broker.handlers.clients import ClientHandlers
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.model.topic import TopicConfig, retry_topic
from contrail.protocol.bodies.heartbeat import (
    GROUPS_MAX,
    ConsumerData,
    Heartbeat,
    MessageModel,
    decode_heartbeat,
    encode_heartbeat,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Response
from contrail.protocol.json_style import MessageQueue, encode_body
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import Setup, compile_sql, request

NOTICE = (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, b"")


class _Broker(Setup):
    def __init__(self, **settings: bool) -> None:
        super().__init__(**settings)
        self.handlers = ClientHandlers(
            changes=self.changes,
            producers=self.producers,
            consumers=self.consumers,
            groups=self.groups,
            topics=self.topics,
            settings=self.settings,
            compile_sql=compile_sql,
            clock=self.clock,
            names=self.topics.names,
        )

    def beat(self, peer: FakePeer, heartbeat: Heartbeat, *, version: int = 479) -> Response:
        body = encode_heartbeat(heartbeat)
        wanted = request(RequestCode.HEART_BEAT, {}, body, version=version)
        return self.handlers.handle_heartbeat(wanted, peer)

    def join(self, peer: FakePeer, client_id: str, *topics: str) -> Response:
        return self.beat(peer, _consumer(client_id, *topics))


def _consumer(
    client_id: str, *topics: str, fingerprint: int = 0, without_sub: bool = False
) -> Heartbeat:
    subscriptions = tuple(SubscriptionData(topic, sub_version=1) for topic in topics)
    data = ConsumerData("g", subscriptions=() if without_sub else subscriptions)
    return Heartbeat(client_id, (), (data,), fingerprint, without_sub)


def _refusal(code: int, call: Callable[[], object]) -> str:
    with pytest.raises(RequestRejected) as caught:
        call()
    assert caught.value.code == code
    return caught.value.remark


@pytest.mark.proves("broker.clients.heartbeat-v1")
def test_a_heartbeat_makes_the_group_its_retry_topic_and_its_members() -> None:
    broker, peer = _Broker(), FakePeer()
    response = broker.beat(
        peer, dataclasses.replace(_consumer("c1", "orders"), producer_groups=("p",))
    )
    assert (response.code, response.fields) == (
        0,
        {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"},
    )
    assert broker.group_table.get("g") == SubscriptionGroupConfig("g")
    topic = broker.topic_table.get(retry_topic("g"))
    assert topic is not None
    assert (topic.read_queue_count, topic.order, topic.sys_flag) == (1, False, 0)
    assert broker.consumers.groups["g"].client_ids() == ["c1"]
    assert [channel.client_id for channel in broker.producers.channels("p")] == ["c1"]


def test_the_retry_topic_follows_the_groups_settings_and_its_ordered_topics() -> None:
    broker = _Broker()
    broker.group_table.put(SubscriptionGroupConfig("g", retry_queue_count=4), 1)
    broker.topic_table.put(TopicConfig("orders", order=True), 1)
    data = ConsumerData("g", subscriptions=(SubscriptionData("orders"),), unit_mode=True)
    peer = FakePeer()
    broker.beat(peer, Heartbeat("c1", (), (data,), fingerprint=9))
    topic = broker.topic_table.get(retry_topic("g"))
    assert topic is not None
    assert (topic.read_queue_count, topic.order, topic.sys_flag) == (4, True, 2)
    broker.beat(peer, _consumer("c1", fingerprint=9, without_sub=True))
    assert broker.topic_table.get(retry_topic("g")) == topic, "a short heartbeat changes nothing"


def test_a_group_that_may_not_be_created_is_skipped_and_still_answered() -> None:
    broker, peer = _Broker(auto_create_group=False), FakePeer()
    assert broker.join(peer, "c1", "orders").code == 0
    assert broker.consumers.find("g") is None
    assert broker.topic_table.get(retry_topic("g")) is None


@pytest.mark.proves("broker.clients.group-changes")
def test_every_client_of_a_group_is_told_of_a_new_one() -> None:
    broker, first, second = _Broker(), FakePeer(), FakePeer()
    broker.join(first, "c1", "orders")
    broker.join(second, "c2", "orders")
    assert first.notified == [NOTICE, NOTICE]
    assert second.notified == [NOTICE]
    broker.join(second, "c2", "orders")
    assert len(second.notified) == 1, "nothing changed"
    broker.join(second, "c2", "orders", "bills")
    assert (len(first.notified), len(second.notified)) == (3, 2)


@pytest.mark.parametrize("switch", ["broker", "group", "broadcasting"])
def test_nobody_is_told_when_it_is_switched_off(switch: str) -> None:
    broker, first, second = (
        _Broker(notify_consumer_ids_changed=switch != "broker"),
        FakePeer(),
        FakePeer(),
    )
    if switch == "group":
        config = SubscriptionGroupConfig("g", notify_consumer_ids_changed_enable=False)
        broker.group_table.put(config, 1)
    model = MessageModel.BROADCASTING if switch == "broadcasting" else MessageModel.CLUSTERING
    for peer, name in ((first, "c1"), (second, "c2")):
        broker.beat(peer, Heartbeat(name, (), (ConsumerData("g", message_model=model),)))
    broker.handlers.handle_unregister(
        request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"}), second
    )
    assert first.notified == []


@pytest.mark.proves("broker.clients.heartbeat-v2")
def test_a_second_form_heartbeat_says_whether_the_fingerprint_changed() -> None:
    broker, first, second = _Broker(), FakePeer(), FakePeer()
    full = broker.beat(first, _consumer("c1", "orders", fingerprint=5))
    short = broker.beat(first, _consumer("c1", fingerprint=5, without_sub=True))
    other = broker.beat(second, _consumer("c2", "orders", fingerprint=6))
    for response, changed in ((full, "false"), (short, "false"), (other, "true")):
        assert response.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": changed}
    assert list(broker.consumers.groups["g"].subscriptions) == ["orders"]


@pytest.mark.proves("broker.clients.heartbeat-v2")
def test_a_short_heartbeat_to_a_restarted_broker_is_asked_for_the_full_one() -> None:
    response = _Broker().beat(FakePeer(), _consumer("c1", fingerprint=5, without_sub=True))
    assert response.fields is not None
    assert response.fields["IS_SUB_CHANGE"] == "true"


def test_without_sub_counts_only_with_a_fingerprint() -> None:
    broker, peer = _Broker(), FakePeer()
    broker.join(peer, "c1", "orders")
    broker.beat(peer, _consumer("c1", without_sub=True))
    assert dict(broker.consumers.groups["g"].subscriptions) == {}


@pytest.mark.proves("broker.pull.class-filters")
def test_a_class_filter_is_refused_and_the_clients_other_groups_go_on() -> None:
    broker, peer = _Broker(), FakePeer()
    filtered = ConsumerData(
        "g", subscriptions=(SubscriptionData("orders", class_filter_mode=True),)
    )
    heartbeat = Heartbeat("c1", ("p",), (filtered, ConsumerData("h")))
    remark = _refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, lambda: broker.beat(peer, heartbeat))
    assert "'orders' filters by a Java class" in remark
    assert list(broker.consumers.groups) == ["h"]
    assert list(broker.producers.groups) == ["p"]


def test_an_sql_filter_lives_and_dies_with_its_group() -> None:
    broker, peer = _Broker(), FakePeer()
    subscription = SubscriptionData("orders", "a > 1", sub_version=3, expression_type=SQL92)
    broker.beat(peer, Heartbeat("c1", (), (ConsumerData("g", subscriptions=(subscription,)),)))
    found = broker.filters.get("orders", "g")
    assert found is not None
    assert (found.expression, found.is_dead) == ("a > 1", False)
    broker.changes.connection_closed(peer)
    found = broker.filters.get("orders", "g")
    assert found is not None
    assert found.is_dead


def test_a_filter_that_does_not_compile_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    broker = _Broker()
    subscription = SubscriptionData("orders", "bad", sub_version=3, expression_type=SQL92)
    data = ConsumerData("g", subscriptions=(subscription,))
    assert broker.beat(FakePeer(), Heartbeat("c1", (), (data,))).code == 0
    assert "is not kept: it is bad" in caplog.text
    assert broker.filters.get("orders", "g") is None


@pytest.mark.proves("broker.clients.unregister")
def test_unregistering_removes_the_client_and_tells_the_others() -> None:
    broker, first, second = _Broker(), FakePeer(), FakePeer()
    broker.beat(first, dataclasses.replace(_consumer("c1", "orders"), producer_groups=("p",)))
    broker.join(second, "c2", "orders")
    second.notified.clear()
    fields = {"clientID": "c1", "producerGroup": "p", "consumerGroup": "g"}
    goodbye = request(RequestCode.UNREGISTER_CLIENT, fields)
    assert broker.handlers.handle_unregister(goodbye, first) == Response()
    assert broker.handlers.handle_unregister(goodbye, first) == Response()
    assert second.notified == [NOTICE]
    assert broker.consumers.groups["g"].client_ids() == ["c2"]
    assert dict(broker.producers.groups) == {}


def test_a_closed_connection_is_forgotten_and_the_others_are_told() -> None:
    broker, first, second = _Broker(), FakePeer(), FakePeer()
    broker.beat(first, dataclasses.replace(_consumer("c1", "orders"), producer_groups=("p",)))
    broker.join(second, "c2", "orders")
    second.notified.clear()
    broker.changes.connection_closed(first)
    assert second.notified == [NOTICE]
    assert dict(broker.producers.groups) == {}
    assert broker.consumers.groups["g"].client_ids() == ["c2"]


def test_silent_clients_are_dropped_after_two_minutes_and_the_others_told() -> None:
    broker, silent, producer, alive = _Broker(), FakePeer(), FakePeer(), FakePeer()
    broker.join(silent, "c1", "orders")
    broker.beat(producer, Heartbeat("c3", ("p",)))
    broker.clock.advance(ms=60_000)
    broker.join(alive, "c2", "orders")
    alive.notified.clear()
    broker.clock.advance(ms=60_001)
    broker.changes.expire(broker.clock.now_ms())
    assert silent.close_reasons == producer.close_reasons == ["heartbeats_stopped"]
    assert not alive.is_closed
    assert alive.notified == [NOTICE]


@pytest.mark.proves("broker.clients.consumer-list")
def test_the_consumer_list_has_one_id_per_connection_or_is_an_error() -> None:
    broker = _Broker()
    wanted = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    ask = broker.handlers.handle_consumer_list
    assert "'g'" in _refusal(ResponseCode.SYSTEM_ERROR, lambda: ask(wanted, FakePeer()))
    broker.join(FakePeer(), "c1")
    broker.join(FakePeer(), "c2")
    assert ask(wanted, FakePeer()).body == b'{"consumerIdList":["c1","c2"]}'


@pytest.mark.proves("broker.clients.connections")
def test_consumer_connections_are_listed_or_offline() -> None:
    broker = _Broker()
    wanted = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    ask = broker.handlers.handle_consumer_connections
    _refusal(ResponseCode.CONSUMER_NOT_ONLINE, lambda: ask(wanted, FakePeer()))
    broker.join(FakePeer("10.0.0.9:5123"), "c1", "orders")
    body = ask(wanted, FakePeer()).body
    assert isinstance(body, bytes)
    answer = json.loads(body)
    assert answer["connectionSet"] == [
        {"clientAddr": "10.0.0.9:5123", "clientId": "c1", "language": "JAVA", "version": 479}
    ]
    assert list(answer["subscriptionTable"]) == ["orders"]


@pytest.mark.proves("broker.clients.connections")
def test_producer_connections_are_listed_or_unknown() -> None:
    broker = _Broker()
    wanted = request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    ask = broker.handlers.handle_producer_connections
    _refusal(ResponseCode.SYSTEM_ERROR, lambda: ask(wanted, FakePeer()))
    broker.beat(FakePeer("10.0.0.9:5123"), Heartbeat("c1", ("p",)), version=401)
    body = ask(wanted, FakePeer()).body
    assert isinstance(body, bytes)
    assert b'"version":401' in body
    every = broker.handlers.handle_all_producers(
        request(RequestCode.GET_ALL_PRODUCER_INFO), FakePeer()
    )
    assert every.body == (
        b'{"data":{"p":[{"clientId":"c1","language":"JAVA","lastUpdateTimestamp":1000000,'
        b'"remoteIP":"/10.0.0.9:5123","version":401}]}}'
    )


def _check(broker: _Broker, subscription: SubscriptionData | None) -> Response:
    fields = None if subscription is None else subscription.to_fields()
    body = encode_body({"clientId": "c1", "group": "g", "subscriptionData": fields})
    wanted = request(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
    return broker.handlers.handle_check_config(wanted, FakePeer())


def test_a_good_subscription_passes_the_check() -> None:
    broker = _Broker()
    for subscription in (
        None,
        SubscriptionData("orders", "TagA"),
        SubscriptionData("orders", "a > 1", expression_type=SQL92),
    ):
        assert _check(broker, subscription) == Response()


@pytest.mark.parametrize(
    ("subscription", "reason"),
    [
        (SubscriptionData("orders", "bad", expression_type=SQL92), "it is bad"),
        (SubscriptionData("orders", "a", expression_type="XPATH"), "'XPATH' is unknown"),
        (SubscriptionData("orders", class_filter_mode=True), "filters by a Java class"),
    ],
)
def test_a_bad_subscription_fails_the_check(subscription: SubscriptionData, reason: str) -> None:
    remark = _refusal(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, lambda: _check(_Broker(), subscription)
    )
    assert reason in remark


def test_sql_is_refused_where_the_property_filter_is_off() -> None:
    broker = _Broker(property_filter=False)
    subscription = SubscriptionData("orders", "a > 1", expression_type=SQL92)
    remark = _refusal(ResponseCode.SYSTEM_ERROR, lambda: _check(broker, subscription))
    assert "enablePropertyFilter" in remark


def test_the_table_names_every_code_of_the_family() -> None:
    assert sorted(_Broker().handlers.table()) == [34, 35, 38, 46, 203, 204, 328]


def _many(client_id: str, names: range) -> Heartbeat:
    consumers = tuple(ConsumerData(f"g{number}") for number in names)
    return Heartbeat(client_id, tuple(f"p{number}" for number in names), consumers)


def test_a_heartbeat_of_many_groups_is_a_line_or_two_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, peer = _Broker(), FakePeer()
    with caplog.at_level("INFO"):
        broker.beat(peer, _many("c1", range(GROUPS_MAX)))
        broker.changes.connection_closed(peer)
    assert len(caplog.records) == 3
    assert "1000 groups ('g0', 'g1', 'g2', 'g3', 'g4', ...)" in caplog.text
    assert broker.topic_table.get(retry_topic(f"g{GROUPS_MAX - 1}")) is not None
    assert not broker.consumers.groups


def test_a_heartbeat_of_too_many_groups_is_refused_whole() -> None:
    broker, peer = _Broker(), FakePeer()
    remark = _refusal(
        ResponseCode.SYSTEM_ERROR, lambda: broker.beat(peer, _many("c1", range(GROUPS_MAX + 1)))
    )
    assert "has 1001 entries, at most 1000 are taken" in remark
    assert broker.group_table.get("g0") is None
    assert not broker.producers.groups


def test_groups_beyond_the_limit_are_left_out_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, peer = _Broker(), FakePeer()
    limit = len(broker.group_table.groups) + 2
    broker.settings.change({"contrailAutoGroupsMax": str(limit)}, 1)
    broker.beat(peer, _many("c1", range(2)))
    for _ in range(2):
        response = broker.beat(peer, _many("c1", range(4)))
        assert response.code == 0
        assert response.remark is not None
        assert response.remark.startswith("not taken: 2 groups ('g2', 'g3'): consumer group 'g2' ")
        assert f"contrailAutoGroupsMax={limit}" in response.remark
    assert set(broker.consumers.groups) == {"g0", "g1"}
    assert broker.topic_table.get(retry_topic("g2")) is None
    assert caplog.text.count("contrailAutoGroupsMax") == 1


def test_a_connection_keeps_its_producer_groups_but_gets_no_more_than_it_may() -> None:
    broker, peer = _Broker(), FakePeer()
    names = tuple(f"p{number}" for number in range(GROUPS_MAX))
    broker.beat(peer, Heartbeat("c1", names))
    broker.clock.advance(ms=5000)
    broker.beat(peer, Heartbeat("c1", ("another", "p0")))
    assert broker.producers.group_count_of(peer) == GROUPS_MAX
    assert "another" not in broker.producers.groups
    (channel,) = broker.producers.channels("p0")
    assert channel.last_heartbeat_ms == broker.clock.now_ms()


# Locks of clients that are gone.


@pytest.mark.proves("client.failover.lock-end")
def test_the_members_are_told_when_a_lock_of_one_that_is_gone_ends() -> None:
    broker, gone, stays = _Broker(), FakePeer(), FakePeer("10.0.0.2:5000")
    queue = MessageQueue("orders", "broker-a", 0)
    answer = broker.beat(gone, dataclasses.replace(_consumer("c1", "orders"), goes_on_ms=5_000))
    assert answer.fields["contrailGoesOnMs"] == "5000"
    broker.join(stays, "c2", "orders")
    start_ms = broker.clock.now_ms()
    assert broker.locks.lock("g", [queue], "c1", start_ms) == [queue]
    broker.changes.connection_closed(gone)
    told = len(stays.notified)
    broker.changes.end_locks_of_gone(start_ms + 5_000)
    assert len(stays.notified) == told
    broker.changes.end_locks_of_gone(start_ms + 5_001)
    assert stays.notified[told:] == [NOTICE]
    broker.changes.end_locks_of_gone(start_ms + 6_000)
    assert len(stays.notified) == told + 1


def test_an_answer_says_nothing_of_what_was_not_announced() -> None:
    assert "contrailGoesOnMs" not in _Broker().join(FakePeer(), "c1", "orders").fields


@pytest.mark.parametrize("given", [-1, 1, 999, 60_001, 1 << 40, "soon", [5_000]])
def test_a_time_that_no_client_may_announce_is_refused_by_name(given: object) -> None:
    body = encode_body({"clientID": "c1", "contrailGoesOnMs": given})
    with pytest.raises(RequestRejected, match="contrailGoesOnMs"):
        decode_heartbeat(body, now_ms=0)
