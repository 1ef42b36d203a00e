"""Damage to the checkpoint files beside the log, with a topic deleted and made again.

Only these files say which records of the log belong to the deleted topic.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contrail.errors import StoreError
from contrail.store.log import MessageStore
from contrail.store.replace import replace_damaged
from contrail.store.verify import verify_store
from tests.fault.store_setup import draft, numbers_of, small_config

SLOTS = 40
BODY_BYTE = 100


def opened(root: Path) -> MessageStore:
    return MessageStore.open(small_config(root))


def turn(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def fill_deleting(store: MessageStore) -> None:
    """Messages 0 to 4 of ``orders`` are deleted with it; 10 comes behind."""
    store.append([draft(number) for number in range(5)])
    store.append([draft(100, topic="bills")])
    store.dispatch()
    store.checkpoint()
    store.delete_topic(b"orders")
    store.append([draft(10)])
    store.dispatch()


@pytest.mark.proves("store.damage.damaged-notes")
@pytest.mark.parametrize("byte", [0, 30, 60, -2])
def test_a_flipped_bit_of_the_checkpoint_brings_no_deleted_message_back(
    tmp_path: Path, byte: int
) -> None:
    killed = tmp_path / "killed"
    with opened(tmp_path / "store") as store:
        fill_deleting(store)
        for number in range(101, 104):
            store.append([draft(number, topic="bills")])
            store.dispatch()
            store.checkpoint()
        shutil.copytree(tmp_path / "store", killed)
    turn(killed / "contrail.checkpoint", byte)
    with opened(killed) as store:
        assert numbers_of(store) == [10]
        assert numbers_of(store, "bills") == [100, 101, 102, 103]


@pytest.mark.proves("store.damage.damaged-notes")
def test_rows_are_kept_where_the_notes_of_queues_are_lost_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        fill_deleting(store)
    for path in root.glob("contrail.queues*"):
        path.unlink()
    with opened(root) as store:
        assert numbers_of(store) == [10]
        assert numbers_of(store, "bills") == [100]


@pytest.mark.proves("store.damage.deleted-came-back")
def test_deleted_messages_that_come_back_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a kill with all these files lost, nothing says where the deleted topic ended."""
    root = tmp_path / "killed"
    with opened(tmp_path / "store") as store:
        fill_deleting(store)
        shutil.copytree(tmp_path / "store", root)
    for path in root.glob("contrail.*"):
        path.unlink()
    with opened(root) as store:
        assert numbers_of(store) == [*range(5)]
        assert any("its deleted messages are back" in one for one in store.recovery.problems)
    assert "its deleted messages are back" in caplog.text
    for repair in (False, True):
        report = verify_store(root, repair=repair, index_slot_count=SLOTS)
        assert not report.is_sound
        (told,) = report.returned
        assert "1 records of queue 0 of orders" in told


@pytest.mark.proves("store.damage.damaged-topic-name")
def test_reads_report_a_record_whose_topic_was_damaged_into_a_deleted_one(tmp_path: Path) -> None:
    """Records of a deleted topic are not judged; but the row that leads to this one is."""
    root = tmp_path / "store"
    with opened(root) as store:
        store.append([draft(number) for number in range(3)])
        store.append([draft(50, topic="ordess")])
        store.dispatch()
        store.delete_topic(b"ordess")
        [row] = store.rows(b"orders", 0, 1, 1)
    turn(root / "commitlog" / f"{0:020d}", row.physical_offset + 194)
    with opened(root) as store:
        assert numbers_of(store) == [0, 2]
        result = store.get(b"orders", 0, 1, count_max=1)
        assert "is damaged: message 1 of queue 0 of orders" in result.problem


@pytest.fixture
def damaged_bill(tmp_path: Path) -> tuple[Path, int]:
    """The one message of ``bills`` is damaged, and no queue has rows; where its body is."""
    root = tmp_path / "store"
    with opened(root) as store:
        store.append([draft(number) for number in range(3)])
        store.append([draft(50, topic="bills")])
        store.append([draft(number) for number in range(3, 6)])
        store.dispatch()
        [row] = store.rows(b"bills", 0, 0, 1)
    body_byte = row.physical_offset + BODY_BYTE
    turn(root / "commitlog" / f"{0:020d}", body_byte)
    shutil.rmtree(root / "consumequeue")
    return root, body_byte


@pytest.mark.proves("store.damage.damaged-notes")
def test_a_repair_forgets_no_queue_whose_message_is_brought_back_later(
    damaged_bill: tuple[Path, int],
) -> None:
    root, body_byte = damaged_bill
    verify_store(root, repair=True, index_slot_count=SLOTS)
    turn(root / "commitlog" / f"{0:020d}", body_byte)
    assert verify_store(root, repair=True, index_slot_count=SLOTS).is_sound
    with opened(root) as store:
        store.append([draft(51, topic="bills")])
        store.dispatch()
        assert numbers_of(store, "bills") == [50, 51]
        assert numbers_of(store) == [*range(6)]


@pytest.mark.proves("store.damage.damaged-notes")
def test_a_repair_before_the_replacement_gives_no_offset_twice(
    damaged_bill: tuple[Path, int],
) -> None:
    root, _ = damaged_bill
    with pytest.raises(StoreError):
        opened(root)
    verify_store(root, repair=True, index_slot_count=SLOTS)
    [replaced] = replace_damaged(root, index_slot_count=SLOTS).replaced
    assert (replaced.topic, replaced.queue_offset) == ("bills", 0)
    verify_store(root, repair=True, index_slot_count=SLOTS)
    with opened(root) as store:
        assert store.queue_offset_max(b"bills", 0) == 1
        assert numbers_of(store) == [*range(6)]
