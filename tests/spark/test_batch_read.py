"""Batches out of a live cluster: every message once, from where to where it was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from contrail import Admin, Message
from contrail.errors import DataLost, OptionInvalid, PipelineError
from contrail.pipeline.batch_reader import plan_batch
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.columns import default_schema
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.partitions import QueueSlice
from contrail.pipeline.pushed_filters import NOTHING_PUSHED
from contrail.pipeline.stream_reader import StreamReader
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, orders, send_rows

TOPIC = "orders"
COUNT = 1000
Landed = set[tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def landed(cluster: LocalCluster) -> Landed:
    """A thousand messages in four queues: (queue id, queue offset, body)."""
    make_topic(cluster, TOPIC)
    return {
        (queue.queue_id, at, body) for queue, at, body in send_rows(cluster, orders(TOPIC, COUNT))
    }


def read(spark: SparkSession, cluster: LocalCluster, schema: str = "", **options: str) -> DataFrame:
    given = {"namesrvAddr": cluster.namesrv, "subscribe": TOPIC, **options}
    reader = spark.read.format("rocketmq").options(**given)
    return (reader.schema(schema) if schema else reader).load()


def plan(cluster: LocalCluster, **options: str) -> list[QueueSlice]:
    """The partitions of a batch, without a Spark session."""
    given = {"namesrvAddr": cluster.namesrv, "subscribe": TOPIC, **options}
    settings = SourceSettings.of(given, streaming=False)
    with closing(ClusterView(settings)) as view:
        return plan_batch(settings, view, NOTHING_PUSHED)


def bounds(partitions: list[QueueSlice]) -> dict[int, tuple[int, int]]:
    return {part.queue_id: (part.queue_offset_start, part.queue_offset_end) for part in partitions}


def all_queues(**places: int) -> str:
    """JSON that gives every queue of the topic a number: ``q0=3`` for queue 0."""
    return json.dumps({TOPIC: {f"broker-a:{name[1:]}": at for name, at in places.items()}})


@pytest.mark.proves("spark.source.four-ways", "spark.source.schema", "spark.shown.sessions")
def test_every_message_is_read_once_with_all_of_its_fields(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    started = datetime.now(UTC).timestamp()
    frame = read(spark, cluster, includeProperties="true")
    rows = frame.collect()
    assert {(row.queueId, row.queueOffset, bytes(row.body)) for row in rows} == landed
    assert len(rows) == COUNT
    assert {(row.topic, row.brokerName) for row in rows} == {(TOPIC, "broker-a")}
    for row in rows:
        number = int(row.properties["number"])
        assert bytes(row.body) == f"order {number}".encode()
        assert (row.keys, row.tags) == (f"k{number}", "paid" if number % 2 else "open")
        assert row.properties["region"] == ("eu" if number % 3 else "us")
        stored = row.storeTimestamp.timestamp()
        assert started - 3600 < row.bornTimestamp.timestamp() <= stored + 1 <= started + 61


@pytest.mark.proves("spark.source.partitions", "spark.source.schema")
def test_a_schema_is_a_projection_and_min_partitions_cuts_queues(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    columns = "number string, queueOffset bigint, reconsumeTimes int, msgId string, nosuch string"
    frame = read(spark, cluster, columns, minPartitions="7")
    assert frame.columns == ["number", "queueOffset", "reconsumeTimes", "msgId", "nosuch"]
    rows = frame.collect()
    assert {int(row.number) for row in rows} == set(range(COUNT))
    assert {(row.reconsumeTimes, row.nosuch) for row in rows} == {(0, None)}
    assert len({row.msgId for row in rows}) == len(rows) == COUNT
    assert len(plan(cluster, minPartitions="7")) == 7
    assert len(plan(cluster, maxRecordsPerPartition="100")) == 12


@pytest.mark.proves("spark.source.filters")
def test_the_broker_evaluates_tags_and_sql(spark: SparkSession, cluster: LocalCluster) -> None:
    # The two tags have the same hash, by which brokers choose: the rest is up to the reader.
    topic = make_topic(cluster, "alike", queues=1)
    sent = [
        Message(topic, str(number).encode(), tags=("Aa", "BB")[number % 2]) for number in range(90)
    ]
    send_rows(cluster, sent)
    same_hash = read(spark, cluster, "tags string", subscribe=topic, tags="Aa || none").collect()
    assert [row.tags for row in same_hash] == ["Aa"] * 45
    bought = read(spark, cluster, "number string", sqlFilter="region = 'us' AND number < 300")
    assert sorted(int(row.number) for row in bought.collect()) == list(range(0, 300, 3))


@pytest.mark.proves("spark.source.filters")
def test_filters_are_pushed_when_asked_for_and_change_no_result(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    condition = (
        "queueId in (1, 2) and brokerName = 'broker-a' and queueOffset >= 50 and queueOffset < 60 "
        "and storeTimestamp > timestamp'2020-01-01' and storeTimestamp < timestamp'2099-01-01' "
        "and tags = 'paid' and topic = 'orders'"
    )
    expected = {
        (queue_id, at, body) for queue_id, at, body in landed if queue_id == 1 and 50 <= at < 60
    }
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, cluster, pushdown="true").where(condition)
        rows = frame.collect()
        assert frame.rdd.getNumPartitions() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert {(row.queueId, row.queueOffset, bytes(row.body)) for row in rows} == expected
    assert len(rows) == len(expected) == 10


def test_a_view_in_sql_takes_the_options(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW bought USING rocketmq "
        f"OPTIONS (namesrvAddr '{cluster.namesrv}', subscribe '{TOPIC}', startingOffsets "
        f"'{all_queues(q0=248, q1=249, q2=250, q3=-2)}')"
    )
    try:
        found = spark.sql("SELECT queueId, count(*) AS n FROM bought GROUP BY queueId").collect()
    finally:
        spark.catalog.dropTempView("bought")
    assert {row.queueId: row.n for row in found} == {0: 2, 1: 1, 3: 250}


@pytest.mark.proves("spark.source.offline")
def test_the_folder_of_a_running_broker_has_the_same_rows(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    folder = str(cluster.brokers[0].folder / "store")
    columns = "queueId int, queueOffset bigint, body binary"
    offline = spark.read.format("rocketmq").schema(columns).option("storePath", folder)
    rows = offline.option("subscribe", TOPIC).load().collect()
    assert {(row.queueId, row.queueOffset, bytes(row.body)) for row in rows} == landed
    assert len(rows) == COUNT


def test_a_topic_without_messages_is_an_empty_frame(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    make_topic(cluster, "empty")
    assert read(spark, cluster, subscribe="empty").count() == 0


def test_an_error_reaches_the_user_with_its_reason(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    with pytest.raises(Exception, match=r"startingoffset: .* did you mean startingOffsets"):
        read(spark, cluster, startingOffset="earliest")
    with pytest.raises(Exception, match=r"startingOffsets: it lacks orders broker-a:1, .*:2"):
        read(spark, cluster, startingOffsets=all_queues(q0=1)).collect()


@pytest.mark.proves("cli.small-rules.spark-options")
def test_an_error_of_an_option_begins_with_the_cause(
    spark: SparkSession, cluster: LocalCluster, landed: Landed
) -> None:
    """Spark prints tracebacks of its Python processes before the error itself."""
    for attempt, told in (
        (lambda: read(spark, cluster, startingOffset="x"), "startingoffset: there is no such"),
        (
            lambda: read(spark, cluster, startingOffsets=all_queues(q0=1)).collect(),
            "startingOffsets: it lacks orders",
        ),
        (
            lambda: (
                spark.range(1)
                .selectExpr("'x' as bodyy")
                .write.format("rocketmq")
                .options(namesrvAddr=cluster.namesrv, topic=TOPIC)
                .mode("append")
                .save()
            ),
            "column bodyy: the sink does not take it",
        ),
    ):
        with pytest.raises(Exception, match=re.escape(told)) as raised:
            attempt()
        first = str(raised.value).splitlines()[0]
        assert f"contrail.errors.OptionInvalid: {told}" in first
        assert "Traceback" not in str(raised.value)


@pytest.mark.proves("cli.small-rules.spark-options")
@pytest.mark.parametrize("expression", ["region = = 'eu'", "region = ", "1 +"])
def test_an_sql_filter_is_checked_at_planning(
    spark: SparkSession, cluster: LocalCluster, landed: Landed, expression: str
) -> None:
    with pytest.raises(OptionInvalid, match=r"^sqlFilter: "):
        plan(cluster, sqlFilter=expression)
    settings = SourceSettings.of(
        {"namesrvAddr": cluster.namesrv, "subscribe": TOPIC, "sqlFilter": expression},
        streaming=True,
    )
    stream = StreamReader(settings, default_schema(include_properties=False))
    with pytest.raises(OptionInvalid, match=r"^sqlFilter: "):
        stream.initialOffset()
    stream.stop()
    assert plan(cluster, sqlFilter="region = 'eu'")


@pytest.mark.proves("spark.clusters.offsets-order")
def test_an_end_before_the_start_names_both_options_and_the_queue(
    cluster: LocalCluster, landed: Landed
) -> None:
    times = all_queues(q0=0, q1=0, q2=0, q3=0)
    start = all_queues(q0=0, q1=7, q2=0, q3=0)
    told = "endingOffsetsByTimestamp: orders broker-a:1 would end at 0, before 7, where starting"
    with pytest.raises(OptionInvalid, match=told):
        plan(cluster, startingOffsets=start, endingOffsetsByTimestamp=times)


@pytest.mark.proves("spark.source.start-and-end")
def test_a_batch_begins_and_ends_at_the_given_offsets(
    cluster: LocalCluster, landed: Landed
) -> None:
    whole = dict.fromkeys(range(4), (0, 250))
    assert bounds(plan(cluster)) == whole
    start, end = all_queues(q0=3, q1=-2, q2=250, q3=240), all_queues(q0=9, q1=-1, q2=250, q3=-1)
    cut = plan(cluster, startingOffsets=start, endingOffsets=end)
    assert bounds(cut) == {0: (3, 9), 1: (0, 250), 3: (240, 250)}
    # A time is stronger than offsets; before all messages it is their beginning.
    assert bounds(plan(cluster, startingTimestamp="1000", startingOffsets=start)) == whole
    assert plan(cluster, endingTimestamp="1000") == []
    by_queue = all_queues(q0=1000, q1=0, q2=5, q3=7)
    assert bounds(plan(cluster, startingOffsetsByTimestamp=by_queue)) == whole


def test_a_time_in_the_future_is_refused_or_means_the_end(
    cluster: LocalCluster, landed: Landed
) -> None:
    future = str(int(datetime(2099, 1, 1, tzinfo=UTC).timestamp() * 1000))
    with pytest.raises(OptionInvalid, match=r"startingTimestamp: .* has no message that new"):
        plan(cluster, startingTimestamp=future)
    assert (
        plan(cluster, startingTimestamp=future, startingOffsetsByTimestampStrategy="latest") == []
    )
    assert bounds(plan(cluster, endingTimestamp=future)) == dict.fromkeys(range(4), (0, 250))


def test_queues_are_chosen_by_name_and_topics_by_pattern(
    cluster: LocalCluster, landed: Landed
) -> None:
    chosen = plan(cluster, subscribe="", assign='{"orders": ["broker-a:2", "broker-a:0"]}')
    assert bounds(chosen) == {0: (0, 250), 2: (0, 250)}
    matching = plan(cluster, subscribe="", subscribePattern="ord.*")
    assert {part.topic for part in matching} == {TOPIC}
    with pytest.raises(OptionInvalid, match=r"assign: .*no queue 'broker-a:9'"):
        plan(cluster, subscribe="", assign='{"orders": ["broker-a:9"]}')


@pytest.mark.proves("spark.source.data-loss")
def test_deleted_messages_fail_the_batch_or_are_left_out(
    cluster: LocalCluster, landed: Landed
) -> None:
    beyond = all_queues(q0=900, q1=0, q2=0, q3=0)
    with pytest.raises(DataLost, match=r"orders broker-a:0 ends at 250, before 900.*=false"):
        plan(cluster, startingOffsets=beyond)
    rest = plan(cluster, startingOffsets=beyond, failOnDataLoss="false")
    assert bounds(rest) == dict.fromkeys((1, 2, 3), (0, 250))


@pytest.fixture
def two_brokers() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def test_a_batch_fails_rather_than_miss_the_rows_of_a_broker_that_is_away(
    two_brokers: LocalCluster,
) -> None:
    make_topic(two_brokers, TOPIC, queues=2)
    send_rows(two_brokers, orders(TOPIC, 40))
    patience = {"fetchOffset.numRetries": "0"}
    assert len(plan(two_brokers, **patience)) == 4
    with Admin(two_brokers.namesrv) as admin:
        named = {queue.broker_name for queue in admin.queues(TOPIC)}
    assert named == {"broker-a", "broker-b"}
    two_brokers.brokers[1].stop()
    assign = json.dumps({TOPIC: ["broker-a:0", "broker-b:0"]})
    with pytest.raises(PipelineError, match="no answer from broker-b"):
        plan(two_brokers, subscribe="", assign=assign, **patience)
