"""What a copy of a stored message carries, and to which queue it goes."""

from __future__ import annotations

from contrail.model import properties as names
from contrail.pipeline.jobs.copies import (
    JOB_ID,
    REPLAY_COUNT,
    REPLAYED_FROM,
    REPLAYED_ORIGIN_ID,
    RESTORED_FROM,
    RESTORED_STORE_TIME,
    Copy,
    Original,
    Skipped,
    replayed,
    restored,
)
from contrail.pipeline.jobs.copy_sender import CopyPlan
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings

QUEUE = QueueKey("orders", "broker-a", 1)
DEAD = QueueKey("%DLQ%payers", "broker-a", 0)
OWN = {"KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "7F01", "region": "eu", names.SHARDING_KEY: "s"}
OF_ITS_WAY = {
    names.DELAY: "5",
    names.REAL_TOPIC: "orders",
    names.REAL_QID: "1",
    names.WAIT: "false",
    names.TRAN_MSG: "true",
    names.RECONSUME_TIME: "3",
    names.MAX_RECONSUME_TIMES: "16",
    names.CONSUME_START_TIME: "1",
    "SPARK_SINK_KEY": "q/0/0",
    "SPARK_SINK_SEQ": "4",
}


def original(queue: QueueKey, properties: dict[str, str], queue_offset: int = 12) -> Original:
    return Original(queue, queue_offset, b"body", 0, properties, "7F01", 1_700_000_000_123)


def plan(queues: int, *, keep_queues: bool) -> CopyPlan:
    return CopyPlan(
        cluster=ClusterSettings(namesrv_addr="127.0.0.1:9876"),
        job_id="job",
        done="replayed",
        remembered=True,
        targets={"orders": tuple(("broker-a", number) for number in range(queues))},
        lanes=(QUEUE, DEAD),
        keep_queues=keep_queues,
    )


def test_a_restored_message_keeps_what_is_its_own_and_says_where_it_was() -> None:
    copy = restored(original(QUEUE, {**OWN, **OF_ITS_WAY}), None, "job-1")
    assert copy == Copy(
        "orders",
        {
            **OWN,
            RESTORED_FROM: "orders/broker-a/1/12",
            RESTORED_STORE_TIME: "1700000000123",
            JOB_ID: "job-1",
        },
    )


def test_a_restored_message_may_go_to_another_topic() -> None:
    assert restored(original(QUEUE, OWN), "elsewhere", "job-1").topic == "elsewhere"


def test_a_restored_dead_letter_can_still_be_replayed() -> None:
    copy = restored(original(DEAD, {**OWN, names.RETRY_TOPIC: "orders"}), None, "job-1")
    assert copy.topic == "%DLQ%payers"
    assert copy.properties[names.RETRY_TOPIC] == "orders"


def test_a_replayed_letter_goes_to_its_origin_without_its_retries() -> None:
    dead = {**OWN, **OF_ITS_WAY, names.RETRY_TOPIC: "orders", names.ORIGIN_MESSAGE_ID: "AB"}
    assert replayed(original(DEAD, dead), None, "job-2") == Copy(
        "orders",
        {
            **OWN,
            REPLAYED_FROM: "%DLQ%payers/broker-a/0/12",
            REPLAYED_ORIGIN_ID: "AB",
            REPLAY_COUNT: "1",
            JOB_ID: "job-2",
        },
    )


def test_what_a_proxy_noted_of_the_origin_is_stronger() -> None:
    dead = {
        names.RETRY_TOPIC: "half-true",
        names.DLQ_ORIGIN_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: "AB",
        names.DLQ_ORIGIN_MESSAGE_ID: "CD",
    }
    copy = replayed(original(DEAD, dead), None, "job")
    assert isinstance(copy, Copy)
    assert (copy.topic, copy.properties[REPLAYED_ORIGIN_ID]) == ("orders", "CD")


def test_a_letter_that_was_replayed_before_counts_on() -> None:
    dead = {names.RETRY_TOPIC: "orders", REPLAY_COUNT: "2"}
    copy = replayed(original(DEAD, dead), None, "job")
    assert isinstance(copy, Copy)
    assert copy.properties[REPLAY_COUNT] == "3"


def test_a_letter_without_an_origin_is_skipped_unless_a_topic_is_given() -> None:
    skipped = replayed(original(DEAD, OWN), None, "job")
    assert isinstance(skipped, Skipped)
    assert "RETRY_TOPIC" in skipped.reason
    assert isinstance(replayed(original(DEAD, OWN), "orders", "job"), Copy)


def test_restored_messages_of_a_queue_go_to_the_queue_of_its_name() -> None:
    assert plan(4, keep_queues=True).target("orders", original(QUEUE, OWN)) == ("broker-a", 1)


def test_restored_messages_of_a_queue_that_is_gone_stay_together() -> None:
    lost = [original(DEAD, {}, place) for place in range(10)]
    assert {plan(3, keep_queues=True).target("orders", one) for one in lost[1:]} == {
        ("broker-a", 0)
    }


def test_replayed_letters_are_spread_but_those_of_a_key_are_not() -> None:
    spread = plan(4, keep_queues=False)
    plain = {spread.target("orders", original(DEAD, {}, place)) for place in range(8)}
    keyed = {spread.target("orders", original(DEAD, OWN, place)) for place in range(8)}
    assert len(plain) == 4
    assert len(keyed) == 1
