"""Topics become Iceberg and Delta tables that DuckDB, Polars and Spark read, and come back."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_rocketmq
from contrail.errors import OptionInvalid
from contrail.pipeline.columns import ARCHIVED_COLUMNS
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.compact import CompactSettings, compact
from contrail.pipeline.jobs.restore import RestoreSettings, restore
from contrail.pipeline.jobs.sql import SqlSettings
from contrail.pipeline.jobs.sql import sql as query
from contrail.pipeline.tables.iceberg import IcebergTable, newest_metadata
from contrail.pipeline.tables.places import Place
from contrail.pipeline.tables.row_files import read_rows
from contrail.testing import LocalCluster
from tests.e2e.s3_server import S3, running_s3
from tests.spark import job_child
from tests.spark.stored import stored
from tests.spark.traffic import make_topic, orders, send_rows

SUBJECT = "orders"
COUNT = 120
FORMATS = ("iceberg", "delta")


@pytest.fixture(scope="module")
def sent(cluster: LocalCluster) -> Counter[tuple[int, int, bytes]]:
    make_topic(cluster, SUBJECT, queues=2)
    landed = send_rows(cluster, orders(SUBJECT, COUNT))
    return Counter((queue.queue_id, place, body) for queue, place, body in landed)


def settings_of(cluster: LocalCluster, address: str, **changes: Any) -> ArchiveSettings:
    given: dict[str, Any] = {
        "archive": address,
        "topics": (SUBJECT,),
        "namesrv": cluster.namesrv,
        "round_rows": 16,
        "merge_ms": 0,
        "poll_ms": 10,
        **changes,
    }
    return ArchiveSettings(**given)


@pytest.fixture(scope="module", params=FORMATS)
def archived(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cluster: LocalCluster,
    sent: Counter[tuple[int, int, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, str]:
    """The format and the address of an archive of all messages, in eight rounds."""
    address = str(tmp_path_factory.mktemp("lake") / request.param)
    summary = archive(settings_of(cluster, address, format=request.param), spark=spark)
    assert (summary.facts["messages"], summary.facts["rounds"]) == (COUNT, 8)
    return request.param, address


def as_rows(table: Any) -> Counter[tuple[int, int, bytes]]:
    """Queue, place and body of a table of Arrow or of a list of rows."""
    columns = [table.column(name).to_pylist() for name in ("queueId", "queueOffset", "body")]
    return Counter(zip(*columns, strict=True))


def arrow_source(format: str, address: str) -> Any:
    """The table as its own library opens it, for readers of Arrow."""
    if format == "delta":
        return DeltaTable(address).to_pyarrow_dataset()
    return (
        TableArchive(Place(address), TableArchive.found(address).format)
        .table.table.scan()
        .to_arrow()
    )  # type: ignore[union-attr]


@pytest.mark.proves("spark.tables.formats", "spark.tables.read-back")
def test_duckdb_polars_and_spark_read_what_was_archived(
    archived: tuple[str, str],
    sent: Counter[tuple[int, int, bytes]],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    format, address = archived
    # Without a plugin of its own Polars warns that it plans by pyiceberg.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    source = duckdb.from_arrow(arrow_source(format, address)).filter(f"topic = '{SUBJECT}'")
    found = source.project("queueId, queueOffset, body").to_arrow_table()
    assert as_rows(pa.table(found)) == sent
    frame = (
        polars.scan_delta(address)
        if format == "delta"
        else polars.scan_iceberg(newest_metadata(Place(address)))
    )
    assert as_rows(frame.select("queueId", "queueOffset", "body").collect().to_arrow()) == sent
    read = query(
        SqlSettings(
            query="select queueId, queueOffset, hex(body) body, properties['region'] region "
            f"from archive.{SUBJECT}",
            archive=address,
            limit=1_000,
        ),
        spark=spark,
    ).table
    assert (
        Counter(
            (row["queueId"], row["queueOffset"], bytes.fromhex(str(row["body"]))) for row in read
        )
        == sent
    )
    assert {row["region"] for row in read} == {"eu", "us"}


@pytest.mark.proves("spark.tables.partitioned")
def test_a_table_has_every_column_and_is_partitioned_by_topic_and_day(
    archived: tuple[str, str],
) -> None:
    format, address = archived
    found = TableArchive.found(address)
    assert found is not None
    assert found.table.schema().names == list(ARCHIVED_COLUMNS)
    if format == "delta":
        assert DeltaTable(address).metadata().partition_columns == ["topic", "date"]
    else:
        spec = IcebergTable(Place(address)).table.spec()
        assert [field.name for field in spec.fields] == ["topic", "date"]
    assert {file.partition.topic for file in found.table.files()} == {SUBJECT}


@pytest.mark.proves("spark.tables.restore")
def test_restore_sends_a_table_back(
    archived: tuple[str, str],
    sent: Counter[tuple[int, int, bytes]],
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
) -> None:
    format, address = archived
    target = make_topic(cluster, f"from-{format}", queues=2)
    settings = RestoreSettings(
        archive=address,
        topics=(SUBJECT,),
        namesrv=cluster.namesrv,
        to_topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert restore(settings, spark=spark).facts["restored"] == COUNT
    again = stored(cluster, target)
    assert Counter((one.queue.queue_id, one.queue_offset, one.body) for one in again) == sent


@pytest.mark.proves("spark.tables.file-sizes")
def test_a_run_that_follows_merges_small_files_and_adds_what_is_new(
    archived: tuple[str, str], spark: SparkSession, cluster: LocalCluster
) -> None:
    _, address = archived
    found = TableArchive.found(address)
    assert found is not None
    before = len(found.table.files())
    stops = iter([False] * 40)
    summary = archive(
        settings_of(cluster, address, follow=True),
        spark=spark,
        stop=lambda: next(stops, True),
    )
    found.table.refresh()
    after = found.table.files()
    assert before >= 16 and len(after) < before
    assert summary.facts["merged"] == before - len(after)
    assert sum(file.rows for file in after) == COUNT
    planned = compact(CompactSettings(archive=address, dry_run=True))
    assert planned.facts == {"archive": address, "files before": len(after), "to merge": 0}


def test_another_format_than_the_archive_has_is_refused(
    archived: tuple[str, str], cluster: LocalCluster
) -> None:
    format, address = archived
    other = "delta" if format == "iceberg" else "iceberg"
    with pytest.raises(OptionInvalid, match=rf"is {format}, not {other}: leave out --format"):
        archive(settings_of(cluster, address, format=other, dry_run=True))


@pytest.mark.proves("spark.tables.sink-recipe")
@pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.matrix)])
def test_a_stream_adds_each_batch_to_a_table_once(
    format: str,
    spark: SparkSession,
    cluster: LocalCluster,
    sent: Counter[tuple[int, int, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = str(tmp_path / "lake")
    reads = {"namesrvAddr": cluster.namesrv, "subscribe": SUBJECT, "maxOffsetsPerTrigger": "50"}
    messages = spark.readStream.format("rocketmq").options(**reads, startingOffsets="earliest")

    def run() -> None:
        sink = pyspark_rocketmq.table_sink(address, format, name="orders")
        query = (
            messages.load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    # The second batch ends behind its files, then behind its commit; Spark repeats it each time.
    for module, point in (
        ("contrail.pipeline.table_sink", "table_sink.files_written"),
        (f"contrail.pipeline.tables.{format}", "tables.committed"),
    ):
        passed = iter([point])

        def end_at(name: str, point: str = point, left: Iterator[str] = passed) -> None:
            if name == point and next(left, None) is None:
                raise OSError(f"ended at {point}")

        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.crashpoint", end_at)
            with pytest.raises(StreamingQueryException, match=f"ended at {point}"):
                run()
    run()
    assert as_rows(pa.table(read_table(format, address))) == sent
    run()
    assert as_rows(pa.table(read_table(format, address))) == sent


def read_table(format: str, address: str) -> Any:
    source = arrow_source(format, address)
    return source.to_table() if format == "delta" else source


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        import fsspec

        fsspec.filesystem("s3").mkdir("lake")
        yield server


@pytest.mark.matrix
@pytest.mark.proves("spark.tables.kill-matrix", "spark.tables.object-stores")
@pytest.mark.parametrize("at", ["archive.files_written", "tables.round_noted", "tables.committed"])
@pytest.mark.parametrize("format", [*FORMATS, "parquet"])
def test_a_job_killed_in_a_bucket_goes_on(
    format: str,
    at: str,
    s3: S3,
    cluster: LocalCluster,
    sent: Counter[tuple[int, int, bytes]],
    tmp_path: Path,
) -> None:
    address = f"s3://lake/{format}-{at}"
    given = {
        "archive": address,
        "topics": [SUBJECT],
        "namesrv": cluster.namesrv,
        "round_rows": 40,
        "format": format,
    }
    # Runs in processes of their own: the session's workers do not see an environment that changes.
    command = job_child.job("archive", given)
    job_child.crashed(command, tmp_path / "log", f"{at}:2")
    subprocess.run(command, check=True, timeout=job_child.DEADLINE_S)
    kept = TableArchive.found(address)
    assert kept is not None
    found: Counter[tuple[int, int, bytes]] = Counter()
    kept.table.refresh()
    for file in kept.table.files():
        for rows in read_rows(kept.place, [file.path], kept.table.file_schema()):
            found += as_rows(pa.Table.from_batches([rows]))
    assert found == sent


@pytest.mark.matrix
@pytest.mark.proves("spark.tables.kill-matrix")
def test_a_killed_restore_of_a_table_sends_every_message_once(
    archived: tuple[str, str],
    sent: Counter[tuple[int, int, bytes]],
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
) -> None:
    format, address = archived
    target = make_topic(cluster, f"killed-{format}", queues=2)
    settings: dict[str, Any] = {
        "archive": address,
        "topics": (SUBJECT,),
        "namesrv": cluster.namesrv,
        "to_topic": target,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    log = tmp_path / "log"
    pid = job_child.start(job_child.job("restore", {**settings, "rate": 8}), log)
    job_child.wait_until(pid, lambda: len(stored(cluster, target)) >= 20, log)
    job_child.kill(pid)
    restore(RestoreSettings(**settings), spark=spark)
    again = stored(cluster, target)
    assert Counter((one.queue.queue_id, one.queue_offset, one.body) for one in again) == sent
