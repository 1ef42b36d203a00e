"""The version stamp of a shared table: it tells which of two copies is newer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from contrail.model.fastjson import Fields


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """Compared field by field in this order: the controller's epoch first, the clock last."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0

    def bump(self, now_ms: int, *, state_version: int | None = None) -> DataVersion:
        """The version after one more change; NameServers refuse a lower ``state_version``."""
        kept = self.state_version if state_version is None else state_version
        return DataVersion(kept, self.counter + 1, now_ms)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            state_version=fields.integer("stateVersion", 0),
            counter=fields.integer("counter", 0),
            timestamp_ms=fields.integer("timestamp", 0),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }
