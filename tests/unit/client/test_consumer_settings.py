"""Settings of a push consumer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest

from contrail.client.consumer_settings import (
    RETRIES_MAX,
    RETRIES_WITHOUT_END,
    ConsumerSettings,
    check_consumer_group,
    split_settings,
)
from contrail.client.options import ModelName, PushOptions, StartName, StrategyName
from contrail.client.pull_settings import PullSettings, split_pull_settings
from contrail.client.settings import ClientSettings
from contrail.client.start_places import parse_consume_from_where
from contrail.client.state.allocation import strategy_named
from contrail.errors import ConfigError
from contrail.protocol.bodies.heartbeat import MessageModel


def test_settings_of_the_client_are_left_for_it() -> None:
    own, shared = split_settings(ConsumerSettings, {"orderly": True, "instance_name": "x"})
    assert own.orderly
    assert shared == {"instance_name": "x"}


def test_every_option_ends_in_a_setting() -> None:
    known = {*ConsumerSettings.__slots__, *ClientSettings.__slots__}
    assert set(PushOptions.__annotations__) <= known


@pytest.mark.proves("client.consumers.progress")
def test_progress_is_written_every_five_seconds_by_default() -> None:
    assert ConsumerSettings().persist_consumer_offset_interval_ms == 5_000
    assert PullSettings().auto_commit_interval_ms == 5_000


def test_how_often_a_message_is_retried_depends_on_order() -> None:
    assert ConsumerSettings().retries_max == RETRIES_MAX
    assert ConsumerSettings(orderly=True).retries_max == RETRIES_WITHOUT_END
    assert ConsumerSettings(orderly=True, max_reconsume_times=2).retries_max == 2


def test_order_needs_no_bound_of_the_span() -> None:
    assert ConsumerSettings().flow_limits.span_max == 2_000
    assert ConsumerSettings(orderly=True).flow_limits.span_max is None


def test_the_model_may_be_written_small() -> None:
    assert ConsumerSettings(message_model="broadcasting").model is MessageModel.BROADCASTING


@pytest.mark.parametrize(
    "given", [{"pull_batch_size": 0}, {"pull_batch_size": 2_000}, {"max_reconsume_times": -2}]
)
def test_an_invalid_value_is_named(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        ConsumerSettings(**given)  # type: ignore[arg-type]


def test_a_group_has_a_name_of_its_own() -> None:
    for name in ("DEFAULT_CONSUMER", "", "a b"):
        with pytest.raises(ConfigError):
            check_consumer_group(name)


@pytest.mark.parametrize("split", [partial(split_settings, ConsumerSettings), split_pull_settings])
def test_an_unknown_option_or_one_of_another_type_is_refused_with_the_fix(
    split: Callable[[dict[str, Any]], object],
) -> None:
    with pytest.raises(ConfigError, match=r"pull_batch_sise= .*mean pull_batch_size="):
        split({"pull_batch_sise": 5})
    with pytest.raises(ConfigError, match="pull_batch_size='5': give a whole number"):
        split({"pull_batch_size": "5"})
    with pytest.raises(ConfigError, match="rebalance_interval_ms=0: it must be 1 or more"):
        split({"rebalance_interval_ms": 0})


def test_the_time_for_a_message_may_be_a_part_of_a_minute() -> None:
    assert ConsumerSettings(consume_timeout_minutes=0.5).consume_timeout_minutes == 0.5
    for wrong in ("15", -1, float("nan")):
        with pytest.raises(ConfigError, match=r"consume_timeout_minutes=.*give a number"):
            ConsumerSettings(consume_timeout_minutes=wrong)  # type: ignore[arg-type]


@pytest.mark.proves("cli.small-rules.client-errors")
def test_the_names_that_editors_offer_are_the_names_that_are_taken() -> None:
    for name in get_args(StartName):
        assert parse_consume_from_where(name)
    for name in get_args(StrategyName):
        assert strategy_named(name).name == name
    assert set(get_args(ModelName)) == {model.value for model in MessageModel}
