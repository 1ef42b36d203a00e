"""The counters of the broker, and the windows that show them."""

from __future__ import annotations

import pytest

from contrail.broker.state.stats import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    DAY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    HOUR,
    MINUTE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    BrokerStats,
    StatWindow,
)

# The beginning of a day in UTC, which every window begins with.
DAWN_MS = 1_760_054_400_000


def new_stats(utc_offset_ms: int = 0) -> BrokerStats:
    return BrokerStats("c1", started_ms=DAWN_MS, utc_offset_ms=utc_offset_ms)


def run_seconds(stats: BrokerStats, first: int, last: int, *, sent: int = 0) -> None:
    for second in range(first, last + 1):
        if sent:
            stats.sent("orders", sent, 100 * sent)
        stats.sample(DAWN_MS + second * 1000)


def test_sending_counts_by_topic_and_for_the_broker() -> None:
    stats = new_stats()
    stats.sent("orders", 3, 300)
    stats.sent("orders", 1, 50)
    stats.sent("other", 1, 1)
    numbers, sizes = stats.item(TOPIC_PUT_NUMS, "orders"), stats.item(TOPIC_PUT_SIZE, "orders")
    assert (numbers.value, numbers.calls, sizes.value) == (4, 4, 350)
    assert stats.item(BROKER_PUT_NUMS, "c1").value == 5
    assert (stats.put_count, stats.put_byte_count) == (5, 351)


def test_pulling_counts_by_topic_and_group() -> None:
    stats = new_stats()
    stats.pulled(("orders", "billing"), 32, 4096)
    assert dict(stats.items(GROUP_GET_NUMS))["orders@billing"].value == 32
    assert dict(stats.items(GROUP_GET_SIZE))["orders@billing"].value == 4096
    assert dict(stats.items(BROKER_GET_NUMS))["c1"].value == 32
    stats.sent_back("orders", "billing")
    assert stats.item(SNDBCK_PUT_NUMS, "orders@billing").value == 1


def test_an_item_nobody_counted_does_not_exist() -> None:
    stats = new_stats()
    assert stats.find(TOPIC_PUT_NUMS, "orders") is None
    assert stats.find("NO_SUCH_STAT", "orders") is None


@pytest.mark.proves("broker.running.rates")
def test_the_minute_window_shows_the_last_minute_only() -> None:
    stats = new_stats()
    run_seconds(stats, 1, 60, sent=10)
    item = stats.item(TOPIC_PUT_NUMS, "orders")
    window = item.window(MINUTE)
    assert window.total == 600
    assert window.per_second == 10.0
    assert window.per_call == 1.0
    assert stats.topic_put_per_second("orders") == 10.0
    run_seconds(stats, 61, 130)
    assert item.window(MINUTE) == StatWindow(0, 0.0, 0.0)
    assert item.window(HOUR) == StatWindow()


def test_hours_and_days_are_sampled_at_their_own_pace() -> None:
    stats = new_stats()
    run_seconds(stats, 1, 600, sent=1)
    item = stats.item(TOPIC_PUT_NUMS, "orders")
    assert item.window(HOUR).total == 600
    assert item.window(HOUR).per_second == 1.0
    assert item.window(DAY) == StatWindow()
    stats.sample(DAWN_MS + 3_600_000)
    assert item.window(DAY).total == 600


@pytest.mark.proves("broker.running.rates")
def test_rates_appear_once_there_are_enough_samples() -> None:
    stats = new_stats()
    assert stats.rates("put") == "  "
    run_seconds(stats, 1, 11, sent=2)
    assert stats.rates("put") == "2.0  "
    run_seconds(stats, 12, 61, sent=2)
    assert stats.rates("put") == "2.0 2.0 "
    run_seconds(stats, 62, 601, sent=2)
    assert stats.rates("put") == "2.0 2.0 2.0"


def test_all_gets_are_those_that_found_and_those_that_missed() -> None:
    stats = new_stats()
    assert stats.get_rates() == "0.0 0.0 0.0"
    for second in range(1, 12):
        stats.pulled(("orders", "billing"), 5, 500)
        stats.pull_missed(3)
        stats.sample(DAWN_MS + second * 1000)
    assert stats.rates("found") == "1.0  "
    assert stats.rates("transferred") == "5.0  "
    assert stats.get_rates() == "4.0 0.0 0.0"


def test_a_clock_that_stands_adds_no_sample_and_one_that_goes_back_starts_over() -> None:
    stats = new_stats()
    run_seconds(stats, 1, 11, sent=1)
    stats.sample(DAWN_MS + 11_000)
    assert stats.rates("put") == "1.0  "
    stats.sample(DAWN_MS + 2_000)
    run_seconds(stats, 3, 12, sent=1)
    assert stats.rates("put") == "  "
    run_seconds(stats, 13, 13, sent=1)
    assert stats.rates("put") == "1.0  "
    assert stats.topic_put_per_second("orders") >= 0.0


def test_the_totals_of_the_morning_are_taken_when_the_day_changes_here() -> None:
    stats = new_stats(utc_offset_ms=-3_600_000)
    stats.sent("orders", 5, 5)
    stats.sent("rmq_sys_x", 7, 7)
    stats.sample(DAWN_MS + 3_599_000)
    assert stats.morning_totals("put") == (0, 0)
    stats.sample(DAWN_MS + 3_600_000)
    assert stats.morning_totals("put") == (0, 5)
    stats.sent("orders", 1, 1)
    stats.sample(DAWN_MS + 3_600_000 + 86_400_000)
    assert stats.morning_totals("put") == (5, 6)
    assert stats.user_total("put") == 6


def test_put_times_of_the_last_whole_minute_are_shown_by_range() -> None:
    stats = new_stats()
    for elapsed_ms in (0, 0, 5, 10, 4999, 60_000):
        stats.put_took(elapsed_ms)
    assert ":0 " in stats.put_time_ranges()
    assert stats.put_time_max_ms == 60_000
    stats.sample(DAWN_MS + 60_000)
    shown = stats.put_time_ranges()
    for expected in ("[<=0ms]:2 ", "[0~10ms]:1 ", "[10~50ms]:1 ", "[4~5s]:1 ", "[10s~]:1 "):
        assert expected in shown
    stats.sample(DAWN_MS + 120_000)
    assert "[<=0ms]:0 " in stats.put_time_ranges()


def test_quantiles_lie_where_most_appends_stayed() -> None:
    stats = new_stats()
    for _ in range(990):
        stats.put_took(1)
    for _ in range(10):
        stats.put_took(900)
    stats.sample(DAWN_MS + 60_000)
    assert stats.put_time_below_ms(0.5) <= 1
    assert 800 < stats.put_time_below_ms(0.999) <= 1000


def test_a_deleted_topic_or_group_is_forgotten_and_may_come_back() -> None:
    stats = new_stats()
    stats.sent("orders", 1, 1)
    stats.pulled(("orders", "billing"), 1, 1)
    stats.pulled(("other", "billing"), 1, 1)
    stats.topic_deleted("orders")
    assert stats.find(TOPIC_PUT_NUMS, "orders") is None
    assert stats.find(GROUP_GET_NUMS, "orders@billing") is None
    stats.group_deleted("billing")
    assert stats.find(GROUP_GET_NUMS, "other@billing") is None
    stats.sent("orders", 1, 1)
    stats.pulled(("other", "billing"), 2, 1)
    assert stats.item(TOPIC_PUT_NUMS, "orders").value == 1
    assert dict(stats.items(GROUP_GET_NUMS))["other@billing"].value == 2
    assert stats.item(BROKER_PUT_NUMS, "c1").value == 2


def test_tallies_of_deleted_topics_and_groups_are_not_kept() -> None:
    stats = new_stats()
    first = stats.tally_of(("orders", "billing"))
    second = stats.tally_of(("other", "billing"))
    assert stats.tally_of(("orders", "billing")) is first
    stats.topic_deleted("orders")
    assert stats.tally_of(("orders", "billing")) is not first
    stats.group_deleted("billing")
    assert stats.tally_of(("other", "billing")) is not second
