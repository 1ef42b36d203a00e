"""Groups at a real broker: who is in them, how far they are, and what they hold locked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.protocol.bodies.locks import (
    LockRequest,
    decode_locked_queues,
    encode_lock_request,
)
from contrail.protocol.bodies.reset import decode_reset_offsets
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, held_pull, messages
from tests.e2e.raw_client import RawClient, heartbeat

BEAT = RequestCode.HEART_BEAT


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> Asker:
    return Asker(cluster)


def notices(client: RawClient, code: int) -> Request:
    """The next request of this code that the broker sends."""
    while True:
        found = client.next_frame()
        if isinstance(found, Request) and found.code == code:
            return found


def members(broker: Asker, group: str) -> list[str]:
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    body = broker.done(code, {"consumerGroup": group}).body
    return sorted(json.loads(body)["consumerIdList"])


@pytest.mark.proves("broker.clients.group-changes")
def test_members_of_a_group_are_told_when_one_joins_and_when_one_leaves(broker: Asker) -> None:
    port = broker.broker.port
    changed = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    with RawClient(port) as first:
        assert first.call(BEAT, {}, heartbeat("first", group="team")).code == 0
        with RawClient(port) as second:
            assert second.call(BEAT, {}, heartbeat("second", group="team")).code == 0
            assert notices(first, changed).fields["consumerGroup"] == "team"
            assert members(broker, "team") == ["first", "second"]
        # The second has left without a word.
        assert notices(first, changed).fields["consumerGroup"] == "team"
        assert members(broker, "team") == ["first"]
        fields = {"clientID": "first", "consumerGroup": "team"}
        assert first.call(RequestCode.UNREGISTER_CLIENT, fields).code == 0
    gone = broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "team"})
    assert gone.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.proves("broker.clients.reset")
def test_a_reset_sends_the_next_pull_to_its_place(broker: Asker) -> None:
    for number in range(6):
        broker.stored("again", b"%d" % number)
    broker.make_group("rewound")
    broker.set_offset("rewound", "again", 6)
    fields = {"group": "rewound", "topic": "again", "timestamp": "-1", "isForce": "true"}
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    broker.done(code, {**fields, "queueId": "0", "offset": "2"})
    # A client that still commits where it was must not undo the reset.
    broker.set_offset("rewound", "again", 6)
    moved = broker.pull("again", 6, consumerGroup="rewound")
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    found = broker.pull("again", 2, consumerGroup="rewound")
    assert [message.body for message in messages(found)] == [b"2", b"3", b"4", b"5"]
    assert broker.offset_of("rewound", "again") == 2


@pytest.mark.proves("broker.clients.reset-told", "kinds.order.reset")
def test_clients_are_told_of_a_reset_when_they_keep_the_offsets() -> None:
    properties = {"useServerSideResetOffset": "false"}
    with LocalCluster(properties=properties) as clients_keep:
        broker = Asker(clients_keep)
        broker.make_topic("moved", read=1, write=1)
        for number in range(4):
            broker.stored("moved", b"%d" % number)
        broker.make_group("team")
        broker.set_offset("team", "moved", 4)
        with RawClient(broker.broker.port) as client:
            assert client.call(BEAT, {}, heartbeat("me", group="team", topic="moved")).code == 0
            fields = {"group": "team", "topic": "moved", "timestamp": "0", "isForce": "true"}
            broker.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            notice = notices(client, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    queue = MessageQueue("moved", broker.broker.name, 0)
    assert decode_reset_offsets(notice.body) == {queue: 0}
    assert (notice.fields["group"], notice.fields["topic"]) == ("team", "moved")


@pytest.mark.proves("broker.clients.persisted")
def test_offsets_reach_their_file_within_five_seconds(cluster: LocalCluster, broker: Asker) -> None:
    broker.stored("written", b"x")
    broker.make_group("diligent")
    broker.set_offset("diligent", "written", 1)
    path = broker.broker.folder / "store" / "config" / "consumerOffset.json"
    cluster.advance(ms=5_000)
    eventually(lambda: _written_offset(path) == 1, "the offset is in the file")


def _written_offset(path: Path) -> int | None:
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    # RocketMQ writes the queue as a number without quotes.
    table = json.loads(text.replace("{0:", '{"0":').replace(",0:", ',"0":'))["offsetTable"]
    return table.get("written@diligent", {}).get("0")  # type: ignore[no-any-return]


@pytest.mark.proves("broker.pull.filters-persisted", "broker.clients.persisted-at-stop")
def test_filters_offsets_and_topics_are_there_after_a_restart(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path) as first:
        broker = Asker(first)
        broker.make_topic("kept", read=3, write=3)
        for number in range(6):
            broker.stored("kept", b"%d" % number, properties={"n": str(number)})
        broker.make_group("filtering")
        broker.set_offset("filtering", "kept", 2)
        sql = {"topic": "kept", "subString": "n >= 4", "expressionType": "SQL92", "subVersion": 1}
        broker.done(BEAT, {}, _heartbeat("filtering", sql))
        first.brokers[0].stop()
        first.brokers[0].start()
        assert broker.offset_of("filtering", "kept") == 2
        app = first.brokers[0].app
        assert app is not None
        topic = app.tables.topics.table.get("kept")
        assert topic is not None and topic.read_queue_count == 3
        kept = app.tables.filters.get("kept", "filtering")
        assert kept is not None and kept.expression == "n >= 4"
        broker.done(BEAT, {}, _heartbeat("filtering", sql))
        found = broker.bodies("kept", 0, {"consumerGroup": "filtering", "sysFlag": "0"})
        assert found == [b"4", b"5"]


def _heartbeat(group: str, subscription: dict[str, object]) -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json.dumps({"clientID": "me", "consumerDataSet": [consumer]}).encode()


@pytest.mark.proves("broker.clients.lock-expiry", "kinds.order.fifo")
def test_a_lock_is_free_for_others_a_minute_after_its_owner_fell_silent(
    cluster: LocalCluster, broker: Asker
) -> None:
    broker.make_topic("ordered")
    broker.make_group("orderly")
    queue = MessageQueue("ordered", broker.broker.name, 0)

    def lock(client: str) -> bool:
        body = encode_lock_request(LockRequest("orderly", client, (queue,)))
        answer = broker.done(RequestCode.LOCK_BATCH_MQ, {}, body)
        return queue in decode_locked_queues(answer.body)

    member = {"groupName": "orderly", "consumeType": "CONSUME_PASSIVELY"}
    heartbeat = {"clientID": "first", "consumerDataSet": [member]}
    broker.done(RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode())
    assert lock("first") and not lock("second")
    cluster.advance(ms=59_000)
    assert not lock("second")
    cluster.advance(ms=2_000)
    assert lock("second") and not lock("first")
    # This one has sent no heartbeat: it is gone, and stops after 30 s at the latest.
    cluster.advance(ms=29_000)
    assert not lock("first")
    cluster.advance(ms=2_000)
    assert lock("first")


@pytest.mark.proves("broker.topics.min-offset-flag")
def test_a_group_that_reads_from_the_smallest_offset_says_so(broker: Asker) -> None:
    broker.make_group("eager", consumeFromMinEnable=True)
    broker.make_group("modest", consumeFromMinEnable=False)
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    said = [
        json.loads(broker.done(code, {"group": group}).body)["consumeFromMinEnable"]
        for group in ("eager", "modest")
    ]
    assert said == [True, False]


def test_a_clone_takes_a_groups_progress_to_another(broker: Asker) -> None:
    broker.stored("cloned", b"x")
    broker.make_group("old")
    broker.set_offset("old", "cloned", 1)
    fields = {"srcGroup": "old", "destGroup": "new", "topic": "cloned", "offline": "true"}
    broker.done(RequestCode.CLONE_GROUP_OFFSET, fields)
    assert broker.offset_of("new", "cloned") == 1


@pytest.mark.proves("kinds.order.reset")
def test_a_held_pull_learns_of_a_reset_at_once(cluster: LocalCluster, broker: Asker) -> None:
    for number in range(3):
        broker.stored("held", b"%d" % number)
    broker.make_group("holders")
    with held_pull(cluster, "held", 3, consumerGroup="holders") as client:
        fields = {"group": "holders", "topic": "held", "timestamp": "-1", "isForce": "true"}
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        broker.done(code, {**fields, "queueId": "0", "offset": "1"})
        answer = client.answer_to(1)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


def test_a_held_pull_learns_that_its_topic_may_not_be_read_any_more(
    cluster: LocalCluster, broker: Asker
) -> None:
    broker.stored("closed", b"1")
    broker.make_group("holders")
    with held_pull(cluster, "closed", 1, consumerGroup="holders") as client:
        broker.make_topic("closed", read=4, write=4, perm=2)
        assert client.answer_to(1).code == ResponseCode.NO_PERMISSION
