"""The possible states of a disk after a power cut, built from a recorded trace of file operations.

Synced bytes are there. Of the others, each 4 KiB page holds some version it had in memory since
the last sync, a file has some length it had since then, and a name made, moved or removed in a
folder not synced since may or may not be there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.recording_files import (
    Baseline,
    Created,
    EverythingSynced,
    FolderMade,
    FolderRemoved,
    FolderSynced,
    Operation,
    Removed,
    Renamed,
    Resized,
    Synced,
    Wrote,
)

PAGE_BYTES = 4096

NameChange = Created | Renamed | Removed | FolderMade | FolderRemoved


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Wrote | Resized]] = field(default_factory=list)


@dataclass(slots=True)
class _Names:
    """The paths that exist. Changes whose cause is lost do nothing."""

    files: dict[Path, int]
    folders: set[Path]

    def change(self, change: NameChange) -> None:
        if isinstance(change, Created):
            self.files[change.path] = change.inode
        elif isinstance(change, Renamed):
            if change.source in self.files:
                self.files[change.target] = self.files.pop(change.source)
        elif isinstance(change, Removed):
            self.files.pop(change.path, None)
        elif isinstance(change, FolderMade):
            self.folders.add(change.folder)
        else:
            self.folders.discard(change.folder)
            for path in [path for path in self.files if change.folder in path.parents]:
                del self.files[path]

    def copy(self) -> _Names:
        return _Names(dict(self.files), set(self.folders))


# From the number of unsynced steps: how many of them survive (0 to that number).
Survival = Callable[[int], int]


def nothing_survives(count: int) -> int:
    return 0


def everything_survives(count: int) -> int:
    return count


def some_survive(rng: random.Random) -> Survival:
    """Each page, length and name decided on its own, with a bias drawn once per state."""
    bias = rng.choice((0.1, 0.5, 0.9))

    def survival(count: int) -> int:
        if rng.random() > bias:
            return 0
        return count if rng.random() < 0.7 else rng.randint(0, count)

    return survival


class Disk:
    """A disk that follows a trace and can lose power at any operation of it."""

    def __init__(self, baseline: Baseline) -> None:
        self._inodes = {
            inode: _File(bytearray(content)) for inode, content in baseline.contents.items()
        }
        self._names = _Names(dict(baseline.names), set(baseline.folders))
        self._pending_names: list[tuple[int, NameChange]] = []

    def follow(self, index: int, operation: Operation) -> None:
        """Apply operation number ``index`` of the trace."""
        if isinstance(operation, Wrote | Resized):
            self._inodes[operation.inode].pending.append((index, operation))
        elif isinstance(operation, Synced):
            self._settle(self._inodes[operation.inode], operation.covers)
        elif isinstance(operation, FolderSynced):
            self._settle_names(operation.covers, operation.folder)
        elif isinstance(operation, EverythingSynced):
            for file in self._inodes.values():
                self._settle(file, operation.covers)
            self._settle_names(operation.covers, None)
        elif isinstance(operation, Created):
            self._inodes[operation.inode] = _File()
            self._pending_names.append((index, operation))
        elif isinstance(operation, Renamed | Removed | FolderMade | FolderRemoved):
            self._pending_names.append((index, operation))

    @property
    def unsynced_count(self) -> int:
        """How many operations are not synced yet."""
        return len(self._pending_names) + sum(len(file.pending) for file in self._inodes.values())

    def crash(self, survival: Survival) -> dict[Path, bytes | None]:
        """The files after the power cut: contents by path, None for a folder."""
        names = self._names.copy()
        for _, change in self._pending_names:
            if survival(1):
                names.change(change)
        found: dict[Path, bytes | None] = dict.fromkeys(sorted(names.folders))
        for path, inode in sorted(names.files.items()):
            if path.parent in names.folders:
                found[path] = _surviving(self._inodes[inode], survival)
        return {path: held for path, held in found.items() if _reachable(path, names.folders)}

    def _settle(self, file: _File, covers: int) -> None:
        settled = [step for index, step in file.pending if index < covers]
        file.pending = [entry for entry in file.pending if entry[0] >= covers]
        for step in settled:
            _apply(file.durable, step)

    def _settle_names(self, covers: int, folder: Path | None) -> None:
        kept = []
        for index, change in self._pending_names:
            if index < covers and folder in (None, _folder_of(change)):
                self._names.change(change)
            else:
                kept.append((index, change))
        self._pending_names = kept


def materialise(found: dict[Path, bytes | None], *, source: Path, target: Path) -> None:
    """Lay a crash state of ``source`` out under ``target``."""
    for path, content in found.items():
        place = target / path.relative_to(source)
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.write_bytes(content)


def _folder_of(change: NameChange) -> Path:
    if isinstance(change, Renamed):
        return change.target.parent
    if isinstance(change, Created | Removed):
        return change.path.parent
    return change.folder.parent


def _reachable(path: Path, folders: set[Path]) -> bool:
    root = min(folders, key=lambda folder: len(folder.parts))
    return all(parent in folders for parent in path.parents if len(parent.parts) >= len(root.parts))


def _apply(content: bytearray, step: Wrote | Resized) -> None:
    if isinstance(step, Wrote):
        end = step.position + len(step.data)
        content.extend(bytes(max(0, end - len(content))))
        content[step.position : end] = step.data
    elif step.byte_count > len(content):
        content.extend(bytes(step.byte_count - len(content)))
    elif not step.grows:
        del content[step.byte_count :]


def _surviving(file: _File, survival: Survival) -> bytes:
    """One file: a length it had, and in each page a version it had."""
    if not file.pending:
        return bytes(file.durable)
    steps = [step for _, step in file.pending]
    length = _length_after(len(file.durable), steps[: survival(len(steps))])
    content = bytearray(file.durable)
    kept: dict[int, int] = {}
    for number, step in enumerate(steps):
        _apply_pages(content, step, number, len(steps), kept, survival)
    content.extend(bytes(max(0, length - len(content))))
    return bytes(content[:length])


def _apply_pages(
    content: bytearray,
    step: Wrote | Resized,
    number: int,
    count: int,
    kept: dict[int, int],
    survival: Survival,
) -> None:
    """Apply a step to those pages whose surviving version includes it."""
    if isinstance(step, Resized):
        start, data = step.byte_count, bytes(max(0, len(content) - step.byte_count))
        if step.grows:
            return
    else:
        start, data = step.position, step.data
    end = start + len(data)
    content.extend(bytes(max(0, end - len(content))))
    for page in range(start // PAGE_BYTES, -(-end // PAGE_BYTES)):
        if page not in kept:
            kept[page] = survival(count)
        if number < kept[page]:
            low, high = max(start, page * PAGE_BYTES), min(end, (page + 1) * PAGE_BYTES)
            content[low:high] = data[low - start : high - start]


def _length_after(length: int, steps: list[Wrote | Resized]) -> int:
    for step in steps:
        if isinstance(step, Wrote):
            length = max(length, step.position + len(step.data))
        else:
            length = max(length, step.byte_count) if step.grows else step.byte_count
    return length
