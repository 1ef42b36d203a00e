"""The options a producer takes and refuses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from contrail.client.compression import Compression
from contrail.client.options import ClientOptions, ProducerOptions
from contrail.client.producer import Producer
from contrail.client.producer_settings import ProducerSettings, split_settings
from contrail.errors import ClientClosed, ConfigError


def test_the_defaults_are_rocketmqs() -> None:
    settings = ProducerSettings()
    assert settings.send_timeout_ms == 3_000
    assert settings.retry_times_when_send_failed == 2
    assert settings.retry_times_when_send_async_failed == 2
    assert not settings.retry_another_broker_when_not_store_ok
    assert settings.max_message_size == 4 << 20
    assert settings.compress_msg_body_over_howmuch == 4096
    assert (settings.compression, settings.compress_level) == (Compression.ZLIB, 5)
    assert not settings.send_latency_fault_enable
    assert (settings.create_topic_key, settings.default_topic_queue_nums) == ("TBW102", 4)


@pytest.mark.parametrize(
    "given",
    [
        {"send_timeout_ms": 0},
        {"retry_times_when_send_failed": -1},
        {"in_flight_count_max": 0},
        {"in_flight_bytes_max": 0},
        {"max_message_size": 0},
        {"send_timeout_ms": "3"},
        {"send_timeout_ms": 3.0},
        {"retry_times_when_send_failed": True},
        {"send_latency_fault_enable": "yes"},
        {"create_topic_key": None},
    ],
)
def test_an_invalid_value_is_named(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ConfigError, match=name):
        ProducerSettings(**given)


def test_an_unknown_compression_is_refused() -> None:
    wrong: Any = "gzip"
    with pytest.raises(ConfigError, match="one of Compression"):
        ProducerSettings(compression=wrong)


def test_options_of_the_client_instance_are_left_for_it() -> None:
    settings, shared = split_settings({"send_timeout_ms": 5, "unit_name": "u"})
    assert settings.send_timeout_ms == 5
    assert shared == {"unit_name": "u"}


def test_type_checkers_know_the_same_names() -> None:
    own = set(ProducerOptions.__annotations__) - set(ClientOptions.__annotations__)
    assert own == {field.name for field in fields(ProducerSettings)}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"send_timeout": 5}, "send_timeout= is no setting: did you mean send_timeout_ms="),
        ({"instancename": "x"}, "did you mean instance_name="),
        ({"foo": 1}, "foo= is no setting: there are api_timeout_ms, client_ip"),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Producer("g", "127.0.0.1:9876", **given)


@pytest.mark.parametrize("group", ["", " ", None, 7])
def test_a_producer_without_a_group_is_asked_to_name_one(group: Any) -> None:
    with pytest.raises(ConfigError, match=rf"group={group!r}: name the producer's group"):
        Producer(group, "127.0.0.1:9876")


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 121, "DEFAULT_PRODUCER"])
def test_an_invalid_group_name_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="group"):
        Producer(group, "127.0.0.1:9876")


def test_a_producer_that_is_not_started_says_how_to() -> None:
    with pytest.raises(ClientClosed, match=r"start\(\)"):
        Producer("g", "127.0.0.1:9876").transaction(None)  # type: ignore[arg-type]
