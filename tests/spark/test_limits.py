"""docs/guide/spark-limits.md is right about Spark: each refusal is Spark's, each gap is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, orders, send_rows

TOPIC = "limits"
COUNT = 20


@pytest.fixture(scope="module")
def namesrv(cluster: LocalCluster) -> str:
    send_rows(cluster, orders(make_topic(cluster, TOPIC, queues=1), COUNT))
    return cluster.namesrv


def stream(spark: SparkSession, namesrv: str) -> DataFrame:
    reader = spark.readStream.format("rocketmq").schema("queueOffset bigint")
    return reader.options(namesrvAddr=namesrv, subscribe=TOPIC, startingOffsets="earliest").load()


@pytest.mark.proves("spark.on-a-cluster.nothing-for-python")
@pytest.mark.parametrize(
    ("trigger", "refusal"),
    [
        ({"continuous": "1 second"}, "does not support continuous processing"),
        ({"realTime": "5 seconds"}, "INPUT_STREAM_NOT_SUPPORTED"),
    ],
)
def test_spark_refuses_the_triggers_of_the_jvm(
    spark: SparkSession, namesrv: str, tmp_path: Path, trigger: dict[str, str], refusal: str
) -> None:
    writer = stream(spark, namesrv).writeStream.format("console").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger)
    with pytest.raises(PySparkException, match=refusal):
        writer.start().awaitTermination(60)


@pytest.mark.proves("spark.on-a-cluster.nothing-for-python")
def test_spark_prunes_no_columns_takes_no_figures_and_has_no_tables(
    spark: SparkSession, namesrv: str, tmp_path: Path
) -> None:
    options = {"namesrvAddr": namesrv, "subscribe": TOPIC}
    frame = spark.read.format("rocketmq").options(**options).load()
    (scan,) = [line for line in plan_of(frame.select("queueOffset")) if "BatchScan" in line]
    assert "body" in scan
    query = stream(spark, namesrv).writeStream.format("noop").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path)).start()
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    assert not progress["sources"][0]["metrics"] and not progress["sink"]["metrics"]
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    # Spark adds options of its own to those of a table, and a source cannot tell them apart.
    with pytest.raises(PySparkException, match="provider: there is no such option"):
        spark.sql(f"CREATE TABLE limited USING rocketmq OPTIONS ({given})")


def plan_of(frame: DataFrame) -> list[str]:
    return str(frame._jdf.queryExecution().executedPlan().toString()).splitlines()
