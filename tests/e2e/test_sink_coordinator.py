"""A sink whose coordinator is killed between attempts: its rows wait for it, and are there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from contrail import Admin
from contrail.errors import ClientError
from contrail.pipeline import writers
from contrail.pipeline.options import SinkSettings
from contrail.pipeline.sink_calls import SinkConnection
from contrail.pipeline.sink_rows import plan_rows
from contrail.pipeline.task_identity import TaskIdentity
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.sink_asking import status

ROW_COUNT = 40
# A broker that is killed stays away for longer than a task has patience.
IMPATIENT_MS = 2_000
PATIENT_MS = 60_000

_names = count()


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, in_children=True) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"rows-{next(_names)}"
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


class Job:
    """A write that is run several times, each time by a process of its own."""

    def __init__(self, cluster: LocalCluster, topic: str, mode: str) -> None:
        self.cluster, self.topic, self.mode = cluster, topic, mode
        options = {"namesrvAddr": cluster.namesrv, "topic": topic, "idempotence": mode}
        self._settings = SinkSettings.of({**options, "sendTimeoutMs": "2000"})
        schema = StructType([StructField("body", StringType())])
        self._plan = plan_rows(schema, topic)

    @contextmanager
    def process(self, retry_ms: int) -> Iterator[SinkConnection]:
        connection = SinkConnection(self._settings, retry_ms=retry_ms)
        connection.start()
        try:
            yield connection
        finally:
            connection.close()

    def write(
        self, connection: SinkConnection, attempt: str, between: Callable[[], None] = lambda: None
    ) -> writers.Written:
        """Write all rows; something may happen when the first half of them is under way."""
        identity = TaskIdentity(f"sink of {self.topic}", 0, 0, attempt)

        def batches() -> Iterator[pa.RecordBatch]:
            yield _batch(0, ROW_COUNT // 2)
            between()
            yield _batch(ROW_COUNT // 2, ROW_COUNT)

        return writers.write(connection, self._settings, self._plan, identity, batches())

    def write_and_commit(self, attempt: str, retry_ms: int) -> writers.Written:
        with self.process(retry_ms) as connection:
            written = self.write(connection, attempt)
            prepared = writers.prepared_of([written])
            if prepared:
                writers.commit_prepared(connection, prepared)
            return written

    def coordinator_seen_by(self, number: int) -> str:
        known = status(Asker(self.cluster, number), f"sink of {self.topic}")
        return str(known["layout"]["coordinator"])


def _batch(first: int, end: int) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([f"{number:03d}" for number in range(first, end)])})


def kill_first(cluster: LocalCluster) -> None:
    """Kill the coordinator, and wait until the NameServer has forgotten it."""
    cluster.brokers[0].kill()
    address = cluster.brokers[0].address.encode()
    server = cluster.nameservers[0].address

    def is_forgotten() -> bool:
        return address not in cluster.caller.call(server, RequestCode.GET_BROKER_CLUSTER_INFO).body

    eventually(is_forgotten, "the broker that was killed is not registered any more")


def assert_once_and_in_order(cluster: LocalCluster, topic: str) -> None:
    found: list[bytes] = []
    with Admin(cluster.namesrv) as admin:
        for queue in admin.queues(topic):
            end = admin.queue_offset_max(queue)
            bodies = [one.body for one in admin.messages_from(queue, 0, 1_000)] if end else []
            assert bodies == sorted(bodies)
            found += bodies
    assert sorted(found) == [b"%03d" % number for number in range(ROW_COUNT)]


@pytest.mark.proves("spark.sink.broker-kills")
@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_a_replay_waits_for_the_coordinator_and_then_leaves_each_row_once(
    cluster: LocalCluster, topic: str, mode: str
) -> None:
    job = Job(cluster, topic, mode)
    with job.process(IMPATIENT_MS) as first, pytest.raises(ClientError, match="broker-a"):
        job.write(first, "first", between=lambda: kill_first(cluster))
    assert job.coordinator_seen_by(1) == "broker-a"
    with pytest.raises(ClientError, match="broker broker-a must be there for batch 0"):
        job.write_and_commit("second", IMPATIENT_MS)
    cluster.brokers[0].start()
    written = job.write_and_commit("third", PATIENT_MS)
    assert written.outcome.coordinator == "broker-a"
    assert written.outcome.row_count == ROW_COUNT
    assert_once_and_in_order(cluster, topic)


def test_a_batch_that_is_decided_is_not_decided_again_while_its_coordinator_is_away(
    cluster: LocalCluster, topic: str
) -> None:
    job = Job(cluster, topic, "transactional")
    with job.process(PATIENT_MS) as first:
        written = job.write(first, "first")
        participants = writers.participants_of([written])
        assert sorted(participants) == ["broker-a", "broker-b"]
        # The driver is lost between the decision and what follows from it.
        sink_id = written.sink_id
        first.commit(written.outcome.coordinator, sink_id, 0, participants, decide=True)
    kill_first(cluster)
    with pytest.raises(ClientError, match="broker broker-a must be there for batch 0"):
        job.write_and_commit("second", IMPATIENT_MS)
    cluster.brokers[0].start()
    replayed = job.write_and_commit("third", PATIENT_MS)
    assert replayed.outcome.was_decided
    assert_once_and_in_order(cluster, topic)
