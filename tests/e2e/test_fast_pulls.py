"""Pulls of many places; the fast path answers what the general way answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrail.broker.fast import pull_templates
from contrail.broker.fast.pull_templates import PeerTemplates
from contrail.broker.fast.pulls import Outcome
from contrail.broker.services.cold_reads import ColdReads, FarAnswer
from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.store.services.queue_runs import QueueRuns
from contrail.testing import LocalCluster
from tests.e2e.raw_client import RawClient, pull_fields
from tests.e2e.ways import FAST_ONLY

TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path: Path, fast_path: str) -> Iterator[LocalCluster]:
    with LocalCluster(folder=tmp_path, properties={"contrailFastPath": fast_path}) as running:
        yield running


def send(cluster: LocalCluster, count: int, *, queue_id: int = 0, body: bytes = b"x") -> None:
    fields = {"a": "g", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": "1", "h": "0", "i": "", "j": "0", "k": "false"}
    for _ in range(count):
        answer = cluster.caller.call(
            cluster.brokers[0].address, RequestCode.SEND_MESSAGE_V2, fields, body
        )
        assert answer.code == ResponseCode.SUCCESS


def pull(cluster: LocalCluster, queue_offset: int, **changes: str) -> ReceivedResponse:
    fields = {
        "consumerGroup": "readers",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": str(queue_offset),
        "maxMsgNums": "4",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    return cluster.caller.call(
        cluster.brokers[0].address, RequestCode.PULL_MESSAGE, fields | changes
    )


def go_without_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerTemplates, "take", lambda templates, data: 0)


def fast_and_general(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, queue_offset: int, **changes: str
) -> list[ReceivedResponse]:
    app = cluster.brokers[0].app
    assert app is not None
    pull(cluster, queue_offset, **changes)
    pull(cluster, queue_offset, **changes)
    direct = pull(cluster, queue_offset, **changes)
    go_without_templates(monkeypatch)
    fast = pull(cluster, queue_offset, **changes)
    assert direct._replace(opaque=0) == fast._replace(opaque=0)
    with monkeypatch.context() as patched:
        stand_in_line(patched)
        turn = pull(cluster, queue_offset, **changes)
    assert turn._replace(opaque=0) == fast._replace(opaque=0)
    with monkeypatch.context() as patched:
        patched.setattr(app.fast.pulls, "_give_run", lambda peer, frames, at: (at, Outcome.GENERAL))
        general = pull(cluster, queue_offset, **changes)
    return [answer._replace(opaque=0) for answer in (fast, general)]


@FAST_ONLY
@pytest.mark.parametrize("queue_offset", [0, 3, 8, 9, 10, 11, 10**6])
@pytest.mark.parametrize("count", ["1", "4", "32", "100000"])
def test_both_ways_give_the_same_answer(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, queue_offset: int, count: str
) -> None:
    send(cluster, 5)
    send(cluster, 2, queue_id=1)
    send(cluster, 5, body=b"y" * 1000)
    fast, general = fast_and_general(cluster, monkeypatch, queue_offset, maxMsgNums=count)
    assert fast == general


@FAST_ONLY
def test_the_shortcut_is_really_taken(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, 5)
    app = cluster.brokers[0].app
    assert app is not None
    taken: list[tuple[int, Outcome]] = []
    go_without_templates(monkeypatch)
    fast_way = app.fast.pulls._give_run
    monkeypatch.setattr(
        app.fast.pulls,
        "_give_run",
        lambda *given: taken.append(fast_way(*given)) or taken[-1],
    )
    for _ in range(4):
        assert pull(cluster, 0).code == ResponseCode.SUCCESS
    # An answer may arrive before the watcher has noted its pull; the third pull is noted by now.
    assert (1, Outcome.ANSWERED) in taken


def watch_templates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each read that templates take: its bytes, and how many of them were answered."""
    taken: list[tuple[int, int]] = []
    take = PeerTemplates.take

    def watched(self: PeerTemplates, data: bytes) -> int:
        end = take(self, data)
        if end:
            taken.append((len(data), end))
        return end

    monkeypatch.setattr(PeerTemplates, "take", watched)
    # On a busy machine a tick may take so long that pulls have to be looked at.
    monkeypatch.setattr(pull_templates, "_SHORT_TICK_S", 60.0)
    return taken


@FAST_ONLY
def test_a_pull_that_found_nothing_leaves_a_known_form(cluster: LocalCluster) -> None:
    """The groups' reads are noted now and then, by a walk over all known forms."""
    send(cluster, 3)
    app = cluster.brokers[0].app
    assert app is not None
    for queue_offset in (0, 1, 3, 0, 1):
        pull(cluster, queue_offset)
    [form] = app.fast.pulls.forms.by_key.values()
    templates = app.fast.pulls.templates._by_text.values()
    assert [list(template.forms.values()) for template in templates] == [[form]]


@pytest.mark.proves("broker.fast.end-end-tests", "apache.peers.without-a-tick")
@pytest.mark.parametrize("is_far", [False, True])
def test_a_consumer_that_reads_on_is_answered_before_the_decoder(
    cluster: LocalCluster, fast_path: str, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    taken = watch_templates(monkeypatch)
    send(cluster, 9)
    send(cluster, 5, queue_id=1)
    if is_far:
        start_again(cluster)
    app = cluster.brokers[0].app
    assert app is not None
    for queue_id, count in (("0", 9), ("1", 5)):
        for queue_offset in range(count):
            place = {"queueId": queue_id, "commitOffset": str(queue_offset)}
            answer = pull(cluster, queue_offset, sysFlag="5", **place)
            assert answer.code == ResponseCode.SUCCESS
            assert answer.fields["nextBeginOffset"] == str(min(queue_offset + 4, count))
            found = [record.queue_offset for record in split_record_run(answer.body)]
            assert found == list(range(queue_offset, min(queue_offset + 4, count)))
            offsets = app.tables.consumer_offsets
            assert offsets.query("readers", TOPIC, int(queue_id)) == queue_offset
    assert len(taken) >= 8 or fast_path == "off"
    assert all(size == answered for size, answered in taken)
    # Six of four messages and three of fewer; two of four and three of fewer.
    app.stats.sample(10**15)
    assert app.stats.item("GROUP_GET_NUMS", f"{TOPIC}@readers").value == 6 * 4 + 6 + 2 * 4 + 6


def test_a_pull_that_is_not_fast_leaves_the_fast_pulls_before_it_answered(
    cluster: LocalCluster, fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one write: fast pulls, one that cannot be read, one at the end, another request."""
    taken = watch_templates(monkeypatch)
    send(cluster, 10)
    fields = pull_fields(TOPIC, 0, consumerGroup="readers", maxMsgNums="2")
    read = QueueRuns.read

    def failing(self: QueueRuns, queue_offset: int, *given: Any) -> Any:
        if queue_offset == 5:
            raise OSError("this one cannot be read")
        return read(self, queue_offset, *given)

    with RawClient(cluster.brokers[0].port) as client:
        for opaque in range(4):
            frame = encode_request(Request(RequestCode.PULL_MESSAGE, opaque, fields))
            client.send(frame)
            assert client.next_frame().code == ResponseCode.SUCCESS
        assert taken or fast_path == "off", "it is known by now"
        monkeypatch.setattr(QueueRuns, "read", failing)
        requests = [
            Request(RequestCode.PULL_MESSAGE, 10 + at, fields | {"queueOffset": str(at)})
            for at in (0, 2, 10**6, 4)
        ]
        ends = {"topic": TOPIC, "queueId": "0"}
        requests.append(Request(RequestCode.GET_MAX_OFFSET, 7, ends))
        client.send(b"".join(map(encode_request, requests)))
        answers = [client.next_frame() for _ in requests]
        # Order holds for what is answered, too.
        assert [answer.opaque for answer in answers] == [10, 12, 10 + 10**6, 14, 7]
        assert [answer.code for answer in answers[:2]] == [0, 0]
        assert answers[2].code == ResponseCode.PULL_OFFSET_MOVED
        assert answers[3].code == 0
        assert answers[4].fields["offset"] == "10"
        places = (0, 5)
        requests = [
            Request(RequestCode.PULL_MESSAGE, 20 + at, fields | {"queueOffset": str(at)})
            for at in places
        ]
        client.send(b"".join(map(encode_request, requests)))
        assert client.next_frame().opaque == 20, "the one before the damage has its answer"


def test_a_pending_reset_is_told_before_a_pull_is_answered_fast(
    cluster: LocalCluster, fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = watch_templates(monkeypatch)
    send(cluster, 5)
    for _ in range(5):
        pull(cluster, 3)
    assert taken or fast_path == "off"
    app = cluster.brokers[0].app
    assert app is not None
    app.tables.consumer_offsets.assign_reset("readers", TOPIC, 0, 1)
    moved = pull(cluster, 3)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.fields["nextBeginOffset"] == "1"
    assert pull(cluster, 3).code == ResponseCode.SUCCESS


def test_messages_just_stored_are_found_by_a_consumer_that_reads_on(
    cluster: LocalCluster, fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = watch_templates(monkeypatch)
    send(cluster, 2)
    for _ in range(4):
        pull(cluster, 0)
    assert taken or fast_path == "off"
    for count in range(3, 20):
        send(cluster, 1)
        answer = pull(cluster, count - 1)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields["maxOffset"] == str(count)


# Messages from before the broker's start count as far back: they may be on the disk only.


def start_again(cluster: LocalCluster) -> None:
    cluster.brokers[0].stop()
    cluster.brokers[0].start()


def stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if others were waiting already."""
    monkeypatch.setattr(ColdReads, "may_skip_line", False)


@FAST_ONLY
@pytest.mark.parametrize("queue_offset", [0, 3, 8, 9, 10, 11])
@pytest.mark.parametrize("count", ["1", "4", "100000"])
def test_both_ways_give_the_same_answer_from_further_back(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, queue_offset: int, count: str
) -> None:
    send(cluster, 5)
    send(cluster, 2, queue_id=1)
    send(cluster, 5, body=b"y" * 1000)
    start_again(cluster)
    fast, general = fast_and_general(cluster, monkeypatch, queue_offset, maxMsgNums=count)
    assert fast == general


def test_eight_pulls_of_old_messages_skip_the_line_and_the_others_take_turns(
    cluster: LocalCluster, fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = watch_templates(monkeypatch)
    send(cluster, 20)
    start_again(cluster)
    fields = pull_fields(TOPIC, 0, consumerGroup="readers", maxMsgNums="2")
    with RawClient(cluster.brokers[0].port) as client:
        for opaque in range(4):
            client.send(encode_request(Request(RequestCode.PULL_MESSAGE, opaque, fields)))
            assert client.next_frame().code == ResponseCode.SUCCESS
        assert taken or fast_path == "off", "it is known by now"
        frames = [
            encode_request(
                Request(RequestCode.PULL_MESSAGE, 20 + at, fields | {"queueOffset": "7"})
            )
            for at in range(12)
        ]
        client.send(b"".join(frames))
        answers = [client.next_frame() for _ in frames]
    assert [answer.opaque for answer in answers] == list(range(20, 32))
    assert {answer.fields["nextBeginOffset"] for answer in answers} == {"9"}
    size = len(frames[0])
    assert (12 * size, 8 * size) in taken or fast_path == "off"


@FAST_ONLY
@pytest.mark.parametrize("way", ["_give_run", "_answer_far"])
def test_the_shortcuts_for_what_lies_further_back_are_really_taken(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    send(cluster, 5)
    start_again(cluster)
    app = cluster.brokers[0].app
    assert app is not None
    taken: list[object] = []
    fast_way = getattr(app.fast.pulls, way)
    monkeypatch.setattr(
        app.fast.pulls,
        way,
        lambda *given: taken.append(fast_way(*given)) or taken[-1],
    )
    go_without_templates(monkeypatch)
    if way == "_answer_far":
        stand_in_line(monkeypatch)
    for _ in range(4):
        assert pull(cluster, 0, sysFlag="5", commitOffset="2").code == ResponseCode.SUCCESS
    # An answer may arrive before the watcher has noted its pull; the third pull is noted by now.
    assert (1, Outcome.ANSWERED) in taken or isinstance(taken[-1], FarAnswer)
    assert app.tables.consumer_offsets.query("readers", TOPIC, 0) == 2


@pytest.mark.parametrize(("in_line", "in_memory"), [(False, True), (True, True), (True, False)])
def test_a_pull_from_further_back_commits_when_it_arrives(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, in_line: bool, in_memory: bool
) -> None:
    send(cluster, 60)
    start_again(cluster)
    app = cluster.brokers[0].app
    assert app is not None
    for _ in range(3):
        pull(cluster, 0, sysFlag="5", commitOffset="2")
    if in_line:
        go_without_templates(monkeypatch)
        stand_in_line(monkeypatch)
    if not in_memory:
        monkeypatch.setattr(app.fast.pulls, "_answer_far", lambda pull, peer: None)
    with RawClient(cluster.brokers[0].port) as client:
        fields = pull_fields(TOPIC, 0, sysFlag="5", commitOffset="5", consumerGroup="readers")
        newer = {"consumerGroup": "readers", "topic": TOPIC, "queueId": "0", "commitOffset": "50"}
        client.send(
            encode_request(Request(RequestCode.PULL_MESSAGE, 1, fields))
            + encode_request(Request(RequestCode.UPDATE_CONSUMER_OFFSET, 2, newer))
        )
        told = [client.next_frame() for _ in range(2)]
    assert {answer.opaque: answer.code for answer in told} == {1: 0, 2: 0}
    assert app.tables.consumer_offsets.query("readers", TOPIC, 0) == 50


def test_a_consumer_of_long_stretches_gets_as_many_as_fit_the_bytes(
    cluster: LocalCluster,
) -> None:
    send(cluster, 100)
    start_again(cluster)
    for changes, count in (({}, 32), ({"contrailBulk": "true"}, 100)):
        for _ in range(3):
            answer = pull(cluster, 0, maxMsgNums="512", **changes)
            assert len(list(split_record_run(answer.body))) == count
    send(cluster, 5)
    for _ in range(3):
        answer = pull(cluster, 100, maxMsgNums="512", contrailBulk="true")
        assert answer.fields["nextBeginOffset"] == "105"


def test_a_damaged_message_further_back_is_not_handed_out(tmp_path: Path, fast_path: str) -> None:
    properties = {"contrailFastPath": fast_path, "contrailSoundFor": "0"}
    with LocalCluster(folder=tmp_path, properties=properties) as cluster:
        send(cluster, 3)
        send(cluster, 1, body=b"to be damaged")
        start_again(cluster)
        for _ in range(3):
            whole = pull(cluster, 0)
            assert b"to be damaged" in whole.body
        log = next((cluster.brokers[0].folder / "store" / "commitlog").iterdir())
        place = log.read_bytes().index(b"to be damaged")
        with log.open("r+b") as file:
            file.seek(place)
            file.write(b"T")
        assert b"o be damaged" not in pull(cluster, 0).body
        assert pull(cluster, 3).code != ResponseCode.SUCCESS


def test_a_pull_commits_the_offset_it_carries(cluster: LocalCluster) -> None:
    send(cluster, 5)
    for commit in ("1", "2", "3", "4"):
        pull(cluster, 0, sysFlag="5", commitOffset=commit)
    answer = cluster.caller.call(
        cluster.brokers[0].address,
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "readers", "topic": TOPIC, "queueId": "0"},
    )
    assert answer.fields["offset"] == "4"


def test_a_topic_made_unreadable_is_refused_at_once(cluster: LocalCluster) -> None:
    send(cluster, 5)
    for _ in range(3):
        assert pull(cluster, 0).code == ResponseCode.SUCCESS
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4"}
    fields |= {
        "writeQueueNums": "4",
        "perm": "2",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    address = cluster.brokers[0].address
    assert cluster.caller.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    assert pull(cluster, 0).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("text", ["9" * 30, "\u0663", "-7", "1e3", " 5", ""])
def test_an_odd_offset_to_commit_is_never_committed(cluster: LocalCluster, text: str) -> None:
    send(cluster, 5)
    for _ in range(3):
        pull(cluster, 0, sysFlag="5", commitOffset="3")
    pull(cluster, 0, sysFlag="5", commitOffset=text)
    app = cluster.brokers[0].app
    assert app is not None
    assert app.tables.consumer_offsets.query("readers", TOPIC, 0) == 3


def test_a_huge_offset_is_answered_and_harms_nobody(cluster: LocalCluster) -> None:
    send(cluster, 5)
    for _ in range(3):
        pull(cluster, 0)
    assert pull(cluster, 0, queueOffset="9" * 5000).code == ResponseCode.SYSTEM_ERROR
    assert pull(cluster, 0, maxMsgNums="9" * 5000).code == ResponseCode.SYSTEM_ERROR
    assert pull(cluster, 0).code == ResponseCode.SUCCESS


def test_a_long_subscription_is_not_remembered(cluster: LocalCluster) -> None:
    send(cluster, 1)
    app = cluster.brokers[0].app
    assert app is not None
    for number in range(3):
        pull(cluster, 0, subscription=" || ".join(f"tag{number}-{n}" for n in range(500)))
    assert len(app.pulls._admission._passed) == 0


def test_pulls_and_others_of_one_write_are_all_answered(cluster: LocalCluster) -> None:
    send(cluster, 10)
    fields = {"consumerGroup": "readers", "topic": TOPIC, "queueId": "0", "maxMsgNums": "4"}
    fields |= {"sysFlag": "5", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    for _ in range(2):
        pull(cluster, 0, sysFlag="5")
    ends = {"topic": TOPIC, "queueId": "0"}
    with RawClient(cluster.brokers[0].port) as client:
        frames = []
        for opaque, queue_offset in enumerate((0, 4, None, 8, 2, 10**6, 6)):
            if queue_offset is None:
                request = Request(RequestCode.GET_MAX_OFFSET, opaque, ends, b"")
            else:
                place = {"queueOffset": str(queue_offset), "commitOffset": str(queue_offset)}
                request = Request(RequestCode.PULL_MESSAGE, opaque, fields | place, b"")
            frames.append(encode_request(request))
        client.send(b"".join(frames))
        answers = {answer.opaque: answer for answer in (client.next_frame() for _ in frames)}
    assert sorted(answers) == list(range(7))
    found = {
        opaque: len(list(split_record_run(answers[opaque].body))) for opaque in (0, 1, 3, 4, 6)
    }
    assert found == {0: 4, 1: 4, 3: 2, 4: 4, 6: 4}
    assert answers[2].fields["offset"] == "10"
    assert answers[5].code == ResponseCode.PULL_OFFSET_MOVED
    app = cluster.brokers[0].app
    assert app is not None
    assert app.tables.consumer_offsets.query("readers", TOPIC, 0) == 6, "the last one counts"
