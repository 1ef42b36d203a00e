"""A consumer's subscriptions: topics with their filters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from contrail.client.message import MessageQueue
from contrail.errors import ClientError, ConfigError
from contrail.model.shown import shown
from contrail.model.subscription import SQL92, TAG, SubscriptionData, parse_subscription
from contrail.model.topic import RETRY_PREFIX


@dataclass(frozen=True, slots=True)
class Sql92:
    """A subscription by properties, such as ``Sql92("price > 3 AND region = 'eu'")``.

    Brokers answer it with ``enablePropertyFilter=true`` only.
    """

    expression: str


def check_subscription(topic: object, expression: object) -> None:
    """Raises ``ConfigError`` without a topic, and for a filter that is neither tags nor SQL92."""
    if not isinstance(topic, str) or not topic:
        raise ConfigError(f"cannot subscribe to topic {shown(topic)}: give its name")
    text = expression.expression if isinstance(expression, Sql92) else expression
    if text is not None and not isinstance(text, str):
        raise ConfigError(
            f"cannot subscribe to topic {shown(topic)} with {shown(expression)}: give tags "
            "as text, such as "
            "'paid || refunded' ('*' for all), or an Sql92('price > 3')"
        )


class Subscriptions:
    """The subscriptions of one consumer, and that to its group's retries."""

    def __init__(self, group: str, *, with_retries: bool) -> None:
        self._by_topic: dict[str, SubscriptionData] = {}
        self._own_topics: set[str] = set()
        if with_retries:
            self._by_topic[RETRY_PREFIX + group] = SubscriptionData(RETRY_PREFIX + group)
            self._own_topics.add(RETRY_PREFIX + group)

    def put(self, topic: str, expression: str | Sql92 | None, now_ms: int) -> SubscriptionData:
        """Subscribe, or change a subscription; brokers take the one with the newest version.

        Raises:
            ConfigError: the topic or the expression is invalid.
        """
        check_subscription(topic, expression)
        is_sql = isinstance(expression, Sql92)
        text = expression.expression if isinstance(expression, Sql92) else expression
        known = self._by_topic.get(topic)
        version = max(now_ms, known.sub_version + 1 if known is not None else 0)
        subscription = parse_subscription(
            topic, text, SQL92 if is_sql else TAG, sub_version=version
        )
        self._by_topic[topic] = subscription
        return subscription

    def remove(self, topic: str) -> None:
        if topic in self._own_topics:
            raise ConfigError(f"topic {shown(topic)} holds this group's own retries: it stays")
        self._by_topic.pop(topic, None)

    def of(self, topic: str) -> SubscriptionData | None:
        return self._by_topic.get(topic)

    def topics(self) -> Collection[str]:
        return list(self._by_topic)

    def user_topics(self) -> list[str]:
        return [topic for topic in self._by_topic if topic not in self._own_topics]

    def all(self) -> tuple[SubscriptionData, ...]:
        return tuple(self._by_topic.values())

    def require(self, queue: MessageQueue) -> SubscriptionData:
        """Raises ``ClientError`` for a queue of a topic that was unsubscribed meanwhile."""
        subscription = self._by_topic.get(queue.topic)
        if subscription is None:
            raise ClientError(f"topic {queue.topic!r} is not subscribed any more")
        return subscription
