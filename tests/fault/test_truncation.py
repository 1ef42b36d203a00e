"""A member's log is cut at run time: crashes at any step, and what the store remembers."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from contrail.errors import LogCut, StoreFollows, StorePoisoned
from contrail.runtime.files import FileSystem
from contrail.store.log import MessageStore
from contrail.store.services.checkpoint import CheckpointFiles
from tests.fakes.failing_files import FailingFileSystem, Fault
from tests.fakes.recording_files import Marked, RecordingFileSystem
from tests.fault.campaigns.crash_states import Disk, materialise, some_survive
from tests.fault.group_log import (
    MARKER_TOPIC,
    append_some,
    begin_epoch,
    commit_all,
    log_of,
    open_member,
    two_logs,
)
from tests.fault.raw_log import SEGMENT
from tests.fault.store_setup import draft, numbers_of

pytestmark = pytest.mark.proves("replication.failover.truncation")

COMMON = 9


class OneSlowSync(FileSystem):
    """A disk with one sync that takes until it is let through, once it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.is_next = False
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def fdatasync(self, fd: int) -> None:
        if self.is_next:
            self.is_next = False
            self.has_begun.set()
            self.may_end.wait(60)
        super().fdatasync(fd)


def common_end(one: bytes, two: bytes, ends: list[int]) -> int:
    """Where the logs of two leaders part."""
    end = ends[COMMON]
    assert one[:end] == two[:end] and one[end : end + 200] != two[end : end + 200]
    return end


def is_part_of(found: bytes, log: bytes) -> bool:
    return log.startswith(found)


@pytest.mark.parametrize("behind", [0, 3, 20, 45])
def test_a_cut_log_takes_another_leaders_records(tmp_path: Path, behind: int) -> None:
    """The cut lies in the last segment or some segments before it."""
    one, two, ends = two_logs(tmp_path, COMMON, 60)
    cut = common_end(one, two, ends)
    with open_member(tmp_path / "member") as member:
        member.append_raw(0, one[: ends[COMMON + behind]])
        member.commit_to(cut)
        member.dispatch()
        member.wait_flushed(member.physical_end)
        before = numbers_of(member)
        member.truncate(cut)
        assert member.physical_end == member.flushed_end == cut
        assert member.positions.cut_count == 1
        member.append_raw(cut, two[cut:])
        commit_all(member)
        assert log_of(member) == two
        assert numbers_of(member)[: len(before)] == before
        assert all(number < COMMON or number >= 1000 for number in numbers_of(member))
    with open_member(tmp_path / "member") as again:
        assert log_of(again) == two and again.dispatched_end == len(two)


@pytest.mark.parametrize(("behind", "seed"), [(4, 1), (30, 2), (60, 3)])
def test_a_power_cut_at_any_step_of_a_cut_keeps_the_rest_and_brings_nothing_back(
    memory_path: Path, behind: int, seed: int
) -> None:
    rng = random.Random(seed)
    one, two, ends = two_logs(memory_path, COMMON, 60)
    cut, old = common_end(one, two, ends), one[: ends[COMMON + behind]]
    recorded = memory_path / "recorded"
    recorded.mkdir()
    files = RecordingFileSystem(recorded)
    with open_member(recorded, files=files, segments_prepared_ahead=True) as member:
        member.append_raw(0, old)
        member.commit_to(cut)
        member.dispatch()
        member.checkpoint()
        files.mark("begin")
        member.truncate(cut)
        files.mark("cut")
        half = member.units_end(cut, len(two), 1500)
        member.append_raw(cut, two[cut:half])
        member.wait_flushed(half)
        files.mark("synced")
        member.append_raw(half, two[half:])
        member.wait_flushed(len(two))
        files.mark("end")
    disk, reached, judged = Disk(files.baseline), "", 0
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
        if isinstance(operation, Marked):
            reached = str(operation.note)
        if not reached or (reached == "end" and rng.random() > 0.2):
            continue
        for survival in range(2):
            state = memory_path / f"state-{index}-{survival}"
            materialise(disk.crash(some_survive(rng)), source=recorded, target=state)
            with open_member(state) as member:
                found = log_of(member)
                kept = {"begin": cut, "cut": cut, "synced": half, "end": len(two)}[reached]
                assert len(found) >= kept
                of_old = reached == "begin" and is_part_of(found, old)
                assert of_old or is_part_of(found, two), f"at operation {index} ({reached})"
                assert member.positions.commit_limit <= cut
                assert member.dispatched_end <= cut
            judged += 1
    assert judged > 40


@pytest.mark.proves("replication.failover.below-commit")
def test_rows_of_records_that_were_cut_are_never_derived(tmp_path: Path) -> None:
    one, two, ends = two_logs(tmp_path, COMMON, 20)
    cut = common_end(one, two, ends)
    with open_member(tmp_path / "member") as member:
        member.append_raw(0, one[:cut])
        commit_all(member)
        # Both stretches wait in memory for their commit; they lie at the same place.
        member.append_raw(cut, one[cut : ends[COMMON + 5]])
        member.truncate(cut)
        member.append_raw(cut, two[cut:])
        commit_all(member)
        expected = [*range(0, COMMON, 3), *(n for n in range(1000, 1020) if n % 3 == 0)]
        assert numbers_of(member) == expected
        assert [one.body[:8] for one in member.query(b"orders", b"k3")] == [
            b"%08d" % number for number in (3, 1003, 1013)
        ]


def test_a_checkpoint_that_named_bytes_behind_the_cut_does_not_end_the_member(
    tmp_path: Path,
) -> None:
    one, two, ends = two_logs(tmp_path, COMMON, 20)
    cut = common_end(one, two, ends)
    member = open_member(tmp_path / "member")
    member.append_raw(0, one)
    member.commit_to(cut)
    member.checkpoint()
    member.truncate(cut)
    member._release()
    with open_member(tmp_path / "member") as again:
        assert again.physical_end == cut


def test_a_sync_under_way_says_nothing_of_the_bytes_behind_a_cut(tmp_path: Path) -> None:
    one, two, ends = two_logs(tmp_path, COMMON, 20)
    cut, old_end = common_end(one, two, ends), ends[COMMON + 5]
    files = OneSlowSync()
    told: list[tuple[int, int]] = []
    members: list[MessageStore] = []

    def flushed(end: int) -> None:
        told.append((end, members[0].positions.cut_count))

    with open_member(tmp_path / "member", files=files, on_flushed=flushed) as member:
        members.append(member)
        member.append_raw(0, one[:cut])
        member.wait_flushed(cut)
        files.is_next = True
        member.append_raw(cut, one[cut:old_end])
        waiting = threading.Thread(target=_expect_cut, args=(member, ends[COMMON + 6]))
        waiting.start()
        files.has_begun.wait(10)
        threading.Timer(0.05, files.may_end.set).start()
        member.truncate(cut)
        waiting.join(10)
        assert not waiting.is_alive()
        assert member.flushed_end == cut
        member.append_raw(cut, two[cut:])
        member.wait_flushed(len(two))
        assert told == [(cut, 0), (old_end, 0), (len(two), 1)]


def _expect_cut(member: MessageStore, physical_end: int) -> None:
    with pytest.raises(LogCut):
        member.wait_flushed(physical_end)


def test_a_failed_cut_poisons_the_store(tmp_path: Path) -> None:
    one, two, ends = two_logs(tmp_path, COMMON, 20)
    cut = common_end(one, two, ends)
    files = FailingFileSystem()
    member = open_member(tmp_path / "member", files=files)
    member.append_raw(0, one)
    member.wait_flushed(len(one))
    files.faults.append(Fault("unlink", "commitlog", nth=1))
    with pytest.raises(StorePoisoned):
        member.truncate(cut)
    with pytest.raises(StorePoisoned):
        member.truncate(cut)
    assert member.poisoned is not None
    member.close()


@pytest.mark.parametrize("place", ["below commit", "in a record", "behind a bare blank"])
def test_a_cut_that_no_leader_may_ask_for_is_a_bug(tmp_path: Path, place: str) -> None:
    one, _, ends = two_logs(tmp_path, COMMON, 30)
    with open_member(tmp_path / "member") as member:
        member.append_raw(0, one)
        member.commit_to(ends[COMMON])
        cut = {
            "below commit": ends[COMMON - 1],
            "in a record": ends[COMMON + 2] + 10,
            "behind a bare blank": (ends[COMMON] // SEGMENT + 1) * SEGMENT,
        }[place]
        with pytest.raises(AssertionError):
            member.truncate(cut)
        assert member.physical_end == len(one)


@pytest.mark.proves("replication.failover.below-commit")
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_derives_up_to_the_commit_hint_and_keeps_the_rest(
    tmp_path: Path, is_clean: bool
) -> None:
    one, _, ends = two_logs(tmp_path, COMMON, 20)
    member = open_member(tmp_path / "member")
    member.append_raw(0, one)
    member.wait_flushed(len(one))
    member.commit_to(ends[COMMON])
    member.dispatch()
    if is_clean:
        member.close()
    else:
        member.checkpoint()
        member._release()
    with open_member(tmp_path / "member") as again:
        assert again.physical_end == again.flushed_end == len(one)
        assert again.positions.commit_limit == again.dispatched_end == ends[COMMON]
        assert numbers_of(again) == [*range(0, COMMON, 3)]
        assert again.acknowledged_end == again.settled_end == ends[COMMON]
        again.commit_to(len(one))
        again.dispatch()
        assert numbers_of(again) == [*range(0, COMMON + 20, 3)]


@pytest.mark.proves("replication.failover.below-commit")
def test_lost_queue_files_are_rebuilt_up_to_the_commit_hint_alone(tmp_path: Path) -> None:
    one, _, ends = two_logs(tmp_path, COMMON, 20)
    with open_member(tmp_path / "member") as member:
        member.append_raw(0, one)
        member.commit_to(ends[COMMON])
        member.dispatch()
    for path in (tmp_path / "member").glob("contrail.queues*"):
        path.unlink()
    with open_member(tmp_path / "member") as again:
        assert again.dispatched_end == ends[COMMON]
        assert numbers_of(again) == [*range(0, COMMON, 3)]


def test_a_blank_record_is_taken_and_kept_with_the_record_behind_it_alone(tmp_path: Path) -> None:
    one, _, ends = two_logs(tmp_path, COMMON, 20)
    before = max(end for end in ends if end < SEGMENT)
    with open_member(tmp_path / "member") as member:
        assert member.append_raw(0, one[:SEGMENT]) == before
        assert member.physical_end == before
        assert member.append_raw(before, one[before:SEGMENT]) == 0
        member.append_raw(before, one[before:])
        assert member.physical_end == len(one)
        assert member.units_end(before, len(one), 100) == min(e for e in ends if e > SEGMENT)
        assert member.units_end(0, len(one), 10) == ends[0]
        assert member.units_end(0, len(one), 1 << 20) == before
    segments = sorted((tmp_path / "member" / "commitlog").iterdir())
    for path in segments[1:]:
        path.unlink()
    for name in ("contrail.checkpoint", "contrail.queues"):
        for path in (tmp_path / "member").glob(name + "*"):
            path.unlink()
    (tmp_path / "member" / "checkpoint").unlink()
    with open_member(tmp_path / "member") as again:
        assert again.physical_end == before
        assert segments[0].read_bytes()[before:] == bytes(SEGMENT - before)


@pytest.mark.proves("replication.failover.next-offsets")
def test_a_new_leader_goes_on_with_the_offsets_of_its_queues(tmp_path: Path) -> None:
    """Offsets of a former leadership, of appends that were cut off, are forgotten."""
    one, two, ends = two_logs(tmp_path, COMMON, 20)
    cut = common_end(one, two, ends)
    with open_member(tmp_path / "member") as member:
        member.append_raw(0, one[:cut])
        commit_all(member)
        begin_epoch(member, 1)
        first = member.physical_end
        append_some(member, 500, 530)
        assert member.append([draft(1, topic="other")]).queue_offsets == [0]
        member.stop_leading()
        with pytest.raises(StoreFollows):
            member.append([draft(1)])
        member.truncate(first)
        begin_epoch(member, 2)
        assert member.append([draft(1, topic="other")]).queue_offsets == [0]
        append_some(member, 600, 630)
        commit_all(member)
        assert numbers_of(member) == [
            *range(0, COMMON, 3),
            *(number for number in range(600, 630) if number % 3 == 0),
        ]
        assert numbers_of(member, MARKER_TOPIC) == [0, 1, 2]


@pytest.mark.proves("replication.failover.next-offsets")
def test_a_floor_counts_where_a_queue_has_lost_its_rows(tmp_path: Path) -> None:
    with open_member(tmp_path / "member") as member:
        member.append_marker(draft(0, topic=MARKER_TOPIC), 0)
        commit_all(member)
        member.lead({(b"orders", 0): 70})
        assert member.append([draft(1)]).queue_offsets == [70]


def test_members_read_the_tail_above_the_commit_for_records_of_their_own(tmp_path: Path) -> None:
    _, two, ends = two_logs(tmp_path, COMMON, 40)
    with open_member(tmp_path / "member") as member:
        member.append_raw(0, two)
        topics = frozenset({MARKER_TOPIC.encode()})
        found = list(member.appended_between(0, len(two), topics))
        assert [message.queue_offset for message in found] == [0, 1]
        assert found[1].physical_offset == ends[COMMON]
        assert numbers_of(member, MARKER_TOPIC) == []


def test_a_cut_ends_the_zeros_and_the_segment_that_was_prepared(tmp_path: Path) -> None:
    one, two, ends = two_logs(tmp_path, COMMON, 60)
    cut = common_end(one, two, ends)
    files = FileSystem()
    with open_member(tmp_path / "member", files=files, segments_prepared_ahead=True) as member:
        member.append_raw(0, one)
        member.commit_to(cut)
        member.truncate(cut)
        names = sorted(path.name for path in (tmp_path / "member" / "commitlog").iterdir())
        assert names == [f"{start:020d}" for start in range(0, cut, SEGMENT)]
        last = tmp_path / "member" / "commitlog" / names[-1]
        assert last.read_bytes()[cut % SEGMENT :] == bytes(SEGMENT - cut % SEGMENT)
        member.append_raw(cut, two[cut:])
        assert log_of(member) == two


def test_a_log_that_begins_later_is_cut_down_to_its_beginning(tmp_path: Path) -> None:
    """A learner begins where its leader's log does, and nothing of it need be committed yet."""
    one, two, _ = two_logs(tmp_path, COMMON, 60)
    begin = 2 * SEGMENT
    with open_member(tmp_path / "member") as member:
        member.append_raw(begin, one[begin:])
        member.wait_flushed(len(one))
        member.truncate(begin)
        assert member.physical_min == member.physical_end == begin and member.is_empty
        member.append_raw(begin, two[begin:])
        commit_all(member)
        before = numbers_of(member)
        assert before == sorted(before) and len(before) > 5
    with open_member(tmp_path / "member") as again:
        assert (again.physical_min, again.physical_end) == (begin, len(two))
        assert again.dispatched_end == len(two) and numbers_of(again) == before


def test_the_commit_hint_never_passes_what_this_disk_has(tmp_path: Path) -> None:
    """The others of the group may have committed what this member has not synced."""
    one, two, ends = two_logs(tmp_path, COMMON, 20)
    cut = common_end(one, two, ends)
    with open_member(tmp_path / "member", is_stepped=True) as member:
        member.append_raw(0, one[: ends[3]])
        member.flush_now()
        member.append_raw(ends[3], one[ends[3] :])
        member.commit_to(cut)
        member.truncate(cut)
        mark = CheckpointFiles(FileSystem(), tmp_path / "member").read().log
        assert mark is not None
        assert mark.physical_end == mark.commit_hint == ends[3]
        assert member.flushed_end == ends[3] and member.physical_end == cut
        member.flush_now()
        assert member.flushed_end == cut
