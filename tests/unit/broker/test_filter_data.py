"""The table of SQL expressions: which one counts, when one is dead, and when it is removed."""

from __future__ import annotations

from collections.abc import Mapping

from contrail.broker.state.filter_data import REMOVED_AFTER_MS, FilterTable, StoredFilter
from contrail.errors import FilterInvalid
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.store.config_files import ConsumerFilter

DAY_MS = 24 * 3600 * 1000


class _Compiled:
    sieve = None

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self.text in properties


def _compile(text: str) -> _Compiled:
    if text == "bad":
        raise FilterInvalid("it is bad")
    return _Compiled(text)


def _sql(text: str, version: int, topic: str = "orders", kind: str = SQL92) -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type=kind)


def _table() -> FilterTable:
    return FilterTable(_compile)


def test_an_sql_subscription_is_compiled_and_a_tag_subscription_is_not() -> None:
    table = _table()
    assert table.register("g", [_sql("a", 1), SubscriptionData("bills", "TagA")], 100) == []
    found = table.get("orders", "g")
    assert found is not None
    assert (found.expression, found.version, found.born_ms) == ("a", 1, 100)
    assert found.sql is not None
    assert found.sql.matches({"a": "1"})
    assert table.get("bills", "g") is None
    assert table.get("orders", "h") is None
    assert table.changed


def test_only_a_newer_expression_replaces_an_old_one() -> None:
    table = _table()
    table.register("g", [_sql("a", 5)], 100)
    for version in (4, 5):
        table.register("g", [_sql("b", version)], 200)
        found = table.get("orders", "g")
        assert found is not None
        assert found.expression == "a"
    table.register("g", [_sql("b", 6)], 300)
    found = table.get("orders", "g")
    assert found is not None
    assert (found.expression, found.version, found.born_ms) == ("b", 6, 300)


def test_the_same_expression_with_a_newer_version_keeps_its_birth() -> None:
    table = _table()
    table.register("g", [_sql("a", 5)], 100)
    table.register("g", [_sql("a", 6)], 200)
    found = table.get("orders", "g")
    assert found is not None
    assert (found.version, found.born_ms) == (6, 100)


def test_an_expression_that_does_not_compile_is_reported_and_removes_the_old_one() -> None:
    table = _table()
    table.register("g", [_sql("a", 5)], 100)
    (refusal,) = table.register("g", [_sql("bad", 6)], 200)
    assert refusal == ("orders", "bad", "it is bad")
    assert table.get("orders", "g") is None


def test_an_unknown_expression_type_is_reported() -> None:
    table = _table()
    (refusal,) = table.register("g", [_sql("a", 1, kind="XPATH")], 100)
    assert "'XPATH' is unknown" in refusal.reason
    assert table.get("orders", "g") is None


def test_a_topic_that_is_no_longer_subscribed_is_dead_and_comes_back_with_its_version() -> None:
    table = _table()
    table.register("g", [_sql("a", 1)], 100)
    table.register("g", [], 200)
    found = table.get("orders", "g")
    assert found is not None
    assert found.is_dead
    table.register("g", [_sql("a", 1)], 300)
    found = table.get("orders", "g")
    assert found is not None
    assert not found.is_dead


def test_a_group_that_left_is_removed_after_a_day() -> None:
    table = _table()
    table.register("g", [_sql("a", 1)], 100)
    table.register("h", [_sql("a", 1)], 100)
    table.unregister("g", 200)
    assert table.expire(200 + DAY_MS - 1) == []
    assert [entry.group for entry in table.expire(200 + DAY_MS)] == ["g"]
    assert [entry.group for entry in table.of_topic("orders")] == ["h"]


def test_death_keeps_its_first_time() -> None:
    table = _table()
    table.register("g", [_sql("a", 1)], 100)
    table.unregister("g", 200)
    table.unregister("g", 300)
    found = table.get("orders", "g")
    assert found is not None
    assert found.dead_ms == 200


def test_loaded_expressions_count_as_dead_until_their_group_returns() -> None:
    stored: list[StoredFilter] = [
        ConsumerFilter("orders", "g", "a", born_time_ms=100, client_version=5),
        ConsumerFilter("orders", "late", "a", born_time_ms=999_990, client_version=5),
        ConsumerFilter("bills", "g", "bad", born_time_ms=100, dead_time_ms=150, client_version=5),
    ]
    table = _table()
    table.load(stored, 1_000_000, unknown={"more": 1})
    assert not table.changed
    assert {(e.topic, e.group): e.dead_ms for e in table.snapshot()} == {
        ("orders", "g"): 970_000,
        ("orders", "late"): 999_990,
        ("bills", "g"): 150,
    }
    broken = table.get("bills", "g")
    assert broken is not None
    assert broken.sql is None
    assert table.unknown == {"more": 1}
    table.register("g", [_sql("a", 5)], 1_000_100)
    found = table.get("orders", "g")
    assert found is not None
    assert found.is_alive(1_000_100)
    assert not found.is_dead


def test_a_groups_expressions_are_found_without_those_of_others() -> None:
    table = _table()
    table.register("g", [_sql("a", 1), _sql("a", 1, topic="bills")], 10)
    table.register("h", [_sql("a", 1)], 10)
    assert [entry.topic for entry in table.of_group("g")] == ["bills", "orders"]
    table.unregister("g", 20)
    table.expire(20 + REMOVED_AFTER_MS)
    assert table.of_group("g") == []
    assert [entry.group for entry in table.snapshot()] == ["h"]
