"""The relations of a query, and its rewriting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.sql_views import (
    Place,
    Relation,
    name_views,
    named_columns,
    parse_relation,
    rewrite,
    scanned_columns,
    statement,
    words,
)

_ORDERS = Relation(Place.TOPIC, "orders")
_ARCHIVED = Relation(Place.ARCHIVE, "orders")


def _rewritten(query: str, *relations: Relation) -> str:
    return rewrite(query, name_views(query, relations))


def test_a_topic_is_read_through_a_view_of_its_own_name() -> None:
    query = "select orders.tags from topic.orders"
    assert _rewritten(query, _ORDERS) == "select orders.tags from `orders`"


def test_a_column_may_be_qualified_by_place_and_topic() -> None:
    query = "select topic.orders.tags, archive.orders.tags from topic.orders, archive.orders"
    assert _rewritten(query, _ORDERS, _ARCHIVED) == (
        "select `topic_orders`.tags, `orders`.tags from `topic_orders`, `orders`"
    )


def test_a_name_that_the_query_uses_otherwise_is_left_unchanged() -> None:
    query = "with orders as (select * from topic.orders) select * from orders"
    assert _rewritten(query, _ORDERS) == (
        "with orders as (select * from `topic_orders`) select * from orders"
    )


def test_topics_that_differ_only_in_case_have_distinct_views() -> None:
    views = name_views("", [_ORDERS, Relation(Place.TOPIC, "Orders")])
    assert len({name.lower() for name in views.values()}) == 2


def test_a_view_never_has_a_name_of_the_session() -> None:
    taken = ["Orders", "topic_orders"]
    assert name_views("select 1", [_ORDERS], taken)[_ORDERS] == "topic_orders_2"


def test_quoted_names_with_signs_of_topics_are_found_and_quoted_again() -> None:
    dead = Relation(Place.TOPIC, "%DLQ%billing-1")
    assert _rewritten("from topic . `%DLQ%billing-1` d", dead) == "from `%DLQ%billing-1` d"


def test_strings_and_comments_are_left_alone() -> None:
    query = """select 'topic.orders', "topic.orders", r'\\' -- topic.orders
        /* topic.orders /* topic.orders */ topic.orders */ from TOPIC.orders where a = 'it\\'s'"""
    rewritten = _rewritten(query, _ORDERS)
    assert rewritten == query.replace("TOPIC.orders", "`orders`")


def test_a_column_of_an_alias_called_like_a_place_is_left_alone() -> None:
    query = "select topic.tags from topic.orders as topic"
    assert _rewritten(query, _ORDERS) == "select topic.tags from `orders` as topic"


def test_a_third_part_before_the_place_is_another_table() -> None:
    assert (
        _rewritten("select * from lake.topic.orders", _ORDERS) == "select * from lake.topic.orders"
    )


@given(st.text())
def test_every_text_is_split_into_words_at_their_positions(query: str) -> None:
    position = 0
    for word in words(query):
        assert position <= word.start < word.end <= len(query)
        position = word.end
    assert rewrite(query, {}) == query


@given(st.text(min_size=1).filter(lambda name: "\x00" not in name))
def test_any_topic_name_survives_quoting(topic: str) -> None:
    quoted = topic.replace("`", "``")
    relation = Relation(Place.STORE, topic)
    assert parse_relation(f"`store`.`{quoted}`") == relation
    assert rewrite(f"from store.`{quoted}`", {relation: topic}) == f"from `{quoted}`"


@pytest.mark.parametrize("name", ["`orders`", "`lake`.`orders`", "`a`.`topic`.`orders`"])
def test_other_tables_are_no_relations(name: str) -> None:
    assert parse_relation(name) is None


def test_the_semicolon_at_the_end_is_taken_off() -> None:
    assert statement("select ';' ; ; -- done") == "select ';' "


@pytest.mark.parametrize("query", ["", " ; ", "-- nothing", "/* nothing */"])
def test_an_empty_query_is_refused(query: str) -> None:
    with pytest.raises(OptionInvalid, match="the query is empty"):
        statement(query)


def test_columns_are_named_in_any_case_but_not_in_strings() -> None:
    known = ["msgId", "properties", "json"]
    assert named_columns("select MSGID, 'json', j.`properties`['a'] from t", known) == known[:2]


_PLAN = """\
== Physical Plan ==
+- BroadcastHashJoin [keys#2], [keys#28], LeftSemi, BuildRight, false, false
   :- FileScan parquet [tags#1,keys#2] Batched: true, DataFilters: [], Format: Parquet, \
Location: InMemoryFileIndex(1 paths)[file:/tmp/x/topic/orders], PartitionFilters: [], \
PushedFilters: [], ReadSchema: struct<tags:string,keys:string>
   :- FileScan parquet [properties#3] Batched: true, DataFilters: [], Format: Parquet, \
Location: InMemoryFileIndex(1 paths)[file:/tmp/x/topic/orders], PartitionFilters: [], \
PushedFilters: [], ReadSchema: struct<properties:map<string,string>,body:binary>
   +- FileScan parquet [] Batched: true, DataFilters: [], Format: Parquet, \
Location: InMemoryFileIndex(1 paths)[file:/tmp/x/store/logs], PartitionFilters: [], \
PushedFilters: [], ReadSchema: struct<>
"""


def test_the_columns_of_all_scans_of_a_view_are_needed() -> None:
    known = ["tags", "keys", "properties", "body", "flag"]
    assert scanned_columns(_PLAN, known) == {
        "orders": {"tags", "keys", "properties", "body"},
        "logs": set(),
    }
