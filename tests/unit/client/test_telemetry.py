"""OpenTelemetry: a trace goes on from the sender to the handler; absent, nothing happens."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from contrail.client import telemetry
from contrail.client.hooks import ConsumeOutcome
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.outgoing import Outgoing
from contrail.client.telemetry import Telemetry, telemetry_hooks
from contrail.errors import ConfigError

QUEUE = MessageQueue("orders", "broker-a", 1)


class Recorded:
    """A provider whose spans are kept, and the hooks that use it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        hooks = telemetry_hooks(group="billing", client_id="me", tracer_provider=self.provider)
        (self.send,) = hooks.send
        (self.consume,) = hooks.consume

    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def sent(self, *, is_batch: bool = False, error: Exception | None = None) -> dict[str, str]:
        outgoing = Outgoing("orders", b"body", {}, unique_id="id-1", is_batch=is_batch)
        self.send.before_send(outgoing, QUEUE)
        self.send.after_send(outgoing, QUEUE, None, error, 3)
        return outgoing.properties


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def received(properties: dict[str, str]) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"body",
        queue=QUEUE,
        queue_offset=0,
        message_id="id-1",
        offset_message_id="",
        properties=properties,
        reconsume_times=0,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        flag=0,
        sys_flag=0,
        physical_offset=0,
    )


def test_the_handler_runs_in_a_child_of_the_span_that_sent(recorded: Recorded) -> None:
    properties = recorded.sent()
    assert list(properties) == ["traceparent"]
    token = recorded.consume.before_consume("billing", [received(properties)])
    inside = trace.get_current_span().get_span_context()
    recorded.consume.after_consume(token, ConsumeOutcome.SUCCESS, 5)
    sent, processed = recorded.spans()
    assert (sent.name, sent.kind) == ("send orders", trace.SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process orders", trace.SpanKind.CONSUMER)
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert inside.span_id == processed.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    assert processed.attributes["messaging.system"] == "rocketmq"


def test_a_send_within_a_span_is_its_child(recorded: Recorded) -> None:
    with recorded.provider.get_tracer("app").start_as_current_span("request"):
        recorded.sent()
    sent, request = recorded.spans()
    assert sent.parent.span_id == request.context.span_id


def test_several_messages_are_handled_in_one_span_with_a_link_to_each(recorded: Recorded) -> None:
    messages = [received(recorded.sent()), received({}), received(recorded.sent())]
    token = recorded.consume.before_consume("billing", messages)
    recorded.consume.after_consume(token, ConsumeOutcome.SUCCESS, 5)
    first, second, processed = recorded.spans()
    links = [link.context.span_id for link in processed.links]
    assert links == [first.context.span_id, second.context.span_id]
    assert processed.parent is None
    assert processed.attributes["messaging.batch.message_count"] == 3


def test_a_message_without_a_trace_or_with_a_broken_one_begins_a_new_trace(
    recorded: Recorded,
) -> None:
    for properties in ({}, {"traceparent": "nonsense"}):
        token = recorded.consume.before_consume("billing", [received(properties)])
        recorded.consume.after_consume(token, ConsumeOutcome.SUCCESS, 1)
    assert [span.parent for span in recorded.spans()] == [None, None]


def test_failures_are_errors_of_their_spans(recorded: Recorded) -> None:
    recorded.sent(error=ValueError("no broker"))
    token = recorded.consume.before_consume("billing", [received({})])
    recorded.consume.after_consume(token, ConsumeOutcome.EXCEPTION, 1, ValueError("bad"))
    token = recorded.consume.before_consume("billing", [received({})])
    recorded.consume.after_consume(token, ConsumeOutcome.FAILED, 1)
    spans = recorded.spans()
    assert [span.status.status_code for span in spans] == [trace.StatusCode.ERROR] * 3
    assert [span.status.description for span in spans] == ["no broker", "EXCEPTION", "FAILED"]
    assert [len(span.events) for span in spans] == [1, 1, 0]


def test_the_properties_of_a_batch_are_left_alone_and_its_messages_carry_the_context(
    recorded: Recorded,
) -> None:
    assert recorded.sent(is_batch=True) == {}
    properties: dict[str, str] = {}
    with recorded.provider.get_tracer("app").start_as_current_span("request") as span:
        telemetry.propagate(properties)
    assert f"{span.get_span_context().span_id:016x}" in properties["traceparent"]


def test_there_are_no_hooks_unless_a_provider_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert telemetry_hooks(group="g", client_id="c") == Telemetry()
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert len(telemetry_hooks(group="g", client_id="c").send) == 1
    assert telemetry_hooks(False, group="g", client_id="c") == Telemetry()


def test_telemetry_without_the_api_installed_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="opentelemetry-api"):
        telemetry_hooks(True, group="g", client_id="c")
