"""A member's folder is emptied before its store is opened, however often that is cut short."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from contrail.errors import ConfigError, StoreLocked
from contrail.replication.services.member_folder import prepare_folder
from contrail.replication.services.replica_file import Phase, Replica, ReplicaFile
from contrail.runtime.files import FileSystem
from contrail.store import empty_store
from tests.fakes.recording_files import RecordingFileSystem
from tests.fault.campaigns.crash_states import Disk, materialise, some_survive
from tests.fault.group_log import append_some, begin_epoch, commit_all, open_member

pytestmark = pytest.mark.proves("replication.failover.behind-retention")

BEHIND = Replica("g", "u", "n0", 5, "n1@v", Phase.INSTALLING, must_reach=777, is_emptied=False)
_OWN = {"contrail.replica", "contrail.features", "lock", "config", "commitlog"}


def behind(folder: Path) -> None:
    folder.mkdir()
    with open_member(folder) as member:
        begin_epoch(member, 0)
        append_some(member, 0, 30)
        commit_all(member)
    (folder / "contrail.epochs").write_bytes(b"old")
    config = folder / "config"
    config.mkdir(exist_ok=True)
    for name in ("topics.json", "contrail.state", "broker.properties", "contrailAcl.json"):
        (config / name).write_text(name)
    ReplicaFile(FileSystem(), folder).write(BEHIND)


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_only_what_is_the_brokers_own_stays(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    behind(folder)
    prepare_folder(FileSystem(), folder, [folder / "commitlog"])
    assert names(folder) <= _OWN and not names(folder / "config") - {
        "broker.properties",
        "contrailAcl.json",
    }
    found = ReplicaFile(FileSystem(), folder).read()
    assert found is not None and found.is_emptied and found.must_reach == 777
    assert (found.term, found.voted_for, found.replica_uuid) == (5, "n1@v", "u")
    with open_member(folder) as member:
        assert member.is_empty
        append_raw = member.physical_end
    # Not again: what it copied since stays.
    prepare_folder(FileSystem(), folder, [folder / "commitlog"])
    assert append_raw == 0


def test_a_first_start_that_found_no_peers_is_no_lost_vote(tmp_path: Path) -> None:
    with open_member(tmp_path):
        pass
    # Segments are made ahead of the first record.
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    segment = tmp_path / "commitlog" / f"{0:020}"
    segment.write_bytes(bytes(4096))
    prepare_folder(FileSystem(), tmp_path, [tmp_path / "commitlog"])
    segment.write_bytes(b"\0\0\1\0" + bytes(4092))
    with pytest.raises(ConfigError, match="contrail replication replace"):
        prepare_folder(FileSystem(), tmp_path, [tmp_path / "commitlog"])


def test_a_running_members_folder_is_not_emptied(tmp_path: Path) -> None:
    with open_member(tmp_path), pytest.raises(StoreLocked):
        empty_store(FileSystem(), tmp_path, [tmp_path / "commitlog"])


def test_emptying_that_was_cut_short_is_ended_by_the_next_start(memory_path: Path) -> None:
    folder = memory_path / "store"
    behind(folder)
    files = RecordingFileSystem(folder)
    prepare_folder(files, folder, [folder / "commitlog"])
    rng = random.Random(5)
    disk = Disk(files.baseline)
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
        state = memory_path / f"state{index}"
        materialise(disk.crash(some_survive(rng)), source=folder, target=state)
        prepare_folder(FileSystem(), state, [state / "commitlog"])
        found = ReplicaFile(FileSystem(), state).read()
        assert found is not None and found.is_emptied and found.term == 5
        with open_member(state) as member:
            assert member.is_empty
