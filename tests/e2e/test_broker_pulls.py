"""Pulls from a real broker: outcomes, refusals, filters, limits, and those that are held."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from contrail.clock import ManualClock
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, held_pull, messages
from tests.e2e.raw_client import RawClient, pull_fields

PULL = RequestCode.PULL_MESSAGE


@pytest.fixture(scope="module", params=["on", "off"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """With the fast path, and by the general way alone."""
    properties = {"contrailFastPath": request.param}
    with LocalCluster(clock=ManualClock(), properties=properties) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> Asker:
    return Asker(cluster)


def heartbeat(group: str, subscription: Mapping[str, object], model: str = "CLUSTERING") -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"subVersion": 1, "tagsSet": [], "codeSet": [], **subscription}],
    }
    return json.dumps({"clientID": f"{group}@1", "consumerDataSet": [consumer]}).encode()


@pytest.mark.proves(
    "broker.pull.outcomes", "broker.pull.suggested-broker", "broker.fast.end-end-tests"
)
def test_a_pull_is_told_where_to_go_on(broker: Asker) -> None:
    for number in range(5):
        broker.stored("told", b"%d" % number)
    outcomes = {
        queue_offset: (answer.code, answer.fields["nextBeginOffset"])
        for queue_offset in (0, 3, 5, 6, 100, -1)
        for answer in [broker.pull("told", queue_offset)]
    }
    assert outcomes == {
        0: (ResponseCode.SUCCESS, "5"),
        3: (ResponseCode.SUCCESS, "5"),
        5: (ResponseCode.PULL_NOT_FOUND, "5"),
        6: (ResponseCode.PULL_OFFSET_MOVED, "5"),
        100: (ResponseCode.PULL_OFFSET_MOVED, "5"),
        -1: (ResponseCode.PULL_OFFSET_MOVED, "0"),
    }
    found = broker.pull("told", 2)
    assert [message.body for message in messages(found)] == [b"2", b"3", b"4"]
    reach = [found.fields[name] for name in ("minOffset", "maxOffset", "suggestWhichBrokerId")]
    assert reach == ["0", "5", "0"]


def test_an_empty_queue_has_no_message_and_no_place_behind_its_beginning(broker: Asker) -> None:
    broker.make_topic("empty")
    assert broker.pull("empty", 0).code == ResponseCode.PULL_NOT_FOUND
    moved = broker.pull("empty", 7)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


def test_a_filter_that_wants_nothing_is_sent_on_at_once(broker: Asker) -> None:
    broker.stored("unwanted", b"red", properties={"TAGS": "red"})
    answer = broker.pull("unwanted", 0, subscription="blue")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.fields["nextBeginOffset"] == "1"


REFUSALS: dict[str, tuple[dict[str, str], int, str | None]] = {
    "an unknown topic": ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, None),
    "a queue too many": ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER, None),
    "a topic that may not be read": ({"topic": "closed"}, ResponseCode.NO_PERMISSION, "3"),
    "a group that may not consume": ({"consumerGroup": "banned"}, ResponseCode.NO_PERMISSION, "2"),
    "a group nobody may have": (
        {"consumerGroup": "no group"},
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        None,
    ),
    "a class filter": ({"sysFlag": "8"}, ResponseCode.SYSTEM_ERROR, None),
    "broken SQL": (
        {"subscription": "a >", "expressionType": "SQL92"},
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        None,
    ),
    "no heartbeat": ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST, None),
    "another topic": (
        {"sysFlag": "0", "consumerGroup": "here"},
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        None,
    ),
    "an older subscription": (
        {"sysFlag": "0", "consumerGroup": "here", "topic": "theirs", "subVersion": "2"},
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        None,
    ),
    "a group that may not broadcast": (
        {"sysFlag": "0", "consumerGroup": "quiet", "topic": "theirs"},
        ResponseCode.NO_PERMISSION,
        "4",
    ),
}


@pytest.mark.proves(
    "broker.send.permissions",
    "broker.pull.outcomes",
    "broker.pull.class-filters",
    "broker.topics.broadcast-flag",
)
@pytest.mark.parametrize("what", REFUSALS)
def test_a_pull_that_may_not_be_served_says_why(broker: Asker, what: str) -> None:
    for topic, perm in (("open", 6), ("closed", 2), ("theirs", 6)):
        broker.make_topic(topic, perm=perm)
    broker.make_group("banned", consumeEnable=False)
    broker.make_group("quiet", consumeBroadcastEnable=False)
    theirs = {"topic": "theirs", "subString": "*"}
    broker.done(RequestCode.HEART_BEAT, {}, heartbeat("here", theirs))
    broker.done(RequestCode.HEART_BEAT, {}, heartbeat("quiet", theirs, "BROADCASTING"))
    changes, code, kind = REFUSALS[what]
    fields = pull_fields("open", 0, sysFlag="4")
    answer = broker.ask(PULL, {**fields, **changes})
    assert (answer.code, bool(answer.remark)) == (code, True), answer.remark
    assert answer.fields.get("forbiddenType") == kind


@pytest.mark.proves("broker.topics.read-permission")
def test_a_broker_without_read_permission_hands_nothing_out(broker: Asker) -> None:
    broker.stored("kept", b"x")
    broker.change_settings("brokerPermission=2\n")
    try:
        answer = broker.pull("kept", 0)
        assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
    finally:
        broker.change_settings("brokerPermission=6\n")
    assert broker.bodies("kept") == [b"x"]


@pytest.mark.proves("broker.pull.tag-filter", "broker.pull.sql92")
def test_tags_and_sql_let_the_same_messages_pass_by_pull_and_by_heartbeat(broker: Asker) -> None:
    for number in range(12):
        properties = {"TAGS": ("red", "green", "blue")[number % 3], "n": str(number)}
        broker.stored("mixed", b"%d" % number, properties=properties)
    by_tag = {"topic": "mixed", "subString": "red || blue", "expressionType": "TAG"}
    codes = [_java_hash("red"), _java_hash("blue")]
    by_tag |= {"tagsSet": ["red", "blue"], "codeSet": codes}  # type: ignore[dict-item]
    by_sql = {"topic": "mixed", "subString": "TAGS <> 'green' AND n < 6", "expressionType": "SQL92"}
    broker.done(RequestCode.HEART_BEAT, {}, heartbeat("by-tag", by_tag))
    broker.done(RequestCode.HEART_BEAT, {}, heartbeat("by-sql", by_sql))
    wanted_by_tag = [b"%d" % n for n in range(12) if n % 3 != 1]
    wanted_by_sql = [b"%d" % n for n in range(6) if n % 3 != 1]
    wanted = [
        ({"subscription": "red || blue"}, wanted_by_tag),
        ({"sysFlag": "0", "consumerGroup": "by-tag"}, wanted_by_tag),
        ({"subscription": by_sql["subString"], "expressionType": "SQL92"}, wanted_by_sql),
        ({"sysFlag": "0", "consumerGroup": "by-sql", "expressionType": "SQL92"}, wanted_by_sql),
    ]
    for changes, bodies in wanted:
        assert broker.bodies("mixed", 0, changes) == bodies, changes


def _java_hash(text: str) -> int:
    code = 0
    for letter in text:
        code = (code * 31 + ord(letter)) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


# Pulls that are held.


@pytest.mark.proves("broker.pull.long-polling")
def test_a_held_pull_is_answered_when_a_message_arrives(
    cluster: LocalCluster, broker: Asker
) -> None:
    broker.make_topic("awaited")
    with held_pull(cluster, "awaited", 0) as client:
        broker.stored("awaited", b"there")
        answer = client.next_frame()
    assert [message.body for message in messages(answer)] == [b"there"]


@pytest.mark.proves("broker.pull.tag-pre-check")
def test_a_message_of_another_tag_does_not_wake_a_held_pull(
    cluster: LocalCluster, broker: Asker
) -> None:
    broker.make_topic("picky")
    app = cluster.brokers[0].app
    assert app is not None
    with held_pull(cluster, "picky", 0, subscription="blue") as client:
        for _ in range(3):
            broker.stored("picky", b"no", properties={"TAGS": "red"})
        assert len(app.pulls.held.parked) == 1
        broker.stored("picky", b"yes", properties={"TAGS": "blue"})
        answer = client.next_frame()
    assert [message.body for message in messages(answer)] == [b"yes"]
    assert answer.fields["nextBeginOffset"] == "4"


@pytest.mark.proves("broker.pull.hold-time", "broker.running.local-cluster")
def test_a_held_pull_is_answered_when_its_time_is_over(
    cluster: LocalCluster, broker: Asker
) -> None:
    broker.make_topic("quiet-topic")
    app = cluster.brokers[0].app
    assert app is not None
    with held_pull(cluster, "quiet-topic", 0, suspendTimeoutMillis="15000") as client:
        for _ in range(2):
            cluster.advance(ms=5_000)
            assert len(app.pulls.held.parked) == 1
        cluster.advance(ms=5_000)
        answer = client.next_frame()
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_a_pull_that_does_not_want_to_wait_is_answered_at_once(broker: Asker) -> None:
    broker.make_topic("hasty")
    assert broker.pull("hasty", 0, sysFlag="4").code == ResponseCode.PULL_NOT_FOUND


def test_a_deleted_topic_ends_its_held_pulls(cluster: LocalCluster, broker: Asker) -> None:
    broker.make_topic("doomed")
    with held_pull(cluster, "doomed", 0) as client:
        broker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "doomed"})
        assert client.next_frame().code == ResponseCode.TOPIC_NOT_EXIST


def _forbid_group(broker: Asker, group: str) -> None:
    broker.make_group(group, consumeEnable=False)


def _forbid_topic(broker: Asker, group: str) -> None:
    broker.make_topic(f"of-{group}", perm=2)


def _forbid_broker(broker: Asker, group: str) -> None:
    broker.change_settings("brokerPermission=2\n")


def _forbid_subscription(broker: Asker, group: str) -> None:
    fields = {"group": group, "topic": f"of-{group}", "readable": "false"}
    broker.done(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)


def _forbid_filters(broker: Asker, group: str) -> None:
    broker.change_settings("enablePropertyFilter=false\n")


LOSSES = {
    "group": (_forbid_group, ResponseCode.NO_PERMISSION),
    "topic": (_forbid_topic, ResponseCode.NO_PERMISSION),
    "broker": (_forbid_broker, ResponseCode.NO_PERMISSION),
    "subscription": (_forbid_subscription, ResponseCode.NO_PERMISSION),
    "filters": (_forbid_filters, ResponseCode.SYSTEM_ERROR),
}


@pytest.mark.proves("broker.pull.rights-taken-away")
@pytest.mark.parametrize("lost", LOSSES)
def test_a_right_that_is_taken_away_ends_its_held_pulls_with_the_refusal(
    cluster: LocalCluster, broker: Asker, lost: str
) -> None:
    group, (forbid, code) = f"losing-{lost}", LOSSES[lost]
    topic, own = f"of-{group}", {"consumerGroup": group, "sysFlag": "2", "subVersion": "1"}
    broker.make_topic(topic)
    broker.make_group(group)
    broker.change_settings("enablePropertyFilter=true\n")
    if lost == "filters":
        wanted = {"topic": topic, "subString": "a = 1", "expressionType": "SQL92"}
    else:
        wanted = {"topic": topic, "subString": "*"}
    broker.done(RequestCode.HEART_BEAT, {}, heartbeat(group, wanted))
    try:
        with held_pull(cluster, topic, 0, **own) as client:
            # A change that takes nothing away ends no pull.
            broker.make_group(group, retryQueueNums=2)
            broker.change_settings("traceOn=false\n")
            forbid(broker, group)
            answer = client.next_frame()
        assert answer.code == code, answer.remark
    finally:
        broker.change_settings("brokerPermission=6\nenablePropertyFilter=false\ntraceOn=true\n")


@pytest.mark.proves("broker.pull.short-polling")
def test_without_long_polling_a_pull_is_held_for_a_second() -> None:
    with LocalCluster(clock=ManualClock(), properties={"longPollingEnable": "false"}) as short:
        broker = Asker(short)
        broker.make_topic("polled")
        with held_pull(short, "polled", 0, suspendTimeoutMillis="60000") as client:
            short.advance(ms=1_000)
            assert client.next_frame().code == ResponseCode.PULL_NOT_FOUND


# Limits.


@pytest.mark.proves("broker.pull.memory-limits")
def test_a_pull_gets_no_more_than_the_limits_allow(broker: Asker) -> None:
    for _ in range(40):
        broker.stored("plenty", b"x" * 20_000)
    by_count = broker.pull("plenty", 0, maxMsgNums="3")
    by_bytes = broker.pull("plenty", 0, maxMsgNums="1000")
    assert len(messages(by_count)) == 3
    assert 1 < len(messages(by_bytes)) < 32
    assert len(by_bytes.body) <= 262_144
    broker.change_settings("maxTransferCountOnMessageInMemory=5\n")
    try:
        assert len(messages(broker.pull("plenty", 0, maxMsgNums="1000"))) == 5
    finally:
        broker.change_settings("maxTransferCountOnMessageInMemory=32\n")


@pytest.mark.proves("broker.pull.disk-limits")
def test_messages_that_left_memory_come_in_smaller_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as small:
        # A machine whose memory is one byte: everything read lies on the disk.
        small.setattr("os.sysconf", lambda name: 1)
        with LocalCluster(clock=ManualClock()) as cold:
            broker = Asker(cold)
            for _ in range(20):
                broker.stored("cold", b"x" * 1000)
            cold.advance(ms=5_000)
            answer = broker.pull("cold", 0)
            assert len(messages(answer)) == 8
            assert answer.fields["nextBeginOffset"] == "8"


def test_more_pulls_than_may_be_held_are_answered_busy() -> None:
    with LocalCluster(properties={"contrailParkedPullsMax": "1"}) as narrow:
        broker = Asker(narrow)
        broker.make_topic("crowded")
        with held_pull(narrow, "crowded", 0), RawClient(narrow.brokers[0].port) as second:
            answer = second.call(PULL, pull_fields("crowded", 0))
            assert answer.code == ResponseCode.SYSTEM_BUSY


def test_a_pull_whose_client_is_gone_is_forgotten(cluster: LocalCluster, broker: Asker) -> None:
    broker.make_topic("left")
    app = cluster.brokers[0].app
    assert app is not None
    with held_pull(cluster, "left", 0):
        pass

    def is_forgotten() -> bool:
        cluster.advance(ms=5_000)
        return len(app.pulls.held.parked) == 0

    eventually(is_forgotten, "the pull is dropped")
