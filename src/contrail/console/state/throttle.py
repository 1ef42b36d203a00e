"""Log-ins that fail: after a few the next one has to wait, for an account and for an address.

| failures in a row | wait |
| --- | --- |
| up to 5 | none |
| 6, 7, 8, … | 1 s, 2 s, 4 s, … up to 15 min |

A success forgets the failures of its account and address; an hour without failures does too. An
address may try many accounts, and an account may be tried from many addresses: both are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

FREE_FAILURES = 5
WAIT_MS_MAX = 15 * 60_000
FORGOTTEN_AFTER_MS = 3_600_000
ENTRIES_MAX = 10_000
_DOUBLINGS_MAX = 10


@dataclass(slots=True)
class _Failures:
    count: int
    last_ms: int

    def wait_ms(self, now_ms: int) -> int:
        if self.count <= FREE_FAILURES:
            return 0
        doublings = min(self.count - FREE_FAILURES - 1, _DOUBLINGS_MAX)
        return max(0, self.last_ms + min(WAIT_MS_MAX, 1_000 << doublings) - now_ms)


class Throttle:
    """Failures by account and by address; the one that failed first makes room for a new one."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], _Failures] = {}

    def wait_ms(self, account: str, address: str, now_ms: int) -> int:
        """How long this log-in has to wait; 0 if it may be tried now."""
        return max(self._wait_ms(key, now_ms) for key in _keys(account, address))

    def _wait_ms(self, key: tuple[str, str], now_ms: int) -> int:
        found = self._failures.get(key)
        return 0 if found is None else found.wait_ms(now_ms)

    def failed(self, account: str, address: str, now_ms: int) -> None:
        for key in _keys(account, address):
            found = self._failures.pop(key, None)
            if found is None or now_ms - found.last_ms >= FORGOTTEN_AFTER_MS:
                found = _Failures(0, now_ms)
            found.count += 1
            found.last_ms = now_ms
            while len(self._failures) >= ENTRIES_MAX:
                del self._failures[next(iter(self._failures))]
            self._failures[key] = found

    def succeeded(self, account: str, address: str) -> None:
        for key in _keys(account, address):
            self._failures.pop(key, None)


def _keys(account: str, address: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("account", account), ("address", address)
