"""The sql job over a live topic, an archive and a store folder."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from contrail import Message
from contrail.errors import OptionInvalid
from contrail.pipeline.columns import DEFAULT_COLUMNS
from contrail.pipeline.jobs.sql import SqlSettings, opened, sql
from contrail.pipeline.jobs.sql_output import Output, write
from contrail.testing import LocalCluster
from tests.spark.job_kills import finish_job, send_large, start_job
from tests.spark.traffic import make_topic, send_rows

_COUNT = 40
# Of 1 MB each: more than the 512 MB of the driver.
_LARGE_COUNT = 700


@pytest.fixture(scope="module")
def filled(cluster: LocalCluster) -> LocalCluster:
    """A cluster with orders, JSON in their bodies, and one dead letter's topic."""
    make_topic(cluster, "orders", queues=2)
    send_rows(
        cluster,
        [
            Message(
                "orders",
                json.dumps({"amount": number, "city": "Ulm"}).encode(),
                tags="paid" if number % 2 else "open",
                keys=[f"k{number}"],
                properties={"region": "eu"},
            )
            for number in range(_COUNT)
        ],
    )
    make_topic(cluster, "%DLQ%billing-1", queues=1)
    send_rows(cluster, [Message("%DLQ%billing-1", b"\xff\xfe", keys=["k3"])])
    return cluster


@pytest.fixture(scope="module")
def archive(
    spark: SparkSession, filled: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """An archive of the orders, made by its own job."""
    from contrail.pipeline.jobs.archive import ArchiveSettings
    from contrail.pipeline.jobs.archive import archive as job

    folder = str(tmp_path_factory.mktemp("sql") / "archive")
    job(ArchiveSettings(archive=folder, topics=("orders",), namesrv=filled.namesrv), spark=spark)
    return folder


def _columns_read(spark: SparkSession, cluster: LocalCluster, query: str) -> list[tuple[str, ...]]:
    settings = SqlSettings(query=query, namesrv=cluster.namesrv)
    with opened(spark, settings) as (_, views):
        return [view.columns for view in views]


def _rows(
    spark: SparkSession, cluster: LocalCluster, query: str, **more: str
) -> list[dict[str, object]]:
    settings = SqlSettings(query=query, namesrv=cluster.namesrv, **more)  # type: ignore[arg-type]
    return sql(settings, spark=spark).table


def test_a_topic_is_counted_by_tag(spark: SparkSession, filled: LocalCluster) -> None:
    query = "select tags, count(*) as n from topic.orders group by tags order by tags"
    assert _rows(spark, filled, query) == [
        {"tags": "open", "n": _COUNT // 2},
        {"tags": "paid", "n": _COUNT // 2},
    ]


def test_only_the_columns_that_a_query_needs_are_read(
    spark: SparkSession, filled: LocalCluster
) -> None:
    read = [
        _columns_read(spark, filled, query)[0]
        for query in (
            "select count(*) from topic.orders",
            "select tags from (select * from topic.orders) where queueId = 1",
            "select json:amount from topic.orders",
            "select * except (body) from topic.orders",
            "select properties['region'], msgId from topic.orders",
        )
    ]
    assert read == [
        ("queueOffset",),
        ("queueId", "tags"),
        ("body",),
        tuple(column for column in DEFAULT_COLUMNS if column != "body"),
        ("msgId", "properties"),
    ]


@pytest.mark.proves("spark.jobs.sql")
def test_json_bodies_are_variants_and_text_is_text(
    spark: SparkSession, filled: LocalCluster
) -> None:
    query = (
        "select max(json:amount::int) as most, min(bodyText) as first "
        "from topic.orders where json:city::string = 'Ulm' and tags = 'paid'"
    )
    (row,) = _rows(spark, filled, query)
    assert row == {"most": _COUNT - 1, "first": '{"amount": 1, "city": "Ulm"}'}


@pytest.mark.proves("spark.jobs.sql")
def test_live_topics_archives_and_stores_are_joined_in_one_query(
    spark: SparkSession, filled: LocalCluster, archive: str
) -> None:
    query = """
        with dead as (select keys from topic.`%DLQ%billing-1`)
        select live.keys, archive.orders.tags, kept.queueOffset
        from topic.orders live
        join archive.orders on live.keys = archive.orders.keys
        join store.orders kept on live.keys = kept.keys
        where exists (select 1 from dead where dead.keys = live.keys);
    """
    store = str(filled.brokers[0].folder / "store")
    (row,) = _rows(spark, filled, query, archive=archive, store_path=store)
    assert (row["keys"], row["tags"]) == ("k3", "paid")


def test_a_table_says_when_it_is_cut_and_bytes_are_shown_as_such(
    spark: SparkSession, filled: LocalCluster
) -> None:
    dead = sql(
        SqlSettings(query="select body from topic.`%DLQ%billing-1`", namesrv=filled.namesrv),
        spark=spark,
    )
    assert dead.table == [{"body": "base64://4="}]
    cut = sql(
        SqlSettings(
            query="select a.keys, a.keys from topic.orders a, topic.orders b",
            namesrv=filled.namesrv,
        ),
        spark=spark,
    )
    assert len(cut.table) == 100 and "only the first 100 rows" in str(cut.facts["more"])
    assert list(cut.table[0]) == ["keys", "keys_2"]


def test_lines_go_out_as_csv_and_json(spark: SparkSession, filled: LocalCluster) -> None:
    query = (
        "select keys, bodyText, properties from topic.orders order by queueOffset, queueId limit 2"
    )
    said: dict[Output, list[str]] = {Output.CSV: [], Output.JSON: []}
    for output, lines in said.items():
        settings = SqlSettings(query=query, namesrv=filled.namesrv, output=output)
        sql(settings, spark=spark, emit=lines.append)
    parsed = list(csv.DictReader(io.StringIO("\n".join(said[Output.CSV]))))
    objects = [json.loads(line) for line in said[Output.JSON]]
    assert [row["keys"] for row in parsed] == [row["keys"] for row in objects] == ["k0", "k1"]
    assert parsed[0]["bodyText"] == objects[0]["bodyText"] == '{"amount": 0, "city": "Ulm"}'
    assert objects[0]["properties"]["region"] == "eu"


@pytest.mark.proves("spark.jobs.sql")
@pytest.mark.parametrize("output", [Output.CSV, Output.JSON, Output.PARQUET])
def test_one_file_or_a_folder_is_written_by_executors(
    spark: SparkSession, filled: LocalCluster, tmp_path: Path, output: Output
) -> None:
    for out in (tmp_path / f"keys.{output}", tmp_path / "keys"):
        settings = SqlSettings(
            query="select keys, queueId from topic.orders",
            namesrv=filled.namesrv,
            output=output,
            out=str(out),
        )
        sql(settings, spark=spark)
        with pytest.raises(OptionInvalid, match="is there already"):
            sql(settings, spark=spark)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"keys.{output}", "keys"])
    found = _keys_in(tmp_path / f"keys.{output}", output)
    assert found == {f"k{number}" for number in range(_COUNT)}
    assert len(list((tmp_path / "keys").glob("part-*"))) >= 2


def test_one_parquet_file_has_row_groups_that_a_small_reader_can_hold(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "bodies.parquet"
    # Random, so that compression does not make a dictionary smaller than it is in memory.
    body = f.randstr(1_000_000, 7).cast("binary").alias("body")
    write(spark.range(0, 80, numPartitions=2).select("id", body), Output.PARQUET, str(out))
    with pq.ParquetFile(out) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        assert file.read(["id"])["id"].to_pylist() == list(range(80))
    assert max(group.total_byte_size for group in groups) < 36_000_000
    bodies = [group.column(1) for group in groups]
    assert all(column.has_dictionary_page for column in bodies)
    # A dictionary stands before the pages of data.
    sizes = [column.data_page_offset - column.dictionary_page_offset for column in bodies]
    assert max(sizes) < 9_000_000


def test_a_run_that_ends_early_leaves_no_result_and_the_next_one_makes_it(
    spark: SparkSession, filled: LocalCluster, tmp_path: Path
) -> None:
    out = tmp_path / "keys.csv"
    broken = "select if(keys = 'k7', raise_error('broken'), keys) as keys from topic.orders"
    with pytest.raises(Exception, match="broken"):
        _write_csv(spark, filled, broken, out)
    assert list(tmp_path.iterdir()) == []
    # Files that a killed run leaves behind.
    (tmp_path / ".keys.csv.parts").mkdir()
    (tmp_path / ".keys.csv.parts" / "part-00000-stale.txt").write_text("stale\n", encoding="utf-8")
    _write_csv(spark, filled, "select keys from topic.orders", out)
    assert _keys_in(out, Output.CSV) == {f"k{number}" for number in range(_COUNT)}
    assert list(tmp_path.iterdir()) == [out]


def _write_csv(spark: SparkSession, cluster: LocalCluster, query: str, out: Path) -> None:
    settings = SqlSettings(query=query, namesrv=cluster.namesrv, output=Output.CSV, out=str(out))
    sql(settings, spark=spark)


def _keys_in(path: Path, output: Output) -> set[str]:
    if output is Output.PARQUET:
        return set(pq.read_table(path)["keys"].to_pylist())
    if output is Output.CSV:
        text = path.read_text(encoding="utf-8")
        return {row["keys"] for row in csv.DictReader(io.StringIO(text))}
    return {json.loads(line)["keys"] for line in path.read_text(encoding="utf-8").splitlines()}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from topic.order", "has no topic 'order'; did you mean 'orders'"),
        ("select * from somewhere", "there is no table `somewhere`: read topic.NAME"),
        ("select * frm topic.orders", r"Syntax error at or near 'topic' \(line 1, position 14\)"),
        ("select nope from topic.orders", "name `nope` cannot be resolved"),
        ("select * from topic.my-orders", "must be back quoted"),
        ("insert into topic.orders select 1", "only a query can be run"),
        ("drop table if exists orders", "only a query can be run"),
        ("select * from archive.orders", "say where that is with --archive DIR"),
        ("select * from identifier('topic.' || 'orders')", "name it directly"),
    ],
)
def test_a_query_that_cannot_run_is_refused_in_a_line(
    spark: SparkSession, filled: LocalCluster, query: str, said: str
) -> None:
    with pytest.raises(OptionInvalid, match=said) as refused:
        _rows(spark, filled, query)
    assert "\n" not in str(refused.value)


def test_a_dry_run_names_the_sources_to_read(spark: SparkSession, filled: LocalCluster) -> None:
    settings = SqlSettings(
        query="select tags from topic.orders", namesrv=filled.namesrv, dry_run=True
    )
    summary = sql(settings, spark=spark)
    assert summary.outcome == "planned"
    assert summary.table == [{"reads": "topic.orders", "columns": "tags"}]
    assert summary.facts["result"] == "tags string"


def test_the_session_is_left_as_it_was(spark: SparkSession, filled: LocalCluster) -> None:
    spark.range(1).select(f.lit("mine").alias("name")).createOrReplaceTempView("orders")
    before = spark.catalog.listTables()
    try:
        _rows(spark, filled, "select count(*) from topic.orders")
        assert spark.catalog.listTables() == before
        assert spark.table("orders").collect()[0]["name"] == "mine"
        assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
    finally:
        spark.catalog.dropTempView("orders")


@pytest.mark.proves("spark.jobs.driver-memory", "spark.jobs.resumed")
@pytest.mark.torture
@pytest.mark.timeout(3000)
def test_a_result_larger_than_the_driver_is_written_also_after_a_kill(
    filled: LocalCluster, tmp_path: Path
) -> None:
    make_topic(filled, "large", queues=4)
    send_large(filled, "large", _LARGE_COUNT)
    out = tmp_path / "bodies.parquet"
    query = ["sql", "select keys, body from topic.large", "--namesrv", filled.namesrv]
    arguments = [*query, "--output", "parquet", "--out", str(out)]
    log = tmp_path / "killed.log"
    job = start_job(arguments, log)
    try:
        deadline = time.monotonic() + 600
        while not list(tmp_path.glob(".bodies.parquet.parts/**/part-*")):
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert not out.exists()
    finish_job(arguments, tmp_path / "finished.log")
    table = pq.ParquetFile(out)
    assert table.metadata.num_rows == _LARGE_COUNT
    assert sum(table.metadata.row_group(n).total_byte_size for n in range(table.num_row_groups)) > (
        _LARGE_COUNT * 1_000_000
    )
