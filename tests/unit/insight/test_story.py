"""The story of a message, put together from traces, copies and offsets."""

from __future__ import annotations

from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.insight.story import (
    BROKER_TRACE,
    CLIENT_TRACE,
    GroupProgress,
    Step,
    Story,
    Traced,
    tell,
)
from contrail.protocol.bodies.trace import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedState,
)


def copy(topic: str, stored_ms: int, retries: int = 0, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic,
        body=b"paid 5",
        queue=MessageQueue(topic, "broker-a", 0),
        queue_offset=7,
        message_id="M",
        offset_message_id="P",
        properties={"TAGS": "paid", "KEYS": "a b", **properties},
        reconsume_times=retries,
        born_timestamp_ms=1,
        store_timestamp_ms=stored_ms,
        flag=0,
        sys_flag=0,
        physical_offset=0,
    )


def story(
    *traces: Trace,
    copies: tuple[ReceivedMessage, ...] = (),
    progress: tuple[GroupProgress, ...] = (),
    source: str = CLIENT_TRACE,
) -> Story:
    traced = [Traced(trace, source) for trace in traces]
    return tell("M", "orders", traces=traced, copies=copies, progress=progress)


def only(told: Story) -> Step:
    (step,) = told.steps
    return step


def test_steps_come_in_the_order_of_their_times() -> None:
    told = story(
        SubAfterTrace(request_id="r", message_id="M", cost_ms=4, success=False, group="g"),
        SubBeforeTrace(timestamp_ms=30, request_id="r", message_id="M", group="g"),
        PubTrace(timestamp_ms=10, group="shop", message_id="M", cost_ms=2),
        copies=(
            copy("%DLQ%g", 60, 2),
            copy("%RETRY%g", 50, 1),
            copy("SCHEDULE_TOPIC_XXXX", 40, 1, REAL_TOPIC="%RETRY%g"),
            copy("orders", 20),
        ),
    )
    kinds = [step.kind for step in told.steps]
    assert kinds == ["send", "store", "deliver", "wait", "retry", "dead-letter"]
    assert [step.group for step in told.steps] == [None, None, "g", "g", "g", "g"]
    assert (told.tags, told.keys) == ("paid", ["a", "b"])


def test_a_delivery_is_made_from_its_two_traces_or_from_one_of_them() -> None:
    before = SubBeforeTrace(timestamp_ms=5, request_id="r", group="g", retry_times=1)
    after = SubAfterTrace(request_id="r", cost_ms=9, success=True)
    both = only(story(before, after))
    assert (both.text, both.attempt, both.success) == ("try 2: ok after 9 ms", 2, True)
    begun = only(story(before))
    assert begun.success is None and "not traced" in begun.text
    ended = only(story(after))
    assert (ended.timestamp_ms, ended.attempt, ended.text) == (None, None, "handled: ok after 9 ms")


def test_a_trace_of_a_broker_has_no_cost() -> None:
    trace = PubTrace(timestamp_ms=1, group="shop", client_host="10.0.0.1", tags="t", keys="k l")
    told = story(trace, source=BROKER_TRACE)
    assert (only(told).cost_ms, only(told).source) == (None, BROKER_TRACE)
    assert "from 10.0.0.1" in only(told).text and " ms" not in only(told).text
    assert (told.tags, told.keys) == ("t", ["k", "l"])


def test_transactions_and_recalls_are_steps() -> None:
    ended = EndTransactionTrace(
        timestamp_ms=1, group="shop", state=TracedState.COMMIT, from_check=True
    )
    recalled = RecallTrace(timestamp_ms=2, group="shop", success=False)
    first, second = story(ended, recalled).steps
    assert (first.kind, first.text) == (
        *("transaction", "producer group shop said COMMIT_MESSAGE, after a check"),
    )
    assert (second.kind, second.success) == ("recall", False)


def test_a_copy_that_waits_for_its_time_says_until_when() -> None:
    timer = copy("rmq_sys_wheel_timer", 1, REAL_TOPIC="orders", TIMER_OUT_MS="60000")
    step = only(story(copies=(timer,)))
    assert (step.kind, step.group) == ("wait", None)
    assert "for orders until 1970-01-01T00:01:00.000Z" in step.text


def test_groups_without_traces_show_whether_they_are_past_the_message() -> None:
    stored = copy("orders", 1)
    offsets = {"past": 8, "before": 7, "new": None}
    progress = tuple(GroupProgress(group, stored, at) for group, at in offsets.items())
    told = story(progress=progress)
    assert {step.group: step.success for step in told.steps} == {
        "past": True,
        "before": False,
        "new": False,
    }
    assert "nowhere yet" in told.steps[2].text


def test_a_group_with_a_trace_needs_no_offset() -> None:
    before = SubBeforeTrace(timestamp_ms=5, request_id="r", group="g")
    told = story(before, progress=(GroupProgress("g", copy("orders", 1), 8),))
    assert [step.kind for step in told.steps] == ["deliver"]


def test_steps_of_one_moment_come_in_the_order_of_the_tries() -> None:
    told = story(
        SubBeforeTrace(timestamp_ms=5, request_id="r", group="g", retry_times=0),
        SubBeforeTrace(timestamp_ms=5, request_id="s", group="g", retry_times=1),
        copies=(
            copy("%DLQ%g", 5, 2),
            copy("%RETRY%g", 5, 1),
            copy("SCHEDULE_TOPIC_XXXX", 5, 1, REAL_TOPIC="%RETRY%g"),
            copy("orders", 5),
        ),
    )
    kinds = [step.kind for step in told.steps]
    assert kinds == ["store", "deliver", "wait", "retry", "deliver", "dead-letter"]


def test_a_send_that_both_sides_trace_is_one_step() -> None:
    traces = [
        Traced(PubTrace(timestamp_ms=1, offset_message_id="P", cost_ms=3), CLIENT_TRACE),
        Traced(PubTrace(timestamp_ms=2, offset_message_id="P"), BROKER_TRACE),
        Traced(PubTrace(timestamp_ms=3, offset_message_id="again"), BROKER_TRACE),
    ]
    told = tell("M", "orders", traces=traces, copies=[], progress=[])
    assert [step.source for step in told.steps] == [CLIENT_TRACE, BROKER_TRACE]


def test_a_send_comes_before_its_store_whatever_the_clocks_show() -> None:
    sent = PubTrace(timestamp_ms=900, offset_message_id="P", message_id="M")
    told = story(sent, copies=(copy("orders", 20),))
    assert [(step.kind, step.timestamp_ms) for step in told.steps] == [("send", 900), ("store", 20)]
