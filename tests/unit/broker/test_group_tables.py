"""The tables of a failover group's members, over a log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.committed_answers import answered_when_committed
from contrail.broker.services.group_tables import FILE_NAME, GroupTables
from contrail.broker.services.groups import Groups
from contrail.broker.services.persistence import Persistence
from contrail.broker.services.stored_tables import (
    OffsetFile,
    keep_consumer_offsets,
    keep_groups,
    keep_topics,
    load_consumer_offsets,
    load_topics,
)
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.errors import RecordDamaged, RequestRejected, StoreFollows
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.topic import TopicConfig
from contrail.protocol.command import Request, Response
from contrail.runtime.durable_changes import at_once
from contrail.runtime.files import FileSystem
from contrail.wire.peer import LATER, Answer, Peer
from tests.fakes.peers import FakePeer

pytestmark = pytest.mark.proves("replication.failover.tables")

_RECORD_BYTES = 100


class Found(NamedTuple):
    messages: list[StoredMessage]
    next_queue_offset: int
    damaged: list[int]


class Appended(NamedTuple):
    physical_end: int


class MemoryLog:
    """State records of 100 bytes; those below ``committed`` are derived."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.committed = 0
        self.refuses = False
        self.damaged: list[int] = []
        self.segment_bytes = 1_000
        self.next_offsets: dict[tuple[bytes, int], int] = {}

    @property
    def physical_end(self) -> int:
        return len(self.records) * _RECORD_BYTES

    def queues(self) -> list[tuple[bytes, int]]:
        return [*self.next_offsets]

    def append_one(self, draft: MessageDraft) -> Appended:
        if self.refuses:
            raise StoreFollows("this member does not lead")
        self.records.append(draft.body)
        return Appended(len(self.records) * _RECORD_BYTES)

    def get(
        self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> Found:
        end = min(queue_offset + 3, self.committed)
        given: Any = StoredMessage
        messages = [
            given("t", 0, at, at * _RECORD_BYTES, _RECORD_BYTES, self.records[at], *[b"", 0] * 5)
            for at in range(queue_offset, end)
        ]
        return Found(messages, end, self.damaged)

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        return 0

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        return self.next_offsets.get((topic, queue_id), self.committed)


class Member:
    """One broker's tables."""

    def __init__(self, folder: Path, log: MemoryLog | None = None) -> None:
        self.folder = folder
        self.log = log or MemoryLog()
        self.clock = ManualClock(1_700_000_000_000)
        settings = RuntimeSettings(BrokerConfig())
        files = FileSystem()
        self.topics = Topics(TopicTable(), settings)
        self.groups = Groups(GroupTable(), settings)
        self.offsets = ConsumerOffsets()
        self.persistence = Persistence(folder, files)
        keep_topics(self.persistence, self.topics.table, self.topics.changes)
        keep_groups(self.persistence, self.groups.table, self.groups.changes)
        keep_consumer_offsets(self.persistence, self.offsets, OffsetFile(), interval_ms=1)
        self.tables = GroupTables(
            self.log,
            self.topics,
            self.groups,
            self.offsets,
            self.persistence,
            files,
            folder,
            self.clock,
            offsets_interval_ms=1,
        )
        self.tables.begin()

    def create(self, topic: str, queue_count: int = 4) -> list[Exception | None]:
        """An operator's change; its outcome is in the list once it is known."""
        done: list[Exception | None] = []
        config = TopicConfig(topic, queue_count, queue_count)
        self.topics.update([config], self.clock.now_ms(), done.append)
        return done

    def commit(self, group: str, topic: str, consumer_offset: int, queue_id: int = 0) -> None:
        self.offsets.admit(group, topic, "h", queue_id)
        self.offsets.commit(group, topic, queue_id, consumer_offset)

    def hear(self, count: int) -> None:
        """The group has committed so many records."""
        before, self.log.committed = self.log.committed, count
        self.tables.committed(before * _RECORD_BYTES, count * _RECORD_BYTES)

    def hear_all(self) -> None:
        self.hear(len(self.log.records))

    def copy_from(self, leader: Member, count: int | None = None) -> None:
        """Take the leader's log, and hear that it is committed, up to a record."""
        self.log.records = leader.log.records[:count]
        self.hear_all()

    def shown(self) -> tuple[object, ...]:
        topics, groups = self.topics.table, self.groups.table
        offsets = {key: dict(of) for key, of in self.offsets.all_committed().items()}
        resets = {key: dict(of) for key, of in self.offsets.pending_resets.items()}
        return (
            dict(topics.topics),
            topics.data_version,
            dict(groups.groups),
            groups.forbidden_table(),
            offsets,
            resets,
        )


Scenario = Callable[[Path], Awaitable[None]]


def run(scenario: Scenario, folder: Path) -> None:
    asyncio.run(_awaited(scenario(folder)))


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def leader(folder: Path) -> Member:
    member = Member(folder / "leader")
    await member.tables.lead(1)
    return member


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_followers_hold_what_the_leader_wrote(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first, other = await leader(folder), Member(folder / "other")
        made = first.create("orders")
        first.groups.update([SubscriptionGroupConfig("billing")], 1)
        await turn()
        first.hear_all()
        assert made == [None]
        forbidden: list[Exception | None] = []
        first.groups.set_readable("billing", "orders", False, 1, forbidden.append)
        first.commit("billing", "orders", 5)
        first.offsets.assign_reset("billing", "orders", 1, 2)
        first.topics.ensure_retry_topic("billing", first.clock.now_ms())
        await turn()
        first.hear_all()
        first.tables.sweep()
        first.hear_all()
        other.copy_from(first)
        assert forbidden == [None]
        assert other.shown() == first.shown()
        assert other.offsets.query("billing", "orders", 0) == 5
        assert other.offsets.peek_reset("billing", "orders", 1) == 2

    run(scenario, tmp_path)


def test_an_operators_change_is_carried_out_when_it_is_committed_and_not_before(
    tmp_path: Path,
) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.hear_all()
        made = first.create("orders")
        await turn()
        assert made == [] and first.topics.table.get("orders") is None
        assert b'"orders"' in first.log.records[-1]
        first.hear_all()
        assert made == [None] and first.topics.table.get("orders") is not None
        # Carrying it out writes it down no second time.
        count = len(first.log.records)
        assert sum(b'"topicName":"orders"' in body for body in first.log.records) == 1
        gone: list[Exception | None] = []
        first.groups.update([SubscriptionGroupConfig("g")], 1)
        first.groups.delete("g", 2, done=gone.append)
        await turn()
        first.hear_all()
        assert gone == [None] and first.groups.table.get("g") is None
        assert len(first.log.records) > count

    run(scenario, tmp_path)


def test_a_topic_stands_in_the_log_before_its_first_message(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        count = len(first.log.records)
        first.topics.ensure_retry_topic("g", first.clock.now_ms())
        (body,) = first.log.records[count:]
        assert b"%RETRY%g" in body
        first.topics.ensure_retry_topic("g", first.clock.now_ms())
        assert len(first.log.records) == count + 1

    run(scenario, tmp_path)


def test_a_leader_that_leads_no_more_takes_its_tables_back_and_its_answers_are_in_doubt(
    tmp_path: Path,
) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.create("orders")
        await turn()
        first.commit("g", "orders", 5)
        first.tables.sweep()
        first.hear_all()
        committed, version = first.shown(), first.topics.table.data_version
        # None of this is committed.
        first.commit("g", "orders", 50)
        first.commit("h", "orders", 7)
        first.topics.ensure_retry_topic("g", first.clock.now_ms())
        made = first.create("lost")
        await turn()
        planned = first.create("planned-too")
        first.log.refuses = True
        first.tables.follow(2)
        for outcome in (made, planned):
            (problem,) = outcome
            assert isinstance(problem, RequestRejected)
            assert problem.fields == {"contrailInDoubt": "true"}
        assert first.shown()[4:] == committed[4:]
        assert "lost" not in first.topics.table.topics
        assert "%RETRY%g" not in first.topics.table.topics
        await turn()
        with pytest.raises(RequestRejected, match="does not lead"):
            first.create("refused")
        first.tables.sweep()
        assert first.topics.table.data_version <= version

    run(scenario, tmp_path)


def test_changes_that_the_log_refuses_end_behind_those_that_wait_for_it(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.hear_all()
        taken = first.create("taken")
        await turn()
        first.log.refuses = True
        refused = first.create("refused")
        await turn()
        assert (taken, refused) == ([], [])
        first.hear_all()
        assert taken == [None] and isinstance(refused[0], StoreFollows)
        assert first.topics.table.get("taken") and first.topics.table.get("refused") is None
        alone = first.create("alone")
        await turn()
        assert isinstance(alone[0], StoreFollows)
        # Admission has made a topic that the log did not take: it is written down later.
        with pytest.raises(StoreFollows):
            first.topics.ensure_retry_topic("g", first.clock.now_ms())
        first.tables.sweep()
        first.log.refuses = False
        first.tables.sweep()
        assert b"%RETRY%g" in b"".join(first.log.records[-2:])

    run(scenario, tmp_path)


def test_an_offset_that_was_moved_back_is_lower_everywhere(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first, other = await leader(folder), Member(folder / "other")
        for consumer_offset in (50, 7):
            first.commit("g", "orders", consumer_offset)
            first.tables.sweep()
        first.hear_all()
        other.copy_from(first)
        assert other.offsets.query("g", "orders", 0) == 7
        first.offsets.remove_group("g")
        first.tables.sweep()
        first.hear_all()
        other.copy_from(first)
        assert other.offsets.query("g", "orders", 0) == -1
        count = len(first.log.records)
        first.tables.sweep()
        assert len(first.log.records) == count

    run(scenario, tmp_path)


def test_a_leader_writes_a_snapshot_and_a_member_that_has_only_that_holds_the_same(
    tmp_path: Path,
) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.create("orders")
        await turn()
        first.commit("g", "orders", 5)
        first.tables.sweep()
        first.hear_all()
        first.tables.follow(2)
        before = len(first.log.records)
        await first.tables.lead(3)
        first.hear_all()
        late = Member(folder / "late")
        late.log.records = first.log.records[before:]
        late.hear_all()
        assert late.shown() == first.shown()

    run(scenario, tmp_path)


def test_apaches_files_are_rendered_from_committed_records_alone(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.commit("g", "orders", 5)
        first.tables.sweep()
        first.hear_all()
        first.commit("g", "orders", 50)
        first.topics.ensure_retry_topic("uncommitted", first.clock.now_ms())
        first.tables.sweep()
        await first.persistence.close()
        files = FileSystem()
        written = load_consumer_offsets(files, first.folder)
        assert written.query("g", "orders", 0) == 5
        assert "%RETRY%uncommitted" not in load_topics(files, first.folder).topics
        # A restart goes on from the file, and feeds what was committed since.
        again = Member(first.folder, first.log)
        assert again.offsets.query("g", "orders", 0) == 5
        again.hear_all()
        assert again.offsets.query("g", "orders", 0) == 50
        assert "%RETRY%uncommitted" in again.topics.table.topics

    run(scenario, tmp_path)


def test_the_first_leader_brings_the_tables_of_its_folder(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        alone = Member(folder / "alone")
        alone.topics.table.put(TopicConfig("orders", 4, 4), 1)
        alone.commit("g", "orders", 9)
        alone.tables.follow(1)
        assert alone.offsets.query("g", "orders", 0) == 9
        await alone.tables.lead(1)
        alone.hear_all()
        other = Member(folder / "other")
        other.copy_from(alone)
        assert other.shown() == alone.shown()
        assert "orders" in other.topics.table.topics

    run(scenario, tmp_path)


def test_a_damaged_state_record_ends_the_member_instead_of_being_passed_over(
    tmp_path: Path,
) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.log.damaged = [700]
        with pytest.raises(RecordDamaged):
            first.hear_all()

    run(scenario, tmp_path)


def test_a_damaged_state_file_is_replaced_by_its_backup_and_the_log(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.commit("g", "orders", 5)
        first.tables.sweep()
        first.hear_all()
        await first.persistence.close()
        path = first.folder / "config" / FILE_NAME
        path.with_name(FILE_NAME + ".bak").write_bytes(path.read_bytes())
        path.write_bytes(path.read_bytes()[:-60])
        again = Member(first.folder, first.log)
        assert again.offsets.query("g", "orders", 0) == 5

    run(scenario, tmp_path)


def test_resets_are_answered_when_they_are_committed(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first, peer = await leader(folder), FakePeer()
        first.hear_all()

        def reset(request: Request, peer: Peer) -> Answer:
            first.offsets.assign_reset("g", "orders", 0, int(request.fields["offset"]))
            return Response(body=b"reset")

        handle = answered_when_committed(reset, first.tables.when_committed)
        request = Request(222, 7, {"offset": "3"})
        assert handle(request, peer) is LATER
        assert peer.replies == []
        first.hear_all()
        assert [one.body for _, one in peer.replies] == [b"reset"]
        # A leader that is lost meanwhile leaves it in doubt.
        assert handle(Request(222, 8, {"offset": "4"}), peer) is LATER
        first.tables.follow(2)
        assert first.offsets.peek_reset("g", "orders", 0) == 3
        _, in_doubt = peer.replies[-1]
        assert (in_doubt.code, in_doubt.fields) == (1, {"contrailInDoubt": "true"})
        handle(request, peer)
        assert peer.replies[-1][1].code == 14
        refusing = answered_when_committed(lambda request, peer: Response(2, "busy"), at_once)
        refusing(request, peer)
        assert peer.replies[-1][1].code == 2

    run(scenario, tmp_path)


def test_with_nothing_to_commit_the_answer_is_given_at_once(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first = await leader(folder)
        first.hear_all()
        first.tables.sweep()
        first.hear_all()
        done: list[Exception | None] = []
        first.persistence.when_written("consumerOffset.json", done.append)
        assert done == [None]

    run(scenario, tmp_path)


def test_each_segment_has_a_snapshot_that_a_member_can_begin_with(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        first = Member(folder / "leader")
        first.log.next_offsets = {(b"orders", 3): 77, (b"\xff", 0): 5}
        await first.tables.lead(1)
        for number in range(25):
            first.commit("g", "orders", number + 1)
            first.tables.sweep()
        first.hear_all()
        count = len(first.log.records)
        snapshots = [at for at, body in enumerate(first.log.records) if b'"snapshot"' in body]
        assert len({at // 10 for at in snapshots}) == count // 10 + 1
        late = Member(folder / "late")
        late.log.records = first.log.records[snapshots[-1] :]
        late.hear_all()
        assert late.shown() == first.shown()
        # Also where all messages of a queue are gone.
        assert late.tables.offset_floors() == {(b"orders", 3): 77}

    run(scenario, tmp_path)


@pytest.mark.parametrize("seed", range(25))
def test_members_hold_the_same_after_any_changes_of_leaders(tmp_path: Path, seed: int) -> None:
    """Leaders write, some of it is committed, and another member goes on with what it has."""

    async def scenario(folder: Path) -> None:
        chance = random.Random(seed)
        members = [Member(folder / f"n{number}") for number in range(3)]
        leading, term = members[0], 1
        await leading.tables.lead(term)
        for _ in range(60):
            step = chance.randrange(8)
            group, topic = chance.choice("gh"), chance.choice(("orders", "bills"))
            if step < 3:
                leading.commit(group, topic, chance.randrange(100), chance.randrange(2))
            elif step == 3:
                leading.offsets.assign_reset(group, topic, 0, chance.randrange(100))
            elif step == 4:
                leading.create(f"topic-{chance.randrange(6)}", chance.randrange(1, 5))
                await turn()
            elif step == 5:
                leading.topics.ensure_retry_topic(group, leading.clock.now_ms())
                leading.tables.sweep()
            elif step == 6:
                await turn()
                leading.tables.sweep()
                copied = chance.randint(leading.log.committed, len(leading.log.records))
                for member in members:
                    if member is not leading and member.log.committed <= copied:
                        member.log.records = leading.log.records[:copied]
                leading.hear(copied)
                for member in members:
                    if member is not leading and chance.random() < 0.7:
                        member.hear(copied)
            else:
                term += 1
                leading.tables.follow(term)
                await turn()
                # Its records beyond commit are the log from now on.
                leading = max(members, key=lambda one: (len(one.log.records), chance.random()))
                for member in members:
                    member.log.records = leading.log.records[: len(member.log.records)]
                leading.hear_all()
                await leading.tables.lead(term)
        for _ in range(2):
            # Changes that are carried out at commit give their table a new version.
            await turn()
            leading.tables.sweep()
            leading.hear_all()
        for member in members:
            if member is not leading:
                member.copy_from(leading)
            assert member.shown() == leading.shown()
        again = Member(folder / "again")
        again.copy_from(leading)
        assert again.shown() == leading.shown()

    run(scenario, tmp_path)
