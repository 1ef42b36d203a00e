"""How a producer sends."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from contrail.client.compression import Compression
from contrail.client.outgoing import COMPRESS_OVER_BYTES, MESSAGE_BYTES_MAX, OutgoingRules
from contrail.client.settings import CLIENT_SETTINGS, check_names, check_value
from contrail.errors import ConfigError
from contrail.model.shown import shown
from contrail.model.topic import AUTO_CREATE_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """RocketMQ's settings under their own names, and the bounds of sends under way."""

    send_timeout_ms: int = 3_000
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    max_message_size: int = MESSAGE_BYTES_MAX
    compress_msg_body_over_howmuch: int = COMPRESS_OVER_BYTES
    compression: Compression = Compression.ZLIB
    compress_level: int = 5
    send_latency_fault_enable: bool = False
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = 4
    in_flight_count_max: int = 1_024
    in_flight_bytes_max: int = 100 << 20

    def __post_init__(self) -> None:
        if not isinstance(self.compression, Compression):
            raise ConfigError(
                f"compression={shown(self.compression)}: give one of Compression.ZLIB, .LZ4 "
                "and .ZSTD"
            )
        for field in fields(self):
            if field.name != "compression":
                value, kind = getattr(self, field.name), type(field.default)
                check_value(field.name, value, kind, least=_LEAST.get(field.name, 0))

    @property
    def outgoing_rules(self) -> OutgoingRules:
        return OutgoingRules(
            body_bytes_max=self.max_message_size,
            compress_over_bytes=self.compress_msg_body_over_howmuch,
            compression=self.compression,
            compress_level=self.compress_level,
        )


_LEAST = {
    "send_timeout_ms": 1,
    "max_message_size": 1,
    "default_topic_queue_nums": 1,
    "in_flight_count_max": 1,
    "in_flight_bytes_max": 1,
}
_NAMES = frozenset(field.name for field in fields(ProducerSettings))


def split_settings(given: dict[str, Any]) -> tuple[ProducerSettings, dict[str, Any]]:
    """Split options: the producer's settings, and the options of the shared client instance.

    Raises:
        ConfigError: a value makes no sense, or there is no such setting.
    """
    check_names(given, _NAMES | CLIENT_SETTINGS)
    own = {name: value for name, value in given.items() if name in _NAMES}
    shared = {name: value for name, value in given.items() if name not in _NAMES}
    return ProducerSettings(**own), shared
