"""The failures that are retried, and the error of a failed send."""

from __future__ import annotations

import pytest

from contrail.client.message import MessageQueue, SendReceipt, SendStatus
from contrail.client.state.send_retry import Next, RetryRules, RetryStyle, SendCourse
from contrail.errors import BrokerRefused, CallFailed, CallTimedOut, SendFailed, SendTimedOut


def rules(style: RetryStyle = "sync", *, own: bool = False, count: int = 2) -> RetryRules:
    return RetryRules(style=style, retry_count=count, has_own_queue=own)


@pytest.mark.parametrize("code", [None, 1, 2, 14, 16, 17, 204, 205, 1500])
def test_a_synchronous_send_goes_to_another_broker_twice(code: int | None) -> None:
    steps = [rules().after_failure(count, code) for count in (1, 2, 3)]
    assert steps == [Next.OTHER_BROKER, Next.OTHER_BROKER, Next.STOP]


@pytest.mark.parametrize("code", [3, 13, 26, 29, 215, 9999])
def test_other_answers_are_final(code: int) -> None:
    assert rules().after_failure(1, code) is Next.STOP


def test_an_asynchronous_send_stays_with_its_broker_and_retries_only_without_an_answer() -> None:
    assert rules("async").after_failure(2, None) is Next.SAME_BROKER
    assert rules("async").after_failure(3, None) is Next.STOP
    assert rules("async").after_failure(1, 1) is Next.STOP


def test_a_chosen_queue_is_tried_once_when_synchronous_and_again_when_not() -> None:
    assert rules(own=True).after_failure(1, None) is Next.STOP
    assert rules("async", own=True).after_failure(1, None) is Next.SAME_BROKER


def test_errors_that_must_not_be_retried_are_not() -> None:
    assert rules("never").after_failure(1, None) is Next.STOP
    assert rules(count=0).after_failure(1, None) is Next.STOP


def test_a_refused_topic_of_the_system_is_not_sent_to_another_broker() -> None:
    refusal = BrokerRefused("refused: NO_PERMISSION", code=16, remark="the broker's own")
    assert SendCourse("rmq_sys_x", rules()).failed("broker-a", refusal, 1) is Next.STOP
    assert SendCourse("orders", rules()).failed("broker-a", refusal, 1) is Next.OTHER_BROKER


@pytest.mark.proves("client.shared.errors")
def test_a_failed_send_lists_every_attempt() -> None:
    course = SendCourse("orders", rules())
    course.failed("broker-a", CallFailed("10.0.0.1:10911 cannot be reached: refused"), 3)
    refusal = BrokerRefused("broker-b refused it: SYSTEM_BUSY", code=2, remark="busy")
    course.failed("broker-b", refusal, 40)
    with pytest.raises(SendFailed) as caught:
        course.outcome(43)
    assert not isinstance(caught.value, SendTimedOut)
    assert caught.value.topic == "orders"
    assert caught.value.attempts == (
        "broker-a: 10.0.0.1:10911 cannot be reached: refused (3 ms)",
        "broker-b: broker-b refused it: SYSTEM_BUSY (40 ms)",
    )
    assert caught.value.__cause__ is refusal
    for piece in ("'orders'", "2 attempts in 43 ms", "broker-a", "SYSTEM_BUSY"):
        assert piece in str(caught.value)


def test_a_send_without_an_answer_says_that_it_may_be_stored() -> None:
    course = SendCourse("orders", rules())
    course.failed("broker-a", CallTimedOut("did not answer"), 3_000)
    with pytest.raises(SendTimedOut, match="may be stored"):
        course.outcome(3_000)


def test_one_attempt_without_an_answer_makes_the_result_uncertain_whatever_comes_after_it() -> None:
    course = SendCourse("orders", rules())
    course.failed("broker-a", CallTimedOut("closed the connection before it answered"), 3)
    course.failed("broker-b", CallFailed("cannot be reached"), 1)
    with pytest.raises(SendTimedOut, match="may be stored"):
        course.outcome(4)


def test_a_receipt_below_send_ok_is_better_than_an_error() -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    receipt = SendReceipt(SendStatus.FLUSH_DISK_TIMEOUT, "id", queue, 7)
    course = SendCourse("orders", rules())
    assert course.stored(receipt, 5) is Next.OTHER_BROKER
    course.failed("broker-b", CallFailed("gone"), 1)
    assert course.outcome(6) is receipt


def test_only_synchronous_sends_without_a_chosen_queue_look_for_a_better_receipt() -> None:
    assert rules().seeks_better()
    assert not rules("async").seeks_better()
    assert not rules(own=True).seeks_better()
