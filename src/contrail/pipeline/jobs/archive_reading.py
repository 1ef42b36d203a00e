"""An archive as its readers see it: its hours or days, and their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructType

from contrail.errors import OptionInvalid
from contrail.pipeline.columns import ARCHIVED_COLUMNS, TIME_ZONE, schema_of
from contrail.pipeline.jobs.archive_folder import ArchiveFolder, files_of
from contrail.pipeline.jobs.archive_layout import Hour, Sized
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.tables.layout import DataFile
from contrail.pipeline.tables.places import Place
from contrail.pipeline.tables.row_files import read_rows

_HOUR_MS = 3_600_000
_FILES_DDL = "path string, topic string, date string"


class ArchiveReading(Protocol):
    """An archive to read. A table's day is the hour 0 of that day, and lasts 24 hours."""

    address: str
    hour_ms: int

    def finish(self) -> None:
        """Finish what a killed run has left half done."""

    def next_offsets(self) -> dict[QueueKey, int]:
        """Up to which queue offset each queue is archived."""

    def hours(self) -> Mapping[Hour, Sequence[Sized]]:
        """All hours, and their files."""

    def staying(self) -> AbstractContextManager[object]:
        """Keep files from being replaced while they are read."""

    def rows(
        self, session: SparkSession, hours: Sequence[Hour], schema: StructType | None = None
    ) -> DataFrame:
        """The messages of some hours, with ``date`` and ``hour``."""

    def schema(self) -> StructType:
        """The columns of the archive."""


def reading_of(address: str) -> ArchiveReading:
    """The archive at an address.

    Raises:
        OptionInvalid: there is none.
    """
    table = TableArchive.found(address)
    if table is not None:
        return TableReading(table)
    folder = ArchiveFolder(address)
    folder.require()
    return FolderReading(folder)


class FolderReading:
    """Parquet files by topic and hour in a folder."""

    hour_ms = _HOUR_MS

    def __init__(self, folder: ArchiveFolder) -> None:
        self.address = str(folder.path)
        self._folder = folder

    def finish(self) -> None:
        self._folder.finish()

    def next_offsets(self) -> dict[QueueKey, int]:
        return self._folder.next_offsets()

    def hours(self) -> Mapping[Hour, Sequence[Sized]]:
        return {hour: files_of(path) for hour, path in self._folder.hours().items()}

    def staying(self) -> AbstractContextManager[object]:
        return self._folder.lock("layout", shared=True)

    def schema(self) -> StructType:
        return schema_of(ARCHIVED_COLUMNS)

    def rows(
        self, session: SparkSession, hours: Sequence[Hour], schema: StructType | None = None
    ) -> DataFrame:
        there = self._folder.hours()
        paths = [str(there[hour]) for hour in hours if hour in there]
        wanted = _dated(schema or self.schema())
        return session.read.schema(wanted).option("basePath", self.address).parquet(*paths)


class TableReading:
    """A table, or Parquet files of an object store, by topic and day."""

    hour_ms = 24 * _HOUR_MS

    def __init__(self, archive: TableArchive) -> None:
        if not archive.table.exists:
            raise OptionInvalid(f"{archive.place.address!r} is an archive without messages")
        self.address = archive.place.address
        self._archive = archive

    def finish(self) -> None:
        """A table's commit leaves nothing to finish; that of plain files does."""
        self._archive.table.refresh()

    def next_offsets(self) -> dict[QueueKey, int]:
        return self._archive.next_offsets()

    def hours(self) -> Mapping[Hour, Sequence[Sized]]:
        self._archive.table.refresh()
        found: dict[Hour, list[Sized]] = {}
        for file in self._archive.table.files():
            found.setdefault(_hour_of(file), []).append(Sized(file.path, file.size_bytes))
        return found

    @contextmanager
    def staying(self) -> Iterator[object]:
        """Merged files stay for days, for readers of older versions."""
        yield None

    def schema(self) -> StructType:
        return from_arrow_schema(self._archive.table.schema())

    def rows(
        self, session: SparkSession, hours: Sequence[Hour], schema: StructType | None = None
    ) -> DataFrame:
        self._archive.table.refresh()
        wanted = set(hours)
        files = [
            (file.path, file.partition.topic, file.partition.date)
            for file in self._archive.table.files()
            if _hour_of(file) in wanted
        ]
        columns = _dated(schema or self.schema())
        task = ReadTask(self._archive.place, to_arrow_schema(columns, timezone=TIME_ZONE))
        frame = session.createDataFrame(files, _FILES_DDL)
        return frame.repartition(max(1, len(files))).mapInArrow(task, columns)


class ReadTask:
    """Reads the files that a task names; runs on an executor."""

    def __init__(self, place: Place, schema: pa.Schema) -> None:
        self._place = place
        self._schema = schema.serialize().to_pybytes()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.BufferReader(self._schema))
        for batch in batches:
            for file in batch.to_pylist():
                said = {"topic": file["topic"], "date": file["date"], "hour": 0}
                for rows in read_rows(self._place, [file["path"]], schema):
                    yield _with(rows, said)


def _with(rows: pa.RecordBatch, said: Mapping[str, object]) -> pa.RecordBatch:
    """The rows with the values that their file's partition says."""
    columns = [
        pa.array([said[field.name]] * rows.num_rows, field.type)
        if field.name in said
        else rows.column(index)
        for index, field in enumerate(rows.schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _hour_of(file: DataFile) -> Hour:
    return Hour(file.partition.topic, file.partition.date, 0)


def _dated(schema: StructType) -> StructType:
    wanted = StructType(list(schema.fields))
    return wanted.add("date", StringType()).add("hour", IntegerType())
