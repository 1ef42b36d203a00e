"""A look at a cluster: one request to each broker, tables of those that know no such request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from contrail.client.admin import Admin
from contrail.client.admin_values import BrokerAddress, GroupLag
from contrail.errors import BrokerRefused, ClientError, SomeFailed
from contrail.insight.looks import look
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.figures import Figures


class FakeAdmin:
    """Three masters and a slave; ``told`` are their figures, an error, or None for Apache's."""

    def __init__(self, told: dict[str, Figures | ClientError | None]) -> None:
        self._told = told
        self.asked: list[str] = []
        self.fails = False

    async def brokers(self, *, cluster: str | None = None) -> list[BrokerAddress]:
        masters = [BrokerAddress("C", name, 0, f"{name}:1") for name in self._told]
        return [*masters, BrokerAddress("C", "a", 1, "a:2")]

    async def figures(self, *, cluster: str | None = None) -> dict[str, Figures | None]:
        self.asked.append("figures")
        failures = {name: one for name, one in self._told.items() if isinstance(one, ClientError)}
        known = {name: one for name, one in self._told.items() if not isinstance(one, ClientError)}
        if len(failures) == len(self._told):
            raise next(iter(failures.values()))
        if failures:
            raise SomeFailed("some", failures=failures, partial=known)
        return known

    async def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        self.asked.append(f"topics {broker}")
        if self.fails:
            raise ClientError("gone meanwhile")
        return {"orders": TopicConfig("orders", 1, 1)}

    async def group_configs(self, *, broker: str) -> dict[str, dict[str, Any]]:
        self.asked.append(f"groups {broker}")
        return {broker: {"billing": SubscriptionGroupConfig("billing")}}

    async def lags(self, *, broker: str) -> dict[str, GroupLag]:
        self.asked.append(f"lags {broker}")
        return {"billing": GroupLag("billing", (), 0)}


def looked(admin: FakeAdmin) -> Any:
    return asyncio.run(look(cast(Admin, admin)))


@pytest.mark.proves("console.facts.lists")
def test_one_request_to_each_broker_is_enough() -> None:
    admin = FakeAdmin({"a": Figures(broker_name="a"), "b": Figures(broker_name="b")})
    seen = looked(admin)
    assert admin.asked == ["figures"]
    assert list(seen.figures) == ["a", "b"] and seen.knows_members and not seen.failed


@pytest.mark.proves("console.facts.missing")
def test_a_broker_that_does_not_answer_is_named() -> None:
    refused = BrokerRefused("busy", code=2, remark=None)
    seen = looked(FakeAdmin({"a": Figures(broker_name="a"), "b": refused}))
    assert list(seen.figures) == ["a"] and seen.failed == {"b": refused}
    everywhere = looked(FakeAdmin({"a": refused, "b": refused}))
    assert not everywhere.figures and list(everywhere.failed) == ["a", "b"]


def test_brokers_without_the_request_are_asked_for_their_tables() -> None:
    admin = FakeAdmin({"a": None, "b": Figures(broker_name="b")})
    seen = looked(admin)
    assert admin.asked == ["figures", "topics a:1", "groups a:1", "lags a:1"]
    assert list(seen.figures) == ["a", "b"], "in the order of the brokers"
    assert seen.figures["a"].topics == ["orders"] and seen.figures["a"].groups == ["billing"]
    assert seen.tables_only == {"a"} and not seen.knows_members
    admin.fails = True
    seen = looked(admin)
    assert list(seen.figures) == ["b"] and str(seen.failed["a"]) == "gone meanwhile"
    assert seen.knows_members, "a broker that did not answer hides no members of the others"
