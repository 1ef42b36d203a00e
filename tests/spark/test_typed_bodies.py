"""Typed columns of bodies: in a batch, a stream, a query and an archive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from contrail import Message, Producer
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.sql import SqlSettings
from contrail.pipeline.jobs.sql import sql as query
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic

SUBJECT = "typed"
BODIES = [
    json.dumps({"id": number, "amount": number / 4, "lines": [{"sku": f"s{number}"}]}).encode()
    for number in range(20)
] + [b"no json", b'{"id": "x"}']


@pytest.fixture(scope="module")
def options(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Options of a read of a topic with twenty good bodies and two bad ones."""
    make_topic(cluster, SUBJECT, queues=1)
    with Producer("typed", cluster.namesrv) as producer:
        for body in BODIES:
            producer.send(Message(SUBJECT, body))
    line = {"type": "object", "properties": {"sku": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "amount": {"type": "number"},
            "lines": {"type": "array", "items": line},
        },
    }
    path = tmp_path_factory.mktemp("schema") / "order.json"
    path.write_text(json.dumps(schema))
    return {"bodyFormat": "json", "bodySchema": str(path)}


@pytest.mark.proves("spark.tables.typed-bodies")
def test_a_batch_and_a_stream_have_typed_columns(
    spark: SparkSession, cluster: LocalCluster, options: Mapping[str, str], tmp_path: Path
) -> None:
    reads = {"namesrvAddr": cluster.namesrv, "subscribe": SUBJECT, **options}
    batch = spark.read.format("rocketmq").options(**reads).load()
    assert batch.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,amount:double,lines:array<struct<sku:string>>>"
    )
    found = batch.selectExpr("sum(value.id)", "sum(value.amount)", "count(bodyError)").first()
    assert found is not None and tuple(found) == (190, 47.5, 2)
    stream = spark.readStream.format("rocketmq").options(**reads, startingOffsets="earliest").load()
    running = (
        stream.select("queueOffset", "value.lines", "bodyError")
        .writeStream.format("memory")
        .queryName("typed_rows")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    rows = spark.table("typed_rows").orderBy("queueOffset").collect()
    assert [row.lines[0].sku for row in rows[:20]] == [f"s{number}" for number in range(20)]
    assert [row.bodyError.partition(":")[0] for row in rows[20:]] == ["json", "json"]
    refusing = spark.read.format("rocketmq").options(**reads, badBodies="refuse").load()
    with pytest.raises(PySparkException, match="a body does not fit its schema: json: "):
        refusing.select("value").collect()


@pytest.mark.proves("spark.tables.typed-bodies-in-jobs")
def test_a_query_and_an_archive_have_typed_columns(
    spark: SparkSession, cluster: LocalCluster, options: Mapping[str, str], tmp_path: Path
) -> None:
    address = str(tmp_path / "lake")
    settings = ArchiveSettings(
        archive=address,
        topics=(SUBJECT,),
        namesrv=cluster.namesrv,
        format="delta",
        options=options,
    )
    assert archive(settings, spark=spark).facts["messages"] == len(BODIES)
    found = TableArchive.found(address)
    assert found is not None
    table = found.table.table.to_pyarrow_table()  # type: ignore[attr-defined]
    values = table.column("value").to_pylist()
    assert sorted(one["id"] for one in values if one is not None) == list(range(20))
    assert sum(one is not None for one in table.column("bodyError").to_pylist()) == 2
    for place in ("topic", "archive"):
        rows = query(
            SqlSettings(
                query=f"select sum(value.id) ids, count(bodyError) bad from {place}.{SUBJECT}",
                namesrv=cluster.namesrv,
                archive=address,
                options=options,
            ),
            spark=spark,
        ).table
        assert rows == [{"ids": 190, "bad": 2}]


def test_a_schema_that_is_missing_is_named_before_a_read(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    settings = ArchiveSettings(
        archive=str(tmp_path / "lake"),
        topics=(SUBJECT,),
        namesrv=cluster.namesrv,
        options={"bodyFormat": "json", "bodySchema": str(tmp_path / "none")},
    )
    with pytest.raises(OptionInvalid, match="the driver cannot read it"):
        archive(settings, spark=spark)
