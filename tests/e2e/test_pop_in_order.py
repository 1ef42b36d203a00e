"""Pops in order through a real broker: a batch blocks its queue, and survives a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from contrail.clock import ManualClock
from contrail.protocol.bodies.pop import BatchAck, BatchAcks, encode_batch_acks
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.pop_info import read_order_counts
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import messages
from tests.e2e.pop_asking import GROUP, TOPIC, PopAsker, Popped, bodies, popped

INVISIBLE_MS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: LocalCluster) -> PopAsker:
    broker = PopAsker(cluster)
    broker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    broker.make_topic(TOPIC)
    for number in range(4):
        broker.stored(TOPIC, b"%d" % number)
    return broker


def take(broker: PopAsker, **changes: str) -> list[Popped]:
    return broker.popped(order="true", queueId="0", **changes)


def waiting(cluster: LocalCluster) -> int:
    app = cluster.brokers[0].app
    assert app is not None
    return len(app.kinds.pop.waits.waiters)


@pytest.mark.proves("kinds.pop.ordered")
def test_a_batch_blocks_its_queue_until_its_last_ack(broker: PopAsker) -> None:
    first = take(broker, maxMsgNums="2")
    assert [one.body for one in first] == [b"0", b"1"]
    assert {one.receipt.revive_queue for one in first} == {999}
    blocked = broker.pop(order="true")
    assert (blocked.code, blocked.fields["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")
    assert broker.ack(first[1]).code == ResponseCode.SUCCESS, "out of order"
    assert broker.offset_of(GROUP, TOPIC) == 0
    assert take(broker) == []
    assert broker.ack(first[0]).code == ResponseCode.SUCCESS
    assert broker.offset_of(GROUP, TOPIC) == 2
    second = take(broker)
    assert [one.body for one in second] == [b"2", b"3"]
    assert broker.ack(first[0]).code == ResponseCode.SUCCESS, "an old one is no error"
    assert broker.ack(second[1], offset="4").code == ResponseCode.MESSAGE_ILLEGAL
    for one in second:
        assert broker.ack(one).code == ResponseCode.SUCCESS
    assert broker.offset_of(GROUP, TOPIC) == 4


@pytest.mark.proves("kinds.pop.ordered", "kinds.pop.upstream-faults")
def test_a_repeated_attempt_gets_the_same_messages_at_once(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    first = take(broker, attemptId="a", maxMsgNums="3")
    assert take(broker, attemptId="b") == []
    again = broker.pop(order="true", queueId="0", attemptId="a", maxMsgNums="3")
    assert bodies(popped(again)) == bodies(first)
    assert read_order_counts(again.fields["orderCountInfo"]) == {("0", "0"): 0}
    cluster.advance(ms=INVISIBLE_MS)
    late = broker.pop(order="true", queueId="0", attemptId="b")
    assert bodies(popped(late)) == [b"0", b"1", b"2", b"3"]
    assert read_order_counts(late.fields["orderCountInfo"]) == {
        ("0", "qo0%0"): 1, ("0", "qo0%1"): 1, ("0", "qo0%2"): 1, ("0", "0"): 0,
    }  # fmt: skip


@pytest.mark.proves("kinds.pop.ordered")
def test_a_changed_time_keeps_the_pop_time_and_moves_the_end(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    (one,) = take(broker, maxMsgNums="1")
    cluster.advance(ms=10_000)
    answer = broker.prolong(one, 100_000)
    assert answer.fields == {
        "popTime": str(one.receipt.pop_time_ms), "invisibleTime": "110000", "reviveQid": "999",
    }  # fmt: skip
    cluster.advance(ms=99_999)
    assert take(broker) == []
    cluster.advance(ms=1)
    assert bodies(take(broker, maxMsgNums="1")) == [b"0"]
    assert broker.ack(one).code == ResponseCode.SUCCESS, "of the batch before: nothing"
    assert broker.offset_of(GROUP, TOPIC) == 0


@pytest.mark.proves("kinds.pop.ordered", "kinds.pop.takeover")
def test_a_batch_is_known_after_a_restart_with_its_end(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    first = take(broker, maxMsgNums="3")
    broker.ack(first[0])
    broker.ack(first[2])
    broker.broker.stop()
    broker.broker.start()
    assert take(broker) == []
    answers: list[list[Popped]] = []
    wait = threading.Thread(
        target=lambda: answers.append(popped(broker.pop(order="true", pollTime="80000")))
    )
    wait.start()
    eventually(lambda: waiting(cluster) == 1, "it waits")
    cluster.advance(ms=INVISIBLE_MS)
    eventually(lambda: answers, "the end of the batch wakes it")
    wait.join()
    assert bodies(answers[0]) == [b"1", b"2", b"3"]


@pytest.mark.proves("kinds.pop.ordered", "kinds.pop.upstream-faults")
def test_the_last_ack_wakes_a_waiting_pop_and_others_do_not(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    first = take(broker, maxMsgNums="2")
    answers: list[list[Popped]] = []
    wait = threading.Thread(
        target=lambda: answers.append(popped(broker.pop(order="true", pollTime="15000")))
    )
    wait.start()
    eventually(lambda: waiting(cluster) == 1, "it waits")
    broker.stored(TOPIC, b"4")
    broker.ack(first[0])
    assert waiting(cluster) == 1, "arrivals and acks leave a blocked queue alone"
    broker.ack(first[1])
    eventually(lambda: answers, "it is answered")
    wait.join()
    assert bodies(answers[0]) == [b"2", b"3", b"4"]


@pytest.mark.proves("kinds.pop.ordered", "kinds.pop.upstream-faults")
def test_filters_leave_gaps_and_a_reset_frees_the_queue(broker: PopAsker) -> None:
    for number in range(4, 8):
        tags = {"TAGS": "even" if number % 2 == 0 else "odd"}
        broker.stored(TOPIC, b"%d" % number, properties=tags)
    found = take(broker, exp="even")
    assert bodies(found) == [b"4", b"6"]
    fields = {
        "group": GROUP, "topic": TOPIC, "timestamp": "0", "isForce": "true", "queueId": "0",
        "offset": "5",
    }  # fmt: skip
    broker.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert broker.ack(found[1]).code == ResponseCode.SUCCESS
    assert bodies(take(broker, exp="odd")) == [b"5", b"7"]
    assert broker.ack(found[0]).code == ResponseCode.SUCCESS
    assert take(broker) == [], "receipts of before the reset free nothing"


@pytest.mark.proves("kinds.pop.ordered")
def test_a_batch_of_acks_acknowledges_in_order_too(broker: PopAsker) -> None:
    found = take(broker)
    receipt = found[0].receipt
    ack = BatchAck(GROUP, TOPIC, "0", 0, 0, 999, receipt.pop_time_ms, INVISIBLE_MS, (0, 1, 2, 3))
    body = encode_batch_acks(BatchAcks("broker-a", [ack]))
    assert broker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body).code == ResponseCode.SUCCESS
    assert broker.offset_of(GROUP, TOPIC) == 4


@pytest.mark.proves("kinds.pop.other-requests")
def test_a_notification_tells_of_messages_now_or_when_they_arrive(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    def notified(**changes: str) -> tuple[str, str]:
        fields = broker.pop_fields(**changes)
        answer = broker.done(RequestCode.NOTIFICATION, fields).fields
        return answer["hasMsg"], answer["pollingFull"]

    assert notified() == ("true", "false")
    assert notified(exp="none") == ("false", "false")
    found = broker.popped(order="true", queueId="0", maxMsgNums="1", attemptId="a")
    assert notified(order="true", attemptId="b") == ("false", "false")
    assert notified(order="true", attemptId="a") == ("true", "false")
    broker.ack(found[0])
    assert notified(order="true") == ("true", "false")
    broker.popped()
    answers: list[tuple[str, str]] = []
    wait = threading.Thread(target=lambda: answers.append(notified(pollTime="15000")))
    wait.start()
    app = cluster.brokers[0].app
    assert app is not None
    eventually(lambda: len(app.kinds.pop.notifications.waiters) == 1, "it waits")
    assert broker.done(RequestCode.POLLING_INFO, broker.pop_fields()).fields["pollingNum"] == "0"
    broker.change_settings("popPollingSize=0")
    assert notified(pollTime="15000") == ("false", "true")
    broker.change_settings("popPollingSize=1024")
    broker.stored(TOPIC, b"x")
    eventually(lambda: answers == [("true", "false")], "it is answered")
    wait.join()
    assert (
        broker.ask(RequestCode.NOTIFICATION, broker.pop_fields(topic="none")).code
        == ResponseCode.TOPIC_NOT_EXIST
    )


@pytest.mark.proves("kinds.pop.other-requests")
def test_a_peek_shows_the_next_messages_and_leaves_them(broker: PopAsker) -> None:
    broker.popped(maxMsgNums="1")
    for _ in range(2):
        answer = broker.ask(RequestCode.PEEK_MESSAGE, broker.pop_fields(maxMsgNums="2"))
        assert answer.code == ResponseCode.SUCCESS and answer.fields["restNum"] == "3"
        assert [one.body for one in messages(answer)] == [b"1", b"2"]
    broker.popped()
    nothing = broker.ask(RequestCode.PEEK_MESSAGE, broker.pop_fields())
    assert (nothing.code, nothing.fields["restNum"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    group = broker.pop_fields(consumerGroup="fresh", maxMsgNums="1")
    (one,) = messages(broker.ask(RequestCode.PEEK_MESSAGE, group))
    assert one.body == b"0", "a group that never popped sees the first message"
