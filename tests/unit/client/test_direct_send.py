"""Blocking sends that a thread makes by itself: what is sent how, and what follows a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from contrail.client.direct_send import send_directly
from contrail.client.message import SendReceipt, SendStatus
from contrail.client.outgoing import Outgoing
from contrail.client.sender import Sender
from contrail.errors import CallTimedOut, SendFailed, SendTimedOut
from contrail.model.properties import TIMER_DELAY_SEC
from contrail.protocol.command import ReceivedResponse
from tests.unit.client.test_sender import FakeInstance, outgoing, sender

PLACE = {"msgId": "AB", "queueId": "1", "queueOffset": "7"}
LOST = CallTimedOut("closed before it answered")


class FakeLine:
    """Gives one answer: a response code, a failure, or None for what could not be written."""

    def __init__(self, answer: int | CallTimedOut | BaseException | None, **fields: str) -> None:
        self.answer = answer
        self.fields = fields or PLACE
        self.asked_count = 0

    def take_opaque(self) -> int:
        return 5

    def ask(self, opaque: int, frame: bytes, code: int, timeout_ms: int) -> object:
        self.asked_count += 1
        if isinstance(self.answer, int):
            return ReceivedResponse(self.answer, opaque, "", self.fields, b"", 479, "JAVA")
        if self.answer is None or isinstance(self.answer, CallTimedOut):
            return self.answer
        raise self.answer


class LinedInstance(FakeInstance):
    """Has the same line to all brokers."""

    def __init__(self, *names: str, line: FakeLine | None) -> None:
        super().__init__(*names)
        self.line = line
        self.given_back: list[FakeLine] = []
        asyncio.run(self.refresh_route("t"))

    def take_line(self, address: str) -> FakeLine | None:
        return self.line

    @property
    def lines(self) -> LinedInstance:
        return self

    def give_back(self, line: FakeLine) -> None:
        self.given_back.append(line)

    @property
    def asked_count(self) -> int:
        return sum(len(broker.asked) for broker in self.brokers.values())


class FakeBackground:
    """A loop for every call."""

    loop = None

    def run(self, work: Coroutine[Any, Any, SendReceipt]) -> SendReceipt:
        return asyncio.run(work)


def send(
    sending: Sender, message: Outgoing | None = None, timeout_ms: int | None = None
) -> SendReceipt:
    return send_directly(cast(Any, FakeBackground()), sending, message or outgoing(), timeout_ms)


def test_a_plain_message_takes_the_line_alone() -> None:
    line = FakeLine(0)
    instance = LinedInstance("a", line=line)
    sending = sender(instance)
    receipt = send(sending)
    assert (receipt.status, receipt.message_id, receipt.queue_offset) == (
        SendStatus.SEND_OK,
        "ID",
        7,
    )
    assert line.asked_count == 1 and instance.asked_count == 0
    assert instance.given_back == [line] and sending.slots.count == 0


def test_without_a_line_the_same_queue_is_sent_to_by_the_loop() -> None:
    instance = LinedInstance("a", line=None)
    sending = sender(instance)
    for _ in range(4):
        send(sending)
    queues = [request[-1][1] for request in instance.broker("a").asked]
    assert sorted(queues) == [0, 0, 1, 1]
    assert sending.slots.count == 0


def test_what_could_not_be_written_is_sent_by_the_loop() -> None:
    line = FakeLine(None)
    instance = LinedInstance("a", line=line)
    assert send(sender(instance)).status is SendStatus.SEND_OK
    assert line.asked_count == 1 and instance.asked_count == 1


@pytest.mark.parametrize(
    "message",
    [outgoing(b"x" * 65_537), outgoing(b"x", **{TIMER_DELAY_SEC: "3"})],
    ids=["long", "timer"],
)
def test_long_and_timed_messages_go_by_the_loop(message: Outgoing) -> None:
    line = FakeLine(0)
    instance = LinedInstance("a", line=line)
    send(sender(instance), message)
    assert line.asked_count == 0 and instance.asked_count == 1


def test_who_is_not_alone_goes_by_the_loop() -> None:
    line = FakeLine(0)
    instance = LinedInstance("a", line=line)
    sending = sender(instance)
    assert sending.slots.take(1)
    send(sending)
    assert line.asked_count == 0 and instance.asked_count == 1 and sending.slots.count == 1


def test_a_message_does_not_overtake_one_way_sends() -> None:
    line = FakeLine(0)
    instance = LinedInstance("a", line=line)
    sending = sender(instance)
    asyncio.run(sending.send_oneway(outgoing()))
    send(sending)
    assert line.asked_count == 0 and instance.asked_count == 2
    # The answer to the last tells that the first has arrived.
    send(sending)
    assert line.asked_count == 1


def test_a_lost_attempt_counts_as_the_first_and_the_next_goes_elsewhere() -> None:
    line = FakeLine(LOST)
    instance = LinedInstance("a", "b", line=line)
    sending = sender(instance, retry_times_when_send_failed=2)
    receipt = send(sending)
    assert receipt.status is SendStatus.SEND_OK
    assert line.asked_count == 1 and instance.asked_count == 1
    assert instance.refreshed == ["t"] and sending.slots.count == 0


def test_no_attempt_is_made_more_than_allowed() -> None:
    instance = LinedInstance("a", "b", line=FakeLine(LOST))
    for broker in instance.brokers.values():
        broker.script.extend([CallTimedOut("silent")] * 5)
    with pytest.raises(SendTimedOut) as caught:
        send(sender(instance, retry_times_when_send_failed=2))
    assert len(caught.value.attempts) == 3 and instance.asked_count == 2
    assert "closed before it answered" in caught.value.attempts[0]


def test_after_all_of_the_time_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = LinedInstance("a", "b", line=FakeLine(LOST))
    moments = iter([100.0, 103.0])
    with monkeypatch.context() as moved:
        moved.setattr(time, "monotonic", lambda: next(moments, 103.0))
        moved.setattr(instance, "time", lambda: 102.9995, raising=False)
        with pytest.raises(SendTimedOut) as caught:
            send(sender(instance), timeout_ms=3_000)
    assert len(caught.value.attempts) == 1 and instance.asked_count == 0


@pytest.mark.parametrize(("code", "is_retried"), [(1, True), (2, True), (13, False)])
def test_a_refusal_is_retried_by_the_same_rules(code: int, is_retried: bool) -> None:
    instance = LinedInstance("a", "b", line=FakeLine(code))
    sending = sender(instance)
    if is_retried:
        assert send(sending).status is SendStatus.SEND_OK
    else:
        with pytest.raises(SendFailed):
            send(sending)
    assert instance.asked_count == int(is_retried)


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_with_less_is_a_receipt_or_a_reason_to_try_another(code: int) -> None:
    instance = LinedInstance("a", "b", line=FakeLine(code))
    assert send(sender(instance)).status is not SendStatus.SEND_OK
    assert instance.asked_count == 0
    seeking = sender(instance, retry_another_broker_when_not_store_ok=True)
    assert send(seeking).status is SendStatus.SEND_OK
    assert instance.asked_count == 1


def test_a_broker_that_goes_away_is_asked_again_over_a_new_connection() -> None:
    instance = LinedInstance("a", line=FakeLine(1500))
    assert send(sender(instance)).status is SendStatus.SEND_OK
    assert instance.retired == ["a:10911"] and instance.asked_count == 1


def test_a_success_that_does_not_say_where_is_a_failed_attempt() -> None:
    instance = LinedInstance("a", "b", line=FakeLine(0, msgId="AB"))
    assert send(sender(instance)).status is SendStatus.SEND_OK
    assert instance.asked_count == 1


def test_an_interrupt_gives_everything_back() -> None:
    line = FakeLine(KeyboardInterrupt())
    instance = LinedInstance("a", line=line)
    sending = sender(instance)
    with pytest.raises(KeyboardInterrupt):
        send(sending)
    assert instance.given_back == [line] and instance.asked_count == 0
    assert sending.slots.count == 0 and sending.slots.bytes == 0
