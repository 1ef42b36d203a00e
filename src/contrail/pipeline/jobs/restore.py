"""The ``restore`` job: sends a range of an archive back to its topics, or to another topic.

The rows to send are fixed when the job begins: rows that are archived later are not sent. The job
goes by hours, oldest first, and a finished step is not sent again. If a broker's clock went back, a
later hour holds smaller queue offsets than an earlier one: such hours are one step, so that each
queue is sent in the order of its queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from contrail.errors import NotThere, OptionInvalid
from contrail.insight.copies import restored
from contrail.pipeline.columns import ARCHIVED_COLUMNS, schema_of
from contrail.pipeline.jobs.archive import spark_settings
from contrail.pipeline.jobs.archive_layout import Hour, Sized
from contrail.pipeline.jobs.archive_reading import ArchiveReading, reading_of
from contrail.pipeline.jobs.checkpoints import Checkpoint, look
from contrail.pipeline.jobs.copy_sender import CopyPlan
from contrail.pipeline.jobs.copying import (
    QUEUE_COLUMNS,
    CopyPasses,
    cluster_settings,
    job_id,
    only,
    open_admin,
    settled_lanes,
    settled_targets,
    task_count,
    total,
)
from contrail.pipeline.jobs.progress import SILENT, Progress
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.jobs.targets import require_topic
from contrail.pipeline.offsets import QueueKey, from_json, to_json

_JOB = "restore"
_STEP_BYTES = 256 << 20
# Row by row: a batch of the vectorised reader has thousands of rows, even with large bodies.
_SPARK_SETTINGS = {"spark.sql.parquet.enableVectorizedReader": "false"}


@dataclass(frozen=True, kw_only=True)
class RestoreSettings:
    """The archive, the choice of its messages, and their target."""

    archive: str
    topics: tuple[str, ...]
    namesrv: str
    to_topic: str | None = None
    # The store time: from (inclusive), until (exclusive).
    since_ms: int | None = None
    until_ms: int | None = None
    # Queue offsets: start (inclusive), end (exclusive); of one queue if it is named as broker:id.
    queue: str | None = None
    queue_offset_start: int | None = None
    queue_offset_end: int | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    # A condition of Spark SQL over the archive's columns.
    where: str | None = None
    rate: float | None = None
    checkpoint: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise OptionInvalid("topics: give at least one")
        if not self.checkpoint and not self.dry_run:
            raise OptionInvalid("checkpoint: give a folder, by which a second run goes on")
        if self.rate is not None and self.rate <= 0:
            raise OptionInvalid(f"rate {self.rate}: it must be more than 0")

    @property
    def target_topics(self) -> tuple[str, ...]:
        return (self.to_topic,) if self.to_topic else self.topics

    def fixed(self) -> dict[str, object]:
        """The settings that may not change between the runs of one job."""
        names = (
            "archive topics namesrv to_topic since_ms until_ms queue queue_offset_start "
            "queue_offset_end tags keys where"
        )
        return {name: getattr(self, name) for name in names.split()}


def restore(
    settings: RestoreSettings,
    *,
    spark: Spark | None = None,
    progress: Progress = SILENT,
) -> Summary:
    """Send the chosen messages; a run after a kill sends the rest.

    Raises:
        OptionInvalid: no archive, a missing topic in it or on the target, an invalid condition.
        JobFailed: a broker refused messages.
    """
    folder = reading_of(settings.archive)
    # Check before Spark is started and the checkpoint is claimed: a wrong name must not spoil it.
    chosen_hours(settings, folder)
    _require_targets(settings)
    look(settings.checkpoint, _JOB, settings.fixed())
    with (
        job_session(spark, "contrail restore") as session,
        spark_settings(session, _SPARK_SETTINGS),
    ):
        if settings.dry_run:
            return _planned(settings, folder, session)
        # A compaction would remove files that a step has listed.
        with folder.staying():
            return _run(settings, folder, session, progress)


def _run(
    settings: RestoreSettings, folder: ArchiveReading, session: SparkSession, progress: Progress
) -> Summary:
    assert settings.checkpoint
    checkpoint = Checkpoint(settings.checkpoint)
    checkpoint.claim(_JOB, settings.fixed())
    bounds, steps = _settled(settings, checkpoint, folder, session)
    plan = _plan(settings, checkpoint, session, bounds)
    decide = partial(restored, to_topic=settings.to_topic, job_id=plan.job_id)
    passes = CopyPasses(checkpoint, session)
    progress.begin("restore", len(steps))
    for work in _works(checkpoint, passes, len(steps)):
        rows = _rows_of(work, settings, folder, session, steps, bounds, passes)
        done = int(checkpoint.notes.get("stepsDone", 0)) + ("step" in work)
        passes.send(work, rows, plan, decide, stepsDone=done)
        progress.at(done)
    progress.end()
    return _summary(plan, passes)


def _works(checkpoint: Checkpoint, passes: CopyPasses, step_count: int) -> Iterator[dict[str, Any]]:
    """The passes of this run: the interrupted pass, messages that failed before, the rest."""
    retryable = passes.retryable
    if passes.under_way is not None:
        yield passes.under_way
    if retryable:
        yield {"retried": retryable}
    for number in range(int(checkpoint.notes.get("stepsDone", 0)), step_count):
        yield {"step": number}


def _rows_of(
    work: Mapping[str, Any],
    settings: RestoreSettings,
    folder: ArchiveReading,
    session: SparkSession,
    steps: Sequence[Sequence[Hour]],
    bounds: Mapping[QueueKey, int],
    passes: CopyPasses,
) -> DataFrame:
    """The messages of one pass."""
    if "step" in work:
        return chosen_rows(settings, folder, session, steps[work["step"]], bounds)
    unsent = passes.unsent(work["retried"])
    first, last = unsent.agg(sql.min("queueOffset"), sql.max("queueOffset")).collect()[0]
    hours = [hour for step in steps for hour in step]
    rows = chosen_rows(settings, folder, session, hours, bounds)
    return only(rows.where(sql.col("queueOffset").between(first, last)), unsent)


def _require_targets(settings: RestoreSettings) -> None:
    with open_admin(cluster_settings(settings.namesrv, settings.options)) as admin:
        for topic in settings.target_topics:
            require_topic(admin, topic)


def _plan(
    settings: RestoreSettings,
    checkpoint: Checkpoint,
    session: SparkSession,
    bounds: Mapping[QueueKey, int],
) -> CopyPlan:
    cluster = cluster_settings(settings.namesrv, settings.options)
    with open_admin(cluster) as admin:
        wanted = settings.target_topics
        targets, remembered = settled_targets(checkpoint, admin, wanted)
    lanes = settled_lanes(checkpoint, bounds)
    tasks = task_count(session, len(lanes))
    return CopyPlan(
        cluster=cluster,
        job_id=job_id(checkpoint),
        done="restored",
        remembered=remembered,
        targets=targets,
        lanes=lanes,
        keep_queues=True,
        rate_per_task=None if settings.rate is None else settings.rate / tasks,
    )


def _settled(
    settings: RestoreSettings,
    checkpoint: Checkpoint,
    folder: ArchiveReading,
    session: SparkSession,
) -> tuple[dict[QueueKey, int], list[list[Hour]]]:
    """The end of each queue, and the steps: as fixed when the job began."""
    notes = checkpoint.notes
    if "bounds" not in notes:
        # Read the ends first, then the hours: an hour added in between is needed or beyond.
        folder.finish()
        ends = folder.next_offsets()
        bounds = {queue: ends[queue] for queue in ends if queue.topic in settings.topics}
        hours = chosen_hours(settings, folder)
        together = _together(archive_rows(folder, session, list(hours))) if hours else {}
        planned = plan_steps(hours, _STEP_BYTES, together)
        steps = [[list(hour) for hour in step] for step in planned]
        checkpoint.note(bounds=to_json(bounds), steps=steps)
        notes = checkpoint.notes
    steps_read = [[Hour(a, b, int(c)) for a, b, c in step] for step in notes["steps"]]
    return from_json(notes["bounds"]), steps_read


def plan_steps(
    sizes: Mapping[Hour, Sequence[Sized]],
    bytes_max: int,
    together: Mapping[datetime, datetime] | None = None,
) -> list[list[Hour]]:
    """Hours that are sent together, oldest first; an hour of all topics is never divided.

    ``together`` maps an hour to an earlier one: the two and all between them are one step.
    """
    steps: list[list[Hour]] = []
    filled = 0
    by_time: dict[datetime, list[Hour]] = {}
    for hour in sorted(sizes):
        by_time.setdefault(hour.starts_at, []).append(hour)
    for block in _blocks(by_time, together or {}):
        hours = [hour for moment in block for hour in by_time[moment]]
        size = sum(file.size_bytes for hour in hours for file in sizes[hour])
        if not steps or filled + size > bytes_max:
            steps.append([])
            filled = 0
        steps[-1] += hours
        filled += size
    return steps


def _blocks(
    moments: Iterable[datetime], together: Mapping[datetime, datetime]
) -> list[list[datetime]]:
    """Hours in order; hours that may not be divided are one block."""
    blocks: list[list[datetime]] = []
    for moment in sorted(moments):
        block = [moment]
        while blocks and blocks[-1][-1] >= together.get(moment, moment):
            block = blocks.pop() + block
        blocks.append(block)
    return blocks


def _together(rows: DataFrame) -> dict[datetime, datetime]:
    """For each hour with smaller queue offsets than an earlier one: the first such earlier hour."""
    moment = sql.format_string("%sT%02d", "date", "hour")
    spans = (
        rows.groupBy(*QUEUE_COLUMNS, moment.alias("moment"))
        .agg(sql.min("queueOffset").alias("first"), sql.max("queueOffset").alias("last"))
        .persist()
    )
    window = Window.partitionBy(*QUEUE_COLUMNS).orderBy("moment")
    before = sql.max("last").over(window.rowsBetween(Window.unboundedPreceding, -1))
    late = spans.withColumn("reached", before).where("first < reached")
    late = late.select(
        *QUEUE_COLUMNS, sql.col("moment").alias("late"), sql.col("first").alias("at")
    )
    pairs = (
        late.join(spans, list(QUEUE_COLUMNS))
        .where("moment < late and last > at")
        .groupBy("late")
        .agg(sql.min("moment").alias("early"))
        .collect()
    )
    spans.unpersist()
    return {_moment(row["late"]): _moment(row["early"]) for row in pairs}


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def chosen_hours(settings: RestoreSettings, folder: ArchiveReading) -> dict[Hour, Sequence[Sized]]:
    """The hours that may hold chosen messages.

    Raises:
        NotThere: the archive does not have a topic.
    """
    there = folder.hours()
    missing = set(settings.topics) - {hour.topic for hour in there}
    if missing:
        raise NotThere(
            f"topic {min(missing)!r} is not in archive {folder.address!r}: it has "
            f"{', '.join(sorted({hour.topic for hour in there})) or 'none'}"
        )
    return {
        hour: files
        for hour, files in there.items()
        if hour.topic in settings.topics
        and overlaps(hour, settings.since_ms, settings.until_ms, folder.hour_ms)
    }


def overlaps(
    hour: Hour, since_ms: int | None, until_ms: int | None, hour_ms: int = 3_600_000
) -> bool:
    """Whether an hour, or what the archive has instead, may hold messages of these times."""
    first_ms = int(hour.starts_at.timestamp() * 1000)
    return (since_ms is None or first_ms + hour_ms > since_ms) and (
        until_ms is None or first_ms < until_ms
    )


def archive_rows(folder: ArchiveReading, session: SparkSession, hours: Sequence[Hour]) -> DataFrame:
    """The messages of some hours, with all their columns."""
    return folder.rows(session, hours, schema_of(ARCHIVED_COLUMNS))


def chosen_rows(
    settings: RestoreSettings,
    folder: ArchiveReading,
    session: SparkSession,
    hours: Sequence[Hour],
    bounds: Mapping[QueueKey, int],
) -> DataFrame:
    """The chosen messages of some hours, up to the fixed ends."""
    rows = archive_rows(folder, session, hours)
    for condition in _conditions(settings):
        rows = rows.where(condition)
    table: list[tuple[Any, ...]] = [(*queue, place) for queue, place in bounds.items()]
    ends = session.createDataFrame(
        table, "topic string, brokerName string, queueId int, settledEnd bigint"
    )
    joined = rows.join(sql.broadcast(ends), list(QUEUE_COLUMNS)).where("queueOffset < settledEnd")
    return joined.drop("settledEnd")


def _conditions(settings: RestoreSettings) -> list[Column]:
    conditions = []
    if settings.since_ms is not None:
        conditions.append(sql.col("storeTimestamp") >= _time(settings.since_ms))
    if settings.until_ms is not None:
        conditions.append(sql.col("storeTimestamp") < _time(settings.until_ms))
    if settings.queue is not None:
        name = sql.concat_ws(":", "brokerName", "queueId")
        conditions.append(name == settings.queue)
    if settings.queue_offset_start is not None:
        conditions.append(sql.col("queueOffset") >= settings.queue_offset_start)
    if settings.queue_offset_end is not None:
        conditions.append(sql.col("queueOffset") < settings.queue_offset_end)
    if settings.tags:
        conditions.append(sql.col("tags").isin(*settings.tags))
    if settings.keys:
        held = sql.split("keys", " ")
        conditions.append(reduce(or_, (sql.array_contains(held, key) for key in settings.keys)))
    if settings.where is not None:
        conditions.append(sql.expr(settings.where))
    return conditions


def _time(time_ms: int) -> Column:
    return sql.timestamp_millis(sql.lit(time_ms))


def _planned(settings: RestoreSettings, folder: ArchiveReading, session: SparkSession) -> Summary:
    hours = chosen_hours(settings, folder)
    table: list[dict[str, object]] = []
    if hours:
        rows = chosen_rows(settings, folder, session, list(hours), folder.next_offsets())
        counts = rows.groupBy("topic", "brokerName", "queueId").agg(
            sql.count("*").alias("messages"),
            sql.min("queueOffset").alias("from"),
            (sql.max("queueOffset") + 1).alias("to"),
        )
        table = [row.asDict() for row in counts.orderBy("topic", "brokerName", "queueId").collect()]
    facts: dict[str, object] = {
        "archive": folder.address,
        "messages": sum(int(str(row["messages"])) for row in table),
        "hours": len(hours),
        "to": settings.to_topic or "their own topics",
    }
    return Summary("restore", "planned", facts, table)


def _summary(plan: CopyPlan, passes: CopyPasses) -> Summary:
    sent = passes.sent("restored", "messages")
    facts: dict[str, object] = {
        "restored": sent.done,
        "already": sent.already + total(passes.counts_before(), "restored"),
        "job": plan.job_id,
        **sent.facts,
    }
    return Summary("restore", "done", facts, sent.counts)
