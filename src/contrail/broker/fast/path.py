"""The fast path put together for one broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contrail.broker.fast.known_pulls import KnownPulls
from contrail.broker.fast.pulls import FastPulls
from contrail.broker.fast.send_answers import RowAnswers
from contrail.broker.fast.send_lane import SendLane
from contrail.broker.fast.sends import FastSends
from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.broker.handlers.pull import PullHandler
from contrail.broker.handlers.send import SendHandler
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.deriving import Deriving
from contrail.broker.services.pull_admission import PullAdmission
from contrail.broker.services.send_admission import SendAdmission
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.protocol.command import Request
from contrail.store import MessageStore
from contrail.wire.connection import Connection
from contrail.wire.router import RequestRouter
from contrail.wire.server import Server


@dataclass(frozen=True, slots=True)
class FastPath:
    """The ways that the gate may choose; when it ``is_on`` at all."""

    is_on: bool
    sends: FastSends
    pulls: FastPulls
    # None when every message that is stored is told of.
    lane: SendLane | None


@dataclass(frozen=True, slots=True)
class FastNeed:
    """What the fast path shares with the general way."""

    settings: RuntimeSettings
    store: MessageStore
    stats: BrokerStats
    clock: Clock
    server: Server
    router: RequestRouter
    deriving: Deriving
    acknowledgements: Acknowledgements
    consumer_offsets: ConsumerOffsets
    ways: Ways
    waits_for_flush: bool
    is_watched: bool


def fast_path(
    need: FastNeed,
    sends: SendHandler,
    send_admission: SendAdmission,
    pulls: PullHandler,
    pull_admission: PullAdmission,
    busy: BusyPulls,
    *,
    is_on: bool,
    serve: Callable[[Connection, Request], None],
) -> FastPath:
    """The fast path of these handlers; ``serve`` serves a request the general way."""
    fast_sends = _fast_sends(need, sends, send_admission)
    known = KnownPulls(
        need.settings,
        pull_admission,
        need.store,
        need.consumer_offsets,
        need.stats,
        pulls.cold_reads,
        pulls.read,
        need.ways,
    )
    known.times = need.server.times
    fast_pulls = FastPulls(
        pulls,
        known,
        need.server,
        need.router,
        need.deriving,
        need.settings,
        busy,
        need.server.times,
        serve=serve,
        ways=need.ways,
    )
    lane = None if need.is_watched else _lane(need, sends, send_admission, fast_sends)
    return FastPath(is_on, fast_sends, fast_pulls, lane)


def _fast_sends(need: FastNeed, sends: SendHandler, admission: SendAdmission) -> FastSends:
    answers = RowAnswers(
        sends.answers,
        need.settings,
        need.acknowledgements,
        need.clock,
        waits_for_flush=need.waits_for_flush,
        times=need.server.times,
    )
    return FastSends(
        sends,
        need.settings,
        admission,
        need.store,
        need.stats,
        need.clock,
        need.server.limits,
        answers,
        waits_for_flush=need.waits_for_flush,
        is_watched=need.is_watched,
        ways=need.ways,
    )


def _lane(
    need: FastNeed, sends: SendHandler, admission: SendAdmission, fast_sends: FastSends
) -> SendLane:
    return SendLane(
        need.server,
        need.router,
        sends,
        fast_sends,
        admission,
        need.store,
        need.stats,
        need.deriving,
        need.settings,
        waits_for_flush=need.waits_for_flush,
        ways=need.ways,
    )
