"""The sink on Apache's own brokers, which do not know sinks: plain sends, and refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from contrail import Admin
from contrail.errors import SinkRefused
from contrail.pipeline import writers
from contrail.pipeline.options import SinkSettings
from contrail.pipeline.sink_apache import id_of_key
from contrail.pipeline.sink_calls import SinkConnection
from contrail.pipeline.sink_rows import plan_rows
from contrail.pipeline.task_identity import TaskIdentity
from tests.interop.apache_cluster import ApacheCluster

SCHEMA = StructType(
    [
        StructField("body", BinaryType()),
        StructField("keys", StringType()),
        StructField("delayLevel", IntegerType()),
        StructField("flag", IntegerType()),
    ]
)
DEADLINE_S = 60
CALL_TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApacheCluster]:
    with ApacheCluster(brokers=1) as running:
        yield running


def write(
    cluster: ApacheCluster, topic: str, numbers: list[int], **options: str
) -> writers.Written:
    settings = SinkSettings.of({"namesrvAddr": cluster.namesrv, "topic": topic, **options})
    batch = pa.record_batch(
        {
            "body": [b"%d" % number for number in numbers],
            "keys": [f"key-{number}" for number in numbers],
            "delayLevel": pa.array([0] * len(numbers), pa.int32()),
            "flag": pa.array(numbers, pa.int32()),
        }
    )
    with SinkConnection(settings) as calls:
        identity = TaskIdentity("sink", 0, 0, "attempt")
        return writers.write(calls, settings, plan_rows(SCHEMA, topic), identity, iter([batch]))


def make_topic(cluster: ApacheCluster, topic: str) -> None:
    with Admin(cluster.namesrv, timeout_ms=CALL_TIMEOUT_MS) as admin:
        admin.create_topic(topic, queues=4)


def stored_count(cluster: ApacheCluster, topic: str) -> int:
    with Admin(cluster.namesrv, timeout_ms=CALL_TIMEOUT_MS) as admin:
        queues = admin.topic_stats(topic).queues
        return sum(one.queue_offset_max - one.queue_offset_min for one in queues)


def wait_for_count(cluster: ApacheCluster, topic: str, count: int) -> None:
    """Queues are filled from the log after the answer; none may come that was not sent."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := stored_count(cluster, topic)) < count:
        assert time.monotonic() < deadline, f"{found} of {count} messages of {topic}"
        time.sleep(0.05)
    assert found == count


def wait_for_index(cluster: ApacheCluster, topic: str, number: int) -> None:
    """The index is written after the message; keys come in the order of the log."""
    deadline = time.monotonic() + DEADLINE_S
    with Admin(cluster.namesrv, timeout_ms=CALL_TIMEOUT_MS) as admin:
        while not admin.messages_by_unique_key(topic, id_of_key(topic, f"key-{number}")):
            assert time.monotonic() < deadline, f"key-{number} is not in the index"


def test_rows_are_sent_plainly_without_an_idempotence_setting(cluster: ApacheCluster) -> None:
    make_topic(cluster, "sink-plain")
    for _ in range(2):
        write(cluster, "sink-plain", list(range(2_500)))
    wait_for_count(cluster, "sink-plain", 5_000)
    with Admin(cluster.namesrv, timeout_ms=CALL_TIMEOUT_MS) as admin:
        found = admin.messages_from(sorted(admin.queues("sink-plain"))[0], 0, 100)
    assert [message.flag for message in found] == [int(message.body) for message in found] != []


@pytest.mark.proves("spark.sink.apache")
def test_a_row_whose_key_is_stored_is_left_out(cluster: ApacheCluster) -> None:
    make_topic(cluster, "sink-keys")
    write(cluster, "sink-keys", list(range(100)), dedupeBy="keys")
    for number in range(100):
        wait_for_index(cluster, "sink-keys", number)
    again = write(cluster, "sink-keys", list(range(119, -1, -1)), dedupeBy="keys")
    assert (again.outcome.stored_count, again.outcome.dropped_count) == (20, 100)
    wait_for_count(cluster, "sink-keys", 120)


@pytest.mark.proves("spark.sink.apache")
@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_promises_that_cannot_be_kept_are_refused(cluster: ApacheCluster, mode: str) -> None:
    make_topic(cluster, "sink-refused")
    with pytest.raises(SinkRefused, match=f"idempotence={mode}: .* only Contrail's brokers can"):
        write(cluster, "sink-refused", [1], idempotence=mode)
    assert stored_count(cluster, "sink-refused") == 0
