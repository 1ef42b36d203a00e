"""What this process knows of its own transactions when a broker asks about one."""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

REMEMBERED_COUNT_MAX = 10_000

CheckT = TypeVar("CheckT")


class TransactionState(IntEnum):
    """What is to become of a half message; the numbers are the protocol's."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class LocalTransactions(Generic[CheckT]):
    """The transactions that run here, and how the latest ones ended.

    A broker asks when the word of the end was lost or has not come yet. What ended here is
    answered from memory, so the same is said as the first time; what still runs is unknown.
    """

    def __init__(self, remembered_count_max: int = REMEMBERED_COUNT_MAX) -> None:
        self._remembered_count_max = remembered_count_max
        self._running: set[str] = set()
        self._ended: dict[str, TransactionState] = {}
        # How to find out about those that were left unknown.
        self._checks: dict[str, CheckT] = {}

    def begin(self, transaction_id: str) -> None:
        self._running.add(transaction_id)

    def end(
        self, transaction_id: str, state: TransactionState, check: CheckT | None = None
    ) -> None:
        """It no longer runs here; ``check`` is kept for what is left unknown."""
        self._running.discard(transaction_id)
        self._checks.pop(transaction_id, None)
        if state is not TransactionState.UNKNOWN:
            self._ended[transaction_id] = state
            _forget_oldest(self._ended, self._remembered_count_max)
        elif check is not None:
            self._checks[transaction_id] = check
            _forget_oldest(self._checks, self._remembered_count_max)

    def standing(self, transaction_id: str) -> TransactionState | None:
        """What a broker is to be told, or None when somebody must be asked first."""
        if transaction_id in self._running:
            return TransactionState.UNKNOWN
        return self._ended.get(transaction_id)

    def check_of(self, transaction_id: str) -> CheckT | None:
        return self._checks.get(transaction_id)


def _forget_oldest(table: dict[str, CheckT], count_max: int) -> None:
    while len(table) > count_max:
        del table[next(iter(table))]
