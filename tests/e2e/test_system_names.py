"""No data request reads or writes what is the broker's own: every code with every system name.

Each closed topic holds one record with a secret body, appended past all handlers. Requests are
written down here by code, not derived from the broker's table. Each is asked twice over one
connection, so that the second may go a fast way; what comes back must refuse it, and must not hold
the secret. Exceptions stand in a table of this file.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest

from contrail.broker.state.system_names import NAMED
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.model.topic import is_closed_topic
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.options import SourceSettings
from contrail.protocol.bodies.pop import BatchAck, BatchAcks, encode_batch_acks
from contrail.protocol.bodies.sinks import encode_begin
from contrail.protocol.codes import CODE_CLASSES, CodeClass, RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields, send_fields

CLUSTER, BROKER = "DefaultCluster", "broker-a"
TOPIC, GROUP = "orders", "readers"
SECRET, KEY = b"nobody may see this", "SECRET-KEY"
BROKER_ADDRESS = "127.0.0.9"

CLOSED_TOPICS = (
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
    "rmq_sys_wheel_timer",
    "rmq_sys_CONTRAIL_SINKS",
    f"rmq_sys_REVIVE_LOG_{CLUSTER}",
    f"rmq_sys_SYNC_BROKER_MEMBER_{BROKER}",
    "rmq_sys_never_made",
    "%RETRY%CID_RMQ_SYS_TRANS",
    "%DLQ%CID_RMQ_SYS_TRANS",
    "%RETRY%CID_RMQ_SYS_REVIVE_GROUP",
    "%RETRY%%RETRY%CID_RMQ_SYS_TRANS",
    "%DLQ%%RETRY%%DLQ%CID_RMQ_SYS_TRANS",
)
# Tools of operators send there, and nobody reads it.
WRITE_ONLY_TOPICS = (CLUSTER, BROKER)
OPEN_TOPICS = (
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_TRACE_DATA_region",
    "BenchmarkTest",
    f"{CLUSTER}_REPLY_TOPIC",
    f"%RETRY%{GROUP}",
    f"%DLQ%{GROUP}",
    TOPIC,
)
CLOSED_GROUPS = ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_", "CID_RMQ_SYS_x")
OPEN_GROUPS = ("TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONSAPI_PULL", "DEFAULT_CONSUMER", GROUP)

# Codes that clients are asked with, or that only NameServers serve, or that nobody serves yet.
NOT_SERVED = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.LITE_SUBSCRIPTION_CTL,
        RequestCode.ACK_LITE_MESSAGE,
        RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    }
)
# They name a sink and its batch, nothing else.
NAMELESS = frozenset(
    {
        RequestCode.CONTRAIL_SINK_COMMIT,
        RequestCode.CONTRAIL_SINK_ABORT,
        RequestCode.CONTRAIL_SINK_STATUS,
    }
)
# Requests that a table of exceptions lets pass, by code and topic.
EXCEPTIONS = {
    # Producers end their transactions; the record must be theirs, which this one is not.
    (RequestCode.END_TRANSACTION, "RMQ_SYS_TRANS_HALF_TOPIC"),
    # `mqadmin startMonitoring` subscribes, and gets no message.
    (RequestCode.HEART_BEAT, "OFFSET_MOVED_EVENT"),
    (RequestCode.CHECK_CLIENT_CONFIG, "OFFSET_MOVED_EVENT"),
    # `mqadmin resumeCheckHalfMessage` looks at what was given up, on the broker's host.
    (RequestCode.VIEW_MESSAGE_BY_ID, "TRANS_CHECK_MAX_TIME_TOPIC"),
}


class Place(NamedTuple):
    """Where the secret of a topic is."""

    physical_offset: int
    queue_offset: int


Ask = Callable[[str, str, Place], tuple[dict[str, str], bytes]]


def _long_send(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    fields = {"producerGroup": "producers", "topic": topic, "defaultTopic": "TBW102"}
    fields |= {"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "flag": "0"}
    fields |= {"bornTimestamp": "1700000000000", "reconsumeTimes": "0", "unitMode": "false"}
    return {**fields, "properties": "UNIQ_KEY\x01AC0002\x02"}, b"x"


def _batch(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    properties = b"UNIQ_KEY\x01AC0003\x02"
    tail = b"x" + struct.pack(">h", len(properties)) + properties
    unit = struct.pack(">iiiii", 20 + len(tail), 0, 0, 0, 1) + tail
    return send_fields(topic, m="true"), unit


def _offset(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    fields = {"topic": topic, "consumerGroup": group, "queueId": "0", "commitOffset": "7"}
    return {**fields, "timestamp": "0", "setZeroIfNotFound": "true"}, b""


def _pull(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    # With a commit, and not to be held.
    changes = {"consumerGroup": group, "sysFlag": "5", "commitOffset": "7"}
    return pull_fields(topic, place.queue_offset, **changes), b""


def _query(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    fields = {"topic": topic, "key": KEY, "maxNum": "32", "beginTimestamp": "0"}
    return {**fields, "endTimestamp": str(1 << 62)}, b""


def _send_back(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    fields = {"offset": str(place.physical_offset), "group": group, "delayLevel": "-1"}
    return {**fields, "unitMode": "false", "originTopic": topic}, b""


def _end(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    fields = {"producerGroup": "producers", "commitLogOffset": str(place.physical_offset)}
    fields |= {"tranStateTableOffset": str(place.queue_offset), "commitOrRollback": "8"}
    return {**fields, "msgId": KEY, "topic": topic}, b""


def _locks(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    queue = {"topic": topic, "brokerName": BROKER, "queueId": 0}
    return {}, json.dumps({"consumerGroup": group, "clientId": "c", "mqSet": [queue]}).encode()


def _check(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    subscription = {"topic": topic, "subString": "*", "expressionType": "TAG"}
    wanted = {"clientId": "c", "group": group, "subscriptionData": subscription}
    return {}, json.dumps(wanted).encode()


def _recall(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    return {"topic": topic, "recallHandle": "djE", "producerGroup": "producers"}, b""


def _sink_send(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    _, body = _batch(topic, group, place)
    return {"topic": topic, "queueId": "0", "producerGroup": "p", "prepared": "false"}, body


def _sink_begin(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    return {"sinkId": "sink", "batchId": "0"}, encode_begin({topic: [(BROKER, 0)]})


def _pop(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "maxMsgNums": "32"}
    fields |= {"invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
    return fields, b""


def _receipt(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    receipt = f"0 1 60000 0 0 {BROKER} 0 {place.queue_offset}"
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "extraInfo": receipt}
    return {**fields, "offset": str(place.queue_offset), "invisibleTime": "60000"}, b""


def _batch_ack(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    offset = place.queue_offset
    ack = BatchAck(group, topic, "0", offset, 0, 0, 1, 60_000, (offset,))
    return {}, encode_batch_acks(BatchAcks(BROKER, [ack]))


def _assignment(topic: str, group: str, place: Place) -> tuple[dict[str, str], bytes]:
    question = {"topic": topic, "consumerGroup": group, "clientId": "c", "strategyName": "AVG"}
    return {}, json.dumps(question).encode()


POPS: dict[RequestCode, Ask] = {
    RequestCode.POP_MESSAGE: _pop,
    RequestCode.PEEK_MESSAGE: _pop,
    RequestCode.NOTIFICATION: _pop,
    RequestCode.ACK_MESSAGE: _receipt,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _receipt,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.POLLING_INFO: _pop,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
}
BY_TOPIC: dict[RequestCode, Ask] = POPS | {
    RequestCode.SEND_MESSAGE: _long_send,
    RequestCode.SEND_MESSAGE_V2: lambda topic, group, place: (send_fields(topic), b"x"),
    RequestCode.SEND_BATCH_MESSAGE: _batch,
    RequestCode.SEND_REPLY_MESSAGE: _long_send,
    RequestCode.SEND_REPLY_MESSAGE_V2: lambda topic, group, place: (send_fields(topic), b"x"),
    RequestCode.RECALL_MESSAGE: _recall,
    RequestCode.CONTRAIL_SINK_BEGIN: _sink_begin,
    RequestCode.CONTRAIL_SINK_SEND: _sink_send,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _query,
    RequestCode.QUERY_CONSUMER_OFFSET: _offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: _offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _offset,
    RequestCode.GET_MAX_OFFSET: _offset,
    RequestCode.GET_MIN_OFFSET: _offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _offset,
    RequestCode.VIEW_MESSAGE_BY_ID: _send_back,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.END_TRANSACTION: _end,
    RequestCode.HEART_BEAT: lambda topic, group, place: (
        {},
        heartbeat("c", group=group, topic=topic),
    ),
    RequestCode.CHECK_CLIENT_CONFIG: _check,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
}
BY_GROUP: dict[RequestCode, Ask] = {
    code: BY_TOPIC[code]
    for code in (
        *POPS,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.HEART_BEAT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    )
} | {
    RequestCode.UNREGISTER_CLIENT: lambda topic, group, place: (
        {"clientID": "c", "consumerGroup": group},
        b"",
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda topic, group, place: (
        {"consumerGroup": group},
        b"",
    ),
}
WRITES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RECALL_MESSAGE,
        RequestCode.CONTRAIL_SINK_BEGIN,
        RequestCode.CONTRAIL_SINK_SEND,
    }
)
REFUSED = ResponseCode.NO_PERMISSION


class Room:
    """One broker with a secret in every topic of its own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.asker = Asker(cluster)
        app = cluster.brokers[0].app
        assert app is not None
        self.app = app
        self.port = cluster.brokers[0].port
        self.asker.make_topic(TOPIC, read=4, write=4)
        self.asker.make_group(GROUP)
        self.asker.stored(TOPIC)
        self.places: dict[str, Place] = {}
        cluster.run(self._put_secrets())
        eventually(lambda: all(self.ends().values()))

    async def _put_secrets(self) -> None:
        properties = encode_properties({"UNIQ_KEY": KEY, "KEYS": KEY})
        for topic in (*CLOSED_TOPICS, *WRITE_ONLY_TOPICS, TOPIC):
            draft = MessageDraft(topic.encode(), 0, SECRET, properties, born_host=bytes(8))
            run = self.app.store.append([draft])
            self.places[topic] = Place(run.physical_offsets[0], run.queue_offsets[0])

    def ends(self) -> dict[str, int]:
        """How far the closed topics reach."""
        return {
            topic: self.app.store.queue_offset_max(topic.encode(), 0) for topic in CLOSED_TOPICS
        }

    def own_state(self) -> object:
        """All that a request for something of the broker's could have changed."""
        tables = self.app.tables
        return (
            self.ends(),
            # Not the broker's own cursors, which it moves while it works.
            {key for key in tables.consumer_offsets._committed if _is_own(key)},
            {key for key in tables.consumer_offsets.pulled() if _is_own(key)},
            {group for group in tables.consumers.groups if group.startswith("CID_RMQ_SYS_")},
            {group for group in tables.groups.table.groups if group.startswith("CID_RMQ_SYS_")},
            {topic for topic in tables.topics.table.topics if is_closed_topic(topic)},
        )


def _is_own(key: str) -> bool:
    topic, _, group = key.partition("@")
    return is_closed_topic(topic) or group.startswith("CID_RMQ_SYS_")


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    properties = {"contrailClusterAllowList": f"{BROKER_ADDRESS}/32"}
    with LocalCluster(properties=properties) as cluster:
        yield Room(cluster)


def _refusals(room: Room, code: RequestCode, topic: str, group: str) -> int:
    """Ask twice over one connection; how many cases these were."""
    place = room.places.get(topic, room.places[TOPIC])
    fields, body = BY_TOPIC.get(code, BY_GROUP.get(code))(topic, group, place)  # type: ignore[misc]
    with RawClient(room.port) as client:
        for _ in range(2):
            answer = client.call(code, fields, body)
            what = (code.name, topic, group, answer.code, answer.remark)
            if code is RequestCode.CONSUMER_SEND_MSG_BACK and group == GROUP:
                # As for any record that no consumer can have got.
                assert answer.code == ResponseCode.SYSTEM_ERROR, what
            elif code is RequestCode.END_TRANSACTION:
                assert answer.code == ResponseCode.SYSTEM_ERROR, what
            else:
                assert answer.code == REFUSED, what
            assert SECRET not in answer.body, what
    return 2


def test_every_data_code_is_walked() -> None:
    data = {code for code, kind in CODE_CLASSES.items() if kind is CodeClass.DATA}
    assert set(NAMED) == data
    assert set(BY_TOPIC) | set(BY_GROUP) | NOT_SERVED | NAMELESS == data
    assert not (set(BY_TOPIC) | set(BY_GROUP)) & (NOT_SERVED | NAMELESS)


def test_codes_that_a_broker_does_not_serve_stay_so(room: Room) -> None:
    """A handler that is added for one of them must be walked too."""
    for code in NOT_SERVED:
        assert room.asker.ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code.name


@pytest.mark.proves("broker.system-names.data-requests")
def test_no_data_request_reads_or_writes_a_topic_of_the_system(
    room: Room, record_property: Callable[[str, object], None]
) -> None:
    before, count = room.own_state(), 0
    for code in BY_TOPIC:
        for topic in (*CLOSED_TOPICS, *WRITE_ONLY_TOPICS):
            is_written = topic in WRITE_ONLY_TOPICS and code in WRITES
            if not is_written and (code, topic) not in EXCEPTIONS:
                count += _refusals(room, code, topic, GROUP)
    assert room.own_state() == before
    record_property("cases", count)
    print(f"{count} requests for system topics were refused")
    assert count == 2 * (len(BY_TOPIC) * 20 - len(WRITES) * 2 - len(EXCEPTIONS))


@pytest.mark.proves("broker.system-names.data-requests")
def test_no_data_request_reads_or_writes_a_group_of_the_system(
    room: Room, record_property: Callable[[str, object], None]
) -> None:
    before, count = room.own_state(), 0
    for code in BY_GROUP:
        for group in CLOSED_GROUPS:
            count += _refusals(room, code, TOPIC, group)
            for topic in CLOSED_TOPICS:
                count += _refusals(room, code, topic, group)
    assert room.own_state() == before
    record_property("cases", count)
    print(f"{count} requests for system groups were refused")
    assert count == 2 * len(BY_GROUP) * len(CLOSED_GROUPS) * (len(CLOSED_TOPICS) + 1)


@pytest.mark.proves("broker.system-names.data-requests")
def test_names_that_clients_must_reach_are_not_refused(room: Room) -> None:
    for code in BY_TOPIC:
        for topic in OPEN_TOPICS:
            fields, body = BY_TOPIC[code](topic, GROUP, room.places[TOPIC])
            assert room.asker.ask(code, fields, body).code != REFUSED, (code.name, topic)
    for code in BY_GROUP:
        for group in OPEN_GROUPS:
            fields, body = BY_GROUP[code](TOPIC, group, room.places[TOPIC])
            assert room.asker.ask(code, fields, body).code != REFUSED, (code.name, group)
    for topic in WRITE_ONLY_TOPICS:
        room.asker.stored(topic)


@pytest.mark.proves("broker.system-names.data-requests")
def test_fast_sends_and_batches_in_one_write_are_refused_one_by_one(room: Room) -> None:
    """The ways that take runs of sends know the topics that were admitted before, and no others."""
    before = room.ends()
    with RawClient(room.port) as client:
        for topic in CLOSED_TOPICS:
            requests = []
            for name in (TOPIC, topic):
                requests += [(RequestCode.SEND_MESSAGE_V2, send_fields(name), b"x")] * 8
                requests += [(RequestCode.SEND_BATCH_MESSAGE, *_batch(name, "", Place(0, 0)))] * 2
            frames = [
                encode_request(Request(code, opaque, fields, body))
                for opaque, (code, fields, body) in enumerate(requests)
            ]
            client.send(b"".join(frames))
            codes = {}
            while len(codes) < len(requests):
                answer = client.next_frame()
                codes[answer.opaque] = answer.code
            assert [codes[at] for at in range(20)] == [0] * 10 + [REFUSED] * 10, topic
    assert room.ends() == before


@contextmanager
def _from_cluster(room: Room) -> Iterator[RawClient]:
    client = RawClient(room.port)
    client.close()
    client._socket = socket.create_connection(
        ("127.0.0.1", room.port), timeout=60, source_address=(BROKER_ADDRESS, 0)
    )
    with client:
        yield client


def test_brokers_of_the_cluster_write_and_do_not_open_the_way_for_others(room: Room) -> None:
    topic = "rmq_sys_of_brokers"
    with _from_cluster(room) as broker, RawClient(room.port) as stranger:
        for _ in range(3):
            assert broker.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x").code == 0
            refused = stranger.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x")
            assert refused.code == REFUSED
        pulled = broker.call(RequestCode.PULL_MESSAGE, pull_fields(topic, 0))
        assert pulled.code == REFUSED


def test_half_delayed_and_timed_messages_for_a_topic_of_the_system_are_refused(room: Room) -> None:
    waits = ({"TRAN_MSG": "true", "PGROUP": "p"}, {"DELAY": "3"}, {"TIMER_DELAY_SEC": "60"})
    before = room.ends()
    for topic in CLOSED_TOPICS:
        for properties in waits:
            assert room.asker.send(topic, properties=properties).code == REFUSED, (
                topic,
                properties,
            )
    assert room.ends() == before


@pytest.mark.proves("broker.system-names.paged-reads", "console.data.timers")
def test_operators_list_what_waits_page_by_page(room: Room) -> None:
    for topic in CLOSED_TOPICS:
        low = room.app.store.queue_offset_min(topic.encode(), 0)
        fields = {"topic": topic, "queueOffset": str(low), "maxMsgNums": "1"}
        answer = room.asker.done(RequestCode.LIST_SYSTEM_MESSAGES, fields)
        assert int(answer.fields["nextBeginOffset"]) == low + 1
        found = room.asker.done(RequestCode.LIST_SYSTEM_MESSAGES, {"topic": topic, "key": KEY})
        assert SECRET in found.body, topic
        ends = room.asker.done(
            RequestCode.LIST_SYSTEM_MESSAGES, {"topic": topic, "maxMsgNums": "0"}
        )
        assert (ends.body, int(ends.fields["maxOffset"])) == (b"", room.ends()[topic])
    for wrong in ({"topic": TOPIC}, {"topic": CLOSED_TOPICS[0], "maxMsgNums": "1001"}):
        answer = room.asker.ask(RequestCode.LIST_SYSTEM_MESSAGES, wrong)
        assert answer.code == ResponseCode.INVALID_PARAMETER


def _topic_changes(topic: str) -> Iterator[tuple[RequestCode, dict[str, str], bytes]]:
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "3", "perm": "6"}
    fields |= {"writeQueueNums": "3", "topicFilterType": "SINGLE_TAG", "order": "false"}
    yield RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b""
    listed = json.dumps({"topicConfigList": [{"topicName": topic}]}).encode()
    yield RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed
    yield RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, b""


def _group_changes(group: str) -> Iterator[tuple[RequestCode, dict[str, str], bytes]]:
    config = {"groupName": group, "consumeEnable": False}
    yield RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(config).encode()
    listed = json.dumps({"groupConfigList": [config]}).encode()
    yield RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, listed
    for cleans in ("true", "false"):
        fields = {"groupName": group, "cleanOffset": cleans}
        yield RequestCode.DELETE_SUBSCRIPTIONGROUP, fields, b""
    fields = {"group": group, "topic": TOPIC, "readable": "false"}
    yield RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields, b""


@pytest.mark.proves("broker.system-names.operator-s-request")
def test_no_operator_creates_changes_or_deletes_what_is_the_systems(room: Room) -> None:
    topics, groups = room.app.tables.topics.table, room.app.tables.groups.table
    before = room.own_state(), dict(topics.topics), dict(groups.groups)
    changes = [
        one for topic in (*CLOSED_TOPICS, *WRITE_ONLY_TOPICS) for one in _topic_changes(topic)
    ]
    changes += [one for group in CLOSED_GROUPS for one in _group_changes(group)]
    for code, fields, body in changes:
        answer = room.asker.ask(code, fields, body)
        assert answer.code == ResponseCode.INVALID_PARAMETER, (code.name, fields, body)
        assert "belongs to the system" in str(answer.remark), (code.name, fields, body)
    # Looking at the settings of a group makes others, but none of the system.
    asked = room.asker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "CID_RMQ_SYS_x"})
    assert asked.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (room.own_state(), topics.topics, groups.groups) == before
    assert not groups.forbidden_table()


def test_patterns_of_spark_choose_what_clients_may_read(room: Room) -> None:
    options = {"namesrvAddr": room.cluster.namesrv, "subscribePattern": ".*"}
    settings = SourceSettings.of(options | {"internalTopics": "true"}, streaming=False)
    with closing(ClusterView(settings)) as view:
        found = {queue.topic for queue in view.queues()}
    assert TOPIC in found and "BenchmarkTest" in found
    assert not found & {*CLOSED_TOPICS, *WRITE_ONLY_TOPICS}
