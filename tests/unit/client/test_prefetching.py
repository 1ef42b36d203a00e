"""Fetching ahead for a pull consumer, when pulls fail in expected and unexpected ways."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from contrail.client import prefetching
from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.offset_stores import OffsetStore
from contrail.client.prefetching import Prefetcher
from contrail.client.pull_settings import PullSettings
from contrail.client.pulling import PullResult, PullStatus
from contrail.client.state.routes import RouteTable
from contrail.clock import ManualClock
from contrail.errors import ClientClosed, ClientError
from contrail.model.subscription import SubscriptionData

QUEUE = MessageQueue("orders", "a", 0)
SETTINGS = PullSettings(pull_time_delay_ms_when_exception=1)


class FakeInstance:
    clock = ManualClock()
    routes = RouteTable()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=name)

    def refresh_soon(self, topic: str) -> None:
        assert topic == QUEUE.topic


class KnownOffsets:
    def known(self, queue: MessageQueue) -> int:
        return 3


class Held:
    def __init__(self, queue_offset: int) -> None:
        self.queue_offset = queue_offset
        self.record_bytes = 100


class Pulls:
    """Fails by its script (None: success), and then hands out message after message."""

    def __init__(self, *troubles: Exception | None) -> None:
        self.troubles = [*troubles]
        self.places: list[int] = []

    async def __call__(self, instance: object, *, queue_offset: int, **rest: object) -> PullResult:
        self.places.append(queue_offset)
        await asyncio.sleep(0)
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble is not None:
            raise trouble
        return PullResult(PullStatus.FOUND, [Held(queue_offset)], queue_offset + 1, 0, 100)


def prefetcher() -> Prefetcher:
    made = Prefetcher(
        cast(ClientInstance, FakeInstance()),
        "g",
        SETTINGS,
        cast(OffsetStore, KnownOffsets()),
        SubscriptionData,
    )
    made.add(QUEUE)
    return made


def taken(pulls: Pulls, monkeypatch: pytest.MonkeyPatch, *, count: int = 1) -> list[int]:
    """The queue offsets of the first messages, whatever fails before."""
    monkeypatch.setattr(prefetching, "pull_once", pulls)

    async def main() -> list[int]:
        reading = prefetcher()
        found: list[int] = []
        try:
            for _ in range(count):
                found += [message.queue_offset for message in await reading.take(1, 60_000)]
            return found
        finally:
            await reading.close()

    return asyncio.run(main())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_queue_is_read_on_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pulls = Pulls(KeyError("offset"), ZeroDivisionError())
    assert taken(pulls, monkeypatch) == [3]
    assert pulls.places[:3] == [3, 3, 3]
    first, second = caplog.records
    assert "orders" in first.getMessage() and "KeyError" in first.getMessage()
    assert first.exc_info is not None and second.exc_info is not None


def test_a_repeated_error_is_logged_once_and_another_one_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    down, full = ClientError("a is down"), ClientError("a is full")
    assert taken(Pulls(down, down, down, full, full, down), monkeypatch) == [3]
    assert [text.rpartition(": ")[2] for text in warnings(caplog)] == [
        "a is down",
        "a is full",
        "a is down",
    ]


def test_an_error_that_returns_after_a_success_is_logged_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    down = ClientError("a is down")
    assert taken(Pulls(down, down, None, down, down), monkeypatch, count=2) == [3, 4]
    assert len(warnings(caplog)) == 2


def test_a_closed_client_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pulls = Pulls(ClientClosed("over"))
    monkeypatch.setattr(prefetching, "pull_once", pulls)

    async def main() -> None:
        reading = prefetcher()
        [task] = reading._tasks.values()
        await asyncio.wait_for(task, 30)
        await reading.close()

    asyncio.run(main())
    assert pulls.places == [3]
    assert warnings(caplog) == []
