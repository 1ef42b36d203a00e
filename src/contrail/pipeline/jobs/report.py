"""The ``report`` job: traffic, lag, retries, dead letters, latency, skew, hot keys of a time span.

The needed columns of messages are read once and kept on the executors' disks: so all figures are
about the same messages, also while a topic grows.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from contrail.clock import SystemClock
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs import report_measures as measures
from contrail.pipeline.jobs.copying import admin_of
from contrail.pipeline.jobs.progress import Progress, Silent
from contrail.pipeline.jobs.report_figures import (
    Buckets,
    Figures,
    Row,
    hot_key_rows,
    lag_rows,
    percentile_columns,
    plan_buckets,
    retry_rows,
    skew_rows,
    timeline_rows,
    topic_rows,
    with_empty_queues,
)
from contrail.pipeline.jobs.report_page import page
from contrail.pipeline.jobs.report_sources import ReportSettings as ReportSettings
from contrail.pipeline.jobs.report_sources import (
    TopicPlan,
    files_that_stay,
    plan_rows,
    plan_topics,
    read_messages,
    read_traces,
)
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Summary

PAGE_FILE = "report.html"
DATA_FILE = "report.json"
_STAGES = 8
_TOPICS_SHOWN = 20


def report(
    settings: ReportSettings,
    *,
    spark: Spark | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write ``report.html``, ``report.json`` and a CSV file for each table to ``settings.out``.

    Raises:
        OptionInvalid: a named topic or folder does not exist, or there are no topics.
    """
    check(settings)
    plan = plan_topics(settings)
    if settings.dry_run:
        return Summary("report", "planned", {"out": settings.out}, plan_rows(settings, plan))
    with job_session(spark, "contrail report") as session, files_that_stay(settings):
        figures = _Measuring(session, settings, plan, progress or Silent()).figures()
    write_report(figures, Path(settings.out))
    names = ("messages", "bytes", "retries", "dead_letters", "lag")
    facts = {name: figures.facts[name] for name in names if figures.facts[name] is not None}
    page_path = str(Path(settings.out) / PAGE_FILE)
    return Summary("report", "done", {"page": page_path, **facts}, figures.topics[:_TOPICS_SHOWN])


def check(settings: ReportSettings) -> None:
    """Refuse invalid settings before Spark is started."""
    if settings.namesrv and settings.store_path:
        raise OptionInvalid("a cluster and a store folder are read one at a time: give one of them")
    if not (settings.namesrv or settings.store_path or settings.archive):
        raise OptionInvalid("say what to report on: --namesrv, --store-path or --archive")
    start_ms, end_ms = settings.start_ms, settings.end_ms
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise OptionInvalid("the report's time ends before it begins: give an earlier start")
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise OptionInvalid(f"{settings.out!r} is a file: name a folder for the report")
    if out.is_dir() and any(out.iterdir()) and not (out / DATA_FILE).is_file():
        raise OptionInvalid(f"{settings.out!r} holds something else: name a new folder")


def write_report(figures: Figures, folder: Path) -> None:
    """Write the page, the data and the tables; each file gets its name when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"facts": figures.facts, **figures.tables()}
    _write(folder / DATA_FILE, json.dumps(data, indent=1))
    for name, rows in figures.tables().items():
        _write_csv(folder / f"{name}.csv", rows)
    _write(folder / PAGE_FILE, page(figures))


# Measures.


class _Measuring:
    """One run: the messages, the time span, and the progress."""

    def __init__(
        self, spark: SparkSession, settings: ReportSettings, plan: TopicPlan, progress: Progress
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._progress = progress
        self._now_ms = SystemClock().now_ms()
        self._stage_count = 0
        self._rows = read_messages(spark, settings, plan).persist(StorageLevel.DISK_ONLY)

    def figures(self) -> Figures:
        self._progress.begin("report", _STAGES)
        try:
            return self._figures()
        finally:
            self._rows.unpersist()
            self._progress.end()

    def _stage(self, what: str) -> None:
        self._progress.at(self._stage_count, now=what)
        self._stage_count += 1

    def _figures(self) -> Figures:
        self._stage("read messages")
        rows, start_ms, end_ms = self._rows, *self._span()
        buckets = plan_buckets(start_ms, max(start_ms, end_ms - 1), self._settings.moments)
        self._stage("traffic")
        topics = topic_rows(measures.by_topic(rows), max(end_ms - start_ms, 1000))
        timeline = timeline_rows(measures.by_time(rows, buckets), buckets)
        self._stage("queues")
        queues = with_empty_queues(measures.by_queue(rows), self._known_queues(topics))
        self._stage("latency")
        latency = [_latency_row(row, "topic") for row in measures.latency_by_topic(rows)]
        by_time = [_latency_row(row, "bucket") for row in measures.latency_by_time(rows, buckets)]
        self._stage("retries and dead letters")
        retries = retry_rows(measures.again(rows))
        self._stage("hot keys")
        totals = {row["topic"]: row["messages"] for row in topics}
        keys = hot_key_rows(measures.hot_keys(rows, self._settings.hot_keys), totals)
        self._stage("lag")
        lag = self._lag()
        self._stage("trace")
        waiting, handling = self._traced()
        return Figures(
            facts={
                **_facts(self._settings, start_ms, end_ms, self._now_ms, buckets),
                **_totals(topics, retries, lag if self._settings.namesrv else None),
            },
            topics=topics,
            timeline=timeline,
            latency=latency,
            latency_timeline=[_timed(row, buckets) for row in by_time],
            lag=lag,
            retries=retries,
            waiting=waiting,
            handling=handling,
            skew=skew_rows(queues),
            queues=queues,
            hot_keys=keys,
        )

    def _span(self) -> tuple[int, int]:
        """The time span of the report: the given one, else from the first message to the last."""
        found = measures.span(self._rows)
        start, end = self._settings.start_ms, self._settings.end_ms
        if start is None:
            start = found["first_ms"] if found["first_ms"] is not None else end
        if end is None:
            end = found["last_ms"] + 1 if found["last_ms"] is not None else start
        # Without messages and given times, the span is the present moment.
        start = self._now_ms if start is None else start
        return start, max(start, start if end is None else end)

    def _known_queues(self, topics: list[Row]) -> list[tuple[str, str]]:
        """All queues, also without messages; only a live cluster knows these."""
        if not self._settings.namesrv:
            return []
        with admin_of(self._settings.namesrv, self._settings.options) as admin:
            there = set(admin.topics())
            return [
                (row["topic"], f"{queue.broker_name}:{queue.queue_id}")
                for row in topics
                if row["topic"] in there
                for queue in admin.queues(row["topic"])
            ]

    def _lag(self) -> list[Row]:
        if not self._settings.namesrv:
            return []
        with admin_of(self._settings.namesrv, self._settings.options) as admin:
            rows = lag_rows(admin.lags(allow_partial=True), self._now_ms)
        wanted = set(self._settings.topics)
        return [row for row in rows if not wanted or row["topic"] in wanted]

    def _traced(self) -> tuple[list[Row], list[Row]]:
        traces = read_traces(self._spark, self._settings) if self._settings.trace else None
        if traces is None:
            return [], []
        consumed = measures.consumptions(traces).persist(StorageLevel.DISK_ONLY)
        try:
            waited = measures.waiting(self._rows, consumed)
            handled = measures.handling(consumed)
        finally:
            consumed.unpersist()
        return (
            [_latency_row(row, "topic", "group") for row in waited],
            [_latency_row(row, "group", "handled", "failed") for row in handled],
        )


def _latency_row(row: Any, *names: str) -> Row:
    values = {name: row[name] for name in names}
    if "failed" not in names:
        values["messages"] = row["messages"]
    return {**values, **percentile_columns(row["percentiles"]), "max_ms": row["max_ms"]}


def _timed(row: Row, buckets: Buckets) -> Row:
    time_ms = buckets.start_ms + row["bucket"] * buckets.width_ms
    return {"time_ms": time_ms} | {name: row[name] for name in row if name != "bucket"}


def _facts(
    settings: ReportSettings, start_ms: int, end_ms: int, now_ms: int, buckets: Buckets
) -> Row:
    places = (settings.namesrv, settings.store_path, settings.archive)
    return {
        "sources": [place for place in places if place],
        "start_ms": start_ms,
        "end_ms": end_ms,
        "made_ms": now_ms,
        "bucket_ms": buckets.width_ms,
        "bucket_start_ms": buckets.start_ms,
        "bucket_count": buckets.count,
        "traced": settings.trace,
    }


def _totals(topics: list[Row], retries: list[Row], lag: list[Row] | None) -> Row:
    return {
        "topics": len(topics),
        "messages": sum(row["messages"] for row in topics),
        "bytes": sum(row["bytes"] for row in topics),
        "retries": sum(row["retries"] for row in retries),
        "dead_letters": sum(row["dead_letters"] for row in retries),
        "lag": None if lag is None else sum(row["lag"] for row in lag),
    }


# Files.


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.rename(path)


def _write_csv(path: Path, rows: list[Row]) -> None:
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    fresh.rename(path)
