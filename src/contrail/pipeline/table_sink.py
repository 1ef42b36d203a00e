"""A stream into an Iceberg or a Delta table: each batch in one commit, once."""

from __future__ import annotations

import secrets

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.columns import TIME_ZONE
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.table_target import WriteTask, written_files
from contrail.pipeline.tables.contract import CommitRaced, Format
from contrail.pipeline.tables.layout import DATA, TOKEN_MAX
from contrail.pipeline.tables.places import Place
from contrail.runtime.crashpoints import crashpoint

_NEEDED = ("topic", "storeTimestamp")
_COMMITS_MAX = 5


class TableSink:
    """The function that ``foreachBatch`` calls. A batch that was committed is not written again.

    ``name`` tells the queries into one table apart. A query with a new checkpoint begins again with
    batch 0, and needs a new name.
    """

    def __init__(
        self,
        address: str,
        format: str,
        *,
        name: str,
        compression: str = "zstd",
        file_bytes_max: int = 256 << 20,
    ) -> None:
        """Raises ``OptionInvalid`` for another format or name, or a library that is missing."""
        if format not in (Format.ICEBERG, Format.DELTA):
            raise OptionInvalid(
                f"format {format!r}: give iceberg or delta, whose commits are whole"
            )
        if not name.replace("-", "").replace("_", "").isalnum():
            raise OptionInvalid(f"name {name!r}: give letters, digits, - and _")
        self._place = Place(address)
        self._table = TableArchive(self._place, Format(format))
        self._name = name
        self._compression = compression
        self._file_bytes_max = file_bytes_max

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Add the rows of a batch, unless they are in the table.

        Raises:
            OptionInvalid: the rows have no ``topic`` or ``storeTimestamp``, by which the table is
                partitioned, or a column of another type than the table.
        """
        missing = [name for name in _NEEDED if name not in batch.columns]
        if missing:
            raise OptionInvalid(
                f"the rows have no column {missing[0]!r}: the table is partitioned by topic and by "
                "the day of storeTimestamp"
            )
        self._table.create(to_arrow_schema(batch.schema, timezone=TIME_ZONE))
        if self._is_there(batch_id):
            return
        self._clear(batch_id)
        folder = f"{DATA}/{self._prefix(batch_id)}{secrets.randbelow(TOKEN_MAX + 1):05x}"
        task = WriteTask(
            self._place,
            folder,
            self._table.table.file_schema(),
            self._compression,
            self._file_bytes_max,
        )
        files = written_files(batch, task)
        crashpoint("table_sink.files_written")
        for _ in range(_COMMITS_MAX):
            try:
                self._table.table.append(files, self._writer, batch_id)
                return
            except CommitRaced:
                self._table.table.refresh()
                if self._is_there(batch_id):
                    raise JobFailed(
                        f"batch {batch_id} of {self._name!r} was committed by another query "
                        "meanwhile: give each query a name of its own"
                    ) from None
        raise JobFailed(f"other programs commit to {self._place.address!r} all the time: try again")

    @property
    def _writer(self) -> str:
        return f"sink.{self._name}"

    def _is_there(self, batch_id: int) -> bool:
        last = self._table.table.serial(self._writer)
        return last is not None and last >= batch_id

    def _prefix(self, batch_id: int) -> str:
        return f"sink-{self._name}-{batch_id}-"

    def _clear(self, batch_id: int) -> None:
        """Delete what a killed try at this batch has left: no commit names it."""
        for name in self._place.names(DATA):
            if name.startswith(self._prefix(batch_id)):
                self._place.remove_folder(f"{DATA}/{name}")
