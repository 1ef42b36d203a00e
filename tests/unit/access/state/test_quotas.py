"""Quotas: what is admitted, who waits how long, and who does not."""

from __future__ import annotations

from contrail.access.state.quotas import (
    BUCKETS_MAX,
    DEBT_S_MAX,
    LogInLimit,
    Party,
    QuotaRates,
    Quotas,
    Rates,
)

ALICE = Party("alice", "orders", "10.0.0.1")
BOB = Party("bob", "bills", "10.0.0.2")


def test_a_second_is_admitted_at_once_and_then_as_fast_as_the_rate() -> None:
    quotas = Quotas(QuotaRates(user=Rates(messages=10)))
    for _ in range(10):
        assert quotas.wait(ALICE, 0) is None
        quotas.charge(ALICE, 1, 0, 0)
    wait = quotas.wait(ALICE, 0)
    assert wait is not None and wait.ms == 100 and "user 'alice'" in wait.quota
    assert quotas.wait(ALICE, 99) is not None or quotas.wait(ALICE, 100) is None
    assert quotas.wait(BOB, 0) is None
    assert sum(_admitted(quotas, now_ms) for now_ms in range(0, 10_000, 10)) in range(98, 103)


def _admitted(quotas: Quotas, now_ms: int) -> bool:
    if quotas.wait(ALICE, now_ms) is not None:
        return False
    quotas.charge(ALICE, 1, 0, now_ms)
    return True


def test_bytes_may_leave_a_debt_that_is_bounded() -> None:
    quotas = Quotas(QuotaRates(topic=Rates(bytes=1000)))
    quotas.charge(ALICE, 1, 4000, 0)
    wait = quotas.wait(ALICE, 0)
    assert wait is not None and wait.ms == 3001
    quotas.charge(ALICE, 1, 1 << 30, 0)
    wait = quotas.wait(ALICE, 0)
    assert wait is not None and wait.ms <= DEBT_S_MAX * 1000 + 1
    assert quotas.wait(ALICE._replace(topic="other"), 0) is None


def test_a_party_without_a_name_has_no_quota() -> None:
    quotas = Quotas(QuotaRates(user=Rates(1, 1), topic=Rates(1, 1), address=Rates(1, 1)))
    for _ in range(3):
        quotas.charge(Party("", "", ""), 9, 9, 0)
    assert quotas.wait(Party("", "", ""), 0) is None


def test_the_longest_wait_counts() -> None:
    quotas = Quotas(QuotaRates(user=Rates(messages=1), address=Rates(bytes=10)))
    quotas.charge(ALICE, 1, 60, 0)
    wait = quotas.wait(ALICE, 0)
    assert wait is not None and "bytes a second of address" in wait.quota


def test_buckets_are_bounded() -> None:
    quotas = Quotas(QuotaRates(topic=Rates(messages=1)))
    for number in range(BUCKETS_MAX + 10):
        quotas.charge(Party("", f"t{number}", ""), 1, 0, number)
    assert len(quotas._buckets) <= BUCKETS_MAX


def test_failed_log_ins_are_limited_by_address_and_lock_nobody_out_who_is_known() -> None:
    limit = LogInLimit(5)
    limit.succeeded("alice", "10.0.0.1")
    looked_at = 0
    for now_ms in range(0, 1000, 10):
        if not limit.wait_ms("mallory", "10.0.0.1", now_ms):
            looked_at += 1
            limit.failed("10.0.0.1", now_ms)
    assert 5 <= looked_at <= 11
    limit.failed("10.0.0.1", 1000)
    assert limit.wait_ms("mallory", "10.0.0.1", 1000) > 0
    assert limit.wait_ms("alice", "10.0.0.1", 1000) == 0
    assert limit.wait_ms("mallory", "10.0.0.9", 1000) == 0
    assert limit.wait_ms("mallory", "10.0.0.1", 3000) == 0
