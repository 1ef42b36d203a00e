from pathlib import Path

import pytest

from contrail.errors import StateFileDamaged
from contrail.replication.services.replica_file import Phase, Replica, ReplicaFile
from contrail.runtime.files import FileSystem

REPLICA = Replica("g", "u", "n0", 7, "n1@v", Phase.LEARNER)


def test_the_last_vote_is_read_and_no_older_one_is_kept(tmp_path: Path) -> None:
    file = ReplicaFile(FileSystem(), tmp_path)
    assert file.read() is None
    file.write(REPLICA)
    newer = Replica("g", "u", "n0", 8, None, Phase.LEARNER)
    file.write(newer)
    assert file.read() == newer
    # An older vote that is believed is a second vote.
    assert [one.name for one in tmp_path.iterdir()] == ["contrail.replica"]


@pytest.mark.parametrize("damage", [b"", b"{}", b"x", None])
def test_a_damaged_file_is_never_taken_for_no_vote(tmp_path: Path, damage: bytes | None) -> None:
    file = ReplicaFile(FileSystem(), tmp_path)
    file.write(REPLICA)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole.replace(b'"term": 7', b'"term": 6') if damage is None else damage)
    with pytest.raises(StateFileDamaged, match="may not vote"):
        file.read()


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"groupId": "g"}',
        b'{"groupId": "", "replicaUuid": "u", "selfId": "n0", "term": 1, "votedFor": null, '
        b'"phase": "voter"}',
        b'{"groupId": "g", "replicaUuid": "u", "selfId": "n0", "term": -1, "votedFor": null, '
        b'"phase": "voter"}',
        b'{"groupId": "g", "replicaUuid": "u", "selfId": "n0", "term": 1, "votedFor": null, '
        b'"phase": "king"}',
    ],
)
def test_text_that_no_member_wrote_is_no_member(text: bytes) -> None:
    with pytest.raises(ValueError):
        Replica.decode(text)
