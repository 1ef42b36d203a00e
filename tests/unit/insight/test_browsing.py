"""Reading topics backwards: the order, the bounds, the places to go on from."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from contrail.client.admin import Admin
from contrail.client.message import MessageQueue
from contrail.errors import ClientError
from contrail.insight.browsing import Found, newest

A, B = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)


class Queues:
    """Queues of messages: (store time, tag) each; the place ``bad`` cannot be read."""

    def __init__(self, queues: dict[MessageQueue, list[int]], bad: int | None = None) -> None:
        self.queues = queues
        self.bad = bad

    async def queue_offset_min(self, queue: MessageQueue) -> int:
        return 0

    async def queue_offset_max(self, queue: MessageQueue) -> int:
        return len(self.queues[queue])

    async def search_offset(self, queue: MessageQueue, moment_ms: int) -> int:
        return sum(one < moment_ms for one in self.queues[queue])

    async def messages_from(self, queue: MessageQueue, first: int, count: int) -> list[Any]:
        if self.bad is not None and first <= self.bad < first + count:
            raise ClientError(f"offset {self.bad} is damaged")
        times = self.queues[queue]
        return [
            SimpleNamespace(queue=queue, queue_offset=place, store_timestamp_ms=times[place])
            for place in range(first, min(first + count, len(times)))
        ]


def read(queues: Queues, **options: Any) -> Found:
    given = {"count_max": 10, "scan_max": 1_000, **options}
    return asyncio.run(newest(cast(Admin, queues), list(queues.queues), **given))


def times(found: Found) -> list[int]:
    return [one.store_timestamp_ms for one in found.messages]


def test_queues_are_merged_from_the_newest_message_down() -> None:
    found = read(Queues({A: [1, 4, 5], B: [2, 3, 6]}))
    assert times(found) == [6, 5, 4, 3, 2, 1]
    assert found.place is None and (found.scanned, found.total) == (6, 6)


def test_a_place_goes_on_where_the_answer_before_ended() -> None:
    queues = Queues({A: list(range(0, 200, 2)), B: list(range(1, 100, 2))})
    first = read(queues, count_max=70)
    second = read(queues, count_max=70, before=first.place)
    third = read(queues, count_max=70, before=second.place)
    assert times(first) + times(second) + times(third) == sorted(
        [*range(0, 200, 2), *range(1, 100, 2)], reverse=True
    )
    assert first.place is not None and third.place is None


def test_a_search_that_finds_nothing_stops_and_says_how_far_it_got() -> None:
    found = read(Queues({A: list(range(100))}), fits=lambda one: False, scan_max=40)
    assert (times(found), found.scanned, found.total) == ([], 40, 100)
    assert found.place == {A: 60}


def test_messages_before_a_time_are_found() -> None:
    assert times(read(Queues({A: [1, 5, 9], B: [2, 6]}), until_ms=6)) == [5, 2, 1]


def test_a_damaged_message_is_named_and_does_not_end_the_search() -> None:
    found = read(Queues({A: list(range(100)), B: [200]}, bad=90), count_max=100)
    assert found.gaps == ["offset 90 is damaged"]
    assert times(found)[0] == 200 and 67 in times(found) and 0 in times(found)
