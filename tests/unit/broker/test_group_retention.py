from __future__ import annotations

from collections.abc import Callable

import pytest

from contrail.broker.services.group_retention import GroupRetention
from contrail.protocol.log_floor import LogFloor
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.progress import Progress
from contrail.replication.state.voters import Voters

pytestmark = pytest.mark.proves("replication.failover.retention")

SEGMENT = 1_000
Then = Callable[[BaseException | None], None]


class FakeGroup:
    """Store, tables, files and runner in one."""

    segment_bytes = SEGMENT
    physical_min = 0
    snapshot_start: int | None = None

    def __init__(self) -> None:
        self.retention_limits: dict[str, Callable[[], int]] = {"snapshot": lambda: 0}
        self.saves: list[tuple[LogFloor, Then]] = []
        log = MemberLog(
            9_000, 9_000, 5_500, EpochTable([EpochStart(2, 1_500)]), Voters(frozenset(("a", "b")))
        )
        self.member: Member | None = Member(
            "a",
            term=2,
            voted_for=None,
            log=log,
            batch_end=lambda start, limit: limit,
            between=lambda low, high: high,
            now_ms=0,
        )
        self.files = self
        self.retention = GroupRetention(self, self, self)

    def removed_before(self, physical_min: int) -> None:
        assert physical_min == self.physical_min

    def save_floor(self, floor: LogFloor, then: Then) -> None:
        self.saves.append((floor, then))

    def limit(self) -> int:
        return min(one() for one in self.retention_limits.values())


def test_nothing_goes_before_a_snapshot_is_committed() -> None:
    group = FakeGroup()
    group.retention.run()
    assert group.saves == [] and group.limit() == 0


def test_a_segment_goes_once_the_floor_of_the_rest_is_on_the_disk() -> None:
    group = FakeGroup()
    group.snapshot_start = 4_321
    group.retention.run()
    group.retention.run()
    ((floor, then),) = group.saves
    assert floor.physical_start == 4_000 and floor.starts == ((2, 1_500),)
    assert group.limit() == 0
    then(None)
    assert group.limit() == 4_000


def test_a_floor_that_cannot_be_written_is_tried_again() -> None:
    group = FakeGroup()
    group.snapshot_start = 4_321
    group.retention.run()
    group.saves[0][1](OSError("the disk is full"))
    assert group.limit() == 0
    group.retention.run()
    assert len(group.saves) == 2


def test_a_snapshot_above_commit_frees_nothing() -> None:
    group = FakeGroup()
    group.snapshot_start = 7_000
    group.retention.run()
    assert group.saves == []


def test_segments_that_a_connected_learner_copies_stay() -> None:
    group = FakeGroup()
    group.snapshot_start = 4_321
    group.retention.run()
    group.saves[0][1](None)
    assert group.member is not None
    group.member.progress = {
        "b": Progress(0, 100),
        "learner": Progress(0, 2_500),
        "gone": Progress(0, 10),
    }
    group.member.connected = {"b", "learner"}
    assert group.limit() == 2_500
    group.member.connected = {"b"}
    assert group.limit() == 4_000
