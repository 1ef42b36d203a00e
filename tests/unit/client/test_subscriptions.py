"""A consumer's subscriptions."""

from __future__ import annotations

import pytest

from contrail.client.message import MessageQueue
from contrail.client.subscriptions import Sql92, Subscriptions
from contrail.errors import ClientError, ConfigError


def test_a_clustering_group_is_subscribed_to_its_retry_topic() -> None:
    shared = Subscriptions("g", with_retries=True)
    shared.put("orders", "a || b", 5)
    assert sorted(shared.topics()) == ["%RETRY%g", "orders"]
    assert shared.user_topics() == ["orders"]
    assert shared.require(MessageQueue("orders", "b", 0)).tags == {"a", "b"}
    assert Subscriptions("g", with_retries=False).topics() == []


def test_a_changed_subscription_is_newer_even_when_the_clock_stands_still() -> None:
    subscriptions = Subscriptions("g", with_retries=False)
    first = subscriptions.put("orders", "a", 5)
    assert subscriptions.put("orders", Sql92("x > 1"), 5).sub_version > first.sub_version
    assert subscriptions.all()[0].expression_type == "SQL92"


def test_invalid_subscriptions_are_refused() -> None:
    subscriptions = Subscriptions("g", with_retries=True)
    with pytest.raises(ConfigError, match="names no tag"):
        subscriptions.put("orders", "||", 0)
    with pytest.raises(ConfigError, match="topic ''"):
        subscriptions.put("", "*", 0)
    for expression in (5, Sql92(5)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"'orders'.*give tags as text.*Sql92"):
            subscriptions.put("orders", expression, 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stays"):
        subscriptions.remove("%RETRY%g")
    with pytest.raises(ClientError, match="not subscribed"):
        subscriptions.require(MessageQueue("orders", "b", 0))
