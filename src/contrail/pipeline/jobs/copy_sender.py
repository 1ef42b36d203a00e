"""Sends copies of stored messages from Spark's tasks, and returns the outcome of each.

Each source queue is a lane, whose messages are sent one after the other in their order; a message's
own queue offset is its sequence number. A Contrail broker remembers the last number of each lane in
each of its queues and drops messages up to it: a task, or a pass of a job, that runs again adds
nothing, even with other partitions. Each pass is a batch of its own for the brokers, so no pass
counts as a repeat of another. Other brokers store every message they receive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from contrail.client.blocking.admin import Admin
from contrail.client.selectors import java_hash_of
from contrail.errors import BrokerRefused, ClientError, JobFailed, MessageIllegal
from contrail.insight.copies import SINK_KEY, SINK_SEQUENCE, Copy, Original, Skipped, place_of
from contrail.insight.pacing import Pacer, chunk_size
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.properties import SHARDING_KEY, encode_properties
from contrail.pipeline.cluster import client_settings
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse

PRODUCER_GROUP = "contrail-pipeline"
_UNITS_MAX = 1_000
_REQUEST_BYTES_MAX = 1 << 20
_TRY_COUNT = 6
_TRY_AGAIN_S = 0.5
# Refusals of the message or its queue; all other answers of a broker may be transient.
_MESSAGE_AT_FAULT = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER})
_QUEUE_AT_FAULT = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION})
# The reason of a message that the broker had stored before.
ALREADY = "an earlier attempt sent it"

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
    # Why a row is not sent; null for rows to send.
    "skipped",
)

Decision = Callable[[Original], Copy | Skipped]
Targets = Mapping[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, kw_only=True)
class CopyPlan:
    """The settings of the tasks; plain values that can be pickled."""

    cluster: ClusterSettings
    job_id: str
    # The outcome of a stored message: restored or replayed.
    done: str
    # Whether the brokers drop repeats.
    remembered: bool
    # Each target topic's queues at the beginning of the job.
    targets: Targets
    # Source queues in a fixed order; the index is the number of the lane.
    lanes: tuple[QueueKey, ...]
    # Messages of a lane go to the queue of the same name, or all to one other queue.
    keep_queues: bool
    rate_per_task: float | None = None
    # The batch number by which brokers remember this pass of the job.
    pass_number: int = 0
    # Whether an earlier run began the pass, so that brokers may have some of its messages.
    resumed: bool = False
    _numbers: dict[QueueKey, int] = field(default_factory=dict, init=False, repr=False)

    def lane(self, queue: QueueKey) -> int:
        if not self._numbers:
            self._numbers.update({one: number for number, one in enumerate(self.lanes)})
        return self._numbers[queue]

    def target(self, topic: str, original: Original) -> tuple[str, int]:
        """The queue for a copy: always the same for the same message."""
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
    encoded: bytes


class _Load:
    """Copies that wait to be sent in one request."""

    __slots__ = ("rows", "size_bytes")

    def __init__(self) -> None:
        self.rows: list[_Waiting] = []
        self.size_bytes = 0

    def add(self, one: _Waiting) -> None:
        self.rows.append(one)
        self.size_bytes += len(one.encoded)


class _Road(NamedTuple):
    """The path of copies that are sent together: one lane to one queue."""

    topic: str
    broker_name: str
    queue_id: int
    lane: int


def send_copies(
    batches: Iterator[pa.RecordBatch], plan: CopyPlan, decide: Decision
) -> Iterator[pa.RecordBatch]:
    """Send the copies that ``decide`` makes of rows; returns an outcome for each row."""
    with _Sending(plan, decide) as sending:
        for batch in batches:
            for original, skipped in originals(batch):
                sending.take(original, skipped)
                if sending.outcome_count >= _UNITS_MAX:
                    yield sending.outcomes()
            sending.flush()
            yield sending.outcomes()


def originals(batch: pa.RecordBatch) -> Iterator[tuple[Original, str | None]]:
    """The rows of a batch with ``COPIED_COLUMNS`` as messages, and why a row is not sent."""
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
    """One task's sends. A road has one request at a time; full requests are sent."""

    def __init__(self, plan: CopyPlan, decide: Decision) -> None:
        self._plan = plan
        self._decide = decide
        self._admin = _admin_of(plan.cluster)
        self._chunk = chunk_size(plan.rate_per_task, _UNITS_MAX)
        self._pacer = None if plan.rate_per_task is None else Pacer(plan.rate_per_task, _now_s())
        self._may_repeat = plan.resumed or _is_second_try()
        self._loads: dict[_Road, _Load] = {}
        # Roads that a broker has refused, and why.
        self._closed: dict[_Road, str] = {}
        self._last: tuple[QueueKey, int] | None = None
        self._rows: list[tuple[Any, ...]] = []

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self._loads.clear()

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
        """Send a message, now or together with the next messages for its queue."""
        place = (original.queue, original.queue_offset)
        if place == self._last:
            skipped = "its place is there twice"
        self._last = place
        copy = self._decide(original) if skipped is None else Skipped(skipped)
        if isinstance(copy, Skipped):
            self._tell(original, "skipped", copy.reason)
        elif copy.topic not in self._plan.targets:
            reason = (
                f"topic {copy.topic!r} does not exist or may not be written: create or allow it"
            )
            # The outcome has the topic, by which a later run finds messages to try again.
            self._tell(original, "skipped", reason, copy.topic)
        else:
            self._load(original, copy)

    def _load(self, original: Original, copy: Copy) -> None:
        broker_name, queue_id = self._plan.target(copy.topic, original)
        road = _Road(copy.topic, broker_name, queue_id, self._plan.lane(original.queue))
        try:
            properties = self._properties(copy, road, original)
            encoded = encode_batch([BatchUnit(original.body, properties, original.flag)])
        except MessageIllegal as error:
            self._tell(original, "failed", str(error), road)
            return
        load = self._loads.get(road)
        if load is not None and load.size_bytes + len(encoded) > _REQUEST_BYTES_MAX:
            self._flush(road)
        load = self._loads.setdefault(road, _Load())
        load.add(_Waiting(original, encoded))
        if len(load.rows) >= self._chunk:
            self._flush(road)

    def flush(self) -> None:
        """Send all waiting copies."""
        for road in list(self._loads):
            self._flush(road)

    def _flush(self, road: _Road) -> None:
        rows = self._loads.pop(road).rows
        if self._pacer is not None and road not in self._closed:
            time.sleep(self._pacer.wait_s(len(rows), _now_s()))
        self._deliver(road, rows, self._may_repeat)

    def _deliver(self, road: _Road, rows: list[_Waiting], may_repeat: bool) -> None:
        """Send rows in one request, and note the outcome of each."""
        if road in self._closed:
            self._fail(road, rows, self._closed[road])
            return
        try:
            repeat_count = self._send(road, rows, may_repeat)
        except BrokerRefused as refusal:
            self._refused(road, rows, refusal)
            return
        # Numbers grow, and the broker drops rows up to its last number: the first rows.
        for number, one in enumerate(rows):
            reason = ALREADY if number < repeat_count else None
            self._tell(one.original, self._plan.done, reason, road)

    def _refused(self, road: _Road, rows: list[_Waiting], refusal: BrokerRefused) -> None:
        reason = f"{ResponseCode(refusal.code).name}: {refusal.remark}"
        if refusal.code in _QUEUE_AT_FAULT:
            # If the queue opens meanwhile, later rows would make these look like repeats.
            self._closed[road] = reason
            self._fail(road, rows, reason)
        elif len(rows) == 1:
            self._fail(road, rows, reason)
        else:
            # Send one by one, so that only the invalid message fails.
            for one in rows:
                self._deliver(road, [one], may_repeat=True)

    def _fail(self, road: _Road, rows: list[_Waiting], reason: str) -> None:
        for one in rows:
            self._tell(one.original, "failed", reason, road)

    def _send(self, road: _Road, rows: list[_Waiting], may_repeat: bool) -> int:
        """Send rows in one request; returns how many of them the broker had already.

        Raises:
            BrokerRefused: a message, or the queue, is at fault.
            JobFailed: the broker refused every try, or dropped rows that it cannot have.
        """
        body = b"".join(one.encoded for one in rows)
        for tried in range(_TRY_COUNT):
            try:
                answer = self._request(road, body)
            except BrokerRefused as error:
                if error.code in _MESSAGE_AT_FAULT | _QUEUE_AT_FAULT:
                    raise
                last: ClientError = error
            except ClientError as error:
                last = error
            else:
                return self._repeats(road, rows, answer, may_repeat or tried > 0)
            time.sleep(_TRY_AGAIN_S * 2**tried)
        raise JobFailed(f"broker {road.broker_name!r} does not take copies: {last}") from last

    def _repeats(
        self, road: _Road, rows: list[_Waiting], answer: ReceivedResponse, may_repeat: bool
    ) -> int:
        """How many rows the broker dropped as repeats; only rows that were sent before can be."""
        if not self._plan.remembered:
            return 0
        stored, dropped = (int(answer.fields[name]) for name in ("storedCount", "droppedCount"))
        if stored + dropped != len(rows) or (dropped and not may_repeat):
            raise JobFailed(
                f"broker {road.broker_name!r} stored {stored} and dropped {dropped} of {len(rows)} "
                f"messages for topic {road.topic!r}, queue {road.queue_id}, from "
                f"{place_of(rows[0].original)} on, though none was sent before: they are not there"
            )
        return dropped

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
                SINK_KEY: f"{self._plan.job_id}/{self._plan.pass_number}/{road.lane}",
                SINK_SEQUENCE: str(original.queue_offset),
            }
        return encode_properties(properties)

    def _tell(
        self, original: Original, outcome: str, reason: str | None, to: _Road | str | None = None
    ) -> None:
        queue = original.queue
        topic, name = (
            (to.topic, f"{to.broker_name}:{to.queue_id}") if isinstance(to, _Road) else (to, None)
        )
        self._rows.append(
            (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                original.queue_offset,
                original.message_id,
                outcome,
                reason,
                topic,
                name,
            )
        )


def batch_fields(topic: str, queue_id: int, now_ms: int) -> dict[str, str]:
    """The one-letter fields of a batch send that any RocketMQ broker accepts."""
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


def _is_second_try() -> bool:
    """Whether Spark runs this task again."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _now_s() -> float:
    return time.monotonic()


# Spark forks its workers and reuses them: a connection belongs to one process.
_admins: dict[tuple[int, ClusterSettings], Admin] = {}


def _admin_of(cluster: ClusterSettings) -> Admin:
    key = (os.getpid(), cluster)
    if key not in _admins:
        settings = client_settings(cluster)
        admin = Admin(list(settings.namesrv), tls=settings.tls, credentials=settings.credentials)
        admin.start()
        _admins[key] = admin
    return _admins[key]
