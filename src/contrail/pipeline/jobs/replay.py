"""The ``replay`` job: sends dead letters of a group back to their original topics.

A run sends the letters that the dead-letter topic holds at its beginning, in steps. A finished step
is not read again, and an interrupted step is sent again with the same numbers, by which the brokers
drop repeats. Another run with the same checkpoint goes on with newer letters, and with letters that
were refused or had no topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from contrail.client.blocking.admin import Admin
from contrail.client.dead_letters import (
    EXHAUSTED,
    GIVEN_UP,
    ORIGIN_PROPERTIES,
    OWN_LIMIT,
    REASONS,
    retries_max_of,
    why_closed,
)
from contrail.errors import JobFailed, NotThere, OptionInvalid
from contrail.insight.copies import replayed
from contrail.model.properties import MAX_RECONSUME_TIMES
from contrail.model.topic import dlq_topic
from contrail.pipeline.columns import ARCHIVED_COLUMNS, schema_of
from contrail.pipeline.jobs.archive import read_messages, span_options
from contrail.pipeline.jobs.archive_layout import Range, next_round_spans, without_lost
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
    without_topic,
)
from contrail.pipeline.jobs.progress import SILENT, Progress
from contrail.pipeline.jobs.queue_ranges import QueueRanges
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.jobs.targets import refuse_retry_topic, require_topic
from contrail.pipeline.offsets import QueueKey, from_json, to_json

_JOB = "replay"
_STEP_ROWS = 100_000
_ORIGINS_MAX = 10_000
_ORIGIN_COLUMNS = [StructField(name, StringType()) for name in ORIGIN_PROPERTIES]


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """The dead letters to replay, and their target."""

    group: str
    namesrv: str
    # The topic for all letters, instead of each letter's origin.
    to_topic: str | None = None
    # The time at which they became dead letters: from (inclusive), until (exclusive).
    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    # A condition of Spark SQL over a letter's columns, `origin` and `reason`.
    where: str | None = None
    # Above this many retries a letter counts as exhausted; without it, the limit in the letter or
    # the group's own limit holds.
    retries_max: int | None = None
    rate: float | None = None
    step_rows: int = _STEP_ROWS
    checkpoint: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    def __post_init__(self) -> None:
        for reason in self.reasons:
            if reason not in REASONS:
                raise OptionInvalid(f"reason {reason!r}: give {' or '.join(REASONS)}")
        if self.to_topic is not None:
            refuse_retry_topic(self.to_topic)
        if not self.checkpoint and not self.dry_run:
            raise OptionInvalid("checkpoint: give a folder, by which a second run goes on")
        if self.rate is not None and self.rate <= 0:
            raise OptionInvalid(f"rate {self.rate}: it must be more than 0")
        if self.step_rows < 1:
            raise OptionInvalid(f"step_rows {self.step_rows}: it must be 1 or more")

    def fixed(self) -> dict[str, object]:
        """The settings that may not change between the runs of one job."""
        names = "group namesrv to_topic since_ms until_ms tags origins reasons where retries_max"
        return {name: getattr(self, name) for name in names.split()}

    def source_options(self) -> dict[str, str]:
        """The source's options for all of the group's dead letters."""
        return {**self.options, "namesrvAddr": self.namesrv, "subscribe": dlq_topic(self.group)}


def replay(
    settings: ReplaySettings,
    *,
    spark: Spark | None = None,
    progress: Progress = SILENT,
) -> Summary:
    """Send dead letters back; the outcome of each is in the checkpoint, in ``outcomes``.

    Raises:
        OptionInvalid: the group has no dead letters, or a setting is invalid.
        JobFailed: a broker refused letters.
    """
    cluster = cluster_settings(settings.namesrv, settings.options)
    with open_admin(cluster) as admin:
        if admin.dead_letter_topic(settings.group) is None:
            raise NotThere(f"group {settings.group!r} has no dead letters on this cluster")
        closed = why_closed(admin, settings.group)
        if closed is not None:
            raise OptionInvalid(closed)
        if settings.to_topic is not None:
            require_topic(admin, settings.to_topic)
        look(settings.checkpoint, _JOB, settings.fixed())
        retries_max = retries_max_of(admin, settings.group)
        with job_session(spark, "contrail replay") as session:
            if settings.dry_run:
                return _planned(settings, session, retries_max)
            return _Run(settings, session, admin, progress, retries_max).all()


class _Run:
    """One run of the job."""

    def __init__(
        self,
        settings: ReplaySettings,
        session: SparkSession,
        admin: Admin,
        progress: Progress,
        retries_max: int,
    ) -> None:
        assert settings.checkpoint
        self._settings = settings
        self._session = session
        self._admin = admin
        self._progress = progress
        self._retries_max = retries_max
        self._checkpoint = Checkpoint(settings.checkpoint)
        self._there: dict[QueueKey, Range] = {}

    def all(self) -> Summary:
        self._checkpoint.claim(_JOB, self._settings.fixed())
        self._passes = CopyPasses(self._checkpoint, self._session)
        retryable = self._passes.retryable
        self._settle_reach()
        self._progress.begin("replay", sum(span.length for span in self._left().values()))
        if self._passes.under_way is not None:
            self._send(self._passes.under_way)
        if retryable:
            self._send({"retried": retryable})
        done = 0
        while spans := self._left():
            taken = next_round_spans(spans, self._settings.step_rows)
            self._send({"spans": _to_notes(taken)})
            done += sum(span.length for span in taken.values())
            self._progress.at(done)
        self._progress.end()
        return self._summary()

    def _settle_reach(self) -> None:
        """Note this run's end in each queue; the run begins at the end of the finished steps."""
        with QueueRanges(self._settings.source_options()) as ranges:
            self._there = ranges.now()
        known = from_json(self._checkpoint.notes.get("next", {}))
        begins = {
            queue: max(known.get(queue, 0), span.queue_offset_start)
            for queue, span in self._there.items()
        }
        self._checkpoint.note(next=to_json({**known, **begins}))
        settled_lanes(self._checkpoint, self._there)

    def _left(self) -> dict[QueueKey, Range]:
        begins = from_json(self._checkpoint.notes["next"])
        spans = {
            queue: Range(begins[queue], there.queue_offset_end)
            for queue, there in self._there.items()
        }
        return {queue: span for queue, span in spans.items() if span.length > 0}

    def _send(self, work: Mapping[str, Any]) -> None:
        """Send one pass: a step, or the letters that earlier runs could not send."""
        reached = from_json(self._checkpoint.notes["next"])
        if "spans" in work:
            spans = _of_notes(work["spans"])
            letters = self._letters(spans)
            reached |= {queue: span.queue_offset_end for queue, span in spans.items()}
        else:
            unsent = self._passes.unsent(work["retried"])
            spans = _spans_of(unsent)
            letters = only(self._letters(spans), unsent)
        plan = self._plan(self._still_there(spans))
        decide = partial(replayed, to_topic=self._settings.to_topic, job_id=plan.job_id)
        self._passes.send(work, letters, plan, decide, next=to_json(reached))

    def _letters(self, spans: Mapping[QueueKey, Range]) -> DataFrame:
        there = self._still_there(spans)
        if there:
            return read_letters(self._settings, self._session, there, self._retries_max)
        schema = StructType(schema_of(ARCHIVED_COLUMNS).fields)
        return self._session.createDataFrame([], schema.add("skipped", StringType()))

    def _still_there(self, spans: Mapping[QueueKey, Range]) -> dict[QueueKey, Range]:
        """The spans of an earlier run without messages that retention has deleted.

        Raises:
            JobFailed: the broker of a queue is away.
        """
        away = {queue.broker_name for queue in spans if queue not in self._there}
        if away:
            raise JobFailed(
                f"broker {min(away)!r} is away, and has letters that an earlier run did not "
                "finish: run again when it is back"
            )
        return without_lost(spans, self._there)

    def _plan(self, spans: Mapping[QueueKey, Range]) -> CopyPlan:
        settings = self._settings
        wanted = (
            [settings.to_topic]
            if settings.to_topic
            else read_origins(settings, self._session, spans)
            if spans
            else []
        )
        targets, remembered = settled_targets(self._checkpoint, self._admin, wanted)
        lanes = settled_lanes(self._checkpoint, ())
        tasks = task_count(self._session, len(lanes))
        return CopyPlan(
            cluster=cluster_settings(settings.namesrv, settings.options),
            job_id=job_id(self._checkpoint),
            done="replayed",
            remembered=remembered,
            targets=targets,
            lanes=lanes,
            keep_queues=False,
            rate_per_task=None if settings.rate is None else settings.rate / tasks,
        )

    def _summary(self) -> Summary:
        sent = self._passes.sent("replayed", "dead letters")
        waiting = without_topic(sent.counts)
        facts: dict[str, object] = {
            "replayed": sent.done,
            "already": sent.already,
            "skipped": total(sent.counts, "skipped") - waiting,
            "without a topic": waiting,
            "job": job_id(self._checkpoint),
            **sent.facts,
        }
        return Summary("replay", "done", facts, sent.counts)


def _to_notes(spans: Mapping[QueueKey, Range]) -> dict[str, object]:
    return {
        "from": to_json({queue: span.queue_offset_start for queue, span in spans.items()}),
        "to": to_json({queue: span.queue_offset_end for queue, span in spans.items()}),
    }


def _of_notes(notes: Mapping[str, Any]) -> dict[QueueKey, Range]:
    ends = from_json(notes["to"])
    return {queue: Range(start, ends[queue]) for queue, start in from_json(notes["from"]).items()}


def _spans_of(unsent: DataFrame) -> dict[QueueKey, Range]:
    """The range from the first to the last unsent letter, in each queue."""
    first, last = sql.min("queueOffset"), sql.max("queueOffset")
    rows = unsent.groupBy(*QUEUE_COLUMNS).agg(first.alias("first"), last.alias("last")).collect()
    return {
        QueueKey(*(row[name] for name in QUEUE_COLUMNS)): Range(row["first"], row["last"] + 1)
        for row in rows
    }


def read_letters(
    settings: ReplaySettings, session: SparkSession, spans: Mapping[QueueKey, Range], retries: int
) -> DataFrame:
    """The dead letters of ``spans``; ``skipped`` says why a filter leaves a letter out."""
    options = {**settings.source_options(), **span_options(spans)}
    letters = with_reasons(settings, read_messages(session, options), retries)
    why = sql.lit(None).cast("string")
    for text, condition in reversed(_conditions(settings)):
        matches = sql.coalesce(condition, sql.lit(False))
        why = sql.when(~matches, sql.lit(text)).otherwise(why)
    return letters.withColumn("skipped", why)


def read_origins(
    settings: ReplaySettings, session: SparkSession, spans: Mapping[QueueKey, Range]
) -> list[str]:
    """The original topics of the dead letters of ``spans``."""
    options = {**settings.source_options(), **span_options(spans)}
    rows = (
        read_messages(session, options, StructType(_ORIGIN_COLUMNS))
        .select(sql.coalesce(*ORIGIN_PROPERTIES).alias("origin"))
        .where("origin is not null")
        .distinct()
        .limit(_ORIGINS_MAX)
    )
    return sorted(str(row["origin"]) for row in rows.collect())


def with_reasons(settings: ReplaySettings, letters: DataFrame, retries_max: int) -> DataFrame:
    """Dead letters with the columns ``origin`` and ``reason``, by ``client.dead_letters``."""
    pairs = sql.col("properties")
    origin = sql.coalesce(*(pairs[name] for name in ORIGIN_PROPERTIES))
    if settings.retries_max is not None:
        limit = sql.lit(settings.retries_max)
    else:
        own = pairs[MAX_RECONSUME_TIMES]
        is_own = own.rlike(rf"\A{OWN_LIMIT}\z")
        limit = sql.when(is_own, own.cast("bigint")).otherwise(sql.lit(retries_max))
    reason = sql.when(sql.col("reconsumeTimes") > limit, EXHAUSTED).otherwise(GIVEN_UP)
    return letters.withColumn("origin", origin).withColumn("reason", reason)


def _conditions(settings: ReplaySettings) -> list[tuple[str, Column]]:
    """Each filter: the reason for letters that it leaves out, and the condition."""
    conditions = []
    stored = sql.col("storeTimestamp")
    if settings.since_ms is not None:
        since = stored >= sql.timestamp_millis(sql.lit(settings.since_ms))
        conditions.append(("it is older than asked for", since))
    if settings.until_ms is not None:
        until = stored < sql.timestamp_millis(sql.lit(settings.until_ms))
        conditions.append(("it is newer than asked for", until))
    for name, values in (
        ("tags", settings.tags),
        ("origin", settings.origins),
        ("reason", settings.reasons),
    ):
        if values:
            conditions.append((f"its {name} was not asked for", sql.col(name).isin(*values)))
    if settings.where is not None:
        conditions.append(("the condition does not hold for it", sql.expr(settings.where)))
    return conditions


def _planned(settings: ReplaySettings, session: SparkSession, retries_max: int) -> Summary:
    messages = read_messages(session, settings.source_options())
    letters = with_reasons(settings, messages, retries_max)
    for _, condition in _conditions(settings):
        letters = letters.where(condition)
    rows: list[Any] = (
        letters.groupBy("origin", "reason")
        .agg(
            sql.count("*").alias("messages"),
            sql.min("storeTimestamp").alias("oldest"),
            sql.max("storeTimestamp").alias("newest"),
        )
        .orderBy(sql.desc("messages"))
        .limit(_ORIGINS_MAX)
        .collect()
    )
    table: list[dict[str, object]] = [row.asDict() for row in rows]
    facts: dict[str, object] = {
        "group": settings.group,
        "messages": sum(int(str(row["messages"])) for row in table),
        "to": settings.to_topic or "the topics they came from",
    }
    return Summary("replay", "planned", facts, table)
