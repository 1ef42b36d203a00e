"""A member's folder before its store is opened: emptied if a leader asked for that, or refused.

A member that is behind its leader's log begins anew. It first notes in ``contrail.replica`` what it
had acknowledged; the next start removes everything else, however often it is cut short, and notes
that the folder is empty. A folder with a group's log and without its ``contrail.replica`` has lost
its term and its vote: nobody may guess them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path

from contrail.errors import ConfigError
from contrail.replication.services.replica_file import FILE_NAME, Phase, ReplicaFile
from contrail.runtime.files import FileSystem, opened
from contrail.store import GROUP_FEATURE, empty_store, read_features

# Size and magic of a record: never all zeros.
_HEAD_BYTES = 8
_log = logging.getLogger(__name__)


def prepare_folder(files: FileSystem, root: Path, log_folders: Iterable[Path]) -> None:
    """Empty the folder of a member that begins anew; call it before the store is opened.

    Raises:
        ConfigError: the folder has a group's log, and its vote is lost.
        StateFileDamaged: term and vote cannot be read.
        StoreLocked: a broker runs on it.
    """
    if not files.exists(root):
        return
    file = ReplicaFile(files, root)
    replica = file.read()
    if replica is None:
        _require_no_group(files, root, log_folders)
    elif replica.phase is Phase.INSTALLING and not replica.is_emptied:
        _log.warning("the store in %s is emptied: its leader's log begins behind it", root)
        empty_store(files, root, log_folders)
        file.write(dataclasses.replace(replica, is_emptied=True))


def _require_no_group(files: FileSystem, root: Path, log_folders: Iterable[Path]) -> None:
    """Raise unless no member's log is here: a first start that waits for peers writes no record."""
    if GROUP_FEATURE not in read_features(files, root):
        return
    if any(_has_records(files, folder) for folder in log_folders):
        raise ConfigError(
            f"the store in {root} is a failover group's, and {FILE_NAME} is missing: without its "
            "term and vote this broker might vote twice. Restore that file from this very disk, or "
            f"run `contrail replication replace {root}` to have it join the group as a new member"
        )


def _has_records(files: FileSystem, folder: Path) -> bool:
    """Whether a segment begins with anything but zeros: the first one is made ahead of records."""
    for entry in files.entries(folder):
        with opened(files, Path(entry.path), writable=False) as fd:
            if any(files.pread(fd, _HEAD_BYTES, 0)):
                return True
    return False
