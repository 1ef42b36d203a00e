"""A member's vote through power cuts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from contrail.replication.services.replica_file import Phase, Replica, ReplicaFile
from contrail.runtime.files import FileSystem
from tests.fakes.recording_files import Marked, RecordingFileSystem
from tests.fault.campaigns.crash_states import Disk, materialise, some_survive

FIRST = Replica("g", "u", "n0", 0, None, Phase.VOTER)


def test_after_a_power_cut_the_vote_is_the_last_saved_or_the_one_under_way(
    memory_path: Path,
) -> None:
    recorded = memory_path / "recorded"
    recorded.mkdir()
    files = RecordingFileSystem(recorded)
    file = ReplicaFile(files, recorded)
    votes = [replace(FIRST, term=term, voted_for=f"n{term}") for term in range(1, 5)]
    for number, vote in enumerate(votes):
        file.write(vote)
        files.mark(number)
    rng = random.Random(1)
    disk, saved = Disk(files.baseline), -1
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
        if isinstance(operation, Marked):
            saved = int(str(operation.note))
        for survival in range(3):
            state = memory_path / f"state-{index}-{survival}"
            materialise(disk.crash(some_survive(rng)), source=recorded, target=state)
            found = ReplicaFile(FileSystem(), state).read()
            allowed = [votes[saved] if saved >= 0 else None, *votes[saved + 1 : saved + 2]]
            assert found in allowed
