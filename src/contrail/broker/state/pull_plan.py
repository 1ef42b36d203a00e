"""The plan of a pull, once every check has passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from contrail.model.property_sieve import PropertySieve
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.routes import MASTER_ID
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX

FLAG_COMMIT = 0x1
FLAG_SUSPEND = 0x2
FLAG_SUBSCRIPTION = 0x4
FLAG_CLASS_FILTER = 0x8


class PropertyFilter(Protocol):
    """Decides by a message's properties; two filters of the same text decide alike."""

    @property
    def text(self) -> str: ...

    # The same filter for readers of stored properties; None where that does not pay.
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
    # For a consumer that reads long stretches: only the limit of bytes counts.
    is_bulk: bool = False
    # The id of the broker of this name that the client should pull from next.
    suggested_broker_id: int = MASTER_ID

    @property
    def commits(self) -> bool:
        """Whether the consumer offset that the pull carries is committed, if it carries one."""
        return bool(self.sys_flag & FLAG_COMMIT)

    @property
    def may_wait(self) -> bool:
        """Whether the pull may be held while there is nothing to hand out."""
        return bool(self.sys_flag & FLAG_SUSPEND)

    def count_limit(self, in_memory_max: int) -> int:
        """How many messages an answer may have, by the broker's settings."""
        return max(1, min(self.count_max, BULK_COUNT_MAX if self.is_bulk else in_memory_max))
