"""A stopped broker's folder becomes a group's first member, or another member of its group."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from contrail.errors import ConfigError, StateFileDamaged
from contrail.replication.services.replica_file import FILE_NAME, Phase, Replica, ReplicaFile
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store import (
    GROUP_FEATURE,
    MessageStore,
    StoreConfig,
    empty_store,
    read_features,
    require_stopped,
    write_features,
)


class Founded(NamedTuple):
    """The group of which this folder's broker is the first member."""

    group_id: str
    replica_uuid: str
    physical_end: int


class Replaced(NamedTuple):
    """The identities before and after; empty where none could be read or none is chosen yet."""

    former_uuid: str
    replica_uuid: str


def found_group(
    config: StoreConfig,
    self_id: str,
    *,
    files: FileSystem | None = None,
    batch_topics: frozenset[bytes] = frozenset(),
) -> Founded:
    """Make a single broker's folder that of the one member of a new group, with every message.

    Cut short, the folder is a single broker's or a member's, and whole.

    Raises:
        ConfigError: the folder is a member's already.
        StoreError: the store cannot be opened, or its broker runs.
    """
    files, root = files or FileSystem(), config.root
    if GROUP_FEATURE in read_features(files, root):
        raise ConfigError(
            f"the store in {root} is a failover group member's already: start its broker with "
            f"enableDLegerCommitLog=true, or run `contrail replication replace {root}` to have it "
            "join as another member"
        )
    # A recovery, if the broker was killed: the group takes over what is whole and derived.
    with MessageStore.open(config, files=files, batch_topics=batch_topics) as store:
        physical_end = store.physical_end
    crashpoint("init.closed")
    replica = Replica(
        group_id=uuid.uuid4().hex,
        replica_uuid=uuid.uuid4().hex,
        self_id=self_id,
        term=0,
        voted_for=None,
        phase=Phase.VOTER,
    )
    ReplicaFile(files, root).write(replica)
    crashpoint("init.named")
    write_features(files, root, read_features(files, root) | {GROUP_FEATURE})
    return Founded(replica.group_id, replica.replica_uuid, physical_end)


def replace_member(
    files: FileSystem, root: Path, log_folders: Iterable[Path], *, empties: bool
) -> Replaced:
    """Give a stopped member's folder another identity: it joins its group as a learner.

    The log stays as the part of the group's that it is, unless the folder is to be emptied.

    Raises:
        ConfigError: the folder is no member's, or its group cannot be known.
        StoreLocked: its broker runs.
    """
    if GROUP_FEATURE not in read_features(files, root):
        raise ConfigError(
            f"the store in {root} is no failover group member's: there is nothing to replace"
        )
    file = ReplicaFile(files, root)
    try:
        former = file.read()
    except StateFileDamaged:
        former = None
    if empties:
        # Without its name the folder is refused until it is empty.
        _forget(files, file.path)
        empty_store(files, root, log_folders)
        return Replaced("" if former is None else former.replica_uuid, "")
    if former is None:
        raise ConfigError(
            f"{FILE_NAME} in {root} is missing or damaged, so that the group of this log cannot be "
            "known: add --empty to have the member copy the log anew. If no other member has it, "
            f"`contrail replication detach {root}` makes the folder a single broker's"
        )
    require_stopped(files, root)
    replica = dataclasses.replace(
        former,
        replica_uuid=uuid.uuid4().hex,
        voted_for=None,
        phase=Phase.INSTALLING,
        must_reach=0,
        # A member that was to be emptied is emptied all the same.
        is_emptied=former.is_emptied,
    )
    file.write(replica)
    return Replaced(former.replica_uuid, replica.replica_uuid)


def _forget(files: FileSystem, path: Path) -> None:
    if files.exists(path):
        files.unlink(path)
        files.sync_folder(path.parent)
    crashpoint("replace.forgotten")
