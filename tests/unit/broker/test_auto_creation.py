"""Topics and groups that requests create: every way counts by address, and each has its share."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.clients import ClientHandlers
from contrail.broker.handlers.groups import GroupHandlers
from contrail.broker.handlers.request_modes import RequestModeHandlers
from contrail.broker.handlers.send_back import SendBackHandlers
from contrail.broker.services.auto_creation import creator_of
from contrail.broker.services.groups import Groups
from contrail.broker.services.pull_admission import PullAdmission
from contrail.broker.services.send_admission import SendAdmission
from contrail.broker.services.topics import Topics
from contrail.broker.services.unique_ids import UniqueIds
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.placement import TimerRules
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.recall_seal import KEY_BYTES, RecallKey, RecallSeal
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.topics import TopicTable
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import MessageDraft
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.heartbeat import ConsumerData, Heartbeat, encode_heartbeat
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.frames import SendRequest
from contrail.wire.addresses import outgoing_address
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import Setup, compile_sql, request

NOW_MS = 1_760_000_000_000
LIMIT = 40
SHARE = LIMIT // 4


class _Broker(Setup):
    """A broker whose limits are small, and every way that has something created on it."""

    def __init__(self) -> None:
        super().__init__()
        built_in = len(self.group_table.groups)
        self.settings.change(
            {
                "contrailAutoTopicsMax": str(LIMIT),
                "contrailAutoTopicsPerSecond": "1000",
                # All groups count; those that every broker has are in nobody's share.
                "contrailAutoGroupsMax": str(LIMIT),
            },
            1,
        )
        assert built_in < LIMIT - SHARE
        self.clients = ClientHandlers(
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
        self.sends = SendAdmission(
            self.settings,
            self.topics,
            self.groups,
            QueueLocks(),
            UniqueIds(b"\x7f\x00\x00\x01", self.clock),
            self.clock,
            level_max=18,
            timers=TimerRules(),
            seal=RecallSeal(RecallKey(b"k" * KEY_BYTES, 0), secrets.token_bytes),
        )
        self.pulls = PullAdmission(
            self.settings, self.topics, self.groups, self.consumers, self.filters, self.clock
        )
        self.modes = RequestModeHandlers(
            self.topic_table,
            self.groups,
            SimpleNamespace(set=lambda mode, done: done(None)),  # type: ignore[arg-type]
            self.consumers,
            None,  # type: ignore[arg-type]
            self.settings,
            names=self.topics.names,
            clock=self.clock,
        )
        self.backs = SendBackHandlers(
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            store=self.store,
            deliveries=None,  # type: ignore[arg-type]
            answers=None,  # type: ignore[arg-type]
            stats=BrokerStats("c", started_ms=1),
            clock=self.clock,
            delay_table=[0, 1000],
        )
        self.group_questions = GroupHandlers(
            self.groups, self.offsets, BrokerStats("c", started_ms=1), clock=self.clock
        )

    # Each creates one thing for a peer; a refusal is raised, or is the remark.

    def send(self, name: str, peer: FakePeer) -> str | None:
        self.sends.admit(_send(name), peer.address)
        return None

    def send_retry(self, name: str, peer: FakePeer) -> str | None:
        self.sends.admit(_send(f"%RETRY%{name}"), peer.address)
        return None

    def pull(self, name: str, peer: FakePeer) -> str | None:
        self.pulls.plan(_pull(name), peer.address)
        return None

    def beat(self, name: str, peer: FakePeer) -> str | None:
        body = encode_heartbeat(Heartbeat("c", consumers=(ConsumerData(name),)))
        return self.clients.handle_heartbeat(request(RequestCode.HEART_BEAT, {}, body), peer).remark

    def send_back(self, name: str, peer: FakePeer) -> str | None:
        self.backs._checked_group(name, peer)
        return None

    def set_mode(self, name: str, peer: FakePeer) -> str | None:
        body = json.dumps({"topic": "orders", "consumerGroup": name, "mode": "PULL"}).encode()
        self.modes.handle_set(request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body), peer)
        return None

    def ask_for_settings(self, name: str, peer: FakePeer) -> str | None:
        self.group_questions.handle_get(
            request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}), peer
        )
        return None


def _send(topic: str) -> SendRequest:
    draft = MessageDraft(topic.encode(), 0, b"x", born_host=b"\x7f\x00\x00\x01\x00\x00\x00\x01")
    return SendRequest(
        1, 0, 479, RequestCode.SEND_MESSAGE_V2, b"p", b"TBW102", 4, False, -1, 0, b"", draft
    )


def _pull(group: str) -> Request:
    fields: dict[str, object] = {"consumerGroup": group, "topic": "orders", "queueId": 0}
    fields |= {"queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    fields |= {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    return request(RequestCode.PULL_MESSAGE, fields)


Create = Callable[[_Broker, str, FakePeer], str | None]
WAYS: dict[str, tuple[Create, str]] = {
    "send": (_Broker.send, "contrailAutoTopicsMax"),
    "send to a retry topic": (_Broker.send_retry, "contrailAutoTopicsMax"),
    "pull": (_Broker.pull, "contrailAutoGroupsMax"),
    "heartbeat": (_Broker.beat, "contrailAutoGroupsMax"),
    "message sent back": (_Broker.send_back, "contrailAutoGroupsMax"),
    "question for a group's settings": (_Broker.ask_for_settings, "contrailAutoGroupsMax"),
    "request mode": (_Broker.set_mode, "contrailAutoGroupsMax"),
}


def peer_at(address: str, port: int = 40_000) -> FakePeer:
    return FakePeer(f"{address}:{port}")


def refusal(create: Create, broker: _Broker, name: str, peer: FakePeer) -> str | None:
    try:
        return create(broker, name, peer)
    except RequestRejected as refused:
        return refused.remark


@pytest.mark.proves("broker.auto-creation.by-address")
@pytest.mark.parametrize("way", WAYS)
def test_one_address_gets_its_share_whatever_its_connections(way: str) -> None:
    create, setting = WAYS[way]
    broker = _Broker()
    for number in range(SHARE):
        peer = peer_at("10.0.0.9", 40_000 + number)
        assert refusal(create, broker, f"n{number}", peer) is None
    remark = refusal(create, broker, "one-too-many", peer_at("10.0.0.9", 50_000))
    assert remark is not None
    assert f"{setting}={LIMIT}" in remark
    assert "contrailAutoCreateShare=25" in remark
    assert "10.0.0.9" in remark
    # Others have shares of their own.
    assert refusal(create, broker, "another", peer_at("10.0.0.10")) is None


@pytest.mark.proves("broker.auto-creation.by-address")
@pytest.mark.parametrize("way", WAYS)
def test_all_addresses_together_get_the_limit(way: str) -> None:
    create, setting = WAYS[way]
    broker = _Broker()
    remarks = [
        refusal(create, broker, f"n{number}", peer_at(f"10.0.1.{number}"))
        for number in range(LIMIT + 1)
    ]
    assert remarks[0] is None
    assert f"{setting}={LIMIT}" in (remarks[-1] or "")
    assert len(broker.topic_table.auto_created) <= LIMIT
    assert len(broker.group_table.groups) <= LIMIT


@pytest.mark.proves("broker.auto-creation.by-address")
@pytest.mark.parametrize("way", WAYS)
def test_this_host_may_use_a_whole_limit(way: str) -> None:
    create, _ = WAYS[way]
    own = outgoing_address()
    hosts = ["127.0.0.1", *([own] if own is not None else [])]
    for host in hosts:
        broker = _Broker()
        created = 0
        while refusal(create, broker, f"n{created}", peer_at(host)) is None:
            created += 1
        assert created > SHARE
        remark = refusal(create, broker, "last", peer_at(host)) or ""
        assert re.search(rf"contrailAuto(Topics|Groups)Max={LIMIT}\b", remark), remark
        assert "contrailAutoCreateShare" not in remark


def test_a_name_deleted_or_taken_over_by_an_operator_leaves_the_share() -> None:
    broker = _Broker()
    for number in range(SHARE):
        broker.send(f"t{number}", peer_at("10.0.0.9"))
        broker.pull(f"g{number}", peer_at("10.0.0.9"))
    broker.topics.delete(["t0"], NOW_MS)
    broker.topics.update([TopicConfig("t1", 8, 8)], NOW_MS)
    broker.groups.delete("g0", NOW_MS)
    broker.groups.update([SubscriptionGroupConfig("g1", retry_count_max=3)], NOW_MS)
    for number in range(2):
        broker.send(f"u{number}", peer_at("10.0.0.9"))
        broker.pull(f"h{number}", peer_at("10.0.0.9"))
    assert "contrailAutoCreateShare" in (
        refusal(_Broker.send, broker, "more", peer_at("10.0.0.9")) or ""
    )


def test_the_share_is_a_setting() -> None:
    broker = _Broker()
    broker.settings.change({"contrailAutoCreateShare": "100"}, 1)
    for number in range(LIMIT):
        broker.send(f"t{number}", peer_at("10.0.0.9"))
    assert "contrailAutoTopicsMax" in (
        refusal(_Broker.send, broker, "more", peer_at("10.0.0.9")) or ""
    )


@pytest.mark.proves("broker.auto-creation.by-address")
def test_the_rate_counts_by_address_and_of_this_host_by_connection() -> None:
    config = replace(BrokerConfig(), auto_topics_per_second_max=1, auto_groups_per_second_max=1)
    settings = RuntimeSettings(config)
    topics, groups = Topics(TopicTable(), settings), Groups(GroupTable(), settings)

    def create(name: str, client: str) -> str | None:
        try:
            topics.ensure_for_send(
                name, default_topic="TBW102", queue_count=1, client=client, now_ms=NOW_MS
            )
        except RequestRejected as refused:
            return f"{ResponseCode(refused.code).name}: {refused.remark}"
        return None

    assert create("a", "10.0.0.9:1") is None
    remark = create("b", "10.0.0.9:2")
    assert remark is not None
    assert remark.startswith("SYSTEM_BUSY")
    assert "contrailAutoTopicsPerSecond=1" in remark
    assert create("c", "10.0.0.10:1") is None
    assert create("d", "127.0.0.1:1") is None
    assert create("e", "127.0.0.1:2") is None
    assert groups.find("a", NOW_MS, client="10.0.0.9:1") is not None
    with pytest.raises(RequestRejected, match="contrailAutoGroupsPerSecond=1"):
        groups.require("b", NOW_MS, client="10.0.0.9:2")


def test_the_group_of_a_goodbye_counts_too() -> None:
    broker = _Broker()
    before = len(broker.group_table.groups)
    for number in range(SHARE + 5):
        broker.clients.handle_unregister(
            request(RequestCode.UNREGISTER_CLIENT, {"consumerGroup": f"g{number}"}),
            peer_at("10.0.0.9", 40_000 + number),
        )
    assert len(broker.group_table.groups) == before + SHARE


@pytest.mark.parametrize(
    ("client", "key"),
    [
        ("10.0.0.9:1", "10.0.0.9"),
        ("[2001:db8:1:2:3::4]:5", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:9::9:5", "2001:db8:1:2::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(client: str, key: str) -> None:
    assert creator_of(client).key == key
    assert not creator_of(client).is_this_host


def test_refusals_are_told_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    broker = _Broker()
    for number in range(SHARE + 100):
        refusal(_Broker.send, broker, f"t{number}", peer_at("10.0.0.9"))
    assert caplog.text.count("is not created for") == 1
    broker.clock.advance(ms=60_000)
    refusal(_Broker.send, broker, "later", peer_at("10.0.0.9"))
    assert "and 99 like it" in caplog.text
