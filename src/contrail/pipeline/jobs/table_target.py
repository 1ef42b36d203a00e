"""An archive job's rounds in a table, and merges of the table's small files by Spark's tasks."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from contrail.clock import SystemClock
from contrail.pipeline.columns import TIME_ZONE
from contrail.pipeline.jobs.archive_layout import Kept, Range
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.progress import Progress
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.tables.contract import Format
from contrail.pipeline.tables.layout import DATA, TOKEN_MAX, DataFile, Partition
from contrail.pipeline.tables.merging import plan_merges
from contrail.pipeline.tables.places import Place
from contrail.pipeline.tables.row_files import RowFiles, merge_files
from contrail.runtime.crashpoints import crashpoint

_RESULT_DDL = "file string"
_RESULT = pa.schema([("file", pa.string())])
_GRACE = timedelta(hours=1)
# Merges that one Spark job makes; they are then committed one by one.
_MERGES_AT_ONCE = 64


class TableTarget:
    """The table of an archive, as the job sees it."""

    def __init__(
        self,
        archive: TableArchive,
        *,
        compression: str,
        target_bytes: int,
        grace: timedelta = _GRACE,
    ) -> None:
        self._grace = grace
        self.address = archive.place.address
        self._archive = archive
        self._compression = compression
        self._target_bytes = target_bytes
        self._is_made = False

    def require_free(self) -> None:
        self._archive.require_free()

    def create(self) -> None:
        """The table is made with the columns of its first messages."""
        self._archive.require_free()

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._archive.lock():
            self._archive.sweep(SystemClock().now_ms())
            yield

    def next_offsets(self) -> dict[QueueKey, int]:
        return self._archive.next_offsets()

    def keep(self, messages: DataFrame, spans: dict[QueueKey, Range]) -> Kept:
        archive = self._archive
        if not self._is_made:
            archive.create(to_arrow_schema(messages.schema, timezone=TIME_ZONE))
            self._is_made = True
        known = archive.next_offsets()
        attempt = archive.begin(secrets.randbelow(TOKEN_MAX + 1))
        task = WriteTask(
            archive.place,
            archive.folder_of(attempt),
            archive.table.file_schema(),
            self._compression,
            self._target_bytes,
        )
        files = written_files(messages, task)
        crashpoint("archive.files_written")
        archive.commit(attempt, spans, known, files)
        rows, size = sum(file.rows for file in files), sum(file.size_bytes for file in files)
        return Kept(len(files), rows, size)

    def merge(self, session: SparkSession, progress: Progress, now_ms: int) -> int:
        archive = self._archive
        if archive.format is Format.PARQUET or not archive.table.exists:
            return 0
        groups = self.plan(datetime.fromtimestamp(now_ms / 1000, UTC))
        gone = 0
        for first in range(0, len(groups), _MERGES_AT_ONCE):
            some = groups[first : first + _MERGES_AT_ONCE]
            for old, new in zip(some, self._merged(session, some), strict=True):
                if archive.put_merged(old, [new], now_ms):
                    gone += len(old) - 1
                else:
                    progress.note(f"{new.partition}: another program moved files; merged later")
        archive.drop_superseded(now_ms)
        return gone

    def plan(self, now: datetime) -> list[list[DataFile]]:
        """The files that are merged now, by groups."""
        self._archive.table.refresh()
        return plan_merges(self._archive.table.files(), self._target_bytes, now, self._grace)

    def file_count(self) -> int:
        self._archive.table.refresh()
        return len(self._archive.table.files())

    def _merged(self, session: SparkSession, groups: Sequence[list[DataFile]]) -> list[DataFile]:
        archive = self._archive
        task = MergeTask(archive.place, archive.table.file_schema(), self._compression)
        folder = f"{DATA}/merged-{uuid.uuid4().hex[:8]}"
        asked = [
            json.dumps(
                {
                    "parts": [file.path for file in group],
                    "target": f"{folder}/{number:04d}.parquet",
                    "partition": list(group[0].partition),
                }
            )
            for number, group in enumerate(groups)
        ]
        frame = session.createDataFrame([(one,) for one in asked], "task string")
        rows = frame.repartition(len(asked)).mapInArrow(task, _RESULT_DDL).collect()
        crashpoint("archive.merged")
        found = sorted((DataFile.of_json(json.loads(row[0])) for row in rows), key=_path_of)
        return found


def written_files(messages: DataFrame, task: WriteTask) -> list[DataFile]:
    """Have Spark's tasks write the messages; the files of those tasks that Spark counts."""
    rows = messages.mapInArrow(task, _RESULT_DDL).collect()
    return [DataFile.of_json(json.loads(row[0])) for row in rows]


class WriteTask:
    """Writes the rows of one Spark task as data files; runs on an executor."""

    def __init__(
        self, place: Place, folder: str, schema: pa.Schema, compression: str, file_bytes_max: int
    ) -> None:
        self._place = place
        self._folder = folder
        self._schema = schema.serialize().to_pybytes()
        self._compression = compression
        self._file_bytes_max = file_bytes_max

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.BufferReader(self._schema))
        with RowFiles(
            self._place,
            self._folder,
            schema,
            compression=self._compression,
            file_bytes_max=self._file_bytes_max,
        ) as files:
            for batch in batches:
                files.add(batch)
            yield _told(files.finish())


class MergeTask:
    """Merges files into one, for each row of a task; runs on an executor."""

    def __init__(self, place: Place, schema: pa.Schema, compression: str) -> None:
        self._place = place
        self._schema = schema.serialize().to_pybytes()
        self._compression = compression

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.BufferReader(self._schema))
        for batch in batches:
            asked = [json.loads(text) for text in batch.column(0).to_pylist()]
            yield _told(
                [
                    merge_files(
                        self._place,
                        one["parts"],
                        # A task that Spark gave up on may still write under its own name.
                        f"{one['target'].removesuffix('.parquet')}-{uuid.uuid4().hex[:8]}.parquet",
                        Partition(*one["partition"]),
                        schema,
                        self._compression,
                    )
                    for one in asked
                ]
            )


def _told(files: Sequence[DataFile]) -> pa.RecordBatch:
    texts = [json.dumps(file.as_json()) for file in files]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=_RESULT)


def _path_of(file: DataFile) -> str:
    return file.path
