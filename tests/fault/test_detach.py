"""A member's folder becomes a single broker's."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from contrail.errors import StoreLayoutError, StoreLocked
from contrail.replication.services.replica_file import Phase, Replica, ReplicaFile
from contrail.runtime.files import FileSystem
from contrail.store.detach import Detached, detach
from contrail.store.log import MessageStore
from tests.fakes.recording_files import RecordingFileSystem
from tests.fault.campaigns.crash_states import Disk, materialise, some_survive
from tests.fault.group_log import append_some, begin_epoch, commit_all, open_member
from tests.fault.store_setup import append_numbers, numbers_of, small_config

pytestmark = pytest.mark.proves("replication.failover.detach")


def member_folder(folder: Path) -> int:
    """A closed member with records above its last commit; returns how many bytes they have."""
    folder.mkdir()
    ReplicaFile(FileSystem(), folder).write(Replica("g", "u", "n0", 0, None, Phase.VOTER))
    with open_member(folder) as member:
        begin_epoch(member, 0)
        append_some(member, 0, 30)
        commit_all(member)
        committed_end = member.physical_end
        append_some(member, 30, 42)
        return member.physical_end - committed_end


def test_a_detached_folder_is_a_single_brokers_with_every_record(tmp_path: Path) -> None:
    in_doubt_bytes = member_folder(tmp_path / "store")
    config = small_config(tmp_path / "store")
    found = detach(config)
    assert found.in_doubt_bytes == in_doubt_bytes > 0
    names = {path.name for path in config.root.iterdir()}
    assert not names & {"contrail.replica", "contrail.features", "contrail.epochs"}
    with MessageStore.open(config) as store:
        assert store.recovery.was_clean and store.recovery.problems == []
        assert store.physical_end == store.dispatched_end == found.physical_end
        assert numbers_of(store) == [*range(0, 42, 3)]
        append_numbers(store, 100, 103)
        assert numbers_of(store) == [*range(0, 42, 3), 100, 101, 102]
    with pytest.raises(StoreLayoutError, match="no failover group's member"):
        detach(config)


def test_a_running_members_folder_is_not_detached(tmp_path: Path) -> None:
    with open_member(tmp_path), pytest.raises(StoreLocked):
        detach(small_config(tmp_path))


def test_a_detachment_that_was_cut_short_is_begun_again(memory_path: Path) -> None:
    folder = memory_path / "store"
    member_folder(folder)
    files = RecordingFileSystem(folder)
    whole = detach(small_config(folder), files=files)
    rng = random.Random(3)
    disk = Disk(files.baseline)
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
        if index % 5 and index < len(files.operations) - 20:
            continue
        state = memory_path / f"state{index}"
        materialise(disk.crash(some_survive(rng)), source=folder, target=state)
        config = replace(small_config(folder), root=state)
        try:
            found = detach(config)
        except StoreLayoutError:
            found = Detached(whole.physical_end, 0)
        assert found.physical_end == whole.physical_end
        with MessageStore.open(config) as store:
            assert numbers_of(store) == [*range(0, 42, 3)]
            assert store.physical_end == whole.physical_end
