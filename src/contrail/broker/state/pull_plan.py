"""What a pull asks for, once every check has passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from contrail.model.property_sieve import PropertySieve
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX

FLAG_COMMIT = 0x1
FLAG_SUSPEND = 0x2
FLAG_SUBSCRIPTION = 0x4
FLAG_CLASS_FILTER = 0x8


class PropertyFilter(Protocol):
    """Decides by a message's properties; two of the same text decide alike."""

    @property
    def text(self) -> str: ...

    # The same filter for who reads stored properties; None where that does not pay.
    @property
    def sieve(self) -> PropertySieve | None: ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...


class PullPlan(NamedTuple):
    """A pull that may be served."""

    group: str
    topic_name: str
    topic: bytes
    queue_id: int
    queue_offset: int
    count_max: int
    sys_flag: int
    # None: every message. Otherwise the hash codes of the tags wanted.
    tag_codes: frozenset[int] | None
    property_filter: PropertyFilter | None
    topic_sys_flag: int
    group_sys_flag: int
    # The subscription that came with the pull itself.
    given: SubscriptionData | None = None
    # Of one who reads long stretches: the limit of bytes alone counts.
    is_bulk: bool = False

    def count_limit(self, in_memory_max: int) -> int:
        """How many messages an answer may have, by what the broker's settings allow."""
        return max(1, min(self.count_max, BULK_COUNT_MAX if self.is_bulk else in_memory_max))
