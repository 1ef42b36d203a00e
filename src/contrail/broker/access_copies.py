"""Users and rights of several brokers that count as one: a pair's, or a failover group's.

The broker that leads changes them and gives them to the others (``GET_SEALED_USERS``); the others
follow it, and say when they have not heard of it for too long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contrail.access.state.gate import AccessGate
from contrail.broker.access_config import AccessConfig
from contrail.broker.handlers.sealed_users import SealedUsersHandlers
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.access_table import AccessTable
from contrail.broker.services.cluster_secret import read_cluster_secret
from contrail.broker.services.followed_users import INTERVAL_MS, FollowedUsers, SealedUsers
from contrail.clock import Clock
from contrail.runtime.durable_changes import Done
from contrail.runtime.schedule import Schedule
from contrail.wire.caller import Caller
from contrail.wire.peer import Handler

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesNeed:
    """The broker as the copies of its users ask about it."""

    replication: ReplicationConfig
    in_group: bool
    address: str
    caller: Caller
    # None when this broker's own table counts.
    leader: Callable[[], str | None]
    clock: Clock


class UserCopies:
    """One broker's part in it."""

    def __init__(
        self, config: AccessConfig, users: AccessTable, gate: AccessGate, need: CopiesNeed
    ) -> None:
        secret = read_cluster_secret(Path(need.replication.cluster_secret_path))
        self._gate = gate
        self._stale_ms_max = config.stale_ms
        self._settled = {one.access_key for one in (config.first_user, config.inner) if one}
        self.followed = FollowedUsers(
            users,
            secret,
            lambda: need.caller,
            need.leader,
            own_address=need.address,
            newest_counts=need.in_group,
            now_ms=need.clock.now_ms,
            elapsed_ms=need.clock.elapsed_ms,
        )
        members = len(need.replication.group_members.addresses) if need.in_group else 1
        self._handlers = SealedUsersHandlers(
            SealedUsers(users, secret),
            replica_count=members // 2,
            ask_back=self.followed.ask_back,
            elapsed_ms=need.clock.elapsed_ms,
        )

    def table(self) -> dict[int, Handler]:
        return self._handlers.table()

    @property
    def leader(self) -> str | None:
        """The broker where users are changed; None for this one."""
        return self.followed.leader_address if self.followed.follows else None

    def when_known(self, done: Done) -> Done:
        return self._handlers.when_known(done)

    def distrust(self, name: str) -> str:
        """Why the table is not believed about a user; those of the settings are always known."""
        if not self._gate.is_in_doubt or name in self._settled:
            return ""
        return (
            f"this replica has not heard of changes of users for {self._stale_ms_max} ms "
            "(contrailAccessStaleMillis): it cannot tell whether this user was disabled meanwhile; "
            "ask the broker that leads"
        )

    def register(self, schedule: Schedule) -> None:
        schedule.every(INTERVAL_MS, self._run, name="users of the leader")

    def _run(self, now_ms: int) -> None:
        self.followed.run(now_ms)
        self._handlers.expire(now_ms)
        stale_ms = self.followed.stale_ms()
        in_doubt = 0 < self._stale_ms_max <= stale_ms
        if in_doubt and not self._gate.is_in_doubt:
            _log.warning(
                "the broker that leads has told nothing of users and rights for %s ms: only users "
                "of the settings may sign in until it does",
                stale_ms,
            )
        elif self._gate.is_in_doubt and not in_doubt:
            _log.info("users and rights are those of the broker that leads again")
        self._gate.is_in_doubt = in_doubt

    async def close(self) -> None:
        await self.followed.close()
