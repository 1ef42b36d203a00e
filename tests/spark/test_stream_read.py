"""Streams out of a live cluster: no message twice or missing, batches within their limit.

The driver's decisions are tested on the reader itself, which needs no session; a few real queries
show that Spark and the reader agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from contrail import Admin
from contrail.errors import DataLost
from contrail.pipeline import stream_reader
from contrail.pipeline.columns import default_schema
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.stream_reader import StreamReader, TriggerGate
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, orders, queues_of, send_rows

Places = dict[str, dict[str, int]]
ALL = ReadAllAvailable()
WAIT_S = 600


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StreamReader]]:
    """Readers that ask the brokers each time, and are stopped after the test."""
    monkeypatch.setattr(stream_reader, "RANGES_AGE_MS_MAX", 0)
    opened: list[StreamReader] = []
    yield opened
    for reader in opened:
        reader.stop()


def reader_of(
    readers: list[StreamReader], cluster: LocalCluster, topic: str = "", **options: str
) -> StreamReader:
    given = {"namesrvAddr": cluster.namesrv, **options} | ({"subscribe": topic} if topic else {})
    given.setdefault("fetchOffset.numRetries", "0")
    reader = StreamReader(SourceSettings.of(given, streaming=True), default_schema(False))
    readers.append(reader)
    return reader


def rows(reader: StreamReader, start: Places, end: Places) -> list[tuple[str, int, bytes]]:
    """The messages that the tasks of a batch would read: (queue, queue offset, body)."""
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                queue = f"{row['brokerName']}:{row['queueId']}"
                found.append((queue, row["queueOffset"], row["body"]))
    return found


def stream(spark: SparkSession, cluster: LocalCluster, topic: str, **options: str) -> DataFrame:
    given = {"namesrvAddr": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    schema = "number string, queueId int, queueOffset bigint"
    reader = spark.readStream.format("rocketmq").schema(schema)
    return reader.options(**given, **options).load()


def run(frame: DataFrame, folder: Path, seen: list[tuple[int, list[int]]]) -> StreamingQuery:
    """Run to the present end of the topic; ``seen`` gets each batch: its id, and its numbers."""

    def keep(batch: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, sorted(int(row.number) for row in batch.collect())))

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return query


@pytest.mark.proves("spark.source.four-ways")
def test_a_query_reads_everything_in_bounded_batches_and_goes_on_where_it_was(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "bounded")
    send_rows(cluster, orders(topic, 400))
    options = {"maxOffsetsPerTrigger": "150", "consumerGroup": "watched"}
    seen: list[tuple[int, list[int]]] = []
    query = run(stream(spark, cluster, topic, **options), tmp_path, seen)
    assert [len(numbers) for _, numbers in seen] == [150, 150, 100]
    assert sorted(number for _, numbers in seen for number in numbers) == list(range(400))
    # Progress shows how far the queues reach beside how far the query is.
    source = query.recentProgress[0].sources[0]
    ends = {f"broker-a:{number}": 100 for number in range(4)}
    assert json.loads(source.latestOffset) == {topic: ends}
    assert sum(json.loads(source.endOffset)[topic].values()) == 150

    send_rows(cluster, orders(topic, 20, first=400))
    run(stream(spark, cluster, topic, **options), tmp_path, seen)
    assert seen[3:] == [(3, list(range(400, 420)))]
    # A commit moves the group to the end of the batch before the last one.
    with Admin(cluster.namesrv) as admin:
        published = admin.committed_offsets("watched", topic)
    assert set(published.values()) == {100}


@pytest.mark.proves("spark.source.replay")
def test_a_failed_batch_is_replayed_with_exactly_the_same_rows(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "replayed", queues=2)
    send_rows(cluster, orders(topic, 60))
    tried: list[list[int]] = []

    def fail(batch: DataFrame, batch_id: int) -> None:
        tried.append(sorted(int(row.number) for row in batch.collect()))
        raise RuntimeError("the sink is broken")

    writer = stream(spark, cluster, topic).writeStream.foreachBatch(fail)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="the sink is broken"):
        query.awaitTermination(WAIT_S)
    # Later messages are not part of a begun batch, whatever the options now.
    send_rows(cluster, orders(topic, 10, first=60))
    seen: list[tuple[int, list[int]]] = []
    run(stream(spark, cluster, topic, maxOffsetsPerTrigger="5"), tmp_path, seen)
    assert tried == [list(range(60))]
    assert seen[0] == (0, list(range(60)))
    assert sorted(number for _, numbers in seen[1:] for number in numbers) == list(range(60, 70))


def test_a_stream_with_a_store_folder_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.readStream.format("rocketmq").option("storePath", str(tmp_path)).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="storePath: a stream cannot have it: use it with spark"):
        query.awaitTermination(WAIT_S)


def test_a_stream_begins_at_the_end_by_default(
    cluster: LocalCluster, readers: list[StreamReader]
) -> None:
    topic = make_topic(cluster, "beginnings", queues=2)
    send_rows(cluster, orders(topic, 10))
    assert reader_of(readers, cluster, topic).initialOffset() == {
        topic: {"broker-a:0": 5, "broker-a:1": 5}
    }
    given = {topic: {"broker-a:0": 3, "broker-a:1": -2}}
    from_json = reader_of(readers, cluster, topic, startingOffsets=json.dumps(given))
    assert from_json.initialOffset() == {topic: {"broker-a:0": 3, "broker-a:1": 0}}
    by_time = reader_of(readers, cluster, topic, startingTimestamp="1000")
    assert by_time.initialOffset() == {topic: {"broker-a:0": 0, "broker-a:1": 0}}


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "9"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "9"}, ReadMaxBytes(9)),
        ({"minOffsetsPerTrigger": "9"}, ReadMinRows(9)),
    ],
)
def test_spark_gets_the_limit(
    cluster: LocalCluster, readers: list[StreamReader], options: dict[str, str], limit: ReadLimit
) -> None:
    assert reader_of(readers, cluster, "any", **options).getDefaultReadLimit() == limit


@pytest.mark.proves("spark.source.admission")
def test_a_batch_is_as_large_as_its_limits_say(
    cluster: LocalCluster, readers: list[StreamReader]
) -> None:
    topic = make_topic(cluster, "limits", queues=2)
    places = queues_of(cluster, topic)
    send_rows(cluster, orders(topic, 300), queues=places[:1])
    send_rows(cluster, orders(topic, 100), queues=places[1:])
    start = {topic: {"broker-a:0": 0, "broker-a:1": 0}}
    end = {topic: {"broker-a:0": 300, "broker-a:1": 100}}

    by_rows = reader_of(readers, cluster, topic, maxOffsetsPerTrigger="40")
    assert by_rows.latestOffset(start, by_rows.getDefaultReadLimit()) == {
        topic: {"broker-a:0": 30, "broker-a:1": 10}
    }
    assert by_rows.latestOffset(start, ALL) == by_rows.reportLatestOffset() == end

    by_bytes = reader_of(readers, cluster, topic, maxBytesPerTrigger="20000")
    reached = by_bytes.latestOffset(start, by_bytes.getDefaultReadLimit())
    # A record of these is between 150 and 250 bytes long.
    assert 80 <= sum(reached[topic].values()) <= 133
    one = reader_of(readers, cluster, topic, maxBytesPerTrigger="1")
    assert sum(one.latestOffset(start, one.getDefaultReadLimit())[topic].values()) == 1


@pytest.mark.proves("spark.source.admission")
def test_a_small_batch_waits_and_an_available_now_run_does_not(
    cluster: LocalCluster, readers: list[StreamReader]
) -> None:
    topic = make_topic(cluster, "waits", queues=1)
    send_rows(cluster, orders(topic, 5))
    reader = reader_of(readers, cluster, topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset({topic: {"broker-a:0": 0}}, limit)
    assert first == {topic: {"broker-a:0": 5}}
    send_rows(cluster, orders(topic, 5))
    assert reader.latestOffset(first, limit) == first
    assert reader.latestOffset(first, ALL) == {topic: {"broker-a:0": 10}}
    reader.prepareForTriggerAvailableNow()
    send_rows(cluster, orders(topic, 5))
    assert reader.reportLatestOffset() == {topic: {"broker-a:0": 15}}
    assert reader.latestOffset(first, limit) == {topic: {"broker-a:0": 10}}


def test_the_gate_opens_for_enough_or_after_long_enough() -> None:
    gate = TriggerGate(10, 1000)
    assert gate.lets_pass(1, 5_000)
    assert not gate.lets_pass(9, 5_999)
    assert gate.lets_pass(0, 5_999)
    assert gate.lets_pass(10, 5_999)
    assert not gate.lets_pass(9, 6_500)
    assert gate.lets_pass(9, 6_999)
    assert TriggerGate(None, 1000).lets_pass(1, 0)


@pytest.mark.proves("spark.source.new-queues")
def test_new_queues_and_topics_are_entered_at_their_beginning(
    cluster: LocalCluster, readers: list[StreamReader]
) -> None:
    topic = make_topic(cluster, "grows", queues=1)
    send_rows(cluster, orders(topic, 4))
    reader = reader_of(readers, cluster, subscribePattern="grows.*")
    start = reader.initialOffset()
    assert start == {topic: {"broker-a:0": 4}}
    make_topic(cluster, topic, queues=2)
    other = make_topic(cluster, "grows-too", queues=1)
    send_rows(cluster, orders(topic, 6, first=4))
    send_rows(cluster, orders(other, 2))
    entered = reader.latestOffset(start, ALL)
    assert entered == {topic: {"broker-a:0": 7, "broker-a:1": 0}, other: {"broker-a:0": 0}}
    reached = reader.latestOffset(entered, ALL)
    assert reached == {topic: {"broker-a:0": 7, "broker-a:1": 3}, other: {"broker-a:0": 2}}
    found = rows(reader, start, entered) + rows(reader, entered, reached)
    sent = orders(topic, 6, first=4) + orders(other, 2)
    assert sorted(body for _, _, body in found) == sorted(message.body for message in sent)


@pytest.mark.proves("spark.source.data-loss")
def test_a_topic_made_anew_ends_the_stream_or_is_read_from_its_end(
    cluster: LocalCluster, readers: list[StreamReader]
) -> None:
    topic = make_topic(cluster, "renewed", queues=1)
    send_rows(cluster, orders(topic, 9))
    start = {topic: {"broker-a:0": 9}}
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(topic)
    make_topic(cluster, topic, queues=1)
    send_rows(cluster, orders(topic, 3))
    strict = reader_of(readers, cluster, topic)
    with pytest.raises(DataLost, match=r"renewed broker-a:0 ends at 3 and was read up to 9"):
        strict.latestOffset(start, ALL)
    with pytest.raises(DataLost, match="renewed broker-a:0 ends at 3, before 9"):
        strict.partitions({topic: {"broker-a:0": 9}}, {topic: {"broker-a:0": 12}})
    lenient = reader_of(readers, cluster, topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    assert end == {topic: {"broker-a:0": 3}}
    assert lenient.partitions(start, end) == []


@pytest.mark.proves("spark.source.new-queues")
def test_the_offsets_of_a_broker_that_is_away_stay_and_those_of_a_new_one_appear(
    readers: list[StreamReader],
) -> None:
    with LocalCluster(brokers=2) as two:
        topic = make_topic(two, "spread", queues=1)
        send_rows(two, orders(topic, 8))
        reader = reader_of(readers, two, topic, startingOffsets="earliest")
        start = reader.initialOffset()
        assert start == {topic: {"broker-a:0": 0, "broker-b:0": 0}}
        two.brokers[1].stop()
        assert reader.latestOffset(start, ALL) == {topic: {"broker-a:0": 4, "broker-b:0": 0}}
        two.brokers[1].start()
        end = reader.latestOffset(start, ALL)
        assert end == {topic: {"broker-a:0": 4, "broker-b:0": 4}}
        found = rows(reader, start, end)
        assert sorted((queue, at) for queue, at, _ in found) == [
            (f"broker-{name}:0", at) for name in "ab" for at in range(4)
        ]
        # A broker that the stream did not know yet.
        assert reader.latestOffset({topic: {"broker-a:0": 4}}, ALL) == {
            topic: {"broker-a:0": 4, "broker-b:0": 0}
        }
        reader.stop()


@pytest.mark.proves("spark.source.progress")
def test_progress_is_published_to_a_group_that_did_not_exist(
    cluster: LocalCluster, readers: list[StreamReader], caplog: Any
) -> None:
    topic = make_topic(cluster, "told", queues=2)
    send_rows(cluster, orders(topic, 8))
    reader = reader_of(readers, cluster, topic, groupIdPrefix="spark")
    group = reader._settings.group
    assert group is not None
    with caplog.at_level("INFO", logger="contrail.pipeline.stream_reader"):
        reader.commit({topic: {"broker-a:0": 4, "broker-a:1": 1}})
    assert "lag 3 (told broker-a:1 3)" in caplog.text
    with Admin(cluster.namesrv) as admin:
        assert admin.lag(group, topic).total == 3
