"""Damaged records are reported, and replaced so that no record behind them is lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import RecordDamaged, StoreCorrupt, StoreLocked
from contrail.model.record import BLANK_MAGIC
from contrail.model.replaced_record import LostPlace
from contrail.store.log import MessageStore
from contrail.store.reader import StoreReader
from contrail.store.replace import LOST_FOLDER, replace_damaged
from contrail.store.state.reading import GetStatus
from contrail.store.state.replacing import KnownRecord, plan_pieces
from contrail.store.verify import verify_store
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config

COUNT = 60
SLOTS = 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of 60 messages in two segments, closed in order."""
    root = tmp_path / "store"
    with MessageStore.open(small_config(root)) as store:
        append_numbers(store, 0, COUNT)
    return root


def place_of(root: Path, number: int, topic: bytes = b"orders") -> tuple[int, int]:
    """Where a message's record begins, and its size."""
    row = StoreReader.open(root, index_slot_count=SLOTS).queues[topic, 0].rows(number, 1)
    return int.from_bytes(row[:8], "big"), int.from_bytes(row[8:12], "big")


def write_at(root: Path, physical_offset: int, data: bytes, segment_bytes: int = 8192) -> None:
    start = physical_offset - physical_offset % segment_bytes
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(physical_offset - start)
        file.write(data)


def flip(root: Path, physical_offset: int) -> None:
    start = physical_offset - physical_offset % 8192
    path = root / "commitlog" / f"{start:020d}"
    byte = path.read_bytes()[physical_offset - start]
    write_at(root, physical_offset, bytes([byte ^ 0x10]))


def replaced(root: Path) -> Any:
    return replace_damaged(root, index_slot_count=SLOTS)


def opened(root: Path, **changes: Any) -> MessageStore:
    return MessageStore.open(small_config(root, **changes))


# Damage is reported.


@pytest.mark.proves("store.damage.told")
def test_the_first_skip_of_a_damaged_message_logs_an_error_with_offset_and_bytes(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, size = place_of(root, 7)
    flip(root, start + 100)
    with opened(root) as store, caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert len(numbers_of(store)) == COUNT - 1
        (told,) = [one.getMessage() for one in caplog.records]
        assert "message 7 of queue 0 of orders" in told
        assert f"bytes {start} to {start + size} of the log" in told
        assert f"contrail store recover {root} --replace-damaged" in told
        records = store.damage.records
        assert (records.found_count, records.passed_over_count) == (1, 3)


@pytest.mark.proves("store.damage.same-range")
@pytest.mark.parametrize("byte", [2, 5, 90, 100, 30, 84])
def test_verify_and_a_refused_start_name_the_same_bytes(root: Path, byte: int) -> None:
    start, size = place_of(root, COUNT - 1)
    flip(root, start + byte)
    (finding,) = verify_store(root, index_slot_count=SLOTS).log
    with pytest.raises(StoreCorrupt) as refused:
        opened(root)
    named = (refused.value.physical_start, refused.value.physical_end)
    assert named == (finding.physical_start, finding.physical_end) == (start, start + size)


@pytest.mark.proves("store.damage.same-range")
@pytest.mark.parametrize("byte", [2, 5, 90, 100, 30, 84])
@pytest.mark.parametrize("other", [2, 5, 100])
def test_verify_and_a_refused_start_name_the_same_bytes_of_two_damaged_last_records(
    root: Path, byte: int, other: int
) -> None:
    for number, at in ((COUNT - 2, byte), (COUNT - 1, other)):
        flip(root, place_of(root, number)[0] + at)
    report = verify_store(root, index_slot_count=SLOTS)
    with pytest.raises(StoreCorrupt) as refused:
        opened(root)
    for found in report.log:
        named = f"from byte {found.physical_start} to {found.physical_end} ({found.reason})"
        assert named in str(refused.value)
    assert str(refused.value).count("from byte") == len(report.log)
    ends = (refused.value.physical_start, refused.value.physical_end)
    assert ends == (report.log[0].physical_start, report.log[-1].physical_end)
    assert ends == (place_of(root, COUNT - 2)[0], sum(place_of(root, COUNT - 1)))
    # The rows of the damaged records are not reported as extra.
    assert report.queues == []
    replaced(root)
    checked(root, {COUNT - 2, COUNT - 1})


@pytest.mark.proves("store.damage.same-range")
@pytest.mark.parametrize("byte", [2, 100, 12, 23])
def test_the_row_of_a_damaged_last_record_is_not_reported_as_extra(root: Path, byte: int) -> None:
    flip(root, place_of(root, COUNT - 1)[0] + byte)
    report = verify_store(root, index_slot_count=SLOTS)
    assert len(report.log) == 1 and report.queues == []


@pytest.mark.proves("store.damage.same-range")
@pytest.mark.parametrize("byte", [2, 5, 100, 30, 84])
def test_reads_scrubber_and_verify_name_the_same_bytes(root: Path, byte: int) -> None:
    start, size = place_of(root, 7)
    flip(root, start + byte)
    (finding,) = verify_store(root, index_slot_count=SLOTS).log
    named = (finding.physical_start, finding.physical_end, finding.reason)
    assert named[:2] == (start, start + size)
    with opened(root) as store:
        numbers_of(store)
        (read,) = store.damage.records.newest(9)
        assert (read[:3], read[3:]) == (named, ("orders", 0, 7))
    with opened(root) as store:
        while not store.scrubber.run_once(1 << 20).finished_pass:
            pass
        (scrubbed,) = store.damage.records.newest(9)
        assert scrubbed[:3] == named


@pytest.mark.proves("store.damage.told")
def test_a_damaged_message_is_called_damaged_by_offset_and_by_key(root: Path) -> None:
    start, _ = place_of(root, 7)
    flip(root, start + 100)
    with opened(root) as store:
        with pytest.raises(RecordDamaged, match=r"is damaged: message 7 of queue 0 of orders"):
            store.record(start)
        with pytest.raises(RecordDamaged, match=r"'ID000007' of topic 'orders' is damaged"):
            store.query(b"orders", b"ID000007")
        # Other messages with the key are found.
        assert len(store.query(b"orders", b"k7")) == COUNT // 10 - 1
        with pytest.raises(RecordDamaged, match="no whole record starts"):
            store.record(start + 3)
        assert store.query(b"orders", b"ID999999") == []


@pytest.mark.proves("store.damage.told")
def test_bytes_in_a_body_that_look_like_a_damaged_record_are_not_reported(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        append_numbers(store, 0, 1)
        inner = bytearray(store.record_bytes(0))
        at = store.physical_end + 88
        inner[28:36] = at.to_bytes(8, "big")
        inner[90] ^= 1
        store.append([draft(1)._replace(body=bytes(inner))])
        store.dispatch()
        with pytest.raises(RecordDamaged, match="no whole record starts"):
            store.record(at)
        assert len(store.damage.records) == 0


# Damage is replaced.


def checked(root: Path, lost: set[int], status: GetStatus = GetStatus.MESSAGE_REPLACED) -> None:
    """Every message but ``lost`` is at its offset, also after the queues are derived anew."""
    had_rows = (root / "consumequeue").exists()
    report = verify_store(root, repair=True, index_slot_count=SLOTS)
    assert report.is_sound and not report.log
    assert not (had_rows and report.queues)
    for folder in (None, "consumequeue", "index"):
        if folder is not None:
            shutil.rmtree(root / folder)
        with opened(root) as store:
            assert numbers_of(store) == [one for one in range(COUNT) if one not in lost]
            for number in lost:
                assert store.get(b"orders", 0, number, count_max=1).status is status
            assert store.queue_offset_max(b"orders", 0) == COUNT
            for number in range(COUNT):
                ids = found_by_id(store, number)
                assert ids == [number] or (number in lost and ids in ([], ["replaced"]))
            while not store.scrubber.run_once(1 << 20).finished_pass:
                pass
            assert store.scrubber.counters.repaired_rows == 0
    assert verify_store(root, index_slot_count=SLOTS).is_sound


def found_by_id(store: MessageStore, number: int) -> list[Any]:
    try:
        return [int(one.body[:8]) for one in store.query(b"orders", b"ID%06d" % number)]
    except RecordDamaged as damage:
        return ["replaced"] if "was damaged, and was replaced" in str(damage) else [damage]


def test_a_damaged_body_is_replaced_and_all_records_behind_it_stay(root: Path) -> None:
    start, size = place_of(root, 7)
    flip(root, start + 100)
    damaged = (root / "commitlog" / ("0" * 20)).read_bytes()[start : start + size]
    report = replaced(root)
    (one,) = report.replaced
    assert (one.physical_start, one.physical_end) == (start, start + size)
    assert (one.topic, one.queue_id, one.queue_offset) == ("orders", 0, 7)
    (kept,) = (root / LOST_FOLDER).iterdir()
    assert kept.read_bytes() == damaged and report.kept_files == [str(kept)]
    checked(root, {7})
    # A second replacement changes nothing.
    again = replaced(root)
    assert (again.replaced, again.left) == ([], [])


@pytest.mark.proves("store.damage.replaced")
@pytest.mark.parametrize(
    ("number", "byte"),
    [(7, byte) for byte in (0, 1, 2, 3, 4, 7, 12, 23, 28, 35, 39, 60, 70, 80, 86, 87)]
    + [(number, byte) for number in (0, COUNT - 1) for byte in (2, 4, 35, 87)],
)
def test_any_damaged_byte_of_a_record_loses_only_that_record(
    root: Path, number: int, byte: int
) -> None:
    start, _ = place_of(root, number)
    flip(root, start + byte)
    if replaced(root).replaced:
        checked(root, {number})
    else:
        # Store timestamp, store host and prepared transaction offset: see test_flipped_heads.
        assert byte in (60, 70, 80)
        checked(root, set())


@pytest.mark.proves("store.damage.replaced")
def test_a_run_of_records_is_replaced_one_by_one(root: Path) -> None:
    start, _ = place_of(root, 20)
    last, size = place_of(root, 24)
    write_at(root, start, bytes(last + size - start))
    report = replaced(root)
    assert [one.queue_offset for one in report.replaced] == [20, 21, 22, 23, 24]
    checked(root, {20, 21, 22, 23, 24})


@pytest.mark.proves("store.damage.replaced")
def test_damage_over_the_end_of_a_segment_is_replaced(root: Path) -> None:
    """The last record of the segment and the blank record behind it."""
    number = next(n for n in range(COUNT) if place_of(root, n + 1)[0] >= 8192)
    start, size = place_of(root, number)
    write_at(root, start, b"\x55" * (8192 - start))
    replaced(root)
    blank = (root / "commitlog" / ("0" * 20)).read_bytes()[start + size :][:8]
    assert blank == (8192 - start - size).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
    checked(root, {number})


def test_without_rows_the_damaged_record_itself_names_its_message(root: Path) -> None:
    start, _ = place_of(root, 7)
    flip(root, start + 100)
    shutil.rmtree(root / "consumequeue")
    (one,) = replaced(root).replaced
    assert (one.topic, one.queue_id, one.queue_offset) == ("orders", 0, 7)
    checked(root, {7})


def test_a_lost_message_that_is_unknown_leaves_a_blank_row_in_its_queue(root: Path) -> None:
    start, size = place_of(root, 7)
    write_at(root, start, b"\xaa" * size)
    shutil.rmtree(root / "consumequeue")
    (one,) = replaced(root).replaced
    assert one.topic is None
    checked(root, {7}, GetStatus.MESSAGE_WAS_REMOVING)


def test_a_refused_start_goes_on_after_the_replacement(root: Path) -> None:
    start, _ = place_of(root, COUNT - 1)
    flip(root, start + 100)
    with pytest.raises(StoreCorrupt, match="--replace-damaged"):
        opened(root)
    replaced(root)
    with opened(root) as store:
        append_numbers(store, COUNT, COUNT + 5)
        assert numbers_of(store) == [*range(COUNT - 1), *range(COUNT, COUNT + 5)]


@pytest.mark.proves("store.damage.replaced")
def test_a_batch_is_replaced_as_a_whole(tmp_path: Path) -> None:
    root = tmp_path / "store"
    topics = frozenset({b"batches"})
    with MessageStore.open(small_config(root), batch_topics=topics) as store:
        for number in range(4):
            one = draft(number, topic="batches", INNER_NUM="5")
            store.append_inner_batch(one._replace(sys_flag=0x80))
        store.dispatch()
        rows = store.rows(b"batches", 0, 5, 1)
        assert store.queue_offset_max(b"batches", 0) == 20
    flip(root, rows[0].physical_offset + 100)
    (one,) = replaced(root).replaced
    assert (one.topic, one.queue_offset) == ("batches", 5)
    assert verify_store(root, repair=True, index_slot_count=SLOTS).is_sound
    for folder in (None, "batchconsumequeue"):
        if folder:
            shutil.rmtree(root / folder)
        with MessageStore.open(small_config(root), batch_topics=topics) as store:
            hole = store.get(b"batches", 0, 5)
            assert (hole.status, hole.next_queue_offset) == (GetStatus.MESSAGE_REPLACED, 10)
            assert store.get(b"batches", 0, 10).message_count == 2


def test_records_with_a_record_crc_are_replaced_by_records_with_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root, record_crc_enabled=True) as store:
        append_numbers(store, 0, COUNT)
    start, _ = place_of(root, 7)
    flip(root, start + 60)
    assert len(replaced(root).replaced) == 1
    with opened(root, record_crc_enabled=True) as store:
        assert numbers_of(store) == [n for n in range(COUNT) if n != 7]
        assert store.get(b"orders", 0, 7, count_max=1).status is GetStatus.MESSAGE_REPLACED


def test_queues_with_an_extension_keep_their_rows(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = {"queue_ext_enabled": True, "queue_ext_file_bytes": 20 * 100 + 4}
    with opened(root, **config) as store:
        append_numbers(store, 0, COUNT)
    flip(root, place_of(root, 7)[0] + 100)
    replaced(root)
    assert verify_store(root, index_slot_count=SLOTS).is_sound
    with opened(root, **config) as store:
        assert numbers_of(store) == [n for n in range(COUNT) if n != 7]


class _Crash(BaseException):
    """The process ends here."""


@pytest.mark.proves("store.damage.replaced")
@pytest.mark.parametrize("point", ["replace.kept", "replace.written", "replace.synced"])
def test_a_replacement_interrupted_by_a_crash_is_finished_by_the_next_call(
    root: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(name: str) -> None:
        if name == point:
            raise _Crash

    start, _ = place_of(root, 20)
    last, size = place_of(root, 21)
    damaged = b"\x77" * (last + size - start)
    write_at(root, start, damaged)
    monkeypatch.setattr("contrail.store.replace.crashpoint", crash)
    with pytest.raises(_Crash):
        replaced(root)
    monkeypatch.undo()
    replaced(root)
    checked(root, {20, 21})
    kept = sorted((root / LOST_FOLDER).iterdir())
    assert kept[0].read_bytes() == damaged


def test_a_store_in_use_is_not_touched(root: Path) -> None:
    flip(root, place_of(root, 7)[0] + 100)
    with opened(root), pytest.raises(StoreLocked):
        replaced(root)


# The plan.


def known(start: int, size: int, offset: int) -> KnownRecord:
    return KnownRecord(start, size, LostPlace(b"T", 0, offset))


def spans(pieces: Any) -> list[tuple[int, int]]:
    return [(piece.physical_start, piece.physical_end) for piece in pieces]


def test_rows_cut_a_range_into_records_and_damaged_rows_are_ignored() -> None:
    rows = [known(1000, 200, 1), known(1400, 150, 3), known(1450, 200, 4), known(1900, 200, 5)]
    pieces = plan_pieces(1000, 2000, rows, segment_end=8192)
    assert pieces is not None
    assert spans(pieces) == [(1000, 1200), (1200, 1400), (1400, 1550), (1550, 2000)]
    assert [piece.place.queue_offset for piece in pieces if piece.place.topic] == [1, 3]


def test_a_range_too_small_for_a_record_has_no_plan() -> None:
    assert plan_pieces(1000, 1090, [], segment_end=8192) is None
    assert plan_pieces(1000, 1300, [known(1050, 100, 1)], segment_end=8192) is None


def test_the_rest_of_a_segment_becomes_its_blank_record() -> None:
    pieces = plan_pieces(1000, 1220, [known(1000, 200, 1)], segment_end=1220)
    assert pieces is not None and pieces[-1].is_blank
    assert spans(pieces) == [(1000, 1200), (1200, 1220)]


def test_the_last_record_of_the_log_begins_where_the_checkpoint_says() -> None:
    pieces = plan_pieces(1000, 1400, [], segment_end=8192, boundary=1200)
    assert pieces is not None and spans(pieces) == [(1000, 1200), (1200, 1400)]
