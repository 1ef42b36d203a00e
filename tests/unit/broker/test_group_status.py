from types import SimpleNamespace
from typing import Any, cast

from contrail.broker.group_status import group_status
from contrail.replication.state.epochs import EpochTable
from contrail.replication.state.group_effects import Role
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.progress import Progress
from contrail.replication.state.voters import Voters

STORE = cast(Any, SimpleNamespace(physical_end=100, acknowledged_end=80))


def member() -> Member:
    log = MemberLog(100, 100, 80, EpochTable(), Voters(frozenset(("n0@a", "n1@b", "n2@c"))))
    return Member(
        "n0@a",
        term=1,
        voted_for=None,
        log=log,
        batch_end=lambda start, limit: limit,
        between=lambda low, high: low,
        now_ms=0,
    )


def runner(one: Member | None) -> Any:
    return SimpleNamespace(
        member=one,
        waits_for="n2",
        leader="n1",
        leader_address="a:1",
        address_of=lambda name: "x:9",
        links=SimpleNamespace(skews_ms=lambda: {"n1": 7}, problems=lambda: {"n2": "no way"}),
    )


def test_a_broker_without_a_group_tells_whom_it_waits_for() -> None:
    found = group_status(runner(None), STORE, leads=False)
    assert (found.role, found.is_master) == ("JOINER", False)
    assert found.master is not None and found.master.problem == "n2"


def test_a_follower_tells_its_leader_and_whether_it_votes() -> None:
    found = group_status(runner(member()), STORE, leads=False)
    assert found.role == "FOLLOWER" and found.master is not None
    assert (found.master.master_address, found.master.state) == ("a:1", "voter")


def test_a_leader_tells_how_far_each_member_is_and_which_are_away() -> None:
    one = member()
    one.role, one.connected = Role.LEADER, {"n1@b", "n3@d"}
    one.progress = {
        "n1@b": Progress(100, 90, is_streaming=True),
        "n2@c": Progress(50, 50, is_streaming=True),
        "n3@d": Progress(20, 10, is_streaming=True),
    }
    found = group_status(runner(one), STORE, leads=True)
    assert (found.role, found.required_replicas, found.total_replicas) == ("LEADER", 2, 3)
    assert [
        (link.broker_id, link.state, link.lag_bytes, link.in_sync) for link in found.slaves
    ] == [
        (2, "receiving", 10, True),
        (3, "away", 50, False),
        (4, "learning", 90, False),
    ]
    assert group_status(runner(one), STORE, leads=False).role == "TAKING_OVER"
