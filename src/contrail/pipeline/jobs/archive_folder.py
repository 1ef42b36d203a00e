"""An archive on disk: its rounds, its staged files and its locks.

A round counts from the moment its file is in ``rounds``. Its Parquet files are then moved from
``staging`` to their folders, one rename each, and a ``.placed`` mark says that all were moved. The
next run after a crash first finishes the last round. A reader of the Parquet files therefore sees a
message at most once at any moment, and exactly once after the next run.

    =============  =========================================================================
    lock           held by
    =============  =========================================================================
    ``archive``    a run of the archive job, from beginning to end: there is one at a time
    ``places``     a job while it moves files into or out of the hours' folders
    ``layout``     a compaction, alone; readers that need the listed files to stay, shared
    =============  =========================================================================
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs.archive_layout import (
    CONTROL,
    Hour,
    Round,
    Sized,
    parse_hour,
)
from contrail.pipeline.offsets import QueueKey
from contrail.runtime.crashpoints import crashpoint


class ArchiveFolder:
    """The files of one archive; uses no Spark."""

    def __init__(self, folder: Path | str) -> None:
        self.path = _local(folder)
        self.control = self.path / CONTROL
        self.staging = self.control / "staging"
        self.merging = self.control / "merging"
        self._rounds = self.control / "rounds"

    @property
    def exists(self) -> bool:
        return self._rounds.is_dir()

    def create(self) -> None:
        """Make the folders of an archive, unless they exist.

        Raises:
            OptionInvalid: the folder holds other files, or cannot be made.
        """
        try:
            self.require_free()
            self._rounds.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionInvalid(
                f"archive {str(self.path)!r} cannot be made ({error.strerror}): name a folder that "
                "can be written, or one that is new"
            ) from error

    def require_free(self) -> None:
        """Refuse a path that neither is an archive nor can become one.

        Raises:
            OptionInvalid: the path is a file, or a folder that holds other files.
        """
        if self.path.exists() and not self.path.is_dir():
            raise OptionInvalid(f"archive {str(self.path)!r} is a file: name a folder")
        if not self.exists and self.path.is_dir() and any(self.path.iterdir()):
            raise OptionInvalid(
                f"{str(self.path)!r} is a folder with something else in it: name an archive, or a "
                "folder that is new or empty"
            )

    def require(self) -> None:
        """Refuse a folder that is no archive."""
        if not self.exists:
            raise OptionInvalid(
                f"{str(self.path)!r} is not an archive of contrail pipeline archive"
            )

    # Rounds.

    def last_round(self) -> Round | None:
        """The last committed round."""
        if not self.exists:
            return None
        names = sorted(name for name in os.listdir(self._rounds) if name.endswith(".json"))
        if not names:
            return None
        return Round.of_json(json.loads((self._rounds / names[-1]).read_bytes()))

    def next_offsets(self) -> dict[QueueKey, int]:
        """The next queue offset to archive, by queue."""
        last = self.last_round()
        return {} if last is None else dict(last.next_offsets)

    def commit(self, done: Round) -> None:
        """Commit the round ``done``; its files must be whole and staged.

        Raises:
            JobFailed: another run has committed a round of this number.
        """
        for file in done.files:
            sync_path(self.staging / file.staged)
        written = self._rounds / f"{done.number:08d}.tmp"
        written.write_text(json.dumps(done.as_json(), indent=1), encoding="utf-8")
        sync_path(written)
        try:
            # A link, because a rename would replace the round of another run.
            os.link(written, self._round_path(done.number))
        except FileExistsError:
            raise JobFailed(
                f"round {done.number} of archive {str(self.path)!r} was made by another run "
                "meanwhile: let one run at a time"
            ) from None
        written.unlink()
        sync_path(self._rounds)
        crashpoint("archive.round_committed")

    def finish(self) -> None:
        """Move the files of the last round that are still staged."""
        last = self.last_round()
        if last is None:
            return
        with self.lock("places"):
            if self._mark_path(last.number).exists():
                return
            for file in last.files:
                self._place(file.staged, file.place)
            crashpoint("archive.all_placed")
            self._mark_path(last.number).touch()
            sync_path(self._rounds)
        if last.number > 0:
            self._mark_path(last.number - 1).unlink(missing_ok=True)

    def clear_staging(self) -> None:
        """Delete staged files of rounds that were not committed."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def _place(self, staged: str, place: str) -> None:
        source, target = self.staging / staged, self.path / place
        if target.exists():
            return
        if not source.exists():
            raise JobFailed(f"archive {str(self.path)!r} has lost {str(source)!r}: restore it")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)
        sync_path(target.parent)
        crashpoint("archive.file_placed")

    def _round_path(self, number: int) -> Path:
        return self._rounds / f"{number:08d}.json"

    def _mark_path(self, number: int) -> Path:
        return self._rounds / f"{number:08d}.placed"

    # Hours.

    def hours(self) -> dict[Hour, Path]:
        """Every hour of the archive, and its folder."""
        found = {}
        for folder in sorted(self.path.glob("topic=*/date=*/hour=*")):
            hour = parse_hour(folder.relative_to(self.path).as_posix())
            if hour is not None:
                found[hour] = folder
        return found

    # Locks.

    @contextmanager
    def lock(self, name: str, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Hold a lock of the archive; it ends with the process that holds it.

        Raises:
            JobFailed: another process has it, and ``wait`` is false.
        """
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        with (self.control / f"{name}.lock").open("ab") as file:
            try:
                fcntl.flock(file, how)
            except BlockingIOError:
                raise JobFailed(
                    f"another job works on archive {str(self.path)!r}: wait until it has ended"
                ) from None
            yield


def files_of(folder: Path) -> list[Sized]:
    """The Parquet files of one hour."""
    return sorted(
        Sized(entry.name, entry.stat().st_size)
        for entry in os.scandir(folder)
        if entry.name.endswith(".parquet") and not entry.name.startswith(("_", "."))
    )


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _local(folder: Path | str) -> Path:
    text = str(folder).removeprefix("file://")
    if "://" in text:
        raise OptionInvalid(
            f"archive {text!r} is not a folder: name one that this machine and the executors "
            "reach, such as a shared mount; object stores have no rename to make a round whole"
        )
    return Path(text).expanduser().absolute()
