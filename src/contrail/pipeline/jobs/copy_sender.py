"""Sends copies of stored messages from within Spark's tasks, and tells what became of each.

Each source queue is a lane: its messages are sent in their order, and a message's own queue offset
is its sequence number. A Contrail broker remembers the last one of each lane in each of its queues,
and drops what it has already: a task, or a whole job, that runs again adds nothing, whatever its
partitions look like then. Other brokers store what they are sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from contrail.client.blocking.admin import Admin
from contrail.client.selectors import java_hash_of
from contrail.errors import BrokerRefused, ClientError, JobFailed, MessageIllegal
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.properties import SHARDING_KEY, encode_properties
from contrail.pipeline.cluster import client_settings
from contrail.pipeline.jobs.copies import SINK_KEY, SINK_SEQUENCE, Copy, Original, Skipped
from contrail.pipeline.jobs.pacing import Pacer, chunk_size
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse

PRODUCER_GROUP = "contrail-pipeline"
_UNITS_MAX = 1_000
_REQUEST_BYTES_MAX = 1 << 20
_TRY_COUNT = 6
_TRY_AGAIN_S = 0.5
# The message itself is at fault; anything else a broker says may pass.
_MESSAGE_AT_FAULT = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
    }
)

OUTCOME_DDL = (
    "topic string, brokerName string, queueId int, queueOffset bigint, msgId string, "
    "outcome string, reason string, toTopic string, toQueue string"
)
OUTCOME_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("msgId", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("toTopic", pa.string()),
        ("toQueue", pa.string()),
    ]
)
# Columns that a frame must have to be copied.
COPIED_COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "body",
    "flag",
    "properties",
    "msgId",
    "storeTimestamp",
    # Why a row is not to be sent; null for those that are.
    "skipped",
)

Decision = Callable[[Original], Copy | Skipped]
Targets = Mapping[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, kw_only=True)
class CopyPlan:
    """What the tasks need to know; plain values, since it travels."""

    cluster: ClusterSettings
    job_id: str
    # What a message that is stored is called: restored, or replayed.
    done: str
    # Whether the brokers drop what they have already.
    remembered: bool
    # Each target topic's queues, as they were when the job began.
    targets: Targets
    # Source queues in an order that stays; their place is the number of their lane.
    lanes: tuple[QueueKey, ...]
    # Messages of a lane go to the queue of their own name, or all to one other.
    keep_queues: bool
    rate_per_task: float | None = None
    _numbers: dict[QueueKey, int] = field(default_factory=dict, init=False, repr=False)

    def lane(self, queue: QueueKey) -> int:
        if not self._numbers:
            self._numbers.update({one: number for number, one in enumerate(self.lanes)})
        return self._numbers[queue]

    def target(self, topic: str, original: Original) -> tuple[str, int]:
        """The queue for a copy: always the same one for the same message."""
        queues = self.targets[topic]
        own = (original.queue.broker_name, original.queue.queue_id)
        if self.keep_queues and own in queues:
            return own
        key = original.properties.get(SHARDING_KEY)
        if key:
            return queues[abs(java_hash_of(key)) % len(queues)]
        lane = self.lane(original.queue)
        return queues[(lane if self.keep_queues else lane + original.queue_offset) % len(queues)]


class _Waiting(NamedTuple):
    original: Original
    unit: BatchUnit


class _Road(NamedTuple):
    """Where copies go together: one lane to one queue."""

    topic: str
    broker_name: str
    queue_id: int
    lane: int


def send_copies(
    batches: Iterator[pa.RecordBatch], plan: CopyPlan, decide: Decision
) -> Iterator[pa.RecordBatch]:
    """Send what ``decide`` makes of each row; an outcome for each row comes back."""
    with _Sending(plan, decide) as sending:
        for batch in batches:
            for original, skipped in originals(batch):
                sending.take(original, skipped)
                if sending.outcome_count >= _UNITS_MAX:
                    yield sending.outcomes()
            sending.flush()
            yield sending.outcomes()


def originals(batch: pa.RecordBatch) -> Iterator[tuple[Original, str | None]]:
    """The rows of a batch with ``COPIED_COLUMNS`` as messages, and why one is not to be sent."""
    columns = {name: batch.column(name) for name in COPIED_COLUMNS}
    columns["storeTimestamp"] = columns["storeTimestamp"].cast(pa.int64())
    for topic, broker, queue_id, place, body, flag, pairs, message_id, time_us, skipped in zip(
        *(column.to_pylist() for column in columns.values()), strict=True
    ):
        original = Original(
            queue=QueueKey(topic, broker, queue_id),
            queue_offset=place,
            body=body or b"",
            flag=flag or 0,
            properties=dict(pairs or ()),
            message_id=message_id or "",
            store_timestamp_ms=time_us // 1000,
        )
        yield original, skipped


class _Sending:
    """One task's sends. A road has one request at a time; requests are made when they are full."""

    def __init__(self, plan: CopyPlan, decide: Decision) -> None:
        self._plan = plan
        self._decide = decide
        self._admin = _admin_of(plan.cluster)
        self._chunk = chunk_size(plan.rate_per_task, _UNITS_MAX)
        self._pacer = None if plan.rate_per_task is None else Pacer(plan.rate_per_task, _now_s())
        self._waiting: dict[_Road, list[_Waiting]] = {}
        self._rows: list[tuple[Any, ...]] = []

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.clear()

    @property
    def outcome_count(self) -> int:
        return len(self._rows)

    def outcomes(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        columns = list(zip(*rows, strict=True)) or [()] * len(OUTCOME_SCHEMA)
        arrays = [
            pa.array(values, kind.type)
            for values, kind in zip(columns, OUTCOME_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=OUTCOME_SCHEMA)

    def take(self, original: Original, skipped: str | None) -> None:
        """Send a message, now or with the next ones for its queue."""
        copy = self._decide(original) if skipped is None else Skipped(skipped)
        if isinstance(copy, Skipped):
            self._tell(original, "skipped", copy.reason)
            return
        if copy.topic not in self._plan.targets:
            self._tell(original, "skipped", f"topic {copy.topic!r} does not exist: create it")
            return
        broker_name, queue_id = self._plan.target(copy.topic, original)
        road = _Road(copy.topic, broker_name, queue_id, self._plan.lane(original.queue))
        try:
            unit = BatchUnit(original.body, self._properties(copy, road, original), original.flag)
            encode_batch([unit])
        except MessageIllegal as error:
            self._tell(original, "failed", str(error), road)
            return
        self._add(road, _Waiting(original, unit))

    def _add(self, road: _Road, one: _Waiting) -> None:
        waiting = self._waiting.setdefault(road, [])
        if waiting and sum(map(_size, waiting)) + _size(one) > _REQUEST_BYTES_MAX:
            self._flush(road)
            waiting = self._waiting.setdefault(road, [])
        waiting.append(one)
        if len(waiting) >= self._chunk:
            self._flush(road)

    def flush(self) -> None:
        """Send all that waits."""
        for road in list(self._waiting):
            self._flush(road)

    def _flush(self, road: _Road) -> None:
        waiting = self._waiting.pop(road)
        if self._pacer is not None:
            time.sleep(self._pacer.wait_s(len(waiting), _now_s()))
        refusal = self._send(road, waiting)
        if refusal is None:
            for one in waiting:
                self._tell(one.original, self._plan.done, None, road)
        elif len(waiting) == 1:
            self._tell(waiting[0].original, "failed", refusal, road)
        else:
            # One of them is at fault: find out which.
            for one in waiting:
                refused = self._send(road, [one])
                outcome = self._plan.done if refused is None else "failed"
                self._tell(one.original, outcome, refused, road)

    def _send(self, road: _Road, waiting: list[_Waiting]) -> str | None:
        """Send in one request; None, or why the broker does not take it.

        Raises:
            JobFailed: the broker did not take it however often it was asked.
        """
        body = encode_batch([one.unit for one in waiting])
        for tried in range(_TRY_COUNT):
            try:
                self._request(road, body)
                return None
            except BrokerRefused as error:
                if error.code in _MESSAGE_AT_FAULT:
                    return f"{ResponseCode(error.code).name}: {error.remark}"
                last: ClientError = error
            except ClientError as error:
                last = error
            time.sleep(_TRY_AGAIN_S * 2**tried)
        raise JobFailed(f"broker {road.broker_name!r} does not take copies: {last}") from last

    def _request(self, road: _Road, body: bytes) -> ReceivedResponse:
        if self._plan.remembered:
            fields = {
                "topic": road.topic,
                "queueId": str(road.queue_id),
                "producerGroup": PRODUCER_GROUP,
                "prepared": "false",
            }
            return self._admin.ask_broker(
                road.broker_name, RequestCode.CONTRAIL_SINK_SEND, fields, body
            )
        fields = batch_fields(road.topic, road.queue_id, int(time.time() * 1000))
        return self._admin.ask_broker(
            road.broker_name, RequestCode.SEND_BATCH_MESSAGE, fields, body
        )

    def _properties(self, copy: Copy, road: _Road, original: Original) -> bytes:
        properties = copy.properties
        if self._plan.remembered:
            properties = properties | {
                SINK_KEY: f"{self._plan.job_id}/0/{road.lane}",
                SINK_SEQUENCE: str(original.queue_offset),
            }
        return encode_properties(properties)

    def _tell(
        self, original: Original, outcome: str, reason: str | None, road: _Road | None = None
    ) -> None:
        queue = original.queue
        self._rows.append(
            (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                original.queue_offset,
                original.message_id,
                outcome,
                reason,
                None if road is None else road.topic,
                None if road is None else f"{road.broker_name}:{road.queue_id}",
            )
        )


def batch_fields(topic: str, queue_id: int, now_ms: int) -> dict[str, str]:
    """The one-letter fields of a batch that any RocketMQ broker takes."""
    return {
        "a": PRODUCER_GROUP,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(now_ms),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "true",
    }


def _size(one: _Waiting) -> int:
    return len(one.unit.body) + len(one.unit.properties) + 32


def _now_s() -> float:
    return time.monotonic()


# Spark forks its workers and uses them again: a connection is of one process.
_admins: dict[tuple[int, ClusterSettings], Admin] = {}


def _admin_of(cluster: ClusterSettings) -> Admin:
    key = (os.getpid(), cluster)
    if key not in _admins:
        settings = client_settings(cluster)
        admin = Admin(list(settings.namesrv), tls=settings.tls)
        admin.start()
        _admins[key] = admin
    return _admins[key]
