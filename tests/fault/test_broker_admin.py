"""Administrators' requests, answered by the handlers over a real store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.broker_admin import BrokerAdminHandlers
from contrail.broker.handlers.groups import GroupHandlers
from contrail.broker.handlers.queries import QueryHandlers
from contrail.broker.handlers.topics import TopicHandlers
from contrail.broker.services.groups import Groups
from contrail.broker.services.runtime_report import RuntimeReport
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterTable, Matcher
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.errors import FilterInvalid, RequestRejected
from contrail.model.fastjson import loads
from contrail.model.record import decode_record
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import decode_message_queue, encode_body
from contrail.runtime.files import FileSystem
from contrail.store.config_files import DelayOffsetTable
from contrail.store.log import MessageStore
from tests.fakes.peers import FakePeer
from tests.fault.store_setup import append_numbers, draft, small_config

# The keys that brokerStatus, clusterList and exporters read.
RUNTIME_KEYS = (
    "brokerActive", "brokerVersionDesc", "bootTimestamp", "runtime", "putTps", "getFoundTps",
    "getMissTps", "getTotalTps", "getTransferredTps", "putMessageTimesTotal", "putMessageSizeTotal",
    "putMessageAverageSize", "putMessageEntireTimeMax", "putMessageFailedTimes",
    "putMessageDistributeTime", "getMessageEntireTimeMax", "putLatency99", "putLatency999",
    "dispatchMaxBuffer", "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow", "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow", "commitLogMinOffset", "commitLogMaxOffset", "commitLogDiskRatio",
    "consumeQueueDiskRatio", "commitLogDirCapacity", "earliestMessageTimeStamp",
    "dispatchBehindBytes", "pageCacheLockTimeMills", "remainHowManyDataToFlush",
    "remainTransientStoreBufferNumbs", "startAcceptSendRequestTimeStamp", "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity", "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize", "litePullThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills", "ackThreadPoolQueueSize", "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity", "timerReadBehind", "timerOffsetBehind",
    "timerCongestNum", "timerEnqueueTps", "timerDequeueTps", "scheduleMessageOffset_1",
)  # fmt: skip


def no_sql(text: str) -> Matcher:
    raise FilterInvalid(f"{text} is not compiled here")


class Room:
    """All administrators' handlers over one store."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.store_config = small_config(root, file_reserved_hours=1)
        self.store = MessageStore.open(self.store_config, clock=self.clock)
        self.settings = RuntimeSettings(BrokerConfig())
        self.topics = Topics(
            TopicTable(), self.settings, add_batch_topic=self.store.add_batch_topic
        )
        self.groups = Groups(GroupTable(), self.settings)
        self.offsets = ConsumerOffsets()
        self.stats = BrokerStats("DefaultCluster", started_ms=self.clock.now_ms())
        self.permission_changes: list[int] = []
        report = RuntimeReport(
            self.settings,
            self.stats,
            self.store,
            self.store_config,
            files=FileSystem(),
            delay_queue_offsets=lambda: {1: 5},
        )
        self.handlers = {
            **TopicHandlers(
                self.topics,
                self.offsets,
                self.stats,
                self.store,
                broker_name="broker-a",
                clock=self.clock,
            ).table(),
            **GroupHandlers(self.groups, self.offsets, self.stats, clock=self.clock).table(),
            **QueryHandlers(
                self.store,
                self.topics.table,
                ConsumerTable(),
                FilterTable(no_sql),
                names=self.topics.names,
            ).table(),
            **BrokerAdminHandlers(
                self.settings,
                self.stats,
                self.offsets,
                report,
                self.store_config,
                clock=self.clock,
                delay_offsets=lambda: DelayOffsetTable({1: 5}),
                on_permission_changed=self.permission_changes.append,
            ).table(),
        }

    def ask(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> Response:
        texts = {name: str(value) for name, value in (fields or {}).items()}
        answer = self.handlers[code](Request(code, 1, texts, body), FakePeer())
        assert isinstance(answer, Response)
        return answer

    def refusal(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> RequestRejected:
        with pytest.raises(RequestRejected) as refusal:
            self.ask(code, fields, body)
        return refusal.value

    def set_topic(self, topic: str, **changes: object) -> Response:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        return self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, **changes})


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path / "store")
    yield room
    room.store.close()


def body_of(answer: Response) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)


def decoded(answer: Response) -> dict[str, object]:
    value = loads(body_of(answer))
    assert isinstance(value, dict)
    return dict(value)


@pytest.mark.proves("broker.topics.create-and-update")
def test_a_topic_is_created_shown_and_changed(room: Room) -> None:
    assert room.set_topic("orders", attributes="+message.type=FIFO").code == 0
    shown = decoded(room.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders", "lo": "true"}))
    assert shown["attributes"] == {"message.type": "FIFO"}
    room.set_topic("orders", writeQueueNums=1, order="true")
    config = room.topics.table.topics["orders"]
    assert (config.read_queue_count, config.write_queue_count, config.order) == (4, 1, True)


def test_an_unknown_topic_does_not_exist(room: Room) -> None:
    for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO):
        assert room.refusal(code, {"topic": "nope"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_list_with_one_bad_topic_creates_none(room: Room) -> None:
    topics = [TopicConfig("fine", 1, 1), TopicConfig("TBW102", 1, 1)]
    body = encode_body({"topicConfigList": [topic.to_fields() for topic in topics]})
    refusal = room.refusal(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    assert refusal.code == ResponseCode.INVALID_PARAMETER
    assert room.topics.table.get("fine") is None


def test_a_missing_field_is_named(room: Room) -> None:
    asked = {"topic": "orders", "defaultTopic": "TBW102", "order": "false"}
    for missing, fields in (("readQueueNums", asked), ("topic", {"defaultTopic": "TBW102"})):
        refusal = room.refusal(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert refusal.code == ResponseCode.SYSTEM_ERROR
        assert missing in refusal.remark


def test_a_topic_needs_neither_an_order_nor_a_default_topic(room: Room) -> None:
    fields = {"topic": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG"}
    assert room.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    assert room.topics.table.topics["orders"].order is False


@pytest.mark.proves("broker.send.grow-and-shrink")
def test_fewer_queues_lose_no_message(room: Room) -> None:
    room.set_topic("orders")
    for queue_id in range(4):
        append_numbers(room.store, 0, 5, queue_id=queue_id)
    room.set_topic("orders", writeQueueNums=1)
    stats = decoded(room.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}))
    table = stats["offsetTable"]
    assert isinstance(table, dict)
    found = {decode_message_queue(queue).queue_id: reach for queue, reach in table.items()}
    assert sorted(found) == [0, 1, 2, 3]
    assert all(reach["maxOffset"] == 5 for reach in found.values())
    assert all(reach["lastUpdateTimestamp"] == room.clock.now_ms() for reach in found.values())


@pytest.mark.proves("broker.topics.delete")
def test_deleting_a_topic_takes_its_data_offsets_and_pop_retry_topics(room: Room) -> None:
    room.set_topic("orders")
    append_numbers(room.store, 0, 5)
    room.offsets.commit("billing", "orders", 0, 3)
    for name in ("%RETRY%billing+orders", "%RETRY%billing_orders", "%RETRY%billing"):
        room.topics.table.put(TopicConfig(name, 1, 1), 0)
    room.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    left = set(room.topics.table.topics) - room.topics.system_topics
    assert left == {"%RETRY%billing"}
    assert room.offsets.query("billing", "orders", 0) == -1
    assert not room.store.has_queue(b"orders", 0)
    assert room.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_x", "broker-a", " ", "../escape", "a/b"])
def test_topics_that_may_not_be_deleted_are_refused(room: Room, name: str) -> None:
    refusal = room.refusal(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    assert refusal.code == ResponseCode.INVALID_PARAMETER


def test_topics_are_listed_whole_or_in_pieces(room: Room) -> None:
    whole = room.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    total = len(room.topics.table.topics)
    assert whole.fields == {"totalTopicNum": str(total)}
    table = decoded(whole)["topicConfigTable"]
    assert isinstance(table, dict)
    assert len(table) == total
    version = json.dumps(decoded(whole)["dataVersion"])
    asked = {"topicSeq": 2, "maxTopicNum": 3, "dataVersion": version}
    piece = decoded(room.ask(RequestCode.GET_ALL_TOPIC_CONFIG, asked))["topicConfigTable"]
    assert list(piece) == sorted(table)[2:5]  # type: ignore[call-overload]
    asked["dataVersion"] = '{"counter":77}'
    piece = decoded(room.ask(RequestCode.GET_ALL_TOPIC_CONFIG, asked))["topicConfigTable"]
    assert list(piece) == sorted(table)[0:3]  # type: ignore[call-overload]


def test_the_systems_topics_are_listed(room: Room) -> None:
    listed = decoded(room.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "DefaultCluster", "broker-a"} <= set(listed)  # type: ignore[call-overload]


def test_the_data_of_topics_without_settings_is_cleaned(room: Room) -> None:
    room.set_topic("orders")
    append_numbers(room.store, 0, 2)
    append_numbers(room.store, 0, 2, topic="forgotten")
    append_numbers(room.store, 0, 2, topic="TBW102")
    append_numbers(room.store, 0, 2, topic="%LMQ%light")
    room.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    topics = {topic for topic, _ in room.store.queues()}
    assert topics == {b"orders", b"TBW102", b"%LMQ%light"}


def test_expired_segments_go_when_an_administrator_asks(room: Room) -> None:
    append_numbers(room.store, 0, 100)
    room.store.checkpoint()
    before = room.store.physical_min
    room.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert room.store.physical_min == before
    # Segments age by their files' times, which are the machine's: be far in its future.
    room.clock.advance(hours=24 * 365 * 100)
    room.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert room.store.physical_min > before
    room.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert room.store.queue_offset_min(b"orders", 0) > 0


@pytest.mark.proves("broker.topics.groups")
def test_groups_are_created_shown_and_deleted_with_their_offsets(room: Room) -> None:
    body = encode_body({"groupName": "billing", "consumeBroadcastEnable": False})
    room.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    shown = decoded(room.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"}))
    assert shown["consumeBroadcastEnable"] is False
    room.offsets.commit("billing", "orders", 0, 3)
    room.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"})
    assert room.offsets.query("billing", "orders", 0) == 3
    asked = {"groupName": "billing", "cleanOffset": "true"}
    room.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, asked)
    assert room.offsets.query("billing", "orders", 0) == -1
    assert room.groups.table.get("billing") is None


def test_a_group_that_may_not_be_created_does_not_exist(room: Room) -> None:
    room.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateSubscriptionGroup=false")
    refusal = room.refusal(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"})
    assert refusal.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert room.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).code == 0
    bad = encode_body({"groupConfigList": [{"groupName": "a/b"}]})
    refusal = room.refusal(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=bad)
    assert refusal.code == ResponseCode.INVALID_PARAMETER


def test_groups_are_listed_with_what_is_forbidden_to_them(room: Room) -> None:
    asked = {"group": "TOOLS_CONSUMER", "topic": "orders"}
    answer = room.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**asked, "readable": "false"})
    assert decoded(answer) == {**asked, "readable": False}
    assert decoded(room.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, asked)) == {
        **asked,
        "readable": False,
    }
    listed = decoded(room.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert listed["forbiddenTable"] == {"TOOLS_CONSUMER": {"orders": 4}}
    piece = room.ask(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"groupSeq": 0, "maxGroupNum": 2}
    )
    assert len(decoded(piece)["subscriptionGroupTable"]) == 2  # type: ignore[arg-type]
    assert decoded(piece)["forbiddenTable"] == {}
    assert piece.fields == {"totalGroupNum": str(len(room.groups.table.groups))}


def key_query(key: str, **changes: object) -> dict[str, object]:
    times = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
    return {"topic": "orders", "key": key, "maxNum": 10, **times, **changes}


def numbers(answer: Response) -> list[int]:
    """The numbers in the bodies of raw records, one after the other."""
    data, found, position = body_of(answer), [], 0
    while position < len(data):
        message = decode_record(data, position)
        found.append(int(message.body[:8]))
        position += message.record_bytes
    return found


@pytest.mark.proves("broker.topics.query-by-key")
def test_messages_are_found_by_key_as_they_stand_in_the_log(room: Room) -> None:
    append_numbers(room.store, 0, 30)
    answer = room.ask(RequestCode.QUERY_MESSAGE, key_query("k3"))
    assert numbers(answer) == [3, 13, 23]
    assert answer.fields is not None
    assert answer.fields["indexLastUpdateTimestamp"] == str(room.clock.now_ms())
    assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0
    assert numbers(room.ask(RequestCode.QUERY_MESSAGE, key_query("k3", maxNum=1))) == [23]
    unique = key_query("ID000007", maxNum=0, _UNIQUE_KEY_QUERY="true")
    assert numbers(room.ask(RequestCode.QUERY_MESSAGE, unique)) == [7]


@pytest.mark.proves("broker.topics.query-by-time")
def test_a_key_that_is_not_there_or_not_in_time_is_not_found(room: Room) -> None:
    append_numbers(room.store, 0, 5)
    for asked in (
        key_query("nope"),
        key_query("k3", endTimestamp=room.clock.now_ms() - 10_000),
        key_query("k3", maxNum=-1),
        key_query("k3", topic="other"),
    ):
        answer = room.ask(RequestCode.QUERY_MESSAGE, asked)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


def test_no_query_gets_more_than_the_limit(room: Room) -> None:
    room.store.append([draft(number, KEYS="same") for number in range(100)])
    room.store.dispatch()
    answer = room.ask(RequestCode.QUERY_MESSAGE, key_query("same", maxNum=1_000_000))
    assert len(numbers(answer)) == 64


@pytest.mark.proves("broker.topics.query-by-id")
def test_a_message_is_viewed_by_its_physical_offset(room: Room) -> None:
    run = room.store.append([draft(1), draft(2)])
    room.store.dispatch()
    asked = {"offset": run.physical_offsets[1]}
    assert numbers(room.ask(RequestCode.VIEW_MESSAGE_BY_ID, asked)) == [2]
    for physical_offset in (run.physical_offsets[1] + 1, -1, 1 << 50):
        refusal = room.refusal(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
        assert refusal.code == ResponseCode.SYSTEM_ERROR


def test_rows_of_a_queue_are_shown(room: Room) -> None:
    run = room.store.append([draft(number) for number in range(5)])
    room.store.dispatch()
    asked = {"topic": "orders", "queueId": 0, "index": 1, "count": 2, "consumerGroup": "billing"}
    shown = decoded(room.ask(RequestCode.QUERY_CONSUME_QUEUE, asked))
    rows = shown["queueData"]
    assert isinstance(rows, list)
    assert [row["physicOffset"] for row in rows] == run.physical_offsets[1:3]
    assert (shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 5)
    assert "billing" in str(shown["filterData"])
    beyond = room.ask(RequestCode.QUERY_CONSUME_QUEUE, {**asked, "index": 5})
    assert (beyond.code, body_of(beyond)) == (0, b"")
    assert room.refusal(RequestCode.QUERY_CONSUME_QUEUE, {**asked, "queueId": 9}).code == 1


def test_a_queue_that_never_had_a_message_has_no_rows_and_is_no_error(room: Room) -> None:
    room.set_topic("quiet", readQueueNums=2, writeQueueNums=3)
    asked = {"topic": "quiet", "index": 0, "count": 2}
    for queue_id in range(3):
        answer = room.ask(RequestCode.QUERY_CONSUME_QUEUE, {**asked, "queueId": queue_id})
        assert (answer.code, body_of(answer)) == (0, b"")
    for queue_id in (-1, 3):
        refusal = room.refusal(RequestCode.QUERY_CONSUME_QUEUE, {**asked, "queueId": queue_id})
        assert refusal.code == ResponseCode.SYSTEM_ERROR


def test_settings_change_from_the_closed_list_only(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="contrail.audit"):
        room.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\ntraceOn=false\n")
    assert room.settings.config.permission == 4
    assert room.permission_changes == [room.clock.now_ms()]
    assert "brokerPermission from 6 to 4" in caplog.text
    refusal = room.refusal(RequestCode.UPDATE_BROKER_CONFIG, body=b"traceOn=true\nlistenPort=1\n")
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert room.settings.config.trace_on is False
    assert room.refusal(RequestCode.UPDATE_BROKER_CONFIG, body=b"\xff=1").code == 1
    assert room.ask(RequestCode.UPDATE_BROKER_CONFIG).code == 0


def test_all_settings_are_shown_under_the_originals_names(room: Room) -> None:
    room.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    answer = room.ask(RequestCode.GET_BROKER_CONFIG)
    lines = body_of(answer).decode().splitlines()
    assert "brokerPermission=4" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines
    assert f"storePathCommitLog={room.store_config.root / 'commitlog'}" in lines
    assert "autoCreateTopicEnable=true" in lines
    assert answer.fields is not None
    assert json.loads(answer.fields["version"])["counter"] == 1


@pytest.mark.proves("broker.running.runtime-info")
def test_runtime_info_has_every_key_that_tools_read(room: Room) -> None:
    append_numbers(room.store, 0, 3)
    room.stats.sent("orders", 3, 600)
    room.clock.advance(ms=61_000)
    table = decoded(room.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert isinstance(table, dict)
    assert [key for key in RUNTIME_KEYS if key not in table] == []
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 1 seconds ]"
    assert table["putMessageTimesTotal"] == "3"
    assert table["putMessageAverageSize"] == "200.0"
    assert table["msgPutTotalTodayNow"] == "3"
    assert table["commitLogMaxOffset"] == str(room.store.physical_end)
    assert table["earliestMessageTimeStamp"] == str(room.clock.now_ms() - 61_000)
    assert table["scheduleMessageOffset_1"] == "5,0"
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert str(table["commitLogDirCapacity"]).startswith("Total : ")


def test_an_empty_log_has_no_earliest_message(room: Room) -> None:
    table = decoded(room.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert isinstance(table, dict)
    assert table["earliestMessageTimeStamp"] == "-1"


@pytest.mark.proves("broker.running.rates")
def test_a_stat_is_viewed_once_it_was_counted(room: Room) -> None:
    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
    assert room.refusal(RequestCode.VIEW_BROKER_STATS_DATA, asked).code == 1
    room.stats.sent("orders", 6, 60)
    room.clock.advance(ms=60_000)
    room.stats.sample(room.clock.now_ms())
    shown = decoded(room.ask(RequestCode.VIEW_BROKER_STATS_DATA, asked))
    minute = shown["statsMinute"]
    assert isinstance(minute, dict)
    assert minute["sum"] == 6


def test_offsets_of_consumers_and_delay_levels_are_handed_out_whole(room: Room) -> None:
    room.offsets.commit("billing", "orders", 0, 3)
    offsets = room.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"offsetTable":{"orders@billing":{0:3}}' in body_of(offsets)
    room.offsets.commit_pulled("billing", "orders", 0, 4)
    offsets = room.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"pullOffsetTable":{"orders@billing":{0:4}}' in body_of(offsets)
    assert b'"offsetTable":{1:5}' in body_of(room.ask(RequestCode.GET_ALL_DELAY_OFFSET))


def test_every_code_is_answered_by_one_handler_only(room: Room) -> None:
    assert sorted(room.handlers) == [
        12, 17, 18, 21, 25, 26, 28, 33, 43, 45, 200, 201, 202, 207, 215, 225, 305, 306, 315, 316,
        321, 329, 351, 352, 353,
    ]  # fmt: skip
