"""Writes, durably, how far each kind of file can be trusted after a crash.

Three files, always in this order, each describing only bytes that were synced before it:

``contrail.queues``      where every consume queue and index file ended when they were last synced
``contrail.checkpoint``  the byte up to which the log is durable, and whether the close was clean
``checkpoint``           RocketMQ's own, in store times, so that its broker can take the folder over

``contrail.checkpoint`` keeps a fingerprint of RocketMQ's file. When they differ, another broker has
written to the folder since, and Contrail's byte positions say nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state
from contrail.store.disk.key_index import IndexMark
from contrail.store.disk.marker_files import (
    ApacheCheckpoint,
    fingerprint,
    read_checkpoint,
    write_checkpoint,
)
from contrail.store.disk.queue_table import QueueMark

_VERSION = 1

QueueMarks = dict[tuple[bytes, int], QueueMark]


class LogMark(NamedTuple):
    """The content of ``contrail.checkpoint``."""

    physical_end: int
    last_record_offset: int | None
    clean: bool
    apache_fingerprints: tuple[str, ...]
    record_crc_from: int | None = None
    # Up to it the log of a group's member was committed: a lower bound. None outside of groups.
    commit_hint: int | None = None


class DerivedMark(NamedTuple):
    """The content of ``contrail.queues``."""

    dispatched_end: int
    queues: QueueMarks
    index_files: list[IndexMark]
    tombstones: dict[bytes, int]
    # Queue offsets below these belonged to messages that are lost: they are not used again.
    offset_floors: dict[tuple[bytes, int], int]

    def bounds(self) -> dict[tuple[bytes, int], tuple[int, int]]:
        """The first and the next offset of every noted queue."""
        bounds = {
            key: (mark.queue_offset_min, mark.queue_offset_max) for key, mark in self.queues.items()
        }
        for key, floor in self.offset_floors.items():
            first, end = bounds.get(key, (0, 0))
            bounds[key] = (first, max(floor, end))
        return bounds


class Known(NamedTuple):
    """The checkpoints found at a start; ``log`` is None in a new or another broker's folder."""

    log: LogMark | None
    derived: DerivedMark | None
    apache: ApacheCheckpoint | None
    notes: list[str]

    @property
    def commit_hint(self) -> int:
        """Up to where a member's log was surely committed: nothing above commit is derived."""
        hint = self.log.commit_hint if self.log is not None else None
        return max(hint or 0, self.derived.dispatched_end if self.derived is not None else 0)


class CheckpointFiles:
    """Reads and writes the three files of one folder."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self._files = files
        self._log_path = root / "contrail.checkpoint"
        self._derived_path = root / "contrail.queues"
        self._apache_path = root / "checkpoint"
        self._fingerprint = ""

    def read(self) -> Known:
        """Read all three files; the notes name those that could not be used."""
        notes: list[str] = []
        apache = read_checkpoint(self._files, self._apache_path)
        log = self._read(self._log_path, _parse_log, notes)
        # The backup is one checkpoint older: it has no fingerprint of the checkpoint after it.
        is_backup = bool(notes)
        derived = self._read(self._derived_path, _parse_derived, notes)
        self._fingerprint = fingerprint(apache) if apache else ""
        if log is not None and not is_backup and self._fingerprint not in log.apache_fingerprints:
            notes.append("another broker has written to this folder since Contrail last did")
            return Known(None, None, apache, notes)
        return Known(log, derived, apache, notes)

    def _read(self, path: Path, parse: Any, notes: list[str]) -> Any:
        def checked(data: bytes) -> Any:
            try:
                return parse(data)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path.name} lacks a field or has an odd one: {error}") from error

        found = read_state(self._files, path, sealed=True, parse=checked)
        if found.problem:
            notes.append(found.problem)
        return found.value

    def write_derived(self, mark: DerivedMark) -> None:
        write_state(self._files, self._derived_path, _format_derived(mark), sealed=True)
        crashpoint("checkpoint.derived_written")

    def write_log(
        self,
        physical_end: int,
        last_record_offset: int | None,
        apache: ApacheCheckpoint,
        *,
        clean: bool = False,
        record_crc_from: int | None = None,
        commit_hint: int | None = None,
    ) -> None:
        """Write both log marks. Either fingerprint is valid later: a crash may fall between."""
        upcoming = fingerprint(apache)
        fingerprints = (self._fingerprint, upcoming)
        mark = LogMark(
            physical_end, last_record_offset, clean, fingerprints, record_crc_from, commit_hint
        )
        write_state(self._files, self._log_path, _format_log(mark), sealed=True)
        crashpoint("checkpoint.log_written")
        write_checkpoint(self._files, self._apache_path, apache)
        self._fingerprint = upcoming


def _format_log(mark: LogMark) -> bytes:
    return json.dumps(
        {
            "version": _VERSION,
            "physicalEnd": mark.physical_end,
            "lastRecord": mark.last_record_offset,
            "clean": mark.clean,
            "apacheCheckpoints": list(mark.apache_fingerprints),
            "recordCrcFrom": mark.record_crc_from,
            "commitHint": mark.commit_hint,
        }
    ).encode()


def _parse_log(data: bytes) -> LogMark:
    fields = _parsed(data)
    return LogMark(
        int(fields["physicalEnd"]),
        fields["lastRecord"],
        bool(fields["clean"]),
        tuple(fields["apacheCheckpoints"]),
        fields.get("recordCrcFrom"),
        fields.get("commitHint"),
    )


def _format_derived(mark: DerivedMark) -> bytes:
    topics: dict[str, dict[str, list[int]]] = {}
    for (topic, queue_id), queue_mark in mark.queues.items():
        topics.setdefault(topic.decode(), {})[str(queue_id)] = list(queue_mark)
    return json.dumps(
        {
            "version": _VERSION,
            "dispatchedEnd": mark.dispatched_end,
            "queues": topics,
            "index": [list(index_mark) for index_mark in mark.index_files],
            "tombstones": {topic.decode(): end for topic, end in mark.tombstones.items()},
            "offsetFloors": [
                [topic.decode(), queue_id, floor]
                for (topic, queue_id), floor in mark.offset_floors.items()
            ],
        }
    ).encode()


def _parse_derived(data: bytes) -> DerivedMark:
    fields = _parsed(data)
    queues = {
        (topic.encode(), int(queue_id)): QueueMark(*mark)
        for topic, marks in fields["queues"].items()
        for queue_id, mark in marks.items()
    }
    tombstones = {topic.encode(): end for topic, end in fields["tombstones"].items()}
    index = [IndexMark(*mark) for mark in fields["index"]]
    floors = {
        (topic.encode(), int(queue_id)): int(floor)
        for topic, queue_id, floor in fields.get("offsetFloors", [])
    }
    return DerivedMark(int(fields["dispatchedEnd"]), queues, index, tombstones, floors)


def _parsed(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data)
    if fields["version"] != _VERSION:
        raise ValueError(f"version {fields['version']} is not one this release can read")
    return fields
