"""A Delta table in a folder or an object store, by deltalake.

Delta's log has a place for the serials of writers: a ``txn`` action in the commit that adds the
files. A commit is made on the version last seen or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from contrail.clock import SystemClock
from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.tables.contract import CommitRaced
from contrail.pipeline.tables.evolution import require_evolvable
from contrail.pipeline.tables.layout import DataFile, Partition
from contrail.pipeline.tables.places import Place, sync
from contrail.runtime.crashpoints import crashpoint

_PARTITIONS = ("topic", "date")
_MICROS = ("bornTimestamp", "storeTimestamp")
_APP = "contrail."


class DeltaFiles:
    """The archive's side of the table."""

    partition_columns: Sequence[str] = _PARTITIONS

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open: DeltaTable | None = None

    @property
    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self._place.address, _options(self._place)))

    def create(self, schema: pa.Schema) -> None:
        if self._place.is_local:
            os.makedirs(self._place.root, exist_ok=True)
        DeltaTable.create(
            self._place.address,
            _with_date(schema),
            mode="ignore",
            partition_by=list(_PARTITIONS),
            storage_options=_options(self._place),
        )
        self._sync()

    def refresh(self) -> None:
        try:
            self._open = DeltaTable(self._place.address, storage_options=_options(self._place))
        except TableNotFoundError as error:
            raise OptionInvalid(f"{self._place.address!r} holds no Delta table") from error

    @property
    def table(self) -> DeltaTable:
        """The table as deltalake knows it."""
        if self._open is None:
            self.refresh()
        assert self._open is not None
        return self._open

    def schema(self) -> pa.Schema:
        found = _arrow(self.table.schema())
        return pa.schema([field for field in found if field.name != "date"])

    def file_schema(self) -> pa.Schema:
        found = _arrow(self.table.schema())
        return pa.schema([field for field in found if field.name not in _PARTITIONS])

    def evolve(self, schema: pa.Schema) -> None:
        if not require_evolvable(self.schema(), schema, widens=False):
            return
        try:
            write_deltalake(
                self.table,
                _with_date(schema).empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise CommitRaced from error
        self._sync()
        self.refresh()

    def serial(self, writer: str) -> int | None:
        return self.table.transaction_version(_APP + writer)

    def append(self, files: Sequence[DataFile], writer: str, serial: int) -> None:
        now_ms = SystemClock().now_ms()
        self._commit(
            [_added(file, now_ms, data_change=True) for file in files],
            CommitProperties(
                app_transactions=[Transaction(_APP + writer, serial, now_ms)],
                max_commit_retries=0,
            ),
        )
        crashpoint("tables.committed")

    def files(self) -> list[DataFile]:
        if next(iter(self.table.deletion_vectors()), None) is not None:
            raise JobFailed(
                f"table {self._place.address!r} has rows that another program marked as deleted "
                "beside their files: rewrite its data files with that program first"
            )
        actions = pa.table(self.table.get_add_actions(flatten=True))
        rows = actions.select(
            ["path", "size_bytes", "num_records", "partition.topic", "partition.date"]
        ).to_pylist()
        return [
            DataFile(
                unquote(row["path"]),
                Partition(row["partition.topic"], str(row["partition.date"])),
                int(row["num_records"]),
                int(row["size_bytes"]),
            )
            for row in rows
        ]

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        now_ms = SystemClock().now_ms()
        there = {file.path for file in self.files()}
        if not there.issuperset(file.path for file in old):
            raise CommitRaced
        removed = [
            RemoveAction(
                quote(file.path),
                data_change=False,
                deletion_timestamp=now_ms,
                partition_values=dict(zip(_PARTITIONS, file.partition, strict=True)),
                size=file.size_bytes,
            )
            for file in old
        ]
        added = [_added(file, now_ms, data_change=False) for file in new]
        self._commit([*added, *removed], CommitProperties(max_commit_retries=0))
        crashpoint("tables.merge_committed")

    def forget_before(self, before_ms: int) -> None:
        """Versions are told by their logs, which Delta's own retention deletes."""

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
    ) -> None:
        table = self.table
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                list(_PARTITIONS),
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=True, cleanup_expired_logs=True
                ),
            )
        except CommitFailedError as error:
            raise CommitRaced from error
        self._sync()
        self.refresh()

    def _sync(self) -> None:
        """Make the newest log file durable: deltalake leaves that to the system."""
        if self._place.is_local:
            log = self._place.at("_delta_log")
            newest = max(name for name in os.listdir(log) if name.endswith(".json"))
            sync(f"{log}/{newest}")
            sync(log)


def _options(place: Place) -> dict[str, str]:
    """The options that deltalake does not read from the environment: a store without TLS."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if place.is_local or not endpoint.startswith("http://"):
        return {}
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}


def _with_date(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field("date", pa.date32()))


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def _added(file: DataFile, now_ms: int, *, data_change: bool) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": {name: _stat(name, low) for name, (low, _) in file.bounds.items()},
        "maxValues": {name: _stat(name, high) for name, (_, high) in file.bounds.items()},
    }
    return AddAction(
        quote(file.path),
        file.size_bytes,
        {"topic": file.partition.topic, "date": file.partition.date},
        now_ms,
        data_change,
        json.dumps(stats),
    )


def _stat(name: str, value: int) -> int | str:
    if name not in _MICROS:
        return value
    moment = datetime.fromtimestamp(value // 1_000_000, UTC).replace(microsecond=value % 1_000_000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
