"""The fast path put together for one broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contrail.broker.fast.pull_answers import PullAnswers
from contrail.broker.fast.pull_forms import PullForms
from contrail.broker.fast.pulls import FastPulls
from contrail.broker.fast.row_answers import RowAnswers
from contrail.broker.fast.sends import FastSends
from contrail.broker.fast.tickless_sends import TicklessSends
from contrail.broker.guards import Guards
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
    tickless: TicklessSends | None


@dataclass(frozen=True, slots=True)
class FastNeed:
    """The parts that the fast path shares with the general way."""

    settings: RuntimeSettings
    store: MessageStore
    stats: BrokerStats
    server: Server
    router: RequestRouter
    deriving: Deriving
    acknowledgements: Acknowledgements
    consumer_offsets: ConsumerOffsets
    ways: Ways
    is_watched: bool


def fast_path(
    need: FastNeed,
    sends: SendHandler,
    send_admission: SendAdmission,
    pulls: PullHandler,
    pull_admission: PullAdmission,
    *,
    is_on: bool,
    guards: Guards,
    serve: Callable[[Connection, Request], None],
) -> FastPath:
    """The fast path of these handlers.

    ``serve`` is the general way.
    """
    fast_sends = _fast_sends(need, sends, send_admission, guards)
    forms = PullForms(
        need.settings, pull_admission, need.store, need.consumer_offsets, need.stats, pulls.read
    )
    answers = PullAnswers(pull_admission, need.consumer_offsets, need.stats, pulls.cold_reads)
    fast_pulls = FastPulls(
        pulls,
        forms,
        answers,
        need.store,
        need.server,
        need.router,
        need.deriving,
        verdict=guards.verdict,
        serve=serve,
        ways=need.ways,
    )
    tickless = None
    if not need.is_watched:
        tickless = _tickless(need, sends, send_admission, fast_sends, guards)
    return FastPath(is_on, fast_sends, fast_pulls, tickless)


def _fast_sends(
    need: FastNeed, sends: SendHandler, admission: SendAdmission, guards: Guards
) -> FastSends:
    answers = RowAnswers(
        sends.answers,
        need.settings,
        need.acknowledgements,
        times=need.server.times,
    )
    return FastSends(
        sends,
        admission,
        need.store,
        need.stats,
        need.server.limits,
        answers,
        guards,
        is_watched=need.is_watched,
        ways=need.ways,
    )


def _tickless(
    need: FastNeed,
    sends: SendHandler,
    admission: SendAdmission,
    fast_sends: FastSends,
    guards: Guards,
) -> TicklessSends:
    return TicklessSends(
        need.server,
        guards,
        sends,
        fast_sends.answers,
        admission,
        need.store,
        need.stats,
        need.deriving,
        ways=need.ways,
    )
