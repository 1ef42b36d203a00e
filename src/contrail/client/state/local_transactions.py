"""The transactions of this process, for the checks of brokers."""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

REMEMBERED_COUNT_MAX = 10_000

CheckT = TypeVar("CheckT")


class TransactionState(IntEnum):
    """The decision about a half message; the numbers are the protocol's."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class LocalTransactions(Generic[CheckT]):
    """The transactions that run here, and how the latest ones ended.

    A broker checks when the end of a transaction was lost or has not come yet. A transaction that
    ended here is answered from memory, with the same decision as before; one that still runs is
    unknown.
    """

    def __init__(self, remembered_count_max: int = REMEMBERED_COUNT_MAX) -> None:
        self._remembered_count_max = remembered_count_max
        self._running: set[str] = set()
        self._ended: dict[str, TransactionState] = {}
        # Check functions of transactions that were left unknown.
        self._checks: dict[str, CheckT] = {}

    def begin(self, transaction_id: str) -> None:
        self._running.add(transaction_id)

    def end(
        self, transaction_id: str, state: TransactionState, check: CheckT | None = None
    ) -> None:
        """The transaction ended; ``check`` is kept if it was left unknown."""
        self._running.discard(transaction_id)
        self._checks.pop(transaction_id, None)
        if state is not TransactionState.UNKNOWN:
            self._ended[transaction_id] = state
            _forget_oldest(self._ended, self._remembered_count_max)
        elif check is not None:
            self._checks[transaction_id] = check
            _forget_oldest(self._checks, self._remembered_count_max)

    def standing(self, transaction_id: str) -> TransactionState | None:
        """The answer to a broker's check, or None when a check function must be called first."""
        if transaction_id in self._running:
            return TransactionState.UNKNOWN
        return self._ended.get(transaction_id)

    def check_of(self, transaction_id: str) -> CheckT | None:
        return self._checks.get(transaction_id)


def _forget_oldest(table: dict[str, CheckT], count_max: int) -> None:
    while len(table) > count_max:
        del table[next(iter(table))]
