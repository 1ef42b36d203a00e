"""The requests of sinks: rows are stored once, prepared rows become visible together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from contrail.clock import ManualClock
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.properties import encode_properties
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages
from tests.e2e.sink_asking import (
    abort,
    ask_commit,
    begin,
    commit,
    prepare,
    rows,
    send,
    send_fields,
    status,
)

_names = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> Asker:
    return Asker(cluster)


@pytest.fixture
def topic(broker: Asker) -> str:
    name = f"rows-{next(_names)}"
    broker.make_topic(name)
    return name


@pytest.fixture
def sink() -> str:
    return f"query/{next(_names)}"


def bodies(key: str, *seqs: int) -> list[bytes]:
    return [f"{key}#{seq}".encode() for seq in seqs]


def queue_end(broker: Asker, topic: str, queue_id: int = 0) -> int:
    fields = {"topic": topic, "queueId": str(queue_id)}
    return int(broker.done(RequestCode.GET_MAX_OFFSET, fields).fields["offset"])


# Rows.


def test_rows_that_are_sent_again_are_dropped_and_count_as_stored(
    broker: Asker, topic: str, sink: str
) -> None:
    key = f"{sink}/0/3"
    assert send(broker, topic, rows(key, [1, 2, 5])) == (3, 0, 0)
    assert send(broker, topic, rows(key, [1, 2, 5])) == (0, 3, -1)
    assert send(broker, topic, rows(key, [2, 5, 6, 9])) == (2, 2, 3)
    assert broker.bodies(topic) == bodies(key, 1, 2, 5, 6, 9)


def test_each_queue_and_partition_counts_for_itself(broker: Asker, topic: str, sink: str) -> None:
    assert send(broker, topic, rows(f"{sink}/0/0", [1]), 0) == (1, 0, 0)
    assert send(broker, topic, rows(f"{sink}/0/0", [1]), 1) == (1, 0, 0)
    assert send(broker, topic, rows(f"{sink}/0/1", [1]), 0) == (1, 0, 1)
    assert send(broker, topic, rows(f"{sink}-other/0/0", [1]), 0) == (1, 0, 2)


def test_rows_of_an_older_batch_are_repeats_and_those_of_a_newer_one_are_not(
    broker: Asker, topic: str, sink: str
) -> None:
    assert send(broker, topic, rows(f"{sink}/7/0", [3]))[0] == 1
    assert send(broker, topic, rows(f"{sink}/6/0", [4, 5])) == (0, 2, -1)
    assert send(broker, topic, rows(f"{sink}/8/0", [0, 1])) == (2, 0, 1)


def test_delayed_rows_wait_and_count_for_the_queue_they_are_for(
    broker: Asker, cluster: LocalCluster, topic: str, sink: str
) -> None:
    key = f"{sink}/0/0"
    level = rows(key, [1], properties={"DELAY": "1"})
    timed = rows(key, [2], properties={"TIMER_DELAY_MS": "1500"})
    assert send(broker, topic, level)[0] == 1
    assert send(broker, topic, timed)[0] == 1
    assert send(broker, topic, level + timed)[:2] == (0, 2)
    assert send(broker, topic, level + timed + rows(key, [3]))[:2] == (1, 2)
    assert broker.bodies(topic) == bodies(key, 3)
    for _ in range(5):
        cluster.advance(ms=1000)
    eventually(lambda: len(broker.bodies(topic)) == 3, "the delayed rows are delivered")
    assert sorted(broker.bodies(topic)) == bodies(key, 1, 2, 3)
    assert send(broker, topic, level + timed)[:2] == (0, 2)


def test_an_ordinary_send_with_the_same_properties_is_just_a_message(
    broker: Asker, topic: str, sink: str
) -> None:
    key = f"{sink}/0/0"
    forged = {"SPARK_SINK_KEY": key, "SPARK_SINK_SEQ": "9"}
    broker.stored(topic, b"forged", properties=forged)
    broker.stored(topic, b"forged", properties=forged)
    assert send(broker, topic, rows(key, [1])) == (1, 0, 2)


def test_a_deleted_topic_takes_its_rows_again(broker: Asker, topic: str, sink: str) -> None:
    key = f"{sink}/0/0"
    send(broker, topic, rows(key, [1]))
    broker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    broker.make_topic(topic)
    assert send(broker, topic, rows(key, [1]))[0] == 1


# Refusals.


def unit(**properties: str) -> bytes:
    return encode_batch([BatchUnit(b"x", encode_properties(properties))])


def large_unit() -> bytes:
    return encode_batch([BatchUnit(b"x" * (4 << 20), encode_properties(GOOD))])


GOOD = {"SPARK_SINK_KEY": "bad/0/0", "SPARK_SINK_SEQ": "1"}


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "holds no message"),
        (b"no batch", "cut off"),
        (unit(), "SPARK_SINK_KEY='' must be sinkId/batchId/partition"),
        (unit(**GOOD | {"SPARK_SINK_KEY": "bad/0"}), "must be sinkId/batchId/partition"),
        (unit(**GOOD | {"SPARK_SINK_KEY": "bad/x/0"}), "must be sinkId/batchId/partition"),
        (unit(**GOOD | {"SPARK_SINK_KEY": "bad/0/-1"}), "must be sinkId/batchId/partition"),
        (unit(**GOOD | {"SPARK_SINK_KEY": f"{'n' * 129}/0/0"}), "1 to 128 printable"),
        (unit(SPARK_SINK_KEY="bad/0/0"), "message 1 of the batch has the SPARK_SINK_SEQ -1"),
        (unit(**GOOD | {"SPARK_SINK_SEQ": "1.5"}), "must be a number"),
        (unit(**GOOD) + unit(**GOOD), "message 2 of the batch has the SPARK_SINK_SEQ 1"),
        (unit(**GOOD) + unit(SPARK_SINK_KEY="bad/0/1", SPARK_SINK_SEQ="2"), "another task"),
        (large_unit(), "send it in parts"),
        (unit(**GOOD, DELAY="soon"), "no whole number"),
        (unit(**GOOD, TRAN_MSG="true"), "prepared=true"),
        (unit(**GOOD, INNER_NUM="2"), "marks of an inner batch"),
    ],
)
def test_rows_that_are_wrong_are_refused_with_a_reason_and_nothing_is_stored(
    broker: Asker, topic: str, body: bytes, remark: str
) -> None:
    answer = broker.ask(RequestCode.CONTRAIL_SINK_SEND, send_fields(topic), body)
    assert answer.code != ResponseCode.SUCCESS
    assert remark in (answer.remark or "")
    assert queue_end(broker, topic) == 0


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "'nowhere' does not exist"),
        ({"topic": "no good"}, ResponseCode.INVALID_PARAMETER, "no good"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "the broker's own"),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER, "queue 4"),
        ({"queueId": "-1"}, ResponseCode.MESSAGE_ILLEGAL, "queueId=-1"),
        ({"queueId": "x"}, ResponseCode.SYSTEM_ERROR, "queueId='x'"),
    ],
)
def test_a_send_to_a_wrong_place_is_refused(
    broker: Asker, topic: str, changes: dict[str, str], code: int, remark: str
) -> None:
    fields = send_fields(topic) | changes
    answer = broker.ask(RequestCode.CONTRAIL_SINK_SEND, fields, unit(**GOOD))
    assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
    assert queue_end(broker, topic) == 0


def test_a_missing_field_is_named(broker: Asker, topic: str) -> None:
    fields = send_fields(topic)
    del fields["queueId"]
    answer = broker.ask(RequestCode.CONTRAIL_SINK_SEND, fields, unit(**GOOD))
    assert "the required field queueId is missing" in (answer.remark or "")


@pytest.mark.parametrize(
    ("code", "fields", "body", "remark"),
    [
        (RequestCode.CONTRAIL_SINK_STATUS, {}, b"", "sinkId is missing"),
        (RequestCode.CONTRAIL_SINK_STATUS, {"sinkId": ""}, b"", "1 to 128 printable"),
        (RequestCode.CONTRAIL_SINK_BEGIN, {"batchId": "-1"}, b"{}", "counted from 0"),
        (RequestCode.CONTRAIL_SINK_BEGIN, {}, b"{", "the body is not a layout"),
        (RequestCode.CONTRAIL_SINK_BEGIN, {}, b"{}", "topics is missing"),
        (RequestCode.CONTRAIL_SINK_BEGIN, {}, b'{"topics":{"t":[["a"]]}}', "pairs"),
        (RequestCode.CONTRAIL_SINK_BEGIN, {}, b'{"topics":{"t":[["a",-1]]}}', "pairs"),
        (RequestCode.CONTRAIL_SINK_COMMIT, {}, b"[]", "the body is not a decision"),
        (RequestCode.CONTRAIL_SINK_COMMIT, {}, b"{}", "participants is missing"),
        (
            RequestCode.CONTRAIL_SINK_COMMIT,
            {},
            b'{"participants":{"b":{"x":"a"}}}',
            "no partition",
        ),
        (RequestCode.CONTRAIL_SINK_ABORT, {}, b'{"attempts":[1]}', "must hold texts"),
        (RequestCode.CONTRAIL_SINK_ABORT, {}, b'{"attempts":[""]}', "1 to 64 printable"),
    ],
)
def test_other_requests_that_are_wrong_are_refused_with_a_reason(
    broker: Asker, code: int, fields: dict[str, str], body: bytes, remark: str
) -> None:
    given = {"sinkId": "wrong", "batchId": "0"} if fields != {} or body else {}
    answer = broker.ask(code, given | fields, body)
    assert answer.code != ResponseCode.SUCCESS
    assert remark in (answer.remark or "")
    assert status(broker, "wrong")["known"] is False


# Layouts.


def test_a_layout_is_kept_merged_and_replaced_by_that_of_a_newer_batch(
    broker: Asker, sink: str
) -> None:
    assert status(broker, sink) == {"known": False, "layout": None, "decided": None}
    first = {"orders": [["broker-a", 0], ["broker-b", 1]]}
    told = begin(broker, sink, 4, first)
    assert told == {"known": True, "layout": {"batchId": 4, "topics": first}, "decided": None}
    # Known topics keep their queues.
    begin(broker, sink, 4, {"orders": [["broker-c", 5]], "bills": [["broker-a", 2]]})
    merged = {"batchId": 4, "topics": {**first, "bills": [["broker-a", 2]]}}
    assert status(broker, sink)["layout"] == merged
    assert begin(broker, sink, 3, {"late": []})["layout"] == merged
    newer = begin(broker, sink, 5, {"bills": [["broker-a", 0]]})
    assert newer["layout"] == {"batchId": 5, "topics": {"bills": [["broker-a", 0]]}}


def test_a_sink_that_only_sent_rows_is_not_known_to_its_status(
    broker: Asker, topic: str, sink: str
) -> None:
    send(broker, topic, rows(f"{sink}/0/0", [1]))
    assert status(broker, sink)["known"] is False


# Batches that become visible together.


def test_prepared_rows_are_seen_after_their_commit_in_their_order(
    broker: Asker, topic: str, sink: str
) -> None:
    assert prepare(broker, topic, f"{sink}/2/0", [1, 2, 3], "a1") == 3
    assert prepare(broker, topic, f"{sink}/2/1", [1, 2], "b1", queue_id=1) == 2
    assert broker.bodies(topic) == []
    attempts = {"0": "a1", "1": "b1"}
    assert commit(broker, sink, 2, attempts, decide=True) == (0, 0)
    decided = {"batchId": 2, "participants": {broker.broker.name: attempts}}
    assert status(broker, sink)["decided"] == decided
    assert broker.bodies(topic) == []
    assert commit(broker, sink, 2, attempts) == (5, 0)
    assert broker.bodies(topic) == bodies(f"{sink}/2/0", 1, 2, 3)
    assert broker.bodies(topic, 1) == bodies(f"{sink}/2/1", 1, 2)
    assert commit(broker, sink, 2, attempts) == (0, 0)
    assert commit(broker, sink, 2, attempts, decide=True) == (0, 0)
    assert len(broker.bodies(topic)) == 3


def test_rows_of_other_attempts_and_older_batches_are_rolled_back(
    broker: Asker, topic: str, sink: str
) -> None:
    prepare(broker, topic, f"{sink}/0/0", [1], "old")
    prepare(broker, topic, f"{sink}/1/0", [1, 2], "lost")
    prepare(broker, topic, f"{sink}/1/0", [1, 2], "won")
    prepare(broker, topic, f"{sink}/2/0", [1], "next")
    commit(broker, sink, 1, {"0": "won"}, decide=True)
    assert commit(broker, sink, 1, {"0": "won"}) == (2, 3)
    assert broker.bodies(topic) == bodies(f"{sink}/1/0", 1, 2)
    assert commit(broker, sink, 2, {"0": "next"}, decide=True) == (0, 0)
    assert commit(broker, sink, 2, {"0": "next"}) == (1, 0)


def test_rows_that_were_prepared_twice_are_committed_once(
    broker: Asker, topic: str, sink: str
) -> None:
    key = f"{sink}/0/0"
    for _ in range(2):
        prepare(broker, topic, key, range(1, 600), "a")
    prepare(broker, topic, key, range(600, 700), "a")
    commit(broker, sink, 0, {"0": "a"}, decide=True)
    assert commit(broker, sink, 0, {"0": "a"}) == (699, 599)
    assert broker.bodies(topic) == bodies(key, *range(1, 700))


def test_an_attempt_that_comes_after_the_decision_is_refused(
    broker: Asker, topic: str, sink: str
) -> None:
    commit(broker, sink, 3, {}, decide=True)
    fields = send_fields(topic, prepared="true")
    answer = broker.ask(
        RequestCode.CONTRAIL_SINK_SEND, fields, rows(f"{sink}/3/0", [1], attempt="late")
    )
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "is decided" in (answer.remark or "")


def test_a_prepared_row_needs_its_attempt_and_cannot_be_delayed(
    broker: Asker, topic: str, sink: str
) -> None:
    fields = send_fields(topic, prepared="true")
    for body, remark in (
        (rows(f"{sink}/0/0", [1]), "SPARK_SINK_ATTEMPT"),
        (rows(f"{sink}/0/0", [1], attempt="a", properties={"DELAY": "2"}), "cannot be delayed"),
    ):
        answer = broker.ask(RequestCode.CONTRAIL_SINK_SEND, fields, body)
        assert answer.code != ResponseCode.SUCCESS
        assert remark in (answer.remark or "")
    assert commit(broker, sink, 0, {"0": "a"}) == (0, 0)


def test_fast_rows_are_prepared_like_rows_of_the_general_way(
    broker: Asker, topic: str, sink: str
) -> None:
    """The first row of a request is admitted by all rules, fast ones after its pattern."""
    key = f"{sink}/0/0"
    units = [rows(key, [n], attempt="a", properties={"UNIQ_KEY": f"K{n}"}) for n in range(3)]
    send(broker, topic, b"".join(units[:2]), prepared="true")
    send(broker, topic, units[2], prepared="true")
    assert commit(broker, sink, 0, {"0": "a"}) == (3, 0)
    found = [dict(message.properties) for message in messages(broker.pull(topic, 0))]
    for number, properties in enumerate(found):
        assert properties.pop("UNIQ_KEY") == properties.pop("__transactionId__") == f"K{number}"
        assert properties.pop("SPARK_SINK_SEQ") == str(number)
    assert found[0] == found[1] == found[2]
    assert found[0]["PGROUP"] == "sinks"


def test_rows_of_several_attempts_are_refused(broker: Asker, topic: str, sink: str) -> None:
    body = rows(f"{sink}/0/0", [1], attempt="a") + rows(f"{sink}/0/0", [2], attempt="b")
    answer = broker.ask(RequestCode.CONTRAIL_SINK_SEND, send_fields(topic, prepared="true"), body)
    assert "several attempts" in (answer.remark or "")
    assert commit(broker, sink, 0, {"0": "a"}) == (0, 0)


def test_a_batch_has_one_decision(broker: Asker, topic: str, sink: str) -> None:
    prepare(broker, topic, f"{sink}/1/0", [1], "a")
    commit(broker, sink, 1, {"0": "a"}, decide=True)
    for decide in (True, False):
        refused = ask_commit(broker, sink, 1, {"0": "b"}, decide=decide)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        assert "decided for other attempts" in (refused.remark or "")
    undecided = ask_commit(broker, sink, 2, {"0": "b"}, decide=False)
    assert "not decided" in (undecided.remark or "")
    # Of an older one there is nothing left to do.
    assert commit(broker, sink, 0, {"0": "z"}, decide=True) == (0, 0)
    assert commit(broker, sink, 1, {"0": "a"}) == (1, 0)


def test_an_abort_rolls_back_what_was_not_decided(broker: Asker, topic: str, sink: str) -> None:
    prepare(broker, topic, f"{sink}/0/0", [1, 2], "a")
    prepare(broker, topic, f"{sink}/0/1", [1], "b")
    assert abort(broker, sink, 0, ["b", "nobody"]) == 1
    commit(broker, sink, 0, {"0": "a"}, decide=True)
    assert abort(broker, sink, 0, ["a", "b"]) == 0
    assert commit(broker, sink, 0, {"0": "a"}) == (2, 0)
    assert abort(broker, sink, 0, ["a"]) == 0
    assert broker.bodies(topic) == bodies(f"{sink}/0/0", 1, 2)


def test_prepared_rows_are_ended_by_their_sink_only(broker: Asker, topic: str, sink: str) -> None:
    prepare(broker, topic, f"{sink}/0/0", [1], "a")
    listed = json.loads(broker.done(RequestCode.LIST_TRANSACTIONS, {}).body)
    mine = [one for one in listed if one["topic"] == topic]
    assert [one["nextCheckMs"] for one in mine] == [-1]
    fields = {"msgId": mine[0]["msgId"], "fate": "rollback"}
    answer = broker.ask(RequestCode.DECIDE_TRANSACTION, fields)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "row of sink" in (answer.remark or "")
    assert abort(broker, sink, 0, ["a"]) == 1


def test_messages_of_a_sink_are_like_any_other(broker: Asker, topic: str, sink: str) -> None:
    key = f"{sink}/0/0"
    send(broker, topic, rows(key, [1], properties={"KEYS": "k", "TAGS": "t", "own": "p"}))
    (message,) = messages(broker.pull(topic, 0))
    assert message.properties["KEYS"] == "k"
    assert message.properties["own"] == "p"
    assert message.sys_flag == 0
