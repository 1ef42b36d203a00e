"""The ``archive`` job: topics to files or a table, every message once, before retention deletes it.

The job works in rounds. A round reads a fixed range of every queue, has Spark write it to files
that do not count yet, and then commits it in one step (`archive_target`). The archive holds the
next queue offset of every queue, so it is its own checkpoint: the next run, from brokers or from a
store folder, goes on where the last committed round ended.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from contrail.clock import SystemClock
from contrail.errors import DataLost, OptionInvalid
from contrail.pipeline.columns import MESSAGE_COLUMNS, schema_of
from contrail.pipeline.jobs.archive_folder import ArchiveFolder
from contrail.pipeline.jobs.archive_layout import (
    Kept,
    Range,
    assigned,
    ending_offsets,
    lost_spans,
    near_deletion,
    next_round_spans,
    plan_spans,
    refuse_foreign,
    starting_offsets,
    without_lost,
)
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.archive_target import ArchiveTarget, FolderTarget
from contrail.pipeline.jobs.copying import open_admin
from contrail.pipeline.jobs.decode_errors import with_errors_as_properties
from contrail.pipeline.jobs.progress import SILENT, Progress
from contrail.pipeline.jobs.queue_ranges import QueueRanges
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Outcome, Summary
from contrail.pipeline.jobs.table_target import TableTarget
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.row_groups import COMPRESSIONS
from contrail.pipeline.tables.contract import Format
from contrail.pipeline.tables.places import Place
from contrail.pipeline.typed.bodies import TypedBodies
from contrail.pipeline.typed.frames import bodies_of, with_typed_columns, without_body_options

_STOP_CHECK_S = 0.2
# Times that every reader of Parquet knows; and no sorting by hour before a task writes: it would
# cost more than a few open files.
_SPARK_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """The topics to archive, their cluster or store folder, and the archive's folder."""

    archive: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    namesrv: str | None = None
    store_path: str | None = None
    # The broker of the store: a folder does not hold its name, and a queue is named by its broker.
    broker_name: str = ""
    # Queues that are not in the archive yet begin at this time.
    since_ms: int | None = None
    follow: bool = False
    poll_ms: int = 10_000
    round_rows: int = 1_000_000
    # Go on if messages were deleted before they were archived.
    allow_loss: bool = False
    compression: str = "zstd"
    # The format; of an archive that exists it is known.
    format: str = ""
    # Small files are merged up to this size, and with ``follow`` this often.
    target_bytes: int = 256 << 20
    merge_ms: int = 600_000
    # Further options of format("rocketmq"): TLS, timeouts, segmentBytes.
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.topics and self.topic_pattern:
            raise OptionInvalid("topics and topic_pattern: they exclude each other: give one")
        if (self.namesrv is None) == (self.store_path is None):
            raise OptionInvalid("namesrv and store_path: give one of the two")
        if self.namesrv is not None and not (self.topics or self.topic_pattern):
            raise OptionInvalid("topics: give at least one, or topic_pattern")
        if self.store_path is not None and self.follow:
            raise OptionInvalid("follow: it needs a broker; run again to add what a store has new")
        if (self.store_path is None) != (not self.broker_name):
            raise OptionInvalid("store_path and broker_name: give both or neither")
        if self.store_path is not None and self.since_ms is not None:
            raise OptionInvalid("since_ms: it needs a broker; a store is archived from its oldest")
        if self.compression not in COMPRESSIONS:
            raise OptionInvalid(f"compression {self.compression!r}: give {', '.join(COMPRESSIONS)}")
        if self.format and self.format not in tuple(Format):
            raise OptionInvalid(f"format {self.format!r}: give {', '.join(Format)}")
        if self.target_bytes < 1:
            raise OptionInvalid(f"target_bytes {self.target_bytes}: it must be 1 or more")
        if self.round_rows < 1:
            raise OptionInvalid(f"round_rows {self.round_rows}: it must be 1 or more")

    def takes(self, topic: str) -> bool:
        """Whether the settings choose a topic."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.topics


def archive(
    settings: ArchiveSettings,
    *,
    spark: Spark | None = None,
    progress: Progress = SILENT,
    stop: Callable[[], bool] | None = None,
) -> Summary:
    """Add new messages to the archive; with ``follow`` until ``stop`` is true or it is interrupted.

    Queues of a broker that is down wait for a later run: ``away`` in the summary names them.

    Raises:
        DataLost: messages were deleted before they were archived, and ``allow_loss`` is not set.
        JobFailed: another run works on the archive, or it was made from other queues.
    """
    target = target_of(settings)
    bodies = bodies_of(settings.options)
    with QueueRanges(source_options(settings), settings.broker_name) as ranges:
        if settings.dry_run:
            target.require_free()
            return _planned(settings, target, ranges)
        # Check that the NameServer answers and the topics exist before Spark is started.
        ranges.now()
        target.create()
        with (
            target.working(),
            job_session(spark, "contrail archive") as session,
            spark_settings(session, _SPARK_SETTINGS),
        ):
            return _Run(settings, target, ranges, session, progress, bodies).until(stop)


def target_of(settings: ArchiveSettings) -> ArchiveTarget:
    """The archive that the settings name, in the format that it has or shall have.

    Raises:
        OptionInvalid: it has another format than the settings say, or its library is missing.
    """
    table = TableArchive.found(settings.archive)
    place = Place(settings.archive)
    if table is None and settings.format in ("", Format.PARQUET) and place.is_local:
        return FolderTarget(
            ArchiveFolder(settings.archive),
            compression=settings.compression,
            target_bytes=settings.target_bytes,
        )
    if table is None or settings.format:
        table = TableArchive(place, Format(settings.format or Format.PARQUET))
    return TableTarget(table, compression=settings.compression, target_bytes=settings.target_bytes)


class _Run:
    """One run of the job: its rounds, and their sums."""

    def __init__(
        self,
        settings: ArchiveSettings,
        target: ArchiveTarget,
        ranges: QueueRanges,
        session: SparkSession,
        progress: Progress,
        bodies: TypedBodies | None,
    ) -> None:
        self._bodies = bodies
        self._settings = settings
        self._target = target
        self._ranges = ranges
        self._session = session
        self._progress = progress
        self._read: dict[QueueKey, Range] = {}
        self._lost: dict[QueueKey, Range] = {}
        self._warned: set[QueueKey] = set()
        self._away: list[str] = []
        self._rows = self._files = self._bytes = self._rounds = self._merged = 0
        self._merged_at_ms = 0

    def until(self, stop: Callable[[], bool] | None) -> Summary:
        outcome: Outcome = "done"
        try:
            self._catch_up(stop)
            while self._settings.follow:
                if _waited_for(stop, self._settings.poll_ms):
                    outcome = "stopped"
                    break
                self._catch_up(stop)
                self._merge(SystemClock().now_ms())
        except KeyboardInterrupt:
            if not self._settings.follow:
                raise
            outcome = "stopped"
        finally:
            self._progress.end()
        return self._summary(outcome)

    def _catch_up(self, stop: Callable[[], bool] | None) -> None:
        """Archive all messages up to the present ends of the queues."""
        spans = self._to_do()
        total = sum(span.length for span in spans.values())
        if total:
            self._progress.begin("archive", self._rows + total)
        while spans and not (stop is not None and stop()):
            taken = next_round_spans(spans, self._settings.round_rows)
            self._archive(taken)
            self._progress.at(self._rows, rounds=self._rounds, files=self._files)
            spans = plan_spans(self._target.next_offsets(), spans, {})

    def _to_do(self) -> dict[QueueKey, Range]:
        there = self._ranges.now()
        known = self._target.next_offsets()
        away, self._away = self._away, away_texts(self._settings, self._ranges, known, there)
        if self._away and self._away != away:
            self._progress.note(f"away, and left for a later run: {'; '.join(self._away)}")
        refuse_foreign(known, there)
        spans = plan_spans(known, there, self._ranges.at(self._settings.since_ms))
        self._warn(spans, there)
        lost = lost_spans(spans, there)
        if lost and not self._settings.allow_loss:
            raise DataLost(_lost_text(lost))
        if lost:
            self._progress.note(_lost_text(lost))
            self._lost |= lost
        return without_lost(spans, there)

    def _warn(self, spans: Mapping[QueueKey, Range], there: Mapping[QueueKey, Range]) -> None:
        for queue, distance in near_deletion(spans, there).items():
            if queue not in self._warned:
                self._warned.add(queue)
                self._progress.note(
                    f"topic {queue.topic!r}, queue {queue.broker_name}:{queue.queue_id}: retention "
                    f"is {distance} messages behind what is not archived yet; archive more often"
                )

    def _archive(self, spans: dict[QueueKey, Range]) -> None:
        options = {**source_options(self._settings), **span_options(spans)}
        messages = read_messages(self._session, options)
        if self._bodies is not None:
            messages = with_typed_columns(messages, self._bodies)
        kept = self._target.keep(messages, spans)
        self._count(spans, kept)

    def _merge(self, now_ms: int) -> None:
        """Merge small files when it is time to."""
        if now_ms - self._merged_at_ms >= self._settings.merge_ms:
            self._merged_at_ms = now_ms
            self._merged += self._target.merge(self._session, self._progress, now_ms)

    def _count(self, spans: Mapping[QueueKey, Range], kept: Kept) -> None:
        self._rounds += 1
        self._files += kept.files
        self._rows += kept.rows
        self._bytes += kept.size_bytes
        for queue, span in spans.items():
            first = self._read.get(queue, span).queue_offset_start
            self._read[queue] = Range(first, span.queue_offset_end)

    def _summary(self, outcome: Outcome) -> Summary:
        facts: dict[str, object] = {
            "archive": self._target.address,
            "messages": self._rows,
            "files": self._files,
            "merged": self._merged,
            "bytes": self._bytes,
            "rounds": self._rounds,
            "lost": sum(span.length for span in self._lost.values()),
            "away": self._away,
        }
        return Summary("archive", outcome, facts, _rows_of(self._read))


def away_texts(
    settings: ArchiveSettings,
    ranges: QueueRanges,
    known: Iterable[QueueKey],
    there: Iterable[QueueKey],
) -> list[str]:
    """Each broker that is down, with its queues in the archive.

    A broker that stopped, or was silent for long, is in no route: the archive names its queues.
    """
    missing = {queue for queue in known if settings.takes(queue.topic)}.difference(there)
    if settings.namesrv is None or not (missing or ranges.away):
        return []
    cluster = SourceSettings.of(source_options(settings), streaming=False).cluster
    with open_admin(cluster) as admin:
        registered = admin.cluster_info().brokers.keys() - ranges.away
    return away_lines(ranges.away, (one for one in missing if one.broker_name not in registered))


def away_lines(brokers: Iterable[str], queues: Iterable[QueueKey]) -> list[str]:
    """A text for each broker: ``broker-b (orders 0, 1)``."""
    held: dict[str, dict[str, list[str]]] = {name: {} for name in brokers}
    for queue in sorted(queues):
        topics = held.setdefault(queue.broker_name, {})
        topics.setdefault(queue.topic, []).append(str(queue.queue_id))
    lines = []
    for name in sorted(held):
        named = "; ".join(f"{topic} {', '.join(ids)}" for topic, ids in held[name].items())
        lines.append(f"{name} ({named})" if named else name)
    return lines


def source_options(settings: ArchiveSettings) -> dict[str, str]:
    """The source's options for the topics to archive, without offsets to begin or end."""
    options = without_body_options(settings.options)
    if settings.namesrv is not None:
        options["namesrvAddr"] = settings.namesrv
    if settings.store_path is not None:
        options["storePath"] = settings.store_path
    if settings.topics:
        options["subscribe"] = ",".join(settings.topics)
    if settings.topic_pattern:
        options["subscribePattern"] = settings.topic_pattern
    return options


def span_options(spans: Mapping[QueueKey, Range]) -> dict[str, str]:
    """The source's options for these ranges of queues, instead of topics."""
    return {
        "subscribe": "",
        "subscribePattern": "",
        "assign": json.dumps(assigned(spans)),
        "startingOffsets": json.dumps(starting_offsets(spans)),
        "endingOffsets": json.dumps(ending_offsets(spans)),
    }


def read_messages(
    session: SparkSession, options: Mapping[str, str], schema: StructType | None = None
) -> DataFrame:
    """The messages that ``options`` choose, with the columns of an archive or of ``schema``."""
    given = {name: value for name, value in options.items() if value}
    source = session.read.format("rocketmq").options(**given)
    if schema is not None:
        return source.schema(schema).load()
    return with_errors_as_properties(source.schema(schema_of(tuple(MESSAGE_COLUMNS))).load())


@contextmanager
def spark_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session within a ``with`` block."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _planned(settings: ArchiveSettings, target: ArchiveTarget, ranges: QueueRanges) -> Summary:
    there = ranges.now()
    known = target.next_offsets()
    refuse_foreign(known, there)
    spans = plan_spans(known, there, ranges.at(settings.since_ms))
    kept = without_lost(spans, there)
    facts: dict[str, object] = {
        "archive": target.address,
        "messages": sum(span.length for span in kept.values()),
        "rounds": -(-sum(span.length for span in kept.values()) // settings.round_rows),
        "lost": sum(span.length for span in lost_spans(spans, there).values()),
        "away": away_texts(settings, ranges, known, there),
    }
    return Summary("archive", "planned", facts, _rows_of(kept))


def _rows_of(spans: Mapping[QueueKey, Range]) -> list[dict[str, object]]:
    return [
        {
            "topic": queue.topic,
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "from": spans[queue].queue_offset_start,
            "to": spans[queue].queue_offset_end,
            "messages": spans[queue].length,
        }
        for queue in sorted(spans)
    ]


def _lost_text(lost: Mapping[QueueKey, Range]) -> str:
    queue, span = next(iter(sorted(lost.items())))
    count = sum(one.length for one in lost.values())
    return (
        f"{count} messages of {len(lost)} queues were deleted before they were archived, such as "
        f"topic {queue.topic!r}, queue {queue.broker_name}:{queue.queue_id}, queue offsets "
        f"{span.queue_offset_start} to {span.queue_offset_end - 1}: allow the loss to go on "
        "without them"
    )


def _waited_for(stop: Callable[[], bool] | None, poll_ms: int) -> bool:
    """Wait until the queues are polled again; returns whether the run shall end."""
    deadline = time.monotonic() + poll_ms / 1000
    while time.monotonic() < deadline:
        if stop is not None and stop():
            return True
        time.sleep(min(_STOP_CHECK_S, poll_ms / 1000))
    return stop is not None and stop()
