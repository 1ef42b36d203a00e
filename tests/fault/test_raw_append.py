"""A slave's log under torn, damaged and foreign bytes, failing disks, crashes and restarts."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from contrail.errors import DiskFull, RawBytesRefused, StoreFollows, StorePoisoned
from contrail.model.record import encode_blank
from contrail.runtime.files import FileSystem
from contrail.store.log import MessageStore
from contrail.store.services.checkpoint import CheckpointFiles
from contrail.store.verify import verify_store
from tests.fakes.failing_files import FailingFileSystem, Fault
from tests.fakes.recording_files import RecordingFileSystem
from tests.fault.campaigns.crash_states import Disk, materialise, some_survive
from tests.fault.raw_log import SEGMENT, cut, derived_files, feed, master_log, open_slave
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.proves("replication.ground.raw-append")
@pytest.mark.parametrize("damage", ["torn", "body", "place", "later"])
def test_refused_bytes_leave_no_trace(tmp_path: Path, damage: str) -> None:
    log = master_log(tmp_path / "master")
    first_half = log[: 2 * SEGMENT]
    with open_slave(tmp_path / "slave") as slave:
        feed(slave, log, [first_half])
        before, end = files_of(tmp_path / "slave" / "commitlog"), slave.physical_end
        rest = bytearray(log[end : end + 3000])
        if damage == "torn":
            rest[:] = rest[:40] + bytes(len(rest) - 40)
        elif damage == "body":
            rest[120] ^= 1
        with pytest.raises(RawBytesRefused):
            slave.append_raw(end + {"place": 1, "later": SEGMENT}.get(damage, 0), rest)
        assert slave.physical_end == end
        assert files_of(tmp_path / "slave" / "commitlog") == before
        feed(slave, log, [log[end:]])
        assert slave.physical_end == len(log)


@pytest.mark.proves("replication.ground.raw-append")
def test_a_slaves_store_takes_no_append_of_its_own(tmp_path: Path) -> None:
    log = master_log(tmp_path / "master")
    with open_slave(tmp_path / "slave") as slave:
        feed(slave, log, [log])
        with pytest.raises(StoreFollows):
            slave.append([draft(1)])
        assert slave.append_raw(slave.physical_end, b"") == 0


@pytest.mark.proves("replication.ground.raw-append")
def test_a_slave_opened_as_a_master_goes_on_with_the_queues_offsets(tmp_path: Path) -> None:
    log = master_log(tmp_path / "master", 60)
    with open_slave(tmp_path / "slave") as slave:
        feed(slave, log, cut(log, [1000] * 100))
    with MessageStore.open(small_config(tmp_path / "slave")) as promoted:
        before = numbers_of(promoted)
        append_numbers(promoted, 500, 510)
        assert numbers_of(promoted) == before + list(range(500, 510))


@pytest.mark.parametrize("ending", ["closed", "killed", "checkpointed"])
def test_a_log_that_ends_behind_a_blank_record_opens_again(tmp_path: Path, ending: str) -> None:
    log = master_log(tmp_path / "master")
    slave = open_slave(tmp_path / "slave")
    feed(slave, log, [log[:SEGMENT]])
    assert slave.physical_end == SEGMENT
    if ending == "closed":
        slave.close()
    else:
        if ending == "checkpointed":
            slave.checkpoint()
        slave._release()
    with open_slave(tmp_path / "slave") as again:
        assert again.physical_end == SEGMENT
        feed(again, log, cut(log[SEGMENT:], [700] * 50))
    with MessageStore.open(small_config(tmp_path / "master")):
        pass
    assert derived_files(tmp_path / "slave") == derived_files(tmp_path / "master")


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_checkpoint_names_the_end_of_a_record_and_not_of_a_blank_one(
    tmp_path: Path, is_clean: bool
) -> None:
    """Versions from before there were slaves call any other end damage, and refuse the folder."""
    log = master_log(tmp_path / "master")
    slave = open_slave(tmp_path / "slave")
    feed(slave, log, [log[:SEGMENT]])
    rows = [row for key in slave.queues() for row in slave.rows(*key, 0, 1_000)]
    last = max(rows, key=lambda row: row.physical_offset)
    if is_clean:
        slave.close()
    else:
        slave.checkpoint()
        slave._release()
    mark = CheckpointFiles(FileSystem(), tmp_path / "slave").read().log
    assert mark is not None and mark.last_record_offset == last.physical_offset
    assert mark.physical_end == last.physical_offset + last.byte_count < SEGMENT
    assert verify_store(tmp_path / "slave", index_slot_count=40).is_sound
    with open_slave(tmp_path / "slave") as again:
        assert again.physical_end == again.dispatched_end == SEGMENT


@pytest.mark.parametrize("damaged", [False, True])
def test_a_blank_record_at_the_end_of_the_log_is_promised_to_nobody(
    tmp_path: Path, damaged: bool
) -> None:
    """A damaged one is a torn tail: it is taken from the master again."""
    log = master_log(tmp_path / "master")
    with open_slave(tmp_path / "slave") as slave:
        feed(slave, log, [log[:SEGMENT]])
        assert slave.dispatched_end == SEGMENT
    segment = tmp_path / "slave" / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    blank_at = data.rindex(encode_blank(1 << 10)[4:]) - 4
    if damaged:
        data[blank_at + 3] ^= 1
    segment.write_bytes(data)
    assert verify_store(tmp_path / "slave", index_slot_count=40).is_sound
    with open_slave(tmp_path / "slave") as again:
        assert again.physical_end == (blank_at if damaged else SEGMENT)
        feed(again, log, cut(log[again.physical_end :], [700] * 50))
    with MessageStore.open(small_config(tmp_path / "master")):
        pass
    assert derived_files(tmp_path / "slave") == derived_files(tmp_path / "master")


@pytest.mark.proves("replication.ground.begins-later")
def test_an_empty_log_begins_at_the_start_of_a_later_segment(tmp_path: Path) -> None:
    log = master_log(tmp_path / "master")
    start = 3 * SEGMENT
    with open_slave(tmp_path / "slave", segments_prepared_ahead=True) as slave:
        assert slave.is_empty
        with pytest.raises(RawBytesRefused):
            slave.append_raw(start + 8, log[start + 8 :])
        assert slave.append_raw(start, log[start:]) == len(log) - start
        slave.dispatch()
        assert (slave.physical_min, slave.physical_end) == (start, len(log))
        assert slave.kept_end == len(log) and not slave.is_empty
        with pytest.raises(RawBytesRefused):
            slave.append_raw(0, log)
        found = numbers_of(slave)
    with open_slave(tmp_path / "slave") as again:
        assert numbers_of(again) == found and again.physical_min == start
        assert again.queue_offset_min(b"orders", 0) > 0


@pytest.mark.proves("replication.ground.begins-later")
def test_an_empty_log_whose_segment_was_made_may_still_begin_elsewhere(tmp_path: Path) -> None:
    log = master_log(tmp_path / "master")
    # As a crash leaves it between the creation of the first segment and the first write to it.
    (tmp_path / "slave" / "commitlog").mkdir(parents=True)
    (tmp_path / "slave" / "commitlog" / f"{SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    with open_slave(tmp_path / "slave") as slave:
        assert slave.is_empty and slave.physical_end == SEGMENT
        slave.checkpoint()
        assert slave.append_raw(4 * SEGMENT, log[4 * SEGMENT :]) > 0
        slave.dispatch()
    with open_slave(tmp_path / "slave") as again:
        assert (again.physical_min, again.physical_end) == (4 * SEGMENT, len(log))


@pytest.mark.parametrize("short_bytes", [None, 0, 100])
def test_a_failed_write_poisons_the_store_and_the_next_start_goes_on(
    tmp_path: Path, short_bytes: int | None
) -> None:
    log = master_log(tmp_path / "master")
    fault = Fault("pwrite", "commitlog", nth=3, short_bytes=short_bytes)
    slave = open_slave(tmp_path / "slave", files=FailingFileSystem(fault))
    with pytest.raises(StorePoisoned):
        feed(slave, log, cut(log, [2000] * 50))
    with pytest.raises(StorePoisoned):
        slave.append_raw(slave.physical_end, log[slave.physical_end :])
    slave.close()
    with open_slave(tmp_path / "slave") as again:
        feed(again, log, [log[again.physical_end :]])
    assert derived_files(tmp_path / "slave") == derived_files(tmp_path / "master")


def test_a_full_disk_refuses_bytes_until_it_has_room(tmp_path: Path) -> None:
    log = master_log(tmp_path / "master")
    fault = Fault("allocate", "commitlog", nth=2, error=errno.ENOSPC)
    with open_slave(tmp_path / "slave", files=FailingFileSystem(fault)) as slave:
        with pytest.raises(DiskFull):
            slave.append_raw(0, log)
        assert slave.physical_end == 0
        feed(slave, log, [log])
        assert slave.physical_end == len(log)


@pytest.mark.proves("replication.ground.raw-append")
@pytest.mark.parametrize("begins_at", [0, 2 * SEGMENT])
def test_a_power_cut_anywhere_leaves_a_part_of_the_masters_log(
    memory_path: Path, begins_at: int
) -> None:
    """The slave goes on from there, and ends with the master's bytes."""
    rng = random.Random(begins_at + 5)
    log = master_log(memory_path / "master", 50)
    recorded = memory_path / "recorded"
    recorded.mkdir()
    files = RecordingFileSystem(recorded)
    with open_slave(recorded, files=files) as slave:
        slave.append_raw(begins_at, log[begins_at : begins_at + 3000])
        pieces = cut(log[slave.physical_end :], (rng.randrange(1, 2500) for _ in range(99)))
        for number, piece in enumerate(list(pieces)):
            feed(slave, log, [log[slave.physical_end :][: len(piece)]])
            if number % 7 == 3:
                slave.checkpoint()
    places = sorted(rng.sample(range(len(files.operations)), 60))
    disk, seen = Disk(files.baseline), 0
    for number, place in enumerate(places):
        while seen < place:
            disk.follow(seen, files.operations[seen])
            seen += 1
        state = memory_path / f"state{number}"
        materialise(disk.crash(some_survive(rng)), source=recorded, target=state)
        _judge(state, log, begins_at)


def _judge(state: Path, log: bytes, begins_at: int) -> None:
    with open_slave(state) as slave:
        end = slave.physical_end
        start = slave.physical_min if not slave.is_empty else begins_at
        if not slave.is_empty:
            assert start == begins_at
            for at in range(start, end, SEGMENT):
                until = min(at + SEGMENT, end)
                assert slave.log_bytes(at, until - at) == log[at:until]
        slave.append_raw(max(end, start), log[max(end, start) :])
        slave.dispatch()
        assert slave.physical_end == len(log)
        found = numbers_of(slave)
        assert found == sorted(found)
