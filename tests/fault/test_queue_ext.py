"""The consume queue's extension: units, rolling, and the queue that points into it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from contrail.kernels.java_hash import java_hash
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.handles import FileHandles
from contrail.store.disk.queue_ext import ExtUnit, QueueExt, is_ext_address
from contrail.store.log import MessageStore
from tests.fault.store_setup import append_numbers, numbers_of, small_config

LOG_END = 1 << 40
ADDRESS_BASE = -(1 << 63)


def config_at(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root, queue_ext_enabled=True, queue_ext_file_bytes=1000, queue_file_bytes=2000
    )


def ext_at(root: Path) -> QueueExt:
    files = FileSystem()
    return QueueExt(root / "0", config=config_at(root), files=files, handles=FileHandles(files, 8))


def queue_at(root: Path) -> ConsumeQueue:
    files = FileSystem()
    return ConsumeQueue(
        root / "consumequeue" / "orders" / "0",
        config=config_at(root),
        files=files,
        handles=FileHandles(files, 8),
        bitmap_of=lambda physical_offset, size: bytes([physical_offset % 251, size]),
    )


def run(first: int, last: int) -> tuple[int, int, bytearray, int]:
    rows = bytearray()
    for number in range(first, last):
        rows += struct.pack(">qiqq", number * 100, 100, number * 31, 5000 + number)
    return first, last - first, rows, last * 100


@pytest.mark.proves("store.queues.extensions")
def test_units_have_the_published_layout(tmp_path: Path) -> None:
    ext = ext_at(tmp_path)
    assert ext.append(7, 1234, b"") == ADDRESS_BASE
    assert ext.append(-8, 5678, b"\x0f\xf0") == ADDRESS_BASE + 20
    ext.write_pending()
    ext.sync()
    expected = struct.pack(">hqqh", 20, 7, 1234, 0) + struct.pack(">hqqh", 22, -8, 5678, 2)
    data = (tmp_path / "0" / "00000000000000000000").read_bytes()
    assert data == (expected + b"\x0f\xf0").ljust(1000, b"\0")


def test_a_file_is_closed_by_minus_one_when_a_unit_does_not_fit(tmp_path: Path) -> None:
    ext = ext_at(tmp_path)
    addresses = [ext.append(number, number, bytes(30)) for number in range(45)]
    ext.write_pending()
    # 19 units of 50 bytes leave 50, of which 4 are kept for the mark: the 20th goes on.
    assert addresses[19] == ADDRESS_BASE + 1000
    first = (tmp_path / "0" / "00000000000000000000").read_bytes()
    assert first[950:] == struct.pack(">h", -1).ljust(50, b"\0")
    again = ext_at(tmp_path)
    assert again.load() is None
    for number, address in enumerate(addresses):
        assert address is not None
        assert again.read(address) == ExtUnit(number, number, bytes(30))
    assert again.address_max == ext.address_max


def test_tag_codes_are_not_taken_for_addresses() -> None:
    assert is_ext_address(ADDRESS_BASE)
    assert is_ext_address(-(1 << 31) - 1)
    assert not is_ext_address(-(1 << 31))
    assert not is_ext_address(1_760_000_000_000)


def test_an_address_without_a_unit_reads_as_none(tmp_path: Path) -> None:
    ext = ext_at(tmp_path)
    address = ext.append(1, 2, b"abc")
    assert address is not None
    assert ext.read(address + 1) is None
    assert ext.read(address + 500) is None
    assert ext.read(12345) is None


def test_a_bitmap_too_long_for_a_unit_gets_no_address(tmp_path: Path) -> None:
    assert ext_at(tmp_path).append(1, 2, bytes(40_000)) is None


def test_files_before_an_address_go(tmp_path: Path) -> None:
    ext = ext_at(tmp_path)
    addresses = [ext.append(number, number, bytes(30)) for number in range(60)]
    ext.write_pending()
    assert addresses[45] is not None
    dropped = ext.drop_before(addresses[45])
    assert [path.name for path in dropped] == [f"{0:020d}", f"{1000:020d}"]
    assert addresses[0] is not None
    assert ext.read(addresses[0]) is None
    assert ext.read(addresses[45]) == ExtUnit(45, 45, bytes(30))


@pytest.mark.proves("store.queues.extensions")
def test_a_queue_keeps_addresses_and_answers_tags(tmp_path: Path) -> None:
    queue = queue_at(tmp_path)
    assert queue.put(*run(0, 150)) == 150
    queue.write_pending()
    queue.sync()
    again = queue_at(tmp_path)
    assert again.load(physical_limit=LOG_END, expected=queue.mark()) is None
    for number in range(150):
        physical_offset, size, address = struct.unpack(">qiq", again.raw_rows(number, 1))
        assert (physical_offset, size) == (number * 100, 100)
        assert is_ext_address(address)
        assert again.rows(number, 1) == struct.pack(">qiq", number * 100, 100, number * 31)
        unit = again.ext_unit(number)
        assert unit == ExtUnit(number * 31, 5000 + number, bytes([number * 100 % 251, 100]))


def test_a_truncated_queue_truncates_its_extension(tmp_path: Path) -> None:
    queue = queue_at(tmp_path)
    queue.put(*run(0, 150))
    queue.write_pending()
    queue.truncate(60 * 100)
    assert queue.queue_offset_max == 60
    queue.put(*run(60, 150))
    queue.write_pending()
    fresh = queue_at(tmp_path / "fresh")
    fresh.put(*run(0, 150))
    fresh.write_pending()
    for kind in ("consumequeue", "consumequeue_ext"):
        ours = sorted((tmp_path / kind / "orders" / "0").iterdir())
        theirs = sorted((tmp_path / "fresh" / kind / "orders" / "0").iterdir())
        assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_a_queue_whose_extension_is_gone_is_a_problem(tmp_path: Path) -> None:
    queue = queue_at(tmp_path)
    queue.put(*run(0, 150))
    queue.write_pending()
    last = sorted((tmp_path / "consumequeue_ext" / "orders" / "0").iterdir())[-1]
    last.unlink()
    again = queue_at(tmp_path)
    problem = again.load(physical_limit=LOG_END, expected=queue.mark())
    assert problem is not None
    again.reset()
    again.put(*run(0, 150))
    again.write_pending()
    assert queue_at(tmp_path).load(physical_limit=LOG_END, expected=queue.mark()) is None


def test_retention_takes_extension_files_too(tmp_path: Path) -> None:
    queue = queue_at(tmp_path)
    queue.put(*run(0, 150))
    queue.write_pending()
    queue.drop_files_before(120 * 100)
    names = sorted(path.name for path in (tmp_path / "consumequeue_ext" / "orders" / "0").iterdir())
    assert names[0] == f"{2000:020d}"
    assert queue.rows(120, 1) == struct.pack(">qiq", 120 * 100, 100, 120 * 31)


class CountingFiles(FileSystem):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.read_bytes_count = 0

    def pread(self, fd: int, byte_count: int, position: int) -> bytes:
        data = super().pread(fd, byte_count, position)
        self.read_bytes_count += len(data)
        return data


@pytest.mark.proves("store.extensions.used-part")
@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("stopped", ["in order", "by a crash"])
def test_a_start_reads_little_of_the_large_sparse_files(
    tmp_path: Path, count: int, stopped: str
) -> None:
    """48 MiB each by default, of which next to nothing is in use."""
    config = small_config(tmp_path / "store", queue_ext_enabled=True, queue_ext_file_bytes=48 << 20)
    queues = 10
    with MessageStore.open(config) as store:
        for queue_id in range(queues):
            append_numbers(store, 0, count, queue_id=queue_id)
    if stopped == "by a crash":
        (config.root / "abort").write_text("1")
    files = CountingFiles()
    with MessageStore.open(config, files=files) as store:
        assert files.read_bytes_count < queues * (200 << 10)
        for queue_id in range(queues):
            assert len(numbers_of(store, queue_id=queue_id)) == count
            found = store.get(b"orders", queue_id, 0, tag_codes=frozenset({java_hash(b"t0")}))
            assert found.message_count == min(-(-count // 3), 17)
        append_numbers(store, count, count + 1)
