"""A batch read and a stream go on at a slave while its master is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from contrail.testing import LocalCluster
from tests.e2e.replica_waits import wait_for_slave
from tests.spark.test_stream_read import run, stream
from tests.spark.traffic import make_topic, orders, send_rows

TOPIC = "orders"
PROPERTIES = {"brokerRole": "SYNC_MASTER", "slaveReadEnable": "true"}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(slaves=1, folder=tmp_path / "pair", properties=PROPERTIES) as running:
        make_topic(running, TOPIC)
        yield running


@pytest.mark.proves("replication.shown.spark")
def test_a_batch_and_a_stream_go_on_at_the_slave_while_the_master_is_gone(
    spark: SparkSession, pair: LocalCluster, tmp_path: Path
) -> None:
    master = pair.brokers[0]
    seen: list[tuple[int, list[int]]] = []
    send_rows(pair, orders(TOPIC, 100))
    run(stream(spark, pair, TOPIC), tmp_path / "checkpoint", seen)
    send_rows(pair, orders(TOPIC, 60, first=100))
    wait_for_slave(pair)
    master.kill()

    read = spark.read.format("rocketmq").schema("number string")
    given = {"namesrvAddr": pair.namesrv, "subscribe": TOPIC}
    batch = read.options(**given, startingOffsets="earliest").load()
    assert sorted(int(row.number) for row in batch.collect()) == list(range(160))
    run(stream(spark, pair, TOPIC), tmp_path / "checkpoint", seen)

    # The master is back: the same query reads what comes then.
    master.start()
    send_rows(pair, orders(TOPIC, 40, first=160))
    run(stream(spark, pair, TOPIC), tmp_path / "checkpoint", seen)
    numbers = [number for _, batch_numbers in seen for number in batch_numbers]
    assert sorted(numbers) == list(range(200))
