"""The connector on Apache RocketMQ's own broker: reads, writes and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from contrail import Admin, Producer
from contrail.errors import RouteMissing
from contrail.pipeline.sink_apache import id_of_key
from contrail.testing import eventually
from tests.interop.apache_cluster import ApacheCluster
from tests.spark.traffic import SEND_TIMEOUT_MS, orders

TOPIC = "orders"
COUNT = 600
QUEUES = 4
WAIT_S = 600
Row = tuple[int, int, bytes]


@pytest.fixture(scope="module")
def apache() -> Iterator[ApacheCluster]:
    with ApacheCluster(brokers=1) as running:
        yield running


def make_topic(apache: ApacheCluster, topic: str) -> str:
    """Create a topic; it is registered with the NameServer a moment later."""
    with Admin(apache.namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)

        def has_route() -> bool:
            try:
                return len(admin.queues(topic)) == QUEUES
            except RouteMissing:
                return False

        eventually(has_route, f"a route of {topic}", timeout_s=WAIT_S)
    return topic


def send(apache: ApacheCluster, topic: str, count: int, *, first: int = 0) -> set[Row]:
    """Send numbered orders round the queues; where each one landed."""
    messages = orders(topic, count, first=first)
    landed = set()
    with Admin(apache.namesrv) as admin:
        queues = sorted(admin.queues(topic))
    with Producer("spark-tests", apache.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number, queue in enumerate(queues):
            mine = messages[number :: len(queues)]
            receipt = producer.send_batch(mine, queue=queue)
            for shift, message in enumerate(mine):
                landed.add((queue.queue_id, receipt.queue_offset + shift, message.body))
    wait_for_count(apache, topic, first + count)
    return landed


def wait_for_count(apache: ApacheCluster, topic: str, count: int) -> None:
    """Apache's broker answers a send before its queues have the message."""
    with Admin(apache.namesrv) as admin:
        eventually(
            lambda: admin.topic_stats(topic).count >= count,
            f"{count} messages of {topic}",
            timeout_s=WAIT_S,
        )


@pytest.fixture(scope="module")
def halves(apache: ApacheCluster) -> tuple[set[Row], int, set[Row]]:
    """Two rounds of messages, and a time between them."""
    make_topic(apache, TOPIC)
    early = send(apache, TOPIC, COUNT // 2)
    sent_ms = time.time_ns() // 1_000_000
    eventually(lambda: time.time_ns() // 1_000_000 > sent_ms + 2, "the next milliseconds")
    between_ms = sent_ms + 2
    return early, between_ms, send(apache, TOPIC, COUNT // 2, first=COUNT // 2)


@pytest.fixture(scope="module")
def landed(halves: tuple[set[Row], int, set[Row]]) -> set[Row]:
    return halves[0] | halves[2]


def read(spark: SparkSession, apache: ApacheCluster, schema: str = "", **options: str) -> DataFrame:
    given = {"namesrvAddr": apache.namesrv, "subscribe": TOPIC, **options}
    reader = spark.read.format("rocketmq").options(**given)
    return (reader.schema(schema) if schema else reader).load()


def rows_of(frame: DataFrame) -> list[Row]:
    found = frame.select("queueId", "queueOffset", "body").collect()
    return [(row.queueId, row.queueOffset, bytes(row.body)) for row in found]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.number) for row in frame.select("number").collect())


# Batches.


@pytest.mark.proves("spark.shown.apache")
def test_every_message_is_read_once_with_all_its_columns(
    spark: SparkSession, apache: ApacheCluster, landed: set[Row]
) -> None:
    frame = read(spark, apache, includeProperties="true").cache()
    found = rows_of(frame)
    assert (len(found), set(found)) == (COUNT, landed)
    for row in frame.collect():
        number = int(row.properties["number"])
        assert bytes(row.body) == f"order {number}".encode()
        assert (row.topic, row.brokerName, row.keys) == (TOPIC, "broker-a", f"k{number}")
        assert row.tags == ("paid" if number % 2 else "open")
        assert row.properties["region"] == ("eu" if number % 3 else "us")
        assert abs(row.storeTimestamp - row.bornTimestamp).total_seconds() < WAIT_S
    frame.unpersist()


def test_a_schema_is_a_projection(
    spark: SparkSession, apache: ApacheCluster, landed: set[Row]
) -> None:
    frame = read(spark, apache, "msgId string, number string, nosuch string", minPartitions="7")
    rows = frame.collect()
    assert sorted(int(row.number) for row in rows) == list(range(COUNT))
    assert len({row.msgId for row in rows}) == COUNT
    assert {row.nosuch for row in rows} == {None}


def test_the_broker_evaluates_tags_and_sql(
    spark: SparkSession, apache: ApacheCluster, landed: set[Row]
) -> None:
    paid = read(spark, apache, "number string", tags="paid || none")
    assert numbers(paid) == list(range(1, COUNT, 2))
    american = read(spark, apache, "number string", sqlFilter="region = 'us' AND number < 300")
    assert numbers(american) == list(range(0, 300, 3))


def test_filters_that_are_pushed_change_no_result(
    spark: SparkSession, apache: ApacheCluster, landed: set[Row]
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, apache, pushdown="true")
        found = rows_of(frame.where("queueId = 1 and queueOffset >= 50 and tags = 'paid'"))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    # The second queue has every fourth order, from the second on: all of them are paid.
    assert sorted(found) == sorted(row for row in landed if row[0] == 1 and row[1] >= 50)


def test_a_batch_begins_and_ends_at_a_time_or_an_offset(
    spark: SparkSession, apache: ApacheCluster, halves: tuple[set[Row], int, set[Row]]
) -> None:
    early, between_ms, late = halves
    assert set(rows_of(read(spark, apache, startingTimestamp=str(between_ms)))) == late
    assert set(rows_of(read(spark, apache, endingTimestamp=str(between_ms)))) == early
    start = json.dumps({TOPIC: {f"broker-a:{number}": number * 10 for number in range(QUEUES)}})
    found = rows_of(read(spark, apache, startingOffsets=start))
    assert set(found) == {row for row in early | late if row[1] >= row[0] * 10}


def test_a_time_after_all_messages_is_refused(
    spark: SparkSession, apache: ApacheCluster, landed: set[Row]
) -> None:
    future = str(int(datetime(2099, 1, 1, tzinfo=UTC).timestamp() * 1000))
    with pytest.raises(Exception, match=r"startingTimestamp: .* has no message that new"):
        read(spark, apache, startingTimestamp=future).collect()


# Streams.


def run(frame: DataFrame, folder: Path, seen: list[tuple[int, list[int]]]) -> None:
    """Read to the present end; ``seen`` gets the id and the numbers of each batch."""

    def keep(batch: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, numbers(batch)))

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)


@pytest.mark.proves("spark.shown.apache")
def test_a_stream_goes_on_where_its_checkpoint_is(
    spark: SparkSession, apache: ApacheCluster, tmp_path: Path
) -> None:
    topic = make_topic(apache, "streamed")
    send(apache, topic, 400)
    frame = (
        spark.readStream.format("rocketmq")
        .schema("number string")
        .options(namesrvAddr=apache.namesrv, subscribe=topic, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="150", consumerGroup="watched")
        .load()
    )
    seen: list[tuple[int, list[int]]] = []
    run(frame, tmp_path, seen)
    assert [len(found) for _, found in seen] == [150, 150, 100]
    assert sorted(number for _, found in seen for number in found) == list(range(400))
    send(apache, topic, 20, first=400)
    run(frame, tmp_path, seen)
    assert seen[3:] == [(3, list(range(400, 420)))]
    with Admin(apache.namesrv) as admin:
        assert set(admin.committed_offsets("watched", topic).values()) == {100}


def test_a_batch_that_failed_is_read_again_with_the_same_rows(
    spark: SparkSession, apache: ApacheCluster, tmp_path: Path
) -> None:
    topic = make_topic(apache, "replayed")
    send(apache, topic, 60)
    frame = (
        spark.readStream.format("rocketmq")
        .schema("number string")
        .options(namesrvAddr=apache.namesrv, subscribe=topic, startingOffsets="earliest")
        .load()
    )
    tried: list[list[int]] = []

    def fail(batch: DataFrame, batch_id: int) -> None:
        tried.append(numbers(batch))
        raise RuntimeError("the sink is broken")

    writer = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="the sink is broken"):
        writer.start().awaitTermination(WAIT_S)
    send(apache, topic, 10, first=60)
    seen: list[tuple[int, list[int]]] = []
    run(frame, tmp_path, seen)
    assert [*tried, *(found for _, found in seen)] == [[*range(60)], [*range(60)], [*range(60, 70)]]


# Writing.


def frame_of(spark: SparkSession, count: int) -> DataFrame:
    number = F.col("id").cast("string")
    return spark.range(0, count, 1, 2).select(
        number.alias("body"),
        F.concat(F.lit("key-"), number).alias("keys"),
        F.concat(F.lit("user-"), (F.col("id") % 7).cast("string")).alias("shardingKey"),
    )


def write(frame: DataFrame, apache: ApacheCluster, topic: str, **options: str) -> None:
    given = {"namesrvAddr": apache.namesrv, "topic": topic, **options}
    frame.write.format("rocketmq").options(**given).mode("append").save()


def bodies(spark: SparkSession, apache: ApacheCluster, topic: str, count: int) -> list[int]:
    """The messages of a topic, once it has at least ``count``."""
    wait_for_count(apache, topic, count)
    frame = read(spark, apache, "body binary", subscribe=topic)
    return sorted(int(bytes(row.body)) for row in frame.collect())


def wait_for_index(apache: ApacheCluster, topic: str, count: int) -> None:
    """Until every key can be looked up: the index is written after the message."""
    with Admin(apache.namesrv) as admin:
        missing = [id_of_key(topic, f"key-{number}") for number in range(count)]

        def all_found() -> bool:
            while missing and admin.messages_by_unique_key(topic, missing[-1]):
                missing.pop()
            return not missing

        eventually(all_found, f"the keys of {topic} in the index", timeout_s=WAIT_S)


@pytest.mark.proves("spark.sink.sharding-keys")
def test_a_batch_is_written_and_ordered_by_sharding_key(
    spark: SparkSession, apache: ApacheCluster
) -> None:
    topic = make_topic(apache, "written")
    write(frame_of(spark, 700), apache, topic, idempotence="none")
    assert bodies(spark, apache, topic, 700) == list(range(700))
    rows = read(spark, apache, "body binary, queueId int, queueOffset bigint", subscribe=topic)
    found = sorted(rows.collect(), key=lambda row: row.queueOffset)
    for user in range(7):
        mine = [row for row in found if int(bytes(row.body)) % 7 == user]
        assert len({row.queueId for row in mine}) == 1
        for half in (range(350), range(350, 700)):
            numbered = [int(bytes(row.body)) for row in mine if int(bytes(row.body)) in half]
            assert numbered == sorted(numbered)


def test_repeats_of_a_key_add_no_message(spark: SparkSession, apache: ApacheCluster) -> None:
    topic = make_topic(apache, "by-keys")
    for count in (80, 100):
        frame = frame_of(spark, count)
        write(frame, apache, topic, idempotence="dedupe", dedupeBy="keys")
        wait_for_index(apache, topic, count)
    assert bodies(spark, apache, topic, 100) == list(range(100))


@pytest.mark.proves("spark.sink.apache")
@pytest.mark.parametrize("options", [{"idempotence": "transactional"}, {"idempotence": "dedupe"}])
def test_promises_that_apache_cannot_keep_are_refused(
    spark: SparkSession, apache: ApacheCluster, options: dict[str, str]
) -> None:
    topic = make_topic(apache, f"refused-{options['idempotence']}")
    refusal = rf"idempotence={options['idempotence']}: broker-a cannot .* only Contrail's brokers"
    with pytest.raises(Exception, match=f"(?s){refusal}"):
        write(frame_of(spark, 3), apache, topic, writeId="refused", **options)
    assert bodies(spark, apache, topic, 0) == []


@pytest.mark.proves("spark.shown.apache")
@pytest.mark.parametrize(
    "options", [{"idempotence": "none"}, {"idempotence": "dedupe", "dedupeBy": "keys"}, {}]
)
def test_a_stream_is_written(
    spark: SparkSession, apache: ApacheCluster, tmp_path: Path, options: dict[str, str]
) -> None:
    topic = make_topic(apache, f"stream-{'-'.join(options.values()) or 'default'}")
    (tmp_path / "input").mkdir()

    def copy() -> None:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "input"))
        frame = lines.select(
            F.col("value").alias("body"), F.concat(F.lit("key-"), "value").alias("keys")
        )
        given = {"namesrvAddr": apache.namesrv, "topic": topic, **options}
        writer = frame.writeStream.format("rocketmq").options(**given)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)

    for part in range(2):
        lines = "".join(f"{number}\n" for number in range(50 * part, 50 * part + 50))
        (tmp_path / "input" / f"{part}.txt").write_text(lines)
    copy()
    assert bodies(spark, apache, topic, 100) == list(range(100))
    if options.get("dedupeBy") == "keys":
        # As if the driver had died before it wrote down that the last batch is done.
        wait_for_index(apache, topic, 100)
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        copy()
        assert bodies(spark, apache, topic, 100) == list(range(100))


# The last one: there is no broker afterwards.


@pytest.mark.proves("spark.source.offline")
def test_the_folder_of_a_stopped_broker_has_the_same_rows(
    spark: SparkSession, apache: ApacheCluster, landed: set[Row]
) -> None:
    broker = apache.brokers[0]
    broker.stop()
    folder = str(apache.folder / broker.name / "store")
    offline = spark.read.format("rocketmq").option("storePath", folder)
    frame = offline.options(subscribe=TOPIC, includeProperties="true").load().cache()
    found = rows_of(frame)
    assert (len(found), set(found)) == (COUNT, landed)
    for row in frame.collect():
        number = int(row.properties["number"])
        assert (bytes(row.body), row.keys) == (f"order {number}".encode(), f"k{number}")
        assert row.tags == ("paid" if number % 2 else "open")
    frame.unpersist()
