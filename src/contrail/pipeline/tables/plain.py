"""Parquet files of an object store, by topic and day, for readers that only list files.

A commit is one file that only one process can make. The files of a commit are then copied to the
names by which readers find them; each copy appears as a whole, and copying again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote, unquote

import pyarrow as pa

from contrail.errors import OptionInvalid
from contrail.pipeline.arrow_fitting import united
from contrail.pipeline.tables.contract import CommitRaced
from contrail.pipeline.tables.evolution import require_evolvable
from contrail.pipeline.tables.layout import CONTROL, DataFile, Partition
from contrail.pipeline.tables.places import AlreadyThere, Place
from contrail.runtime.crashpoints import crashpoint

_SCHEMA = f"{CONTROL}/schema.arrow"
_COMMITS = f"{CONTROL}/commits"


class PlainFiles:
    """The archive's side of the files."""

    partition_columns: Sequence[str] = ("topic", "date")

    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = -1
        self._serials: dict[str, int] = {}
        self._is_seen = False

    @property
    def exists(self) -> bool:
        return self._place.exists(_SCHEMA)

    def create(self, schema: pa.Schema) -> None:
        try:
            self._place.create(_SCHEMA, schema.serialize().to_pybytes())
        except AlreadyThere:
            return

    def refresh(self) -> None:
        """Also finishes the copies of the last commit: its process may have been killed."""
        names = self._place.names(_COMMITS)
        commits = [name for name in names if name.endswith(".json")]
        self._is_seen = True
        if not commits:
            return
        self._number = int(commits[-1].partition(".")[0])
        content = self._place.read(f"{_COMMITS}/{commits[-1]}")
        assert content is not None
        said = json.loads(content)
        self._serials = {name: int(serial) for name, serial in said["serials"].items()}
        if _mark(self._number) not in names:
            self._place_files([DataFile.of_json(one) for one in said["files"]])

    def schema(self) -> pa.Schema:
        content = self._place.read(_SCHEMA)
        if content is None:
            raise OptionInvalid(f"{self._place.address!r} holds no archive of Parquet files")
        return pa.ipc.read_schema(pa.BufferReader(content))

    def file_schema(self) -> pa.Schema:
        return pa.schema([field for field in self.schema() if field.name != "topic"])

    def evolve(self, schema: pa.Schema) -> None:
        known = self.schema()
        if require_evolvable(known, schema, widens=False):
            self._place.put(_SCHEMA, united(known, schema).serialize().to_pybytes())

    def serial(self, writer: str) -> int | None:
        if not self._is_seen:
            self.refresh()
        return self._serials.get(writer)

    def append(self, files: Sequence[DataFile], writer: str, serial: int) -> None:
        self.serial(writer)
        serials = {**self._serials, writer: serial}
        note = {"serials": serials, "files": [file.as_json() for file in files]}
        try:
            self._place.create(
                f"{_COMMITS}/{self._number + 1:08d}.json", json.dumps(note, indent=1).encode()
            )
        except AlreadyThere as error:
            raise CommitRaced from error
        self._number, self._serials = self._number + 1, serials
        crashpoint("tables.committed")
        self._place_files(files)

    def _place_files(self, files: Sequence[DataFile]) -> None:
        for file in files:
            target = place_of(file)
            if not self._place.exists(target):
                self._place.copy(file.path, target)
                crashpoint("tables.file_copied")
        self._place.put(f"{_COMMITS}/{_mark(self._number)}", b"")
        crashpoint("tables.copies_marked")
        self._place.remove(file.path for file in files)

    def files(self) -> list[DataFile]:
        found = []
        for path in self._place.below(""):
            partition = partition_of(path)
            if partition is not None:
                found.append(DataFile(path, partition, 0, self._place.size(path)))
        return found

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        raise OptionInvalid(
            f"{self._place.address!r}: an object store cannot exchange Parquet files in one step, "
            "and a reader would see messages twice or not at all: archive to Iceberg or Delta"
        )

    def forget_before(self, before_ms: int) -> None:
        """There are no versions."""


def _mark(number: int) -> str:
    """The name of the file that says that a commit's copies are all made."""
    return f"{number:08d}.placed"


def place_of(file: DataFile) -> str:
    """The name by which readers find a file."""
    topic, date = file.partition
    attempt, name = file.path.split("/")[-2:]
    return f"topic={quote(topic, safe='')}/date={date}/{attempt}-{name}"


def partition_of(path: str) -> Partition | None:
    """The partition that a path names; None if it is no file of readers."""
    parts = path.split("/")
    if len(parts) != 3 or not path.endswith(".parquet"):
        return None
    topic, date = (part.partition("=") for part in parts[:2])
    if (topic[0], date[0]) != ("topic", "date"):
        return None
    return Partition(unquote(topic[2]), date[2])
