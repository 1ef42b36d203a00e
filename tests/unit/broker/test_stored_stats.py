"""Stored messages are counted by topic, kind and size, once per run."""

from __future__ import annotations

from contrail.broker.state.stats import KIND_NAMES, TOPIC_PUT_NUMS, BrokerStats
from contrail.model.message import MessageDraft
from contrail.model.record import TRANSACTION_COMMIT
from contrail.model.topic import HALF_TOPIC, SCHEDULE_TOPIC


def stats_of(*runs: tuple[list[MessageDraft], int]) -> BrokerStats:
    """After these runs, whose messages all have one size."""
    stats = BrokerStats("c", started_ms=0)
    for drafts, size in runs:
        places = [index * size for index in range(len(drafts))]
        stats.stored(drafts, places, len(drafts) * size)
    return stats


def counts(stats: BrokerStats) -> dict[tuple[str, str], list[int]]:
    return {(topic, KIND_NAMES[kind]): row for (topic, kind), row in stats.stored_rows()}


def test_runs_add_up() -> None:
    plain = MessageDraft(b"orders", 0, b"x")
    stats = stats_of(([plain, plain], 200), ([plain], 5000))
    assert counts(stats) == {("orders", "normal"): [3, 5400, 2, 0, 1, 0, 0, 0, 0]}
    found = stats.find(TOPIC_PUT_NUMS, "orders")
    assert found is not None
    assert found.value == 3


def test_a_message_is_of_the_kind_that_its_way_tells() -> None:
    ordered = MessageDraft(b"orders", 0, b"x", b"__SHARDINGKEY\x017\x02")
    delivered = MessageDraft(b"orders", 0, b"x", prepared_transaction_offset=-9)
    committed = MessageDraft(b"orders", 0, b"x", sys_flag=TRANSACTION_COMMIT)
    waiting = MessageDraft(SCHEDULE_TOPIC.encode(), 0, b"x")
    half = MessageDraft(HALF_TOPIC.encode(), 0, b"x")
    found = counts(stats_of(([ordered, delivered, committed, waiting, half], 100)))
    assert set(found) == {
        ("orders", "fifo"),
        ("orders", "delay"),
        ("orders", "transaction"),
        (SCHEDULE_TOPIC, "delay"),
        (HALF_TOPIC, "transaction"),
    }


def test_a_deleted_topic_is_forgotten_and_its_neighbours_are_not() -> None:
    stats = stats_of(([MessageDraft(b"orders", 0, b"x"), MessageDraft(b"other", 0, b"x")], 100))
    stats.topic_deleted("orders")
    assert list(counts(stats)) == [("other", "normal")]
