"""The table of consumer offsets: commits, pending resets, clones and removals."""

from __future__ import annotations

import pytest

from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion


def test_an_unknown_queue_answers_minus_one() -> None:
    offsets = ConsumerOffsets()
    assert offsets.query("g", "orders", 0) == -1
    offsets.commit("g", "orders", 0, 5)
    assert offsets.query("g", "orders", 0) == 5
    assert offsets.query("g", "orders", 1) == -1
    assert offsets.query("h", "orders", 0) == -1


def test_a_commit_may_go_back() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("g", "orders", 0, 5)
    offsets.commit("g", "orders", 0, 3)
    assert offsets.query("g", "orders", 0) == 3


def test_loaded_offsets_are_there_and_unchanged() -> None:
    offsets = ConsumerOffsets(
        {"orders@g": {0: 7}}, data_version=DataVersion(0, 3, 9), unknown={"more": 1}
    )
    assert offsets.query("g", "orders", 0) == 7
    assert not offsets.changed
    assert offsets.snapshot() == ({"orders@g": {0: 7}}, DataVersion(0, 3, 9), {"more": 1})


def test_a_snapshot_is_a_copy() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("g", "orders", 0, 5)
    snapshot = offsets.snapshot()
    offsets.commit("g", "orders", 0, 6)
    assert snapshot.offsets == {"orders@g": {0: 5}}
    assert offsets.changed


def test_a_pending_reset_is_the_answer_and_makes_commits_void() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("g", "orders", 0, 50)
    offsets.assign_reset("g", "orders", 0, 10)
    assert offsets.peek_reset("g", "orders", 0) == 10
    assert not offsets.commit("g", "orders", 0, 51)
    assert offsets.commit("g", "orders", 1, 3), "another queue of the topic is not reset"
    assert offsets.query("g", "orders", 0) == 10
    assert offsets.take_reset("g", "orders", 0) == 10
    assert offsets.take_reset("g", "orders", 0) is None
    assert offsets.commit("g", "orders", 0, 11)
    assert offsets.query("g", "orders", 0) == 11


def test_a_reset_reaches_the_file_before_any_client_pulls() -> None:
    offsets = ConsumerOffsets()
    offsets.assign_reset("g", "orders", 0, 10)
    assert offsets.changed
    assert offsets.snapshot().offsets == {"orders@g": {0: 10}}


def test_one_of_two_resets_is_taken_and_the_other_stays() -> None:
    offsets = ConsumerOffsets()
    offsets.assign_reset("g", "orders", 0, 10)
    offsets.assign_reset("g", "orders", 1, 11)
    assert offsets.take_reset("g", "orders", 0) == 10
    assert offsets.peek_reset("g", "orders", 1) == 11
    assert offsets.peek_reset("h", "orders", 1) is None


def test_the_pulled_offset_falls_back_to_the_committed_one() -> None:
    offsets = ConsumerOffsets()
    assert offsets.query_pulled("g", "orders", 0) == -1
    offsets.commit("g", "orders", 0, 5)
    assert offsets.query_pulled("g", "orders", 0) == 5
    offsets.commit_pulled("g", "orders", 0, 9)
    assert offsets.query_pulled("g", "orders", 0) == 9
    assert offsets.query("g", "orders", 0) == 5
    assert "9" not in str(offsets.snapshot().offsets)


def test_groups_and_topics_find_each_other_and_odd_keys_are_left_alone() -> None:
    offsets = ConsumerOffsets(
        {"orders@g": {}, "bills@g": {}, "orders@h": {}, "odd": {}, "a@b@c": {}}
    )
    assert offsets.topics_of("g") == {"orders", "bills"}
    assert offsets.groups_of("orders") == {"g", "h"}
    assert offsets.groups_of("odd") == set()
    assert "odd" in offsets.snapshot().offsets


def test_a_clone_is_a_copy_of_its_own() -> None:
    offsets = ConsumerOffsets({"orders@g": {0: 5, 1: 6}})
    assert offsets.clone("g", "h", "orders")
    assert not offsets.clone("g", "h", "bills")
    offsets.commit("g", "orders", 0, 7)
    assert offsets.of_group("h", "orders") == {0: 5, 1: 6}
    assert offsets.of_group("h", "bills") == {}


def test_removing_a_group_or_topic_takes_resets_and_pulls_along() -> None:
    offsets = ConsumerOffsets({"orders@g": {0: 5}, "orders@ggg": {0: 6}, "bills@g": {0: 7}})
    offsets.assign_reset("g", "orders", 0, 1)
    offsets.commit_pulled("g", "orders", 0, 9)
    offsets.changed = False
    offsets.remove_group("g")
    assert offsets.changed
    assert offsets.peek_reset("g", "orders", 0) is None
    assert offsets.query_pulled("g", "orders", 0) == -1
    assert offsets.snapshot().offsets == {"orders@ggg": {0: 6}}
    offsets.remove_topic("orders")
    assert offsets.snapshot().offsets == {}


def test_the_version_moves_once_in_five_hundred_commits() -> None:
    offsets = ConsumerOffsets()
    for count in range(1250):
        offsets.commit("g", "orders", 0, count)
    offsets.stamp(77)
    assert offsets.data_version == DataVersion(0, 2, 77)
    for count in range(250):
        offsets.commit("g", "orders", 0, count)
    offsets.stamp(78)
    assert offsets.data_version == DataVersion(0, 3, 78)


def test_pulled_offsets_are_shown_as_a_copy() -> None:
    offsets = ConsumerOffsets()
    offsets.commit_pulled("g", "orders", 1, 7)
    offsets.pulled()["orders@g"][1] = 9
    assert offsets.pulled() == {"orders@g": {1: 7}}


@pytest.mark.proves("broker.system-names.own-cursors")
def test_cursors_of_the_broker_are_moved_by_nothing_but_the_broker() -> None:
    key, group, topic = "half@CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS", "half"
    offsets = ConsumerOffsets({key: {0: 7}, "half@g": {0: 1}})
    offsets.commit(group, topic, 0, 99)
    offsets.read_on(key, 0, 99, 99)
    offsets.remove_group(group)
    offsets.remove_topic(topic)
    for move in (
        lambda: offsets.assign_reset(group, topic, 0, 99),
        lambda: offsets.clone("g", group, topic),
    ):
        with pytest.raises(RequestRejected, match="the broker's own"):
            move()
    assert offsets.query(group, topic, 0) == 7
    assert offsets.snapshot().offsets == {key: {0: 7}}
    offsets.keep_own(group, topic, 0, 8)
    assert (offsets.query(group, topic, 0), offsets.of_group(group, topic)) == (8, {0: 8})
    assert offsets.snapshot().offsets == {key: {0: 8}}
    assert offsets.topics_of(group) == {topic}
    assert offsets.clone(group, "copy", topic)
    assert offsets.query("copy", topic, 0) == 8


def test_progress_that_a_slave_counted_is_taken_over_where_it_is_ahead() -> None:
    offsets = ConsumerOffsets(
        {"orders@g": {0: 7, 1: 3}, "half@CID_RMQ_SYS_TRANS": {0: 7}},
        data_version=DataVersion(0, 3, 9),
    )
    slaves = {"orders@g": {0: 5, 1: 4}, "bills@g": {0: 0}, "half@CID_RMQ_SYS_TRANS": {0: 99}}
    assert offsets.adopt(slaves, DataVersion(0, 2, 99)) == 2
    assert offsets.of_group("g", "orders") == {0: 7, 1: 4}
    assert offsets.query("g", "bills", 0) == 0
    assert offsets.query("CID_RMQ_SYS_TRANS", "half", 0) == 7
    assert offsets.data_version == DataVersion(0, 3, 9)
    assert offsets.adopt({}, DataVersion(0, 4, 1)) == 0
    assert offsets.data_version == DataVersion(0, 4, 1)


@pytest.mark.proves("replication.failover.tables")
def test_a_member_of_a_group_holds_the_leaders_offsets_and_no_others() -> None:
    offsets = ConsumerOffsets()
    offsets.keep_own("CID_RMQ_SYS_TRANS", "half", 0, 4)
    for group, queue_id in (("g", 0), ("g", 1), ("h", 0)):
        offsets.admit(group, "t", "host", queue_id)
        offsets.commit(group, "t", queue_id, 9)
    offsets.replace({"t@g": {1: 5}}, {"t@g": {0: 2}}, DataVersion(0, 7, 1))
    assert offsets.all_committed() == {"t@g": {1: 5}}
    assert offsets.query("g", "t", 0) == 2
    assert offsets.query("CID_RMQ_SYS_TRANS", "half", 0) == 4
    assert offsets.data_version.counter == 7
    offsets.assign("t@g", 1, None, None)
    offsets.assign("t@g", 0, 3, None)
    offsets.assign("t@h", 2, 8, 8)
    assert offsets.all_committed() == {"t@g": {0: 3}, "t@h": {2: 8}}
    assert offsets.pending_resets == {"t@h": {2: 8}}
    seen = {"t@g": {0: 3}, "t@h": {2: 7}, "gone@g": {0: 1}}
    assert sorted(offsets.keys_unlike(seen)) == ["gone@g", "t@h"]
    used = offsets.bytes.total
    offsets.assign("t@h", 2, None, None)
    assert offsets.bytes.total < used and offsets.topics_of("h") == set()
