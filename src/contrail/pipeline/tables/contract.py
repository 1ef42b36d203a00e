"""The contract between jobs and tables of all formats."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from contrail.pipeline.tables.layout import DataFile

WRITER = "archive"


class Format(StrEnum):
    """The formats of an archive."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


class CommitRaced(Exception):
    """Another commit came first; the table is as that one left it."""


class Table(Protocol):
    """A table of data files, changed by commits that happen as a whole or not at all.

    Each writer has a serial in the table, which its commits set together with their files.
    """

    # Columns that files do not have, because their partition says them.
    partition_columns: Sequence[str]

    @property
    def exists(self) -> bool:
        """Whether the table was made."""

    def create(self, schema: pa.Schema) -> None:
        """Make the table, unless another process has just made it."""

    def refresh(self) -> None:
        """See the commits of other processes."""

    def schema(self) -> pa.Schema:
        """The table's columns."""

    def file_schema(self) -> pa.Schema:
        """The columns of a data file, with the format's own ids."""

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns, and the fields of structs, that the table lacks, and widen types."""

    def serial(self, writer: str) -> int | None:
        """The serial of a writer's last commit."""

    def append(self, files: Sequence[DataFile], writer: str, serial: int) -> None:
        """Add files, and set the writer's serial, in one commit on the version last seen.

        Raises:
            CommitRaced: there is a newer version.
        """

    def files(self) -> list[DataFile]:
        """The files of the version last seen."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """Put files in the place of others that have the same rows, in one commit.

        Raises:
            CommitRaced: there is a newer version.
        """

    def forget_before(self, before_ms: int) -> None:
        """Let go of versions that are older, so that files only they have may be deleted."""
