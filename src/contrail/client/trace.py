"""Message trace in Apache's format: the sends, handlings, transaction ends and recalls of messages.

Traces are collected and sent in batches beside the application, which never waits for them: when
they cannot be sent fast enough, the newest are dropped, counted and logged. Messages whose broker
answered ``TRACE_ON=false`` are not traced.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from contrail.client.hooks import ConsumeOutcome
from contrail.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
)
from contrail.client.outgoing import prepare
from contrail.client.producer_settings import ProducerSettings
from contrail.client.sender import Sender
from contrail.errors import ClientError
from contrail.model.properties import KEYS, MSG_REGION, TAGS, TRACE_ON
from contrail.model.topic import TRACE_TOPIC
from contrail.protocol.bodies.trace import (
    TRACE_GROUP_PREFIX,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TraceBatch,
    TracedState,
    TracedType,
    batch_traces,
)

if TYPE_CHECKING:
    from contrail.client.instance import ClientInstance
    from contrail.client.outgoing import Outgoing

_log = logging.getLogger(__name__)

DEFAULT_REGION = "DefaultRegion"
TRACES_MAX = 2048
FLUSH_INTERVAL_MS = 200
_SEND_TIMEOUT_MS = 5_000
_CLOSE_TIMEOUT_S = 5.0

_numbers = itertools.count(1)


def trace_group(group: str, kind: str) -> str:
    """The producer group that the traces of a group are sent under, as Apache's clients name it."""
    return f"{TRACE_GROUP_PREFIX}-{group}-{kind}-{next(_numbers)}"


class TraceSender(Protocol):
    """Sends one message to the trace topic."""

    async def __call__(self, topic: str, body: bytes, keys: Sequence[str]) -> object: ...


class TraceDispatcher:
    """Collects traces and sends them from a task of its own."""

    def __init__(
        self,
        send: TraceSender,
        *,
        topic: str = TRACE_TOPIC,
        traces_max: int = TRACES_MAX,
        interval_ms: int = FLUSH_INTERVAL_MS,
    ) -> None:
        self.topic = topic
        self.dropped_count = 0
        self._send = send
        self._traces_max = traces_max
        self._interval_s = interval_ms / 1000
        self._waiting: deque[tuple[str, Trace]] = deque()
        self._reported_count = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="contrail-trace")

    async def close(self) -> None:
        """Send the waiting traces, for a bounded time, and stop."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await asyncio.wait_for(self.flush(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            _log.warning("the last traces could not be sent within %s s", _CLOSE_TIMEOUT_S)

    def append(self, topic: str, trace: Trace) -> bool:
        """Take a trace of a message of ``topic``; False if there is no room and it is dropped."""
        if len(self._waiting) >= self._traces_max:
            self.dropped_count += 1
            return False
        self._waiting.append((topic, trace))
        self._arrived.set()
        return True

    async def flush(self) -> None:
        """Send all waiting traces now."""
        taken, self._waiting = self._waiting, deque()
        self._report_dropped()
        by_topic: dict[str, list[Trace]] = {}
        for topic, trace in taken:
            by_topic.setdefault(topic, []).append(trace)
        batches = [batch for traces in by_topic.values() for batch in batch_traces(traces)]
        await asyncio.gather(*(self._send_batch(batch) for batch in batches))

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            # Traces of one interval share a message.
            await asyncio.sleep(self._interval_s)
            self._arrived.clear()
            await self.flush()

    async def _send_batch(self, batch: TraceBatch) -> None:
        try:
            await self._send(self.topic, batch.body, batch.keys)
        except ClientError as error:
            _log.warning("traces of %d keys were not sent: %s", len(batch.keys), error)

    def _report_dropped(self) -> None:
        fresh = self.dropped_count - self._reported_count
        if fresh:
            self._reported_count = self.dropped_count
            _log.warning(
                "%d traces were dropped: %d already waited to be sent", fresh, self._traces_max
            )


def open_trace(
    instance: ClientInstance, group: str, kind: str, topic: str = TRACE_TOPIC
) -> TraceDispatcher:
    """A started dispatcher for a group; ``kind`` is PRODUCER or CONSUMER."""
    settings = ProducerSettings(send_timeout_ms=_SEND_TIMEOUT_MS)
    sender = Sender(instance, trace_group(group, kind), settings)
    rules = dataclasses.replace(settings.outgoing_rules, trace_topic=topic)

    async def send(topic: str, body: bytes, keys: Sequence[str]) -> object:
        now_ms = instance.clock.now_ms()
        outgoing = prepare(
            Message(topic, body, keys=keys),
            unique_id=instance.unique_ids.take(now_ms),
            rules=rules,
        )
        return await sender.send(outgoing, retry="async")

    dispatcher = TraceDispatcher(send, topic=topic)
    dispatcher.start()
    return dispatcher


class ProducerTrace:
    """The trace of one producer: a ``SendHook``, also called by transactions and recalls."""

    def __init__(self, instance: ClientInstance, group: str, dispatcher: TraceDispatcher) -> None:
        self._instance = instance
        self._group = group
        self.dispatcher = dispatcher

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        """Nothing: a trace is made after the send."""

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        """As Apache's client: an attempt without an answer leaves no trace."""
        if receipt is None or not receipt.trace_on or self._is_trace(outgoing.topic):
            return
        trace = PubTrace(
            timestamp_ms=self._instance.clock.now_ms() - cost_ms,
            region=receipt.region,
            group=self._group,
            topic=outgoing.topic,
            message_id=receipt.message_id,
            tags=outgoing.properties.get(TAGS, ""),
            keys=outgoing.properties.get(KEYS, ""),
            store_host=self._instance.routes.master_of(queue.broker_name) or "",
            body_length=len(outgoing.body),
            cost_ms=cost_ms,
            message_type=TracedType.of(outgoing.properties),
            offset_message_id=receipt.offset_message_id,
            success=receipt.status is SendStatus.SEND_OK,
        )
        self.dispatcher.append(outgoing.topic, trace)

    def ended_transaction(
        self,
        topic: str,
        properties: Mapping[str, str],
        *,
        message_id: str,
        transaction_id: str,
        state: TracedState,
        store_host: str,
        from_check: bool = False,
    ) -> None:
        """The end of a transaction was sent to a broker."""
        if self._is_trace(topic) or _is_off(properties):
            return
        trace = EndTransactionTrace(
            timestamp_ms=self._instance.clock.now_ms(),
            region=properties.get(MSG_REGION) or DEFAULT_REGION,
            group=self._group,
            topic=topic,
            message_id=message_id,
            tags=properties.get(TAGS, ""),
            keys=properties.get(KEYS, ""),
            store_host=store_host,
            transaction_id=transaction_id,
            state=state,
            from_check=from_check,
        )
        self.dispatcher.append(topic, trace)

    def recalled(
        self, topic: str, message_id: str, *, success: bool, region: str = DEFAULT_REGION
    ) -> None:
        """A broker answered a recall."""
        trace = RecallTrace(
            timestamp_ms=self._instance.clock.now_ms(),
            region=region,
            group=self._group,
            topic=topic,
            message_id=message_id,
            success=success,
        )
        self.dispatcher.append(topic, trace)

    def _is_trace(self, topic: str) -> bool:
        return topic.startswith(self.dispatcher.topic)


class _Handled(NamedTuple):
    """The values that ``ConsumerTrace`` keeps while a handler runs."""

    group: str
    request_id: str
    messages: list[ReceivedMessage]
    # Messages that are not traced count as well: the cost is reported per message.
    message_count: int


class ConsumerTrace:
    """The trace of one consumer: a ``ConsumeHook``."""

    def __init__(self, instance: ClientInstance, dispatcher: TraceDispatcher) -> None:
        self._instance = instance
        self.dispatcher = dispatcher

    def before_consume(self, group: str, messages: Sequence[ReceivedMessage]) -> object:
        now_ms = self._instance.clock.now_ms()
        traced = [message for message in messages if not _is_off(message.properties)]
        handled = _Handled(group, self._instance.unique_ids.take(now_ms), traced, len(messages))
        for message in traced:
            trace = SubBeforeTrace(
                timestamp_ms=now_ms,
                region=message.properties.get(MSG_REGION) or DEFAULT_REGION,
                group=group,
                request_id=handled.request_id,
                message_id=message.message_id,
                retry_times=message.reconsume_times,
                keys=message.properties.get(KEYS, ""),
            )
            self.dispatcher.append(message.topic, trace)
        return handled

    def after_consume(
        self,
        token: object,
        outcome: ConsumeOutcome,
        cost_ms: int,
        error: BaseException | None = None,
    ) -> None:
        assert isinstance(token, _Handled)
        now_ms = self._instance.clock.now_ms()
        for message in token.messages:
            trace = SubAfterTrace(
                request_id=token.request_id,
                message_id=message.message_id,
                cost_ms=cost_ms // token.message_count,
                success=outcome.is_success,
                keys=message.properties.get(KEYS, ""),
                context_code=outcome.value,
                timestamp_ms=now_ms,
                group=token.group,
            )
            self.dispatcher.append(message.topic, trace)


def _is_off(properties: Mapping[str, str]) -> bool:
    return properties.get(TRACE_ON) == "false"
