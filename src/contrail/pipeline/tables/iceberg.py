"""An Iceberg table in a folder or an object store, by pyiceberg and without a catalog's server.

The folder is its own catalog, in the layout of Hadoop tables: the newest
``metadata/vN.metadata.json`` is the table. A commit makes the next number, which the file system
lets only one process do. ``metadata/version-hint.text`` says where to begin to look.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    parquet_file_to_data_file,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as OpenTable
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.tables.contract import CommitRaced
from contrail.pipeline.tables.evolution import require_evolvable
from contrail.pipeline.tables.layout import DataFile, Partition
from contrail.pipeline.tables.places import AlreadyThere, Place, sync
from contrail.runtime.crashpoints import crashpoint

_HINT = "metadata/version-hint.text"
_SERIAL = "contrail.serial."
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # A commit that another one overtook must be judged anew, not repeated.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_DAY_ZERO = date(1970, 1, 1)
# The place of the partition in the record of a data file, by the format's table of fields.
_PARTITION_FIELD = 3


class IcebergTable:
    """The archive's side of the table."""

    partition_columns: Sequence[str] = ()

    def __init__(self, place: Place) -> None:
        self._place = place
        self._catalog = FolderCatalog(place)
        self._open: OpenTable | None = None

    @property
    def exists(self) -> bool:
        return self._catalog.version() is not None

    def create(self, schema: pa.Schema) -> None:
        fresh = _with_ids(schema)
        spec = PartitionSpec(
            PartitionField(_id(fresh, "topic"), 1000, IdentityTransform(), "topic"),
            PartitionField(_id(fresh, "storeTimestamp"), 1001, DayTransform(), "date"),
        )
        metadata = new_table_metadata(
            location=self._place.url,
            schema=fresh,
            partition_spec=spec,
            sort_order=UNSORTED_SORT_ORDER,
            properties=_PROPERTIES,
        )
        self._catalog.make(metadata)

    def refresh(self) -> None:
        self._open = self._catalog.load()

    @property
    def table(self) -> OpenTable:
        """The table as pyiceberg knows it."""
        if self._open is None:
            self._open = self._catalog.load()
        return self._open

    def schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.table.schema(), include_field_ids=False)

    def file_schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.table.schema(), include_field_ids=True)

    def evolve(self, schema: pa.Schema) -> None:
        if not require_evolvable(self.schema(), schema, widens=True):
            return
        try:
            with self.table.update_schema() as update:
                update.union_by_name(schema)
        except CommitFailedException as error:
            raise CommitRaced from error
        self.refresh()

    def serial(self, writer: str) -> int | None:
        said = self.table.properties.get(_SERIAL + writer)
        return None if said is None else int(said)

    def append(self, files: Sequence[DataFile], writer: str, serial: int) -> None:
        table = self.table
        added = [self._described(file) for file in files]
        try:
            with table.transaction() as commit:
                commit.set_properties({_SERIAL + writer: str(serial)})
                # Also without files: the requirement on the snapshot makes commits race.
                with commit.update_snapshot().merge_append() as snapshot:
                    for file in added:
                        snapshot.append_data_file(file)
        except CommitFailedException as error:
            raise CommitRaced from error
        crashpoint("tables.committed")
        self.refresh()

    def files(self) -> list[DataFile]:
        tasks = list(self.table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise JobFailed(
                f"table {self._place.address!r} has rows that another program marked as deleted "
                "beside their files: rewrite its data files with that program first"
            )
        return [self._ours(task.file) for task in tasks]

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        table = self.table
        paths = {self._url(file.path) for file in old}
        gone = [task.file for task in table.scan().plan_files() if task.file.file_path in paths]
        if len(gone) != len(paths):
            raise CommitRaced
        try:
            with table.transaction() as commit, commit.update_snapshot().overwrite() as snapshot:
                for one in gone:
                    snapshot.delete_data_file(one)
                for file in new:
                    snapshot.append_data_file(self._described(file))
        except CommitFailedException as error:
            raise CommitRaced from error
        crashpoint("tables.merge_committed")
        self.refresh()

    def forget_before(self, before_ms: int) -> None:
        try:
            moment = datetime.fromtimestamp(before_ms / 1000, UTC).replace(tzinfo=None)
            self.table.maintenance.expire_snapshots().older_than(moment).commit()
        except CommitFailedException as error:
            raise CommitRaced from error
        self.refresh()

    def _url(self, path: str) -> str:
        return f"{self._place.url}/{path}"

    def _described(self, file: DataFile) -> IcebergFile:
        """The file with the figures of its footer and the partition that its rows have."""
        table = self.table
        found = parquet_file_to_data_file(table.io, table.metadata, self._url(file.path))
        day = (date.fromisoformat(file.partition.date) - _DAY_ZERO).days
        # A partition that is guessed by bounds would be wrong for a topic with a long name.
        found[_PARTITION_FIELD] = Record(file.partition.topic, day)
        return found

    def _ours(self, file: IcebergFile) -> DataFile:
        if file.content is not DataFileContent.DATA:
            raise JobFailed(f"{file.file_path!r} is no file of rows")
        topic, day = file.partition[0], file.partition[1]
        when = day if isinstance(day, date) else date.fromordinal(_DAY_ZERO.toordinal() + day)
        path = file.file_path.removeprefix(self._place.url + "/")
        partition = Partition(topic, when.isoformat())
        return DataFile(path, partition, file.record_count, file.file_size_in_bytes)


class FolderCatalog(NoopCatalog):
    """The catalog of the one table in a folder."""

    def __init__(self, place: Place) -> None:
        super().__init__("contrail")
        self._place = place
        self._io_properties = io_properties(place)

    def version(self) -> int | None:
        """The number of the newest metadata; None without a table."""
        said = self._place.read(_HINT)
        version = int(said) if said is not None else self._listed()
        if version is None:
            return None
        # The hint is written behind the commit, which may have been its process's last act.
        while self._place.exists(_metadata_path(version + 1)):
            version += 1
        return version

    def _listed(self) -> int | None:
        numbers = [
            int(name[1:].partition(".")[0])
            for name in self._place.names("metadata")
            if name.startswith("v") and name.endswith(".metadata.json")
        ]
        return max(numbers, default=None)

    def load(self) -> OpenTable:
        """The table as the newest metadata says.

        Raises:
            OptionInvalid: there is no table.
        """
        version = self.version()
        if version is None:
            raise OptionInvalid(f"{self._place.address!r} holds no Iceberg table")
        location = f"{self._place.url}/{_metadata_path(version)}"
        io = load_file_io(self._io_properties, location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return OpenTable(("contrail", "archive"), metadata, location, io, self)

    def make(self, metadata: TableMetadata) -> None:
        """Write the first metadata, unless another process has just done so."""
        try:
            self._place.create(_metadata_path(1), metadata.model_dump_json().encode())
        except AlreadyThere:
            return
        crashpoint("tables.iceberg_made")
        self._place.put(_HINT, b"1")

    def load_table(self, identifier: Any) -> OpenTable:
        return self.load()

    def commit_table(
        self,
        table: OpenTable,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Make the next metadata. Raises ``CommitFailedException`` if another commit came first."""
        current = self.load()
        if current.metadata_location != table.metadata_location:
            raise CommitFailedException("another commit came first")
        for requirement in requirements:
            requirement.validate(current.metadata)
        updated = update_table_metadata(
            base_metadata=current.metadata,
            updates=updates,
            metadata_location=current.metadata_location,
        )
        if updated == current.metadata:
            return _response(updated, current.metadata_location)
        if self._place.is_local:
            _sync_snapshot(self._place, updated)
        crashpoint("tables.iceberg_staged")
        version = _version_of(current.metadata_location) + 1
        try:
            self._place.create(_metadata_path(version), updated.model_dump_json().encode())
        except AlreadyThere as error:
            raise CommitFailedException("another commit came first") from error
        crashpoint("tables.iceberg_committed")
        self._place.put(_HINT, str(version).encode())
        crashpoint("tables.iceberg_hinted")
        return _response(updated, f"{self._place.url}/{_metadata_path(version)}")


def io_properties(place: Place) -> dict[str, str]:
    """How pyiceberg reaches the place: the environment, in its words."""
    if place.is_local:
        return {}
    said = {
        "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
        "s3.access-key-id": os.environ.get("AWS_ACCESS_KEY_ID"),
        "s3.secret-access-key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
        "s3.session-token": os.environ.get("AWS_SESSION_TOKEN"),
        "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    return {name: value for name, value in said.items() if value}


def newest_metadata(place: Place) -> str:
    """The address of the newest metadata file, for programs that open a table by it."""
    location: str = FolderCatalog(place).load().metadata_location
    return location


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse(metadata=metadata, **{"metadata-location": location})


def _metadata_path(version: int) -> str:
    return f"metadata/v{version}.metadata.json"


def _version_of(location: str) -> int:
    return int(location.rpartition("/")[2][1:].partition(".")[0])


def _sync_snapshot(place: Place, metadata: TableMetadata) -> None:
    """Make the newest snapshot's lists durable before the commit names them."""
    folder = place.at("metadata")
    newer = time.time() - 3_600
    for entry in os.scandir(folder):
        if entry.name.endswith(".avro") and entry.stat().st_mtime > newer:
            sync(entry.path)
    sync(folder)


def _with_ids(schema: pa.Schema) -> Schema:
    try:
        return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))
    except UnsupportedPyArrowTypeException as error:
        raise OptionInvalid(f"Iceberg has no type for a column: {error}") from error


def _id(schema: Schema, name: str) -> int:
    return schema.find_field(name).field_id
