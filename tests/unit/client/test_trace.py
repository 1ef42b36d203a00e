"""Traces of producers and consumers: which are collected, sent and left out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from contrail.client.hooks import ConsumeOutcome
from contrail.client.identity import UniqueIds
from contrail.client.message import MessageQueue, ReceivedMessage, SendReceipt, SendStatus
from contrail.client.outgoing import Outgoing
from contrail.client.trace import (
    ConsumerTrace,
    ProducerTrace,
    TraceDispatcher,
    trace_group,
)
from contrail.clock import ManualClock
from contrail.errors import SendFailed
from contrail.protocol.bodies.trace import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedState,
    TracedType,
    batch_traces,
    decode_traces,
    trace_keys,
)

QUEUE = MessageQueue("orders", "broker-a", 1)
NOW_MS = 1_760_000_000_000


class Sent:
    """Stands in for the trace topic."""

    def __init__(self, *, fails: bool = False) -> None:
        self.messages: list[tuple[str, bytes, list[str]]] = []
        self._fails = fails

    async def __call__(self, topic: str, body: bytes, keys: Sequence[str]) -> object:
        if self._fails:
            raise SendFailed("no broker", topic=topic)
        self.messages.append((topic, body, list(keys)))
        return None

    def traces(self) -> list[Trace]:
        return [trace for _, body, _ in self.messages for trace in decode_traces(body)]


class Collected:
    """A dispatcher that only keeps the traces."""

    topic = "RMQ_SYS_TRACE_TOPIC"

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def append(self, topic: str, trace: Trace) -> bool:
        assert topic == "orders"
        self.traces.append(trace)
        return True


def fake_instance() -> Any:
    return SimpleNamespace(
        clock=ManualClock(NOW_MS),
        unique_ids=UniqueIds(b"\x7f\x00\x00\x01"),
        routes=SimpleNamespace(master_of=lambda name: "127.0.0.1:10911"),
    )


def pub(number: int, **more: Any) -> PubTrace:
    return PubTrace(timestamp_ms=number, message_id=f"id-{number}", **more)


def receipt(**more: Any) -> SendReceipt:
    given = {"offset_message_id": "OFFSET", "region": "r1", **more}
    return SendReceipt(SendStatus.SEND_OK, "ID", QUEUE, 7, **given)


def received(message_id: str, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"",
        queue=QUEUE,
        queue_offset=0,
        message_id=message_id,
        offset_message_id="",
        properties=properties,
        reconsume_times=2,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        flag=0,
        sys_flag=0,
        physical_offset=0,
    )


def produced(outgoing: Outgoing, given: SendReceipt | None, error: Exception | None = None) -> Any:
    collected = Collected()
    trace = ProducerTrace(fake_instance(), "shop", collected)  # type: ignore[arg-type]
    trace.before_send(outgoing, QUEUE)
    trace.after_send(outgoing, QUEUE, given, error, 12)
    return collected.traces


def test_a_send_is_traced_with_the_brokers_answer() -> None:
    outgoing = Outgoing("orders", b"12345", {"TAGS": "paid", "KEYS": "k1 k2", "DELAY": "3"})
    assert produced(outgoing, receipt()) == [
        PubTrace(
            timestamp_ms=NOW_MS - 12,
            region="r1",
            group="shop",
            topic="orders",
            message_id="ID",
            tags="paid",
            keys="k1 k2",
            store_host="127.0.0.1:10911",
            body_length=5,
            cost_ms=12,
            message_type=TracedType.DELAYED,
            offset_message_id="OFFSET",
        )
    ]


def test_a_receipt_below_send_ok_is_traced_as_a_failure() -> None:
    given = SendReceipt(SendStatus.FLUSH_DISK_TIMEOUT, "ID", QUEUE, 7)
    (trace,) = produced(Outgoing("orders", b"1", {}), given)
    assert not trace.success


def test_no_answer_trace_off_and_trace_messages_leave_no_trace() -> None:
    plain = Outgoing("orders", b"1", {})
    assert produced(plain, None, SendFailed("x", topic="orders")) == []
    assert produced(plain, None) == []
    assert produced(plain, receipt(trace_on=False)) == []
    assert produced(Outgoing("RMQ_SYS_TRACE_TOPIC", b"1", {}), receipt()) == []


def test_the_end_of_a_transaction_and_a_recall_are_traced() -> None:
    collected = Collected()
    trace = ProducerTrace(fake_instance(), "shop", collected)  # type: ignore[arg-type]
    trace.ended_transaction(
        "orders",
        {"KEYS": "k"},
        message_id="ID",
        transaction_id="TX",
        state=TracedState.ROLLBACK,
        store_host="host",
        from_check=True,
    )
    trace.recalled("orders", "ID", success=False)
    assert collected.traces == [
        EndTransactionTrace(
            timestamp_ms=NOW_MS,
            region="DefaultRegion",
            group="shop",
            topic="orders",
            message_id="ID",
            keys="k",
            store_host="host",
            transaction_id="TX",
            state=TracedState.ROLLBACK,
            from_check=True,
        ),
        RecallTrace(
            timestamp_ms=NOW_MS,
            region="DefaultRegion",
            group="shop",
            topic="orders",
            message_id="ID",
            success=False,
        ),
    ]


def test_handling_is_traced_before_and_after_under_one_request_id() -> None:
    collected = Collected()
    trace = ConsumerTrace(fake_instance(), collected)  # type: ignore[arg-type]
    messages = [received("A", MSG_REGION="r1", KEYS="k"), received("B", TRACE_ON="false")]
    token = trace.before_consume("billing", messages)
    trace.after_consume(token, ConsumeOutcome.EXCEPTION, 30)
    before, after = collected.traces
    assert isinstance(before, SubBeforeTrace) and isinstance(after, SubAfterTrace)
    assert before == SubBeforeTrace(
        timestamp_ms=NOW_MS,
        region="r1",
        group="billing",
        request_id=before.request_id,
        message_id="A",
        retry_times=2,
        keys="k",
    )
    assert after == SubAfterTrace(
        request_id=before.request_id,
        message_id="A",
        cost_ms=15,
        success=False,
        keys="k",
        context_code=2,
        timestamp_ms=NOW_MS,
        group="billing",
    )
    assert len(before.request_id) == 32


def test_traces_of_one_topic_share_a_message_that_is_found_by_all_their_keys() -> None:
    sent = Sent()

    async def main() -> None:
        dispatcher = TraceDispatcher(sent, topic="my_traces", interval_ms=0)
        dispatcher.start()
        dispatcher.append("orders", pub(1, keys="k1 k2"))
        dispatcher.append("bills", pub(2))
        dispatcher.append("orders", pub(3, keys="k1"))
        await dispatcher.close()

    asyncio.run(main())
    assert [(topic, keys) for topic, _, keys in sent.messages] == [
        ("my_traces", ["id-1", "k1", "k2", "id-3"]),
        ("my_traces", ["id-2"]),
    ]
    assert [trace.message_id for trace in sent.traces()] == ["id-1", "id-3", "id-2"]


def test_the_task_sends_by_the_interval() -> None:
    sent = Sent()

    async def main() -> None:
        dispatcher = TraceDispatcher(sent, interval_ms=0)
        dispatcher.start()
        for number in range(2):
            dispatcher.append("orders", pub(number))
            while len(sent.messages) <= number:
                await asyncio.sleep(0)
        await dispatcher.close()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert sent.traces() == [pub(0), pub(1)]


def test_traces_without_room_are_dropped_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = Sent()

    async def main() -> None:
        dispatcher = TraceDispatcher(sent, traces_max=2)
        taken = [dispatcher.append("orders", pub(number)) for number in range(5)]
        assert taken == [True, True, False, False, False]
        assert dispatcher.dropped_count == 3
        await dispatcher.flush()
        await dispatcher.flush()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert sent.traces() == [pub(0), pub(1)]
    assert [record.getMessage() for record in caplog.records] == [
        "3 traces were dropped: 2 already waited to be sent"
    ]


def test_a_failing_trace_topic_is_logged_and_later_traces_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        dispatcher = TraceDispatcher(Sent(fails=True))
        dispatcher.append("orders", pub(1))
        await dispatcher.flush()
        assert dispatcher.append("orders", pub(2))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "were not sent: no broker" in caplog.text


def test_bodies_and_keys_stay_within_their_bounds_and_no_trace_is_left_out() -> None:
    long_keys = [pub(number, keys=f"same {number}" + "k" * 5000) for number in range(10)]
    many = [pub(number, tags="t" * 5000) for number in range(100)]
    for traces in (long_keys, many, [pub(number) for number in range(1000)]):
        batches = list(batch_traces(traces))
        assert len(batches) > 1
        assert max(len(batch.body) for batch in batches) <= 128_000
        assert max(sum(len(key) + 1 for key in batch.keys) for batch in batches) <= 16_000
        assert [trace for batch in batches for trace in decode_traces(batch.body)] == traces
        for batch in batches:
            expected = {key for trace in decode_traces(batch.body) for key in trace_keys(trace)}
            assert set(batch.keys) == expected


def test_one_trace_above_the_bound_is_sent_alone() -> None:
    huge = pub(1, tags="t" * 200_000)
    assert len(list(batch_traces([pub(0), huge, pub(2)]))) == 3


def test_trace_producer_groups_are_named_as_apaches_and_differ() -> None:
    first, second = trace_group("shop", "PRODUCER"), trace_group("shop", "PRODUCER")
    assert first.startswith("_INNER_TRACE_PRODUCER-shop-PRODUCER-")
    assert first != second
