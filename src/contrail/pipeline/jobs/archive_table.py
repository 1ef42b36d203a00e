"""The rounds of an archive that is a table: each counts as a whole, in the table's own commit.

    begin      names an attempt; tasks write its data files, which no version of the table has
    commit     writes the note of the round, then adds the files and the attempt's serial in one
               commit: from then on the round counts
    sweep      deletes what attempts that never counted have left

The next queue offsets are in the note that the table's serial names. A run that dies before the
commit has added nothing; one that dies behind it has nothing left to do.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs.archive_layout import Range, Round
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.tables.contract import WRITER, CommitRaced, Format, Table
from contrail.pipeline.tables.layout import (
    CONTROL,
    DATA,
    FORMAT_NOTE,
    ROUNDS,
    Attempt,
    DataFile,
)
from contrail.pipeline.tables.places import AlreadyThere, Place
from contrail.pipeline.tables.table import table_at
from contrail.runtime.crashpoints import crashpoint

_COMMITS_MAX = 5
_SUPERSEDED = f"{CONTROL}/superseded"
# A version of the table stays readable this long after a merge put other files in its place.
KEPT_MS = 7 * 86_400_000


class TableArchive:
    """One archive in a table's format; uses no Spark."""

    def __init__(self, place: Place, format: Format) -> None:
        self.place = place
        self.format = format
        self.table: Table = table_at(place, format)
        # Readers of plain files pass over names that begin with an underscore.
        self._data = f"{CONTROL}/{DATA}" if format is Format.PARQUET else DATA

    @classmethod
    def found(cls, address: str) -> TableArchive | None:
        """The archive at an address; None if what is there is none in a table's format."""
        place = Place(address)
        note = Path(place.at(FORMAT_NOTE)).is_file() if place.is_local else True
        content = place.read(FORMAT_NOTE) if note else None
        return None if content is None else cls(place, Format(json.loads(content)["format"]))

    def require_free(self) -> None:
        """Refuse a place that holds something else.

        Raises:
            OptionInvalid: it has other files, or an archive of another format.
        """
        content = self.place.read(FORMAT_NOTE)
        if content is not None:
            held = json.loads(content)["format"]
            if held != self.format:
                raise OptionInvalid(
                    f"archive {self.place.address!r} is {held}, not {self.format}: leave out "
                    "--format, or name another place"
                )
        elif set(self.place.names("")) - {CONTROL}:
            raise OptionInvalid(
                f"{self.place.address!r} holds something else: name an archive of this format, or "
                "a place that is new or empty"
            )

    def create(self, schema: pa.Schema) -> None:
        """Make the archive unless it exists, and its columns as the messages need them."""
        self.require_free()
        try:
            self.place.create(FORMAT_NOTE, json.dumps({"format": self.format}).encode())
        except AlreadyThere:
            self.require_free()
        except OSError as error:
            raise OptionInvalid(
                f"archive {self.place.address!r} cannot be made ({error.strerror or error}): name "
                "a place that can be written, in a bucket that exists"
            ) from error
        crashpoint("tables.noted")
        if not self.table.exists:
            self.table.create(schema)
            crashpoint("tables.made")
        for _ in range(_COMMITS_MAX):
            self.table.refresh()
            try:
                self.table.evolve(schema)
            except CommitRaced:
                continue
            self.table.refresh()
            return
        raise self._busy()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let one run at a time work here. In an object store the commits alone see to that.

        Raises:
            JobFailed: another run works on the archive.
        """
        if not self.place.is_local:
            yield
            return
        path = Path(self.place.at(f"{CONTROL}/archive.lock"))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobFailed(
                    f"another job works on archive {self.place.address!r}: wait until it has ended"
                ) from None
            yield

    # Rounds.

    def last_attempt(self) -> Attempt | None:
        """The attempt whose round counted last."""
        if not self.table.exists:
            return None
        serial = self.table.serial(WRITER)
        return None if serial is None else Attempt.of_serial(serial)

    def next_offsets(self) -> dict[QueueKey, int]:
        """The next queue offset to archive, by queue.

        Raises:
            JobFailed: the note of the last round is gone.
        """
        last = self.last_attempt()
        if last is None:
            return {}
        content = self.place.read(last.note)
        if content is None:
            raise JobFailed(
                f"archive {self.place.address!r} has lost {last.note!r}, which says how far it is: "
                "restore that file"
            )
        return dict(Round.of_json(json.loads(content)).next_offsets)

    def begin(self, token: int) -> Attempt:
        """The attempt at the next round."""
        last = self.last_attempt()
        return Attempt(0 if last is None else last.number + 1, token)

    def folder_of(self, attempt: Attempt) -> str:
        """Where the tasks of an attempt write."""
        return f"{self._data}/{attempt.name}"

    def commit(
        self,
        attempt: Attempt,
        read: dict[QueueKey, Range],
        known: dict[QueueKey, int],
        files: Sequence[DataFile],
    ) -> None:
        """Make the round count.

        Raises:
            JobFailed: another run has made a round of this number.
        """
        ends = {queue: span.queue_offset_end for queue, span in read.items()}
        note = {
            **Round(attempt.number, {**known, **ends}, read, ()).as_json(),
            "added": [file.as_json() for file in files],
        }
        self.place.put(attempt.note, json.dumps(note, indent=1).encode())
        crashpoint("tables.round_noted")
        for _ in range(_COMMITS_MAX):
            self._require_next(attempt)
            try:
                self.table.append(files, WRITER, attempt.serial)
                return
            except CommitRaced:
                self.table.refresh()
        raise self._busy()

    def _require_next(self, attempt: Attempt) -> None:
        last = self.last_attempt()
        if (-1 if last is None else last.number) != attempt.number - 1:
            raise JobFailed(
                f"round {attempt.number} of archive {self.place.address!r} was made by another run "
                "meanwhile: let one run at a time"
            )

    def sweep(self, now_ms: int) -> None:
        """Delete the files of attempts that never counted, and notes that no round needs.

        In an object store, whose runs do not see each other, an attempt is left for a day.
        """
        last = self.last_attempt()
        for name in self.place.names(self._data):
            attempt = Attempt.of_name(name)
            if attempt is None or not self._is_dead(attempt, last):
                continue
            folder = self.folder_of(attempt)
            if self.place.is_local or self._is_old(folder, now_ms):
                self.place.remove_folder(folder)
                crashpoint("tables.swept")
        for name in self.place.names(ROUNDS):
            attempt = Attempt.of_name(name)
            if attempt is not None and last is not None and attempt.number < last.number:
                self.place.remove([attempt.note])

    def _is_dead(self, attempt: Attempt, last: Attempt | None) -> bool:
        """Attempts that lost to the last round, and those at later rounds, never counted.

        Of earlier rounds only those that counted are left: the run behind each swept the others.
        Plain files were all copied before the last round was asked for.
        """
        if self.format is Format.PARQUET or last is None or attempt.number > last.number:
            return True
        return attempt.number == last.number and attempt != last

    def _is_old(self, folder: str, now_ms: int) -> bool:
        details = self.place.files.find(self.place.at(folder), detail=True)
        times = [one.get("LastModified") for one in details.values()]
        newest = max((time.timestamp() for time in times if time is not None), default=0.0)
        return now_ms - newest * 1000 > 86_400_000

    def _busy(self) -> JobFailed:
        return JobFailed(
            f"archive {self.place.address!r}: other programs commit to the table all the time: "
            "try again"
        )

    # Merges.

    def put_merged(self, old: Sequence[DataFile], new: Sequence[DataFile], now_ms: int) -> bool:
        """Put merged files in the place of their parts, unless another program moved those.

        The parts stay for readers of older versions; a later sweep deletes them.
        """
        note = {"since": now_ms, "paths": [file.path for file in old]}
        name = f"{now_ms:015d}-{uuid.uuid4().hex[:8]}.json"
        self.place.put(f"{_SUPERSEDED}/{name}", json.dumps(note).encode())
        crashpoint("tables.superseded_noted")
        try:
            self.table.replace(old, new)
        except CommitRaced:
            self.table.refresh()
            return False
        return True

    def drop_superseded(self, now_ms: int, kept_ms: int = KEPT_MS) -> int:
        """Delete parts of merges that are older than ``kept_ms``; returns how many."""
        due = [
            name
            for name in self.place.names(_SUPERSEDED)
            if int(name.partition("-")[0]) + kept_ms <= now_ms
        ]
        if not due:
            return 0
        self.table.forget_before(now_ms - kept_ms)
        crashpoint("tables.versions_forgotten")
        # A merge that was killed before its commit left a note of files that still count.
        living = {file.path for file in self.table.files()}
        gone = 0
        for name in due:
            content = self.place.read(f"{_SUPERSEDED}/{name}")
            paths = [] if content is None else json.loads(content)["paths"]
            dead = [path for path in paths if path not in living]
            self.place.remove(dead)
            crashpoint("tables.superseded_dropped")
            self.place.remove([f"{_SUPERSEDED}/{name}"])
            gone += len(dead)
        return gone
