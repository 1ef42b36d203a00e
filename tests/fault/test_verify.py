"""A whole store is checked, and queues and index are rebuilt on request."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import StoreLocked
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.log import MessageStore
from contrail.store.verify import VerifyReport, verify_store
from tests.fault.store_setup import append_numbers, numbers_of, small_config

COUNT = 200


@pytest.fixture(scope="module")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments, queue files and index files, closed in order."""
    root = tmp_path_factory.mktemp("sound") / "store"
    with MessageStore.open(small_config(root), clock=ManualClock()) as store:
        append_numbers(store, 0, COUNT)
        append_numbers(store, COUNT, COUNT + 30, topic="bills", queue_id=2)
        for number in range(10):
            properties = encode_properties({"UNIQ_KEY": f"B{number}", "INNER_NUM": "3"})
            store.append_inner_batch(MessageDraft(b"batches", 0, b"x", properties, sys_flag=0xC0))
        store.dispatch()
    return root


@pytest.fixture
def root(sound_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_folder, tmp_path / "store"))


def verified(root: Path, **settings: object) -> VerifyReport:
    return verify_store(root, index_slot_count=40, **settings)  # type: ignore[arg-type]


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def contents(root: Path, folder: str) -> dict[str, bytes]:
    paths = [path for path in (root / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_a_sound_store_is_found_sound_and_left_alone(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    report = verified(root)
    assert report.is_sound
    assert report.record_count == report.row_count == COUNT + 40
    assert report.key_count == 2 * (COUNT + 30) + 10
    assert report.notes == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_the_report_is_json(root: Path) -> None:
    told = json.loads(verified(root).to_json())
    assert told["sound"] is True
    assert told["record_count"] == COUNT + 40


def test_progress_ends_at_the_whole(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    verified(root, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert len({total for _, total in seen}) == 1


def test_every_bit_of_a_row_is_covered(root: Path) -> None:
    path = root / "consumequeue/orders/0" / f"{0:020d}"
    sound = path.read_bytes()
    for bit in range(160):
        flip(path, 20 * 11 + bit // 8, bit % 8)
        (finding,) = verified(root).queues
        assert (finding.topic, finding.first_row) == ("orders", 11)
        assert finding.missing + finding.wrong == 1
        path.write_bytes(sound)


@pytest.mark.proves("store.crashes.bit-flips")
@pytest.mark.parametrize("seed", range(3))
def test_random_flips_in_queues_and_index_are_found_and_rebuilt(root: Path, seed: int) -> None:
    queues, index = contents(root, "consumequeue"), contents(root, "index")
    chooser = random.Random(seed)
    for _ in range(15):
        path, position = chooser.choice([*used_places(root)])
        flip(path, position, chooser.randrange(8))
        assert not verified(root).is_sound, (seed, path, position)
        report = verified(root, repair=True)
        assert report.is_sound, (seed, path, position, report)
        assert contents(root, "consumequeue") == queues
    assert sorted(contents(root, "index").values()) == sorted(index.values())
    with MessageStore.open(small_config(root), batch_topics=frozenset({b"batches"})) as store:
        assert store.recovery.problems == []
        assert numbers_of(store) == list(range(COUNT))


def used_places(root: Path) -> list[tuple[Path, int]]:
    """Bytes of derived files that are in use: row and entry bytes, and index slots."""
    found: list[tuple[Path, int]] = []
    for path in sorted((root / "consumequeue").rglob("0*")):
        if path.is_file():
            rows = path.read_bytes().rstrip(b"\0")
            found += [(path, at) for at in range(0, len(rows), 7)]
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        found += [(path, at) for at in range(200 + 20, len(data.rstrip(b"\0")), 7)]
        found += [(path, at) for at in range(40, 200, 5) if data[at]]
    return found


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def doubled(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


@pytest.mark.parametrize("harm", [removed, emptied, halved, doubled])
@pytest.mark.parametrize("name", ["consumequeue/orders/0/first", "consumequeue/orders/0/last"])
def test_a_queue_file_removed_or_resized_is_found_and_rebuilt(
    root: Path, name: str, harm: Callable[[Path], None]
) -> None:
    before = contents(root, "consumequeue")
    files = sorted((root / name).parent.iterdir())
    harm(files[0] if name.endswith("first") else files[-1])
    report = verified(root)
    assert [finding.topic for finding in report.queues] == ["orders"]
    assert verified(root, repair=True).is_sound
    assert contents(root, "consumequeue") == before


@pytest.mark.parametrize("folder", ["consumequeue/bills", "consumequeue", "index"])
def test_a_folder_that_is_gone_is_rebuilt(root: Path, folder: str) -> None:
    removed(root / folder)
    assert not verified(root).is_sound
    assert verified(root, repair=True).is_sound
    assert verified(root).is_sound


def test_rows_of_batches_are_compared_and_rebuilt(root: Path) -> None:
    before = contents(root, "batchconsumequeue")
    flip(root / "batchconsumequeue/batches/0" / f"{0:020d}", 46 * 5 + 33, 1)
    (finding,) = verified(root).queues
    assert finding.topic == "batches"
    assert verified(root, repair=True).is_sound
    assert contents(root, "batchconsumequeue") == before


def test_a_queue_of_batches_whose_folder_is_gone_is_rebuilt_as_one(root: Path) -> None:
    before = contents(root, "batchconsumequeue")
    removed(root / "batchconsumequeue")
    (finding,) = verified(root).queues
    assert (finding.topic, finding.missing) == ("batches", 10)
    assert verified(root, repair=True).is_sound
    assert contents(root, "batchconsumequeue") == before
    assert not (root / "consumequeue/batches").exists()


def test_rows_behind_the_last_row_are_reported_as_extra(root: Path) -> None:
    path = sorted((root / "consumequeue/bills/2").iterdir())[-1]
    data = bytearray(path.read_bytes())
    data[600:620] = data[0:20]
    path.write_bytes(data)
    (finding,) = verified(root).queues
    assert finding.extra == 1
    assert verified(root, repair=True).is_sound


def test_damage_in_the_log_is_named_with_its_message_and_never_repaired(root: Path) -> None:
    path = root / "commitlog" / f"{0:020d}"
    flip(path, 100, 0)
    damaged = path.read_bytes()
    for repair in (False, True):
        report = verified(root, repair=repair)
        (finding,) = report.log
        assert finding.physical_start == 0
        assert (finding.topic, finding.queue_id, finding.queue_offset) == ("orders", 0, 0)
        assert not report.is_sound
    assert path.read_bytes() == damaged


def test_a_missing_segment_is_a_range_of_the_log(root: Path) -> None:
    (root / "commitlog" / f"{8192:020d}").unlink()
    (finding,) = verified(root).log
    assert (finding.physical_start, finding.physical_end) == (8192, 16384)


def test_a_stray_file_beside_the_segments_is_found(root: Path) -> None:
    (root / "commitlog/notes.txt").write_text("mine")
    report = verified(root)
    assert not report.is_sound
    assert "notes.txt" in report.files[0]


@pytest.mark.parametrize("name", ["contrail.checkpoint", "contrail.queues"])
def test_a_damaged_state_file_is_reported(root: Path, name: str) -> None:
    for path in root.glob(f"{name}*"):
        path.write_bytes(b"noise")
    report = verified(root)
    assert name in report.files[0]


def test_a_live_store_is_sound_and_cannot_be_repaired_from_another_process(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 50)
        store.checkpoint()
        append_numbers(store, 50, 100)
        report = verified(tmp_path)
        assert report.is_sound
        assert (report.record_count, report.row_count) == (100, 50)
        code = (
            "import sys, pathlib; from contrail.store.verify import verify_store; "
            "verify_store(pathlib.Path(sys.argv[1]), repair=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
        )
        assert StoreLocked.__name__ in done.stderr


def test_a_store_left_by_a_crash_is_held_to_its_checkpoint(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path / "live")) as store:
        append_numbers(store, 0, 50)
        store.checkpoint()
        append_numbers(store, 50, 100)
        copy = Path(shutil.copytree(tmp_path / "live", tmp_path / "crashed"))
    report = verified(copy)
    assert report.is_sound
    assert not report.was_clean
    path = copy / "consumequeue/orders/0" / f"{0:020d}"
    flip(path, 41, 2)
    assert verified(copy, repair=True).is_sound
    with MessageStore.open(small_config(copy)) as store:
        assert numbers_of(store) == list(range(100))


def test_a_folder_another_broker_wrote_is_verified_and_repaired(root: Path) -> None:
    for path in root.glob("contrail.*"):
        path.unlink()
    assert verified(root).is_sound
    flip(root / "consumequeue/orders/0" / f"{0:020d}", 45, 0)
    assert verified(root, repair=True).is_sound


def test_after_retention_what_is_left_is_sound(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path), clock=ManualClock()) as store:
        append_numbers(store, 0, 300)
        while store._segments.physical_min < 8192 * 3:
            store._segments.remove_first()
        store._queues.drop_files_before(store.physical_min)
        store._queues.correct_minimums(store.physical_min)
        assert store._index is not None
        store._index.drop_files_before(store.physical_min)
    report = verified(tmp_path)
    assert report.is_sound, report
    for path in [*(tmp_path / "consumequeue/orders/0").iterdir()][:1]:
        flip(path, 20 * 49 + 3, 0)
    assert verified(tmp_path, repair=True).is_sound
    assert verified(tmp_path).is_sound


def test_rows_of_a_deleted_topic_are_not_missed(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 20)
        append_numbers(store, 20, 40, topic="bills")
        store.delete_topic(b"bills")
        append_numbers(store, 40, 45, topic="bills")
    report = verified(tmp_path)
    assert report.is_sound, report
    assert report.row_count == 25
