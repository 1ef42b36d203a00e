"""Makes the folder of a failover group's member a single broker's, which RocketMQ opens as well.

Every record stays, also those above the last commit that this member knew of: its knowledge is a
lower bound, and a cut could lose acknowledged messages. Detach the member with the longest log.
Markers and other records of the group stay in topics of their own, whose names RocketMQ takes for
those of system topics.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from contrail.errors import StoreLayoutError
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.config_files import CONFIG_FOLDER
from contrail.store.features import FEATURES_FILE, GROUP_FEATURE, read_features
from contrail.store.log import MessageStore

_SUFFIXES = ("", ".bak", ".tmp", ".damaged")
# The file of features goes last: as long as it is there, a detachment that was cut short is begun
# again, and no single broker opens the folder.
_GROUP_FILES = (
    "contrail.replica",
    "contrail.epochs",
    "contrail.peers",
    f"{CONFIG_FOLDER}/contrail.state",
    FEATURES_FILE,
)


class Detached(NamedTuple):
    """The log's end, and how many of its last bytes the member did not know to be committed."""

    physical_end: int
    in_doubt_bytes: int


def detach(
    config: StoreConfig,
    *,
    batch_topics: frozenset[bytes] = frozenset(),
    files: FileSystem | None = None,
) -> Detached:
    """Take a folder out of its group, for good. Its broker must not run.

    Raises:
        StoreLayoutError: the folder is no member's.
        StoreLocked: its broker runs.
    """
    files = files or FileSystem()
    root = config.root
    if GROUP_FEATURE not in read_features(files, root):
        raise StoreLayoutError(f"the store in {root} is no failover group's member")
    in_group = replace(config, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with MessageStore.open(
        in_group, files=files, in_group=True, batch_topics=batch_topics
    ) as store:
        committed_end = store.positions.commit_limit
        store.commit_to(store.physical_end)
        store.dispatch()
        found = Detached(store.physical_end, store.physical_end - committed_end)
    crashpoint("detach.closed")
    for name in _GROUP_FILES:
        _remove(files, root, name)
    return found


def _remove(files: FileSystem, root: Path, name: str) -> None:
    for suffix in _SUFFIXES:
        path = root / f"{name}{suffix}"
        if files.exists(path):
            files.unlink(path)
    folder = (root / name).parent
    if files.exists(folder):
        files.sync_folder(folder)
    crashpoint("detach.file_removed")
