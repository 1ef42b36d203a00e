"""Batches popped in order: what blocks a queue, what is counted, and their file."""

from __future__ import annotations

import json
import re

import pytest

from contrail.broker.state.order_batches import (
    KEPT_MS,
    OrderBatch,
    OrderBatches,
    Settled,
    parse_order_batches,
)
from contrail.model.fastjson import FastJsonError, dumps

QUEUE = ("billing", "orders", 0)
# As Apache's broker wrote it.
WRITTEN = (
    b'{"table":{"orders@billing":{0:{"a":"attempt-1","cm":2,"i":60000,"l":500,"o":[100,1,3],'
    b'"oc":{101:1},"ot":{103:70000},"popTime":400}}}}'
)


def batch(*offsets: int, attempt_id: str | None = None, pop_time_ms: int = 1000) -> OrderBatch:
    return OrderBatch(attempt_id, pop_time_ms, 60_000, offsets, pop_time_ms)


def given(*offsets: int, attempt_id: str | None = None) -> OrderBatches:
    batches = OrderBatches()
    batches.give(QUEUE, batch(*offsets, attempt_id=attempt_id))
    return batches


def test_a_batch_blocks_until_all_is_acknowledged_or_visible() -> None:
    batches = given(4, 5, 7)
    assert batches.is_blocked(QUEUE, None, 4, 60_999)
    assert not batches.is_blocked(QUEUE, None, 4, 61_000)
    assert not batches.is_blocked(("other", "orders", 0), None, 4, 1000)
    found = batches.find(QUEUE)
    assert found is not None
    assert batches.settle(QUEUE, 5, 1000) is Settled.TAKEN and found.next_offset == 4
    assert batches.settle(QUEUE, 4, 1000) is Settled.TAKEN and found.next_offset == 7
    assert batches.is_blocked(QUEUE, None, 7, 1000)
    assert batches.settle(QUEUE, 7, 1000) is Settled.TAKEN and found.next_offset == 8
    assert not batches.is_blocked(QUEUE, None, 8, 1000)


def test_messages_below_the_groups_offset_block_nothing() -> None:
    batches = given(4, 5)
    assert batches.is_blocked(QUEUE, None, 5, 1000)
    assert not batches.is_blocked(QUEUE, None, 6, 1000)


def test_acks_of_other_batches_and_other_messages_change_nothing() -> None:
    batches = given(4, 5)
    assert batches.settle(QUEUE, 4, 999) is Settled.IGNORED
    assert batches.settle(("other", "orders", 0), 4, 1000) is Settled.IGNORED
    assert batches.settle(QUEUE, 6, 1000) is Settled.ILLEGAL
    assert not batches.prolong(QUEUE, 4, 999, 5) and not batches.prolong(QUEUE, 6, 1000, 5)
    found = batches.find(QUEUE)
    assert found is not None and found.acked == 0


@pytest.mark.parametrize(("visible_ms", "free_ms"), [(90_000, 90_000), (2_000, 61_000)])
def test_a_changed_time_of_one_message_moves_the_end(visible_ms: int, free_ms: int) -> None:
    batches = given(4, 5)
    assert batches.prolong(QUEUE, 5, 1000, visible_ms)
    assert batches.is_blocked(QUEUE, None, 4, free_ms - 1)
    assert not batches.is_blocked(QUEUE, None, 4, free_ms)


def test_the_same_attempt_is_not_blocked_and_counts_nothing() -> None:
    batches = given(4, 5, attempt_id="a")
    assert not batches.is_blocked(QUEUE, "a", 4, 1000)
    assert batches.is_blocked(QUEUE, "b", 4, 1000) and batches.is_blocked(QUEUE, None, 4, 1000)
    batches.give(QUEUE, batch(4, 5, attempt_id="a"))
    assert counts(batches) == {}
    batches.give(QUEUE, batch(4, 5, 6, attempt_id="b"))
    assert counts(batches) == {4: 1, 5: 1}
    batches.give(QUEUE, batch(5, 6))
    assert counts(batches) == {5: 2, 6: 1}
    found = batches.find(QUEUE)
    assert found is not None and found.count_of_all == 1
    batches.give(QUEUE, batch(6, 7))
    assert counts(batches) == {6: 2}
    assert (found := batches.find(QUEUE)) is not None and found.count_of_all == 0


def counts(batches: OrderBatches) -> dict[int, int]:
    found = batches.find(QUEUE)
    assert found is not None
    return found.counts


def test_batches_are_read_and_written_as_apache_writes_them() -> None:
    found = parse_order_batches(WRITTEN)
    (read,) = found.values()
    assert list(found) == [QUEUE]
    assert (read.attempt_id, read.offsets, read.acked) == ("attempt-1", (100, 101, 103), 2)
    assert (read.counts, read.visible_ms) == ({101: 1}, {103: 70_000})
    assert (read.pop_time_ms, read.invisible_ms, read.last_ms) == (400, 60_000, 500)
    quoted = re.sub(rb"([{,])([0-9]+):", rb'\1"\2":', WRITTEN)
    assert dumps(OrderBatches(found).to_fields(), pretty=False) == quoted, "Apache reads both"
    assert parse_order_batches(dumps(given(4).to_fields())) == {QUEUE: batch(4)}


@pytest.mark.parametrize(
    "entry",
    [
        {"orders": {"0": {"o": [1]}}},
        {"orders@billing": {"x": {"o": [1]}}},
        {"orders@billing": {"0": {"o": list(range(33))}}},
        {"orders@billing": {"0": {"o": ["a"]}}},
    ],
)
def test_a_malformed_table_of_batches_is_refused(entry: object) -> None:
    with pytest.raises(FastJsonError):
        parse_order_batches(json.dumps({"table": entry}).encode())
    assert parse_order_batches(b'{"table":{"orders@billing":{0:{"o":[]}}}}') == {}


def test_batches_of_queues_that_are_gone_or_old_are_forgotten() -> None:
    batches = given(4)
    batches.changed = False
    batches.forget_old(1000 + KEPT_MS)
    assert len(batches) == 1 and not batches.changed
    batches.forget_old(1001 + KEPT_MS)
    assert len(batches) == 0 and batches.changed
