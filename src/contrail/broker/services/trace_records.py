"""Traces that the broker writes for producers whose clients write none (contrailBrokerTraceEnable).

Each stored message becomes a Pub line on the trace topic, some seconds later, in batches and off
the way of the acknowledgements. Facts that the broker does not know are left out: the cost is 0,
its time is when the message was stored. How messages are consumed is not traced: a broker sees
pulls and offsets, not whether a handler succeeded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.topics import Topics
from contrail.broker.services.unique_ids import UniqueIds
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.silent_producers import TRACE_GROUP_START, SilentProducers, StoredSend
from contrail.clock import Clock
from contrail.errors import StoreError
from contrail.model.host import unpack_host
from contrail.model.message import MessageDraft
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import (
    CLUSTER,
    KEY_SEPARATOR,
    KEYS,
    MSG_REGION,
    REAL_TOPIC,
    TAGS,
    TRACE_ON,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.protocol.bodies.trace import PubTrace, TraceBatch, TracedType, batch_traces
from contrail.runtime.schedule import Schedule
from contrail.store import AppendedRun

_log = logging.getLogger(__name__)

# A tick of the loop must stay short: this many take about two milliseconds.
_WRITE_COUNT_MAX = 100
_WRITE_INTERVAL_MS = 25
_REPORT_INTERVAL_MS = 60_000
_TRACE_QUEUE_ID = 0


class TraceRecords:
    """Looks at stored messages, and appends their traces to the trace topic."""

    def __init__(
        self,
        settings: RuntimeSettings,
        topics: Topics,
        deliveries: Deliveries,
        unique_ids: UniqueIds,
        clock: Clock,
        *,
        store_host: bytes,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._deliveries = deliveries
        self._unique_ids = unique_ids
        self._clock = clock
        self._store_host = store_host
        self._address = str(unpack_host(store_host))
        self._trace_topic = settings.config.trace_topic.encode()
        self._silent = SilentProducers()
        self._reported_count = 0

    def register(self, schedule: Schedule) -> None:
        schedule.every(_WRITE_INTERVAL_MS, self.write, name="broker traces")
        schedule.every(_REPORT_INTERVAL_MS, self._look_after, name="silent producers")

    def watch(
        self, groups: Sequence[bytes], drafts: Sequence[MessageDraft], run: AppendedRun
    ) -> None:
        """Messages were stored: note the fields that their traces need, and nothing else."""
        if not self._settings.config.trace_on:
            return
        now_ms, topic = self._clock.now_ms(), self._trace_topic
        for group, draft, place in zip(groups, drafts, run.physical_offsets, strict=True):
            if group.startswith(TRACE_GROUP_START):
                self._silent.traces_arrived(group, draft[7], now_ms)
            elif draft[0] != topic:
                self._silent.stored(
                    StoredSend(group, draft[0], draft[3], len(draft[2]), draft[7], place, now_ms)
                )

    def write(self, now_ms: int, *, is_last: bool = False) -> None:
        """Append the traces of a bounded number of messages."""
        sends = self._silent.take(now_ms, _WRITE_COUNT_MAX, is_last=is_last)
        if not sends:
            return
        traces = [trace for send in sends if (trace := self._trace(send)) is not None]
        drafts = [self._draft(batch, now_ms) for batch in batch_traces(traces)]
        if not drafts:
            return
        try:
            self._deliveries.append(drafts)
        except StoreError as error:
            self._silent.dropped_count += len(traces)
            _log.warning("the traces of %d messages were not stored: %s", len(traces), error)

    def close(self) -> None:
        """Write all traces that wait: the broker stops."""
        while len(self._silent):
            self.write(self._clock.now_ms(), is_last=True)

    def _trace(self, send: StoredSend) -> PubTrace | None:
        properties = decode_properties(send.properties)
        # The real topic of a message that waits for its time or its transaction.
        topic = properties.get(REAL_TOPIC) or send.topic.decode("utf-8", "replace")
        if self._topics.is_system(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return None
        return PubTrace(
            timestamp_ms=send.stored_ms,
            region=self._settings.config.region,
            group=send.group.decode("utf-8", "replace"),
            topic=topic,
            message_id=properties.get(UNIQ_KEY, ""),
            tags=properties.get(TAGS, ""),
            keys=properties.get(KEYS, ""),
            store_host=self._address,
            body_length=send.body_bytes,
            message_type=TracedType.of(properties),
            offset_message_id=encode_offset_message_id(self._store_host, send.physical_offset),
            client_host=_client(send.born_host),
        )

    def _draft(self, batch: TraceBatch, now_ms: int) -> MessageDraft:
        config = self._settings.config
        properties = {
            KEYS: KEY_SEPARATOR.join(batch.keys),
            UNIQ_KEY: self._unique_ids.next(),
            MSG_REGION: config.region,
            TRACE_ON: "true",
            CLUSTER: config.cluster_name,
        }
        return MessageDraft(
            self._trace_topic,
            _TRACE_QUEUE_ID,
            batch.body,
            encode_properties(properties),
            born_timestamp_ms=now_ms,
            born_host=self._store_host,
        )

    def _look_after(self, now_ms: int) -> None:
        self._silent.expire(now_ms)
        fresh = self._silent.dropped_count - self._reported_count
        if fresh:
            self._reported_count = self._silent.dropped_count
            _log.warning("%d messages were not traced: too many wait for it", fresh)


@lru_cache(1024)
def _client(born_host: bytes) -> str:
    return unpack_host(born_host).address
