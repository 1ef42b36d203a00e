"""The sources of a report's messages: a live cluster or a store folder, and an archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from contrail.errors import NotThere, OptionInvalid
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, is_system_topic
from contrail.pipeline.jobs import report_measures as measures
from contrail.pipeline.jobs.archive_reading import reading_of
from contrail.pipeline.jobs.message_frames import (
    application_topics,
    archive_frame,
    archived_topics,
    live_frame,
    live_topics,
    store_frame,
    stored_topics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """The topics, time span and sources of a report, and its output folder.

    Messages come from a live cluster or a store folder, and from an archive; for a queue that is in
    both, the older part is read from the archive. Without ``topics``, all application topics.
    """

    out: str
    namesrv: str | None = None
    archive: str | None = None
    store_path: str | None = None
    topics: tuple[str, ...] = ()
    start_ms: int | None = None
    end_ms: int | None = None
    moments: int = 60
    hot_keys: int = 10
    trace: bool = True
    trace_topic: str = TRACE_TOPIC
    # Further options of the source for live topics.
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The topics to read from each source."""

    live: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    archived: tuple[str, ...] = ()

    @property
    def all(self) -> set[str]:
        return {*self.live, *self.stored, *self.archived}


def plan_topics(settings: ReportSettings) -> TopicPlan:
    """Ask every source for its topics.

    Raises:
        OptionInvalid: no source has a named topic, or there are no topics.
    """
    plan = TopicPlan(
        live=_chosen(application_topics(settings.namesrv, settings.options), settings)
        if settings.namesrv
        else (),
        stored=_chosen(stored_topics(settings.store_path), settings) if settings.store_path else (),
        archived=_chosen(archived_topics(settings.archive), settings) if settings.archive else (),
    )
    missing = sorted(set(settings.topics) - plan.all)
    if missing:
        raise NotThere(f"there is no topic {missing[0]!r}: see `contrail topic list`")
    if not plan.all:
        raise OptionInvalid("there are no topics to report on")
    return plan


def _chosen(there: Iterable[str], settings: ReportSettings) -> tuple[str, ...]:
    """The topics of the report, with all retry and dead-letter topics."""
    wanted = set(settings.topics)
    return tuple(
        topic
        for topic in sorted(there)
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or (topic in wanted if wanted else _is_of_applications(topic, settings))
    )


def _is_of_applications(topic: str, settings: ReportSettings) -> bool:
    return topic != settings.trace_topic and not is_system_topic(topic)


def plan_rows(settings: ReportSettings, plan: TopicPlan) -> list[dict[str, object]]:
    """The planned reads, a row for each topic."""
    places = {
        settings.namesrv: plan.live,
        settings.store_path: plan.stored,
        settings.archive: plan.archived,
    }
    return [
        {"reads": place, "topic": topic} for place, topics in places.items() for topic in topics
    ]


@contextmanager
def files_that_stay(settings: ReportSettings) -> Iterator[None]:
    """Lock out compactions while an archive's files are read more than once."""
    if settings.archive is None:
        yield
        return
    with reading_of(settings.archive).staying():
        yield


def read_messages(spark: SparkSession, settings: ReportSettings, plan: TopicPlan) -> DataFrame:
    """All messages of the report, each once."""
    columns = [*measures.MESSAGE_COLUMNS, "queueOffset"]
    frames = [
        archive_frame(spark, settings.archive or "", topic, columns) for topic in plan.archived
    ]
    fresh = None
    if plan.live:
        options = {**_time_options(settings), **settings.options}
        fresh = live_frame(spark, settings.namesrv or "", plan.live, columns, options)
    elif plan.stored:
        options = _time_options(settings)
        fresh = store_frame(spark, settings.store_path or "", plan.stored, columns, options)
    if fresh is not None:
        frames.append(_behind_archive(spark, fresh, settings) if plan.archived else fresh)
    united = frames[0]
    for frame in frames[1:]:
        united = united.unionByName(frame)
    rows = measures.narrow(united, settings.start_ms, settings.end_ms)
    wanted = list(settings.topics)
    # The retries of a group are from all its topics; only retries of chosen topics count.
    return rows if not wanted else rows.where(f.coalesce("origin", "topic").isin(wanted))


def _time_options(settings: ReportSettings) -> dict[str, str]:
    options = {}
    if settings.start_ms is not None:
        options["startingTimestamp"] = str(settings.start_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if settings.end_ms is not None:
        options["endingTimestamp"] = str(settings.end_ms)
    return options


def _behind_archive(spark: SparkSession, fresh: DataFrame, settings: ReportSettings) -> DataFrame:
    """The messages that are not in the archive yet."""
    reached = reading_of(settings.archive or "").next_offsets()
    schema = "topic string, brokerName string, queueId int, archived bigint"
    ends = spark.createDataFrame([(*queue, place) for queue, place in reached.items()], schema)
    joined = fresh.join(f.broadcast(ends), ["topic", "brokerName", "queueId"], "left")
    return joined.where("archived is null or queueOffset >= archived").drop("archived")


def read_traces(spark: SparkSession, settings: ReportSettings) -> DataFrame | None:
    """The bodies of the trace topic, from the source that has it; None if none has."""
    topic, times = settings.trace_topic, {}
    if settings.start_ms is not None:
        # Messages of the report's time span may be consumed, and traced, after it.
        times = _time_options(ReportSettings(out="", start_ms=settings.start_ms))
    if settings.namesrv and topic in live_topics(settings.namesrv, settings.options):
        options = {**times, **settings.options}
        return live_frame(spark, settings.namesrv, [topic], ["body"], options)
    if settings.store_path and topic in stored_topics(settings.store_path):
        return store_frame(spark, settings.store_path, [topic], ["body"], times)
    if settings.archive and topic in archived_topics(settings.archive):
        return archive_frame(spark, settings.archive, topic, ["body"])
    return None
