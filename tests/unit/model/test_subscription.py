"""Subscriptions: parsed from expressions, and read from the fields that other clients write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import ConfigError
from contrail.model.fastjson import FastJsonError, Fields
from contrail.model.subscription import SQL92, SubscriptionData, parse_subscription


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_and_a_star_take_everything(expression: str | None) -> None:
    subscription = parse_subscription("orders", expression)
    assert subscription == SubscriptionData("orders", "*")
    assert subscription.takes_all


def test_tags_are_split_trimmed_and_hashed_as_java_does() -> None:
    subscription = parse_subscription("orders", " TagA ||TagB||", sub_version=7)
    assert subscription.sub_string == " TagA ||TagB||"
    assert subscription.tags == {"TagA", "TagB"}
    assert subscription.codes == {2598919, 2598920}
    assert subscription.sub_version == 7
    assert not subscription.takes_all


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_separators_alone_are_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match="names no tag"):
        parse_subscription("orders", expression)


def test_blank_pieces_match_nothing_as_in_rocketmq() -> None:
    subscription = parse_subscription("orders", " || ")
    assert (subscription.tags, subscription.codes) == (frozenset(), frozenset())
    assert not subscription.takes_all


def test_an_sql_expression_is_kept_as_it_is() -> None:
    subscription = parse_subscription("orders", "a > 5", SQL92)
    assert subscription == SubscriptionData("orders", "a > 5", expression_type=SQL92)
    assert not subscription.by_tag
    with pytest.raises(ConfigError, match="is empty"):
        parse_subscription("orders", "", SQL92)


@pytest.mark.parametrize("expression_type", ["", "TAG", None])
def test_no_expression_type_means_tags(expression_type: str | None) -> None:
    assert parse_subscription("orders", "a", expression_type).by_tag
    assert SubscriptionData("orders", expression_type=expression_type or "").by_tag


def test_numbers_written_as_text_are_read_as_the_cpp_and_go_clients_write_them() -> None:
    fields = Fields(
        {
            "topic": "orders",
            "subString": "TagA",
            "tagsSet": ["TagA"],
            "codeSet": ["2598919", 4294967295],
            "subVersion": "1700000000123",
        },
        "a subscription",
    )
    subscription = SubscriptionData.from_fields(fields)
    assert subscription.codes == {2598919, -1}
    assert subscription.sub_version == 1700000000123
    assert subscription.expression_type == "TAG"


def test_a_missing_version_is_the_given_default() -> None:
    fields = Fields({"topic": "orders", "subString": "*"}, "a subscription")
    assert SubscriptionData.from_fields(fields, version_default=99).sub_version == 99


def test_a_tag_that_is_no_text_is_refused() -> None:
    with pytest.raises(FastJsonError, match="a tag must be text"):
        SubscriptionData.from_fields(Fields({"tagsSet": [5]}, "a subscription"))


@given(
    st.builds(
        SubscriptionData,
        topic=st.text(),
        sub_string=st.text(),
        tags=st.frozensets(st.text()),
        codes=st.frozensets(st.integers(-(2**31), 2**31 - 1)),
        sub_version=st.integers(-(2**63), 2**63 - 1),
        expression_type=st.sampled_from(["TAG", "SQL92", "OTHER"]),
        class_filter_mode=st.booleans(),
    )
)
def test_a_subscription_survives_its_fields(subscription: SubscriptionData) -> None:
    fields = Fields(subscription.to_fields(), "a subscription")  # type: ignore[arg-type]
    assert SubscriptionData.from_fields(fields) == subscription
