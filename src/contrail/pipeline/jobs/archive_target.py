"""Where an archive job keeps its rounds: a folder of Parquet files, or a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from contrail.errors import JobFailed
from contrail.pipeline.jobs.archive_folder import ArchiveFolder
from contrail.pipeline.jobs.archive_layout import (
    PARTITION_COLUMNS,
    Kept,
    Range,
    Round,
    place_files,
)
from contrail.pipeline.jobs.compact import CompactSettings, compact
from contrail.pipeline.jobs.progress import Progress
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.row_groups import ROW_GROUPS
from contrail.runtime.crashpoints import crashpoint


class ArchiveTarget(Protocol):
    """An archive as the job sees it."""

    address: str

    def require_free(self) -> None:
        """Refuse a place that neither is this archive nor can become it."""

    def create(self) -> None:
        """Make what can be made before there are messages."""

    def working(self) -> AbstractContextManager[None]:
        """Keep other runs away, and clear what a killed run left."""

    def next_offsets(self) -> dict[QueueKey, int]:
        """The next queue offset to archive, by queue."""

    def keep(self, messages: DataFrame, spans: dict[QueueKey, Range]) -> Kept:
        """Add the messages of these ranges as one round."""

    def merge(self, session: SparkSession, progress: Progress, now_ms: int) -> int:
        """Merge small files; returns how many are gone."""


class FolderTarget:
    """Parquet files by topic and hour in a folder, placed by renames."""

    def __init__(self, folder: ArchiveFolder, *, compression: str, target_bytes: int) -> None:
        self.address = str(folder.path)
        self._folder = folder
        self._compression = compression
        self._target_bytes = target_bytes

    def require_free(self) -> None:
        self._folder.require_free()

    def create(self) -> None:
        self._folder.create()

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._folder.lock("archive", wait=False):
            self._folder.finish()
            self._folder.clear_staging()
            yield

    def next_offsets(self) -> dict[QueueKey, int]:
        return self._folder.next_offsets()

    def keep(self, messages: DataFrame, spans: dict[QueueKey, Range]) -> Kept:
        folder = self._folder
        last = folder.last_round()
        number = 0 if last is None else last.number + 1
        folder.clear_staging()
        write_hours(messages, folder.staging, self._compression)
        crashpoint("archive.staged")
        files = place_files(number, _written(folder.staging))
        ends = {queue: span.queue_offset_end for queue, span in spans.items()}
        folder.commit(Round(number, {**folder.next_offsets(), **ends}, spans, files))
        folder.finish()
        folder.clear_staging()
        rows, size = sum(file.rows for file in files), sum(file.size_bytes for file in files)
        return Kept(len(files), rows, size)

    def merge(self, session: SparkSession, progress: Progress, now_ms: int) -> int:
        settings = CompactSettings(
            archive=self.address, target_bytes=self._target_bytes, compression=self._compression
        )
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        try:
            facts = compact(settings, spark=session, now=now).facts
        except JobFailed as busy:
            progress.note(f"files are not merged now: {busy}")
            return 0
        return int(str(facts["files before"])) - int(str(facts["files after"]))


def write_hours(messages: DataFrame, folder: Path, compression: str) -> None:
    """Write ``messages`` below ``folder``, by topic and hour."""
    # Whole numbers of seconds, so that a session's time zone does not matter.
    seconds = sql.unix_seconds("storeTimestamp")
    day = sql.date_add(sql.lit("1970-01-01").cast("date"), sql.floor(seconds / 86_400).cast("int"))
    hour = sql.floor(sql.pmod(seconds, sql.lit(86_400)) / 3_600).cast("int")
    dated = messages.withColumn("date", day.cast("string")).withColumn(
        "hour", sql.lpad(hour.cast("string"), 2, "0")
    )
    writer = dated.write.mode("overwrite").partitionBy(*PARTITION_COLUMNS)
    writer.options(compression=compression, **ROW_GROUPS).parquet(str(folder))


def _written(staging: Path) -> list[tuple[str, int, int]]:
    """Path, rows and size of each staged file; only their last bytes are read."""
    if not staging.is_dir():
        return []
    return [
        (
            path.relative_to(staging).as_posix(),
            pq.read_metadata(path).num_rows,
            os.stat(path).st_size,
        )
        for path in sorted(staging.glob("topic=*/date=*/hour=*/*.parquet"))
    ]
