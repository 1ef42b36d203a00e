"""Decides how far the log counts as replicated, and which slaves are in sync.

Under ``SYNC_MASTER`` a send is acknowledged when ``inSyncReplicas`` brokers have it, the master
among them. ``enableAutoInSyncReplicas`` asks for fewer while fewer are in sync, down to
``minInSyncReplicas``. The acknowledged position never moves back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_LIMIT = (1 << 63) - 1
"""A position that holds no answer back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncRules:
    """``is_synchronous`` is SYNC_MASTER; the others are Apache's settings of the same name."""

    is_synchronous: bool = False
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    is_automatic: bool = False
    gap_bytes_max: int = 256 << 20


class InSync:
    """Follows the acknowledgements of all slaves that receive the log."""

    def __init__(self, rules: InSyncRules) -> None:
        self._rules = rules
        self._reached = 0
        # The same at every moment, unless it goes by the slaves that are in sync.
        self._needed = None if rules.is_automatic else rules.in_sync_replicas
        if not rules.is_synchronous:
            self._needed = 1

    def is_in_sync(self, acknowledged_end: int, physical_end: int) -> bool:
        """Whether a slave is close enough to the log's end to count."""
        return physical_end - acknowledged_end < self._rules.gap_bytes_max

    def in_sync_count(self, acknowledged_ends: Sequence[int], physical_end: int) -> int:
        """How many brokers are in sync, the master included."""
        return 1 + sum(self.is_in_sync(end, physical_end) for end in acknowledged_ends)

    def needed_count(self, acknowledged_ends: Sequence[int], physical_end: int) -> int:
        """How many brokers must have a record before its send is acknowledged."""
        if self._needed is not None:
            return self._needed
        rules = self._rules
        in_sync = self.in_sync_count(acknowledged_ends, physical_end)
        return max(min(rules.in_sync_replicas, in_sync), rules.min_in_sync_replicas)

    def is_enough(self, acknowledged_ends: Sequence[int], physical_end: int) -> bool:
        """Whether as many brokers are in sync as a send needs: the check before it is stored."""
        needed = self.needed_count(acknowledged_ends, physical_end)
        return self.in_sync_count(acknowledged_ends, physical_end) >= needed

    def replicated_end(self, acknowledged_ends: Sequence[int], physical_end: int) -> int:
        """Up to it enough brokers have the log; ``NO_LIMIT`` if the master alone is enough."""
        needed = self.needed_count(acknowledged_ends, physical_end)
        if needed <= 1:
            # A send of this moment is acknowledged by the master alone, for good.
            self._reached = max(self._reached, physical_end)
            return NO_LIMIT
        others = needed - 1
        if len(acknowledged_ends) >= others:
            reached = sorted(acknowledged_ends)[-others] if others > 1 else max(acknowledged_ends)
            self._reached = max(self._reached, reached)
        return self._reached
