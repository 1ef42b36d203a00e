"""A record that cannot be decoded ends no query: its row has the body as stored, and the error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from contrail import Compression, Message, Producer
from contrail.client import outgoing
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.migrate import MigrateSettings, migrate
from contrail.testing import LocalCluster
from tests.spark.stored import stored
from tests.spark.traffic import SEND_TIMEOUT_MS, make_topic

TOPIC = "mixed"
LONG = b"long " * 2000
BAD = b"this was never compressed"
SCHEMA = "queueOffset bigint, tags string, body binary, decodeError string"


@pytest.fixture(scope="module")
def sent(cluster: LocalCluster) -> dict[str, bytes]:
    """Bodies by tag in one queue: compressed in each way, and in each way flagged but not so."""
    make_topic(cluster, TOPIC, queues=1)
    make_topic(cluster, "moved", queues=1)
    bodies = {}
    with pytest.MonkeyPatch.context() as patched:
        for kind in Compression:
            group = f"undecodable-{kind.name}"
            with Producer(
                group, cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS, compression=kind
            ) as producer:
                producer.send(Message(TOPIC, LONG, tags=kind.name))
                with patched.context() as lying:
                    lying.setattr(
                        outgoing, "compress", lambda body, way, level: (BAD, 1 | way.value)
                    )
                    producer.send(Message(TOPIC, LONG, tags=f"bad-{kind.name}"))
                producer.send(Message(TOPIC, b"short", tags=f"after-{kind.name}"))
            bodies |= {kind.name: LONG, f"bad-{kind.name}": BAD, f"after-{kind.name}": b"short"}
    return bodies


def rows(frame: DataFrame) -> dict[str, tuple[bytes, bool]]:
    return {row.tags: (bytes(row.body), row.decodeError is not None) for row in frame.collect()}


def expected(sent: dict[str, bytes]) -> dict[str, tuple[bytes, bool]]:
    return {tag: (body, tag.startswith("bad-")) for tag, body in sent.items()}


def reader(spark: SparkSession, cluster: LocalCluster, **options: str) -> Any:
    given = {"namesrvAddr": cluster.namesrv, "subscribe": TOPIC, **options}
    return spark.read.format("rocketmq").schema(SCHEMA).options(**given)


@pytest.mark.proves("client.undecodable.spark", "spark.clusters.codecs")
def test_a_batch_has_every_row(
    spark: SparkSession, cluster: LocalCluster, sent: dict[str, bytes]
) -> None:
    assert rows(reader(spark, cluster).load()) == expected(sent)
    by_tag = reader(spark, cluster, tags="bad-LZ4 || ZSTD").load()
    assert rows(by_tag) == {"bad-LZ4": (BAD, True), "ZSTD": (LONG, False)}
    (bad,) = reader(spark, cluster, tags="bad-ZLIB").load().collect()
    assert re.match(r"record at physical offset \d+ cannot be decoded: ", bad.decodeError)


@pytest.mark.proves("client.undecodable.spark")
def test_a_store_folder_has_every_row(
    spark: SparkSession, cluster: LocalCluster, sent: dict[str, bytes]
) -> None:
    folder = str(cluster.brokers[0].folder / "store")
    for more in ({}, {"physicalOrder": "true"}):
        offline = spark.read.format("rocketmq").schema(SCHEMA).options(storePath=folder, **more)
        frame = offline.option("subscribe", TOPIC).load()
        assert rows(frame) == expected(sent)


@pytest.mark.proves("client.undecodable.spark")
def test_a_stream_has_every_row_and_goes_on(
    spark: SparkSession, cluster: LocalCluster, sent: dict[str, bytes], tmp_path: Path
) -> None:
    stream = spark.readStream.format("rocketmq").schema(SCHEMA)
    stream = stream.options(namesrvAddr=cluster.namesrv, subscribe=TOPIC)
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert rows(spark.read.parquet(str(tmp_path / "rows"))) == expected(sent)


@pytest.mark.proves("client.undecodable.spark")
def test_a_query_that_asks_for_it_ends_at_such_a_record(
    spark: SparkSession, cluster: LocalCluster, sent: dict[str, bytes]
) -> None:
    strict = reader(spark, cluster, failOnDecodeError="true").load()
    with pytest.raises(Exception, match="mixed broker-a:0: record at physical offset"):
        strict.collect()
    folder = str(cluster.brokers[0].folder / "store")
    offline = spark.read.format("rocketmq").schema(SCHEMA).options(storePath=folder)
    with pytest.raises(Exception, match=r"cannot be decoded.*failOnDecodeError=false"):
        offline.options(subscribe=TOPIC, failOnDecodeError="true").load().collect()
    # A reader of raw bodies, or of none, decodes nothing that could fail.
    assert reader(spark, cluster, failOnDecodeError="true", rawBody="true").load().count() == 9


@pytest.mark.proves("client.undecodable.spark")
def test_jobs_take_such_records_along(
    spark: SparkSession, cluster: LocalCluster, sent: dict[str, bytes], tmp_path: Path
) -> None:
    migrated = migrate(
        MigrateSettings(
            namesrv=cluster.namesrv,
            topic=TOPIC,
            to_topic="moved",
            checkpoint=str(tmp_path / "migrate"),
        ),
        spark=spark,
    )
    assert migrated.facts["verified"] == len(sent)
    assert {one.tags: one.body for one in stored(cluster, "moved")} == sent
    told = [one for one in stored(cluster, "moved") if "CONTRAIL_DECODE_ERROR" in one.properties]
    assert sorted(str(one.tags) for one in told) == ["bad-LZ4", "bad-ZLIB", "bad-ZSTD"]
    kept = archive(
        ArchiveSettings(
            namesrv=cluster.namesrv, topics=(TOPIC,), archive=str(tmp_path / "archive")
        ),
        spark=spark,
    )
    assert kept.outcome == "done"
    archived = spark.read.parquet(f"{tmp_path}/archive/topic={TOPIC}").collect()
    assert {row.tags: bytes(row.body) for row in archived} == sent
