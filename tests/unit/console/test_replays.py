"""Replays: an outcome for each letter, a bounded rate, and going on after a stop."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from contrail.client.admin import Admin
from contrail.client.message import Message, MessageQueue, SendReceipt, SendStatus
from contrail.clock import ManualClock
from contrail.console.services import replays as module
from contrail.console.services.replays import ReplayPlan, Replays
from contrail.errors import ClientError, NotOnCluster
from contrail.insight.changes.planned import Hands
from contrail.model.properties import RETRY_TOPIC

QUEUE = MessageQueue("%DLQ%billing", "broker-a", 0)


class Letter:
    """A dead letter as far as a replay looks at it."""

    queue = QUEUE
    flag = 0
    store_timestamp_ms = 1

    def __init__(self, number: int) -> None:
        self.message_id = f"m-{number}"
        self.queue_offset = number
        self.body = b"%d" % number
        self.properties = {RETRY_TOPIC: "orders", "KEYS": f"k-{number}"}
        if number == 3:
            del self.properties[RETRY_TOPIC]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Replays]:
    async def letters_of(admin: object, group: str, wanted: Any) -> list[Letter]:
        every = [Letter(number) for number in range(4)]
        return [one for one in every if one.message_id in wanted.message_ids]

    monkeypatch.setattr(module, "letters_of", letters_of)

    def made(send: Any) -> Replays:
        return Replays(tmp_path, Hands(cast(Admin, None), send), ManualClock(5_000))

    return made


def plan(*numbers: int, rate: float = 1_000.0, **more: Any) -> ReplayPlan:
    ids = [f"m-{number}" for number in numbers]
    return ReplayPlan("run-0001", "billing", "ada", 1, ids, rate, **more)


async def finished(replays: Replays) -> None:
    while replays.told("run-0001").is_running:
        await asyncio.sleep(0)


@pytest.mark.proves("console.api.replay")
def test_each_letter_has_its_outcome_and_edits_are_sent(make: Callable[[Any], Replays]) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> SendReceipt:
        if message.body == b"1":
            raise ClientError("the broker is away")
        sent.append(message)
        return SendReceipt(SendStatus.SEND_OK, "new", MessageQueue("orders", "b", 0), 7)

    async def replay() -> None:
        replays = make(send)
        edits = {"m-2": base64.b64encode(b"mended").decode()}
        replays.start(plan(0, 1, 2, 3, 9, edits=edits))
        await finished(replays)
        told = replays.told("run-0001")
        outcomes = {one.message_id: (one.outcome, one.detail) for one in told.outcomes}
        assert outcomes["m-0"] == ("sent", "orders b/0@7 new")
        assert outcomes["m-1"] == ("failed", "the broker is away")
        assert outcomes["m-2"][0] == "sent"
        assert outcomes["m-3"][0] == "skipped" and "where it came from" in outcomes["m-3"][1]
        assert outcomes["m-9"][0] == "skipped"
        assert told.counts == {"sent": 2, "failed": 1, "skipped": 2}
        assert [(one.topic, one.body) for one in sent] == [("orders", b"0"), ("orders", b"mended")]
        assert [one.run_id for one in replays.every("billing")] == ["run-0001"]
        assert replays.every("others") == []

    asyncio.run(replay())


@pytest.mark.proves("console.api.replay")
def test_a_replay_that_was_stopped_goes_on_and_sends_no_letter_twice(
    make: Callable[[Any], Replays],
) -> None:
    sent: list[bytes] = []

    async def hangs_at_the_second(message: Message) -> SendReceipt:
        if len(sent) == 1:
            await asyncio.Event().wait()
        sent.append(message.body)
        return SendReceipt(SendStatus.SEND_OK, "new", MessageQueue("orders", "b", 0), 7)

    async def goes(message: Message) -> SendReceipt:
        sent.append(message.body)
        return SendReceipt(SendStatus.SEND_OK, "new", MessageQueue("orders", "b", 0), 8)

    async def replay() -> None:
        first = make(hangs_at_the_second)
        first.start(plan(0, 1, 2))
        while len(first.told("run-0001").outcomes) < 2:
            await asyncio.sleep(0.001)
        await first.stop()
        again = make(goes)
        before = {one.message_id: one.outcome for one in again.told("run-0001").outcomes}
        assert before == {"m-0": "sent", "m-1": "unknown"}, "it may have arrived"
        again.resume("run-0001")
        await finished(again)
        told = again.told("run-0001")
        assert told.counts == {"sent": 2, "unknown": 1}
        assert sent == [b"0", b"2"]

    asyncio.run(replay())


@pytest.mark.parametrize("run_id", ["nothing-1", "../accounts", "a"])
def test_a_run_that_is_not_there_is_named(make: Callable[[Any], Replays], run_id: str) -> None:
    async def look() -> None:
        with pytest.raises(NotOnCluster):
            make(None).told(run_id)

    asyncio.run(look())
