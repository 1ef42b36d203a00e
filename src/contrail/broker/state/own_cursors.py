"""The broker's own cursors, which RocketMQ keeps among the offsets of consumer groups.

RocketMQ's broker reads its half messages as a consumer group of the system, and so the cursors
stand in ``consumerOffset.json``. They are read from there and written there, so that either broker
takes the other's folder over; in between they are in this table, which no commit, reset, clone or
deletion of a group reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from contrail.model.group import is_system_group

SEPARATOR = "@"


def is_own_key(key: str) -> bool:
    """Whether offsets under a key of topic and group are those of a group of the system."""
    return is_system_group(key.rpartition(SEPARATOR)[2])


class OwnCursors:
    """By topic and group, then by queue."""

    def __init__(self, stored: Mapping[str, Mapping[int, int]]) -> None:
        """Takes those out of ``stored`` that are the broker's own; the others are not its."""
        self._cursors = {key: dict(of) for key, of in stored.items() if is_own_key(key)}

    def get(self, key: str) -> Mapping[int, int] | None:
        return self._cursors.get(key)

    def keep(self, key: str, queue_id: int, queue_offset: int) -> None:
        assert is_own_key(key), key
        self._cursors.setdefault(key, {})[queue_id] = queue_offset

    def __iter__(self) -> Iterator[str]:
        return iter(self._cursors)

    def snapshot(self) -> dict[str, dict[int, int]]:
        return {key: dict(queues) for key, queues in self._cursors.items()}
