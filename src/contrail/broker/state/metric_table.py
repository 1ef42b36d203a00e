"""Every metric of a broker: RocketMQ's names as Prometheus sees them, units included.

``docs/reference/metrics.md`` lists the same; a test compares the two.
"""

from __future__ import annotations

from contrail.protocol.prometheus_text import Metric, MetricKind
from contrail.wire.request_times import BOUNDS_MS

_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

SIZE_BOUNDS = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
CREATION_BOUNDS_MS = (10, 100, 1000, 3000, 5000)
FINISH_BOUNDS_S = (5, 60, 600, 3600, 43_200, 86_400)
DELAY_BOUNDS_S = (60, 600, 3600, 43_200, 86_400, 259_200)

_STORED = ("topic", "message_type", "is_system")
_READ = ("topic", "consumer_group", "is_system")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")
_QUEUE_LAG = (*_LAG, "queue_id", "broker")
# All metrics of the store have these, too.
STORE_LABELS = {"storage_type": "local", "storage_medium": "disk"}
_STORE = tuple(STORE_LABELS)

WATERMARK = Metric(
    "rocketmq_processor_watermark", _GAUGE, "Requests that wait to be carried out", ("processor",)
)
PERMISSION = Metric("rocketmq_broker_permission", _GAUGE, "2 may be written, 4 read, 6 both")
TOPICS = Metric("rocketmq_topic_number", _GAUGE, "Topics")
GROUPS = Metric("rocketmq_consumer_group_number", _GAUGE, "Consumer groups")
MESSAGES_IN = Metric("rocketmq_messages_in_total", _COUNTER, "Messages stored", _STORED)
BYTES_IN = Metric("rocketmq_throughput_in_total", _COUNTER, "Bytes stored", _STORED)
SIZES = Metric(
    "rocketmq_message_size", _HISTOGRAM, "Bytes of stored messages", _STORED, SIZE_BOUNDS
)
MESSAGES_OUT = Metric("rocketmq_messages_out_total", _COUNTER, "Messages read by groups", _READ)
BYTES_OUT = Metric("rocketmq_throughput_out_total", _COUNTER, "Bytes read by groups", _READ)
TOPIC_CREATION = Metric(
    "rocketmq_topic_create_execution_time_milliseconds",
    _HISTOGRAM,
    "How long administrators' requests to make or change topics took",
    ("invocation_status", "is_system"),
    CREATION_BOUNDS_MS,
)
GROUP_CREATION = Metric(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    _HISTOGRAM,
    "How long administrators' requests to make or change groups took",
    ("invocation_status",),
    CREATION_BOUNDS_MS,
)
PRODUCERS = Metric(
    "rocketmq_producer_connections",
    _GAUGE,
    "Connected producers",
    ("language", "version", "protocol_type"),
)
CONSUMERS = Metric(
    "rocketmq_consumer_connections",
    _GAUGE,
    "Connected consumers",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
)
LAG = Metric(
    "rocketmq_consumer_lag_messages", _GAUGE, "Messages that a group has not consumed", _LAG
)
LAG_LATENCY = Metric(
    "rocketmq_consumer_lag_latency_milliseconds",
    _GAUGE,
    "Age of the oldest message that a group has not consumed",
    _LAG,
)
IN_FLIGHT = Metric(
    "rocketmq_consumer_inflight_messages",
    _GAUGE,
    "Messages that a group has pulled and not consumed",
    _LAG,
)
QUEUEING_LATENCY = Metric(
    "rocketmq_consumer_queueing_latency_milliseconds",
    _GAUGE,
    "Age of the oldest message that a group has not pulled",
    _LAG,
)
READY = Metric(
    "rocketmq_consumer_ready_messages", _GAUGE, "Messages that a group has not pulled", _LAG
)
QUEUE_LAG = Metric(
    "contrail_consumer_queue_lag_messages",
    _GAUGE,
    "Messages of one queue that a group has not consumed",
    _QUEUE_LAG,
)
POP_REDELIVERIES = Metric(
    "contrail_pop_redeliveries_total",
    _COUNTER,
    "Popped messages that came again because no consumer acknowledged them",
    ("topic", "consumer_group"),
)
POP_OVERDUE = Metric(
    "contrail_pop_overdue_milliseconds",
    _GAUGE,
    "How long ago the first popped message that has not come again should have",
)
POP_LOST = Metric(
    "contrail_pop_lost_total",
    _COUNTER,
    "Popped messages that were gone when they were due again",
)
DEAD_LETTERS = Metric(
    "rocketmq_send_to_dlq_messages_total",
    _COUNTER,
    "Messages that went to a group's dead letters",
    ("consumer_group", "topic", "is_system"),
)
COMMITS = Metric("rocketmq_commit_messages_total", _COUNTER, "Commits", ("topic",))
ROLLBACKS = Metric("rocketmq_rollback_messages_total", _COUNTER, "Rollbacks", ("topic",))
FINISH_LATENCY = Metric(
    "rocketmq_finish_message_latency_milliseconds",
    _HISTOGRAM,
    "Seconds (as in the original, whatever the name says) from a half message to its commit",
    ("topic",),
    FINISH_BOUNDS_S,
)
HALF_MESSAGES = Metric("rocketmq_half_messages", _GAUGE, "Open transactions", ("topic",))
REQUESTS = Metric(
    "rocketmq_rpc_latency_milliseconds",
    _HISTOGRAM,
    "How long requests took",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    BOUNDS_MS,
)
WAYS = Metric(
    "contrail_broker_way_total",
    _COUNTER,
    "Requests by the way they took between socket and log",
    ("kind", "way"),
)
STORAGE_SIZE = Metric(
    "rocketmq_storage_size_bytes", _GAUGE, "Bytes used on the store's partition", _STORE
)
FLUSH_BEHIND = Metric(
    "rocketmq_storage_flush_behind_bytes", _GAUGE, "Bytes of the log not yet durable", _STORE
)
DISPATCH_BEHIND = Metric(
    "rocketmq_storage_dispatch_behind_bytes", _GAUGE, "Bytes of the log not yet in queues", _STORE
)
DAMAGED_RECORDS = Metric(
    "contrail_store_damaged_records_total", _COUNTER, "Records of the log that were found damaged"
)
DAMAGED_SKIPS = Metric(
    "contrail_store_damaged_skips_total", _COUNTER, "Reads that passed over a damaged message"
)
SCRUBBED_BYTES = Metric(
    "contrail_store_scrubbed_bytes_total", _COUNTER, "Bytes of the log that the scrubber checked"
)
REPAIRED_ROWS = Metric(
    "contrail_store_repaired_rows_total",
    _COUNTER,
    "Queue rows derived from the log again",
)
RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time_milliseconds",
    _GAUGE,
    "Age of the oldest message that is kept",
    _STORE,
)
TIMER_ENQUEUE_LAG = Metric(
    "rocketmq_timer_enqueue_lag", _GAUGE, "Timed messages that were not looked at yet", _STORE
)
TIMER_ENQUEUE_LATENCY = Metric(
    "rocketmq_timer_enqueue_latency_milliseconds", _GAUGE, "Age of the first of them", _STORE
)
TIMER_DEQUEUE_LAG = Metric(
    "rocketmq_timer_dequeue_lag", _GAUGE, "Timed messages that are near and not delivered", _STORE
)
TIMER_DEQUEUE_LATENCY = Metric(
    "rocketmq_timer_dequeue_latency_milliseconds",
    _GAUGE,
    "How far the delivery of timed messages is behind the clock",
    _STORE,
)
TIMING = Metric("rocketmq_timing_messages", _GAUGE, "Timed messages that wait", (*_STORE, "topic"))
TIMER_ENQUEUED = Metric(
    "rocketmq_timer_enqueue_total", _COUNTER, "Timed messages taken in", (*_STORE, "topic")
)
TIMER_DEQUEUED = Metric(
    "rocketmq_timer_dequeue_total", _COUNTER, "Timed messages delivered", (*_STORE, "topic")
)
TIMER_SNAPSHOT = Metric(
    "rocketmq_timer_message_snapshot",
    _GAUGE,
    "Timed messages due within so many seconds, without those due within the bound before",
    (*_STORE, "timer_bound_s"),
)
DELAYS = Metric(
    "rocketmq_delay_message_latency_seconds",
    _HISTOGRAM,
    "The delays that timed messages asked for",
    (*_STORE, "topic"),
    DELAY_BOUNDS_S,
)

METRICS: tuple[Metric, ...] = (
    WATERMARK, PERMISSION, TOPICS, GROUPS, MESSAGES_IN, BYTES_IN, SIZES, MESSAGES_OUT, BYTES_OUT,
    TOPIC_CREATION, GROUP_CREATION, PRODUCERS, CONSUMERS, LAG, LAG_LATENCY, IN_FLIGHT,
    QUEUEING_LATENCY, READY, QUEUE_LAG, POP_REDELIVERIES, POP_OVERDUE, POP_LOST, DEAD_LETTERS,
    COMMITS, ROLLBACKS, FINISH_LATENCY,
    HALF_MESSAGES, REQUESTS, WAYS, STORAGE_SIZE, FLUSH_BEHIND, DISPATCH_BEHIND, DAMAGED_RECORDS,
    DAMAGED_SKIPS, SCRUBBED_BYTES, REPAIRED_ROWS, RESERVE_TIME,
    TIMER_ENQUEUE_LAG, TIMER_ENQUEUE_LATENCY, TIMER_DEQUEUE_LAG, TIMER_DEQUEUE_LATENCY, TIMING,
    TIMER_ENQUEUED, TIMER_DEQUEUED, TIMER_SNAPSHOT, DELAYS,
)  # fmt: skip
