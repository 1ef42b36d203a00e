"""Spark over a failover group: reads, streams and copies go on while leaders are killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from contrail.pipeline.jobs.migrate import MigrateSettings, migrate
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.spark.job_kills import finished_batches
from tests.spark.stored import stored
from tests.spark.test_stream_read import stream
from tests.spark.traffic import make_topic, orders, send_rows

TOPIC = "orders"
PATIENCE_S = 300.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(members=3, in_children=True, folder=tmp_path / "group") as running:
        make_topic(running, TOPIC)
        yield running


def hand_over(group: LocalCluster) -> None:
    leader = group.wait_for_leader()
    target = next(one for one in group.brokers if one is not leader)
    fields = {"brokerName": leader.name, "brokerId": str(int(target.self_id[1:]) + 1)}
    answer = group.caller.call(leader.address, RequestCode.CONTROLLER_ELECT_MASTER, fields)
    assert answer.code == 0, answer.remark
    group.wait_for_leader(besides=leader)


class Stream:
    """A query that reads the topic on and on; notes the numbers of each micro-batch."""

    def __init__(self, spark: SparkSession, group: LocalCluster, folder: Path) -> None:
        self._frame = stream(spark, group, TOPIC)
        self._folder = folder
        self.batches: dict[int, list[int]] = {}
        self.differences: list[int] = []
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        writer = self._frame.writeStream.foreachBatch(self._keep)
        self._query = writer.option("checkpointLocation", str(self._folder)).start()

    def _keep(self, batch: DataFrame, batch_id: int) -> None:
        numbers = sorted(int(row.number) for row in batch.collect())
        if self.batches.setdefault(batch_id, numbers) != numbers:
            self.differences.append(batch_id)

    def numbers(self) -> Counter[int]:
        return Counter(number for numbers in list(self.batches.values()) for number in numbers)

    def wait_for(self, count: int) -> None:
        def came() -> bool:
            assert self._query is not None and self._query.exception() is None
            return len(self.numbers()) >= count

        eventually(came, lambda: f"{len(self.numbers())} of {count}", timeout_s=PATIENCE_S)

    def stop(self) -> None:
        assert self._query is not None
        self._query.stop()


def run_over_leader_changes(
    spark: SparkSession, group: LocalCluster, folder: Path, kill_count: int
) -> None:
    """Kills, a transfer, and a restart of the query in the middle: each row in one batch."""
    reading, sent = Stream(spark, group, folder), 0
    reading.start()
    for number in range(kill_count):
        send_rows(group, orders(TOPIC, 40, first=sent))
        sent += 40
        killed = group.kill_leader()
        send_rows(group, orders(TOPIC, 40, first=sent))
        sent += 40
        reading.wait_for(sent)
        killed.start()
        group.wait_for_voters()
        if number == kill_count // 2:
            hand_over(group)
            reading.stop()
            reading.start()
    reading.stop()
    assert reading.differences == []
    assert reading.numbers() == Counter(range(sent))


@pytest.mark.proves("replication.failover-shown.spark-stream")
def test_a_stream_reads_each_row_once_over_kills_of_leaders_and_a_transfer(
    spark: SparkSession, group: LocalCluster, tmp_path: Path
) -> None:
    run_over_leader_changes(spark, group, tmp_path / "checkpoint", 2)


@pytest.mark.matrix
@pytest.mark.proves("replication.failover-shown.spark-stream")
@pytest.mark.timeout(1800)
def test_a_stream_reads_each_row_once_over_twenty_kills_of_leaders(
    spark: SparkSession, group: LocalCluster, tmp_path: Path
) -> None:
    run_over_leader_changes(spark, group, tmp_path / "checkpoint", 20)


@pytest.mark.proves("replication.failover-shown.spark-others")
def test_a_batch_read_goes_on_with_one_member_down_and_a_copy_over_a_kill_of_the_leader(
    spark: SparkSession, group: LocalCluster, tmp_path: Path
) -> None:
    send_rows(group, orders(TOPIC, 600))
    leader = group.wait_for_leader()
    follower = next(one for one in group.brokers if one is not leader)
    follower.kill()
    assert numbers_read(spark, group) == list(range(600))
    follower.start()
    group.wait_for_voters()
    killed = group.kill_leader()
    assert numbers_read(spark, group) == list(range(600))
    killed.start()
    group.wait_for_voters()

    with LocalCluster(folder=tmp_path / "target") as target:
        checkpoint = tmp_path / "copying"
        killing = threading.Thread(target=kill_in_the_middle, args=(group, checkpoint))
        killing.start()
        summary = migrate(
            MigrateSettings(
                namesrv=group.namesrv,
                topic=TOPIC,
                to_namesrv=target.namesrv,
                to_topic=TOPIC,
                queues=4,
                checkpoint=str(checkpoint),
                rows_per_batch=60,
            ),
            spark=spark,
        )
        killing.join()
        assert summary.outcome == "done"
        bodies = Counter(message.body for message in stored(target, TOPIC))
        assert bodies == Counter(f"order {number}".encode() for number in range(600))


def kill_in_the_middle(group: LocalCluster, checkpoint: Path) -> None:
    eventually(lambda: finished_batches(checkpoint) >= 2, "two batches", timeout_s=PATIENCE_S)
    group.kill_leader()


def numbers_read(spark: SparkSession, group: LocalCluster) -> list[int]:
    read = spark.read.format("rocketmq").schema("number string")
    given = {"namesrvAddr": group.namesrv, "subscribe": TOPIC}
    rows = read.options(**given, startingOffsets="earliest").load().collect()
    return sorted(int(row.number) for row in rows)
