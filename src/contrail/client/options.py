"""The keyword arguments of producers and consumers, for type checkers and editors.

A test compares them with the settings.
"""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import Literal, TypedDict

from contrail.client.compression import Compression
from contrail.client.state.allocation import AllocationStrategy
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel
from contrail.protocol.signing import CredentialSource

StartName = Literal[
    "first",
    "last",
    "timestamp",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
]
"""Name of a ``ConsumeFromWhere``: where a new group starts."""
ModelName = Literal["CLUSTERING", "BROADCASTING"]
"""Whether members share the messages, or each gets all, by name."""
StrategyName = Literal["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]
"""How members share queues, by name."""


class ClientOptions(TypedDict, total=False):
    """Options of every client beside its NameServers."""

    instance_name: str
    unit_name: str | None
    client_ip: str | None
    tls: bool | ssl.SSLContext
    credentials: CredentialSource | None
    poll_name_server_interval_ms: int
    heartbeat_broker_interval_ms: int
    api_timeout_ms: int


class ProducerOptions(ClientOptions, total=False):
    """Options of a producer."""

    send_timeout_ms: int
    retry_times_when_send_failed: int
    retry_times_when_send_async_failed: int
    retry_another_broker_when_not_store_ok: bool
    max_message_size: int
    compress_msg_body_over_howmuch: int
    compression: Compression
    compress_level: int
    send_latency_fault_enable: bool
    create_topic_key: str
    default_topic_queue_nums: int
    in_flight_count_max: int
    in_flight_bytes_max: int


class PushOptions(ClientOptions, total=False):
    """Options of a push consumer."""

    message_model: MessageModel | ModelName
    orderly: bool
    consume_from_where: ConsumeFromWhere | StartName
    consume_timestamp: str | datetime | int | None
    pull_batch_size: int
    consume_message_batch_max_size: int
    consume_thread_max: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    consume_concurrently_max_span: int
    pull_interval_ms: int
    pull_time_delay_ms_when_exception: int
    max_reconsume_times: int
    suspend_current_queue_time_ms: int
    consume_timeout_minutes: float
    allocate_strategy: StrategyName | AllocationStrategy
    rebalance_interval_ms: int
    persist_consumer_offset_interval_ms: int
    await_termination_ms_when_shutdown: int
    start_timeout_ms: int
    offset_folder: Path | str | None
    pop: bool
    pop_invisible_time_ms: int
    pop_batch_nums: int
    pop_threshold_for_queue: int


class PopOptions(ClientOptions, total=False):
    """Options of a pop consumer."""

    consume_from_where: ConsumeFromWhere | StartName
    pop_invisible_time_ms: int
    pop_batch_nums: int
    broker_suspend_max_time_ms: int
    pull_time_delay_ms_when_exception: int


class PullOptions(ClientOptions, total=False):
    """Options of a pull consumer."""

    message_model: MessageModel | ModelName
    allocate_strategy: StrategyName | AllocationStrategy
    consume_from_where: ConsumeFromWhere | StartName
    consume_timestamp: str | datetime | int | None
    auto_commit: bool
    auto_commit_interval_ms: int
    pull_batch_size: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    pull_threshold_for_all: int
    consume_max_span: int
    broker_suspend_max_time_ms: int
    consumer_timeout_ms_when_suspend: int
    consumer_pull_timeout_ms: int
    pull_time_delay_ms_when_exception: int
    rebalance_interval_ms: int
    offset_folder: str | Path | None
