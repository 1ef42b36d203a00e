"""Plans that wait for a person's yes: for ten minutes, for the account that made them, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")

PLAN_LIFE_MS = 600_000
PLANS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class KeptPlan(Generic[C]):
    """A change and the steps that its account has seen."""

    account: str
    change: C
    steps: Sequence[str]
    expires_ms: int


class Plans(Generic[C]):
    """All plans; the oldest makes room for a new one."""

    def __init__(self) -> None:
        self._plans: dict[str, KeptPlan[C]] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def add(
        self, plan_id: str, account: str, change: C, steps: Sequence[str], now_ms: int
    ) -> KeptPlan[C]:
        """``plan_id`` is a random text of the caller's."""
        self.expire(now_ms)
        while len(self._plans) >= PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        kept = KeptPlan(account, change, tuple(steps), now_ms + PLAN_LIFE_MS)
        self._plans[plan_id] = kept
        return kept

    def take(self, plan_id: str, account: str, now_ms: int) -> KeptPlan[C] | None:
        """The plan, used up by this; None for one that is over or another account's."""
        self.expire(now_ms)
        found = self._plans.get(plan_id)
        if found is None or found.account != account:
            return None
        return self._plans.pop(plan_id)

    def expire(self, now_ms: int) -> None:
        for plan_id in [key for key, one in self._plans.items() if now_ms >= one.expires_ms]:
            del self._plans[plan_id]
