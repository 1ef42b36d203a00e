"""Deletions of topics in a failover group: nothing behind their records is derived before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contrail.broker.services.group_deletions import TopicDeletions
from contrail.model.message import StoredMessage
from contrail.replication.state.state_records import (
    Change,
    StateRecord,
    TopicDeletion,
    encode_state_record,
)

pytestmark = pytest.mark.proves("replication.failover.tables")


class Log:
    """State records of 100 bytes each."""

    dispatched_end = physical_min = 0

    def __init__(self, *records: StateRecord) -> None:
        self.records = [encode_state_record(one) for one in records]
        self.limits: list[int | None] = []
        self.deleted: list[tuple[bytes, int]] = []

    def appended_between(
        self, physical_start: int, physical_end: int, topics: frozenset[bytes]
    ) -> Iterator[StoredMessage]:
        given: Any = StoredMessage
        for at in range(physical_start // 100, physical_end // 100):
            yield given("t", 0, at, at * 100, 100, self.records[at], *[b"", 0] * 5)

    def derive_to(self, physical_end: int | None) -> None:
        self.limits.append(physical_end)

    def delete_topic_at(self, topic: bytes, physical_end: int) -> None:
        self.deleted.append((topic, physical_end))


def test_deriving_stops_at_each_deletion_in_turn() -> None:
    log = Log(Change(), TopicDeletion("a"), Change(), TopicDeletion("b"))
    deletions = TopicDeletions(log)
    deletions.committed(100)
    assert not deletions.are_due
    deletions.committed(400)
    assert deletions.are_due and log.limits[-1] == 200
    deletions.carry_out("a", 200)
    assert log.limits[-1] == 400
    deletions.carry_out("b", 400)
    assert not deletions.are_due and log.limits[-1] is None
    assert log.deleted == [(b"a", 200), (b"b", 400)]


def test_a_log_that_was_copied_is_looked_at_from_its_beginning() -> None:
    log = Log(TopicDeletion("a"), TopicDeletion("b"))
    deletions = TopicDeletions(log)
    log.physical_min = 100
    deletions.committed(200)
    assert log.limits == [200]


def test_a_record_is_looked_at_once() -> None:
    log = Log(TopicDeletion("a"))
    deletions = TopicDeletions(log)
    deletions.committed(100)
    deletions.carry_out("a", 100)
    deletions.committed(100)
    assert not deletions.are_due
