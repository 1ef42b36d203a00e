"""The queues a pull consumer reads: given ones, or its share of topics, never both."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from contrail.errors import ClientError
from contrail.model.subscription import SubscriptionData
from contrail.protocol.json_style import MessageQueue


@dataclass(slots=True)
class Selection:
    """The application's choice; it may be made before the consumer is started."""

    group: str
    # None until ``assign`` or ``subscribe`` is called.
    is_assigned: bool | None = None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    queues: tuple[MessageQueue, ...] = ()

    def subscribe(self, subscription: SubscriptionData) -> None:
        """Raises ``ClientError`` after ``assign``."""
        self._choose(is_assigned=False)
        self.subscriptions[subscription.topic] = subscription

    def unsubscribe(self, topic: str) -> bool:
        return self.subscriptions.pop(topic, None) is not None

    def assign(
        self, queues: Collection[MessageQueue], subscriptions: Collection[SubscriptionData]
    ) -> None:
        """Raises ``ClientError`` after ``subscribe``, or when no queue is given."""
        if not queues:
            raise ClientError("assign() was given no queue: name one, or close the consumer")
        self._choose(is_assigned=True)
        self.queues = tuple(dict.fromkeys(queues))
        self.subscriptions = {entry.topic: entry for entry in subscriptions}

    def _choose(self, *, is_assigned: bool) -> None:
        if self.is_assigned not in (None, is_assigned):
            raise ClientError(
                f"pull consumer of group {self.group!r}: assign() and subscribe() exclude each "
                "other, and the other one was called before; use a second consumer with a group "
                "of its own"
            )
        self.is_assigned = is_assigned

    def require_chosen(self) -> None:
        if self.is_assigned is None:
            raise ClientError("there is nothing to read: call assign() or subscribe() first")

    @property
    def shared(self) -> dict[str, SubscriptionData]:
        """The topics whose queues are shared with the group."""
        return {} if self.is_assigned else self.subscriptions

    def subscription_of(self, topic: str) -> SubscriptionData:
        return self.subscriptions.get(topic) or SubscriptionData(topic)
