"""A client's id, and the unique ids it gives to messages."""

from __future__ import annotations

import itertools
import os
import time
from datetime import UTC, datetime

from contrail.client.settings import DEFAULT_INSTANCE, ClientSettings
from contrail.wire.addresses import outgoing_address

_COUNTER_MASK = 0xFFFF


def client_address(settings: ClientSettings) -> str:
    return settings.client_ip or outgoing_address() or "127.0.0.1"


def build_client_id(settings: ClientSettings, address: str) -> str:
    """``ip@instance[@unit]``; the default instance is named after the process and the moment."""
    name = settings.instance_name
    if name == DEFAULT_INSTANCE:
        name = f"{os.getpid()}#{time.monotonic_ns()}"
    unit = f"@{settings.unit_name}" if settings.unit_name else ""
    return f"{address}@{name}{unit}"


class UniqueIds:
    """Message ids in RocketMQ's form: address, process, a hash, time since the month, a counter."""

    def __init__(self, address: bytes) -> None:
        process = os.getpid()
        # In place of Java's hash of a class loader: tells two clients of a process apart.
        salt = time.monotonic_ns() ^ (id(self) >> 4)
        head = address + (process & 0xFFFF).to_bytes(2, "big") + _u32(salt)
        self._head = head.hex().upper()
        self._counter = itertools.count(int.from_bytes(os.urandom(2), "big"))
        self._month_start_ms = self._month_end_ms = 0

    def take(self, now_ms: int) -> str:
        """The next id."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._begin_month(now_ms)
        count = next(self._counter) & _COUNTER_MASK
        since_ms = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        return f"{self._head}{since_ms:08X}{count:04X}"

    def _begin_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = (start.year, start.month + 1) if start.month < 12 else (start.year + 1, 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(start.replace(year=year, month=month).timestamp() * 1000)


def _u32(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "big")
