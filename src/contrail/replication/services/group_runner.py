"""Runs one member of a failover group: feeds ``Member`` with events, carries its effects out.

Effects are carried out in their order, those that follow from them behind them. The member holds
its messages back until term and vote are saved, and its answers until bytes are synced; the runner
holds nothing back itself. A write that the store refuses has not happened: the member then begins
anew from what the log and the vote's file hold.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import uuid
from collections import deque
from collections.abc import Callable
from typing import Protocol

from contrail.clock import Clock
from contrail.errors import ConfigError, StoreError
from contrail.protocol.group_frames import RESETS, Batch, MemberHello
from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    CopyAnswer,
    Fetch,
    Fetched,
    Message,
    PreVote,
    PreVoteAnswer,
    Reset,
)
from contrail.replication.config import GroupConfig
from contrail.replication.services.member_files import MemberFiles
from contrail.replication.services.member_link import MemberLink
from contrail.replication.services.member_links import RESTORED, MemberLinks, Received
from contrail.replication.services.peer_repair import PeerRepair
from contrail.replication.services.replica_file import Phase, Replica
from contrail.replication.services.replica_log import BATCH_BYTES_MAX, ReplicaLog
from contrail.replication.state.founding import Adopt, Found, Wait, plan_founding
from contrail.replication.state.group_effects import (
    AppendMarker,
    AppendRaw,
    AppendVoters,
    BeginAnew,
    BeginAt,
    CommitMoved,
    Effect,
    Role,
    RoleChanged,
    SaveVote,
    Send,
    Truncate,
)
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog, MemberTimes
from contrail.replication.state.member_names import member_name, self_id_of
from contrail.replication.state.push_spacing import PushSpacing
from contrail.runtime.files import OUT_OF_SPACE

_TICK_S = 0.05
# How often a full disk is asked whether term and vote can be saved.
_ROOM_INTERVAL_S = 0.25
# How often what is remembered of the other members is written.
_MEMORY_INTERVAL_MS = 5_000
_NO_BYTES = memoryview(b"")
_log = logging.getLogger(__name__)


class GroupUser(Protocol):
    """The parts of a broker that follow its role; called on the event loop's thread."""

    def role_changed(self, change: RoleChanged) -> None: ...

    def committed(self) -> None:
        """More of the log is committed: the store knows how far."""
        ...

    def failed(self, error: Exception) -> None:
        """This member cannot go on, and must not: a new start begins from its disk."""
        ...

    def begin_anew(self) -> None:
        """Stop and start again: ``prepare_folder`` has work to do, or the identity is another."""
        ...


class GroupRunner:
    """One member at work; belongs to the event loop's thread."""

    def __init__(
        self,
        config: GroupConfig,
        log: ReplicaLog,
        files: MemberFiles,
        clock: Clock,
        user: GroupUser,
        *,
        between: Callable[[int, int], int] = random.randint,
        times: MemberTimes | None = None,
    ) -> None:
        self._config = config
        self._times = times
        self._log = log
        self.files = files
        self._memory = files.read_peers()
        self._memory_due_ms = 0
        self._clock = clock
        self._now_ms = clock.elapsed_ms
        self._user = user
        self._between = between
        self.links = MemberLinks(config, self, clock)
        self._repair = PeerRepair(log.store, self.links, clock.elapsed_ms)
        self.member: Member | None = None
        self.waits_for = ""
        # As it is on the disk, and as it was last given to be written.
        self._saved: Replica | None = None
        self._newest: Replica | None = None
        self._effects: deque[tuple[Effect, Batch | None]] = deque()
        self._is_carrying_out = False
        # The names of connected members of the group, by their ids.
        self._names: dict[str, str] = {}
        # Where clients reach the other members.
        self._addresses: dict[str, str] = {}
        self._spacing = PushSpacing(is_awaited=True)
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pushed_bytes = 0
        self._last_problem = ""
        self._waits_for_room = False

    # Called by the broker.

    async def start(self) -> None:
        """Take part in the group, or wait for one.

        Raises:
            ConfigError: the port cannot be bound, or the folder belongs to another member.
            StateFileDamaged: term and vote cannot be read: this member may not vote.
        """
        self._loop = asyncio.get_running_loop()
        replica = self.files.replica.read()
        if replica is not None:
            if replica.self_id != self._config.self_id:
                raise ConfigError(
                    f"this folder is that of member {replica.self_id}: set dLegerSelfId="
                    f"{replica.self_id}, or start {self._config.self_id} with an empty folder"
                )
            self._saved = self._newest = replica
            self._make_member(self._recalled(replica))
        self._log.store.when_written(self._written)
        await self.links.start()
        self._ticker = self._loop.create_task(self._run(), name="group-runner")
        self._consider_founding()

    async def stop(self) -> None:
        """Leave the peers; whatever is under way is finished or dropped."""
        self._log.store.when_written(None)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self.member = None
        await self.links.stop()
        self._loop = None
        await self.files.stop(self._memory.encode() if self._memory.is_changed else None)

    def flushed(self) -> None:
        """More of the log is on the disk."""
        member = self.member
        if member is None:
            return
        # A cut waits for the flusher, so the position is of the log as it is now.
        synced_end, cut_count = self._log.synced_end, member.log.cut_count
        self._act(lambda: member.synced(synced_end, cut_count, self._now_ms()))
        self._spacing.synced()
        if self._timer is not None:
            self._timer.cancel()
        self._turn()

    def has_lease(self) -> bool:
        """Whether no other member can be leader now."""
        return self.member is not None and self.member.has_lease(self._now_ms())

    @property
    def leader(self) -> str:
        """The id of the member that leads; empty while none is known."""
        member = self.member
        return "" if member is None or member.leader is None else self_id_of(member.leader)

    @property
    def leader_address(self) -> str:
        """Where clients reach the leader; empty while none is known."""
        return self.client_address(self.leader)

    def client_address(self, self_id: str) -> str:
        """Where clients reach a member, as it said last; empty if it never did."""
        if self_id == self._config.self_id:
            return self._config.address
        return self._addresses.get(self_id, "")

    def address_of(self, name: str) -> str:
        """Where a member is linked from; empty while it is not."""
        link = self.links.link_to(self_id_of(name))
        return "" if link is None else link.link.address

    def is_level(self, self_id: str) -> bool:
        """Whether a voter of this id has the whole log."""
        member, name = self.member, self._names.get(self_id)
        if member is None or name is None or name not in member.log.voters.now:
            return False
        progress = member.progress.get(name)
        return (
            progress is not None
            and progress.matched_end == member.log.end
            and not progress.is_copying
        )

    def level_member(self) -> str:
        """The id of a connected voter that has the whole log; empty if there is none."""
        return next((self_id for self_id in self._names if self.is_level(self_id)), "")

    def transfer(self, target: str = "") -> bool:
        """Begin to hand over to a voter, ``target`` or the one with most of the log."""
        member = self.member
        if member is None or not member.is_serving:
            return False
        candidates = [
            name
            for self_id, name in self._names.items()
            if name in member.log.voters.now
            and target in ("", self_id)
            and not member.progress[name].is_copying
        ]
        if not candidates:
            return False
        best = max(candidates, key=lambda name: member.progress[name].matched_end)
        self._act(lambda: member.transfer(best, self._now_ms()))
        return True

    def give_up_transfer(self) -> None:
        """The target took too long: this member leads on."""
        member = self.member
        if member is not None:
            self._act(member.give_up_transfer)

    # Called by the links.

    def hello(self) -> MemberHello:
        replica = self._saved
        return MemberHello(
            self_id=self._config.self_id,
            group_id="" if replica is None else replica.group_id,
            replica_uuid="" if replica is None else replica.replica_uuid,
            phase=str(Phase.JOINER if replica is None else replica.phase),
            wall_ms=self._clock.now_ms(),
            facts=self._config.facts,
            address=self._config.address,
            term=0 if replica is None else replica.term,
            log_end=self._log.synced_end,
        )

    def opened(self, self_id: str, peer: MemberHello) -> None:
        member = self.member
        self._addresses[self_id] = peer.address
        if member is None:
            self._consider_founding()
        elif peer.group_id and not self._is_restored(self_id, peer):
            name = self._names[self_id] = member_name(self_id, peer.replica_uuid)
            self._act(lambda: member.is_connected(name, True, self._now_ms()))

    def _is_restored(self, self_id: str, peer: MemberHello) -> bool:
        """Whether a member came back with less than it had; it is told so."""
        if peer.phase == Phase.INSTALLING or peer.term is None:
            # It counts for nothing until it has everything again.
            return False
        name = member_name(self_id, peer.replica_uuid)
        problem = self._memory.problem(name, peer.term, peer.log_end)
        if problem:
            self.links.refuse(
                self_id,
                RESTORED,
                f"member {self_id} came back with an older disk: {problem}. It joins as a new "
                "member; `contrail replication replace` does so before a start",
            )
        return bool(problem)

    def refused(self, self_id: str, reason: str, text: str) -> None:
        """A member that proved the secret has ended the link, and said why."""
        if reason != RESTORED or self._newest is None or self.member is None:
            return
        _log.error("member %s says: %s", self_id, text)
        self.member = None
        # The log is a part of the group's. As another member it promises nothing with it.
        self._start_as(
            dataclasses.replace(
                self._newest,
                replica_uuid=uuid.uuid4().hex,
                voted_for=None,
                phase=Phase.INSTALLING,
                must_reach=0,
                is_emptied=True,
            )
        )

    def _start_as(self, replica: Replica) -> None:
        """Write down what this member is now, and have the broker start again as that."""
        self._newest = replica
        self._write(replica, self._user.begin_anew)

    def lost(self, self_id: str) -> None:
        member, name = self.member, self._names.pop(self_id, None)
        if member is not None and name is not None:
            self._act(lambda: member.is_connected(name, False, self._now_ms()))

    def received(self, self_id: str, message: Received) -> None:
        member, name = self.member, self._names.get(self_id)
        if member is None or name is None:
            return
        if isinstance(message, Fetch):
            link = self.links.link_to(self_id)
            if link is not None:
                link.send(self._repair.serve(message, member.log.commit))
            return
        if isinstance(message, Fetched):
            self._repair.fetched(self_id, message)
            return
        now_ms = self._now_ms()
        self._remember(name, message.message if isinstance(message, Batch) else message)
        if isinstance(message, Batch):
            self._act(lambda: member.received(name, message.message, now_ms), message)
        else:
            assert not isinstance(message, Append), "an append comes with its bytes"
            self._act(lambda: member.received(name, message, now_ms))

    def _remember(self, name: str, message: Message) -> None:
        """Note the term that a member has on its disk, and what it acknowledged there."""
        if isinstance(message, AppendAnswer):
            self._memory.acknowledged(name, message.term, message.matched_end)
        elif not isinstance(message, PreVote | PreVoteAnswer):
            self._memory.acknowledged(name, message.term, 0)

    # Founding.

    def _consider_founding(self) -> None:
        """Found or join a group, if this broker belongs to none and its peers allow it."""
        if self._newest is not None:
            return
        groups = {self_id: hello.group_id for self_id, hello in self.links.hellos().items()}
        step = plan_founding(
            self._config.self_id,
            list(self._config.peers),
            groups,
            is_log_empty=self._log.store.is_empty,
        )
        if isinstance(step, Wait):
            if step.why != self.waits_for:
                _log.info("no group yet: %s", step.why)
            self.waits_for = step.why
            return
        self.waits_for = ""
        group_id = step.group_id if isinstance(step, Adopt) else uuid.uuid4().hex
        phase = Phase.VOTER if isinstance(step, Found) else Phase.INSTALLING
        self._newest = Replica(
            group_id=group_id,
            replica_uuid=uuid.uuid4().hex,
            self_id=self._config.self_id,
            term=0,
            voted_for=None,
            phase=phase,
        )
        self._write(self._newest, self._joined)

    def _joined(self) -> None:
        """The group is on the disk: take part, and tell the peers by new links."""
        replica = self._saved
        assert replica is not None
        what = "founded" if replica.phase is Phase.VOTER else "joined"
        _log.info("member %s has %s group %s", replica.self_id, what, replica.group_id)
        self._make_member(self._recalled(replica))
        self.links.end_all("new_group")

    def _recalled(self, replica: Replica) -> MemberLog:
        return self._log.recalled(self._first_voters(replica), self.files.floor.read())

    def _first_voters(self, replica: Replica) -> frozenset[str]:
        """The voters before any record: the founder itself."""
        if replica.phase is not Phase.VOTER:
            return frozenset()
        return frozenset((member_name(replica.self_id, replica.replica_uuid),))

    def _make_member(self, log: MemberLog) -> None:
        replica = self._saved
        assert replica is not None, "a member belongs to a group"
        self.member = Member(
            member_name(replica.self_id, replica.replica_uuid),
            term=replica.term,
            voted_for=replica.voted_for,
            log=log,
            batch_end=self._log.batch_end,
            between=self._between,
            now_ms=self._now_ms(),
            times=self._times,
            must_reach=replica.must_reach if replica.phase is Phase.INSTALLING else None,
        )
        for name in self._names.values():
            self.member.is_connected(name, True, self._now_ms())

    def _begin_anew(self, error: StoreError) -> None:
        """The store did not do what the member asked for: believe the disk again."""
        former = self.member
        assert former is not None
        self._effects.clear()
        if str(error) != self._last_problem:
            self._last_problem = str(error)
            _log.warning("this member begins anew: %s", error)
        log, store = former.log, self._log.store
        log.cut(store.physical_end)
        log.synced_end, log.commit = store.flushed_end, store.positions.commit_limit
        self._make_member(log)
        self._user.role_changed(RoleChanged(Role.FOLLOWER, former.term, None, False))

    # Events and effects.

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            member = self.member
            if member is None:
                self._consider_founding()
                continue
            self._act(lambda member=member: member.tick(self._now_ms()))  # type: ignore[misc]
            self._save_memory()
            self._repair.run()
            # Records of its own need their queues' next offsets, which follow the marker.
            if member is self.member and member.is_serving and self._log.store.leads:
                self._tend_voters(member)

    def _save_memory(self) -> None:
        now_ms = self._now_ms()
        if self._memory.is_changed and now_ms >= self._memory_due_ms:
            self._memory_due_ms = now_ms + _MEMORY_INTERVAL_MS
            self.files.keep_peers(self._memory.encode())

    def _tend_voters(self, member: Member) -> None:
        """Have every connected member learn, and make those that caught up voters."""
        voters = member.log.voters.now
        for self_id, name in self._names.items():
            if name in voters:
                continue
            self._act(lambda name=name: member.add_learner(name))  # type: ignore[misc]
            progress = member.progress.get(name)
            if progress is None or not progress.is_streaming or progress.is_copying:
                continue
            if member.log.end - progress.matched_end > BATCH_BYTES_MAX:
                continue
            # A wiped member comes back under another name: the old voter goes first.
            former = {voter for voter in voters if self_id_of(voter) == self_id}
            wanted = voters - former if former else voters | {name}
            self._act(lambda wanted=wanted: member.change_voters(wanted))  # type: ignore[misc]
            return

    def _act(self, event: Callable[[], list[Effect]], batch: Batch | None = None) -> None:
        """Feed the member, and carry out what it asks for, unless that is under way already."""
        if self._is_carrying_out:
            self._effects.extend((effect, batch) for effect in event())
            return
        self._is_carrying_out = True
        try:
            member = self.member
            if member is not None and self._log.store.physical_min > member.log.start:
                member.log.forget_before(self._log.store.physical_min)
            if member is not None and member.role is Role.LEADER:
                # Sends that were stored a moment ago are in the log, whatever comes now.
                self._then(member.appended(self._log.end))
            self._effects.extend((effect, batch) for effect in event())
            while self._effects:
                self._carry_out(*self._effects.popleft())
        except StoreError as error:
            self._begin_anew(error)
        except Exception as error:
            # Part of a decision was carried out: this member must not decide again.
            self.member = None
            self._effects.clear()
            self._user.failed(error)
            raise
        finally:
            self._is_carrying_out = False

    def _carry_out(self, effect: Effect, batch: Batch | None) -> None:
        member = self.member
        if member is None:
            return
        match effect:
            case Send():
                self._send(member, effect)
            case SaveVote():
                self._save(member, effect)
            case AppendMarker():
                self._append_marker(member, effect)
            case AppendVoters():
                end = self._log.append_voters(member.term, effect.voters)
                self._then(member.voters_appended(end, effect.voters, self._now_ms()))
                self._then(member.push(self._now_ms()))
            case AppendRaw():
                assert batch is not None, "raw bytes come with a batch"
                self._append_raw(member, effect, batch)
            case Truncate():
                # Views of what is cut must not leave: they would be other bytes by then.
                self.links.end_unsent("the log is cut")
                self._log.truncate(effect.physical_end)
            case CommitMoved():
                self._log.store.commit_to(effect.commit)
                self._user.committed()
            case RoleChanged():
                self._user.role_changed(effect)
            case BeginAt():
                self.files.floor.write(effect.floor)
                _log.warning("the log begins at %d, as the leader's", effect.floor.physical_start)
            case BeginAnew():
                self._begin_behind(effect.must_reach)

    def _begin_behind(self, must_reach: int) -> None:
        """The leader's log begins behind this one: empty the folder, and copy the leader's."""
        assert self._newest is not None
        _log.error(
            "the leader no longer has what this member lacks: its store is emptied and copied anew"
        )
        self.member = None
        self._start_as(
            dataclasses.replace(
                self._newest, phase=Phase.INSTALLING, must_reach=must_reach, is_emptied=False
            )
        )

    def _then(self, effects: list[Effect]) -> None:
        self._effects.extend((effect, None) for effect in effects)

    def _append_marker(self, member: Member, effect: AppendMarker) -> None:
        if member.role is not Role.LEADER or member.term != effect.epoch:
            return
        end = self._log.append_marker(
            member.self_id, member.log, effect.epoch, effect.previous_epoch
        )
        self._then(member.marker_appended(end))
        self._then(member.push(self._now_ms()))

    def _append_raw(self, member: Member, effect: AppendRaw, batch: Batch) -> None:
        start, end = effect.physical_offset, effect.physical_end
        skipped = start - batch.message.previous_end
        data = batch.data[skipped : skipped + end - start]
        self._log.append_raw(start, data)
        if batch.names_voters:
            for voters_end, voters in self._log.voter_records(start, data):
                self._then(member.voters_appended(voters_end, voters, self._now_ms()))

    # Messages.

    def _send(self, member: Member, effect: Send) -> None:
        self_id = self_id_of(effect.peer)
        link = self.links.link_to(self_id)
        if link is None or self._names.get(self_id) != effect.peer:
            return
        message = effect.message
        if isinstance(message, Reset | CopyAnswer) and RESETS not in link.features:
            self._send_to_older(member, self_id, link, message)
            return
        if not isinstance(message, Append) or message.batch_end == message.previous_end:
            link.send(message)
            return
        start, end = message.previous_end, message.batch_end
        log = member.log
        names_voters = log.epochs.begins_within(start, end) or log.voters.changes_within(start, end)
        link.send(message, self._log.parts(start, end), names_voters=names_voters)
        self._pushed_bytes = max(self._pushed_bytes, end - start)

    def _send_to_older(
        self, member: Member, self_id: str, link: MemberLink, message: Reset | CopyAnswer
    ) -> None:
        """The release of the other member knows nothing of copies."""
        if isinstance(message, Reset):
            self.links.refuse(
                self_id,
                "behind_retention",
                f"member {self_id} needs the log from before {message.floor.physical_start}, where "
                "the leader's begins: upgrade it, or start it with an empty folder",
            )
        elif not member.is_voter:
            # The answers of a learner count for nothing anyway.
            link.send(AppendAnswer(message.term, message.matched_end, message.sent_ms))

    # The vote.

    def _save(self, member: Member, effect: SaveVote) -> None:
        assert self._newest is not None
        self._newest = dataclasses.replace(
            self._newest, term=effect.term, voted_for=effect.voted_for
        )
        if effect.is_installed:
            _log.info("this member has the leader's log")
            self._newest = dataclasses.replace(self._newest, phase=Phase.LEARNER, must_reach=0)
        self._write(self._newest, lambda: self._vote_saved(member, effect.number))

    def _vote_saved(self, member: Member, number: int) -> None:
        if member is self.member:
            self._act(lambda: member.vote_saved(number, self._now_ms()))

    def _write(self, replica: Replica, then: Callable[[], None]) -> None:
        """Write the member's file on its thread, one after the other; then go on."""

        def written(error: BaseException | None) -> None:
            if self._loop is None:
                return
            if error is None:
                self._saved, self._waits_for_room = replica, False
                then()
            elif isinstance(error, OSError) and error.errno in OUT_OF_SPACE:
                self._write_later(then, error)
            else:
                self._user.failed(RuntimeError(f"term and vote cannot be saved: {error}"))

        self.files.write(lambda: self.files.replica.write(replica), written)

    def _write_later(self, then: Callable[[], None], error: OSError) -> None:
        """A full disk: the member neither votes nor answers until it has room again.

        The newest word is written then: an older one behind it would take a vote back.
        """
        if not self._waits_for_room:
            self._waits_for_room = True
            _log.warning("term and vote wait until the disk has room: %s", error)

        def again() -> None:
            if self._loop is not None and self._newest is not None:
                self._write(self._newest, then)

        assert self._loop is not None
        self._loop.call_later(_ROOM_INTERVAL_S, again)

    # Pushing what the leader appends.

    def _written(self) -> None:
        """The log grew: push at the end of this turn of the loop."""
        member = self.member
        if self._turn_is_due or member is None or member.role is not Role.LEADER:
            return
        if self._loop is not None:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due, self._timer = False, None
        member, loop = self.member, self._loop
        if member is None or loop is None or member.role is not Role.LEADER:
            return
        now_ms = self._now_ms()
        wait_ms = self._spacing.wait_ms(now_ms)
        if wait_ms:
            self._turn_is_due = True
            self._timer = loop.call_later(wait_ms / 1000, self._turn)
            return
        self._pushed_bytes = 0
        self._act(lambda: member.push(now_ms))
        self._spacing.pushed(self._pushed_bytes, now_ms)
