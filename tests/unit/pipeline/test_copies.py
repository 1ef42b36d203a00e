"""The content of a copy of a stored message, and its queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from contrail.errors import BrokerRefused, JobFailed
from contrail.insight.copies import (
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
from contrail.model import properties as names
from contrail.model.batch import decode_batch
from contrail.pipeline.jobs import copy_sender
from contrail.pipeline.jobs.copy_sender import ALREADY, CopyPlan, send_copies
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse

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


def test_a_restored_message_keeps_its_own_properties_and_names_its_origin() -> None:
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


def test_the_origin_that_a_proxy_noted_wins() -> None:
    dead = {
        names.RETRY_TOPIC: "half-true",
        names.DLQ_ORIGIN_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: "AB",
        names.DLQ_ORIGIN_MESSAGE_ID: "CD",
    }
    copy = replayed(original(DEAD, dead), None, "job")
    assert isinstance(copy, Copy)
    assert (copy.topic, copy.properties[REPLAYED_ORIGIN_ID]) == ("orders", "CD")


def test_a_letter_that_was_replayed_before_counts_its_replays() -> None:
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


def test_restored_messages_of_a_missing_queue_stay_together() -> None:
    lost = [original(DEAD, {}, place) for place in range(10)]
    assert {plan(3, keep_queues=True).target("orders", one) for one in lost[1:]} == {
        ("broker-a", 0)
    }


def test_replayed_letters_are_spread_but_letters_of_a_key_are_not() -> None:
    spread = plan(4, keep_queues=False)
    plain = {spread.target("orders", original(DEAD, {}, place)) for place in range(8)}
    keyed = {spread.target("orders", original(DEAD, OWN, place)) for place in range(8)}
    assert len(plain) == 4
    assert len(keyed) == 1


# Sending, to a fake broker.

Answer = Callable[[int], tuple[int, int]]


class Broker:
    """Accepts sends; ``answer`` says how many of their messages are stored and dropped."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[list[bytes]] = []

    def ask_broker(
        self, name: str, code: int, fields: dict[str, str], body: bytes
    ) -> ReceivedResponse:
        self.requests.append([unit.body for unit in decode_batch(body)])
        stored, dropped = self._answer(len(self.requests[-1]))
        told = {"storedCount": str(stored), "droppedCount": str(dropped)}
        return ReceivedResponse(0, 1, None, told, b"", 0, "PYTHON")


def letters(places: Sequence[int]) -> pa.RecordBatch:
    count = len(places)
    columns = {
        "topic": pa.array([DEAD.topic] * count),
        "brokerName": pa.array([DEAD.broker_name] * count),
        "queueId": pa.array([DEAD.queue_id] * count, pa.int32()),
        "queueOffset": pa.array(places, pa.int64()),
        "body": pa.array([str(place).encode() for place in places]),
        "flag": pa.array([0] * count, pa.int32()),
        "properties": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
        "msgId": pa.array(["id"] * count),
        "storeTimestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
        "skipped": pa.array([None] * count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Sends letters to a broker; returns the place, outcome and reason of each."""

    def send(broker: Broker, *batches: pa.RecordBatch, **changes: Any) -> list[tuple[Any, ...]]:
        monkeypatch.setattr(copy_sender, "_admin_of", lambda cluster: broker)
        one_queue = {"targets": {"orders": (("broker-a", 0),)}, **changes}
        known = plan(1, keep_queues=True)
        fields = {name: getattr(known, name) for name in ("cluster", "job_id", "lanes")}
        told = CopyPlan(**fields, done="replayed", remembered=True, keep_queues=True, **one_queue)
        rows = send_copies(
            iter(batches), told, lambda original: replayed(original, "orders", "job")
        )
        return [
            (row["queueOffset"], row["outcome"], row["reason"])
            for batch in rows
            for row in batch.to_pylist()
        ]

    return send


def test_repeats_that_brokers_dropped_are_counted_apart_from_sent_messages(sent: Any) -> None:
    told = sent(Broker(lambda count: (count - 2, 2)), letters(range(3)), resumed=True)
    assert told == [
        (0, "replayed", ALREADY),
        (1, "replayed", ALREADY),
        (2, "replayed", None),
    ]


@pytest.mark.parametrize("answer", [(2, 1), (2, 0)])
def test_dropped_messages_that_were_never_sent_fail_the_job(
    sent: Any, answer: tuple[int, int]
) -> None:
    with pytest.raises(JobFailed, match=r"from %DLQ%payers/broker-a/0/7 on, though none was sent"):
        sent(Broker(lambda count: answer), letters([7, 8, 9]))


def test_a_queue_that_may_not_be_written_is_closed_for_the_rest_of_the_task(sent: Any) -> None:
    def refuse(count: int) -> tuple[int, int]:
        raise BrokerRefused("no", code=ResponseCode.NO_PERMISSION, remark="read only")

    broker = Broker(refuse)
    told = sent(broker, letters([0, 1]), letters([2]))
    assert [(place, outcome) for place, outcome, _ in told] == [(n, "failed") for n in range(3)]
    assert {reason for _, _, reason in told} == {"NO_PERMISSION: read only"}
    assert broker.requests == [[b"0", b"1"]]


def test_requests_stay_below_their_size(sent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_sender, "_REQUEST_BYTES_MAX", 1_000)
    broker = Broker(lambda count: (count, 0))
    told = sent(broker, letters(range(20)))
    assert [place for place, _, _ in told] == list(range(20))
    assert 2 < len(broker.requests) < 20
    assert [body for bodies in broker.requests for body in bodies] == [
        str(place).encode() for place in range(20)
    ]


def test_a_queue_offset_that_occurs_twice_is_sent_once(sent: Any) -> None:
    broker = Broker(lambda count: (count, 0))
    told = sent(broker, letters([4, 4, 5]))
    assert sorted(told) == [
        (4, "replayed", None),
        (4, "skipped", "its place is there twice"),
        (5, "replayed", None),
    ]
