"""How a pop consumer asks for messages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from contrail.client.consumer_settings import POP_BATCH_MAX
from contrail.client.settings import CLIENT_SETTINGS, check_names, check_value
from contrail.client.start_places import parse_consume_from_where
from contrail.errors import ConfigError
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere


@dataclass(frozen=True, slots=True, kw_only=True)
class PopSettings:
    """RocketMQ's settings of popping, under their own names."""

    consume_from_where: str | ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    pop_invisible_time_ms: int = 60_000
    pop_batch_nums: int = POP_BATCH_MAX
    broker_suspend_max_time_ms: int = 15_000
    pull_time_delay_ms_when_exception: int = 1_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if type(field.default) is int:
                check_value(field.name, getattr(self, field.name), int, least=1)
        if self.pop_batch_nums > POP_BATCH_MAX:
            raise ConfigError(
                f"pop_batch_nums={self.pop_batch_nums} must be at most {POP_BATCH_MAX}"
            )
        if self.start is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            raise ConfigError("consume_from_where: a group that pops starts first or last")

    @property
    def start(self) -> ConsumeFromWhere:
        """Raises ``ConfigError`` for an unknown place."""
        return parse_consume_from_where(self.consume_from_where)


_NAMES = frozenset(field.name for field in fields(PopSettings))


def split_pop_settings(given: dict[str, Any]) -> tuple[PopSettings, dict[str, Any]]:
    """Split options: the consumer's settings, and the options of the shared client instance.

    Raises:
        ConfigError: a value makes no sense, or there is no such setting.
    """
    check_names(given, _NAMES | CLIENT_SETTINGS)
    own = {name: value for name, value in given.items() if name in _NAMES}
    shared = {name: value for name, value in given.items() if name not in _NAMES}
    return PopSettings(**own), shared
