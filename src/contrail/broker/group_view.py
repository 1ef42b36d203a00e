"""A member's knowledge of its group, for tools that know Apache's controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from contrail.broker.handlers.controller_view import EpochSpan, MemberFacts
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.replication.config import GroupConfig
from contrail.replication.services.group_runner import GroupRunner
from contrail.replication.state.group_effects import Role
from contrail.replication.state.member import Member
from contrail.replication.state.member_names import self_id_of


class MemberView:
    """The view of one member; only the leader knows how far the others are."""

    def __init__(
        self,
        config: GroupConfig,
        runner: GroupRunner,
        settings: RuntimeSettings,
        *,
        leads: Callable[[], bool],
        hand_over: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.cluster = config.identity.cluster
        self.broker_name = config.identity.broker_name
        self.group = config.identity.group
        self._config = config
        self._runner = runner
        self._settings = settings
        self._leads = leads
        self._hand_over = hand_over

    @property
    def leader_id(self) -> str:
        return self._runner.leader

    @property
    def leader_address(self) -> str:
        return self._runner.leader_address

    @property
    def leads(self) -> bool:
        return self._leads()

    @property
    def term(self) -> int:
        member = self._runner.member
        return 0 if member is None else member.term

    @property
    def own_broker_id(self) -> int:
        return self._settings.config.broker_id

    def peers(self) -> dict[str, str]:
        return dict(self._config.peers)

    def members(self) -> Sequence[MemberFacts]:
        member = self._runner.member
        if member is None:
            return ()
        return [self._facts(member, name) for name in sorted(member.log.voters.now)]

    def _facts(self, member: Member, name: str) -> MemberFacts:
        self_id, progress = self_id_of(name), member.progress.get(name)
        is_self = name == member.self_id
        is_alive = is_self or name in member.connected
        has_committed = progress is not None and progress.matched_end >= member.log.commit
        is_in_sync = is_self or (is_alive and member.role is Role.LEADER and has_committed)
        broker_id = int(self_id[1:]) + 1
        return MemberFacts(
            self_id, broker_id, self._runner.client_address(self_id), is_alive, is_in_sync
        )

    def epochs(self) -> Sequence[EpochSpan]:
        member = self._runner.member
        if member is None:
            return ()
        starts = member.log.epochs.starts
        ends = [*(one.physical_start for one in starts[1:]), member.log.end]
        return [
            EpochSpan(one.epoch, one.physical_start, end)
            for one, end in zip(starts, ends, strict=True)
        ]

    def hand_over(self, target: str = "") -> Awaitable[bool]:
        return self._hand_over(target)
