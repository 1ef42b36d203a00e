"""Topic and group names, delay levels, queue ids and data versions."""

from __future__ import annotations

import pytest

from contrail.errors import ConfigError, TopicMissing, TopicNameIllegal, TopicTooLong
from contrail.model.data_version import DataVersion
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.fastjson import Fields
from contrail.model.group import (
    BUILT_IN_GROUPS,
    EXPONENTIAL,
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    check_group_name,
    is_system_group,
)
from contrail.model.topic import (
    SEND_FORBIDDEN_TOPICS,
    SYSTEM_TOPICS,
    Perm,
    QueueType,
    TopicConfig,
    check_topic_folder,
    check_topic_name,
    dlq_topic,
    is_system_topic,
    retry_topic,
)


@pytest.mark.parametrize("topic", ["a", "Az09%|_-", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%g"])
def test_a_name_of_allowed_characters_and_length_is_taken(topic: str) -> None:
    check_topic_name(topic)
    check_topic_folder(topic)


@pytest.mark.parametrize("topic", ["a.b", "a/b", "..", "a b", "tópic", "a\n", "a\x00"])
def test_a_topic_with_another_character_is_refused(topic: str) -> None:
    with pytest.raises(TopicNameIllegal):
        check_topic_name(topic)


@pytest.mark.parametrize("topic", ["", "  "])
def test_a_blank_topic_is_refused(topic: str) -> None:
    with pytest.raises(TopicMissing):
        check_topic_name(topic)


@pytest.mark.parametrize("topic", ["t" * 128, "%RETRY%" + "g" * 249, "%DLQ%" + "g" * 251])
def test_a_topic_that_is_too_long_is_refused_with_its_limit(topic: str) -> None:
    with pytest.raises(TopicTooLong, match=r"at most (127|255)$"):
        check_topic_name(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "../x", "a/b", "a\x00b", "é" * 128])
def test_a_topic_that_would_leave_the_store_folder_is_refused(topic: str) -> None:
    with pytest.raises(TopicNameIllegal):
        check_topic_folder(topic)


def test_the_brokers_own_names_may_be_folders() -> None:
    check_topic_folder("%RETRY%group+topic")


def test_system_topics_are_known_by_name_or_prefix() -> None:
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
    assert SEND_FORBIDDEN_TOPICS < SYSTEM_TOPICS
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_permission_bits_and_queue_type_are_read_from_the_settings() -> None:
    topic = TopicConfig("t", perm=Perm.WRITE, attributes={"queue.type": "BatchCQ"})
    assert (topic.readable, topic.writable) == (False, True)
    assert topic.queue_type is QueueType.BATCH
    assert TopicConfig("t").queue_type is QueueType.SIMPLE
    assert (TopicConfig("t").readable, TopicConfig("t").writable) == (True, True)


@pytest.mark.parametrize("group", ["", " ", "a.b", "g" * 121])
def test_a_group_name_that_is_not_allowed_is_refused(group: str) -> None:
    with pytest.raises(ConfigError):
        check_group_name(group)


def test_built_in_groups_have_allowed_names() -> None:
    for group in BUILT_IN_GROUPS:
        check_group_name(group)
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("TOOLS_CONSUMER")


def test_retries_begin_with_delay_level_three_and_stop_growing_at_the_last() -> None:
    policy = GroupRetryPolicy()
    assert [policy.delay_ms(times) for times in (-1, 0, 1, 15, 99)] == [
        10_000,
        10_000,
        30_000,
        7_200_000,
        7_200_000,
    ]
    assert GroupRetryPolicy(customized=CustomizedRetry((1,))).delay_ms(5) == 1


def test_exponential_retries_double_up_to_their_maximum() -> None:
    policy = GroupRetryPolicy(EXPONENTIAL, exponential=ExponentialRetry())
    assert [policy.delay_ms(times) for times in (-1, 0, 1, 2, 1000)] == [
        5_000,
        5_000,
        10_000,
        20_000,
        7_200_000,
    ]
    assert GroupRetryPolicy(EXPONENTIAL).delay_ms(0) == 10_000


def test_delay_levels_start_at_index_one() -> None:
    levels = parse_delay_levels(DEFAULT_DELAY_LEVELS)
    assert len(levels) == 19
    assert (levels[1], levels[5], levels[18]) == (1_000, 60_000, 7_200_000)
    assert parse_delay_levels(" 2d\t3h ") == [0, 172_800_000, 10_800_000]


@pytest.mark.parametrize("piece", ["5", "s", "5x", "-5s", "5.5s", "5S", "9999999999999999s", "٣s"])
def test_a_bad_delay_level_is_named(piece: str) -> None:
    with pytest.raises(ConfigError, match=f"level 2 is '{piece}'"):
        parse_delay_levels(f"1s {piece} 3s")


def test_no_delay_level_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        parse_delay_levels("  ")


def test_versions_are_ordered_by_epoch_then_counter_then_time() -> None:
    version = DataVersion(state_version=1, counter=5, timestamp_ms=100)
    assert version < DataVersion(2, 0, 0)
    assert version < DataVersion(1, 6, 0)
    assert version < DataVersion(1, 5, 101)
    assert version == DataVersion.from_fields(
        Fields({"stateVersion": 1, "counter": 5, "timestamp": 100}, "dataVersion")
    )
    assert version.bump(90, state_version=1) == DataVersion(1, 6, 90)
    assert version.bump(90, state_version=1) > version


def test_a_change_keeps_the_epoch_that_name_servers_fence_by() -> None:
    version = DataVersion(state_version=7, counter=5, timestamp_ms=100)
    assert version.bump(90) == DataVersion(7, 6, 90)
    assert version.bump(90, state_version=8) == DataVersion(8, 6, 90)
