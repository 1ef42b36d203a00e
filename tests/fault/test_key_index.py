"""The key index on real files: layout, queries, rolling, crashes and damage."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.kernels.java_hash import java_hash
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import IndexMark, KeyIndex

SLOTS = 2000
ENTRIES = 100
LOG_END = 1 << 40
BEGIN_MS = 1_700_000_000_000
FOREVER = {"begin_ms": 0, "end_ms": 1 << 60}


class FaultyFiles(FileSystem):
    """Fails every write while ``error`` is set."""

    def __init__(self) -> None:
        self.error = 0
        self.written: list[tuple[int, int]] = []

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.error:
            raise OSError(self.error, "no")
        self.written.append((position, len(data)))
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        if self.error:
            raise OSError(self.error, "no")
        super().fdatasync(fd)


def index_at(
    root: Path, files: FileSystem | None = None, clock: ManualClock | None = None
) -> KeyIndex:
    config = StoreConfig(root=root, index_slot_count=SLOTS, index_entry_count=ENTRIES)
    return KeyIndex(
        root / "index", config=config, files=files or FileSystem(), clock=clock or ManualClock()
    )


def hash_of(key: bytes) -> int:
    value = abs(java_hash(b"orders#" + key))
    return value if value < 1 << 31 else 0


def rows(first: int, last: int, keys_each: int = 1) -> bytearray:
    """Message n lies at n * 100, was stored n seconds after BEGIN_MS, has the keys n.0, n.1 ..."""
    found = bytearray()
    for number in range(first, last):
        for key in range(keys_each):
            key_hash = hash_of(b"%d.%d" % (number, key))
            found += struct.pack(">iqq", key_hash, number * 100, BEGIN_MS + number * 1000)
    return found


def asked(index: KeyIndex, number: int, key: int = 0, **span: int) -> list[int]:
    options = {**FOREVER, **span}
    return sorted(index.candidates(b"orders", b"%d.%d" % (number, key), **options))


def filled(root: Path, last: int, files: FileSystem | None = None) -> KeyIndex:
    index = index_at(root, files)
    index.put(rows(0, last))
    index.write_pending()
    index.sync()
    return index


def assert_holds(index: KeyIndex, last: int) -> None:
    for number in range(last):
        assert asked(index, number) == [number * 100], number
    assert asked(index, last) == []


def images(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.mark.proves("store.queues.key-index")
def test_a_file_has_the_published_layout(tmp_path: Path) -> None:
    index = filled(tmp_path, 2)
    (path,) = index.paths
    data = path.read_bytes()
    assert len(data) == 40 + SLOTS * 4 + ENTRIES * 20
    end_ms = BEGIN_MS + 1000
    assert struct.unpack(">qqqqii", data[:40]) == (BEGIN_MS, end_ms, 0, 100, 2, 3)
    slot = hash_of(b"1.0") % SLOTS
    assert struct.unpack_from(">i", data, 40 + slot * 4) == (2,)
    entries = 40 + SLOTS * 4
    assert data[entries : entries + 20] == bytes(20)
    assert struct.unpack_from(">iqii", data, entries + 20) == (hash_of(b"0.0"), 0, 0, 0)
    assert struct.unpack_from(">iqii", data, entries + 40) == (hash_of(b"1.0"), 100, 1, 0)


def test_keys_are_found_in_memory_and_on_disk(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.put(rows(0, 150))
    assert_holds(index, 150)
    index.write_pending()
    assert_holds(index, 150)
    again = index_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=index.marks(), trusted=True) == LOG_END
    assert_holds(again, 150)


def test_nothing_is_allocated_or_written_before_the_first_key(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    assert index.load(physical_limit=LOG_END, marks=[]) == LOG_END
    index.put(bytearray())
    index.write_pending()
    index.sync()
    assert not (tmp_path / "index").exists()
    assert (index.marks(), index.physical_end, index.last_timestamp_ms) == ([], 0, 0)


def test_candidates_come_the_newest_first_and_each_entry_once(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    same = bytearray()
    for number in range(250):
        same += struct.pack(">iqq", hash_of(b"same"), number * 100, BEGIN_MS + number)
    index.put(same)
    found = list(index.candidates(b"orders", b"same", **FOREVER))
    assert found == [number * 100 for number in range(249, -1, -1)]


@pytest.mark.proves("store.queues.key-index")
def test_a_time_span_limits_what_is_found(tmp_path: Path) -> None:
    index = filled(tmp_path, 250)
    for number in (0, 98, 99, 100, 197, 198, 199, 249):
        stored_ms = BEGIN_MS + number * 1000
        physical_offset = number * 100
        for begin_ms in (stored_ms - 1, stored_ms):
            for end_ms in (stored_ms, stored_ms + 1):
                assert physical_offset in asked(index, number, begin_ms=begin_ms, end_ms=end_ms)
        assert physical_offset not in asked(index, number, begin_ms=stored_ms + 3000)
        assert physical_offset not in asked(index, number, end_ms=stored_ms - 3000)


def test_a_full_file_is_followed_by_one_that_begins_where_it_ended(tmp_path: Path) -> None:
    index = filled(tmp_path, 99)
    assert len(index.paths) == 1
    index.put(rows(99, 100))
    index.write_pending()
    _, second = images(tmp_path)
    header = struct.unpack(">qqqqii", second[:40])
    stored_ms = BEGIN_MS + 99_000
    assert header == (stored_ms, stored_ms, 9900, 9900, 1, 2)
    # The first entry's seconds count from the previous file's end.
    assert struct.unpack_from(">iqii", second, 40 + SLOTS * 4 + 20) == (
        hash_of(b"99.0"),
        9900,
        1,
        0,
    )


def test_names_grow_even_when_the_clock_stands_still_or_goes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    index = index_at(tmp_path, clock=clock)
    for first in range(0, 400, 100):
        index.put(rows(first, first + 100))
        clock.advance(hours=-1)
    names = [path.name for path in index.paths]
    assert len(names) == 5
    assert names == sorted(set(names))
    assert all(len(name) == 17 and name.isdecimal() for name in names)


def test_messages_fed_again_are_not_indexed_twice(tmp_path: Path) -> None:
    index = filled(tmp_path, 60)
    before = images(tmp_path)
    index.put(rows(0, 60))
    index.put(rows(59, 60))
    index.write_pending()
    assert images(tmp_path) == before
    again = index_at(tmp_path)
    again.load(physical_limit=LOG_END, marks=index.marks())
    again.put(rows(30, 70))
    again.write_pending()
    fresh = filled(tmp_path / "fresh", 70)
    assert images(tmp_path) == images(tmp_path / "fresh")
    assert_holds(fresh, 70)


def test_all_keys_of_a_message_are_indexed(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.put(rows(0, 60, keys_each=3))
    for number in range(60):
        for key in range(3):
            assert asked(index, number, key) == [number * 100]


def test_a_crash_goes_back_to_the_last_mark(tmp_path: Path) -> None:
    index = filled(tmp_path, 50)
    marks, durable = index.marks(), images(tmp_path)
    index.put(rows(50, 150))
    index.write_pending()
    again = index_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=marks) == LOG_END
    assert_holds(again, 50)
    assert again.marks() == marks
    again.put(rows(50, 150))
    again.write_pending()
    assert_holds(again, 150)
    assert len(images(tmp_path)) == len(durable) + 1


def test_slots_ahead_of_the_entries_are_chained_anew(tmp_path: Path) -> None:
    index = filled(tmp_path, 50)
    (path,) = index.paths
    image = bytearray(path.read_bytes())
    slot = hash_of(b"7.0") % SLOTS
    struct.pack_into(">i", image, 40 + slot * 4, 77)
    path.write_bytes(image)
    again = index_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=index.marks()) == LOG_END
    assert_holds(again, 50)


@pytest.mark.parametrize("damage", ["removed", "emptied", "halved", "doubled", "header"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_file_is_rebuilt_with_those_after_it(
    tmp_path: Path, damage: str, number: int
) -> None:
    index = filled(tmp_path, 250)
    path = index.paths[number]
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    elif damage == "header":
        path.write_bytes(struct.pack(">qqqqii", 1, 1, 1, 1, 1, 1) + data[40:])
    else:
        path.write_bytes({"emptied": b"", "halved": data[:4000], "doubled": data * 2}[damage])
    again = index_at(tmp_path)
    start = again.load(physical_limit=LOG_END, marks=index.marks())
    assert start == (0 if number == 0 else (number * 99 - 1) * 100)
    again.put(rows(start // 100, 250))
    again.write_pending()
    assert_holds_at_least_once(again, 250)


def assert_holds_at_least_once(index: KeyIndex, last: int) -> None:
    for number in range(last):
        assert set(asked(index, number)) == {number * 100}, number


def test_a_folder_closed_in_order_by_another_broker_is_trusted(tmp_path: Path) -> None:
    filled(tmp_path, 250)
    again = index_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=None, trusted=True) == LOG_END
    assert_holds(again, 250)
    again.put(rows(249, 260))
    assert_holds(again, 260)


def test_the_last_file_of_a_crashed_broker_is_rebuilt(tmp_path: Path) -> None:
    filled(tmp_path, 250)
    (tmp_path / "index" / "readme.txt").write_text("left alone")
    again = index_at(tmp_path)
    start = again.load(physical_limit=LOG_END, marks=None)
    assert start == 197 * 100
    assert len(again.paths) == 2
    again.put(rows(start // 100, 250))
    assert_holds_at_least_once(again, 250)
    assert (tmp_path / "index" / "readme.txt").exists()


def test_entries_above_the_end_of_the_log_are_forgotten(tmp_path: Path) -> None:
    index = filled(tmp_path, 250)
    again = index_at(tmp_path)
    again.load(physical_limit=120 * 100, marks=index.marks(), trusted=True)
    assert_holds(again, 120)
    assert len(again.paths) == 2
    again.put(rows(120, 130))
    assert_holds(again, 130)
    emptied = index_at(tmp_path)
    emptied.load(physical_limit=0, marks=None, trusted=True)
    assert emptied.paths == []
    emptied.put(rows(0, 3))
    assert_holds(emptied, 3)


def test_leading_files_without_live_messages_go_but_never_the_last(tmp_path: Path) -> None:
    index = filled(tmp_path, 250)
    assert index.drop_files_before(98 * 100) == []
    assert len(index.drop_files_before(98 * 100 + 1)) == 1
    assert len(index.drop_files_before(LOG_END)) == 1
    assert [path.exists() for path in index.paths] == [True]
    assert asked(index, 249) == [24900]


def test_entries_are_written_before_slots_and_the_header_last(tmp_path: Path) -> None:
    files = FaultyFiles()
    index = filled(tmp_path, 5, files)
    entries_at = 40 + SLOTS * 4
    assert files.written[0] == (entries_at + 20, 100)
    assert all(40 <= position < entries_at for position, _ in files.written[1:-1])
    assert files.written[-1] == (0, 40)
    files.written.clear()
    index.write_pending()
    assert files.written == []


def test_a_full_disk_loses_no_key_and_recovers_by_itself(tmp_path: Path) -> None:
    files = FaultyFiles()
    index = index_at(tmp_path, files)
    files.error = errno.ENOSPC
    index.put(rows(0, 250))
    assert_holds(index, 250)
    with pytest.raises(OSError):
        index.write_pending()
    assert index.has_pending
    assert index.marks() == []
    files.error = 0
    index.write_pending()
    assert not index.has_pending
    again = index_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=index.marks()) == LOG_END
    assert_holds(again, 250)


def test_keys_that_could_not_be_put_are_taken_when_they_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_at(tmp_path)

    def fail(path: Path) -> None:
        raise OSError(errno.EMFILE, "too many open files", str(path))

    with monkeypatch.context() as failing:
        failing.setattr(index, "_make_folder", lambda: fail(tmp_path))
        with pytest.raises(OSError, match="too many open files"):
            index.put(rows(0, 5))
    index.put(rows(0, 5))
    assert_holds(index, 5)
    index.close()


def test_a_failed_sync_is_raised(tmp_path: Path) -> None:
    files = FaultyFiles()
    index = index_at(tmp_path, files)
    index.put(rows(0, 5))
    index.write_pending()
    files.error = errno.EIO
    with pytest.raises(OSError):
        index.sync()


def test_a_chain_that_goes_round_ends(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    collision = bytearray()
    for number in range(3):
        collision += struct.pack(">iqq", hash_of(b"x"), number * 100, BEGIN_MS)
    index.put(collision)
    index.write_pending()
    (path,) = index.paths
    image = bytearray(path.read_bytes())
    struct.pack_into(">i", image, 40 + SLOTS * 4 + 20 + 16, 3)
    path.write_bytes(image)
    again = index_at(tmp_path)
    again.load(physical_limit=LOG_END, marks=index.marks(), trusted=True)
    assert list(again.candidates(b"orders", b"x", **FOREVER)) == [200, 100, 0]


def test_marks_name_the_entries_in_the_files(tmp_path: Path) -> None:
    index = filled(tmp_path, 5)
    assert index.marks() == [IndexMark(index.paths[0].name, 6, 400, BEGIN_MS + 4000)]
    index.put(rows(5, 6))
    assert index.marks() == [IndexMark(index.paths[0].name, 6, 400, BEGIN_MS + 4000)]
    assert (index.physical_end, index.last_timestamp_ms) == (500, BEGIN_MS + 5000)
