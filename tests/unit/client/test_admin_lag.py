"""Lag from the brokers' answers about their own queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.client.state.lag import group_lag
from contrail.protocol.bodies.consume_stats import ConsumeStats, QueueProgress
from contrail.protocol.json_style import MessageQueue


def queue(broker_name: str, queue_id: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)


def test_the_queues_of_all_brokers_are_listed_in_order() -> None:
    lag = group_lag(
        "billing",
        [
            ConsumeStats({queue("broker-b", 0): QueueProgress(10, 7, 9, 5)}, tps=2.0),
            ConsumeStats(
                {
                    queue("broker-a", 1): QueueProgress(4, 4),
                    queue("broker-a", 0, "%RETRY%billing"): QueueProgress(1, 0),
                },
                tps=1.5,
            ),
        ],
    )
    assert [one.queue for one in lag.queues] == [
        queue("broker-a", 0, "%RETRY%billing"),
        queue("broker-a", 1),
        queue("broker-b", 0),
    ]
    assert (lag.total, lag.consumed_per_second) == (4, 3.5)
    assert lag.by_topic == {"%RETRY%billing": 1, "orders": 3}
    last = lag.queues[-1]
    assert (last.broker_offset, last.consumer_offset, last.lag) == (10, 7, 3)
    assert (last.in_flight, last.last_timestamp_ms) == (2, 5)


def test_a_group_without_offsets_has_no_lag() -> None:
    lag = group_lag("billing", [ConsumeStats(), ConsumeStats()])
    assert (lag.queues, lag.total) == ((), 0)


def test_a_queue_shorter_than_its_consumer_offset_has_no_lag() -> None:
    lag = group_lag("billing", [ConsumeStats({queue("broker-a", 0): QueueProgress(3, 50)})])
    assert (lag.total, lag.queues[0].lag, lag.queues[0].in_flight) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), max_size=20))
def test_the_total_is_the_sum_of_all_queues_and_never_below_zero(
    rows: list[tuple[int, int, int]],
) -> None:
    stats = [
        ConsumeStats({queue("broker-a", number): QueueProgress(*row)})
        for number, row in enumerate(rows)
    ]
    lag = group_lag("billing", stats)
    assert lag.total == sum(max(0, high - low) for high, low, _ in rows)
    assert all(one.lag >= 0 and one.in_flight >= 0 for one in lag.queues)
