"""OpenTelemetry: the producer's trace context travels with the message to the handler.

A send is a producer span whose context travels in the properties ``traceparent`` and
``tracestate`` (or those that the configured propagator writes); handling is a consumer span: the
child of that context for one message, with a link to each for several.

``telemetry_hooks`` gives hooks when the OpenTelemetry API is installed and a tracer provider is
set; without either there are none, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from contrail.client.hooks import ConsumeHook, ConsumeOutcome, SendHook
from contrail.client.message import MessageQueue, ReceivedMessage, SendReceipt
from contrail.errors import ConfigError

if TYPE_CHECKING:
    from contrail.client.outgoing import Outgoing

_API = "opentelemetry"
_SYSTEM = {"messaging.system": "rocketmq"}


class Telemetry(NamedTuple):
    """The hooks for a producer and a consumer; None without a tracer provider."""

    send: tuple[SendHook, ...] = ()
    consume: tuple[ConsumeHook, ...] = ()


def telemetry_hooks(
    enabled: bool | None = None, *, group: str, client_id: str, tracer_provider: Any = None
) -> Telemetry:
    """The hooks of one producer or consumer.

    None: when a provider is given, or set in the API, which implies that the program imported it.
    True: also before one is set; spans go to whichever is set later. False: never.

    Raises:
        ConfigError: True, and the API is not installed.
    """
    if enabled is None:
        enabled = tracer_provider is not None or _provider_is_set()
    if not enabled:
        return Telemetry()
    if find_spec(_API) is None:
        raise ConfigError(f"telemetry=True needs the package {_API}-api: install it")
    attributes = {**_SYSTEM, "messaging.client.id": client_id}
    return Telemetry(
        send=(SendSpans(attributes, tracer_provider),),
        consume=(
            ConsumeSpans({**attributes, "messaging.consumer.group.name": group}, tracer_provider),
        ),
    )


def _provider_is_set() -> bool:
    """Whether the program set a provider; asking the API for one would fix its stand-in."""
    if f"{_API}.trace" not in sys.modules:
        return False
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def propagate(properties: dict[str, str]) -> None:
    """Write the current context into a message's properties; for messages of a batch."""
    from opentelemetry import propagate as api

    api.inject(properties)


class SendSpans:
    """A ``SendHook``: a span per attempt, whose context goes with the message."""

    def __init__(self, attributes: Mapping[str, str], tracer_provider: Any = None) -> None:
        from opentelemetry import propagate, trace

        self._attributes = dict(attributes)
        self._trace = trace
        self._tracer = trace.get_tracer("contrail", tracer_provider=tracer_provider)
        self._inject = propagate.inject
        # By the identity of the sent object, which lives until ``after_send``.
        self._spans: dict[int, Any] = {}

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        span = self._tracer.start_span(
            f"send {outgoing.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **self._attributes,
                "messaging.operation.type": "send",
                "messaging.operation.name": "send",
                "messaging.destination.name": outgoing.topic,
                "messaging.message.id": outgoing.unique_id,
                "messaging.message.body.size": len(outgoing.body),
                "messaging.destination.partition.id": f"{queue.broker_name}-{queue.queue_id}",
            },
        )
        self._spans[id(outgoing)] = span
        # The messages of a batch have properties of their own.
        if not outgoing.is_batch:
            self._inject(outgoing.properties, context=self._trace.set_span_in_context(span))

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        span = self._spans.pop(id(outgoing))
        if error is not None:
            _fail(span, self._trace, error, str(error))
        span.end()


class _Running(NamedTuple):
    span: Any
    token: Any


class ConsumeSpans:
    """A ``ConsumeHook``: the handler runs within a span that continues the sender's trace."""

    def __init__(self, attributes: Mapping[str, str], tracer_provider: Any = None) -> None:
        from opentelemetry import context, propagate, trace

        self._attributes = dict(attributes)
        self._context = context
        self._trace = trace
        self._tracer = trace.get_tracer("contrail", tracer_provider=tracer_provider)
        self._extract = propagate.extract

    def before_consume(self, group: str, messages: Sequence[ReceivedMessage]) -> object:
        # The span that was current at the consumer's start does not concern these messages.
        nothing = self._context.Context()
        sent = [self._extract(message.properties, context=nothing) for message in messages]
        parent = sent[0] if len(sent) == 1 else None
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            links=[] if len(sent) == 1 else self._links(sent),
            attributes={**self._attributes, **_described(messages)},
        )
        token = self._context.attach(self._trace.set_span_in_context(span, parent))
        return _Running(span, token)

    def after_consume(
        self,
        token: object,
        outcome: ConsumeOutcome,
        cost_ms: int,
        error: BaseException | None = None,
    ) -> None:
        assert isinstance(token, _Running)
        self._context.detach(token.token)
        if not outcome.is_success:
            _fail(token.span, self._trace, error, outcome.name)
        token.span.end()

    def _links(self, contexts: Sequence[Any]) -> list[Any]:
        spans = [self._trace.get_current_span(context).get_span_context() for context in contexts]
        return [self._trace.Link(span) for span in spans if span.is_valid]


def _described(messages: Sequence[ReceivedMessage]) -> dict[str, Any]:
    first = messages[0]
    described = {
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": first.topic,
        "messaging.destination.partition.id": f"{first.queue.broker_name}-{first.queue.queue_id}",
    }
    if len(messages) == 1:
        size = {"messaging.message.body.size": len(first.body)}
        return {**described, **size, "messaging.message.id": first.message_id}
    return {**described, "messaging.batch.message_count": len(messages)}


def _fail(span: Any, trace: Any, error: BaseException | None, reason: str) -> None:
    if error is not None:
        span.record_exception(error)
    span.set_status(trace.Status(trace.StatusCode.ERROR, reason))
