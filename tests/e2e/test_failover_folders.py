"""Folders of a group's members that are behind the leader's log, older than they were, or lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contrail.errors import ConfigError
from contrail.replication.services.replica_file import Phase
from contrail.testing.waiting import eventually_async
from tests.e2e.failover_trio import SEGMENT_BYTES, TOPIC, LocalMember, Trio, failover_group


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


async def start_all(trio: Trio) -> LocalMember:
    for member in trio:
        await member.start()
    leader = await trio.led()
    await trio.has_voters(len(trio.peers))
    return leader


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number:04}".encode() * 8 for number in range(count)]


async def fill(trio: Trio, leader: LocalMember, segment_count: int) -> None:
    """Append until so many more segments are full."""
    assert leader.store is not None
    end = leader.store.physical_end + segment_count * SEGMENT_BYTES
    number = 0
    while leader.store.physical_end < end:
        leader.append(*bodies(f"fill-{number}", 100))
        number += 1
        await asyncio.sleep(0)
    await trio.committed(leader.store.physical_end, at=[m for m in trio if m.runner is not None])


async def retain(member: LocalMember) -> int:
    """Let retention remove all but the last two segments; returns where the log begins then."""
    store = member.store
    assert store is not None
    wanted = store.physical_end // SEGMENT_BYTES * SEGMENT_BYTES - SEGMENT_BYTES
    member.snapshot_start = wanted + 10
    limit = store.retention_limits["snapshot"]

    def is_noted() -> bool:
        member.retention.run()
        return limit() == wanted

    await eventually_async(is_noted, "the floor is on the disk")
    store.retention.request_manual()
    # Long after the age of every segment; each removal waits for the one before.
    for round_number in range(20):
        store.retention.run_once((1 << 43) + round_number * 60_000)
    assert store.physical_min == wanted
    return wanted


def name_of(member: LocalMember) -> str:
    assert member.runner is not None and member.runner.member is not None
    return member.runner.member.self_id


def phase_of(member: LocalMember) -> Phase:
    assert member.runner is not None
    replica = member.runner.files.replica.read()
    assert replica is not None
    return replica.phase


def is_whole(member: LocalMember) -> bool:
    found = member.runner.member if member.runner is not None else None
    return found is not None and found.may_vote


@pytest.mark.proves("replication.failover.behind-retention")
@pytest.mark.proves("replication.failover.retention")
def test_a_member_behind_the_leaders_log_is_emptied_and_votes_again_under_its_name(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            behind = next(one for one in trio if one is not leader)
            await trio.committed(leader.append(*bodies("first", 20)))
            name = name_of(behind)
            await behind.stop()
            await fill(trio, leader, 4)
            begins = await retain(leader)
            assert begins > 0
            await behind.start()
            await eventually_async(lambda: behind.new_starts == 1, "it begins anew")
            await eventually_async(lambda: is_whole(behind), "it has everything again")
            assert name_of(behind) == name
            await eventually_async(lambda: phase_of(behind) is Phase.LEARNER, "it is written")
            await trio.committed(leader.append(b"last"))
            assert behind.store is not None and behind.store.physical_min == begins
            assert behind.log_bytes() == leader.log_bytes()
            assert behind.bodies() == leader.bodies()
            # Both know the epoch of their first byte over restarts, and it leads as well.
            for member in (behind, leader):
                await member.stop()
                await member.start()
            await trio.led()
            await trio.has_voters(3)
            assert behind.runner is not None and behind.runner.member is not None
            if not behind.leads:
                leader = await trio.led()
                assert leader.runner is not None
                await eventually_async(lambda: leader.runner.is_level(behind.self_id), "level")
                leader.runner.transfer(behind.self_id)
                assert await trio.led(besides=leader) is behind
            await trio.committed(behind.append(b"led by it"))

    run(story)


@pytest.mark.proves("replication.failover.join")
@pytest.mark.proves("replication.failover.retention")
def test_a_new_member_joins_a_group_whose_log_begins_late(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            wiped = next(one for one in trio if one is not leader)
            former = name_of(wiped)
            await wiped.stop()
            shutil.rmtree(wiped.folder)
            await fill(trio, leader, 4)
            begins = await retain(leader)
            await wiped.start()
            await eventually_async(lambda: is_whole(wiped), "it votes")
            # It was empty: nothing had to be emptied.
            assert wiped.new_starts == 0 and name_of(wiped) != former
            await trio.committed(leader.append(b"last"))
            assert wiped.store is not None and wiped.store.physical_min == begins
            assert wiped.log_bytes() == leader.log_bytes()

    run(story)


@pytest.mark.proves("replication.failover.restored")
def test_a_member_with_an_older_disk_comes_back_as_a_learner(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            restored = next(one for one in trio if one is not leader)
            await trio.committed(leader.append(*bodies("before", 20)))
            former = name_of(restored)
            await restored.stop()
            shutil.copytree(restored.folder, tmp_path / "backup")
            await restored.start()
            await trio.committed(leader.append(*bodies("after", 20)))
            assert leader.runner is not None and leader.runner.member is not None
            member = leader.runner.member
            await eventually_async(
                lambda: member.progress[former].matched_end == member.log.end, "it acknowledged"
            )
            await restored.stop()
            shutil.rmtree(restored.folder)
            shutil.copytree(tmp_path / "backup", restored.folder)
            await restored.start()
            await eventually_async(lambda: restored.new_starts == 1, "it is told so")
            await eventually_async(lambda: is_whole(restored), "it votes as another member")
            assert name_of(restored) != former
            assert former not in member.log.voters.now
            await trio.committed(leader.append(b"last"))
            assert restored.log_bytes() == leader.log_bytes()

    run(story)


@pytest.mark.proves("replication.failover.restored")
def test_acknowledged_ends_are_remembered_over_a_restart_of_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            restored = next(one for one in trio if one is not leader)
            await restored.stop()
            shutil.copytree(restored.folder, tmp_path / "backup")
            await restored.start()
            await trio.committed(leader.append(*bodies("after", 20)))
            former = name_of(restored)
            assert leader.runner is not None and leader.runner.member is not None
            member = leader.runner.member
            await eventually_async(
                lambda: member.progress[former].matched_end == member.log.end, "it acknowledged"
            )
            for one in trio:
                await one.stop()
            shutil.rmtree(restored.folder)
            shutil.copytree(tmp_path / "backup", restored.folder)
            for one in trio:
                await one.start()
            await eventually_async(lambda: restored.new_starts == 1, "it is told so")
            leader = await trio.led(besides=restored)
            await eventually_async(lambda: is_whole(restored), "it votes as another member")
            assert len(leader.bodies()) == 20

    run(story)


@pytest.mark.proves("replication.failover.dead-disk")
def test_a_member_without_its_vote_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path, size=1) as trio:
            (member,) = trio
            await member.start()
            await trio.led()
            await trio.committed(member.append(b"kept"))
            await member.stop()
            vote = member.folder / "contrail.replica"
            data = vote.read_bytes()
            vote.unlink()
            with pytest.raises(ConfigError, match="contrail replication replace"):
                await member.start()
            assert not (member.folder / "contrail.replica").exists()
            vote.write_bytes(data)
            await member.start()
            await trio.led()
            await eventually_async(lambda: member.bodies() == [b"kept"], "nothing is lost")

    run(story)


@pytest.mark.proves("replication.failover.retention")
def test_epochs_and_markers_are_counted_on_behind_a_late_beginning(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path, size=1) as trio:
            (member,) = trio
            await member.start()
            await trio.led()
            await fill(trio, member, 2)
            for _ in range(2):
                await member.stop()
                await member.start()
                await trio.led()
            await fill(trio, member, 2)
            await retain(member)
            assert member.runner is not None and member.runner.member is not None
            before = member.runner.member.log.epochs
            # All three markers are gone; the epoch of the first byte that is left is known.
            await eventually_async(lambda: before.removed_count == 2, "two are forgotten")
            assert [one.epoch for one in before.starts] == [3]
            await member.stop()
            await member.start()
            await trio.led()
            assert member.runner is not None and member.runner.member is not None
            after = member.runner.member.log.epochs
            assert [one.epoch for one in after.starts] == [3, 4]
            assert after.starts[0] == before.starts[0] and after.marker_count == 4
            assert member.store is not None
            assert member.store.queue_offset_max(b"rmq_sys_contrail_epoch", 0) == 4

    run(story)


@pytest.mark.proves("replication.failover.peer-repair")
def test_damaged_records_are_written_anew_from_other_members(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            sent = bodies("sent", 200)
            await trio.committed(leader.append(*sent))
            damaged = next(one for one in trio if one is not leader)
            await eventually_async(lambda: damaged.bodies() == sent, "all is derived")
            whole = leader.log_bytes()
            assert damaged.log_bytes() == whole
            assert damaged.store is not None
            places = [
                message.physical_offset
                for first in (0, 150)
                for message in damaged.store.get(TOPIC, 0, first, count_max=20).messages
            ]
            path = damaged.folder / "commitlog" / f"{0:020}"
            with path.open("r+b") as file:
                for body in (sent[17], sent[18], sent[150]):
                    file.seek(whole.index(body))
                    file.write(b"?")
            assert damaged.log_bytes() != whole
            # As the scrubber does.
            for place in places:
                damaged.store.damage.look_at(place)
            assert len(damaged.store.damage.known()) == 3
            await eventually_async(lambda: damaged.log_bytes() == whole, "it is whole again")
            await eventually_async(
                lambda: damaged.store is not None and not damaged.store.damage.known(), "forgotten"
            )
            assert damaged.bodies() == sent

    run(story)
