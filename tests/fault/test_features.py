"""A folder names what a release must understand; single brokers stay away from a member's."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.errors import FeatureRefused
from contrail.runtime.files import FileSystem
from contrail.store.features import FEATURES_FILE, GROUP_FEATURE, read_features, write_features
from contrail.store.log import MessageStore
from contrail.store.reader import StoreReader
from contrail.store.replace import replace_damaged
from contrail.store.verify import verify_store
from tests.fault.group_log import append_some, begin_epoch, commit_all, open_member
from tests.fault.store_setup import append_numbers, numbers_of, small_config

pytestmark = pytest.mark.proves("replication.failover.features")


def test_a_single_broker_refuses_a_members_folder_and_names_the_command(tmp_path: Path) -> None:
    open_member(tmp_path).close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FeatureRefused, match="contrail replication detach"):
        MessageStore.open(small_config(tmp_path))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    open_member(tmp_path).close()


def test_a_name_of_a_later_release_is_refused_by_name(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
    write_features(FileSystem(), tmp_path, frozenset({"striped-log"}))
    for opened in (
        lambda: MessageStore.open(small_config(tmp_path)),
        lambda: open_member(tmp_path),
        lambda: StoreReader.open(tmp_path),
    ):
        with pytest.raises(FeatureRefused, match="striped-log"):
            opened()


@pytest.mark.parametrize("content", [b"", b"{}", b"no seal at all"])
def test_a_damaged_file_of_features_takes_nothing_for_granted(
    tmp_path: Path, content: bytes
) -> None:
    open_member(tmp_path).close()
    (tmp_path / FEATURES_FILE).write_bytes(content)
    with pytest.raises(FeatureRefused, match=FEATURES_FILE):
        MessageStore.open(small_config(tmp_path))


def test_a_folder_becomes_a_members_and_keeps_its_messages(tmp_path: Path) -> None:
    """Before the first start as a member ends, the folder says that it is one."""
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 30)
        end = store.physical_end
    with open_member(tmp_path) as member:
        assert read_features(FileSystem(), tmp_path) == {GROUP_FEATURE}
        assert member.physical_end == member.positions.commit_limit == end
        begin_epoch(member, 0)
        commit_all(member)
        assert numbers_of(member) == [*range(30)]


@pytest.mark.proves("replication.failover.below-commit")
def test_a_reader_of_a_members_folder_stops_at_the_commit(tmp_path: Path) -> None:
    with open_member(tmp_path) as member:
        begin_epoch(member, 0)
        append_some(member, 0, 12)
        commit_all(member)
        limit = member.physical_end
        append_some(member, 12, 24)
        member.wait_flushed(member.physical_end)
        member.checkpoint()
        reader = StoreReader.open(tmp_path)
        assert reader.physical_end == limit
        bodies = [int(message.body[:8]) for message in reader.messages(topic="orders")]
        assert sorted(bodies) == [*range(12)]


def test_a_members_log_is_verified_and_never_changed_by_hand(tmp_path: Path) -> None:
    """A replaced record would be another one than the others of the group have."""
    with open_member(tmp_path) as member:
        begin_epoch(member, 0)
        append_some(member, 0, 24)
        commit_all(member)
        append_some(member, 24, 36)
    assert verify_store(tmp_path, index_slot_count=40).is_sound
    segment = tmp_path / "commitlog" / f"{0:020d}"
    content = bytearray(segment.read_bytes())
    content[400] ^= 1
    segment.write_bytes(content)
    assert not verify_store(tmp_path, index_slot_count=40).is_sound
    with pytest.raises(FeatureRefused):
        replace_damaged(tmp_path, index_slot_count=40)
    assert segment.read_bytes() == content
