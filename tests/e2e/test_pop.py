"""Pop through a real broker: messages are given out, acknowledged, prolonged, kept over a kill."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator

import pytest

from contrail.clock import ManualClock
from contrail.errors import ConfigError
from contrail.protocol.bodies.pop import BatchAck, BatchAcks, encode_batch_acks
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.pop_asking import GROUP, TOPIC, PopAsker, Popped, bodies, popped

RETRY = f"%RETRY%{GROUP}_{TOPIC}"
# The invisible time of 60 s, and the grace.
OVER_MS = 61_100


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: LocalCluster) -> PopAsker:
    broker = PopAsker(cluster)
    broker.make_topic(TOPIC)
    return broker


def in_flight(cluster: LocalCluster) -> int:
    app = cluster.brokers[0].app
    assert app is not None
    return len(app.kinds.pop.pops.table)


def advance(cluster: LocalCluster, ms: int) -> None:
    """Let time pass in steps: records come back from the timer before they are due."""
    step_ms = 500
    for _ in range(ms // step_ms):
        cluster.advance(ms=step_ms)
    cluster.advance(ms=ms % step_ms)


@pytest.mark.proves("kinds.pop.requests", "kinds.pop.redelivery")
def test_unacknowledged_messages_come_again_once(cluster: LocalCluster, broker: PopAsker) -> None:
    for number in range(4):
        broker.stored(TOPIC, b"%d" % number, queue_id=number, properties={"TAGS": "t", "a": "b"})
    first = broker.popped()
    assert bodies(first) == [b"0", b"1", b"2", b"3"]
    assert broker.popped() == [], "nobody else gets them"
    acked = [one for one in first if one.body in (b"0", b"2")]
    for one in acked:
        assert broker.ack(one).code == ResponseCode.SUCCESS
    assert in_flight(cluster) == 2
    app = cluster.brokers[0].app
    assert app is not None and app.kinds.pop.pops.table.in_flight(GROUP, TOPIC) == 2
    assert broker.ack(acked[0]).code == ResponseCode.SUCCESS, "again is no error"
    advance(cluster, 59_900)
    assert broker.popped() == [], "not before their time"
    advance(cluster, OVER_MS - 59_900)
    eventually(lambda: in_flight(cluster) == 0, "the others are stored again")
    again = broker.popped_all(2)
    assert bodies(again) == [b"1", b"3"]
    for one in again:
        assert one.message.topic == TOPIC and one.receipt.retry_flag == "1"
        assert one.message.reconsume_times == 1
        assert one.message.properties["TAGS"] == "t" and one.message.properties["a"] == "b"
        assert one.message.properties["1ST_POP_TIME"] == str(first[0].receipt.pop_time_ms)
        assert one.message.properties["ORIGIN_GROUP"] == GROUP
        assert broker.ack(one).code == ResponseCode.SUCCESS
    advance(cluster, 2 * OVER_MS)
    assert broker.popped() == []
    assert in_flight(cluster) == 0


@pytest.mark.proves("kinds.pop.redelivery")
def test_a_compressed_message_comes_again_as_it_was(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    packed = zlib.compress(b"coffee" * 100)
    broker.stored(TOPIC, packed, f="1", h="7", g="1234")
    broker.popped()
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "it is stored again")
    (one,) = broker.popped_all(1)
    message = one.message
    assert (message.body, message.flag, message.sys_flag & 1) == (packed, 7, 1)
    assert (message.born_timestamp_ms, message.reconsume_times) == (1234, 1)


@pytest.mark.proves("kinds.pop.requests", "kinds.pop.upstream-faults")
def test_a_changed_time_kills_the_old_receipt_and_gives_a_new_one(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    broker.stored(TOPIC, b"x")
    (one,) = broker.popped()
    advance(cluster, 30_000)
    answer = broker.prolong(one, 100_000)
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["invisibleTime"] == "100000"
    prolonged = one._replace(
        receipt=one.receipt._replace(
            start_offset=one.receipt.queue_offset,
            pop_time_ms=int(answer.fields["popTime"]),
            invisible_ms=100_000,
            revive_queue=int(answer.fields["reviveQid"]),
        )
    )
    assert broker.ack(one).code == ResponseCode.SUCCESS
    assert in_flight(cluster) == 1, "the old receipt names nothing any more"
    advance(cluster, 60_000)
    assert broker.popped() == []
    assert broker.ack(prolonged).code == ResponseCode.SUCCESS
    assert in_flight(cluster) == 0
    advance(cluster, 60_000)
    assert broker.popped() == []


@pytest.mark.proves("kinds.pop.requests")
def test_a_batch_acknowledges_by_bits_with_gaps(cluster: LocalCluster, broker: PopAsker) -> None:
    for number in range(5):
        broker.stored(TOPIC, b"%d" % number)
    found = broker.popped(queueId="0")
    receipt = found[0].receipt
    ack = BatchAck(
        GROUP, TOPIC, "0", receipt.start_offset, 0, receipt.revive_queue,
        receipt.pop_time_ms, receipt.invisible_ms, (0, 1, 3, 40),
    )  # fmt: skip
    body = encode_batch_acks(BatchAcks("broker-a", [ack]))
    assert b'"b":"CwAAAAAB"' in body
    assert broker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body).code == ResponseCode.SUCCESS
    assert in_flight(cluster) == 2
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "the others are stored again")
    assert bodies(broker.popped_all(2)) == [b"2", b"4"]
    empty = encode_batch_acks(BatchAcks("broker-a", []))
    assert broker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, empty).code == ResponseCode.NO_MESSAGE


@pytest.mark.proves("kinds.pop.requests", "kinds.pop.upstream-faults")
def test_receipts_of_others_acknowledge_nothing(cluster: LocalCluster, broker: PopAsker) -> None:
    broker.stored(TOPIC, b"x")
    (one,) = broker.popped()
    other = one._replace(receipt=one.receipt._replace(broker_name="broker-b"))
    assert broker.ack(other).code == ResponseCode.SUCCESS
    assert broker.ack(one, consumerGroup="another").code == ResponseCode.SUCCESS
    assert in_flight(cluster) == 1


@pytest.mark.proves("kinds.pop.requests")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"bornTime": "1", "topic": "none"}, ResponseCode.POLLING_TIMEOUT),
        ({"maxMsgNums": "33", "topic": "none"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none", "queueId": "9"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4", "exp": "||"}, ResponseCode.INVALID_PARAMETER),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"exp": "a >", "expType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"topic": "rmq_sys_wheel_timer"}, ResponseCode.NO_PERMISSION),
        ({"consumerGroup": "CID_RMQ_SYS_TRANS"}, ResponseCode.NO_PERMISSION),
    ],
)
def test_a_pop_is_refused_in_the_order_of_the_checks(
    broker: PopAsker, changes: dict[str, str], code: int
) -> None:
    assert broker.pop(**changes).code == code


@pytest.mark.proves("kinds.pop.requests", "kinds.pop.upstream-faults")
def test_acks_of_places_that_are_not_there_are_refused(broker: PopAsker) -> None:
    broker.stored(TOPIC, b"x")
    (one,) = broker.popped()
    assert broker.ack(one, topic="none").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.ack(one, queueId="4").code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.ack(one, offset="2").code == ResponseCode.NO_MESSAGE
    assert broker.ack(one, offset="1").code == ResponseCode.SUCCESS, "as RocketMQ takes it"
    assert broker.prolong(one, 1000, offset="1").code == ResponseCode.NO_MESSAGE
    assert broker.ack(one, extraInfo="1 2").code == ResponseCode.SYSTEM_ERROR
    year_ms = 400 * 86_400_000
    assert broker.prolong(one, year_ms).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.proves("kinds.pop.restart", "kinds.pop.durable-offsets")
def test_a_kill_brings_back_what_was_not_acknowledged_and_nothing_else(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    for number in range(6):
        broker.stored(TOPIC, b"%d" % number)
    found = broker.popped(queueId="0", maxMsgNums="3")
    rest = broker.popped(queueId="0")
    for one in (found[0], rest[0]):
        assert broker.ack(one).code == ResponseCode.SUCCESS
    answer = broker.prolong(found[1], 90_000)
    assert answer.code == ResponseCode.SUCCESS
    broker.broker.kill()
    broker.broker.start()
    assert broker.popped(queueId="0") == [], "the offset has passed what was popped"
    assert in_flight(cluster) == 4
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 1, "those of the first pops are stored again")
    assert bodies(broker.popped_all(3)) == [b"2", b"4", b"5"]
    advance(cluster, 30_000)
    assert bodies(broker.popped_all(1)) == [b"1"]


@pytest.mark.proves("kinds.pop.restart", "kinds.pop.upstream-faults")
def test_a_kill_after_the_second_delivery_brings_no_third_before_its_time(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    for number in range(3):
        broker.stored(TOPIC, b"%d" % number)
    found = broker.popped()
    assert broker.ack(found[1]).code == ResponseCode.SUCCESS
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "two are stored again")
    broker.broker.kill()
    broker.broker.start()
    advance(cluster, 5_000)
    again = broker.popped_all(2)
    assert len({one.body for one in again}) == 2
    assert [one.message.reconsume_times for one in again] == [1, 1]
    assert broker.popped() == []


@pytest.mark.proves("kinds.pop.retry-topics")
def test_retry_topics_of_the_newer_spelling_and_the_older_are_read(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    for number in range(2):
        broker.stored(TOPIC, b"%d" % number)
    broker.popped(maxMsgNums="1")
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "it is stored in the older spelling")
    broker.change_settings("enableRetryTopicV2=true\npopFromRetryProbability=0")
    # Only the message that nobody got yet: the retry topics come last.
    (one,) = broker.popped(maxMsgNums="1")
    assert one.receipt.retry_flag == "0"
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "it is stored in the newer spelling")
    found: list[Popped] = []
    while len(found) < 2:
        found += broker.popped()
    assert {one.receipt.retry_flag for one in found} == {"1", "2"}
    assert bodies(found) == [b"0", b"1"]
    for one in found:
        assert broker.ack(one).code == ResponseCode.SUCCESS
    assert in_flight(cluster) == 0


@pytest.mark.proves("kinds.pop.waiting")
def test_a_waiting_pop_gets_the_message_that_arrives(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    answers: list[list[Popped]] = []
    app = cluster.brokers[0].app
    assert app is not None
    waiters = app.kinds.pop.waits.waiters
    threads = [
        threading.Thread(
            target=lambda queue=queue: answers.append(
                popped(broker.pop(pollTime="15000", queueId=queue))
            )
        )
        for queue in ("-1", "-1", "3")
    ]
    for count, thread in enumerate(threads, start=1):
        thread.start()
        eventually(lambda count=count: len(waiters) == count, "it waits")
    info = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"}
    assert broker.done(RequestCode.POLLING_INFO, info).fields["pollingNum"] == "2"
    broker.stored(TOPIC, b"one", queue_id=1)
    eventually(lambda: len(answers) == 1, "one waiter is answered")
    assert len(waiters) == 2
    broker.stored(TOPIC, b"two", queue_id=3)
    eventually(lambda: len(answers) == 2, "another one is answered")
    cluster.advance(ms=15_000)
    for thread in threads:
        thread.join()
    assert sorted(bodies(one) for one in answers) == [[], [b"one"], [b"two"]]


@pytest.mark.proves("kinds.pop.waiting")
def test_a_pop_waits_for_retried_messages_of_its_group(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    broker.stored(TOPIC, b"x")
    broker.popped()
    advance(cluster, 55_000)
    answers: list[list[Popped]] = []
    thread = threading.Thread(target=lambda: answers.append(popped(broker.pop(pollTime="15000"))))
    thread.start()
    app = cluster.brokers[0].app
    assert app is not None
    eventually(lambda: len(app.kinds.pop.waits.waiters) == 1, "it waits")
    advance(cluster, OVER_MS - 55_000)
    eventually(lambda: answers, "it is answered")
    thread.join()
    assert bodies(answers[0]) == [b"x"]


@pytest.mark.proves("kinds.pop.waiting")
def test_more_waiters_than_allowed_are_told(cluster: LocalCluster, broker: PopAsker) -> None:
    broker.change_settings("popPollingSize=0")
    app = cluster.brokers[0].app
    assert app is not None
    thread = threading.Thread(target=lambda: broker.pop(pollTime="10000"))
    thread.start()
    eventually(lambda: len(app.kinds.pop.waits.waiters) == 1, "one more than the bound waits")
    assert broker.pop(pollTime="10000").code == ResponseCode.POLLING_FULL
    cluster.advance(ms=10_000)
    thread.join()


@pytest.mark.proves("kinds.pop.filters")
def test_tags_and_sql_are_applied_and_offsets_move_past_the_rest(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    for number in range(6):
        tag = "even" if number % 2 == 0 else "odd"
        properties = {"TAGS": tag, "n": str(number)}
        broker.stored(TOPIC, b"%d" % number, properties=properties)
    assert bodies(broker.popped(exp="even", maxMsgNums="2")) == [b"0", b"2"]
    sql = {"exp": "n > 3 AND n <> 4", "expType": "SQL92"}
    assert bodies(broker.popped(**sql)) == [b"5"]
    broker.stored(TOPIC, b"6", properties={"TAGS": "odd"})
    assert broker.popped(exp="even") == []
    assert broker.popped() == [], "the pop before has passed it over"
    eventually(lambda: broker.offset_of(GROUP, TOPIC) == 7, "the offset is committed")


@pytest.mark.proves("kinds.pop.start-places")
def test_a_new_group_starts_where_the_pop_asks(broker: PopAsker) -> None:
    for number in range(3):
        broker.stored(TOPIC, b"%d" % number)
    assert bodies(broker.popped(consumerGroup="first")) == [b"0", b"1", b"2"]
    assert bodies(broker.popped(consumerGroup="memory", initMode="1")) == [b"0", b"1", b"2"]
    broker.change_settings("initPopOffsetByCheckMsgInMem=false")
    assert bodies(broker.popped(consumerGroup="last", initMode="1")) == [b"2"]


@pytest.mark.proves("kinds.pop.resets", "kinds.pop.upstream-faults")
@pytest.mark.parametrize(("offset", "left"), [(0, [b"0", b"1", b"2"]), (3, [])])
def test_a_reset_moves_pops_and_nothing_comes_twice(
    cluster: LocalCluster, broker: PopAsker, offset: int, left: list[bytes]
) -> None:
    for number in range(3):
        broker.stored(TOPIC, b"%d" % number)
    broker.popped(maxMsgNums="2")
    fields = {
        "group": GROUP,
        "topic": TOPIC,
        "timestamp": "0",
        "isForce": "true",
        "queueId": "0",
        "offset": str(offset),
    }
    broker.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    again = broker.popped()
    assert bodies(again) == left
    for one in again:
        broker.ack(one)
    advance(cluster, OVER_MS)
    expected = [] if offset == 0 else [b"0", b"1"]
    eventually(lambda: in_flight(cluster) == 0, "nothing is in flight")
    assert bodies(broker.popped_all(len(expected))) == expected
    assert broker.popped() == []


@pytest.mark.proves("kinds.pop.deleted", "kinds.pop.upstream-faults")
def test_a_deleted_topics_messages_do_not_come_again(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    broker.stored(TOPIC, b"x")
    broker.popped()
    broker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert in_flight(cluster) == 0
    broker.make_topic(TOPIC)
    broker.stored(TOPIC, b"y")
    broker.broker.kill()
    broker.broker.start()
    advance(cluster, OVER_MS)
    assert bodies(broker.popped()) == [b"y"]
    eventually(lambda: in_flight(cluster) == 1, "only the new one is in flight")


@pytest.mark.proves("kinds.pop.stripped", "kinds.pop.upstream-faults")
def test_a_producer_cannot_write_receipts(broker: PopAsker) -> None:
    receipt = "0 1 60000 0 0 broker-a 0 0"
    broker.stored(TOPIC, b"x", properties={"POP_CK": receipt, "b": "c"})
    (one,) = broker.popped()
    assert "POP_CK" not in one.message.properties
    assert one.message.properties["b"] == "c"


@pytest.mark.proves("kinds.pop.one-append")
def test_acks_of_one_checkpoint_in_a_tick_are_one_record(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    for number in range(4):
        broker.stored(TOPIC, b"%d" % number)
    found = broker.popped()
    app = cluster.brokers[0].app
    assert app is not None
    eventually(lambda: app.store.underived_bytes == 0, "the checkpoint is in its queue")
    before = app.store.queue_offset_max(b"rmq_sys_wheel_timer", 0)
    acks = [
        BatchAck(
            GROUP,
            TOPIC,
            "0",
            0,
            0,
            0,
            found[0].receipt.pop_time_ms,
            60_000,
            (one.receipt.queue_offset,),
        )
        for one in found
    ]
    body = encode_batch_acks(BatchAcks("broker-a", acks))
    broker.done(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    eventually(lambda: in_flight(cluster) == 0, "all are acknowledged")
    eventually(
        lambda: app.store.queue_offset_max(b"rmq_sys_wheel_timer", 0) == before + 1,
        "one record has all four",
    )


@pytest.mark.proves("kinds.pop.rollback")
def test_records_of_apaches_other_form_are_not_forgotten(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    assert broker.ask(RequestCode.POP_ROLLBACK).code == ResponseCode.SUCCESS
    folder = broker.broker.folder / "store" / "kvStore"
    folder.mkdir()
    broker.broker.stop()
    broker.broker.start()
    (folder / "CURRENT").write_text("MANIFEST-000001\n")
    broker.broker.stop()
    with pytest.raises(ConfigError, match="POP_ROLLBACK"):
        broker.broker.start()


@pytest.mark.proves("kinds.pop.metrics")
def test_metrics_count_what_is_in_flight_and_what_comes_again(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    app = cluster.brokers[0].app
    assert app is not None
    for number in range(3):
        broker.stored(TOPIC, b"%d" % number)
    found = broker.popped()
    broker.ack(found[0])
    assert app.kinds.pop.pops.table.in_flight(GROUP, TOPIC) == 2
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "the others are stored again")
    assert app.kinds.pop.revive.redelivered_counts == {(TOPIC, GROUP): 2}
    assert app.kinds.pop.revive.overdue_ms(cluster.clock.now_ms()) == 0


@pytest.mark.proves("kinds.pop.dead-letters")
def test_a_message_becomes_a_dead_letter_after_its_last_try_if_the_broker_is_set_so(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    broker.change_settings("contrailPopDeadLetterEnable=true")
    group = json.dumps({"groupName": GROUP, "retryMaxTimes": 1}).encode()
    broker.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    broker.stored(TOPIC, b"x", properties={"a": "b"})
    broker.popped()
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "it is stored again")
    (one,) = broker.popped_all(1)
    assert one.message.reconsume_times == 1, "its last try"
    advance(cluster, OVER_MS)
    eventually(lambda: in_flight(cluster) == 0, "it is given up")
    assert broker.popped() == []
    app = cluster.brokers[0].app
    assert app is not None
    (dead,) = app.store.get(f"%DLQ%{GROUP}".encode(), 0, 0).messages
    assert (dead.body, dead.reconsume_times) == (b"x", 2)
    assert (dead.properties["a"], dead.properties["RETRY_TOPIC"]) == ("b", TOPIC)


@pytest.mark.proves("kinds.pop.redelivery")
def test_a_suspended_message_comes_again_with_the_same_count(
    cluster: LocalCluster, broker: PopAsker
) -> None:
    broker.stored(TOPIC, b"x")
    (one,) = broker.popped()
    assert broker.prolong(one, 1_000, suspend="true").code == ResponseCode.SUCCESS
    advance(cluster, 3_000)
    eventually(lambda: in_flight(cluster) == 0, "it is stored again")
    (again,) = broker.popped_all(1)
    assert again.message.reconsume_times == 0
