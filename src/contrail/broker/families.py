"""The request families that are neither sends nor pulls nor message kinds, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from contrail.broker.handlers.clients import ClientHandlers
from contrail.broker.handlers.consume_progress import ProgressHandlers
from contrail.broker.handlers.figures import FigureHandlers, WaitingCounts
from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.handlers.groups import GroupHandlers
from contrail.broker.handlers.locks import LockHandlers
from contrail.broker.handlers.offset_resets import ResetHandlers
from contrail.broker.handlers.offsets import OffsetHandlers
from contrail.broker.handlers.queries import QueryHandlers
from contrail.broker.handlers.request_modes import RequestModeHandlers
from contrail.broker.handlers.system_messages import SystemMessageHandlers
from contrail.broker.handlers.topics import TopicHandlers
from contrail.broker.services.group_changes import GroupChanges
from contrail.broker.services.route_cache import RouteCache
from contrail.broker.services.sliced_requests import StoreSlicedRequests
from contrail.broker.state.stats import BrokerStats
from contrail.broker.tables import Tables
from contrail.clock import Clock
from contrail.store import MessageStore
from contrail.wire.peer import Handler


class Family(Protocol):
    """Handlers of one request family."""

    def table(self) -> dict[int, Handler]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FamiliesNeed:
    """The parts of the broker that these handlers get."""

    tables: Tables
    store: MessageStore
    stats: BrokerStats
    changes: GroupChanges
    sliced: StoreSlicedRequests
    clock: Clock
    address: str
    broker_name: str
    # The rights on records that requests find.
    records: FoundRecords
    routes: RouteCache
    # Answers the held pulls and pops of a topic.
    wake: Callable[[bytes], None]
    waiting: Callable[[], WaitingCounts]
    # Remove the queues of a topic that is deleted, and of one that has no settings.
    delete_queues: Callable[[bytes], None]
    delete_unused: Callable[[bytes], None]


def handler_families(need: FamiliesNeed) -> tuple[Family, ...]:
    """One object for each request family."""
    tables, store, clock = need.tables, need.store, need.clock
    shared = {
        "consumers": tables.consumers,
        "groups": tables.groups.table,
        "topics": tables.topics.table,
        "store": store,
    }
    in_slices = need.sliced.handler
    return (
        ClientHandlers(
            changes=need.changes,
            producers=tables.producers,
            consumers=tables.consumers,
            groups=tables.groups,
            topics=tables.topics,
            settings=tables.settings,
            compile_sql=tables.expressions.compile,
            clock=clock,
            names=tables.topics.names,
        ),
        OffsetHandlers(
            offsets=tables.consumer_offsets,
            clock=clock,
            in_slices=in_slices,
            **shared,  # type: ignore[arg-type]
        ),
        ResetHandlers(
            offsets=tables.consumer_offsets,
            settings=tables.settings,
            wake=need.wake,
            in_slices=need.sliced.change_handler,
            **shared,  # type: ignore[arg-type]
        ),
        ProgressHandlers(
            offsets=tables.consumer_offsets,
            rates=need.stats,
            settings=tables.settings,
            broker_address=need.address,
            clock=clock,
            in_slices=in_slices,
            **shared,  # type: ignore[arg-type]
        ),
        FigureHandlers(
            offsets=tables.consumer_offsets,
            consumers=tables.consumers,
            groups=tables.groups.table,
            topics=tables.topics.table,
            store=store,
            rates=need.stats,
            waiting=need.waiting,
            broker_name=need.broker_name,
            clock=clock,
            in_slices=in_slices,
        ),
        LockHandlers(
            locks=tables.locks,
            groups=tables.groups.table,
            topics=tables.topics.table,
            broker_name=need.broker_name,
            clock=clock,
            names=tables.topics.names,
            in_slices=need.sliced.change_handler,
        ),
        TopicHandlers(
            tables.topics,
            tables.consumer_offsets,
            need.stats,
            store,
            broker_name=need.broker_name,
            clock=clock,
            in_slices=in_slices,
            offsets_written=tables.offsets_written,
            delete_queues=need.delete_queues,
            delete_unused=need.delete_unused,
        ),
        GroupHandlers(
            tables.groups,
            tables.consumer_offsets,
            need.stats,
            clock=clock,
            in_slices=in_slices,
            offsets_written=tables.offsets_written,
        ),
        QueryHandlers(
            store,
            tables.topics.table,
            tables.consumers,
            tables.filters,
            names=tables.topics.names,
            in_slices=in_slices,
            records=need.records,
        ),
        SystemMessageHandlers(store, tables.topics.names),
        RequestModeHandlers(
            tables.topics.table,
            tables.groups,
            tables.request_modes,
            tables.consumers,
            need.routes,
            tables.settings,
            names=tables.topics.names,
            clock=clock,
        ),
    )
