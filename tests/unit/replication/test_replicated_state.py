"""The tables of a failover group, record by record."""

from __future__ import annotations

import pytest

from contrail.model.topic import TopicConfig
from contrail.replication.state.replicated_state import ReplicatedState
from contrail.replication.state.state_records import (
    Change,
    GroupDeletion,
    SnapshotPart,
    StateRecord,
    Table,
    TopicDeletion,
    decode_state_record,
    encode_state_record,
)

pytestmark = pytest.mark.proves("replication.failover.tables")
QUEUE = ("orders@g", "0")


class Fed:
    """A state that is fed one record after the other, each 100 bytes long."""

    def __init__(self) -> None:
        self.state = ReplicatedState()

    def feed(self, record: StateRecord) -> None:
        start = self.state.position
        self.state.feed(encode_state_record(record), start, start + 100)

    def offsets(self, **more: int) -> None:
        self.feed(Change(put={Table.OFFSETS: {QUEUE: more["at"]}}))


def test_an_offset_is_assigned_and_not_merged_by_its_maximum() -> None:
    fed = Fed()
    fed.offsets(at=50)
    fed.offsets(at=7)
    assert fed.state.tables[Table.OFFSETS] == {QUEUE: 7}


def test_a_reset_is_pending_until_a_record_says_that_it_was_taken() -> None:
    fed = Fed()
    fed.offsets(at=50)
    fed.feed(Change(put={Table.OFFSETS: {QUEUE: 3}, Table.RESETS: {QUEUE: 3}}))
    assert fed.state.tables[Table.RESETS] == {QUEUE: 3}
    fed.feed(Change(remove={Table.RESETS: (QUEUE,)}))
    assert fed.state.tables[Table.RESETS] == {}
    assert fed.state.tables[Table.OFFSETS] == {QUEUE: 3}


def test_a_deleted_topic_takes_its_entries_along_and_leaves_a_tombstone() -> None:
    fed = Fed()
    other = ("invoices@g", "0")
    fed.feed(
        Change(
            put={
                Table.TOPICS: {(name,): TopicConfig(name, 4, 4) for name in ("orders", "invoices")},
                Table.OFFSETS: {QUEUE: 5, other: 6},
                Table.RESETS: {QUEUE: 5},
                Table.FILTERS: {("orders", "g"): {"expression": "a > 1"}},
                Table.NEXT_OFFSETS: {("orders", "0"): 9, ("invoices", "0"): 8},
            }
        )
    )
    fed.feed(TopicDeletion("orders"))
    tables = fed.state.tables
    assert list(tables[Table.TOPICS]) == [("invoices",)]
    assert tables[Table.OFFSETS] == {other: 6}
    assert not tables[Table.RESETS] and not tables[Table.FILTERS]
    assert tables[Table.NEXT_OFFSETS] == {("invoices", "0"): 8}
    # The place of the deletion's own record.
    assert tables[Table.TOMBSTONES] == {("orders",): 100}


@pytest.mark.parametrize("with_offsets", [False, True])
def test_a_deleted_group_keeps_its_offsets_unless_they_are_deleted_too(with_offsets: bool) -> None:
    fed = Fed()
    fed.offsets(at=5)
    fed.feed(Change(put={Table.FORBIDDEN: {("g", "orders"): 1}}))
    fed.feed(GroupDeletion("g", with_offsets))
    assert fed.state.tables[Table.FORBIDDEN] == {}
    assert bool(fed.state.tables[Table.OFFSETS]) is not with_offsets


def test_cursors_of_the_system_are_each_brokers_own() -> None:
    fed = Fed()
    fed.feed(Change(put={Table.OFFSETS: {("RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS", "0"): 5}}))
    assert fed.state.tables[Table.OFFSETS] == {}


def test_a_record_below_the_position_is_not_taken_again() -> None:
    fed = Fed()
    fed.offsets(at=5)
    body = encode_state_record(Change(put={Table.OFFSETS: {QUEUE: 1}}))
    assert fed.state.feed(body, 0, 100) is None
    assert fed.state.tables[Table.OFFSETS] == {QUEUE: 5}


def test_a_snapshot_whose_leader_was_lost_changes_nothing() -> None:
    fed = Fed()
    fed.offsets(at=5)
    fed.feed(SnapshotPart("lost", 0, 2, {Table.OFFSETS: {QUEUE: 1}}))
    fed.feed(SnapshotPart("other", 1, 2, {}))
    assert fed.state.tables[Table.OFFSETS] == {QUEUE: 5}
    assert fed.state.snapshot_starts == []
    fed.feed(SnapshotPart("whole", 0, 1, {Table.OFFSETS: {QUEUE: 2}}))
    assert fed.state.tables[Table.OFFSETS] == {QUEUE: 2}
    assert fed.state.snapshot_starts == [300]
    fed.state.removed_before(301)
    assert fed.state.snapshot_starts == []


def test_a_snapshot_with_a_part_missing_is_no_snapshot() -> None:
    fed = Fed()
    fed.offsets(at=5)
    for part in (0, 2):
        fed.feed(SnapshotPart("s", part, 3, {Table.OFFSETS: {QUEUE: 1}}))
    fed.feed(SnapshotPart("s", 1, 3, {}))
    assert fed.state.tables[Table.OFFSETS] == {QUEUE: 5}


def test_tables_that_changed_are_known() -> None:
    fed = Fed()
    fed.offsets(at=5)
    assert fed.state.tables.changed == {Table.OFFSETS}
    fed.state.tables.changed.clear()
    fed.feed(SnapshotPart("s", 0, 1, {Table.OFFSETS: {QUEUE: 5}, Table.MODES: {("t", "g"): {}}}))
    assert fed.state.tables.changed == {Table.MODES}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"[]",
        b'{"kind": "newer"}',
        b'{"kind": "change", "put": {"unheard": {"a": 1}}}',
        b'{"kind": "change", "put": {"offsets": {"t@g": {"-1": 5}}}}',
        b'{"kind": "change", "put": {"offsets": {"t@g": {"01": 5}}}}',
        b'{"kind": "change", "put": {"offsets": {"t@g": {"0": "5"}}}}',
        b'{"kind": "change", "put": {"offsets": {"t@g": 5}}}',
        b'{"kind": "change", "put": {"tombstones": {"t": -1}}}',
        b'{"kind": "change", "put": {"topics": {"t": {"topicName": "other"}}}}',
        b'{"kind": "change", "put": {"modes": {"t": {"g": null}}}}',
        b'{"kind": "change", "remove": {"resets": [["t@g"]]}}',
        b'{"kind": "change", "remove": {"resets": [["t@g", 1]]}}',
        b'{"kind": "deleteTopic"}',
        b'{"kind": "deleteGroup", "group": " "}',
        b'{"kind": "snapshot", "id": "s", "part": 1, "parts": 1}',
    ],
)
def test_a_record_that_no_leader_wrote_is_refused_and_changes_nothing(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_state_record(body)
    state = ReplicatedState()
    with pytest.raises(ValueError, match=r"."):
        state.feed(body, 0, 100)
    assert (state.tables, state.position) == (ReplicatedState().tables, 0)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-20],
        lambda data: data + b'\n{"kind": "change"}',
        lambda data: data.replace(b'"position"', b'"elsewhere"'),
        lambda data: b"\n".join(data.split(b"\n")[:-1]),
        lambda data: b"",
    ],
)
def test_a_file_that_is_not_whole_is_refused(harm: object) -> None:
    fed = Fed()
    fed.offsets(at=5)
    fed.feed(SnapshotPart("s", 0, 2, {Table.OFFSETS: {QUEUE: 1}}))
    fed.offsets(at=6)
    data = fed.state.encode()
    assert ReplicatedState.decode(data).tables == fed.state.tables
    assert callable(harm)
    with pytest.raises(ValueError, match=r"."):
        ReplicatedState.decode(harm(data))
