"""Brokers that were there and are gone: NameServers forget a broker that ends, the console tells.

A broker that is taken away for good is told of for an hour.
"""

from __future__ import annotations

from collections.abc import Iterable

TOLD_FOR_MS = 3_600_000
BROKERS_MAX = 1_000


class AbsentBrokers:
    """When each broker was registered last."""

    def __init__(self) -> None:
        self._last_ms: dict[str, int] = {}

    def registered(self, names: Iterable[str], now_ms: int) -> dict[str, str]:
        """Note the brokers that are registered now; the words for those that are not any more."""
        here = set(names)
        for name in here:
            self._last_ms[name] = now_ms
        for name, last_ms in list(self._last_ms.items()):
            if now_ms - last_ms >= TOLD_FOR_MS:
                del self._last_ms[name]
        while len(self._last_ms) > max(BROKERS_MAX, len(here)):
            del self._last_ms[min(self._last_ms, key=lambda name: self._last_ms[name])]
        return {
            name: f"no longer registered with the NameServers, for {(now_ms - last_ms) // 1000} s"
            for name, last_ms in self._last_ms.items()
            if name not in here
        }
