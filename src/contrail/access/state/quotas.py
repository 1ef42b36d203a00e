"""Quotas: how many messages and bytes a second a user, a topic and an address may send and get.

Each has buckets that fill with its rate and hold one second's worth. A request is admitted while
all its buckets have something, and is charged when its size is known, so one large message may
leave a debt; what comes next waits until the debt is paid, 15 s at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

BUCKETS_MAX = 10_000
DEBT_S_MAX = 15


class Rates(NamedTuple):
    """Messages and bytes a second; 0 is no limit."""

    messages: int = 0
    bytes: int = 0


class QuotaRates(NamedTuple):
    """The rates of each user, each topic and each client address."""

    user: Rates = Rates()
    topic: Rates = Rates()
    address: Rates = Rates()

    @property
    def is_on(self) -> bool:
        return any(any(rates) for rates in self)


class Party(NamedTuple):
    """The quotas that one request counts for; a name that is empty has none."""

    user: str
    topic: str
    address: str


class Wait(NamedTuple):
    """How long until a request would be admitted, and the quota that it waits for."""

    ms: int
    quota: str


class _Bucket:
    __slots__ = ("at_ms", "left")

    def __init__(self, left: float, at_ms: int) -> None:
        self.left = left
        self.at_ms = at_ms


class Quotas:
    """The buckets of one broker. Times are of a clock that nobody sets."""

    def __init__(self, rates: QuotaRates) -> None:
        self._rates = rates
        self._buckets: dict[tuple[str, str, str], _Bucket] = {}

    def wait(self, party: Party, now_ms: int) -> Wait | None:
        """The longest wait of a request's quotas; None admits it."""
        longest: Wait | None = None
        for kind, name, unit, rate in self._limits(party):
            bucket = self._bucket(kind, name, unit, rate, now_ms)
            if bucket.left <= 0:
                ms = max(1, math.ceil((1 - bucket.left) / rate * 1000))
                if longest is None or ms > longest.ms:
                    longest = Wait(ms, f"{rate} {unit} a second of {kind} {name!r}")
        return longest

    def charge(self, party: Party, messages: int, byte_count: int, now_ms: int) -> None:
        """Count what an admitted request has sent or got."""
        for kind, name, unit, rate in self._limits(party):
            bucket = self._bucket(kind, name, unit, rate, now_ms)
            bucket.left -= messages if unit == "messages" else byte_count
            bucket.left = max(bucket.left, -float(rate * DEBT_S_MAX))

    def _limits(self, party: Party) -> Iterator[tuple[str, str, str, int]]:
        for kind, name, rates in zip(Party._fields, party, self._rates, strict=True):
            if not name:
                continue
            for unit, rate in zip(Rates._fields, rates, strict=True):
                if rate:
                    yield kind, name, unit, rate

    def _bucket(self, kind: str, name: str, unit: str, rate: int, now_ms: int) -> _Bucket:
        key = (kind, name, unit)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget_idle(now_ms)
            bucket = self._buckets[key] = _Bucket(float(rate), now_ms)
            return bucket
        passed_ms = now_ms - bucket.at_ms
        if passed_ms > 0:
            bucket.left = min(float(rate), bucket.left + rate * passed_ms / 1000)
            bucket.at_ms = now_ms
        return bucket

    def _forget_idle(self, now_ms: int) -> None:
        """Buckets that have not been asked for longest are full by now, or nearly so."""
        oldest = sorted(self._buckets, key=lambda key: self._buckets[key].at_ms)
        for key in oldest[: BUCKETS_MAX // 2]:
            del self._buckets[key]


class LogInLimit:
    """How many failed log-ins of one address are looked at: so many a second.

    A user that has signed rightly from an address goes on to be looked at there: a client that
    guesses behind the same address locks nobody else out.
    """

    def __init__(self, failures_per_s: int) -> None:
        self._failures = Quotas(QuotaRates(address=Rates(messages=failures_per_s)))
        self._known: dict[tuple[str, str], None] = {}

    def wait_ms(self, name: str, address: str, now_ms: int) -> int:
        """How long nothing is looked at that this user signs from this address; 0: now."""
        if (name, address) in self._known:
            return 0
        wait = self._failures.wait(Party("", "", address), now_ms)
        return 0 if wait is None else wait.ms

    def failed(self, address: str, now_ms: int) -> None:
        self._failures.charge(Party("", "", address), 1, 0, now_ms)

    def succeeded(self, name: str, address: str) -> None:
        if (name, address) not in self._known:
            if len(self._known) >= BUCKETS_MAX:
                self._known.clear()
            self._known[name, address] = None
