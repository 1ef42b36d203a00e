"""Access control put together: the table of users, the gate over it, and the questions of handlers.

Without access control there is no gate, and every question about rights is answered yes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from contrail.access.state.gate import AccessGate, LogIns
from contrail.access.state.quotas import LogInLimit, Quotas
from contrail.access.state.rights import Action
from contrail.broker.access_config import AccessConfig
from contrail.broker.access_copies import CopiesNeed, UserCopies
from contrail.broker.handlers.access_admin import AccessAdminHandlers
from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.handlers.pull import PullHandler
from contrail.broker.handlers.quotas import Finish, QuotaGate
from contrail.broker.intake import Intake
from contrail.broker.pop_side import PopSide
from contrail.broker.services.access_table import AccessTable
from contrail.broker.services.audit_trail import REFUSED, AuditTrail
from contrail.broker.state.client_channels import ClientChannel
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode, describe_code
from contrail.protocol.command import Request, Response
from contrail.protocol.signing import ACCESS_KEY
from contrail.runtime.schedule import Schedule
from contrail.runtime.sparse_log import SparseLog
from contrail.runtime.turns import LaterCalls
from contrail.wire.peer import Answer, Handler, Peer

_audit = logging.getLogger("contrail.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """The broker as the table of needs asks about it."""

    cluster_name: str
    has: Callable[[str], bool]
    topics_of_sink: Callable[[str], Iterable[str]]

    def has_topic(self, topic: str) -> bool:
        return self.has(topic)

    def sink_topics(self, sink_id: str) -> Iterable[str]:
        return self.topics_of_sink(sink_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredNeed:
    """The parts that quotas count at."""

    pulls: PullHandler
    pop: PopSide
    loop: LaterCalls
    finish: Finish


class AccessSide:
    """One broker's access control; ``users`` is None while it is off."""

    def __init__(
        self,
        config: AccessConfig,
        users: AccessTable | None,
        facts: BrokerFacts,
        clock: Clock,
        *,
        root: Path,
    ) -> None:
        """``root`` is the store folder, where the audit trail is written."""
        self._config = config
        self._trail = AuditTrail(root)
        self._users = users
        self._clock = clock
        # By address, so that one that is refused all the time hides no other; bounded.
        self._refusals: dict[str, SparseLog] = {}
        self.copies: UserCopies | None = None
        self._quotas: QuotaGate | None = None
        self.gate = (
            None
            if users is None
            else AccessGate(
                users.table,
                facts,
                whitelists=config.whitelists,
                on_refused=self._refused,
                log_ins=_log_ins(config, clock),
                distrust=lambda name: self.copies.distrust(name) if self.copies else "",
            )
        )

    def table(self) -> dict[int, Handler]:
        """The handlers of requests about users; none while there are no users."""
        if self._users is None:
            return {}
        copies = self.copies
        if copies is None:
            alone = AccessAdminHandlers(self._users, clock=self._clock, trail=self._trail).table()
            return {**alone, RequestCode.GET_SEALED_USERS: _no_secret}
        own = AccessAdminHandlers(
            self._users,
            clock=self._clock,
            leader=lambda: copies.leader,
            when_known=copies.when_known,
            trail=self._trail,
        )
        return {**own.table(), **copies.table()}

    def share(self, need: CopiesNeed) -> None:
        """Share the users with the other brokers of this name, before handlers are made.

        They are sealed under the cluster secret: without it each broker keeps its own.
        """
        if self._users is not None and self.gate is not None and need.replication.has_secret:
            self.copies = UserCopies(self._config, self._users, self.gate, need)

    def register(self, schedule: Schedule) -> None:
        if self.copies is not None:
            self.copies.register(schedule)

    async def close(self) -> None:
        if self.copies is not None:
            await self.copies.close()

    def watch(self, check_held: Callable[[], None]) -> None:
        """Have ``check_held`` called after each change of users or rights."""
        if self._users is not None:
            self._users.on_change = check_held

    def guard(self, intake: Intake) -> None:
        """Have every request judged, whichever way it goes."""
        if self.gate is not None:
            intake.ask_first(self.refusal)
            intake.judge_first(self.gate)

    def metered(self, need: MeteredNeed, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers behind the quotas of the settings."""
        rates = self._config.quotas
        if not rates.is_on:
            return dict(handlers)
        quotas = QuotaGate(Quotas(rates), self._clock, need.loop, has_users=self._config.is_on)
        need.pulls.on_given = quotas.given
        need.pop.count_given(quotas.given)
        quotas.finish = lambda request, peer, work: need.finish(
            request, peer, lambda: self.served_again(lambda *_: work(), request, peer)
        )
        return quotas.guarded(handlers)

    @property
    def records(self) -> FoundRecords:
        """The questions of handlers that find records by their places."""
        return FoundRecords(self._may_use)

    def refusal(self, request: Request, peer: Peer) -> Response | None:
        """Why a request that has just arrived is not served; None lets it pass."""
        if self.gate is None:
            return None
        try:
            self.gate.require(request, peer.address)
        except RequestRejected as refusal:
            return Response(refusal.code, refusal.remark, refusal.fields)
        return None

    def require_still(self, request: Request, peer: Peer) -> None:
        """Raises ``RequestRejected`` for a request that was held and has lost its right."""
        if self.gate is not None:
            self.gate.require_still(request, peer.address)

    def served_again(self, handler: Handler, request: Request, peer: Peer) -> Answer:
        """The answer to a request that has waited, if it keeps its right."""
        self.require_still(request, peer)
        return handler(request, peer)

    def may_stay(self, request: Request, peer: Peer) -> bool:
        """Whether a request that is held keeps its right."""
        try:
            self.require_still(request, peer)
        except RequestRejected:
            return False
        return True

    def may_check(self, channel: ClientChannel, topic: str) -> bool:
        """Whether a producer may see half messages of a topic, which it is asked about."""
        if self.gate is None:
            return True
        return self.gate.may_publish(
            channel.user, RequestCode.HEART_BEAT, channel.peer.address, topic
        )

    def _may_use(
        self, request: Request, peer: Peer, topic: str, actions: tuple[Action, ...]
    ) -> None:
        if self.gate is not None:
            self.gate.may_use(request, peer.address, topic, actions)

    def _refused(self, request: Request, address: str, remark: str) -> None:
        host = address.rpartition(":")[0]
        log = self._refusals.get(host)
        if log is None:
            if len(self._refusals) >= _REFUSED_HOSTS_MAX:
                self._refusals.clear()
            log = self._refusals[host] = SparseLog(_audit)
        now_ms = self._clock.now_ms()
        code = describe_code(request.code)
        if log.warning(now_ms, "request %s of %s was refused: %s", code, address, remark):
            user = request.fields.get(ACCESS_KEY, "")
            self._trail.write(now_ms, REFUSED, user, address, f"request {code}: {remark}")


_REFUSED_HOSTS_MAX = 1000


def _log_ins(config: AccessConfig, clock: Clock) -> LogIns | None:
    rate = config.failed_log_ins_per_s
    return LogIns(LogInLimit(rate), clock.elapsed_ms) if rate else None


def _no_secret(request: Request, peer: Peer) -> Answer:
    raise RequestRejected(
        ResponseCode.NO_PERMISSION,
        "users and rights travel sealed under a cluster secret: set contrailClusterSecretFile",
    )
