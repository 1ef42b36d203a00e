"""Empties a store folder whose log is to begin anew, and keeps what is the broker's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.disk.marker_files import StoreLock

# A member's identity and its promise to releases, its lock, and folders that operators look at.
_KEPT = frozenset(
    {"contrail.replica", "contrail.features", "lock", "contrail.lost", "contrail.replaced"}
)
# Of the folder of tables, what is this broker's own: all others come with the log.
_CONFIG = "config"
_OWN_FILES = ("broker.properties", "contrailRecallKey", "contrailAcl.json")


def empty_store(files: FileSystem, root: Path, log_folders: Iterable[Path]) -> None:
    """Remove the log and everything that is derived from it or was written along with it.

    Cut short, it is to be called again before the store is opened.

    Raises:
        StoreLocked: a broker runs on the folder.
    """
    lock = StoreLock(files, root / "lock")
    lock.take()
    try:
        for folder in log_folders:
            _remove_content(files, folder)
        for name in _names(files, root):
            if name not in (*_KEPT, _CONFIG):
                _remove(files, root / name)
                crashpoint("emptying.removed")
        for name in _names(files, root / _CONFIG):
            if not name.startswith(_OWN_FILES):
                _remove(files, root / _CONFIG / name)
        for folder in (root / _CONFIG, root):
            if files.exists(folder):
                files.sync_folder(folder)
        crashpoint("emptying.done")
    finally:
        lock.release()


def require_stopped(files: FileSystem, root: Path) -> None:
    """Raises ``StoreLocked`` if a broker runs on the folder."""
    lock = StoreLock(files, root / "lock")
    lock.take()
    lock.release()


def _names(files: FileSystem, folder: Path) -> list[str]:
    return [entry.name for entry in files.entries(folder)]


def _remove(files: FileSystem, path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _remove_content(files, path)
        files.remove_folder(path)
    else:
        files.unlink(path)


def _remove_content(files: FileSystem, folder: Path) -> None:
    for name in _names(files, folder):
        _remove(files, folder / name)
    if files.exists(folder):
        files.sync_folder(folder)
