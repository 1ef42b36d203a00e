"""A topic that is read without any group: unreadable offsets are reported and skipped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail.cli import topic_reading
from contrail.cli.topic_reading import TopicReader
from contrail.client.admin import Admin
from contrail.client.message import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


class DamagedQueue:
    """A queue where a broker gets past some offsets only after several pulls, or never."""

    def __init__(self, end: int, stuck: dict[int, float]) -> None:
        self.end = end
        self.stuck = stuck

    async def queue_offset_max(self, queue: MessageQueue) -> int:
        return self.end

    async def pull(self, queue: MessageQueue, position: int, *_: Any, **__: Any) -> SimpleNamespace:
        pulls_left = self.stuck.get(position, 0)
        if pulls_left or position >= self.end:
            self.stuck[position] = max(0, pulls_left - 1)
            # Following ends by cancellation: it must get its turn.
            await asyncio.sleep(0)
            return SimpleNamespace(messages=[], next_queue_offset=position)
        message = SimpleNamespace(queue_offset=position, store_timestamp_ms=position)
        return SimpleNamespace(messages=[message], next_queue_offset=position + 1)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reading, "_AGAIN_S", 0.0)


def reader_of(end: int, stuck: dict[int, float]) -> TopicReader:
    return TopicReader(cast(Admin, DamagedQueue(end, stuck)), [QUEUE], "*")


def stored(reader: TopicReader, end: int) -> list[int]:
    async def read() -> list[int]:
        found = reader.stored({QUEUE: 0}, {QUEUE: end})
        return [message.queue_offset async for message in found]

    return asyncio.run(read())


NEVER = float("inf")


def test_a_gap_is_reported_once_and_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    reader = reader_of(6, {2: NEVER, 3: NEVER})
    assert stored(reader, 6) == [0, 1, 4, 5]
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and reader.gap_count == 1
    assert "'orders'" in told and "broker-a:0" in told and "offset 2 to 3 cannot be read" in told


def test_a_gap_at_the_end_ends_the_reading(capsys: pytest.CaptureFixture[str]) -> None:
    reader = reader_of(3, {2: NEVER})
    assert stored(reader, 3) == [0, 1]
    assert "going on at 3" in capsys.readouterr().err


def test_a_place_that_can_be_read_a_little_later_is_no_gap(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader = reader_of(4, {1: 2})
    assert stored(reader, 4) == [0, 1, 2, 3]
    assert reader.gap_count == 0 and capsys.readouterr().err == ""


def test_a_queue_that_was_cut_ends_where_it_ends_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert stored(reader_of(2, {}), 5) == [0, 1]
    assert capsys.readouterr().err == ""


def test_following_passes_a_gap_too(capsys: pytest.CaptureFixture[str]) -> None:
    reader = reader_of(4, {1: NEVER})
    seen: list[int] = []

    async def follow() -> None:
        async with asyncio.timeout(30):
            await reader.follow({QUEUE: 0}, lambda message: add(message.queue_offset))

    def add(queue_offset: int) -> None:
        seen.append(queue_offset)
        if queue_offset == 3:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        asyncio.run(follow())
    assert seen == [0, 2, 3]
    assert "offset 1 to 1 cannot be read" in capsys.readouterr().err
