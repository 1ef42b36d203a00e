"""The NameServer's answer to each request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from contrail.clock import ManualClock
from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.topic import TopicConfig
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.handlers import (
    KvChanges,
    KvHandlers,
    RegistrationHandlers,
    RouteHandlers,
    SettingsChanges,
    SettingsHandlers,
)
from contrail.nameserver.state.kv import KvTable
from contrail.nameserver.state.routes import RouteTables
from contrail.nameserver.state.settings import RuntimeSettings
from contrail.protocol.bodies.registration import RegisterBrokerBody, body_crc32
from contrail.protocol.bodies.routes import (
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from contrail.protocol.bodies.tables import KVTable, TopicList
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ANNOUNCED_VERSION, Request, Response
from contrail.protocol.json_style import encode_body
from contrail.runtime.durable_changes import Done, DurableChanges
from contrail.wire.peer import LATER
from tests.fakes.peers import FakePeer

VERSION = DataVersion(0, 3, 17)
TOPICS = {
    "t1": TopicConfig("t1", 8, 4),
    "unit": TopicConfig("unit", sys_flag=1),
    "sub": TopicConfig("sub", sys_flag=2),
    "both": TopicConfig("both", sys_flag=3),
}
BODY = RegisterBrokerBody(topics=TOPICS, data_version=VERSION)
BROKER = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C"}
REGISTER = BROKER | {"haServerAddr": "10.0.0.1:10912", "brokerId": "0"}

K = TypeVar("K")
V = TypeVar("V")


class FakeSaver:
    """Saves when the test calls ``write``, or fails with ``problem``."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._waiting: list[Done] = []
        self.saved: list[bytes] = []
        self.problem: OSError | None = None

    def when_written(self, done: Done) -> None:
        self._waiting.append(done)

    def write(self) -> None:
        self.saved.append(self._render())
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(self.problem)


def planned(changes: DurableChanges[K, V]) -> Iterator[tuple[K, V | None]]:
    return (entry for change in changes.planned() for entry in change.entries.items())


class Nameserver:
    """All handlers over one set of tables, called as the dispatcher calls them."""

    def __init__(self, **settings: str) -> None:
        files = {"kvConfigPath": "/kv", "configStorePath": "/config"}
        self.clock = ManualClock()
        self.peer = FakePeer()
        self.settings = RuntimeSettings(NameServerConfig.from_properties(files | settings))
        self.tables, self.kv = RouteTables(), KvTable()
        self.kv_saver = FakeSaver(lambda: self.kv.encode(planned(self.kv_changes)))
        self.kv_changes: KvChanges = DurableChanges(self.kv_saver.when_written)
        self.settings_saver = FakeSaver(
            lambda: repr(sorted(planned(self.setting_changes))).encode()
        )
        self.setting_changes: SettingsChanges = DurableChanges(self.settings_saver.when_written)
        shared = (self.tables, self.kv, self.settings, self.clock)
        self.handlers = {
            **RegistrationHandlers(*shared).table(),
            **RouteHandlers(*shared).table(),
            **KvHandlers(self.kv, self.kv_changes).table(),
            **SettingsHandlers(self.settings, self.setting_changes).table(),
        }

    def ask(
        self, code: int, body: bytes = b"", *, version: int = ANNOUNCED_VERSION, **fields: str
    ) -> Response:
        request = Request(code, 1, fields, body, version=version)
        answer = self.handlers[code](request, self.peer)
        if answer is LATER:
            assert self.peer.replies == [], "nothing is written yet"
            saver = self.settings_saver if self.setting_changes.planned_count else self.kv_saver
            saver.write()
            return self.peer.replies.pop()[1]
        assert isinstance(answer, Response)
        return answer

    def refusal(self, code: int, body: bytes = b"", **fields: str) -> RequestRejected:
        with pytest.raises(RequestRejected) as caught:
            self.ask(code, body, **fields)
        return caught.value

    def register(self, body: RegisterBrokerBody = BODY, **fields: str) -> Response:
        return self.ask(RequestCode.REGISTER_BROKER, body.encode(), **(REGISTER | fields))

    def topics(self, code: int, **fields: str) -> frozenset[str]:
        body = self.ask(code, **fields).body
        assert isinstance(body, bytes)
        return TopicList.decode(body).topics

    def route(self, topic: str = "t1", **fields: str) -> TopicRouteData:
        body = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **fields).body
        assert isinstance(body, bytes)
        return TopicRouteData.decode(body)


@pytest.fixture
def nameserver() -> Nameserver:
    return Nameserver()


def test_every_code_of_a_nameserver_has_a_handler(nameserver: Nameserver) -> None:
    assert sorted(nameserver.handlers) == [
        100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313,
        318, 319, 322, 327, 901, 904,
    ]  # fmt: skip


@pytest.mark.proves("nameserver.routes.body-forms")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_is_taken_in_both_forms_and_checked(
    nameserver: Nameserver, compressed: bool
) -> None:
    body = BODY.encode(compressed=compressed)
    fields = REGISTER | {"compressed": str(compressed), "bodyCrc32": str(body_crc32(body))}
    assert nameserver.ask(RequestCode.REGISTER_BROKER, body, **fields) == Response(fields={})
    assert nameserver.route().queues == (QueueData("broker-a", 8, 4, 6),)


def test_a_damaged_registration_body_is_refused(nameserver: Nameserver) -> None:
    body = BODY.encode()
    fields = REGISTER | {"bodyCrc32": str(body_crc32(body))}
    refusal = nameserver.refusal(RequestCode.REGISTER_BROKER, body + b" ", **fields)
    assert refusal.code == ResponseCode.SYSTEM_ERROR and "CRC" in refusal.remark
    assert nameserver.tables.cluster_info().brokers == {}


@pytest.mark.parametrize("name", ["brokerName", "brokerAddr", "clusterName", "brokerId"])
def test_a_registration_without_an_identity_is_refused(nameserver: Nameserver, name: str) -> None:
    fields = {key: value for key, value in REGISTER.items() if key != name}
    assert name in nameserver.refusal(RequestCode.REGISTER_BROKER, **fields).remark
    assert (
        name in nameserver.refusal(RequestCode.REGISTER_BROKER, **(REGISTER | {name: " "})).remark
    )


def test_a_slave_gets_the_address_of_its_master(nameserver: Nameserver) -> None:
    nameserver.register()
    answer = nameserver.register(brokerAddr="10.0.0.2:10911", brokerId="1")
    assert answer.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


def test_the_heartbeat_timeout_of_the_header_is_kept(nameserver: Nameserver) -> None:
    nameserver.register(heartbeatTimeoutMillis="1000")
    assert nameserver.tables.expire(nameserver.clock.now_ms() + 1000) == []
    assert len(nameserver.tables.expire(nameserver.clock.now_ms() + 1001)) == 1


@pytest.mark.proves("nameserver.routes.order-config")
def test_a_registering_broker_gets_the_order_config_unless_the_setting_is_off() -> None:
    nameserver = Nameserver()
    assert nameserver.register().body == b""
    nameserver.kv.put("ORDER_TOPIC_CONFIG", "t1", "broker-a:4")
    assert nameserver.register().body == KVTable({"t1": "broker-a:4"}).encode()
    nameserver.settings.change({"returnOrderTopicConfigToBroker": "false"})
    assert nameserver.register().body == b""


def test_a_registration_removes_missing_topics_when_the_setting_is_on() -> None:
    nameserver = Nameserver(deleteTopicWithBrokerRegistration="true")
    nameserver.register()
    nameserver.register(RegisterBrokerBody({"t1": TOPICS["t1"]}, DataVersion(0, 4, 18)))
    assert nameserver.tables.topics.topics() == {"t1"}


@pytest.mark.proves("nameserver.routes.data-version")
def test_a_data_version_question_says_whether_to_register_and_counts_as_a_heartbeat(
    nameserver: Nameserver,
) -> None:
    same = encode_body(VERSION.to_fields())
    unknown = nameserver.ask(RequestCode.QUERY_DATA_VERSION, same, brokerId="0", **BROKER)
    assert unknown == Response(fields={"changed": "true"})
    nameserver.register()
    nameserver.clock.advance(ms=100_000)
    known = nameserver.ask(RequestCode.QUERY_DATA_VERSION, same, brokerId="0", **BROKER)
    assert known == Response(fields={"changed": "false"}, body=same)
    older = encode_body(DataVersion(0, 2, 17).to_fields())
    changed = nameserver.ask(RequestCode.QUERY_DATA_VERSION, older, brokerId="0", **BROKER)
    assert changed == Response(fields={"changed": "true"}, body=same)
    empty = nameserver.ask(RequestCode.QUERY_DATA_VERSION, brokerId="0", **BROKER)
    assert empty.fields == {"changed": "true"}
    assert nameserver.tables.expire(nameserver.clock.now_ms() + 120_000) == []


def test_a_heartbeat_keeps_a_broker_alive(nameserver: Nameserver) -> None:
    nameserver.register()
    nameserver.clock.advance(ms=100_000)
    assert nameserver.ask(RequestCode.BROKER_HEARTBEAT, **BROKER) == Response()
    assert nameserver.tables.expire(nameserver.clock.now_ms() + 120_000) == []


@pytest.mark.proves("nameserver.routes.unregister")
def test_an_unregistered_broker_leaves_all_routes_at_once(nameserver: Nameserver) -> None:
    nameserver.register()
    assert nameserver.ask(RequestCode.UNREGISTER_BROKER, brokerId="0", **BROKER) == Response()
    refusal = nameserver.refusal(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t1")
    assert refusal.code == ResponseCode.TOPIC_NOT_EXIST and "t1" in refusal.remark


def test_a_topic_can_be_registered_alone_for_a_known_broker(nameserver: Nameserver) -> None:
    nameserver.register()
    for name, queues in (("new", QueueData("broker-a", 1, 1, 6)), ("x", QueueData("?", 1, 1, 6))):
        body = TopicRouteData(queues=(queues,)).encode()
        nameserver.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic=name)
    nameserver.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, topic="nothing")
    assert nameserver.tables.topics.topics() == {*TOPICS, "new"}


def test_the_members_of_a_broker_name_are_listed(nameserver: Nameserver) -> None:
    nameserver.register()
    answer = nameserver.ask(
        RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="broker-a"
    )
    expected = BrokerMemberGroup("C", "broker-a", {0: "10.0.0.1:10911"})
    assert answer.body == expected.encode()


@pytest.mark.proves("nameserver.routes.json-styles")
@pytest.mark.parametrize(
    ("version", "fields", "is_strict"),
    [
        (400, {}, False),
        (401, {}, True),
        (479, {}, True),
        (300, {"acceptStandardJsonOnly": "true"}, True),
        (479, {"__ZONE_MODE": "true", "__ZONE_NAME": "z"}, False),
        (479, {"__ZONE_MODE": "true", "__ZONE_NAME": " "}, True),
        (479, {"__ZONE_NAME": "z"}, True),
    ],
)
def test_a_route_is_written_in_the_style_its_reader_wants(
    nameserver: Nameserver, version: int, fields: dict[str, str], is_strict: bool
) -> None:
    nameserver.register(__ZONE_NAME="z")
    answer = nameserver.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, version=version, topic="t1", **fields
    )
    assert isinstance(answer.body, bytes)
    assert (b'{"0":"10.0.0.1:10911"}' in answer.body) is is_strict
    assert TopicRouteData.decode(answer.body).brokers[0].zone == "z"


@pytest.mark.proves("nameserver.routes.zones")
def test_a_zone_sees_no_brokers_of_another(nameserver: Nameserver) -> None:
    nameserver.register(__ZONE_NAME="z")
    route = nameserver.route(__ZONE_MODE="true", __ZONE_NAME="elsewhere")
    assert (route.brokers, route.queues) == ((), ())


@pytest.mark.proves("nameserver.routes.order-config")
def test_the_order_config_is_in_routes_only_when_the_setting_is_on() -> None:
    nameserver = Nameserver()
    nameserver.register()
    nameserver.kv.put("ORDER_TOPIC_CONFIG", "t1", "broker-a:4")
    assert nameserver.route().order_config is None
    nameserver.settings.change({"orderMessageEnable": "true"})
    assert nameserver.route().order_config == "broker-a:4"
    assert nameserver.route("sub").order_config is None


def test_routes_wait_for_brokers_after_a_start_when_the_setting_is_on() -> None:
    nameserver = Nameserver(needWaitForService="true", waitSecondsForService="45")
    nameserver.register()
    nameserver.clock.advance(ms=44_999)
    refusal = nameserver.refusal(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t1")
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    nameserver.clock.advance(ms=1)
    assert nameserver.route().queues


def test_an_acting_master_is_shown_when_the_setting_is_on() -> None:
    nameserver = Nameserver()
    nameserver.register(brokerId="1", enableActingMaster="true")
    assert set(nameserver.route().brokers[0].addresses) == {1}
    nameserver.settings.change({"supportActingMaster": "true"})
    assert set(nameserver.route().brokers[0].addresses) == {0}
    assert nameserver.route().brokers[0].acting_master_enabled


@pytest.mark.proves("nameserver.routes.cluster-info")
def test_cluster_info_has_unquoted_ids_for_every_version(nameserver: Nameserver) -> None:
    nameserver.register()
    body = nameserver.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body
    assert isinstance(body, bytes)
    assert b'{0:"10.0.0.1:10911"}' in body
    assert ClusterInfo.decode(body).clusters == {"C": frozenset({"broker-a"})}


@pytest.mark.proves("nameserver.routes.write-permission")
def test_write_permission_is_taken_and_given_back(nameserver: Nameserver) -> None:
    nameserver.register()
    wiped = nameserver.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.fields == {"wipeTopicCount": "4"}
    assert nameserver.route().queues[0].perm == 4
    given = nameserver.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert given.fields == {"addTopicCount": "4"}
    assert nameserver.route().queues[0].perm == 6


@pytest.mark.proves("nameserver.routes.topic-lists")
def test_topic_lists_answer_by_cluster_and_by_unit(nameserver: Nameserver) -> None:
    nameserver.register()
    everything = frozenset(TOPICS)
    assert nameserver.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == everything
    assert nameserver.topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C") == everything
    assert nameserver.topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="D") == frozenset()
    assert nameserver.topics(RequestCode.GET_UNIT_TOPIC_LIST) == {"unit", "both"}
    assert nameserver.topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"sub", "both"}
    assert nameserver.topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"sub"}


@pytest.mark.proves("nameserver.routes.topic-lists")
def test_system_topics_are_the_names_of_clusters_and_brokers(nameserver: Nameserver) -> None:
    empty = nameserver.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body
    assert empty == b'{"topicList":[]}'
    nameserver.register()
    body = nameserver.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body
    assert isinstance(body, bytes)
    assert TopicList.decode(body) == TopicList.of(["C", "broker-a"], "10.0.0.1:10911")


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (206, "enableAllTopicList"),
        (224, "enableTopicList"),
        (311, "enableTopicList"),
        (312, "enableTopicList"),
        (313, "enableTopicList"),
    ],
)
def test_topic_lists_can_be_turned_off(code: int, setting: str) -> None:
    nameserver = Nameserver(**{setting: "false"})
    refusal = nameserver.refusal(code, cluster="C")
    assert refusal.code == ResponseCode.SYSTEM_ERROR and setting in refusal.remark


def test_a_topic_is_deleted_on_request(nameserver: Nameserver) -> None:
    nameserver.register()
    nameserver.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="t1", clusterName="D")
    assert nameserver.route().queues
    nameserver.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="t1", clusterName="C")
    nameserver.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="sub")
    assert nameserver.tables.topics.topics() == {"unit", "both"}


@pytest.mark.proves("nameserver.routes.kv-config")
def test_kv_values_are_saved_before_they_are_acknowledged(nameserver: Nameserver) -> None:
    entry = {"namespace": "n", "key": "k"}
    assert nameserver.ask(RequestCode.PUT_KV_CONFIG, value="v", **entry) == Response()
    assert json.loads(nameserver.kv_saver.saved[-1]) == {"configTable": {"n": {"k": "v"}}}
    assert nameserver.ask(RequestCode.GET_KV_CONFIG, **entry).fields == {"value": "v"}
    listed = nameserver.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n").body
    assert listed == b'{"table":{"k":"v"}}'
    assert nameserver.ask(RequestCode.DELETE_KV_CONFIG, **entry) == Response()
    assert json.loads(nameserver.kv_saver.saved[-1]) == {"configTable": {"n": {}}}
    assert nameserver.refusal(RequestCode.GET_KV_CONFIG, **entry).code == 22


def test_an_unknown_namespace_is_not_found(nameserver: Nameserver) -> None:
    refusal = nameserver.refusal(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
    assert refusal.code == ResponseCode.QUERY_NOT_FOUND


def test_a_kv_value_that_cannot_be_saved_is_not_acknowledged(nameserver: Nameserver) -> None:
    nameserver.kv_saver.problem = OSError(28, "No space left on device")
    answer = nameserver.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None and "No space left" in answer.remark
    assert nameserver.refusal(RequestCode.GET_KV_CONFIG, namespace="n", key="k").code == 22


def test_a_setting_that_cannot_be_saved_is_not_in_force(nameserver: Nameserver) -> None:
    nameserver.settings_saver.problem = OSError(5, "Input/output error")
    answer = nameserver.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not nameserver.settings.config.order_config_in_routes


def test_settings_are_shown_changed_and_saved(nameserver: Nameserver) -> None:
    before = nameserver.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert isinstance(before, bytes) and b"\norderMessageEnable=false\n" in before
    assert nameserver.ask(RequestCode.UPDATE_NAMESRV_CONFIG) == Response()
    assert nameserver.settings_saver.saved == []
    nameserver.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
    after = nameserver.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert isinstance(after, bytes) and b"\norderMessageEnable=true\n" in after
    assert nameserver.settings_saver.saved == [b"[('orderMessageEnable', 'true')]"]


@pytest.mark.proves("nameserver.routes.settings")
def test_a_forbidden_setting_changes_nothing(nameserver: Nameserver) -> None:
    refusal = nameserver.refusal(
        RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\nkvConfigPath=/etc/passwd\n"
    )
    assert refusal.code == ResponseCode.NO_PERMISSION and "kvConfigPath" in refusal.remark
    assert nameserver.settings.config.kv_config_path == Path("/kv")
    assert not nameserver.settings.config.order_config_in_routes
    assert nameserver.settings_saver.saved == []


def test_settings_that_are_no_text_are_refused(nameserver: Nameserver) -> None:
    assert "UTF-8" in nameserver.refusal(RequestCode.UPDATE_NAMESRV_CONFIG, b"\xff=1").remark
