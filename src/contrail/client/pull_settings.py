"""How a pull consumer fetches, shares and commits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from contrail.client.settings import CLIENT_SETTINGS, check_names, check_value
from contrail.client.state.allocation import AllocationStrategy, strategy_named
from contrail.client.state.prefetched import PrefetchLimits
from contrail.errors import ConfigError
from contrail.model.shown import shown
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """RocketMQ's settings of its lite pull consumer, under their own names."""

    message_model: str | MessageModel = MessageModel.CLUSTERING
    allocate_strategy: str | AllocationStrategy = "AVG"
    consume_from_where: str | ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    # yyyyMMddHHmmss in local time, a datetime or epoch milliseconds; None is half an hour ago.
    consume_timestamp: str | datetime | int | None = None
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    pull_batch_size: int = 32
    pull_threshold_for_queue: int = 1_000
    # In MiB.
    pull_threshold_size_for_queue: int = 100
    pull_threshold_for_all: int = 10_000
    consume_max_span: int = 2_000
    broker_suspend_max_time_ms: int = 20_000
    consumer_timeout_ms_when_suspend: int = 30_000
    consumer_pull_timeout_ms: int = 10_000
    pull_time_delay_ms_when_exception: int = 1_000
    rebalance_interval_ms: int = 20_000
    offset_folder: str | Path | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = type(field.default)
            if kind in (int, bool):
                least = 0 if kind is bool else 1
                check_value(field.name, getattr(self, field.name), kind, least=least)
        if self.consumer_timeout_ms_when_suspend < self.broker_suspend_max_time_ms:
            raise ConfigError(
                f"consumer_timeout_ms_when_suspend={self.consumer_timeout_ms_when_suspend} must "
                f"not be less than broker_suspend_max_time_ms={self.broker_suspend_max_time_ms}"
            )

    @property
    def limits(self) -> PrefetchLimits:
        return PrefetchLimits(
            queue_count_max=self.pull_threshold_for_queue,
            queue_bytes_max=self.pull_threshold_size_for_queue << 20,
            queue_span_max=self.consume_max_span,
            total_count_max=self.pull_threshold_for_all,
        )

    @property
    def strategy(self) -> AllocationStrategy:
        """Raises ``ConfigError`` for an unknown strategy."""
        given = self.allocate_strategy
        return strategy_named(given) if isinstance(given, str) else given

    @property
    def model(self) -> MessageModel:
        """Raises ``ConfigError`` for an unknown message model."""
        try:
            return MessageModel(self.message_model)
        except ValueError as error:
            raise ConfigError(
                f"message_model={shown(self.message_model)} is unknown: use CLUSTERING or "
                "BROADCASTING"
            ) from error


_NAMES = frozenset(field.name for field in fields(PullSettings))


def split_pull_settings(given: dict[str, Any]) -> tuple[PullSettings, dict[str, Any]]:
    """Split options: the consumer's settings, and the options of the shared client instance.

    Raises:
        ConfigError: a value makes no sense, or there is no such setting.
    """
    check_names(given, _NAMES | CLIENT_SETTINGS)
    own = {name: value for name, value in given.items() if name in _NAMES}
    shared = {name: value for name, value in given.items() if name not in _NAMES}
    return PullSettings(**own), shared
