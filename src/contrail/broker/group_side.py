"""The side of a broker that is a member of a failover group: its role changes while it runs.

| state       | own appends  | clients                       | moved to by                   |
| ----------- | ------------ | ----------------------------- | ----------------------------- |
| following   | refused      | reads; 14 for the rest        | the start; a lost leadership  |
| taking over | of its parts | as while following            | a committed marker            |
| leading     | open         | everything                    | ``lead`` of all parts is done |

Taking over begins once everything up to the marker is derived here: then the queues know their next
offsets. Held answers of a leader that leads no more are in doubt, never refused: the next leader
may commit their messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from contrail.broker.config import BrokerRole
from contrail.broker.group_status import group_status
from contrail.broker.group_view import MemberView
from contrail.broker.guards import Guards
from contrail.broker.handlers.committed_answers import answered_when_committed
from contrail.broker.handlers.controller_view import ControllerView
from contrail.broker.handlers.group_gate import group_handlers, not_leading
from contrail.broker.handlers.replication import HaFacts, ReplicationHandlers
from contrail.broker.replica_side import Redirecting, SideNeed
from contrail.broker.replicas import link_trust
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.followed_sends import FollowedSends
from contrail.broker.services.group_delays import CARRIED as DELAYS
from contrail.broker.services.group_delays import GroupDelays
from contrail.broker.services.group_deletions import TopicDeletions
from contrail.broker.services.group_kinds import CARRIED as KINDS
from contrail.broker.services.group_kinds import GroupKinds
from contrail.broker.services.group_retention import GroupRetention
from contrail.broker.services.group_tables import GroupTables
from contrail.errors import StoreError
from contrail.model.fastjson import JsonValue
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Response
from contrail.replication.config import BrokerIdentity, GroupConfig
from contrail.replication.services.group_runner import GroupRunner
from contrail.replication.services.member_files import MemberFiles
from contrail.replication.services.replica_log import ReplicaLog
from contrail.replication.state.carried_floor import CARRIED as LOG
from contrail.replication.state.carried_floor import carried_log
from contrail.replication.state.clock_skews import ClockSkews
from contrail.replication.state.group_effects import Role, RoleChanged
from contrail.runtime.schedule import Schedule
from contrail.store import StoreConfig
from contrail.wire.peer import Handler

_FEED_INTERVAL_MS = 100
_OFFSETS_INTERVAL_MS = 1_000
_HAND_OVER_S = 1.0
_HAND_OVER_POLL_S = 0.005
_PREFERENCE_INTERVAL_MS = 10_000
_ROOM_INTERVAL_MS = 250
# Operators' changes that act on the tables at once.
_ANSWERED_WHEN_COMMITTED = frozenset(
    {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET}
)
_log = logging.getLogger(__name__)


class FollowsRole(Protocol):
    """A part of the broker that follows the group's log, and leads while this member does.

    All calls come on the event loop's thread.
    """

    def committed(self, physical_start: int, physical_end: int) -> None:
        """These whole records are committed and derived; each stretch once, in the log's order."""
        ...

    async def lead(self, term: int) -> None:
        """This member leads: everything up to its marker was ``committed``, appends are open.

        Clients are served once this is done.
        """
        ...

    def follow(self, term: int) -> None:
        """This member leads no more: drop what was made from records that are not committed."""
        ...


class GroupSide:
    """One member of a failover group."""

    wants_flushes = True

    def __init__(self, need: SideNeed) -> None:
        self._need = need
        replication = need.replication
        members = replication.group_members
        self._group = replication.group or need.config.broker_name
        self._own_broker_id = members.broker_id
        self._preferred = members.preferred if members.preferred != members.self_id else ""
        self._handing_over: asyncio.Task[bool] | None = None
        config = GroupConfig(
            identity=BrokerIdentity(
                cluster=need.config.cluster_name,
                broker_name=need.config.broker_name,
                broker_id=members.broker_id,
                group=self._group,
            ),
            self_id=members.self_id,
            peers=members.addresses,
            trust=link_trust(need.config, replication, need.tls_files),
            listen_address=need.config.listen_address,
            listen_port=members.port,
            address=need.address,
            facts=log_facts(need.store_config),
        )
        self.runner = GroupRunner(
            config,
            ReplicaLog(need.store, need.clock.now_ms),
            MemberFiles(need.files, need.store_config.root),
            need.clock,
            self,
        )
        self._view = ControllerView(
            MemberView(
                config,
                self.runner,
                need.tables.settings,
                leads=lambda: self.leads,
                hand_over=self.hand_over,
            )
        )
        self.tables = GroupTables(
            need.store,
            need.tables.topics,
            need.tables.groups,
            need.tables.consumer_offsets,
            need.tables.persistence,
            need.files,
            need.store_config.root,
            need.clock,
            offsets_interval_ms=need.config.flush_consumer_offset_ms,
            carried={
                DELAYS: lambda: self._delays.carried(),
                KINDS: lambda: self._kinds.carried(),
                LOG: self._carried_log,
            },
            on_topic_deleted=self._topic_deleted,
        )
        self._deletions = TopicDeletions(need.store)
        kinds = need.kinds
        kinds.carried = self.tables.carried
        self._kinds = GroupKinds(
            need.store,
            kinds.timers,
            kinds.transactions,
            kinds.checks,
            kinds.sinks.file,
            kinds.sinks.transactions,
            lambda: self.tables.carried(KINDS),
            FollowedSends(need.dedupe, need.store),
            forget_sinks=kinds.sinks.forget,
        )
        self._retention = GroupRetention(need.store, self.tables, self.runner)
        self._delays = GroupDelays(
            need.store, need.kinds.delays, lambda: self.tables.carried(DELAYS)
        )
        need.store.retention_limits["delay levels"] = self._delays.retention_limit
        # The tables' first snapshot tells how far the other parts are.
        self.parts: list[FollowsRole] = [self._delays, self._kinds, self.tables]
        # Whether the broker is to start again after this failure: on an emptied folder.
        self.begins_anew = False
        self._guards: Guards | None = None
        self._term = 0
        # The term for which this member is to take over, and the work of it.
        self._wanted_term: int | None = None
        self._takeover: asyncio.Task[None] | None = None
        # Leading, and handing that over: clients are sent away until it is done.
        self._is_leading = self._is_handing_over = False
        self._fed_end = need.store.dispatched_end
        self._skews = ClockSkews()
        self._acknowledgements: Acknowledgements = need.acknowledgements

    # Asked by gates.

    @property
    def leads(self) -> bool:
        """Whether clients are served as by a leader."""
        return self._is_leading and not self._is_handing_over

    def has_lease(self) -> bool:
        return self.leads and self.runner.has_lease()

    @property
    def leader_address(self) -> str:
        """Where clients go; empty while this member hands over."""
        return "" if self._is_handing_over else self.runner.leader_address

    # Building.

    @property
    def redirect(self) -> Redirecting | None:
        return None

    def table(self) -> dict[int, Handler]:
        need = self._need
        facts = HaFacts(
            leads=True,
            address=need.address,
            ha_address="",
            first_end=need.store.physical_end,
            status=self.status,
            request_modes=need.tables.request_modes.body,
            take_master=self.take_master,
            escaped=None,
        )
        return {**ReplicationHandlers(facts).table(), **self._view.table()}

    def gated(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        topics = self._need.tables.topics.table
        handlers = {
            code: answered_when_committed(handler, self.tables.when_committed)
            if code in _ANSWERED_WHEN_COMMITTED
            else handler
            for code, handler in handlers.items()
        }
        return group_handlers(
            handlers, self, self._group, knows_topic=lambda topic: topics.get(topic) is not None
        )

    def guard(self, guards: Guards) -> None:
        self._guards = guards
        guards.has_lease = self.has_lease
        self._gate()
        self._need.tables.settings.take_role(BrokerRole.SLAVE, self._own_broker_id)

    def register(self, schedule: Schedule) -> None:
        schedule.every(_FEED_INTERVAL_MS, lambda now_ms: self._feed(), name="committed records")
        delays = self._need.kinds.delays
        schedule.every(lambda: delays.interval_ms, self._delays.run, name="delay levels")
        self._kinds.register(schedule)
        schedule.every(_OFFSETS_INTERVAL_MS, lambda now_ms: self.tables.sweep(), name="offsets")
        schedule.every(1_000, lambda now_ms: self._warn_of_skew(), name="members' clocks")
        schedule.every(1_000, lambda now_ms: self._retention.run(), name="log's floor")
        schedule.every(_PREFERENCE_INTERVAL_MS, lambda now_ms: self._prefer(), name="leadership")
        schedule.every(_ROOM_INTERVAL_MS, lambda now_ms: self._yield_without_room(), name="room")

    # Starting.

    async def listen(self) -> None:
        """Members link up once log and tables are recalled."""

    async def begin(self) -> None:
        self._kinds.begin()
        self.tables.begin()
        await self.runner.start()

    # Running.

    def flushed(self) -> None:
        self.runner.flushed()
        self._moved()

    def committed(self) -> None:
        try:
            self._deletions.committed(self._need.store.positions.commit_limit)
        except ValueError as error:
            self.failed(error)
            return
        self._moved()

    def _moved(self) -> None:
        """More of the log is visible: answers may be due, and pulls may find it."""
        self._need.flushes.is_noted = True
        self._need.tick()
        if self._deletions.are_due:
            self._need.loop.call_soon(self._carry_out_deletions)
        if self._wanted_term is not None:
            self._take_over_if_ready()

    def role_changed(self, change: RoleChanged) -> None:
        self._term = max(self._term, change.term)
        if change.is_serving:
            if not self._is_leading and self._takeover is None:
                self._wanted_term = change.term
                self._take_over_if_ready()
        elif change.role is not Role.LEADER:
            self._step_down(change.term)
        self._need.registration.register_soon()

    def failed(self, error: Exception) -> None:
        _log.critical("this member cannot go on: %s", error, exc_info=error)
        self._need.fail()

    def begin_anew(self) -> None:
        self.begins_anew = True
        self._need.fail()

    def _carried_log(self) -> JsonValue:
        member = self.runner.member
        return None if member is None else carried_log(member.log)

    def lacks_slaves(self) -> bool:
        return False

    def delete_queues(self, topic: bytes) -> None:
        """Every member removes them at the record of the deletion."""

    def delete_unused(self, topic: bytes) -> None:
        self.tables.delete_topic(topic.decode())

    def take_master(self, ha_address: str, address: str) -> None:
        """Members know their leader by the group."""

    # Roles.

    def _take_over_if_ready(self) -> None:
        """Take over once everything up to the marker is derived."""
        store, term = self._need.store, self._wanted_term
        self._carry_out_deletions()
        self._need.derive()
        if term is None or store.dispatched_end < store.physical_end:
            return
        self._wanted_term = None
        self._feed()
        store.lead(self.tables.offset_floors())
        self._takeover = self._need.loop.create_task(self._take_over(term), name="take over")

    async def _take_over(self, term: int) -> None:
        need = self._need
        topics = need.tables.topics
        queues = need.store.queues()
        # Topics that were made at a former leader are there by their messages.
        topics.restore(
            [one for one in queues if not topics.is_system(one[0].decode("utf-8", "replace"))],
            need.clock.now_ms(),
        )
        for part in self.parts:
            await part.lead(term)
        self._takeover = None
        self._is_leading = True
        _log.info("this member leads failover group %r in term %d", self._group, term)
        self._take_role(leads=True)

    def _step_down(self, term: int) -> None:
        was_leading, takeover = self._is_leading, self._takeover
        self._wanted_term = None
        if not was_leading and takeover is None:
            return
        self._is_leading, self._is_handing_over, self._takeover = False, False, None
        if takeover is not None:
            takeover.cancel()
        _log.warning("this member leads failover group %r no more", self._group)
        self._need.store.stop_leading()
        self._take_role(leads=False)
        self._acknowledgements.give_up()
        # The next leader gives locks; these would stand against its own if this member leads again.
        self._need.tables.locks.forget_all()
        for part in self.parts:
            part.follow(term)

    def _take_role(self, *, leads: bool) -> None:
        """Gates, settings and the registration go by the role."""
        self._gate()
        role = BrokerRole.SYNC_MASTER if leads else BrokerRole.SLAVE
        self._need.tables.settings.take_role(role, 0 if leads else self._own_broker_id)
        self._need.registration.fence = self._term
        self._need.registration.register_soon()

    def _gate(self) -> None:
        if self._guards is not None:
            self._guards.not_leading = None if self.leads else self._refusal
            self._guards.begin_anew()

    def _refusal(self) -> Response:
        refusal = not_leading(self, self._group)
        return Response(refusal.code, refusal.remark, dict(refusal.fields or {}))

    def _feed(self) -> None:
        """Give the parts what was derived since; queues are derived up to commit, never above."""
        start, end = self._fed_end, self._need.store.dispatched_end
        if end > start:
            self._fed_end = end
            try:
                for part in self.parts:
                    part.committed(start, end)
            except (StoreError, ValueError) as error:
                # It would hold other tables than the others from now on.
                self.failed(error)

    def _carry_out_deletions(self) -> None:
        """Derive up to each deletion of a topic, and carry it out; the records behind it follow."""
        while self._deletions.are_due:
            self._need.derive()
            fed_end = self._fed_end
            self._feed()
            if self._fed_end == fed_end:
                return

    def _topic_deleted(self, topic: str, physical_end: int) -> None:
        self._deletions.carry_out(topic, physical_end)
        self._kinds.topic_deleted(topic)

    def _warn_of_skew(self) -> None:
        skews = self.runner.links.skews_ms()
        for one in self._skews.new_ones(skews):
            _log.warning(
                "the clock of member %s is %d ms ahead of this host's: delays and retention go by "
                "the leader's clock; set both by NTP",
                one,
                skews[one],
            )

    # Operators.

    async def hand_over(self, target: str = "", *, timeout_s: float = _HAND_OVER_S) -> bool:
        """Let another member lead, ``target`` if one is named; whether it does.

        Clients are sent away meanwhile; what was appended is committed and answered.
        """
        if not self.leads or not self.runner.transfer(target):
            return False
        self._is_handing_over = True
        self._gate()
        deadline_s = self._need.loop.time() + timeout_s
        while self._awaits_leader(target) and self._need.loop.time() < deadline_s:
            await asyncio.sleep(_HAND_OVER_POLL_S)
        if self._is_leading:
            self.runner.give_up_transfer()
            self._is_handing_over = False
            self._gate()
        return not self._is_leading

    def _prefer(self) -> None:
        """Hand over to the preferred leader, if there is one and it has the whole log."""
        if self.leads and self.runner.is_level(self._preferred):
            self._begin_to_hand_over(self._preferred)

    def _yield_without_room(self) -> None:
        """A leader whose disk takes no append lets a member lead that has the whole log."""
        if self.leads and self._need.store.refuses_appends:
            target = self.runner.level_member()
            if target:
                _log.warning("the disk takes no append: member %s is to lead", target)
                self._begin_to_hand_over(target)

    def _begin_to_hand_over(self, target: str) -> None:
        if self._handing_over is None or self._handing_over.done():
            self._handing_over = self._need.loop.create_task(
                self.hand_over(target), name="hand over"
            )

    def leader_of_users(self) -> str | None:
        return None if self.leads else self.leader_address

    def status(self) -> HaStatus | None:
        return group_status(self.runner, self._need.store, leads=self.leads)

    # Stopping.

    def _awaits_leader(self, target: str) -> bool:
        """Whether this member leads still, or the one that is to lead does not yet."""
        return self._is_leading or (bool(target) and self.runner.leader != target)

    async def leave(self) -> None:
        """Hand over first: a stop fails no send of a client that looks for the next leader."""
        if self._is_leading and not await self.hand_over():
            _log.warning("no other member takes over: clients wait for an election")
            # NameServers of RocketMQ 4 would drop the next leader for a farewell under its id.
            self._need.tables.settings.take_role(BrokerRole.SLAVE, self._own_broker_id)

    async def rest(self) -> None:
        """The runner goes on until the answers under way are given."""
        tasks = [task for task in (self._takeover, self._handing_over) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        await self.runner.stop()


def log_facts(config: StoreConfig) -> dict[str, str]:
    """The settings that shape the log's bytes and rows: all members need the same."""
    return {
        "mappedFileSizeCommitLog": str(config.segment_bytes),
        "messageDelayLevel": config.delay_levels,
        "timerPrecisionMs": str(config.timer_precision_ms),
        "maxMessageSize": str(config.body_bytes_max),
        "enabledAppendPropCRC": str(config.record_crc_enabled).lower(),
    }
