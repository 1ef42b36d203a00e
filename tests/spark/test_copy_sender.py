"""Copies are sent once per place, in order, with an outcome each; here without Spark around it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from contrail import Admin
from contrail.errors import JobFailed
from contrail.insight.copies import restored
from contrail.pipeline.jobs.copy_sender import ALREADY, COPIED_COLUMNS, CopyPlan, send_copies
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, queues_of

SOURCE = QueueKey("gone", "broker-z", 0)
TYPES = {
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "flag": pa.int32(),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "storeTimestamp": pa.timestamp("us", "UTC"),
}


def rows(
    places: Sequence[int], *, body: bytes = b"", skipped: str | None = None, **properties: str
) -> pa.RecordBatch:
    """Messages of the source queue at these queue offsets."""
    columns: dict[str, list[Any]] = {
        "topic": [SOURCE.topic] * len(places),
        "brokerName": [SOURCE.broker_name] * len(places),
        "queueId": [SOURCE.queue_id] * len(places),
        "queueOffset": list(places),
        "body": [body or f"message {place}".encode() for place in places],
        "flag": [7] * len(places),
        "properties": [list(properties.items())] * len(places),
        "msgId": [f"id-{place}" for place in places],
        "storeTimestamp": [1_700_000_000_000_000] * len(places),
        "skipped": [skipped] * len(places),
    }
    arrays = [pa.array(columns[name], TYPES.get(name, pa.string())) for name in COPIED_COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, names=list(COPIED_COLUMNS))


class Target:
    """A topic that copies go to."""

    def __init__(self, cluster: LocalCluster, topic: str, *, queues: int = 1) -> None:
        self._cluster = cluster
        self.topic = make_topic(cluster, topic, queues=queues)

    def plan(self, **changes: Any) -> CopyPlan:
        queues = tuple(
            (one.broker_name, one.queue_id) for one in queues_of(self._cluster, self.topic)
        )
        settings: dict[str, Any] = {
            "cluster": ClusterSettings(namesrv_addr=self._cluster.namesrv),
            "job_id": self.topic,
            "done": "restored",
            "remembered": True,
            "targets": {self.topic: queues},
            "lanes": (SOURCE,),
            "keep_queues": True,
            **changes,
        }
        return CopyPlan(**settings)

    def send(self, *batches: pa.RecordBatch, **changes: Any) -> list[dict[str, Any]]:
        decide = partial(restored, to_topic=self.topic, job_id=self.topic)
        told: Iterator[pa.RecordBatch] = send_copies(iter(batches), self.plan(**changes), decide)
        return [row for batch in told for row in batch.to_pylist()]

    def stored(self) -> list[Any]:
        with Admin(self._cluster.namesrv) as admin:
            return [
                message
                for queue in queues_of(self._cluster, self.topic)
                for message in admin.messages_from(queue, 0, 1_000)
            ]


def test_repeated_sends_are_not_stored_again(cluster: LocalCluster) -> None:
    target = Target(cluster, "again")
    target.send(rows(range(5)))
    told = target.send(rows(range(3)), rows(range(3, 9)), resumed=True)
    assert [row["outcome"] for row in told] == ["restored"] * 9
    assert [row["reason"] for row in told] == [ALREADY] * 5 + [None] * 4
    assert [row["toQueue"] for row in told] == ["broker-a:0"] * 9
    stored = target.stored()
    assert [one.body for one in stored] == [f"message {place}".encode() for place in range(9)]
    assert {one.flag for one in stored} == {7}


def test_a_new_pass_is_no_repeat_of_another(cluster: LocalCluster) -> None:
    target = Target(cluster, "passes")
    target.send(rows(range(5, 8)))
    with pytest.raises(JobFailed, match="stored 0 and dropped 2 of 2"):
        target.send(rows([1, 2]))
    told = target.send(rows([1, 2]), pass_number=1)
    assert [row["reason"] for row in told] == [None, None]
    assert len(target.stored()) == 5


def test_another_cut_into_batches_does_not_matter(cluster: LocalCluster) -> None:
    target = Target(cluster, "cut", queues=3)
    target.send(*(rows([place]) for place in range(10)), keep_queues=False)
    target.send(rows(range(20)), keep_queues=False, resumed=True)
    bodies = Counter(one.body for one in target.stored())
    assert bodies == {f"message {place}".encode(): 1 for place in range(20)}


def test_a_message_that_the_broker_refuses_fails_alone(cluster: LocalCluster) -> None:
    target = Target(cluster, "refused")
    told = target.send(rows([0, 1]), rows([2], body=bytes(5 << 20)), rows([3]))
    assert [(row["queueOffset"], row["outcome"]) for row in told] == [
        (0, "restored"),
        (1, "restored"),
        (2, "failed"),
        (3, "restored"),
    ]
    assert "MESSAGE_ILLEGAL" in told[2]["reason"]
    assert len(target.stored()) == 3
    # And it still fails when it is sent again, though later ones are stored.
    assert [row["outcome"] for row in target.send(rows([2], body=bytes(5 << 20)))] == ["failed"]


def test_properties_that_are_too_long_fail_before_they_are_sent(cluster: LocalCluster) -> None:
    told = Target(cluster, "long").send(rows([0], note="x" * 33_000))
    assert [(row["outcome"], "properties" in row["reason"]) for row in told] == [("failed", True)]


def test_rows_to_be_skipped_say_why(cluster: LocalCluster) -> None:
    target = Target(cluster, "skips")
    assert [row["reason"] for row in target.send(rows([0], skipped="too old"))] == ["too old"]
    (told,) = target.send(rows([1]), targets={})
    assert (told["outcome"], told["reason"]) == (
        "skipped",
        "topic 'skips' does not exist or may not be written: create or allow it",
    )
    assert told["toTopic"] == "skips"
    assert target.stored() == []


def test_a_cluster_without_a_ledger_stores_every_send(cluster: LocalCluster) -> None:
    target = Target(cluster, "plain")
    target.send(rows(range(3)), remembered=False)
    target.send(rows(range(3)), remembered=False)
    stored = target.stored()
    assert len(stored) == 6
    assert not any("SPARK_SINK_KEY" in one.properties for one in stored)


def test_a_rate_is_kept(cluster: LocalCluster) -> None:
    rate = 40.0
    target = Target(cluster, "slow")
    began_s = time.monotonic()
    target.send(rows(range(30)), rate_per_task=rate)
    assert time.monotonic() - began_s >= 22 / rate
    assert len(target.stored()) == 30
