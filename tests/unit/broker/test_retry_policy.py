"""When a message is tried again, when it is given up, and what its copy says of the original."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.retry_policy import (
    belongs_to_other_group,
    is_given_up,
    is_hidden,
    plan_retry,
    reconsume_count_max,
    retry_draft,
    retry_level,
    retry_properties,
)
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.group import (
    EXPONENTIAL,
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from contrail.model.message import StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.record import TRANSACTION_COMMIT

TABLE = parse_delay_levels(DEFAULT_DELAY_LEVELS)
BY_LEVEL = GroupRetryPolicy()
OLD_CLIENT, NEW_CLIENT = 120, 121


def _message(
    topic: str = "orders",
    *,
    reconsume_times: int = 0,
    sys_flag: int = 0,
    properties: dict[str, str] | None = None,
) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        queue_id=3,
        queue_offset=7,
        physical_offset=4096,
        record_bytes=200,
        body=b"body",
        raw_properties=encode_properties(properties or {}),
        flag=9,
        sys_flag=sys_flag,
        body_crc=0,
        born_timestamp_ms=11,
        born_host=b"\x0a\x00\x00\x01\x00\x00\x00\x50",
        store_timestamp_ms=12,
        store_host=b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        reconsume_times=reconsume_times,
        prepared_transaction_offset=77,
    )


def _plan(reconsume_times: int, *, level: int = 0, count_max: int = 16) -> int | None:
    return plan_retry(
        _message(reconsume_times=reconsume_times),
        BY_LEVEL,
        requested_level=level,
        count_max=count_max,
        delay_table=TABLE,
    )


def test_retries_climb_from_the_third_level_to_the_last_and_end_after_sixteen() -> None:
    assert [_plan(times) for times in range(17)] == [*range(3, 19), None]


def test_a_consumer_may_ask_for_a_level_or_give_up_at_once() -> None:
    assert _plan(5, level=1) == 1
    assert _plan(0, level=-1) is None


def test_a_maximum_of_two_gives_up_the_third_time() -> None:
    assert [_plan(times, count_max=2) for times in range(3)] == [3, 4, None]


def test_one_rule_gives_up_a_message_sent_back_and_a_retry_that_a_consumer_sends() -> None:
    """A consumer counts the retry that it sends itself; the broker counts one for a send-back."""
    for times in range(4):
        assert (_plan(times, count_max=2) is None) == is_given_up(times + 1, 2)
    assert not is_given_up(2, 2) and is_given_up(3, 2)


@pytest.mark.proves("kinds.retry.dead-letters")
def test_the_clients_maximum_counts_from_the_version_on_that_sends_one() -> None:
    group = SubscriptionGroupConfig("g", retry_count_max=5)
    assert reconsume_count_max(group, requested=2, version=NEW_CLIENT) == 2
    assert reconsume_count_max(group, requested=2, version=OLD_CLIENT) == 5
    assert reconsume_count_max(group, requested=None, version=NEW_CLIENT) == 5


def test_an_exponential_policy_takes_the_shortest_level_that_is_long_enough() -> None:
    policy = GroupRetryPolicy(EXPONENTIAL, ExponentialRetry(5_000, 60_000, 2))
    delays_ms = [TABLE[retry_level(policy, times, TABLE)] for times in range(6)]
    assert delays_ms == [5_000, 10_000, 30_000, 60_000, 60_000, 60_000]


def test_a_policy_beyond_the_levels_gets_the_longest_of_them() -> None:
    policy = GroupRetryPolicy(customized=CustomizedRetry((90_000_000,)))
    assert retry_level(policy, 0, TABLE) == 18
    assert retry_level(policy, 0, [0, 9_000, 1_000]) == 1


def test_an_empty_policy_goes_by_the_levels() -> None:
    assert retry_level(GroupRetryPolicy(EXPONENTIAL), 1, TABLE) == 4
    # By number, also where the levels are not the default ones.
    assert retry_level(BY_LEVEL, 1, [0, 5_000]) == 4


@given(
    delays_ms=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20),
    levels_ms=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30),
    times=st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_no_level_between_the_policy_and_the_one_taken_is_passed_over(
    delays_ms: list[int], levels_ms: list[int], times: int
) -> None:
    policy = GroupRetryPolicy(customized=CustomizedRetry(tuple(delays_ms)))
    table = [0, *levels_ms]
    wanted_ms = policy.delay_ms(times)
    taken_ms = table[retry_level(policy, times, table)]
    assert taken_ms >= wanted_ms or taken_ms == max(levels_ms)
    assert not [ms for ms in levels_ms if wanted_ms <= ms < taken_ms]


@given(
    initial_ms=st.integers(-(1 << 63), (1 << 63) - 1),
    multiplier=st.integers(-(1 << 63), (1 << 63) - 1),
    times=st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_every_exponential_policy_leads_to_a_level(
    initial_ms: int, multiplier: int, times: int
) -> None:
    policy = GroupRetryPolicy(EXPONENTIAL, ExponentialRetry(initial_ms, 1 << 62, multiplier))
    assert 1 <= retry_level(policy, times, TABLE) <= 18


def test_a_copy_counts_one_more_try_and_keeps_the_message() -> None:
    message = _message(reconsume_times=2, sys_flag=TRANSACTION_COMMIT | 0x301)
    copy = retry_draft(message, "%RETRY%g", 1)
    assert (copy.topic, copy.queue_id, copy.body, copy.flag) == (b"%RETRY%g", 1, b"body", 9)
    assert (copy.born_timestamp_ms, copy.born_host) == (11, message.born_host)
    assert copy.reconsume_times == 3
    # It is compressed as before, but commits nothing.
    assert (copy.sys_flag, copy.prepared_transaction_offset) == (0x301, 0)


def test_a_count_of_tries_that_is_full_stays_full() -> None:
    message = _message(reconsume_times=(1 << 31) - 1)
    assert retry_draft(message, "%RETRY%g", 0).reconsume_times == (1 << 31) - 1


@pytest.mark.proves("kinds.retry.origin")
def test_the_first_copy_remembers_the_original() -> None:
    properties = retry_properties(_message(properties={"KEYS": "k", "WAIT": "true"}), 3)
    assert properties == {
        "KEYS": "k",
        "WAIT": "false",
        "RETRY_TOPIC": "orders",
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000001000",
    }


@pytest.mark.proves("kinds.retry.origin")
def test_later_copies_remember_the_first() -> None:
    known = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "3"}
    properties = retry_properties(_message("%RETRY%g", properties=known), 0)
    assert properties == {**known, "DELAY": "0", "WAIT": "false"}


def test_messages_in_the_brokers_own_topics_are_hidden() -> None:
    waiting = [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "rmq_sys_REVIVE_LOG_c",
    ]
    assert all(is_hidden(_message(topic)) for topic in waiting)
    assert is_hidden(_message(sys_flag=0x80)) and is_hidden(_message(sys_flag=0x40))
    seen = ["orders", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"]
    assert not any(is_hidden(_message(topic)) for topic in seen)


def test_only_retries_and_dead_letters_belong_to_a_group() -> None:
    assert belongs_to_other_group("%RETRY%h", "g") and belongs_to_other_group("%DLQ%h", "g")
    own = ["%RETRY%g", "%DLQ%g", "orders"]
    assert not any(belongs_to_other_group(topic, "g") for topic in own)
