"""Members that fed the same records hold the same tables, whatever they began with."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.model.data_version import DataVersion
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.replication.state.replicated_state import ReplicatedState, StateTables
from contrail.replication.state.state_records import (
    Change,
    GroupDeletion,
    StateRecord,
    Table,
    TopicDeletion,
    decode_state_record,
    encode_state_record,
    snapshot_parts,
)

pytestmark = pytest.mark.proves("replication.failover.tables")

_TOPICS = st.sampled_from(["a", "b", "%RETRY%g"])
_GROUPS = st.sampled_from(["g", "h", "CID_RMQ_SYS_TRANS"])
_OFFSETS = st.integers(0, 9)
_QUEUES = st.sampled_from(["0", "3"])
_PARTS = st.sampled_from([1, 40, 100_000])


_OFFSET_KEYS = st.tuples(st.builds("{}@{}".format, _TOPICS, _GROUPS), _QUEUES)
_RECORDS: st.SearchStrategy[StateRecord] = st.one_of(
    st.builds(
        lambda name, count: Change(put={Table.TOPICS: {(name,): TopicConfig(name, count, 4)}}),
        _TOPICS,
        _OFFSETS,
    ),
    st.builds(
        lambda name: Change(put={Table.GROUPS: {(name,): SubscriptionGroupConfig(name)}}), _GROUPS
    ),
    *(
        st.builds(
            lambda table, key, offset: Change(put={table: {key: offset}}),
            st.just(table),
            _OFFSET_KEYS,
            _OFFSETS,
        )
        for table in (Table.OFFSETS, Table.RESETS)
    ),
    st.builds(
        lambda group, topic, bits: Change(put={Table.FORBIDDEN: {(group, topic): bits}}),
        _GROUPS,
        _TOPICS,
        _OFFSETS,
    ),
    st.builds(
        lambda table, topic, group, text: Change(put={table: {(topic, group): {"as": text}}}),
        st.sampled_from([Table.MODES, Table.FILTERS]),
        _TOPICS,
        _GROUPS,
        st.text(max_size=3),
    ),
    st.builds(
        lambda number: Change(put={Table.VERSIONS: {("topics.json",): DataVersion(1, number, 7)}}),
        _OFFSETS,
    ),
    _OFFSET_KEYS.map(lambda key: Change(remove={Table.RESETS: (key,)})),
    st.builds(TopicDeletion, _TOPICS),
    st.builds(GroupDeletion, _GROUPS, st.booleans()),
)


class _Snapshot(NamedTuple):
    """The leader renders its tables; ``rivals`` come between the parts, ``lost`` ends them."""

    part_bytes: int
    rivals: list[StateRecord]
    is_lost: bool


_STEPS = st.lists(
    st.one_of(
        _RECORDS, st.builds(_Snapshot, _PARTS, st.lists(_RECORDS, max_size=3), st.booleans())
    ),
    max_size=25,
)


class _Entry(NamedTuple):
    physical_offset: int
    physical_end: int
    body: bytes


class _Log:
    """The records of a leader, with its tables as it appended them."""

    def __init__(self, steps: list[StateRecord | _Snapshot]) -> None:
        self.entries: list[_Entry] = []
        self.leader = StateTables()
        # The index of the first part and the index behind the last one.
        self.snapshots: list[tuple[int, int]] = []
        for number, step in enumerate(steps):
            if isinstance(step, _Snapshot):
                self._snapshot(str(number), step)
            else:
                self._append(step)

    def _append(self, record: StateRecord) -> None:
        body = encode_state_record(record)
        assert decode_state_record(body) == record
        start = 1_000 * (len(self.entries) + 1)
        self.entries.append(_Entry(start, start + 700, body))
        if isinstance(record, Change | TopicDeletion | GroupDeletion):
            self.leader.take(record, start)

    def _snapshot(self, name: str, step: _Snapshot) -> None:
        parts = snapshot_parts(self.leader.copy().entries(), name, part_bytes=step.part_bytes)
        first, rivals = len(self.entries), [*step.rivals]
        for part in parts[:-1]:
            self._append(part)
            if rivals:
                self._append(rivals.pop())
        if not step.is_lost:
            self._append(parts[-1])
            self.snapshots.append((first, len(self.entries)))


def _feed(state: ReplicatedState, entries: list[_Entry]) -> list[StateTables]:
    """The tables after each entry."""
    found = []
    for entry in entries:
        state.feed(entry.body, entry.physical_offset, entry.physical_end)
        found.append(state.tables.copy())
    return found


@given(_STEPS)
def test_a_member_that_fed_the_whole_log_holds_what_the_leader_appended(
    steps: list[StateRecord | _Snapshot],
) -> None:
    log = _Log(steps)
    state = ReplicatedState()
    _feed(state, log.entries)
    assert state.tables == log.leader
    whole = [log.entries[first].physical_offset for first, _ in log.snapshots]
    assert state.snapshot_starts == whole


@given(_STEPS)
def test_a_member_that_began_with_a_snapshot_holds_the_same_at_each_commit(
    steps: list[StateRecord | _Snapshot],
) -> None:
    log = _Log(steps)
    whole = _feed(ReplicatedState(), log.entries)
    for first, behind in log.snapshots:
        later = _feed(ReplicatedState(), log.entries[first:])
        assert later[behind - first - 1 :] == whole[behind - 1 :]


@given(_STEPS, st.data())
def test_a_member_that_was_restored_holds_the_same_at_each_commit(
    steps: list[StateRecord | _Snapshot], data: st.DataObject
) -> None:
    log = _Log(steps)
    cut = data.draw(st.integers(0, len(log.entries)))
    again = data.draw(st.integers(0, cut))
    whole = ReplicatedState()
    at_each = _feed(whole, log.entries)
    before = ReplicatedState()
    _feed(before, log.entries[:cut])
    restored = ReplicatedState.decode(before.encode())
    assert (restored.tables, restored.position) == (before.tables, before.position)
    # Records that were fed before are fed again, and change nothing.
    assert _feed(restored, log.entries[again:])[cut - again :] == at_each[cut:]
    assert restored.snapshot_starts == whole.snapshot_starts
    assert restored.digest() == whole.digest()


@given(_STEPS)
def test_no_part_is_longer_than_asked_unless_it_is_one_entry(
    steps: list[StateRecord | _Snapshot],
) -> None:
    entries = _Log(steps).leader.entries()
    for part in snapshot_parts(entries, "s", part_bytes=400):
        count = sum(len(of) for of in part.put.values())
        assert count <= 1 or len(encode_state_record(part)) <= 2 * 400
