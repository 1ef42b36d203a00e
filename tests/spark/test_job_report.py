"""The report job over a live cluster, an archive and a store folder."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from contrail import Admin, Message, Producer
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.report import ReportSettings, report
from contrail.protocol.bodies.trace import SubAfterTrace, SubBeforeTrace, encode_traces
from contrail.testing import LocalCluster, eventually
from tests.spark.job_kills import finish_job, send_large, start_job
from tests.spark.traffic import make_topic, queues_of, send_rows

_ORDERS = 30
# Of 1 MB each: more than the 512 MB of the driver.
_LARGE_COUNT = 700
_TRACES = "traces"
_KEY = "<b>hot&key</b>"


@pytest.fixture(scope="module")
def filled(cluster: LocalCluster) -> LocalCluster:
    """Unevenly spread orders; some were traced, retried or given up."""
    make_topic(cluster, "orders", queues=4)
    make_topic(cluster, _TRACES, queues=1)
    uneven = [queues_of(cluster, "orders")[0]] * 2 + queues_of(cluster, "orders")[1:3]
    send_rows(cluster, [_order(number) for number in range(_ORDERS)], queues=uneven)
    _consume(cluster)
    return cluster


def _order(number: int) -> Message:
    keys = [_KEY, f"k{number}"] if number < 10 else [f"k{number}"]
    return Message("orders", b"b" * 100, keys=keys)


def _consume(cluster: LocalCluster) -> None:
    """Some messages were handled half a second after they were stored, one of them in vain.

    Three are sent back for another try, one for good.
    """
    with Admin(cluster.namesrv) as admin:
        admin.create_group("billing")
        first = min(admin.queues("orders"))
        stored = admin.messages_from(first, 0, 8)
        for message, level in zip(stored, (1, 1, 1, -1), strict=False):
            admin.send_back("billing", message, delay_level=level)
        traces: list[Any] = []
        for number, message in enumerate(stored):
            about = {"request_id": f"r{number}", "message_id": message.message_id}
            begun_ms = message.store_timestamp_ms + 500
            traces.append(SubBeforeTrace(timestamp_ms=begun_ms, group="billing", **about))
            traces.append(SubAfterTrace(cost_ms=7, success=number > 0, group="billing", **about))
        admin.commit_offset("billing", first, 5)
        _wait_for_retries(admin, 3)
    with Producer("trace", cluster.namesrv) as producer:
        producer.send(Message(_TRACES, encode_traces(traces) + b"SubBefore\x01damaged\x02"))


def _wait_for_retries(admin: Admin, count: int) -> None:
    """A message that is sent back comes to the retry topic a second later.

    The NameServer hears of the topics a moment after the messages that made them.
    """
    made = {"%RETRY%billing", "%DLQ%billing"}
    eventually(lambda: made <= set(admin.topics()), "the routes of retries and dead letters")
    eventually(lambda: admin.topic_stats("%RETRY%billing").count >= count, "the retries")


def _made(spark: SparkSession, settings: ReportSettings) -> tuple[dict[str, Any], str]:
    report(settings, spark=spark)
    folder = Path(settings.out)
    data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return data, (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.proves("spark.jobs.report")
def test_a_live_cluster_is_reported_on(
    spark: SparkSession, filled: LocalCluster, tmp_path: Path
) -> None:
    settings = ReportSettings(out=str(tmp_path / "r"), namesrv=filled.namesrv, trace_topic=_TRACES)
    data, page = _made(spark, settings)
    assert data["facts"]["messages"] == _ORDERS
    (topic,) = data["topics"]
    assert (topic["topic"], topic["messages"]) == ("orders", _ORDERS)
    assert sum(row["messages"] for row in data["timeline"]) == _ORDERS
    assert data["retries"] == [
        {"group": "billing", "topic": "orders", "retries": 3, "dead_letters": 1}
    ]
    (skew,) = data["skew"]
    assert skew["queues"] == 4, "the queue without messages counts"
    assert skew["fullest_to_mean"] == pytest.approx(16 / 7.5, rel=0.01)
    assert data["hot_keys"][0] == {"topic": "orders", "key": _KEY, "messages": 10, "share": 0.33333}
    (waited,) = data["waiting"]
    assert (waited["group"], waited["messages"], waited["p50_ms"]) == ("billing", 8, 500)
    (handled,) = data["handling"]
    assert (handled["handled"], handled["failed"], handled["max_ms"]) == (8, 1, 7)
    (lag,) = [row for row in data["lag"] if row["topic"] == "orders"]
    assert lag["lag"] == _ORDERS - 5
    assert data["latency"][0]["messages"] == _ORDERS
    with (tmp_path / "r" / "queues.csv").open(encoding="utf-8", newline="") as file:
        assert sum(int(row["messages"]) for row in csv.DictReader(file)) == _ORDERS
    assert _KEY not in page and "&lt;b&gt;hot&amp;key&lt;/b&gt;" in page
    for outside in ("http://", "https://", "<script", "src="):
        assert outside not in page


@pytest.mark.proves("spark.jobs.report")
def test_an_archive_and_later_messages_are_one_report(
    spark: SparkSession, filled: LocalCluster, tmp_path: Path
) -> None:
    make_topic(filled, "kept", queues=2)
    send_rows(filled, [Message("kept", b"early") for _ in range(10)])
    place = str(tmp_path / "archive")
    archive(ArchiveSettings(archive=place, topics=("kept",), namesrv=filled.namesrv), spark=spark)
    send_rows(filled, [Message("kept", b"late") for _ in range(6)])
    counts = []
    for namesrv in (None, filled.namesrv):
        settings = ReportSettings(
            out=str(tmp_path / "r"), archive=place, namesrv=namesrv, topics=("kept",), trace=False
        )
        data, page = _made(spark, settings)
        counts.append(data["facts"]["messages"])
    assert counts == [10, 16]
    assert "Traces were not read." in page


def test_a_store_folder_is_reported_on_for_a_time(
    spark: SparkSession, filled: LocalCluster, tmp_path: Path
) -> None:
    store = str(filled.brokers[0].folder / "store")
    whole, _ = _made(
        spark, ReportSettings(out=str(tmp_path / "a"), store_path=store, topics=("orders",))
    )
    assert whole["facts"]["messages"] == _ORDERS and whole["facts"]["lag"] is None
    assert whole["retries"][0]["retries"] == 3
    later = whole["facts"]["end_ms"] + 1
    settings = ReportSettings(
        out=str(tmp_path / "b"), store_path=store, topics=("orders",), start_ms=later
    )
    nothing, page = _made(spark, settings)
    assert nothing["facts"]["messages"] == 0
    assert "No messages were stored in this time." in page


def test_invalid_report_settings_are_refused(filled: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    namesrv = filled.namesrv
    for settings, said in (
        (ReportSettings(out=str(tmp_path / "r")), "say what to report on"),
        (ReportSettings(out=str(tmp_path), namesrv=namesrv), "holds something else"),
        (ReportSettings(out=str(tmp_path / "mine"), namesrv=namesrv), "is a file"),
        (
            ReportSettings(out=str(tmp_path / "r"), namesrv=namesrv, topics=("nothing",)),
            "there is no topic 'nothing'",
        ),
        (
            ReportSettings(out=str(tmp_path / "r"), namesrv=namesrv, start_ms=5, end_ms=5),
            "ends before it begins",
        ),
    ):
        with pytest.raises(OptionInvalid, match=said):
            report(settings)


def test_a_dry_run_names_the_topics(filled: LocalCluster, tmp_path: Path) -> None:
    settings = ReportSettings(
        out=str(tmp_path / "r"), namesrv=filled.namesrv, topics=("orders",), dry_run=True
    )
    summary = report(settings)
    assert summary.outcome == "planned" and not (tmp_path / "r").exists()
    assert [row["topic"] for row in summary.table] == ["%DLQ%billing", "%RETRY%billing", "orders"]


@pytest.mark.proves("spark.jobs.driver-memory", "spark.jobs.resumed")
@pytest.mark.torture
@pytest.mark.timeout(3000)
def test_a_topic_larger_than_the_driver_is_reported_on_also_after_a_kill(
    filled: LocalCluster, tmp_path: Path
) -> None:
    make_topic(filled, "large", queues=4)
    send_large(filled, "large", _LARGE_COUNT)
    out = tmp_path / "r"
    arguments = ["report", "large", "--namesrv", filled.namesrv, "--out", str(out)]
    log = tmp_path / "killed.log"
    job = start_job(arguments, log)
    try:
        # Spark is up once it has said its first words; the report is written at the very end.
        deadline = time.monotonic() + 600
        while "Spark" not in log.read_text(encoding="utf-8", errors="replace"):
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert not out.exists()
    summary = finish_job(arguments, tmp_path / "finished.log")
    assert summary["facts"]["messages"] == _LARGE_COUNT
    assert summary["facts"]["bytes"] > _LARGE_COUNT * 1_000_000
