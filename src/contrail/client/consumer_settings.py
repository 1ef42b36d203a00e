"""How a push consumer consumes: RocketMQ's settings under their own names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from contrail.client.settings import CLIENT_SETTINGS, check_names, check_value
from contrail.client.start_places import parse_consume_from_where
from contrail.client.state.allocation import AllocationStrategy, strategy_named
from contrail.client.state.flow_control import FlowLimits
from contrail.errors import ConfigError
from contrail.model.group import check_group_name
from contrail.model.shown import shown
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel

RETRIES_MAX = 16
RETRIES_WITHOUT_END = 0x7FFFFFFF
POP_BATCH_MAX = 32
"""How many messages a broker hands out with one pop."""
_RESERVED_GROUP = "DEFAULT_CONSUMER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of one push consumer."""

    message_model: MessageModel | str = MessageModel.CLUSTERING
    orderly: bool = False
    consume_from_where: ConsumeFromWhere | str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    # ``yyyyMMddHHmmss``, a datetime or epoch milliseconds; None is half an hour before the start.
    consume_timestamp: str | datetime | int | None = None
    pull_batch_size: int = 32
    consume_message_batch_max_size: int = 1
    # How many handlers run at once.
    consume_thread_max: int = 20
    pull_threshold_for_queue: int = 1_000
    # In MiB.
    pull_threshold_size_for_queue: int = 100
    consume_concurrently_max_span: int = 2_000
    pull_interval_ms: int = 0
    pull_time_delay_ms_when_exception: int = 1_000
    # -1: 16 times, or without end where order is kept and the message can be decoded.
    max_reconsume_times: int = -1
    suspend_current_queue_time_ms: int = 1_000
    consume_timeout_minutes: float = 15
    allocate_strategy: str | AllocationStrategy = "AVG"
    rebalance_interval_ms: int = 20_000
    persist_consumer_offset_interval_ms: int = 5_000
    await_termination_ms_when_shutdown: int = 10_000
    # A start raises if it has no share of every topic within this time; 0: a task keeps trying
    # beside the program.
    start_timeout_ms: int = 0
    offset_folder: Path | str | None = None
    # Pop messages instead of pulling them; the broker says of which queues.
    pop: bool = False
    pop_invisible_time_ms: int = 60_000
    pop_batch_nums: int = POP_BATCH_MAX
    # How many popped messages of one assignment the consumer holds.
    pop_threshold_for_queue: int = 96

    def __post_init__(self) -> None:
        for field in fields(self):
            if type(field.default) in (int, bool) and field.name != "consume_timeout_minutes":
                value, kind = getattr(self, field.name), type(field.default)
                check_value(field.name, value, kind, least=_LEAST.get(field.name, 0))
        minutes = self.consume_timeout_minutes
        if not isinstance(minutes, int | float) or not minutes >= 0:
            raise ConfigError(f"consume_timeout_minutes={shown(minutes)}: give a number, 0 or more")
        if self.pull_batch_size > 1024:
            raise ConfigError(f"pull_batch_size={self.pull_batch_size}: at most 1024")
        self._check_pop()

    def _check_pop(self) -> None:
        if self.pop_batch_nums > POP_BATCH_MAX:
            raise ConfigError(
                f"pop_batch_nums={self.pop_batch_nums} must be at most {POP_BATCH_MAX}"
            )
        if not self.pop:
            return
        if self.orderly or self.model is MessageModel.BROADCASTING:
            raise ConfigError("pop=True: orderly and broadcasting consumers pull; leave pop out")
        if self.from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            raise ConfigError("consume_from_where: a group that pops starts first or last")

    @property
    def from_where(self) -> ConsumeFromWhere:
        """Raises ``ConfigError`` for an unknown place."""
        return parse_consume_from_where(self.consume_from_where)

    @property
    def model(self) -> MessageModel:
        """Raises ``ConfigError`` for an unknown name."""
        given = self.message_model
        if isinstance(given, MessageModel):
            return given
        try:
            return MessageModel(given.upper())
        except ValueError as error:
            raise ConfigError(
                f"message_model={shown(given)}: use CLUSTERING or BROADCASTING"
            ) from error

    @property
    def strategy(self) -> AllocationStrategy:
        given = self.allocate_strategy
        return strategy_named(given) if isinstance(given, str) else given

    @property
    def retries_max(self) -> int:
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return RETRIES_WITHOUT_END if self.orderly else RETRIES_MAX

    @property
    def undecoded_retries_max(self) -> int:
        """How often a message that cannot be decoded is tried again: never without end."""
        return RETRIES_MAX if self.max_reconsume_times < 0 else self.max_reconsume_times

    @property
    def flow_limits(self) -> FlowLimits:
        return FlowLimits(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue << 20,
            None if self.orderly else self.consume_concurrently_max_span,
        )


_LEAST = {
    "max_reconsume_times": -1,
    "pull_batch_size": 1,
    "pop_invisible_time_ms": 1,
    "pop_batch_nums": 1,
    "pop_threshold_for_queue": 1,
    "consume_message_batch_max_size": 1,
    "consume_thread_max": 1,
    "pull_threshold_for_queue": 1,
    "pull_threshold_size_for_queue": 1,
    "rebalance_interval_ms": 1,
    "persist_consumer_offset_interval_ms": 1,
}

S = TypeVar("S")


def split_settings(kind: type[S], given: dict[str, Any]) -> tuple[S, dict[str, Any]]:
    """Split options: settings of ``kind``, and the options of the shared client instance.

    Raises:
        ConfigError: a value makes no sense, or there is no such setting.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    check_names(given, names | CLIENT_SETTINGS)
    own = {name: value for name, value in given.items() if name in names}
    return kind(**own), {name: value for name, value in given.items() if name not in names}


def check_consumer_group(group: str) -> None:
    """Raises ``ConfigError`` for a name that no consumer group may have."""
    if group == _RESERVED_GROUP:
        raise ConfigError(f"group {group!r} is RocketMQ's own: choose another name")
    check_group_name(group)
