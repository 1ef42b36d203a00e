"""The queue of a row: always the same, and the one that RocketMQ's clients choose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.message import Message, MessageQueue
from contrail.client.selectors import HashSelector
from contrail.errors import SinkRefused
from contrail.pipeline.sink_layout import CodedTexts, QueueTable, RowWish, RowWishes, layout_of

TWO_BROKERS = (("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1), ("broker-b", 2))
TABLE = QueueTable("orders", TWO_BROKERS)


def chosen(wish: RowWish, *, partition: int = 0, row: int = 0) -> tuple[str, int]:
    queue = TABLE.queues[TABLE.choose(wish, partition, row)]
    return queue.broker_name, queue.queue_id


def test_rows_without_a_queue_column_take_turns_beginning_at_their_partition() -> None:
    places = [TABLE.choose(RowWish(), partition=3, row_number=row) for row in range(7)]
    assert places == [3, 4, 0, 1, 2, 3, 4]


@given(st.text(min_size=1, max_size=20))
def test_a_sharding_key_leads_to_the_queue_that_the_clients_choose(key: str) -> None:
    queues = [MessageQueue("orders", name, number) for name, number in TWO_BROKERS]
    expected = HashSelector()(queues, Message("orders", b"-"), key)
    assert chosen(RowWish(sharding_key=key), partition=7, row=9) == expected[1:]


def test_a_queue_id_alone_is_that_of_the_first_broker_by_name() -> None:
    assert chosen(RowWish(queue_id=0)) == ("broker-a", 0)
    assert chosen(RowWish(queue_id=2)) == ("broker-b", 2)


def test_the_first_broker_by_name_is_found_in_any_order_of_the_layout() -> None:
    table = QueueTable("orders", tuple(reversed(TWO_BROKERS)))
    assert table.queues[table.choose(RowWish(queue_id=0), 0, 0)].broker_name == "broker-a"


def test_a_broker_name_chooses_among_queues_of_one_id() -> None:
    assert chosen(RowWish(queue_id=0, broker_name="broker-b")) == ("broker-b", 0)


def test_a_queue_id_comes_before_a_sharding_key_and_that_before_a_key() -> None:
    assert chosen(RowWish(queue_id=1, sharding_key="x", key="y")) == ("broker-a", 1)
    both = chosen(RowWish(sharding_key="order-1", key="other"))
    assert both == chosen(RowWish(sharding_key="order-1"))


@pytest.mark.parametrize(
    ("wish", "where"),
    [(RowWish(queue_id=9), "queue 9"), (RowWish(queue_id=2, broker_name="broker-a"), "'broker-a'")],
)
def test_a_missing_queue_is_refused_with_row_and_column(wish: RowWish, where: str) -> None:
    with pytest.raises(SinkRefused, match="row 12 of partition 4, column queueId") as refused:
        chosen(wish, partition=4, row=12)
    assert where in str(refused.value)
    assert "broker-b:2" in str(refused.value)


def test_a_topic_without_queues_is_refused() -> None:
    with pytest.raises(SinkRefused, match="'orders' has no queue"):
        QueueTable("orders", ())


wishes = st.builds(
    RowWish,
    queue_id=st.none() | st.integers(0, 1),
    broker_name=st.none() | st.sampled_from(["broker-a", "broker-b"]),
    sharding_key=st.none() | st.sampled_from(["a", "b", "order-77", "\u00e4\U0001f600"]),
    key=st.none() | st.sampled_from(["k1", "k2"]),
)


def coded(texts: list[str | None]) -> CodedTexts:
    known = list(dict.fromkeys(text for text in texts if text is not None))
    codes = [-1 if text is None else known.index(text) for text in texts]
    return CodedTexts(known, np.array(codes, np.int64))


@given(
    st.lists(wishes, min_size=1, max_size=30),
    st.integers(0, 1000),
    st.integers(0, 10**9),
    st.integers(1, 3),
)
def test_rows_of_a_batch_go_to_the_same_queues_as_single_rows(
    rows: list[RowWish], partition: int, first_row: int, step: int
) -> None:
    together = RowWishes(
        [row.queue_id for row in rows],
        [row.broker_name for row in rows],
        coded([row.sharding_key for row in rows]),
        coded([row.key for row in rows]),
    )
    numbers = np.arange(0, len(rows), step, dtype=np.int64)
    found = TABLE.choose_many(together, numbers, partition, first_row)
    alone = [TABLE.choose(rows[n], partition, first_row + n) for n in numbers.tolist()]
    assert found.tolist() == alone


def test_a_route_becomes_a_layout_in_its_own_order() -> None:
    queues = [MessageQueue("orders", "broker-b", 1), MessageQueue("orders", "broker-a", 0)]
    assert layout_of(queues) == (("broker-b", 1), ("broker-a", 0))
