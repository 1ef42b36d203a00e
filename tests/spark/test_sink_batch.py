"""``df.write.format("rocketmq")`` into a live cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from contrail import Admin
from contrail.client.selectors import java_hash_of
from contrail.testing import LocalCluster
from tests.spark.stored import stored
from tests.spark.traffic import make_topic

QUEUES = 4


def write(frame: DataFrame, cluster: LocalCluster, topic: str | None, **options: str) -> None:
    given = {"namesrvAddr": cluster.namesrv, **options} | ({"topic": topic} if topic else {})
    frame.write.format("rocketmq").options(**given).mode("append").save()


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Rows whose order is the same each time."""
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


def failing_at(spark: SparkSession, count: int, bad: int) -> DataFrame:
    body = F.when(F.col("id") == bad, F.raise_error(F.lit("bad luck"))).otherwise(F.col("id"))
    return spark.range(0, count, 1, 2).select(body.cast("string").alias("body"))


def bodies(cluster: LocalCluster, topic: str) -> list[int]:
    return sorted(int(message.body) for message in stored(cluster, topic))


@pytest.mark.proves("spark.source.four-ways", "spark.sink.columns")
def test_every_column_arrives_in_the_message(spark: SparkSession, cluster: LocalCluster) -> None:
    topic = make_topic(cluster, "sink-columns", queues=QUEUES)
    frame = spark.createDataFrame(
        [
            (b"a", topic, "paid", "k1 k2", {"region": "eu", "\u00e4": "\u00f6"}, None, "user-7"),
            (b"b", topic, None, None, None, 3, None),
        ],
        "body binary, topic string, tags string, keys string, properties map<string,string>, "
        "queueId int, shardingKey string",
    )
    write(frame, cluster, None)
    first, second = sorted(stored(cluster, topic), key=lambda message: message.body)
    assert (first.body, first.tags, list(first.keys)) == (b"a", "paid", ["k1", "k2"])
    assert first.properties["region"] == "eu"
    assert first.properties["\u00e4"] == "\u00f6"
    assert first.queue.queue_id == abs(java_hash_of("user-7")) % QUEUES
    assert (second.body, second.queue.queue_id, second.tags) == (b"b", 3, None)


def test_the_topic_option_comes_before_the_column(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    topic = make_topic(cluster, "sink-option")
    frame = numbers(spark, 3).withColumn("topic", F.lit("no-such-topic"))
    write(frame, cluster, topic)
    assert bodies(cluster, topic) == [0, 1, 2]


def test_rows_of_several_topics_go_to_their_own(spark: SparkSession, cluster: LocalCluster) -> None:
    topics = [make_topic(cluster, f"sink-several-{number}") for number in range(3)]
    name = F.concat(F.lit("sink-several-"), (F.col("body").cast("int") % 3).cast("string"))
    write(numbers(spark, 300).withColumn("topic", name), cluster, None, writeId="several")
    for number, topic in enumerate(topics):
        assert bodies(cluster, topic) == list(range(number, 300, 3))


@pytest.mark.proves("spark.sink.columns")
def test_delayed_rows_wait(spark: SparkSession, cluster: LocalCluster) -> None:
    topic = make_topic(cluster, "sink-delays")
    later = datetime.now(UTC) + timedelta(hours=1)
    moment = F.when(F.col("body") == "1", F.lit(later)).cast("timestamp")
    frame = numbers(spark, 3).withColumn("deliverTimestamp", moment)
    write(frame, cluster, topic, idempotence="none")
    write(frame, cluster, topic, writeId="delays")
    assert bodies(cluster, topic) == [0, 0, 2, 2]


@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_a_write_that_runs_again_under_its_name_adds_no_row(
    spark: SparkSession, cluster: LocalCluster, mode: str
) -> None:
    topic = make_topic(cluster, f"sink-again-{mode}")
    for _ in range(2):
        write(numbers(spark, 2_000), cluster, topic, idempotence=mode, writeId=f"run-{mode}")
    assert bodies(cluster, topic) == list(range(2_000))


def test_a_write_without_a_name_that_runs_again_writes_again(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    topic = make_topic(cluster, "sink-nameless")
    for _ in range(2):
        write(numbers(spark, 10), cluster, topic)
    assert bodies(cluster, topic) == sorted([*range(10)] * 2)


def test_after_a_half_done_run_the_next_adds_the_missing_rows(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    topic = make_topic(cluster, "sink-repaired")
    frame = numbers(spark, 2_000)
    # The first half of both partitions: as killed tasks would have sent.
    write(frame.where("int(body) % 1000 < 500"), cluster, topic, writeId="repaired")
    assert len(bodies(cluster, topic)) == 1_000
    write(frame, cluster, topic, writeId="repaired")
    assert bodies(cluster, topic) == list(range(2_000))


@pytest.mark.proves("spark.sink.idempotence")
def test_no_row_of_a_failed_transactional_write_is_seen(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    topic = make_topic(cluster, "sink-whole")
    with pytest.raises(Exception, match="bad luck"):
        write(failing_at(spark, 3_000, 2_999), cluster, topic, idempotence="transactional")
    assert bodies(cluster, topic) == []
    write(numbers(spark, 3_000), cluster, topic, idempotence="transactional")
    assert bodies(cluster, topic) == list(range(3_000))


def test_equal_keys_are_stored_once_in_a_topic_with_a_window(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("sink-keys", attributes={"contrail.dedupe.window.ms": "600000"})
    frame = numbers(spark, 200).withColumn("keys", F.concat(F.lit("key-"), F.col("body")))
    write(frame, cluster, "sink-keys", dedupeBy="keys")
    write(frame.orderBy(F.desc("body")), cluster, "sink-keys", dedupeBy="keys")
    assert bodies(cluster, "sink-keys") == list(range(200))


@pytest.mark.proves("spark.sink.columns")
def test_a_wrong_column_is_refused_before_any_task_starts(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    frame = failing_at(spark, 2, 0).withColumn("tag", F.lit("x"))
    with pytest.raises(Exception, match=r"column tag: .* did you mean tags"):
        write(frame, cluster, "anywhere")


def test_a_row_that_cannot_be_sent_is_named(spark: SparkSession, cluster: LocalCluster) -> None:
    topic = make_topic(cluster, "sink-null")
    frame = numbers(spark, 10, 1).withColumn(
        "body", F.when(F.col("body") != "7", F.col("body")).cast("string")
    )
    with pytest.raises(Exception, match="row 7 of partition 0, column body: it is null"):
        write(frame, cluster, topic)


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, cluster: LocalCluster) -> None:
    with pytest.raises(Exception, match="topic 'sink-nowhere' has no route: create it"):
        write(numbers(spark, 1, 1), cluster, "sink-nowhere", writeId="nowhere")
