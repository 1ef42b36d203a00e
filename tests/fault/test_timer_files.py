"""The timer files: their bytes, and damage that is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from contrail.errors import StoreLayoutError
from contrail.model.timer_row import FiledRow
from contrail.runtime.files import FileSystem
from contrail.store.disk.timer_check_file import TimerCheck, read_check, write_check
from contrail.store.disk.timer_log import TimerLog, TimerLogRow
from contrail.store.disk.timer_wheel_file import CELL_COUNT, WHEEL_BYTES
from contrail.store.services.timer_files import FileBatch, FoundCheck, TimerFiles
from tests.fault.timer_setup import START_MS, timer_config

ROW_BYTES = 52
# Rows of a file of 4,192 bytes: 16 are kept for the mark that closes it.
ROWS_PER_FILE = (4192 - 16) // ROW_BYTES


def row(number: int, *, slot_s: int = 10, magic: int = 1) -> FiledRow:
    slot_ms = START_MS + slot_s * 1000
    return FiledRow(slot_ms, START_MS, magic, 1000 + number * 200, 200, 77)


def batch(*rows: FiledRow, read_ms: int = START_MS, queue_offset: int = 0) -> FileBatch:
    return FileBatch(rows=rows, read_ms=read_ms, queue_offset=queue_offset, now_ms=START_MS)


def opened(root: Path) -> TimerFiles:
    root.mkdir(parents=True, exist_ok=True)
    files = TimerFiles(FileSystem(), timer_config(root))
    files.open()
    return files


def reread(root: Path) -> list[FiledRow]:
    files = TimerFiles(FileSystem(), timer_config(root))
    try:
        found = files.open()
        assert found is not None
        return list(files.unfinished_rows(found))
    finally:
        files.close()


@pytest.mark.proves("kinds.timers.apaches-files")
def test_every_file_has_rocketmqs_bytes(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(batch(row(1), row(2), row(3, magic=5), queue_offset=3))
    files.close()
    log = (tmp_path / "timerlog" / "00000000000000000000").read_bytes()
    layout = struct.Struct(">iqiqiqiiq")
    assert layout.size == ROW_BYTES and len(log) == 4192
    assert layout.unpack_from(log, 0) == (52, -1, 1, START_MS, 10_000, 1200, 200, 77, 0)
    assert layout.unpack_from(log, 52) == (52, 0, 1, START_MS, 10_000, 1400, 200, 77, 0)
    assert layout.unpack_from(log, 104) == (52, 52, 5, START_MS, 10_000, 1600, 200, 77, 0)
    assert not any(log[156:])
    wheel = (tmp_path / "timerwheel").read_bytes()
    assert len(wheel) == WHEEL_BYTES == 1_209_600 * 32
    time = (START_MS + 10_000) // 1000
    cell = struct.unpack_from(">qqqii", wheel, time % CELL_COUNT * 32)
    # Two messages wait and one deletion counts -1.
    assert cell == (time, 0, 104, 1, 0)
    check = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(check) == 4096
    assert struct.unpack_from(">7q", check) == (START_MS, 156, 3, 3, 0, START_MS, 1)


def test_a_full_file_ends_with_the_mark_and_the_next_begins_at_its_end(tmp_path: Path) -> None:
    files = opened(tmp_path)
    rows = [row(number) for number in range(ROWS_PER_FILE + 2)]
    files.write(batch(*rows[:-1]))
    files.write(batch(rows[-1]))
    files.close()
    log = (tmp_path / "timerlog" / "00000000000000000000").read_bytes()
    left = 4192 - ROWS_PER_FILE * ROW_BYTES
    mark = struct.unpack_from(">iqI", log, ROWS_PER_FILE * ROW_BYTES)
    assert mark == (left, 0, 0xCBD43194)
    second = (tmp_path / "timerlog" / "00000000000000004192").read_bytes()
    assert struct.unpack_from(">iq", second) == (52, (ROWS_PER_FILE - 1) * ROW_BYTES)
    assert reread(tmp_path) == rows


@pytest.mark.proves("kinds.timers.apaches-files")
def test_a_default_file_holds_2016492_rows() -> None:
    log = TimerLog(FileSystem(), Path("unused"), file_bytes=100 << 20)
    assert log._rows_per_file == 2_016_492


def test_rows_come_back_by_slot_in_their_order(tmp_path: Path) -> None:
    files = opened(tmp_path)
    rows = [row(number, slot_s=number % 3) for number in range(9)]
    files.write(batch(*rows[:5]))
    files.write(batch(*rows[5:]))
    files.close()
    found = reread(tmp_path)
    assert sorted(found) == sorted(rows)
    for slot in range(3):
        places = [r.physical_offset for r in found if r.slot_ms == START_MS + slot * 1000]
        assert places == sorted(places)


def test_finished_slots_are_forgotten_and_rows_for_them_enter_the_log_only(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(batch(row(1, slot_s=1), row(2, slot_s=2)))
    files.write(batch(row(3, slot_s=1), read_ms=START_MS + 2000))
    assert files.check.log_end == 3 * ROW_BYTES
    files.close()
    assert reread(tmp_path) == [row(2, slot_s=2)]


def test_rows_behind_the_check_are_overwritten(tmp_path: Path) -> None:
    """As after a crash between wheel and check: no cell may lead to a row behind the check."""
    files = opened(tmp_path)
    files.write(batch(row(1)))
    before = (tmp_path / "config" / "timercheck").read_bytes()
    files.write(batch(row(2), row(3, slot_s=11)))
    files.close()
    (tmp_path / "config" / "timercheck").write_bytes(before)
    assert reread(tmp_path) == [row(1)]
    assert not any((tmp_path / "timerlog" / "00000000000000000000").read_bytes()[ROW_BYTES:])
    files = TimerFiles(FileSystem(), timer_config(tmp_path))
    found = files.open()
    assert found is not None
    list(files.unfinished_rows(found))
    files.write(batch(row(4), row(5, slot_s=11)))
    files.close()
    assert sorted(reread(tmp_path)) == sorted([row(1), row(4), row(5, slot_s=11)])


def test_a_replaced_slot_holds_only_what_is_left_of_it(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(batch(row(1), row(2), row(3, slot_s=11)))
    replaced = batch(row(2))
    replaced.replaced = frozenset({START_MS + 10_000})
    files.write(replaced)
    files.close()
    assert sorted(reread(tmp_path)) == sorted([row(2), row(3, slot_s=11)])


# One byte of every field, of the first row and of the second.
@pytest.mark.parametrize("place", [0, 14, 20, 26, 32, 38, 42, 48, 52, 60, 66, 72, 78, 84, 90, 94])
def test_any_flipped_byte_of_a_waiting_row_is_detected(tmp_path: Path, place: int) -> None:
    files = opened(tmp_path)
    files.write(batch(row(1), row(2)))
    files.close()
    path = tmp_path / "timerlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    in_row = place % ROW_BYTES
    if in_row >= 40:
        # The topic's hash is for counting only, and the last eight bytes mean nothing.
        assert [found.physical_offset for found in reread(tmp_path)] == [1200, 1400]
        return
    with pytest.raises(StoreLayoutError):
        reread(tmp_path)


@pytest.mark.parametrize("place", [0, 5, 7, 12, 16, 21, 23])
def test_any_flipped_byte_of_a_cell_is_detected(tmp_path: Path, place: int) -> None:
    files = opened(tmp_path)
    files.write(batch(row(1), row(2)))
    files.close()
    at = (START_MS + 10_000) // 1000 % CELL_COUNT * 32 + place
    with (tmp_path / "timerwheel").open("r+b") as wheel:
        wheel.seek(at)
        byte = wheel.read(1)[0]
        wheel.seek(at)
        wheel.write(bytes([byte ^ 0x10]))
    if 8 <= place < 16:
        # The start of a chain is read from the chain itself.
        assert len(reread(tmp_path)) == 2
        return
    with pytest.raises(StoreLayoutError):
        reread(tmp_path)


CHECK = TimerCheck(START_MS, 104, 7, 7, 0, START_MS, 5)


def test_a_check_comes_back_with_its_sum(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    write_check(FileSystem(), path, CHECK, 99)
    assert read_check(FileSystem(), path) == FoundCheck(CHECK, 99)


@pytest.mark.parametrize("place", [*range(56), *range(64, 140)])
def test_a_flipped_byte_of_a_check_never_becomes_another_time(tmp_path: Path, place: int) -> None:
    path = tmp_path / "config" / "timercheck"
    write_check(FileSystem(), path, CHECK, 99)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x01
    path.write_bytes(data)
    found = read_check(FileSystem(), path)
    assert found is None or found.check[:4] == CHECK[:4]


def test_a_check_that_rocketmq_wrote_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "timercheck"
    path.write_bytes(CHECK.encode().ljust(4096, b"\0"))
    assert read_check(FileSystem(), path) == FoundCheck(CHECK, None)


def test_a_check_that_rocketmq_wrote_after_contrail_counts(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    write_check(FileSystem(), path, CHECK, 99)
    newer = CHECK._replace(read_ms=START_MS + 5000, counter=9, timestamp_ms=START_MS + 5000)
    data = newer.encode() + path.read_bytes()[56:]
    path.write_bytes(data)
    assert read_check(FileSystem(), path) == FoundCheck(newer, None)


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\0" * 20])
def test_an_empty_check_file_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "timercheck"
    path.write_bytes(content)
    assert read_check(FileSystem(), path) is None


def test_rows_that_rocketmq_appended_after_its_check_are_read_on(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(batch(row(1)))
    early = files.check
    files.write(batch(row(2), row(3, slot_s=11)))
    files.close()
    # RocketMQ's wheel is in memory: the file may be as old as the check.
    (tmp_path / "config" / "timercheck").write_bytes(early.encode().ljust(4096, b"\0"))
    assert sorted(reread(tmp_path)) == sorted([row(1), row(2), row(3, slot_s=11)])


@pytest.mark.parametrize("byte_count", [1, WHEEL_BYTES + 32])
def test_a_wheel_of_another_length_is_refused(tmp_path: Path, byte_count: int) -> None:
    with (tmp_path / "timerwheel").open("wb") as wheel:
        wheel.truncate(byte_count)
    with pytest.raises(StoreLayoutError):
        opened(tmp_path)


def test_files_of_the_log_whose_messages_are_gone_are_removed(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(batch(*[row(number, slot_s=number) for number in range(2 * ROWS_PER_FILE)]))
    last = batch(read_ms=START_MS + ROWS_PER_FILE * 1000)
    last.physical_min = row(ROWS_PER_FILE).physical_offset
    files.write(last)
    files.close()
    assert [path.name for path in (tmp_path / "timerlog").iterdir()] == ["00000000000000004192"]
    assert len(reread(tmp_path)) == ROWS_PER_FILE


def test_bytes_that_are_no_row_are_not_read() -> None:
    from contrail.store.disk.timer_log import decode_row

    good = TimerLogRow(-1, 1, START_MS, 1000, 5, 6, 7).encode()
    assert decode_row(good) == TimerLogRow(-1, 1, START_MS, 1000, 5, 6, 7)
    assert decode_row(good[:51]) is None
    assert decode_row(bytes(52)) is None
    assert decode_row(struct.pack(">i", 53) + good[4:]) is None
    assert decode_row(good[:12] + struct.pack(">i", 16) + good[16:]) is None
