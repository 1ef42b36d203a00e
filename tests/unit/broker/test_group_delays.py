"""Delay levels that go from one leader of a failover group to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from contrail.broker.services.group_delays import GroupDelays
from contrail.broker.state.causes import Delivered
from contrail.model.fastjson import FastJsonError, JsonValue
from contrail.store import MessageStore

pytestmark = pytest.mark.proves("replication.failover.kinds")


class Levels:
    """Delay levels that remember what they were told."""

    def __init__(self) -> None:
        self.waiting_from: int | None = None
        self.cursors = {1: 4}
        self.taken: list[tuple[Mapping[int, int] | None, int]] = []
        self.runs: list[int] = []
        self.stops = 0

    def queue_offsets(self) -> dict[int, int]:
        return dict(self.cursors)

    def take_over(self, cursors: Mapping[int, int] | None, delivered: Delivered) -> None:
        self.taken.append((cursors, delivered.physical_start))

    def stop(self) -> None:
        self.stops += 1

    def run(self, now_ms: int) -> None:
        self.runs.append(now_ms)


class Log:
    visible_end = physical_end = 1_000
    segment_bytes = 1 << 30


class Member:
    def __init__(self) -> None:
        self.levels, self.log = Levels(), Log()
        self.committed: JsonValue = None
        self.delays = GroupDelays(
            cast(MessageStore, self.log),
            self.levels,
            lambda: self.committed,
            read=lambda store, start: Delivered(start),
        )

    def lead(self) -> None:
        asyncio.run(self.delays.lead(1))

    def carried(self) -> Any:
        return self.delays.carried()


def test_only_the_leader_delivers() -> None:
    member = Member()
    member.delays.run(1)
    member.lead()
    member.delays.run(2)
    member.delays.follow(2)
    member.delays.run(3)
    assert (member.levels.runs, member.levels.stops) == ([2], 1)


def test_the_next_leader_reads_the_log_from_the_place_that_the_cursors_speak_for() -> None:
    first, then = Member(), Member()
    first.lead()
    # Of a folder of its own: behind the first message that waits, or nothing.
    assert first.levels.taken == [(None, 1_000)]
    first.levels.cursors = {1: 9, 3: 2}
    first.log.physical_end = 5_000
    then.committed = first.carried()
    then.lead()
    assert then.levels.taken == [({1: 9, 3: 2}, 5_000)]
    first.levels.waiting_from = 300
    first.lead()
    assert first.levels.taken[-1] == (None, 300)


def test_cursors_are_carried_anew_when_they_moved_or_the_log_has_grown_much() -> None:
    member = Member()
    member.committed = {"physicalEnd": 7, "levels": {}}
    # A follower changes nothing.
    assert member.carried() == member.committed
    member.lead()
    told = member.carried()
    assert told == {"physicalEnd": 1_000, "levels": {"1": 4}}
    member.log.physical_end = 2_000
    assert member.carried() == told
    member.levels.cursors[1] = 5
    assert member.carried() == {"physicalEnd": 2_000, "levels": {"1": 5}}
    member.log.physical_end += 9 << 20
    assert member.carried()["physicalEnd"] == member.log.physical_end


def test_a_malformed_fact_is_no_reason_to_deliver_from_the_beginning() -> None:
    member = Member()
    member.committed = {"physicalEnd": "7", "levels": []}
    with pytest.raises(FastJsonError):
        member.lead()
    assert member.levels.taken == []
