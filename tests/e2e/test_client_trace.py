"""Message traces over real sockets: clients write them, or the broker for clients that do not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from contrail.client.hooks import ConsumeOutcome
from contrail.client.instances import join, leave
from contrail.client.message import Message, ReceivedMessage
from contrail.client.producer import Producer
from contrail.client.pull_consumer import PullConsumer
from contrail.client.push_consumer import PushConsumer
from contrail.client.settings import ClientSettings
from contrail.client.telemetry import telemetry_hooks
from contrail.client.trace import ConsumerTrace, open_trace
from contrail.clock import ManualClock
from contrail.model.topic import TRACE_TOPIC
from contrail.protocol.bodies.trace import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedType,
    decode_traces,
)
from contrail.testing import eventually
from contrail.testing.cluster import LocalCluster
from tests.e2e.asking import Asker, route

WAIT_S_MAX = 60


async def traced(namesrv: str, topic: str, is_enough: Callable[[list[Trace]], bool]) -> Any:
    """The traces of a topic and the keys they are found by, as soon as there are enough."""
    async with (
        PullConsumer("readers", namesrv, consume_from_where="first") as consumer,
        asyncio.timeout(WAIT_S_MAX),
    ):
        (queue,) = await consumer.fetch_queues(topic)
        while True:
            found = await consumer.pull(queue, 0, 32)
            traces = [t for message in found.messages for t in decode_traces(message.body)]
            if is_enough(traces):
                return traces, {key for message in found.messages for key in message.keys}
            await asyncio.sleep(0.02)


def test_a_producer_traces_what_it_sends() -> None:
    async def main(namesrv: str, address: str) -> None:
        async with Producer("shop", namesrv, trace=True) as producer:
            paid = Message("orders", b"12345", tags="paid", keys=["o-1", "o-2"])
            receipt = await producer.send(paid)
            late = await producer.send(Message("orders", b"later", delay_level=3))
            (first, second), keys = await traced(namesrv, TRACE_TOPIC, lambda got: len(got) == 2)
        assert first == PubTrace(
            timestamp_ms=first.timestamp_ms,
            region="DefaultRegion",
            group="shop",
            topic="orders",
            message_id=receipt.message_id,
            tags="paid",
            keys="o-1 o-2",
            store_host=address,
            body_length=5,
            cost_ms=first.cost_ms,
            offset_message_id=receipt.offset_message_id,
        )
        assert second.message_type is TracedType.DELAYED
        assert keys == {receipt.message_id, late.message_id, "o-1", "o-2"}

    with LocalCluster(properties={"traceTopicEnable": "true"}) as cluster:
        asyncio.run(main(cluster.namesrv, cluster.brokers[0].address))


def test_a_broker_that_wants_no_traces_gets_none() -> None:
    async def main(namesrv: str) -> None:
        async with Producer("shop", namesrv, trace=True) as producer:
            await producer.send(Message("orders", b"1"))
        async with PullConsumer("readers", namesrv, consume_from_where="first") as consumer:
            (queue,) = await consumer.fetch_queues(TRACE_TOPIC)
            assert await consumer.queue_offset_max(queue) == 0

    with LocalCluster(properties={"traceTopicEnable": "true", "traceOn": "false"}) as cluster:
        asyncio.run(main(cluster.namesrv))


def test_a_consumer_traces_handlings_to_a_configured_topic() -> None:
    async def main(namesrv: str) -> None:
        async with Producer("shop", namesrv) as producer:
            receipt = await producer.send(Message("orders", b"1", keys=["o-1"]))
        instance = join(ClientSettings.of(namesrv))
        dispatcher = open_trace(instance, "billing", "CONSUMER", "my_traces")
        hook = ConsumerTrace(instance, dispatcher)
        async with PullConsumer("billing", namesrv, consume_from_where="first") as consumer:
            found = await consumer.pull(receipt.queue, 0, 1)
        token = hook.before_consume("billing", found.messages)
        hook.after_consume(token, ConsumeOutcome.FAILED, 7)
        await dispatcher.close()
        await leave(instance)
        (before, after), keys = await traced(namesrv, "my_traces", lambda got: len(got) == 2)
        assert isinstance(before, SubBeforeTrace) and isinstance(after, SubAfterTrace)
        assert (before.message_id, before.group) == (receipt.message_id, "billing")
        assert before.request_id == after.request_id
        assert (after.success, after.context_code, after.cost_ms) == (False, 4, 7)
        assert keys == {receipt.message_id, "o-1"}

    properties = {"traceTopicEnable": "true", "msgTraceTopicName": "my_traces"}
    with LocalCluster(properties=properties) as cluster:
        # The second client must find the route at once; a producer that creates a topic by sending
        # need not wait.
        Asker(cluster).make_topic("orders", read=1, write=1)
        eventually(lambda: route(cluster, "orders"), "the NameServer knows the topic")
        asyncio.run(main(cluster.namesrv))


def test_a_push_consumer_traces_each_run_of_its_handler() -> None:
    async def main(namesrv: str) -> None:
        async with Producer("shop", namesrv) as producer:
            receipt = await producer.send(Message("orders", b"1"))
        consumer = PushConsumer("billing", namesrv, consume_from_where="first", trace=True)
        async with consumer:
            await consumer.subscribe("orders")

            @consumer.on_message
            async def handle(message: ReceivedMessage) -> None: ...

            (before, after), _ = await traced(namesrv, TRACE_TOPIC, lambda got: len(got) == 2)
        assert isinstance(before, SubBeforeTrace) and isinstance(after, SubAfterTrace)
        assert before.message_id == after.message_id == receipt.message_id
        assert (after.group, after.success, after.context_code) == ("billing", True, 0)

    with LocalCluster(properties={"traceTopicEnable": "true"}) as cluster:
        asyncio.run(main(cluster.namesrv))


@pytest.mark.proves("client.programs.broker-traces")
def test_the_broker_traces_for_a_producer_that_does_not() -> None:
    async def main(cluster: LocalCluster) -> None:
        async with (
            Producer("silent", cluster.namesrv) as silent,
            Producer("talking", cluster.namesrv, trace=True) as talking,
        ):
            single = await silent.send(Message("orders", b"12345", tags="paid", keys=["o-1"]))
            await silent.send_batch([Message("orders", b"a"), Message("orders", b"b", keys=["k"])])
            await silent.send(Message("orders", b"later", delay_level=3))
            own = await talking.send(Message("orders", b"own"))
            await traced(cluster.namesrv, TRACE_TOPIC, lambda got: len(got) == 1)
            await asyncio.to_thread(cluster.advance, ms=6_000)
            traces, keys = await traced(cluster.namesrv, TRACE_TOPIC, lambda got: len(got) == 5)
        mine, first, *batch, late = traces
        assert mine.message_id == own.message_id
        assert first == PubTrace(
            timestamp_ms=first.timestamp_ms,
            region="DefaultRegion",
            group="silent",
            topic="orders",
            message_id=single.message_id,
            tags="paid",
            keys="o-1",
            store_host=cluster.brokers[0].address,
            body_length=5,
            offset_message_id=single.offset_message_id,
            client_host="127.0.0.1",
        )
        assert [(trace.group, trace.body_length, trace.keys) for trace in batch] == [
            ("silent", 1, ""),
            ("silent", 1, "k"),
        ]
        assert (late.topic, late.message_type) == ("orders", TracedType.DELAYED)
        assert {single.message_id, "o-1", "k"} < keys

    properties = {"contrailBrokerTraceEnable": "true"}
    with LocalCluster(properties=properties, clock=ManualClock()) as cluster:
        asyncio.run(main(cluster))


def test_a_broker_that_stops_writes_its_waiting_traces() -> None:
    async def send(namesrv: str) -> None:
        async with Producer("silent", namesrv) as producer:
            await producer.send(Message("orders", b"12345"))

    async def look(namesrv: str) -> None:
        (trace,), _ = await traced(namesrv, TRACE_TOPIC, lambda got: len(got) == 1)
        assert trace.group == "silent"

    with LocalCluster(properties={"contrailBrokerTraceEnable": "true"}) as cluster:
        asyncio.run(send(cluster.namesrv))
        cluster.brokers[0].stop()
        cluster.brokers[0].start()
        asyncio.run(look(cluster.namesrv))


@pytest.mark.proves("client.programs.opentelemetry")
def test_a_span_goes_on_from_the_producer_into_the_handler() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hooks = telemetry_hooks(group="billing", client_id="me", tracer_provider=provider)
    seen: list[tuple[bool, int]] = []

    async def main(namesrv: str) -> None:
        async with Producer("shop", namesrv, hooks=hooks.send) as producer:
            await producer.send(Message("orders", b"1"))
        consumer = PushConsumer("billing", namesrv, consume_from_where="first", hooks=hooks.consume)
        async with consumer, asyncio.timeout(WAIT_S_MAX):
            handled = asyncio.Event()
            await consumer.subscribe("orders")

            @consumer.on_message
            async def handle(message: ReceivedMessage) -> None:
                span = get_current_span().get_span_context()
                seen.append(("traceparent" in message.properties, span.span_id))
                handled.set()

            await handled.wait()

    with LocalCluster() as cluster:
        asyncio.run(main(cluster.namesrv))
    sent, processed = exporter.get_finished_spans()
    assert seen == [(True, processed.context.span_id)]
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id


@pytest.mark.proves("client.programs.opentelemetry")
def test_nothing_of_opentelemetry_is_imported_before_the_program_does() -> None:
    code = (
        "import sys; from contrail.client.telemetry import telemetry_hooks as t;"
        "assert t(group='g', client_id='c') == ((), ());"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
