"""Rows of lists from figures: sums over brokers, in which the unknown stays unknown."""

from __future__ import annotations

import pytest

from contrail.client.admin_values import GroupLag, QueueLag
from contrail.errors import ClientError, SomeFailed
from contrail.insight.lists import GroupRow, group_rows, topic_ends, topic_kind, topic_rows
from contrail.insight.looks import ClusterLook, figures_of_tables
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.figures import Figures, figures_steps
from contrail.protocol.json_style import MessageQueue, at_once


def figures(broker: str, *, client: str = "c1", offset: int = 4) -> Figures:
    """One topic of two queues that hold 5 and 3, and a group that has a place in the first."""
    return Figures(
        broker_name=broker,
        settings_count=2,
        topics=["orders", "%RETRY%billing"],
        read_queues=[2],
        write_queues=[2],
        perms=[6],
        put_rates=[1.5],
        queue_mins=[1, 0],
        queue_maxs=[6, 3],
        groups=["billing", "CID_RMQ_SYS_TRANS", "left"],
        consume_types=[1, -1, -1],
        message_models=[1, -1, -1],
        member_counts=[1, 0, 0],
        clients=[client],
        members=[0],
        subscribers=[0, 0],
        subscribed=[0, 1],
        pair_groups=[0, 2],
        pair_topics=[0, 0],
        pair_wanted=[1, 0],
        pair_rates=[2.0, 9.0],
        offsets=[offset, -1, 0, 0],
    )


@pytest.mark.proves("console.facts.lists")
def test_a_group_is_one_row_over_all_brokers() -> None:
    look = ClusterLook({"a": figures("a"), "b": figures("b", client="c2", offset=9)})
    rows = {row.group: row for row in group_rows(look)}
    assert list(rows) == ["CID_RMQ_SYS_TRANS", "billing", "left"]
    assert rows["billing"] == GroupRow(
        "billing",
        has_settings=True,
        members=2,
        model="CLUSTERING",
        consume_type="CONSUME_PASSIVELY",
        topics=["orders"],
        # 2 and 3 on the one broker; past the end, and 3, on the other.
        lag=8,
        consumed_per_second=4.0,
    )
    assert rows["CID_RMQ_SYS_TRANS"].is_internal
    left = rows["left"]
    # It does not want the topic any more.
    assert not left.has_settings and (left.lag, left.topics) == (0, [])


def test_a_client_of_two_brokers_is_one_member() -> None:
    look = ClusterLook({"a": figures("a"), "b": figures("b")})
    assert next(row for row in group_rows(look) if row.group == "billing").members == 1


def test_a_topic_is_one_row_over_all_brokers() -> None:
    look = ClusterLook({"a": figures("a"), "b": figures("b")})
    (row,) = topic_rows(look, frozenset({"DefaultCluster"}))
    assert (row.topic, row.kind, row.brokers) == ("orders", "normal", ["a", "b"])
    assert (row.queues, row.messages, row.put_per_second) == (4, 16, 3.0)
    assert (row.groups, row.lag) == (1, 10)


def test_ends_are_summed_and_unknown_where_one_broker_does_not_tell() -> None:
    assert topic_ends(ClusterLook({"a": figures("a"), "b": figures("b")})) == {"orders": 18}
    tables = figures_of_tables("b", {"orders": TopicConfig("orders", 2, 2)}, {}, {})
    assert topic_ends(ClusterLook({"a": figures("a"), "b": tables})) == {"orders": None}


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders", "normal"),
        ("%RETRY%billing", "retry"),
        ("%DLQ%billing", "dlq"),
        ("SCHEDULE_TOPIC_XXXX", "system"),
        ("broker-a", "system"),
    ],
)
def test_topics_are_told_apart_by_their_kind(topic: str, kind: str) -> None:
    assert topic_kind(topic, {"broker-a"}) == kind


def lag_of(*queues: tuple[str, int, int, int]) -> GroupLag:
    """Topic, queue id, the queue's end and the group's offset of each queue."""
    found = [
        QueueLag(MessageQueue(topic, "a", queue_id), end, place, max(0, end - place), 0)
        for topic, queue_id, end, place in queues
    ]
    return GroupLag("billing", tuple(found), sum(one.lag for one in found), 2.5)


@pytest.mark.proves("console.facts.missing")
def test_facts_that_a_broker_does_not_tell_are_unknown_and_not_zero() -> None:
    told = figures_of_tables(
        "a",
        {name: TopicConfig(name, 2, 2) for name in ("orders", "unread")},
        {"billing": SubscriptionGroupConfig("billing")},
        {"billing": lag_of(("orders", 0, 6, 4), ("orders", 1, 3, 0), ("gone", 0, 9, 0))},
    )
    assert Figures.decode(_body(told)) == told
    look = ClusterLook({"a": told}, tables_only=frozenset({"a"}))
    (group,) = group_rows(look)
    assert (group.members, group.lag, group.consumed_per_second) == (None, 5, 2.5)
    orders, unread = topic_rows(look, frozenset())
    assert (orders.messages, orders.put_per_second, orders.lag) == (None, None, 5)
    assert (unread.messages, unread.put_per_second, unread.groups) == (None, None, 0)


def test_a_topic_that_one_broker_does_not_tell_has_no_sum() -> None:
    tables = figures_of_tables("b", {"orders": TopicConfig("orders", 2, 2)}, {}, {})
    look = ClusterLook({"a": figures("a"), "b": tables}, tables_only=frozenset({"b"}))
    (row,) = topic_rows(look, frozenset())
    assert (row.brokers, row.messages, row.queues) == (["a", "b"], None, 4)


def test_without_any_answer_the_errors_are_raised() -> None:
    same, other = ClientError("busy"), ClientError("gone")
    ClusterLook({"a": figures("a")}, {"b": same}).require_one()
    with pytest.raises(ClientError, match=r"^busy$"):
        ClusterLook({}, {"a": same, "b": ClientError("busy")}).require_one()
    with pytest.raises(SomeFailed, match=r"a: busy; b: gone"):
        ClusterLook({}, {"a": same, "b": other}).require_one()


def _body(told: Figures) -> bytes:
    return at_once(figures_steps(told))
