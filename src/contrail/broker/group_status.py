"""A member's word to operators on its failover group, in the shape of a master's or a slave's."""

from __future__ import annotations

from contrail.protocol.bodies.ha_status import LEADER_ROLE, HaStatus, MasterLink, SlaveLink
from contrail.replication.services.group_runner import GroupRunner
from contrail.replication.state.group_effects import Role
from contrail.replication.state.member import Member
from contrail.replication.state.member_names import self_id_of
from contrail.replication.state.progress import Progress
from contrail.store import MessageStore

_TAKING_OVER = "TAKING_OVER"
_JOINER = "JOINER"


def group_status(runner: GroupRunner, store: MessageStore, *, leads: bool) -> HaStatus:
    """The group as this member sees it; ``leads`` says whether it serves as leader."""
    member = runner.member
    if member is not None and member.role is Role.LEADER:
        return _of_leader(runner, member, store, LEADER_ROLE if leads else _TAKING_OVER)
    if member is None:
        role, link = _JOINER, MasterLink(state="joining", problem=runner.waits_for)
    else:
        role = member.role.name
        link = MasterLink(
            master_address=runner.leader_address,
            physical_end=store.physical_end,
            is_active=bool(runner.leader),
            state=_own_state(member),
            # While a leader is known, members that cannot be reached are its concern.
            problem="" if runner.leader else "; ".join(runner.links.problems().values()),
        )
    return HaStatus(
        is_master=False,
        physical_end=store.physical_end,
        master=link,
        role=role,
        acknowledged_end=store.acknowledged_end,
        term=0 if member is None else member.term,
        clock_skews_ms=runner.links.skews_ms(),
    )


def _own_state(member: Member) -> str:
    if member.is_installing:
        return "copying"
    return "voter" if member.is_voter else "learner"


def _of_leader(runner: GroupRunner, member: Member, store: MessageStore, role: str) -> HaStatus:
    links = tuple(_link(runner, member, store, name) for name in sorted(member.progress))
    voter_count = len(member.log.voters.now)
    return HaStatus(
        is_master=True,
        physical_end=store.physical_end,
        in_sync_slaves=sum(one.in_sync for one in links),
        slaves=links,
        role=role,
        acknowledged_end=store.acknowledged_end,
        required_replicas=voter_count // 2 + 1,
        total_replicas=voter_count,
        term=member.term,
        clock_skews_ms=runner.links.skews_ms(),
    )


def _link(runner: GroupRunner, member: Member, store: MessageStore, name: str) -> SlaveLink:
    """Another member; a voter that is gone stays in the list."""
    progress, is_voter = member.progress[name], name in member.log.voters.now
    is_receiving = name in member.connected and progress.is_streaming
    self_id = self_id_of(name)
    return SlaveLink(
        address=f"{self_id}-{runner.address_of(name)}",
        acknowledged_end=progress.matched_end,
        lag_bytes=max(0, store.physical_end - progress.matched_end),
        in_sync=is_receiving and is_voter and not progress.is_copying,
        sent_end=progress.next_end,
        broker_id=int(self_id[1:]) + 1,
        state=_state(progress, is_voter=is_voter) if is_receiving else "away",
    )


def _state(progress: Progress, *, is_voter: bool) -> str:
    if progress.is_copying:
        return "copying"
    return "receiving" if is_voter else "learning"
