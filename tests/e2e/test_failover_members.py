"""Members of a failover group: founding, elections, cuts, learners; without brokers around them."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import shutil
from pathlib import Path

import pytest

from contrail.clock import SystemClock
from contrail.protocol.group_frames import FEATURES, MemberHello
from contrail.replication.services.group_runner import GroupRunner
from contrail.replication.services.replica_file import Replica, ReplicaFile
from contrail.testing.waiting import eventually_async
from tests.e2e.failover_trio import LocalMember, Trio, failover_group


def run(story: object) -> None:
    asyncio.run(story)  # type: ignore[arg-type]


async def start_all(trio: Trio) -> LocalMember:
    for member in trio:
        await member.start()
    leader = await trio.led()
    await trio.has_voters(len(trio.peers))
    return leader


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number:04}".encode() * 8 for number in range(count)]


@pytest.mark.proves("replication.failover.runner")
@pytest.mark.proves("replication.failover.link")
def test_a_group_founds_itself_elects_and_has_equal_logs(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            # Over several segments: blanks go with the records behind them.
            sent = bodies("first", 1_500)
            for at in range(0, len(sent), 50):
                end = leader.append(*sent[at : at + 50])
                await asyncio.sleep(0)
            await trio.committed(end)
            assert [one.bodies() for one in trio] == [sent] * 3
            logs = [one.log_bytes() for one in trio]
            assert logs[0] == logs[1] == logs[2]

    run(story())


@pytest.mark.proves("replication.failover.bootstrap")
def test_a_group_is_founded_only_after_every_peer_said_that_it_has_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            first, second, third = trio
            await first.start()
            await second.start()
            await eventually_async(
                lambda: first.runner is not None and "n2" in first.runner.waits_for, "n0 waits"
            )
            assert first.runner is not None and first.runner.member is None
            await third.start()
            leader = await trio.led()
            # The founder is the one voter at first, so it is the first leader.
            assert leader is first
            await trio.has_voters(3)

    run(story())


@pytest.mark.proves("replication.failover.dead-disk")
@pytest.mark.proves("replication.failover.join")
def test_a_wiped_first_member_founds_no_second_group_and_is_replaced(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            sent = bodies("kept", 100)
            await trio.committed(leader.append(*sent))
            first, second, _ = trio
            assert first.runner is not None and first.runner.member is not None
            former_name = first.runner.member.self_id
            await first.stop()
            shutil.rmtree(first.folder)
            await trio.led(besides=first)
            await first.start()
            await eventually_async(
                lambda: (
                    first.runner is not None
                    and first.runner.member is not None
                    and first.runner.member.is_voter
                ),
                "the wiped member votes again",
            )
            assert first.runner.member is not None
            voters = first.runner.member.log.voters.now
            assert former_name not in voters and len(voters) == 3
            await eventually_async(lambda: first.bodies() == sent, "it has what it had")
            assert first.log_bytes() == second.log_bytes()

    run(story())


@pytest.mark.proves("replication.failover.runner")
def test_appends_of_a_cut_off_leader_are_cut_and_committed_ones_stay(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            former = await start_all(trio)
            kept = bodies("kept", 50)
            await trio.committed(former.append(*kept))
            former.cut_off()
            # Nobody has these but the leader: they are in doubt, and will be gone.
            former.append(*bodies("lost", 200))
            leader = await trio.led(besides=former)
            await eventually_async(lambda: not former.leads, "a leader without a majority ends")
            after = bodies("after", 50)
            end = leader.append(*after)
            await trio.committed(end, at=[one for one in trio if one is not former])
            former.rejoin()
            await trio.committed(end)
            assert [one.bodies() for one in trio] == [kept + after] * 3
            logs = [one.log_bytes() for one in trio]
            assert logs[0] == logs[1] == logs[2]

    run(story())


@pytest.mark.proves("replication.failover.runner")
def test_members_go_on_after_restarts_with_their_terms_votes_and_logs(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            sent: list[bytes] = []
            for round_number in range(3):
                new = bodies(f"round-{round_number}", 40)
                sent += new
                await trio.committed(leader.append(*new))
                assert leader.runner is not None and leader.runner.member is not None
                term = leader.runner.member.term
                await leader.stop()
                former, leader = leader, await trio.led(besides=leader)
                assert leader.runner is not None and leader.runner.member is not None
                assert leader.runner.member.term > term
                await former.start()
            for member in trio:
                await member.stop()
            for member in trio:
                await member.start()
            leader = await trio.led()
            assert leader.runner is not None
            await trio.committed(leader.append(b"last"))
            assert [one.bodies() for one in trio] == [[*sent, b"last"]] * 3

    run(story())


@pytest.mark.proves("replication.failover.transfer")
def test_a_leader_hands_over_to_the_named_member_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            await trio.committed(leader.append(*bodies("before", 20)))
            target = next(one for one in trio if one is not leader)
            assert leader.runner is not None
            assert not leader.runner.transfer("n9")
            assert leader.runner.transfer(target.self_id)
            assert await trio.led(besides=leader) is target
            # Handed over: the lease of the new leader needs no second of waiting.
            assert target.runner is not None
            await eventually_async(target.runner.has_lease, "a lease")
            await trio.committed(target.append(b"after"))

    run(story())


@pytest.mark.proves("replication.failover.link")
def test_members_with_other_settings_or_another_secret_do_not_link(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            first, second, third = trio
            trio.facts = {
                "n1": {"mappedFileSizeCommitLog": "1"},
                "n0": {"mappedFileSizeCommitLog": "2"},
            }
            await first.start()
            await second.start()
            await eventually_async(
                lambda: (
                    first.runner is not None
                    and "mappedFileSizeCommitLog" in first.runner.links.problems().get("n1", "")
                ),
                "the difference is named",
            )
            trio.secret = b"another one"
            await third.start()
            await asyncio.sleep(0.3)
            assert first.runner is not None and not first.runner.links.hellos()
            assert first.runner.member is None

    run(story())


@pytest.mark.proves("replication.failover.sizes")
@pytest.mark.parametrize("size", [1, 5])
def test_groups_of_one_and_of_five(tmp_path: Path, size: int) -> None:
    async def story() -> None:
        async with failover_group(tmp_path, size=size) as trio:
            leader = await start_all(trio)
            end = leader.append(*bodies("sent", 20))
            await trio.committed(end)
            if size == 5:
                await leader.stop()
                second = await trio.led(besides=leader)
                await second.stop()
                third = await trio.led(besides=second)
                running = [one for one in trio if one.runner is not None]
                await trio.committed(third.append(b"with three of five"), at=running)

    run(story())


class FastClock(SystemClock):
    """A wall clock that is five seconds ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 5_000


@pytest.mark.proves("replication.failover.skew")
def test_members_tell_each_other_their_wall_clocks(tmp_path: Path) -> None:
    async def story() -> None:
        async with failover_group(tmp_path, size=2) as trio:
            trio.clocks["n1"] = FastClock()
            first, second = trio
            await start_all(trio)
            assert first.runner is not None and second.runner is not None
            ahead, behind = first.runner.links.skews_ms(), second.runner.links.skews_ms()
            # Within what a busy machine takes to read a ping.
            assert 2_000 < ahead["n1"] < 8_000
            assert -8_000 < behind["n0"] < -2_000

    run(story())


@pytest.mark.proves("replication.failover.runner")
def test_a_member_without_room_for_its_vote_waits_for_room_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            sent = bodies("kept", 20)
            await trio.committed(leader.append(*sent))
            write, is_full = ReplicaFile.write, [True]

            def write_if_room(file: ReplicaFile, replica: Replica) -> None:
                if is_full[0]:
                    raise OSError(errno.ENOSPC, "no room in this test")
                write(file, replica)

            monkeypatch.setattr(ReplicaFile, "write", write_if_room)
            await leader.stop()
            others = [one for one in trio if one is not leader]
            # Longer than an election takes: both have tried to save a term.
            await asyncio.sleep(1.5)
            assert not any(one.leads for one in others)
            is_full[0] = False
            following = await trio.led(besides=leader)
            after = bodies("after", 20)
            await trio.committed(following.append(*after), at=others)
            assert [one.bodies() for one in others] == [sent + after] * 2

    run(story())


@pytest.mark.proves("replication.failover.rolling-upgrade")
@pytest.mark.proves("replication.failover.features")
def test_members_of_a_release_without_features_are_upgraded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of the release before names no feature, tells no term, and is sent nothing new."""
    hello_of = GroupRunner.hello
    older = {"n0", "n1", "n2"}

    def hello(self: GroupRunner) -> MemberHello:
        found = hello_of(self)
        if found.self_id not in older:
            return found
        return dataclasses.replace(found, features=(), term=None, log_end=0)

    monkeypatch.setattr(GroupRunner, "hello", hello)

    async def story() -> None:
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            sent = bodies("older", 20)
            await trio.committed(leader.append(*sent))
            for member in trio:
                await member.stop()
                older.remove(member.self_id)
                leader = await trio.led(besides=member)
                await member.start()
                new = bodies(f"without-{member.self_id}", 20)
                sent += new
                await trio.committed(leader.append(*new))
                features = {
                    link.features
                    for one in trio
                    if one.runner is not None
                    for peer in trio.peers
                    if (link := one.runner.links.link_to(peer)) is not None
                }
                # Both members of a link know what is spoken there.
                assert features <= {frozenset(), frozenset(FEATURES)}
            assert features == {frozenset(FEATURES)}
            assert [one.bodies() for one in trio] == [sent] * 3

    run(story())


@pytest.mark.proves("replication.failover.rolling-upgrade")
def test_a_member_of_an_unknown_version_is_refused_by_name_and_the_group_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello_of = GroupRunner.hello

    def hello(self: GroupRunner) -> MemberHello:
        found = hello_of(self)
        is_newer = found.self_id == "n2" and is_upgraded
        return dataclasses.replace(found, version=9, version_min=9) if is_newer else found

    is_upgraded = False
    monkeypatch.setattr(GroupRunner, "hello", hello)

    async def story() -> None:
        nonlocal is_upgraded
        async with failover_group(tmp_path) as trio:
            leader = await start_all(trio)
            first, second, third = trio
            await third.stop()
            is_upgraded = True
            leader = await trio.led(besides=third)
            await third.start()
            assert leader.runner is not None
            problems = leader.runner.links.problems
            await eventually_async(lambda: "versions 9 to 9" in problems().get("n2", ""), "told")
            await trio.committed(leader.append(b"without it"), at=[first, second])

    run(story())
